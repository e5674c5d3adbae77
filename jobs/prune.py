"""Deletes old snapshots of a graph, and files that dead writers left behind: `python jobs/prune.py <url> --keep 3 --older-than 7d`.

    python jobs/prune.py graphs/products --dry-run                     # lists what would be deleted
    python jobs/prune.py graphs/products --keep 3 --older-than 12h     # keeps the newest three, and all snapshots of the last 12 hours
    python jobs/prune.py s3://bucket/products                          # keeps the newest, and all snapshots of the last day

Ingestion and encoding publish snapshots and delete nothing; only this command deletes files of a graph. You should see the deleted snapshots and files. The
folder of a dead writer is deleted when the writer's lease has ended, about an hour and ten minutes after its last renewal. The folder of a live writer is kept.
Files that Graphmill did not write are kept and listed.

A run needs the files of its snapshot until the run ends: set --older-than to a longer time than your longest run takes.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from graphmill.storage.snapshots.prune import Pruned

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd]?)")
_NAMES_SHOWN = 10


@dataclass(frozen=True)
class PruneConfig:
    """Delete old snapshots of a graph, and files that dead writers left behind."""

    url: str
    """The folder of a graph, or of a set of graphs: a path or an fsspec URL."""
    keep: int = 1
    """Number of newest snapshots to keep, whatever their age."""
    older_than: str = "1d"
    """Delete other snapshots that are older than this: 30m, 12h, 7d, or a number of seconds."""
    dry_run: bool = False
    """Print what would be deleted, and delete nothing."""


def parse_duration(text: str) -> float:
    """Converts a duration to seconds. Raises ConfigError if the text is not a duration."""
    from graphmill.core.errors import ConfigError

    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"older_than: expected a duration such as 30m, 12h, 7d or 3600, got {text!r}; set --older-than"
        )
    return float(match[1]) * _SECONDS[match[2]]


def describe(url: str, pruned: "Pruned", *, dry_run: bool) -> str:
    """Lines about deleted and kept files, one line for each kind."""
    removed = "would remove" if dry_run else "removed"
    lines = [
        f"{url}: {removed} {_snapshots(pruned.removed)}, {pruned.num_files:,} files, {pruned.num_bytes / 2**20:,.1f} MiB",
        f"kept: {_snapshots(pruned.kept)}",
    ]
    for names, heading in (
        (pruned.orphans, f"{removed} what dead writers left in"),
        (pruned.held, "held by writers that live, or died less than a lease ago:"),
        (pruned.foreign, "not ours, left where they are:"),
    ):
        if names:
            more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
            lines.append(f"{heading} {', '.join(names[:_NAMES_SHOWN])}{more}")
    return "\n".join(lines)


def _snapshots(numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return f"snapshot {numbers[0]}"
    return f"{len(numbers)} snapshots ({numbers[0]} to {numbers[-1]})" if numbers else "no snapshot"


def main() -> None:
    config = parse(PruneConfig, __doc__, ("url",))
    older_than_s = parse_duration(config.older_than)
    from graphmill.storage.filesystem.urls import split_url
    from graphmill.storage.snapshots.prune import prune
    from graphmill.storage.snapshots.snapshots import read_manifest

    pruned = prune(config.url, keep=config.keep, older_than_s=older_than_s, dry_run=config.dry_run)
    if not (pruned.kept or pruned.orphans or pruned.held):
        read_manifest(*split_url(config.url), config.url, None, "graphmill ingest <source>")  # says why no graph exists
    print(describe(config.url, pruned, dry_run=config.dry_run))


if __name__ == "__main__":
    run(main)
