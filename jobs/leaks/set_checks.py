"""Looks for leaks in a set of graphs: equal graphs or molecules in two splits, and columns of the graphs' features that tell the target."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from graphmill.jobs.leaks.checks import MOST_EXAMPLES, Finding, Outcome, skipped
from graphmill.jobs.leaks.column_checks import Table
from graphmill.jobs.leaks.node_rows import MOST_OTHERS, MOST_TRAINING
from graphmill.storage.format.source import SPLITS
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs

if TYPE_CHECKING:
    from graphmill.storage.graph_sets.graph_set import StoredGraphs

_CHIRALITY = 1  # column of OGB's features of atoms whose value depends on the order of bonds
_MOST_COMPARED = 20_000  # most pairs of graphs with equal hashes that are compared exactly
_LEAK = 0.001  # share of the scored graphs with a copy in training from which this is a leak


def check_equal_graphs(graphs: "StoredGraphs", *, are_molecules: bool) -> Outcome:
    """Compares hashes of all graphs, and pairs with equal hashes exactly: molecules by their canonical SMILES, other graphs by matching their nodes. Reads the
    set once. Memory: one shard with its edges, and 17 bytes for each graph."""
    from graphmill.storage.graph_sets.equal_graphs import graph_hashes

    code = np.concatenate([shard.split for shard in graphs.shards])
    names = ("none", *graphs.split_names)
    scored = [number for number, name in enumerate(names) if name in ("valid", "test")]
    if "train" not in names or not np.isin(code, scored).any() or not (code == names.index("train")).any():
        return skipped("twins", "", "no graphs in both training and another split")
    without = _CHIRALITY if are_molecules else None
    hashes = np.concatenate([graph_hashes(shard, without) for shard in graphs.shards])
    training, others = np.flatnonzero(code == names.index("train")), np.flatnonzero(np.isin(code, scored))
    order = training[np.argsort(hashes[training], kind="stable")]
    first = np.searchsorted(hashes[order], hashes[others], side="left")
    last = np.searchsorted(hashes[order], hashes[others], side="right")
    equal, unknown, num_compared = [], 0, 0
    compare = _compare_molecules if are_molecules and find_spec("rdkit") else _compare_graphs
    for other, begin, end in zip(others.tolist(), first.tolist(), last.tolist(), strict=True):
        for twin in order[begin:end].tolist():
            if num_compared == _MOST_COMPARED:
                unknown += 1
                break
            num_compared += 1
            same = compare(graphs, other, twin, without)
            unknown += same is None
            if same:
                equal.append((other, twin))
                break
    how = "canonical SMILES" if compare is _compare_molecules else "matched nodes"
    if are_molecules and compare is _compare_graphs:
        how += ", handedness is not compared: install graphmill[molecules]"
    looked = f"{len(training):,} training and {len(others):,} scored graphs; {num_compared:,} pairs with equal hashes compared ({how})"
    looked += f"; {unknown:,} graphs not compared" if unknown else ""
    return Outcome("twins", "", looked, tuple(_told(graphs, equal, len(others), are_molecules=are_molecules)))


def _told(
    graphs: "StoredGraphs", equal: list[tuple[int, int]], num_scored: int, *, are_molecules: bool
) -> Iterator[Finding]:
    if not equal:
        return
    pairs = np.array(equal)
    noun = "molecules" if are_molecules else "graphs"
    agree = ""
    if graphs.target_names:
        own, twin = graphs.target[pairs[:, 0]], graphs.target[pairs[:, 1]]
        same = np.all((own == twin) | (np.isnan(own) & np.isnan(twin)), axis=1)
        agree = f"; {same.mean():.0%} of them also have its targets"
    text = f"{len(equal):,} of {num_scored:,} scored {noun} ({len(equal) / num_scored:.2%}) are also in training{agree}"
    rows = graphs.original_id
    told = [f"row {rows[one]} = row {rows[other]}" for one, other in equal[:MOST_EXAMPLES]]
    if are_molecules and find_spec("rdkit"):
        from graphmill.storage.molecules.canonical_smiles import canonical_smiles

        texts = canonical_smiles(graphs.fetch(pairs[:MOST_EXAMPLES, 0]))
        told = [f"{each}: {smiles.split()[0]}" for each, smiles in zip(told, texts, strict=True)]
    yield Finding("leak" if len(equal) >= _LEAK * num_scored else "warning", text, tuple(told))


def _compare_molecules(graphs: "StoredGraphs", one: int, other: int, without: int | None) -> bool | None:
    from graphmill.storage.molecules.canonical_smiles import canonical_smiles

    first, second = canonical_smiles(graphs.fetch(np.array([one, other])))
    return first == second


def _compare_graphs(graphs: "StoredGraphs", one: int, other: int, without: int | None) -> bool | None:
    from graphmill.storage.graph_sets.equal_graphs import are_isomorphic

    return are_isomorphic(graphs.fetch(np.array([one, other])), without)


def graph_table(graphs: "StoredGraphs", most: tuple[int, int] = (MOST_TRAINING, MOST_OTHERS)) -> Table:
    """A table with a row for each graph: its numbers of nodes and edges, and of each column of its nodes' and edges' features the mean and the maximum."""
    names = ["nodes", "edges"]
    for kind, schema in (("node", graphs.manifest.node), ("edge", graphs.manifest.edge)):
        names += [f"{what} of {kind} {k}" for what in ("mean", "maximum") for k in range(schema.dim)]
    codes = np.concatenate([shard.split for shard in graphs.shards])
    known = {number: SPLITS.get(name, 0) for number, name in enumerate(graphs.split_names, 1)}
    code = np.array([0, *(known[number] for number in sorted(known))], np.int8)[codes]

    def features(rows: np.ndarray, columns: slice) -> np.ndarray:
        return _summaries(graphs.fetch(rows))[:, columns]

    def sample(chosen: np.ndarray, count: int) -> np.ndarray:
        rows = np.flatnonzero(chosen)
        return rows[:: max(1, -(-len(rows) // count))]

    return Table(
        code, _set_target(graphs), names, features, sample, "graphs", "", most, num_rows=len(code), num_counts=2
    )


def _set_target(graphs: "StoredGraphs") -> np.ndarray | None:
    """Whole numbers of one target are classes; other targets are numbers."""
    if not graphs.target_names or graphs.manifest.labelled:
        return None
    target = graphs.target
    if target.shape[1] == 1:
        own = target[:, 0]
        known = own[~np.isnan(own)]
        if len(known) and not np.any(known % 1) and 0 <= known.min() <= known.max() < 1000:
            return np.where(np.isnan(own), -1, own).astype(np.int64)
    return target


def _summaries(packed: PackedGraphs) -> np.ndarray:
    """float32 [g, columns of `graph_table`]."""
    columns = [packed.num_nodes.astype(np.float32)[:, None], packed.num_edges.astype(np.float32)[:, None]]
    for rows, counts in ((packed.node_feature, packed.num_nodes), (packed.edge_feature, packed.num_edges)):
        if rows is None:
            continue
        numbers, starts = rows.astype(np.float32), np.cumsum(counts) - counts
        filled = counts > 0
        mean, most = (np.zeros((len(counts), rows.shape[1]), np.float32) for _ in range(2))
        if filled.any():
            mean[filled] = np.add.reduceat(numbers, starts[filled]) / counts[filled][:, None]
            most[filled] = np.maximum.reduceat(numbers, starts[filled])
        columns += [mean, most]
    return np.concatenate(columns, axis=1)
