"""Finds where two runs part: `graphmill diff RUN OTHER` prints the first step, layer and tensor that differ, and what differs between the runs.

Each run is a directory or a file from graphmill export-receipt. The step is found by the runs' receipts, then replayed for both runs. The exit status is 0
for runs that never part too. docs/guides/verify.md has examples. `graphmill compare` shows scores and costs side by side.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.jobs.proof.parting import Parting


@dataclass(frozen=True)
class DiffConfig:
    """Find where two runs part."""

    run: str
    """A run's directory, or a file from graphmill export-receipt."""
    other: str
    """The other run."""
    data: str | None = None
    """The graph or set of both runs; none: where each run found its own."""
    allow_import: bool = False
    """Import and run the user's own model, sampler or task that the runs name."""


def diff(run: object, other: object, *, data: str | None = None, allow_import: bool = False) -> "Parting":
    """Finds where two runs part: `gm.diff(one, other)`. `run`, `other`: directories, Runs, or files from `graphmill export-receipt`.

    The result has the first `step` that differs (None: the runs never part), its `part` and `name` (the layer or tensor), and `causes`: options, data,
    packages, threads and files that differ. Raises FormatError if a run has no receipt or its chain is broken.
    """
    from graphmill.jobs.proof.parting import find_parting

    paths = [str(getattr(each, "path", each)) for each in (run, other)]
    return find_parting(paths[0], paths[1], data, allow_import=allow_import)


def main() -> None:
    config = parse(DiffConfig, __doc__, ("run", "other"))
    parting = diff(config.run, config.other, data=config.data, allow_import=config.allow_import)
    print(parting.outcome)
    for limit in parting.limits:
        print(f"not replayed: {limit}")
    print(f"what differs between the runs: {len(parting.causes) or 'nothing'}")
    for cause in parting.causes:
        print(f"  {cause}")


if __name__ == "__main__":
    run(main)
