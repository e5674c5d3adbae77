"""Looks for held-out links among the edges that pass messages, and for links that are in two splits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.jobs.leaks.checks import MOST_EXAMPLES, Finding, Outcome, skipped
from graphmill.jobs.leaks.node_rows import NodeRows
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID, Relation
from graphmill.storage.format.stored_links import Links

if TYPE_CHECKING:
    from graphmill.storage.graph import StoredGraph, TypedGraph
    from graphmill.storage.partition import Partition

_SHARE = 0.5  # as at ingestion: another relation that has this share of the held-out pairs has them not by chance
_MANY = 0.1  # share from which this is a warning
_LEAST = 10  # fewer held-out links of a relation say nothing about another relation


@dataclass(frozen=True)
class Pairs:
    """Held-out links, named by rows of their source and target types."""

    links: Links
    relation: Relation
    source: NodeRows
    target: NodeRows

    def named(self, chosen: np.ndarray) -> tuple[str, ...]:
        """The first of these links (bool [m]) as texts."""
        rows = np.flatnonzero(chosen)[:MOST_EXAMPLES]
        ends = zip(
            self.source.named(self.links.source[rows]), self.target.named(self.links.destination[rows]), strict=True
        )
        return tuple(" to ".join(pair) for pair in ends)


def stored_links(graph: "StoredGraph") -> Links:
    """All links of a graph or relation."""
    parts = [links for partition in graph.partitions() if (links := partition.links) is not None]
    return Links.join(parts)


def check_links(
    graph: "StoredGraph | TypedGraph", relation: Relation, rows: dict[str, NodeRows], exclude_own: bool
) -> Outcome:
    """Looks every positive link of validation and test up among the edges of each relation that joins the same two types, in both directions. Reads the
    topology of these relations once for each direction. Memory: one partition, the links, and 8 bytes for each node.

    `exclude_own`: False if a run passes messages along the links that a training batch predicts.
    """
    own, part = graph.relation(relation), "" if len(graph.relations) == 1 else str(relation)
    links = stored_links(own)
    held = (links.is_link == 1) & (links.split != SPLIT_TRAIN)
    links = links.take(np.flatnonzero(held))
    pairs = Pairs(links, relation, rows[relation.source], rows[relation.target])
    ends = {relation.source, relation.target}
    others = [each for each in graph.relations if {each.source, each.target} == ends]
    looked = f"{len(links.source):,} held-out links looked up in {_counted_edges(graph, others)}"
    findings = [] if exclude_own else [_not_excluded()]
    for each in others:
        for is_reversed in (False, True):
            if (each.source, each.target) == ((relation.target, relation.source) if is_reversed else relation[::2]):
                findings += _lookup(graph.relation(each), pairs, each, is_reversed, own.manifest.links)
    return Outcome("links", part, looked, tuple(findings))


def _not_excluded() -> Finding:
    text = "the run passes messages along the links that a training batch predicts (--task.exclude_own false)"
    return Finding("warning", text, (), "train with --task.exclude_own true")


def _counted_edges(graph: "StoredGraph | TypedGraph", relations: list[Relation]) -> str:
    count = sum(graph.relation(each).manifest.num_edges for each in relations)
    where = f" of {len(relations)} relations" if len(relations) > 1 else ""
    return f"{count:,} edges{where}, in both directions"


def _lookup(graph: "StoredGraph", pairs: Pairs, relation: Relation, is_reversed: bool, held: object) -> list[Finding]:
    """Findings about one relation in one direction."""
    from graphmill.storage.statistics.link_match_kernels import match_links

    links, is_own = pairs.links, relation == pairs.relation
    source, destination = (links.source, links.destination)[:: -1 if is_reversed else 1]
    of_source, of_target = (pairs.source, pairs.target)[:: -1 if is_reversed else 1]
    stored_source, stored_destination = _stored(of_source)[source], _stored(of_target)[destination]
    order = np.lexsort((stored_source, stored_destination))
    stored_source, stored_destination = stored_source[order], stored_destination[order]
    has_relations = bool(graph.manifest.relations) and links.relation is not None
    has_times = links.time is not None and graph.manifest.has_edge_time
    none = np.empty(0, np.int64)
    time = links.time[order] if has_times and links.time is not None else none
    kind = links.relation[order] if has_relations and links.relation is not None else none
    state = np.zeros(len(order), np.uint8)
    counts = np.zeros((len(graph.manifest.relations),) * 2 if has_relations else (0, 0), np.int64)
    place = np.zeros(graph.manifest.num_sources, np.int64)
    for partition in graph.partitions():
        first, last = np.searchsorted(stored_destination, [partition.start, partition.stop])
        some = slice(first, last)
        pair_ptr = pointers(np.bincount(stored_destination[some] - partition.start, minlength=partition.num_nodes))
        edge_kind = none
        if has_relations and partition.edge_feature is not None:
            edge_kind = partition.edge_feature[:, 0].astype(np.int64)
        edge_time = partition.edge_time if has_times and partition.edge_time is not None else none
        match_links(
            partition.indptr, partition.indices, pair_ptr, stored_source[some], time[some] if has_times else none,
            kind[some] if has_relations else none, edge_time, edge_kind, place, state[some], counts,
        )  # fmt: skip
    found = np.zeros(len(order), np.uint8)
    found[order] = state
    if has_relations:
        return _of_relations(graph.manifest.relations, links, counts, found, pairs, is_reversed)
    return _told(pairs, found, is_own, relation, is_reversed, getattr(held, "reverse", ""))


def _told(
    pairs: Pairs, found: np.ndarray, is_own: bool, relation: Relation, is_reversed: bool, reverse: str
) -> list[Finding]:
    is_there = found == 1
    count, total = int(is_there.sum()), len(found)
    if not count:
        return []
    where = "" if is_own else f" of {relation}"
    turned = "the reverse of" if is_reversed else ""
    by_split = ", ".join(
        f"{SPLIT_NAMES[code]} {int((is_there & (pairs.links.split == code)).sum()):,}"
        for code in (SPLIT_VALID, SPLIT_TEST)
    )
    text = f"{' '.join(filter(None, (turned, f'{count:,} of {total:,} held-out links')))} among the edges{where} ({count / total:.1%}; {by_split})"
    if (is_own and not is_reversed) or str(relation) == reverse or count >= _SHARE * total:
        return [Finding("leak", text, pairs.named(is_there))]
    # Ingestion keeps the reverse of a held-out link only in links that are published so, which may have a direction: two papers cite each other. Two relations
    # between the same types may join some pairs by chance or by nature, too: an author cites and writes.
    if count >= _MANY * total and (is_own or count >= _LEAST):
        return [Finding("warning", text, pairs.named(is_there))]
    return []


def _of_relations(
    names: tuple[str, ...], links: Links, counts: np.ndarray, found: np.ndarray, pairs: Pairs, is_reversed: bool
) -> list[Finding]:
    """Findings about the relations of a knowledge graph. A link is (source, relation, destination)."""
    findings = []
    if not is_reversed and (found == 1).any():
        text = f"{int((found == 1).sum()):,} of {len(found):,} held-out triples among the edges"
        findings.append(Finding("leak", text, pairs.named(found == 1)))
    assert links.relation is not None
    totals = np.bincount(links.relation, minlength=len(names))
    repeated = counts.copy()
    if not is_reversed:
        np.fill_diagonal(repeated, 0)
    rows, others = np.nonzero((repeated >= _SHARE * np.maximum(totals, 1)[:, None]) & (totals >= _LEAST)[:, None])
    if len(rows):
        num = int(np.minimum(repeated.max(axis=1), totals)[np.unique(rows)].sum())
        how = "reversed, " if is_reversed else ""
        text = f"{len(np.unique(rows)):,} of {int((totals > 0).sum()):,} relations have their held-out pairs {how}in another relation: about {num:,} of {len(found):,} triples"
        told = [
            f"{names[row]}: {repeated[row, other] / totals[row]:.0%} in {names[other]}"
            for row, other in zip(rows.tolist(), others.tolist(), strict=True)
        ]
        findings.append(Finding("leak", text, tuple(told[:MOST_EXAMPLES])))
    return findings


def _stored(rows: NodeRows) -> np.ndarray:
    """The stored id of each row, int64 [n]."""
    stored = np.empty(len(rows.row), np.int64)
    stored[rows.row] = np.arange(len(rows.row))
    return stored


def check_link_splits(graph: "StoredGraph | TypedGraph", relation: Relation, rows: dict[str, NodeRows]) -> Outcome:
    """Looks for pairs that are positive links of two splits. In a graph whose nodes have one type and no relation numbers, the reverse of a pair is the pair."""
    own, part = graph.relation(relation), "" if len(graph.relations) == 1 else str(relation)
    links = stored_links(own)
    links = links.take(np.flatnonzero(links.is_link == 1))
    counts = {name: int((links.split == code).sum()) for code, name in enumerate(SPLIT_NAMES) if code}
    looked = f"links of each split: {', '.join(f'{name} {count:,}' for name, count in counts.items())}"
    low, high = links.source, links.destination
    if own.manifest.is_one_type and links.relation is None:
        low, high = np.minimum(low, high), np.maximum(low, high)
    columns = [each for each in (links.relation, high, low) if each is not None]
    order = np.lexsort(columns)
    same = np.ones(max(0, len(order) - 1), bool)
    for column in columns:
        same &= column[order][1:] == column[order][:-1]
    shared = np.zeros(len(order), bool)
    is_other = same & (links.split[order][1:] != links.split[order][:-1])
    if links.time is not None:  # the same two nodes may meet again later: a repeat, not an overlap
        is_other &= links.time[order][1:] == links.time[order][:-1]
    shared[order[1:][is_other]] = True
    findings = []
    if shared.any():
        pairs = Pairs(links, relation, rows[relation.source], rows[relation.target])
        text = f"{int(shared.sum()):,} links are in two splits"
        findings.append(Finding("leak", text, pairs.named(shared)))
    return Outcome("splits", part, looked, tuple(findings))


def sampled_lookup(graph: "StoredGraph", most: int) -> str:
    """Looks at most `most` held-out links up, in both directions, and returns one line. Reads the lists of their ends alone. Only for a plain graph, or a relation
    within one type; the cheap check beside a run."""
    held = graph.manifest.links
    assert held is not None
    total = sum(held.positives[code] for code in (SPLIT_VALID, SPLIT_TEST))
    parts = list(graph.partitions())
    if max((int(part.original_id[-1]) for part in parts if part.num_nodes), default=-1) != graph.num_nodes - 1:
        return "permanent ids have gaps; graphmill audit looks the held-out links up"
    looked = found = turned = 0
    for part in parts:
        if part.links is None:
            continue
        some = _some_held(part.links, -(-most // len(parts)))
        for pair in zip(some.source.tolist(), some.destination.tolist(), strict=True):
            (one, first), (other, second) = (_place(parts, row) for row in pair)
            looked += 1
            found += _has_edge(parts[other], second, parts[one].start + first)
            turned += _has_edge(parts[one], first, parts[other].start + second)
    line = f"{looked:,} of {total:,} held-out links looked up: {found or 'none'} among the message edges"
    line += f", {turned:,} reversed" if turned else ""
    if found or turned >= max(1, _SHARE * looked):
        return f"leak: {line}"
    return f"warning: {line}" if turned >= max(1, _MANY * looked) else line


def _place(parts: list["Partition"], permanent_id: int) -> tuple[int, int]:
    """(partition, row in it) of a node whose permanent id exists."""
    for index, part in enumerate(parts):
        row = int(np.searchsorted(part.original_id, permanent_id))
        if row < part.num_nodes and part.original_id[row] == permanent_id:
            return index, row
    raise AssertionError(permanent_id)


def _has_edge(part: "Partition", row: int, stored_source: int) -> bool:
    return bool(np.any(part.indices[part.indptr[row] : part.indptr[row + 1]] == stored_source))


def _some_held(links: Links, most: int) -> Links:
    held = np.flatnonzero((links.is_link == 1) & (links.split != SPLIT_TRAIN))
    return links.take(held[:: max(1, len(held) // max(1, most))][:most])


def link_relations(graph: "StoredGraph | TypedGraph") -> Iterator[Relation]:
    """The relations with held-out links."""
    for relation in graph.relations:
        if graph.relation(relation).manifest.links is not None:
            yield relation


def without_links(check: str) -> Outcome:
    return skipped(check, "", "the graph holds no links out")
