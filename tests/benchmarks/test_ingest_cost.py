"""Compares the estimated cost of an ingestion with the files that the ingestion writes."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ingest_cost import ingest_cost
from graphmill.storage.external_sort.edge_buckets import EdgeBuckets, SortedEdges
from graphmill.storage.format.source import SourceInfo
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph

CASES = {
    "plain": IngestOptions(),
    "everything": IngestOptions(num_partitions=3, edge_ids=True, out_edges=True, feature_dtype="float16"),
    "reversed": IngestOptions(num_partitions=2, undirected=True),
}


@pytest.mark.parametrize(("memory", "num_edges"), [(1 << 30, 60_000), (1 << 24, 300_000)])
@pytest.mark.parametrize("name", CASES)
def test_estimates_are_what_is_written(
    name: str, memory: int, num_edges: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, spilled, spooled = replace(CASES[name], memory_budget_bytes=memory), [0], [0]
    num_nodes = num_edges // 20  # few edges are equal
    graph = random_listed_graph(num_nodes, num_edges)
    write, add = EdgeBuckets._write, SortedEdges.append

    def count_write(self, path, views) -> None:
        before = path.stat().st_size if path.exists() else 0
        write(self, path, views)
        spilled[0] += (path.stat().st_size if path.exists() else 0) - before

    def count_add(self, *columns) -> None:
        add(self, *columns)
        spooled[0] += 0 if self._arrays else 1

    monkeypatch.setattr(EdgeBuckets, "_write", count_write)
    monkeypatch.setattr(SortedEdges, "append", count_add)
    manifest = ingest(graph, str(tmp_path / "graph"), options)
    # Duplicates that are dropped, and self-loops that have no reverse, are not known before.
    info = replace(graph.info, num_edges=num_edges)
    cost = ingest_cost(info, options)
    assert (cost.spilled > 0) == (memory == 1 << 24)
    assert spilled[0] == pytest.approx(cost.spilled, rel=0.01)
    assert spooled[0] == 0
    assert cost.spooled == 2 * num_nodes * info.feature_dim * (2 if options.feature_dtype == "float16" else 4)
    stored = sum(entry.num_bytes for entry in manifest.files.values())
    assert stored == pytest.approx(cost.graph, rel=0.05)
    assert max(cost.spilled, cost.graph) <= cost.peak_disk <= cost.written + cost.spooled


def test_a_billion_edges_by_hand() -> None:
    info = SourceInfo(name="big", num_nodes=100_000_000, num_edges=1_600_000_000, symmetric=True)
    cost = ingest_cost(info, IngestOptions(num_partitions=16))
    assert cost.spilled == 1_600_000_000 * 8  # two int32 per edge
    assert cost.spooled == 0  # a partition's 400 MB of lists fit in memory
    assert cost.graph == pytest.approx(1_600_000_000 * 4 + 100_000_000 * 16, rel=1e-6)  # ids, offsets, original ids
    assert cost.peak_disk < 14e9
    assert cost.memory < 3e9
    few = ingest_cost(info, IngestOptions(num_partitions=4))
    assert few.spooled == 1_600_000_000 * 4
    assert few.peak_disk > cost.peak_disk


def test_ids_take_twice_the_bytes_from_two_to_the_31_on() -> None:
    costs = [
        ingest_cost(SourceInfo(name="wide", num_nodes=num_nodes, num_edges=10**9), IngestOptions())
        for num_nodes in (2**31 - 1, 2**31)
    ]
    assert costs[1].spilled == 2 * costs[0].spilled
    assert costs[1].memory > costs[0].memory + 8 * 2**30


def test_more_of_anything_costs_more() -> None:
    info = SourceInfo(name="any", num_nodes=1000, num_edges=10_000)
    for one, other in itertools.pairwise(
        [
            info,
            replace(info, num_edges=20_000),
            replace(info, num_edges=20_000, has_edge_weight=True),
            replace(info, num_edges=20_000, has_edge_weight=True, edge_feature_dim=3),
            replace(info, num_edges=20_000, has_edge_weight=True, edge_feature_dim=3, feature_dim=5),
        ]
    ):
        less, more = ingest_cost(one, IngestOptions()), ingest_cost(other, IngestOptions())
        assert more.written > less.written
        assert more.peak_disk > less.peak_disk
