"""A command line from a dataclass with argparse alone, for benchmarks that a machine with nothing but torch and numpy runs."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn, TypeVar, get_type_hints

from jobs.run.command_line import complain

Config = TypeVar("Config")


class _Parser(argparse.ArgumentParser):
    """Ends with one line and status 2 where the options are wrong."""

    def error(self, message: str) -> NoReturn:
        complain(message)


def parse_plain(kind: type[Config], description: str | None, arguments: Sequence[str] | None = None) -> Config:
    """`kind` from --its-fields. Tuples take several values, bools are switches that are off."""
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    hints = get_type_hints(kind)
    for option in fields(kind):  # type: ignore[arg-type]  # a dataclass
        flag, default = "--" + option.name.replace("_", "-"), option.default
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            item = int if hints[option.name] == tuple[int, ...] else str
            parser.add_argument(flag, nargs="+", default=default, type=item)
        else:
            parser.add_argument(flag, default=default, type=type(default), help=f"default {default}")
    found: Any = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(parser.parse_args(arguments)).items()
    }
    return kind(**found)
