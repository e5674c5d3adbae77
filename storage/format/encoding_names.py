"""Parses the names of stored encodings, such as `laplacian-16-smallest` and `rwse-20`."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from graphmill.core.errors import ConfigError

_NAME = re.compile(r"laplacian-([1-9]\d{0,3})-(smallest|both_ends)|rwse-([1-9]\d{0,3})")


@dataclass(frozen=True)
class EncodingOptions:
    """The options of one encoding. Its name contains all of them."""

    kind: Literal["laplacian", "rwse"] = "laplacian"
    """Kind of encoding. laplacian: eigenvectors of the normalised Laplacian. rwse: return probabilities of random walks."""
    dim: int = 16
    """Number of eigenvectors, or of steps of the walk."""
    which: Literal["smallest", "both_ends"] = "smallest"
    """Choice of eigenvectors by their eigenvalues. smallest: the `dim` smallest. both_ends: half of `dim` from each end of the spectrum."""

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
    """Parses the name of an encoding into its options. Raises ConfigError if it is not the name of an encoding."""
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
    """Returns the number of columns of the encoding with this name. Raises the errors of `parse_encoding_name`."""
    return parse_encoding_name(name).dim


def encoding_columns(names: tuple[str, ...]) -> int:
    """Returns the total number of columns of these encodings."""
    return sum(encoding_dim(name) for name in names)


def split_encodings(encoding: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Splits an array or tensor [n, encoding_columns(names)] into one view per encoding. Returns the views by name."""
    columns, start = {}, 0
    for name in names:
        columns[name] = encoding[:, start : start + encoding_dim(name)]
        start += encoding_dim(name)
    return columns


def check_encoding_names(names: tuple[str, ...]) -> None:
    """Raises ConfigError unless all names are distinct and are names of encodings."""
    if len(set(names)) < len(names):
        raise ConfigError(f"encodings: expected each name once, got {names}")
    for name in names:
        parse_encoding_name(name)
