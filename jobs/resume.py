"""`--resume RUN`: an earlier run's options become the defaults, so that only what changes has to be said."""

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def config_defaults(kind: type[T], arguments: list[str]) -> T:
    """Defaults of a job's configuration: its own, or those of the run that `--resume` names."""
    run = _resumed_run(arguments)
    if run is None:
        return kind()
    file = Path(run) / "config.json"
    if not file.is_file():
        return kind()  # the job itself says, in one line, that there is no run
    return _from_plain(kind, json.loads(file.read_text()))


def _resumed_run(arguments: list[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith("--resume="):
            return argument.partition("=")[2]
        if argument == "--resume" and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


def _from_plain(kind: Any, value: Any) -> Any:
    """A frozen dataclass from the JSON form of `dataclasses.asdict`; unknown keys are ignored, missing ones keep defaults."""
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        known = {field.name for field in dataclasses.fields(kind)}
        return kind(**{name: _from_plain(hints[name], item) for name, item in value.items() if name in known})  # type: ignore[operator]
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(value)
    return value
