"""Runs a comparison for developers: `python -m benchmarks NAME OPTIONS` in a checkout. Without a name, it lists the comparisons."""

import sys
from importlib import import_module

from graphmill.jobs.cli.exit_codes import run

NAMES = (
    "checks",
    "controller",
    "evaluation",
    "ingest",
    "links",
    "molecules",
    "parallel",
    "planned",
    "script",
    "start",
    "tables",
    "transport",
    "typed",
    "weak",
)


def main() -> int | None:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        wrong = "" if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help") else f"unknown measurement {sys.argv[1]}; "
        print(f"{wrong}usage: python -m benchmarks NAME OPTIONS, NAME one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"python -m benchmarks {name}"
    return import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    run(main)
