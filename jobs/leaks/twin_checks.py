"""Looks for nodes of validation and test that equal a training node in their features, or in their features and neighbors."""

from typing import TYPE_CHECKING

import numpy as np

from graphmill.core.counter_random import derive_key, hash_counters
from graphmill.jobs.leaks.checks import MOST_EXAMPLES, Finding, Outcome, skipped
from graphmill.jobs.leaks.node_rows import NodeRows
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

if TYPE_CHECKING:
    from graphmill.storage.graph import StoredGraph, TypedGraph

_KEY = 0x7477696E  # "twin"
_TELLING = 0.5  # rows are compared alone if at least this share of them is distinct
_AGREE = 0.5
_LEAK = 0.05  # share of the scored nodes with a copy among the training nodes from which this is a leak
_WARNING = 0.01
_BLOCK = 1 << 22


def check_twins(
    graph: "StoredGraph | TypedGraph", node_type: str, rows: NodeRows, all_rows: dict[str, NodeRows]
) -> Outcome:
    """Compares 64-bit hashes of all nodes. Reads the features and the topology once. Memory: 24 bytes for each node, and blocks.

    Features are compared alone where most rows are distinct. Neighbors (the multiset of in-edges of all relations) are compared with the features, or alone for
    nodes without features; nodes with fewer than two neighbors are then left out, since leaves of a hub are equal by nature.
    """
    part = "" if len(graph.node_types) == 1 else node_type
    scored = rows.is_labelled & ((rows.code == SPLIT_VALID) | (rows.code == SPLIT_TEST))
    trains = rows.is_labelled & (rows.code == SPLIT_TRAIN)
    if not scored.any() or not trains.any():
        return skipped("twins", part, "no labelled nodes in both training and another split")
    of_features, is_told = _feature_hashes(rows)
    is_telling = rows.graph.feature_dim > 0 and len(np.unique(of_features[is_told])) >= _TELLING * max(1, is_told.sum())
    of_lists, degree = _list_hashes(graph, node_type, all_rows, len(rows.row))
    both = of_features ^ hash_counters(derive_key(_KEY, 1), of_lists)
    lists_tell = degree >= 2
    same = _with_twin(both, trains & lists_tell, scored & lists_tell)
    findings = _told(
        rows,
        same,
        both,
        trains,
        int(scored.sum()),
        "the same features and neighbors as" if rows.graph.feature_dim else "the same neighbors as",
    )
    looked = f"{int(scored.sum()):,} scored and {int(trains.sum()):,} training nodes; features and neighbors equal: {int(same.sum()):,}"
    if is_telling:
        alike = _with_twin(of_features, trains & is_told, scored & is_told)
        looked += f"; features alone equal: {int(alike.sum()):,}"
        if _labels_agree(rows, alike, of_features, trains):
            findings += _told(rows, alike & ~same, of_features, trains, int(scored.sum()), "the same features as")
    elif rows.graph.feature_dim:
        looked += "; features alone are not compared, most rows are not distinct"
    return Outcome("twins", part, looked, tuple(findings))


def _told(
    rows: NodeRows, same: np.ndarray, hashes: np.ndarray, trains: np.ndarray, num_scored: int, what: str
) -> list[Finding]:
    count = int(same.sum())
    if count < _WARNING * num_scored:
        return []
    own, twin = _pairs(same, hashes, trains)
    agree = ""
    if rows.label is not None and rows.label.ndim == 1:
        agree = f"; {np.mean(rows.label[own] == rows.label[twin]):.0%} of them also have its label"
    examples = zip(rows.named(own[:MOST_EXAMPLES]), rows.named(twin[:MOST_EXAMPLES]), strict=True)
    text = f"{count:,} of {num_scored:,} scored nodes ({count / num_scored:.1%}) have {what} a training node{agree}"
    severity = "leak" if count >= _LEAK * num_scored else "warning"
    return [Finding(severity, text, tuple(" = ".join(pair) for pair in examples))]  # type: ignore[arg-type]


