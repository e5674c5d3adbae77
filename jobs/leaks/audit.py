"""Runs the checks on a stored graph or set, with a run's options if there are any, and tells the outcomes on the terminal."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphmill.jobs.leaks.checks import CHECKS, Outcome, skipped
from graphmill.jobs.leaks.column_checks import Table, check_columns
from graphmill.jobs.leaks.link_checks import check_link_splits, check_links, link_relations, without_links
from graphmill.jobs.leaks.node_rows import MOST_OTHERS, MOST_TRAINING, NodeRows, labels_of
from graphmill.jobs.leaks.set_checks import check_equal_graphs, graph_table
from graphmill.jobs.leaks.split_checks import check_classes, check_node_splits, check_set_classes, check_set_splits
from graphmill.jobs.leaks.statistics_checks import check_set_statistics, check_statistics
from graphmill.jobs.leaks.time_checks import check_times, is_timed
from graphmill.jobs.leaks.twin_checks import check_twins
from graphmill.storage.graph_sets.graph_set import StoredGraphs

if TYPE_CHECKING:
    from graphmill.storage.graph import StoredGraph, TypedGraph


@dataclass(frozen=True)
class RunFacts:
    """What the checks need to know of a run. The defaults: no run."""

    split_set: int = 0
    time: str | None = None  # the run's --sampler.time; None: no run
    exclude_own: bool = True
    standard: tuple[tuple[str, int, float, float], ...] = ()  # standardised columns: type, column, mean, deviation
    task: Mapping[str, Any] = field(default_factory=dict)  # the task in the run's summary


@dataclass(frozen=True)
class Audit:
    """The outcomes of all checks on one graph, set or run."""

    url: str
    snapshot: int
    content_hash: str
    outcomes: tuple[Outcome, ...]
    cpu_s: float

    def __repr__(self) -> str:
        return "\n".join(text_lines(self))

    @property
    def num_leaks(self) -> int:
        return sum(finding.severity == "leak" for each in self.outcomes for finding in each.findings)

    @property
    def num_warnings(self) -> int:
        return sum(finding.severity == "warning" for each in self.outcomes for finding in each.findings)


def audit_data(data: "StoredGraph | TypedGraph | StoredGraphs", run: RunFacts) -> Audit:
    """Runs every check of the table that applies. Memory: about 60 bytes for each node, 40 for each held-out link, one partition or shard, and 16
    million feature values with what is computed of them."""
    started = time.process_time()
    outcomes = tuple(_of_set(data, run) if isinstance(data, StoredGraphs) else _of_graph(data, run))
    order = {name: number for number, name in enumerate(CHECKS)}
    outcomes = tuple(sorted(outcomes, key=lambda each: order[each.check]))
    manifest = data.manifest
    return Audit(data.url, manifest.snapshot, manifest.content_hash, outcomes, time.process_time() - started)


def _of_graph(graph: "StoredGraph | TypedGraph", run: RunFacts) -> Iterator[Outcome]:
    rows = {name: NodeRows.read(graph.nodes(name), run.split_set) for name in graph.node_types}
    relations = list(link_relations(graph))
    if not relations:
        yield without_links("links")
    for relation in relations:
        yield check_links(graph, relation, rows, run.exclude_own)
        yield check_link_splits(graph, relation, rows)
    yield check_times(graph, rows, run.time)
    for name, own in rows.items():
        part = "" if len(rows) == 1 else name
        manifest = graph.nodes(name).manifest
        if own.label is not None or not relations:
            yield check_node_splits(manifest, part, run.split_set)
        yield check_classes(manifest, part, run.split_set)
        yield check_twins(graph, name, own, rows)
        yield from check_columns(node_table(own, part, has_times=is_timed(graph)))
        yield check_statistics(own, part, run.split_set, run.standard)


def node_table(rows: NodeRows, part: str, *, has_times: bool) -> Table:
    """The table of a type's nodes and features."""
    names = rows.column_names if rows.graph.feature_dim else []
    label = None if rows.label is None else labels_of(rows.label)
    most = MOST_TRAINING, MOST_OTHERS
    num_rows = len(rows.code)
    return Table(rows.code, label, names, rows.features, rows.sample, "nodes", part, most, num_rows, is_timed=has_times)


def _of_set(graphs: StoredGraphs, run: RunFacts) -> Iterator[Outcome]:
    from graphmill.storage.molecules.smiles_features import ATOMS, BONDS

    manifest = graphs.manifest
    yield skipped("links", "", "a set of graphs holds no links out")
    yield skipped("times", "", "edges of a set have no times")
    yield check_set_splits(graphs)
    yield check_set_classes(graphs)
    yield check_equal_graphs(graphs, are_molecules=manifest.node == ATOMS and manifest.edge == BONDS)
    yield from check_columns(graph_table(graphs))
    yield check_set_statistics(graphs, run.task)


def text_lines(audit: Audit) -> list[str]:
    """The lines for the terminal: a line for each check, then what it found, examples, and what to do."""
    lines = [f"audit of {audit.url}, snapshot {audit.snapshot} ({audit.cpu_s:.1f} CPU s)"]
    for each in audit.outcomes:
        state = "-" if not each.applies else (each.severity or "ok")
        where = f" [{each.part}]" if each.part else ""
        lines.append(f"{each.check:<11}{state.upper() if each.severity else state:<9}{each.looked}{where}")
        for finding in each.findings:
            lines.append(f"{'':<11}{finding.severity}: {finding.text}")
            if finding.examples:
                lines.append(f"{'':<11}for example: {'; '.join(finding.examples)}")
            lines.append(f"{'':<11}what to do: {finding.advice or CHECKS[each.check].advice}")
    lines.append(f"{_counted(audit.num_leaks, 'leak')}, {_counted(audit.num_warnings, 'warning')}")
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
