"""Decides which paths and options a caller of `graphmill mcp` may name: paths below one folder, and options that name neither files nor code."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from graphmill.core.errors import ConfigError, quoted

# Options of a training that a caller may set. --data, --run and the workers are set by the server.
_GROUPS = ("model", "sampler", "fit", "task", "evaluation", "loader", "embeddings", "relational")
_OF_DATA = ("data.split_set", "data.standardise", "data.edge_features", "data.edge_weight", "data.snapshot")
# Options of free text that name something within the data or the network, in plain words. All other options of free text may name a path, a host or code.
_NAMES = (
    *("task.target", "task.node_type", "task.relation", "sampler.relations", "embeddings.node_types"),
    *("fit.freeze", "fit.rates"),
)
_FLAG = re.compile(r"[a-z]\w*([.-]\w+)*", re.ASCII)
# A word without /, : and ~ is no path outside the folder, no URL and no import path. A word that begins with - is a number.
_WORD = re.compile(r"(-(?=[0-9]))?[A-Za-z0-9_+][A-Za-z0-9_.+\-]*")
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
        below = "" if path == self.root or not path.is_relative_to(self.root) else str(path.relative_to(self.root))
        if not below or below.startswith("-"):  # a command would read it as a flag
            raise ConfigError(
                f"{what}: expected a path below the server's folder, got {quoted(name)}; give a relative path"
            )
        return below

    def there(self, name: str, what: str) -> str:
        """Like `inside`, for something that exists."""
        path = self.inside(name, what)
        if not (self.root / path).exists():
            raise ConfigError(
                f"{what}: expected a folder or file below the server's folder, found no {quoted(name)}; list its content first"
            )
        return path

    def closed(self, name: str, what: str) -> str:
        """Like `there`, for a graph, a set or a run that a command opens. Raises ConfigError if it has a symbolic link to the outside, or is a run whose record
        names data outside."""
        path = self.there(name, what)
        for outside in (*self._links(self.root / path), *self._recorded(self.root / path)):
            raise ConfigError(
                f"{what}: expected data below the server's folder, {quoted(name)} names {quoted(outside)}; copy it there"
            )
        return path

    def _links(self, place: Path) -> Iterator[str]:
        """Symbolic links below a folder that lead out of the root."""
        for folder, folders, files in os.walk(place):
            for each in (Path(folder, own) for own in (*folders, *files)):
                if each.is_symlink() and not self._holds(each):
                    yield str(each.relative_to(self.root))

    def _recorded(self, run: Path) -> Iterator[str]:
        """Paths outside the root that a run's files name as its data: its options, its summary, the starts in its receipt."""
        config, summary = _json(run / "config.json"), _json(run / "summary.json")
        starts = [config, *_starts(run / "receipt.jsonl")]
        named = [data.get(key) for each in starts for data in _parts(each, "data") for key in ("path", "folder", "url")]
        named += [
            data.get("folder") for each in starts for own in _parts(each, "config") for data in _parts(own, "data")
        ]
        for name in (summary.get("graph"), summary.get("graphs")):
            there = Path(str(summary.get("started_in", "")), str(name))
            named += [
                name,
                str(there) if there.exists() else None,
            ]  # as in graphmill.jobs.records.run_record.Run.data_url
        for name in named:
            if isinstance(name, str) and ("://" in name or "::" in name or not self._holds(self.root / name)):
                yield name

    def _holds(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root)

    def free(self, name: str, what: str) -> str:
        """Like `inside`, for something that does not exist yet."""
        path = self.inside(name, what)
        if (self.root / path).exists():
            raise ConfigError(f"{what}: expected a new name, got {quoted(name)}, which exists; choose another")
        return path


def _json(path: Path) -> dict[str, Any]:
    """The content of a run's file. Empty if there is none."""
    try:
        return _object(path.read_text())
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return {}


def _object(text: str) -> dict[str, Any]:
    """Empty if the text is no JSON object, such as a line that is being written."""
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _starts(receipt: Path) -> Iterator[dict[str, Any]]:
    """The lines of a run's receipt that name its data: its starts."""
    if receipt.is_file():
        with receipt.open(errors="replace") as lines:
            for line in lines:
                if '"data"' in line or "\\u" in line:  # a step has neither
                    yield _object(line)


def _parts(body: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    if isinstance(part := body.get(name), dict):
        yield part


@cache
def settable() -> Mapping[str, frozenset[str] | None]:
    """The options that a caller may set, each with its words, or None if any plain word will do. Found by walking the options of all trainings: an option of free
    text is left out, unless it names something within the data, or has words of its own beside the text."""
    from graphmill.jobs.config.config import typed_flags

    kinds: dict[str, list[Any]] = {}
    for flag, kind in typed_flags():
        if flag.partition(".")[0] in _GROUPS or flag in _OF_DATA:
            kinds.setdefault(flag, []).append(kind)
    options: dict[str, frozenset[str] | None] = {}
    for flag, own in kinds.items():
        if flag in _NAMES or not any(map(takes_text, own)):
            options[flag] = None
        elif words := {word for kind in own for word in _choices(kind)}:
            options[flag] = frozenset(words | {"none", "auto"})
    return options


def takes_text(kind: Any) -> bool:
    """Whether an option of this type takes any text, and so may name a file, a host or code."""
    if get_origin(kind) is Literal:
        return False
    arguments = [each for each in get_args(kind) if each is not Ellipsis]
    if arguments:
        return any(map(takes_text, arguments))
    return kind not in (int, float, bool, type(None))


def _choices(kind: Any) -> Iterator[str]:
    for each in get_args(kind):
        if get_origin(kind) is Literal:
            yield str(each)
        else:
            yield from _choices(each)


def option_words(options: Mapping[str, Value]) -> list[str]:
    """Command-line words for these options, such as {"model": "geco", "fit.epochs": 5}. Raises ConfigError for an option that may name a path, a host or code."""
    words: list[str] = []
    known = settable() if options else {}
    for name, value in options.items():
        flag = name.replace("-", "_")
        if not _FLAG.fullmatch(name) or flag not in known:
            allowed = ", ".join([*(f"{group}.…" for group in _GROUPS), *_OF_DATA])
            raise ConfigError(
                f"options: expected options of {allowed} that name no file, host or code, got {quoted(name)}; leave it out"
            )
        texts = [_text(name, each) for each in (value if isinstance(value, list) else [value])]
        if not texts:
            raise ConfigError(f"options: {quoted(name)}: expected a value, got an empty list; say none")
        if (choices := known[flag]) is not None and (others := [each for each in texts if each not in choices]):
            raise ConfigError(
                f"options: {quoted(name)}: expected one of {', '.join(sorted(choices))}, got {quoted(others[0])}; correct it"
            )
        words += [f"--{flag}", *texts]
    return words


def _text(name: str, value: object) -> str:
    text = (
        {True: "true", False: "false", None: "none"}[value] if isinstance(value, bool) or value is None else str(value)
    )
    if len(text) > 100 or not _WORD.fullmatch(text):
        raise ConfigError(f"options: {quoted(name)}: expected a number or a plain word, got {quoted(text)}; correct it")
    return text
