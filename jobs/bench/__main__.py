"""One of the measurements of docs/performance.md: `python -m jobs.bench NAME OPTIONS`; `python -m jobs.bench` lists the names."""

import sys
from importlib import import_module
from pathlib import Path

from jobs.run.exit_codes import run

# Files here that others import, or that run under another interpreter.
_PARTS = ("dgl_peer", "pyg_peer", "sampling_measures", "sampling_peers", "speed_subjects")


def main() -> int:
    here = Path(__file__).parent
    names = sorted(f.stem for f in here.glob("*.py") if not f.stem.startswith("_") and f.stem not in _PARTS)
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        wrong = "" if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help") else f"unknown measurement {sys.argv[1]}; "
        print(f"{wrong}usage: python -m jobs.bench NAME OPTIONS, NAME one of {', '.join(names)}", file=sys.stderr)
        return 2
    name = sys.argv.pop(1)
    sys.argv[0] = f"jobs.bench {name}"
    return import_module(f"jobs.bench.{name}").main()


if __name__ == "__main__":
    run(main)
