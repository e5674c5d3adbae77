"""Looks for edges that are later than the node or the link that a model predicts."""

from typing import TYPE_CHECKING

import numpy as np

from graphmill.jobs.leaks.checks import MOST_EXAMPLES, Finding, Outcome, skipped
from graphmill.jobs.leaks.link_checks import Pairs, link_relations, stored_links
from graphmill.jobs.leaks.node_rows import NodeRows
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

if TYPE_CHECKING:
    from graphmill.storage.graph import StoredGraph, TypedGraph

_NEVER = np.iinfo(np.int64).min


def is_timed(graph: "StoredGraph | TypedGraph") -> bool:
    """Whether nodes or edges have times."""
    return any(graph.nodes(each).manifest.has_node_time for each in graph.node_types) or any(
        graph.relation(each).manifest.has_edge_time for each in graph.relations
    )


def check_times(graph: "StoredGraph | TypedGraph", rows: dict[str, NodeRows], drawn: str | None) -> Outcome:
    """Compares each root's time with the times of its in-edges, of all relations that have times. `drawn`: the run's --sampler.time, or None for a graph.

    Roots are the labelled nodes with times, or the held-out links of validation and test. Only the edges of the first hop are compared: a later hop can be later
    only if the draws ignore times at all. Reads the edge times once.
    """
    timed = [each for each in graph.relations if graph.relation(each).manifest.has_edge_time]
    if not timed:
        return skipped("times", "", "edges have no times")
    if drawn in ("until", "before"):
        bound = "up to" if drawn == "until" else "before"
        return Outcome("times", "", f"the run draws only edges {bound} the root's time (--sampler.time {drawn})")
    latest = {name: np.full(len(rows[name].row), _NEVER) for name in graph.node_types}
    num_edges = 0
    for relation in timed:
        num_edges += _add_latest(graph.relation(relation), rows[relation.target].row, latest[relation.target])
    findings, num_roots = [], 0
    for name, own in rows.items():
        if own.time is not None and own.label is not None and own.has_split:
            roots = own.is_labelled & (own.code != 0)
            num_roots += int(roots.sum())
            findings += _of_nodes(own, roots & (latest[name] > own.time), drawn)
    for relation in link_relations(graph):
        links = stored_links(graph.relation(relation))
        links = links.take(np.flatnonzero((links.is_link == 1) & (links.split != SPLIT_TRAIN)))
        if links.time is not None:
            num_roots += len(links.source)
            pairs = Pairs(links, relation, rows[relation.source], rows[relation.target])
            findings += _of_links(pairs, latest[relation.source], latest[relation.target], drawn)
    if not num_roots:
        return skipped("times", "", "edges have times, but neither labelled nodes nor held-out links have times")
    return Outcome(
        "times", "", f"{num_edges:,} edges with times, around {num_roots:,} roots with times", tuple(findings)
    )


def _add_latest(graph: "StoredGraph", row: np.ndarray, latest: np.ndarray) -> int:
    """Raises `latest` (int64 [n] by row) to the latest in-edge of each node. Returns the number of edges."""
    num_edges = 0
    for partition in graph.partitions():
        assert partition.edge_time is not None
        own, lists = row[partition.start : partition.stop], np.flatnonzero(np.diff(partition.indptr))
        if len(lists):
            newest = np.maximum.reduceat(partition.edge_time, partition.indptr[lists])
            latest[own[lists]] = np.maximum(latest[own[lists]], newest)
        num_edges += partition.num_edges
    return num_edges


def _of_nodes(own: NodeRows, late: np.ndarray, drawn: str | None) -> list[Finding]:
    if not late.any():
        return []
    counts = [
        f"{SPLIT_NAMES[c]} {int((late & (own.code == c)).sum()):,}" for c in (SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST)
    ]
    text = f"{int(late.sum()):,} labelled nodes have in-edges later than their own time ({', '.join(counts)})"
    return [_finding(text, drawn, own.named(np.flatnonzero(late)[:MOST_EXAMPLES]))]


def _of_links(pairs: Pairs, source: np.ndarray, target: np.ndarray, drawn: str | None) -> list[Finding]:
    links = pairs.links
    assert links.time is not None
    late = np.maximum(source[links.source], target[links.destination]) > links.time
    if not late.any():
        return []
    counts = [
        f"{SPLIT_NAMES[code]} {int((late & (links.split == code)).sum()):,}" for code in (SPLIT_VALID, SPLIT_TEST)
    ]
    text = f"{int(late.sum()):,} held-out links have message edges at their ends that are later ({', '.join(counts)})"
    return [_finding(text, drawn, pairs.named(late))]


def _finding(text: str, drawn: str | None, examples: tuple[str, ...]) -> Finding:
    """A graph alone may leak; a run that draws edges of all times does."""
    if drawn is None:
        return Finding("warning", f"{text}; a run with --sampler.time all reads them", examples)
    return Finding("leak", f"{text}; the run draws edges of all times", examples)
