"""A run's saved options, and `--resume RUN`: an earlier run's options become the defaults, so that only what changes has to be said."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import TypeVar

from storage.errors import FormatError

T = TypeVar("T")


def config_defaults(kind: type[T], arguments: list[str]) -> T:
    """Defaults of a job's configuration: its own, or those of the run that `--resume` names.

    Raises FormatError where that run has no valid configuration.
    """
    run = _resumed_run(arguments)
    return kind() if run is None else read_config(kind, run, "start one without --resume")


def resume_command(run: str) -> str:
    """What continues a run of this program when it is typed here."""
    found = shutil.which("python")
    # The environment of this process need not be active in the shell.
    python = "python" if found is not None and Path(found).parent == Path(sys.executable).parent else sys.executable
    return shlex.join([python, sys.argv[0], "--resume", run])


def read_config(kind: type[T], run: str, advice: str) -> T:
    """The configuration saved with a run. Raises FormatError, with `advice` where there is no run at all."""
    from pydantic import TypeAdapter, ValidationError

    path = Path(run) / "config.json"
    try:
        return TypeAdapter(kind).validate_json(path.read_text())
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        raise FormatError(f"{run}: expected a run directory (config.json), found none; {advice}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise FormatError(f"{path}: {where}: {first['msg']}; repair the file or start another run") from None


def _resumed_run(arguments: list[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument.startswith("--resume="):
            return argument.partition("=")[2]
        if argument == "--resume" and index + 1 < len(arguments):
            return arguments[index + 1]
    return None