def _pairs(same: np.ndarray, hashes: np.ndarray, trains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the rows in `same`, for each of them the first training row with its hash)."""
    own, training = np.flatnonzero(same), np.flatnonzero(trains)
    order = training[np.argsort(hashes[training], kind="stable")]
    return own, order[np.searchsorted(hashes[order], hashes[own])]


def _labels_agree(rows: NodeRows, same: np.ndarray, hashes: np.ndarray, trains: np.ndarray) -> bool:
    """Whether equal features come with equal labels much more often than the most frequent class would. Rows of a few plain columns are equal by chance; copies
    of a node have its label. True for labels that are not classes."""
    if rows.label is None or rows.label.ndim > 1 or rows.label.dtype.kind != "i" or not same.any():
        return True
    own, twin = _pairs(same, hashes, trains)
    majority = np.bincount(rows.label[trains]).max() / trains.sum()
    return bool(np.mean(rows.label[own] == rows.label[twin]) - majority >= _AGREE * (1 - majority))


def _with_twin(hashes: np.ndarray, trains: np.ndarray, scored: np.ndarray) -> np.ndarray:
    """bool [n]: scored nodes whose hash a training node has."""
    same = np.zeros(len(hashes), bool)
    known, own = np.unique(hashes[trains]), np.flatnonzero(scored)
    if len(known):
        place = np.minimum(np.searchsorted(known, hashes[own]), len(known) - 1)
        same[own] = known[place] == hashes[own]
    return same


def _feature_hashes(rows: NodeRows) -> tuple[np.ndarray, np.ndarray]:
    """(hash of each node's stored feature row, uint64 [n]; whether the row has a nonzero byte, bool [n]). Equal rows have equal bytes."""
    hashes, is_told = np.zeros(len(rows.row), np.uint64), np.zeros(len(rows.row), bool)
    if not rows.graph.feature_dim:
        return hashes, is_told
    factor: np.ndarray | None = None
    empty: np.ndarray | None = None
    for place, stored in rows.stored_features():
        layout = rows.graph.manifest.feature_rows
        assert layout is not None
        if empty is None:
            empty = np.ascontiguousarray(layout.encode(np.zeros((1, layout.dim), np.float32))).view(np.uint8)
        words = np.ascontiguousarray(stored).view(np.uint8)
        is_told[place] = np.any(words != empty, axis=1)
        width = 4 if words.shape[1] % 4 == 0 else 2 if words.shape[1] % 2 == 0 else 1
        words = words.view(f"u{width}")
        if factor is None:
            factor = hash_counters(derive_key(_KEY, 2), np.arange(words.shape[1])) | np.uint64(1)
        # einsum adds modulo 2^64 without an array of all products
        hashes[place] = hash_counters(
            derive_key(_KEY, 3), np.einsum("ij,j->i", words, factor, casting="unsafe", dtype=np.uint64)
        )
    return hashes, is_told


def _list_hashes(
    graph: "StoredGraph | TypedGraph", node_type: str, rows: dict[str, NodeRows], num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """(hash of the multiset of each node's in-neighbors, uint64 [n] by row; in-degree, int64 [n]). Sums of hashes do not depend on the order of edges."""
    hashes, degree = np.zeros(num_nodes, np.uint64), np.zeros(num_nodes, np.int64)
    own = rows[node_type]
    for number, relation in enumerate(graph.relations):
        if relation.target != node_type:
            continue
        mixed = hash_counters(derive_key(_KEY, 4, number), rows[relation.source].row)
        for partition in graph.relation(relation).partitions():
            total = _list_sums(partition.indptr, partition.indices, mixed)
            place = own.row[partition.start : partition.stop]
            hashes[place] += total
            degree[place] += np.diff(partition.indptr)
    return hashes, degree


def _list_sums(indptr: np.ndarray, indices: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """The sum of mixed[neighbor] over each list, uint64 [n], in blocks of whole lists."""
    sums = np.zeros(len(indptr) - 1, np.uint64)
    first = 0
    while first < len(sums):
        last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + _BLOCK, side="right")) - 1)
        taken = mixed[indices[indptr[first] : indptr[last]]]
        before = np.concatenate([np.zeros(1, np.uint64), np.cumsum(taken, dtype=np.uint64)])
        sums[first:last] = np.diff(before[indptr[first : last + 1] - indptr[first]])
        first = last
    return sums
