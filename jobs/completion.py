"""Prints a script that completes commands and options in a shell: `graphmill completion bash > ~/.local/share/bash-completion/completions/graphmill`.

For zsh: `graphmill completion zsh > ~/.zfunc/_graphmill`, a folder of `fpath`. The script contains the commands, all their options, and the values of options
with few values. Completion starts no Graphmill process. Create the script again after an update of Graphmill. Requires shtab (extra: completion).
"""

import argparse
import contextlib
import importlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graphmill import COMMANDS
from graphmill.core.errors import MissingDependencyError
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.config.short_help import HelpShown, Option

_WITHOUT_HELP = ("bench",)  # all other commands list their options in --help


@dataclass(frozen=True)
class CompletionConfig:
    """Print a completion script."""

    shell: Literal["bash", "zsh", "tcsh"]
    """The shell that reads the script."""


def main() -> None:
    config = parse(CompletionConfig, __doc__, ("shell",))
    try:
        import shtab
    except ImportError as error:
        raise MissingDependencyError(f"completion needs shtab ({error}); pip install shtab") from error
    print(shtab.complete(command_parser(), shell=config.shell))


def command_parser() -> argparse.ArgumentParser:
    """Builds an argparse parser of all commands."""
    parser = argparse.ArgumentParser("graphmill")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    for command, module in COMMANDS.items():
        of_command = commands.add_parser(command, help=command)  # shtab leaves out a command without help
        for option in [] if command in _WITHOUT_HELP else _options(command, module):
            if not option.flag.isupper():
                of_command.add_argument(f"--{option.flag}", nargs="*", choices=option.choices or None)
    return parser


def _options(command: str, module: str) -> Sequence[Option]:
    before, sys.argv = sys.argv, [f"graphmill {command}", "--help", "all"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(module).main()
    except HelpShown as shown:
        return shown.options
    finally:
        sys.argv = before
    return ()


if __name__ == "__main__":
    run(main)
