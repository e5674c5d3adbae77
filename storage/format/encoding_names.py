"""Names of stored encodings: `laplacian-16-smallest`, `rwse-20`."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from graphmill.core.errors import ConfigError

_NAME = re.compile(r"laplacian-([1-9]\d{0,3})-(smallest|both_ends)|rwse-([1-9]\d{0,3})")


@dataclass(frozen=True)
class EncodingOptions:
    """Options of one encoding; its name says them all."""

    kind: Literal["laplacian", "rwse"] = "laplacian"
    """Eigenvectors of the normalised Laplacian, or return probabilities of random walks."""
    dim: int = 16
    """Eigenvectors, or steps of the walk."""
    which: Literal["smallest", "both_ends"] = "smallest"
    """Which eigenvectors: the `dim` smallest, or half of them from each end of the spectrum."""

    def __post_init__(self) -> None:
        if self.kind not in ("laplacian", "rwse"):
            raise ConfigError(f"kind: expected laplacian or rwse, got {self.kind!r}")
        if not 1 <= self.dim <= 9999:
            raise ConfigError(f"dim: expected 1 to 9999, got {self.dim}; set --dim")
        if self.which not in ("smallest", "both_ends"):
            raise ConfigError(f"which: expected smallest or both_ends, got {self.which!r}; set --which")

    @property
    def name(self) -> str:
        return f"laplacian-{self.dim}-{self.which}" if self.kind == "laplacian" else f"rwse-{self.dim}"


def parse_encoding_name(name: str) -> EncodingOptions:
    """The options of this name. Raises ConfigError if it is no name of an encoding."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(
            f"encodings: expected names such as laplacian-16-smallest, laplacian-16-both_ends or rwse-20, got {name!r}"
        )
    dim, which, steps = match.groups()
    if steps:
        return EncodingOptions("rwse", int(steps))
    return EncodingOptions("laplacian", int(dim), "smallest" if which == "smallest" else "both_ends")


def encoding_dim(name: str) -> int:
    """Number of columns of the encoding with this name. Raises as `parse_encoding_name`."""
    return parse_encoding_name(name).dim


def encoding_columns(names: tuple[str, ...]) -> int:
    """Number of columns of these encodings side by side."""
    return sum(encoding_dim(name) for name in names)


def split_encodings(encoding: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The columns of each name, as views of an array or tensor [n, encoding_columns(names)]."""
    columns, start = {}, 0
    for name in names:
        columns[name] = encoding[:, start : start + encoding_dim(name)]
        start += encoding_dim(name)
    return columns


def check_encoding_names(names: tuple[str, ...]) -> None:
    """Raises ConfigError unless these are distinct names of encodings."""
    if len(set(names)) < len(names):
        raise ConfigError(f"encodings: expected each name once, got {names}")
    for name in names:
        parse_encoding_name(name)
