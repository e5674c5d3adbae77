"""Looks for leaks in a graph, a set of graphs or a run, before they become results: `graphmill audit GRAPH|RUN [--out audit.html] [--fail-on links twins]`.

You should see a line for each check of the table (graphmill/jobs/leaks/checks.py), what it found with counts and ids, and what to do. The exit status is 1 if
there is a leak, or with --fail-on if one of the named checks finds anything. Nothing is written but the page of --out. The command reads the data once or twice,
a partition at a time: about 13 CPU seconds for 2 million nodes and 100 million edges.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmill.core.errors import ConfigError
from graphmill.core.option_checks import Size, check_fields
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import build, parse
from graphmill.jobs.leaks.checks import CHECKS, failing

if TYPE_CHECKING:
    from graphmill.jobs.leaks.audit import Audit, RunFacts
    from graphmill.jobs.resolve.resolve import ResolvedRun


@dataclass(frozen=True)
class AuditConfig:
    """Look for leaks."""

    target: str
    """A stored graph or set of graphs, or a run's directory: a path or a URL. With a run, its options decide what counts as a leak."""
    snapshot: int | None = None
    """Snapshot of a graph or set; None: the newest. A run has its own."""
    split_set: Size = 0
    """Index of the train/valid/test split to check. A run has its own."""
    fail_on: tuple[str, ...] | None = None
    """Exit with status 1 if one of these checks finds anything, a warning included. auto: if any check finds a leak. An empty list: never."""
    out: Path | None = None
    """Also write a page: a new file, or the file of an earlier page."""
    allow_import: bool = False
    """Import the user's own model, sampler or task that the run names."""

    def __post_init__(self) -> None:
        check_fields(self)
        unknown = [name for name in self.fail_on or () if name not in CHECKS]
        if unknown:
            raise ConfigError(f"fail_on: expected checks of {', '.join(CHECKS)}, got {unknown[0]!r}; set --fail-on")


def main() -> int:
    config = parse(AuditConfig, __doc__, ("target",))
    from graphmill.jobs.reporting.page import check_page

    if config.out is not None:
        check_page(config.out)
    found = _audit(config)
    print(found)
    if config.out is not None:
        _write(found, config.out)
    failed = failing(found.outcomes, config.fail_on)
    if failed:
        print(f"fails on: {', '.join(failed)}")
    return 1 if failed else 0


def audit(target: Any, *, snapshot: int | None = None, split_set: int = 0, **options: Any) -> "Audit":
    """Returns the outcomes of all checks. `target`: a graph, a set, a run, or its path or URL. The result's `outcomes` have `check`, `looked` and `findings`.
    Raises the errors that the command prints."""
    place = str(getattr(target, "url", None) or getattr(target, "path", target))
    said = {"target": place, "snapshot": snapshot, "split_set": split_set, **options}
    return _audit(build(AuditConfig, said))


def _audit(config: AuditConfig) -> "Audit":
    from graphmill.cluster.runs.run_store import RunStore
    from graphmill.jobs.leaks.audit import RunFacts, audit_data
    from graphmill.storage.graph import open_graph

    if not RunStore(config.target).holds_run:
        graph = open_graph(config.target, config.snapshot)
        return audit_data(graph, RunFacts(split_set=config.split_set))
    if config.snapshot is not None or config.split_set:
        raise ConfigError(
            f"{config.target}: expected no --snapshot and no --split-set for a run, which has its own; leave them out"
        )
    resolved, facts = _facts(config)
    from graphmill.jobs.subjects.subject import subject_class

    subject = subject_class(resolved.config).find(resolved.config)
    if subject is None:
        raise ConfigError(
            f"{config.target}: expected the run's data in its place, found none; audit the graph by its path"
        )
    return audit_data(subject.stored, facts)


def _facts(config: AuditConfig) -> "tuple[ResolvedRun, RunFacts]":
    """The run's options, and what the checks need of them."""
    from graphmill.jobs.config.config import saved_tree
    from graphmill.jobs.leaks.audit import RunFacts
    from graphmill.jobs.records.run_record import read_run
    from graphmill.jobs.resolve.resolve import read_resolved

    resolved = read_resolved(saved_tree(config.target, "give a run's directory", allow_import=config.allow_import))
    own, sampler = resolved.config, resolved.config.sampler.options
    task = read_run(config.target).summary.get("task", {})
    return resolved, RunFacts(
        split_set=getattr(own.data, "split_set", 0),
        time="until" if getattr(sampler, "as_of", None) is not None else getattr(sampler, "time", "all"),
        exclude_own=own.links is None or own.links.exclude_own,
        standard=tuple(resolved.inputs.standard),
        task=task if isinstance(task, dict) else {},
    )


def _write(found: "Audit", target: Path) -> None:
    from graphmill.cluster.runs.run_directory import write_atomic
    from graphmill.jobs.leaks.audit_page import audit_page

    try:
        write_atomic(target, audit_page(found))
    except OSError as error:
        raise ConfigError(f"{target}: cannot write the page ({error.strerror}); choose another --out") from None
    print(target)


if __name__ == "__main__":
    run(main)
