"""A job's command line: options by tyro, and everything that is wrong with them as one line.

tyro draws a box around each complaint, and another one around an error that a configuration raises when it is made. Here the first
becomes one line and exit status 2, and the second stays the ConfigError that it is, which `jobs.run.exit_codes.run` prints.
"""

import io
import re
import sys
from contextlib import redirect_stderr
from typing import Any, NoReturn, TypeVar

from storage.errors import GraphmillError

T = TypeVar("T")

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RULE = re.compile(r"[─━\-]{4,}")
_SIDES = " │┃|"
_ENDS = "╭╰┌└+"


def parse(kind: type[T], *, default: T | None = None, description: str | None = None, prefixes: bool = True) -> T:
    """The configuration that `sys.argv` describes. `prefixes` False: options of nested parts have their own names alone.

    Ends the process with status 0 after --help, and with status 2 and one line where an option is unknown, missing, or no value of its
    type. Raises what the configuration's own checks raise.
    """
    import tyro

    options: dict[str, Any] = {} if default is None else {"default": default}
    marked: Any = kind if prefixes else tyro.conf.configure(tyro.conf.OmitArgPrefixes)(kind)
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(marked, description=description, **options)
    except SystemExit as end:
        if not end.code:
            raise
        refused = _refusal(end)
        if refused is not None:
            raise refused from None
        complain(one_line(said.getvalue()))


def complain(message: str) -> NoReturn:
    """Prints what is wrong with the command line, and ends the process with status 2."""
    print(f"error: {message}; --help lists all options", file=sys.stderr)
    sys.exit(2)


def one_line(box: str) -> str:
    """What a box of tyro says: its first part, and what the next one adds: how the option is written, or which may have been meant."""
    parts: list[list[str]] = [[]]
    for drawn in _COLOURS.sub("", box).splitlines():
        line = drawn.strip(_SIDES)
        if line[:1] in _ENDS:  # the frame; tyro's title says no more than the text does
            continue
        if _RULE.fullmatch(line):
            parts.append([])
        elif line:
            parts[-1].append(line)
    message = " ".join(parts[0]).rstrip(".") or "the command line is not understood"
    message = message.removeprefix("Error parsing ")
    message = message[:1].lower() + message[1:]
    for heading, *lines in filter(None, parts[1:]):
        if heading.startswith("Argument helptext") and lines:
            message += f"; expected {lines[0]}"
        elif heading.startswith(("Perhaps you meant", "Arguments similar to")):
            message += f"; perhaps {', '.join(line.split()[0] for line in lines if line.startswith('--'))}"
    return " ".join(message.split())


def _refusal(end: BaseException) -> GraphmillError | None:
    """Our own error, where tyro ended for one."""
    cause: BaseException | None = end
    while cause is not None:
        if isinstance(cause, GraphmillError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None
