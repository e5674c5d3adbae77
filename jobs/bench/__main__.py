"""Runs a measurement: `graphmill bench NAME OPTIONS`; `graphmill bench` lists the names."""

import sys
from importlib import import_module

from graphmill.jobs.cli.exit_codes import run

NAMES = ("gpu", "sampling", "speed", "training")


def main() -> int | None:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        wrong = "" if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help") else f"unknown measurement {sys.argv[1]}; "
        print(f"{wrong}usage: graphmill bench NAME OPTIONS, NAME one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"graphmill bench {name}"
    return import_module(f"graphmill.jobs.bench.{name}").main()


if __name__ == "__main__":
    run(main)
