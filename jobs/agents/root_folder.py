"""Decides which paths and options a caller of `graphmill mcp` may name: paths below one folder, and options that name neither files nor code."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from graphmill.core.errors import ConfigError, quoted

# Options of a training that name no path, no host and no code. --data, --run and the workers are set by the server.
_GROUPS = ("model", "sampler", "fit", "task", "evaluation", "loader", "embeddings", "relational", "encoding")
_OF_DATA = ("data.split_set", "data.standardise", "data.edge_features", "data.edge_weights", "data.snapshot")
_NOT = ("fit.start_from",)
# A word without /, : and ~ is no path outside the folder, no URL and no import path.
_WORD = re.compile(r"[A-Za-z0-9_+\-][A-Za-z0-9_.+\-]*")
Value = str | int | float | bool | None | list[str] | list[int] | list[float]


@dataclass(frozen=True)
class RootFolder:
    """The folder below which all paths lie."""

    root: Path  # absolute, without symbolic links

    def inside(self, name: str, what: str) -> str:
        """The path as the commands take it, relative to the root. Symbolic links are followed first. Raises ConfigError for a path outside, or a URL."""
        if "://" in name or "::" in name or "\0" in name or name.startswith(("-", "~")):
            raise ConfigError(
                f"{what}: expected a path below the server's folder, got {quoted(name)}; give a relative path"
            )
        path = (self.root / name).resolve()
        if path == self.root or not path.is_relative_to(self.root):
            raise ConfigError(
                f"{what}: expected a path below the server's folder, got {quoted(name)}; give a relative path"
            )
        return str(path.relative_to(self.root))

    def there(self, name: str, what: str) -> str:
        """Like `inside`, for something that exists."""
        path = self.inside(name, what)
        if not (self.root / path).exists():
            raise ConfigError(
                f"{what}: expected a folder or file below the server's folder, found no {quoted(name)}; list its content first"
            )
        return path

    def free(self, name: str, what: str) -> str:
        """Like `inside`, for something that does not exist yet."""
        path = self.inside(name, what)
        if (self.root / path).exists():
            raise ConfigError(f"{what}: expected a new name, got {quoted(name)}, which exists; choose another")
        return path


def option_words(options: Mapping[str, Value]) -> list[str]:
    """Command-line words for these options, such as {"model": "geco", "fit.epochs": 5}. Raises ConfigError for an option that may name a path, a host or code."""
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("-", "_")
        if flag in _NOT or not (flag.partition(".")[0] in _GROUPS or flag in _OF_DATA):
            allowed = ", ".join([*(f"{group}.…" for group in _GROUPS), *_OF_DATA])
            raise ConfigError(f"options: expected options of {allowed}, got {quoted(name)}; leave it out")
        texts = [_text(name, each) for each in (value if isinstance(value, list) else [value])]
        words += [f"--{flag}", *texts]
    return words


def _text(name: str, value: object) -> str:
    text = (
        {True: "true", False: "false", None: "none"}[value] if isinstance(value, bool) or value is None else str(value)
    )
    if len(text) > 100 or not _WORD.fullmatch(text):
        raise ConfigError(f"options: {quoted(name)}: expected a number or a plain word, got {quoted(text)}; correct it")
    return text
