"""Compares two runs: `graphmill compare RUN OTHER` prints their scores and costs side by side, then each option and version that differs.

The list also shows options that only one run has. Paths are not compared if their data is equal. `graphmill report RUN --compare OTHER` shows the curves of
both runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphmill.cluster.runs.run_directory import flat
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse
from graphmill.jobs.records.run_record import Run, read_run
from graphmill.jobs.runs import run_facts, text_table

_COSTS = ("epochs", "workers", "device", "train_s", "wall_s", "nodes_per_s", "roots_per_s", "peak_bytes")
_LACKS = "not an option of it"
_OF_A_START = ("run.dir", "run.resume")  # always different in two runs


@dataclass(frozen=True)
class CompareConfig:
    """Compare two runs."""

    run: str
    """A run's directory: a path or a URL."""
    other: str
    """The other run's directory."""


def main() -> None:
    config = parse(CompareConfig, __doc__, ("run", "other"))
    pair = read_run(config.run), read_run(config.other)
    names = ("", *(each.name for each in pair))
    options, versions = differing_options(*pair), _versions(*pair)
    both = [row for row in options if _LACKS not in row]
    print(text_table([names, *facts(*pair)]))
    if len({each.metric for each in pair}) > 1:
        print("the metrics differ: their scores cannot be compared")
    for title, rows in (("options that differ", both), ("versions that differ", versions)):
        print(f"\n{title}: {len(rows)}")
        if rows:
            print(text_table([names, *rows]))
    if len(both) < len(options):
        alone = [name for name, *values in options if _LACKS in values]
        print(f"\noptions of one of the two alone: {len(alone)}: {', '.join(alone)}")


def facts(one: Run, other: Run) -> list[tuple[str, Any, Any]]:
    """Scores, status and costs; a row for each value that at least one run has."""
    sides = [
        {**run_facts(each), **{name: each.summary[name] for name in _COSTS if name in each.summary}}
        for each in (one, other)
    ]
    return [(name, sides[0].get(name, ""), sides[1].get(name, "")) for name in {**sides[0], **sides[1]}]


def differing_options(one: Run, other: Run) -> list[tuple[str, Any, Any]]:
    """(option, value in `one`, value in `other`) for each option that differs. Run directories and paths of equal data are left out."""
    left, right = (
        flat({name: group for name, group in each.config.items() if name not in ("format", "resolved")})
        for each in (one, other)
    )
    ignored = (*_OF_A_START, "data.path") if _data_hash(one) == _data_hash(other) else _OF_A_START
    names = [name for name in {**left, **right} if name not in ignored]
    return _differing(names, left, right, _LACKS)


def _data_hash(each: Run) -> object:
    """Content hash of the data. If the hash is not known, returns an object that equals no other object."""
    return each.summary.get("graph_hash") or each.summary.get("graphs_hash") or object()


def _versions(one: Run, other: Run) -> list[tuple[str, Any, Any]]:
    left, right = (flat(each.environment or {}) for each in (one, other))
    names = [name for name in {**left, **right} if "version" in name or name.startswith(("packages.", "python"))]
    return _differing(names, left, right, "not known")


def _differing(
    names: list[str], left: Mapping[str, Any], right: Mapping[str, Any], lacks: str
) -> list[tuple[str, Any, Any]]:
    rows = [(name, left.get(name, lacks), right.get(name, lacks)) for name in names]
    return [(name, *map(str, values)) for name, *values in rows if values[0] != values[1]]  # type: ignore[misc]


if __name__ == "__main__":
    run(main)
