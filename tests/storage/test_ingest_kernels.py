"""Compares the compiled loops of ingestion with plain definitions, also for ids and offsets beyond 2^31."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.counter_random import Permutation, hash_counters, unit_interval
from graphmill.storage.external_sort.bucket_kernels import group_by_bucket, renumber, sort_keys
from graphmill.storage.external_sort.edge_buckets import (
    EdgeBuckets,
    SortedEdges,
    SortedLists,
    SpilledEdges,
    edge_column_types,
)
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.partitioning.greedy_kernels import NUM_RESTREAMS, place_window
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from graphmill.storage.synthetic.products_like_kernels import draw_pairs
from tests.listed_graph import ListedGraph, expected_graph, stored_graph


@given(st.data())
def test_grouping_is_a_stable_sort_by_bucket(data: st.DataObject) -> None:
    largest = data.draw(st.sampled_from([1, 7, 1000, 2**31 + 5, 2**40]))
    inner = data.draw(st.lists(st.integers(0, largest), max_size=9))
    bounds = np.array(sorted([0, *inner, largest]), np.int64)  # buckets may be empty
    ids = data.draw(st.lists(st.integers(0, largest - 1), max_size=60))
    id_of_row = np.array(ids, np.int64 if largest > 2**31 else np.int32)
    row = np.random.default_rng(len(ids)).integers(0, max(1, len(ids)), len(ids))
    dst, src = id_of_row[row], np.arange(len(ids)) + largest // 2
    order = np.empty(len(ids), np.int32)
    by_dst, by_src = np.empty_like(dst), np.empty_like(dst)
    scratch = np.empty_like(dst), np.empty(len(ids), np.uint32)
    ends = group_by_bucket(row, src, id_of_row, bounds, *scratch, by_dst, by_src, order)
    bucket = np.searchsorted(bounds, dst, side="right") - 1
    assert order.tolist() == np.argsort(bucket, kind="stable").tolist()
    assert by_dst.tolist() == dst[order].tolist()
    assert by_src.tolist() == src[order].tolist()
    again = np.empty_like(dst)
    group_by_bucket(row, src, id_of_row, bounds, *scratch, again, by_src, np.empty(0, np.int32))
    assert again.tolist() == by_dst.tolist()
    assert ends.tolist() == np.cumsum(np.bincount(bucket, minlength=len(bounds) - 1)).tolist()


@given(st.integers(1, 63), st.integers(0, 3000), st.integers(0, 2**32 - 1))
def test_keys_are_sorted_and_equal_keys_keep_their_order(num_bits: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    key = rng.integers(0, 2**num_bits, count) >> rng.integers(0, num_bits)  # also few different keys
    order = np.argsort(key, kind="stable")
    keys = key.copy(), np.empty_like(key)
    orders = np.empty(count, np.int32), np.empty(count, np.int32)
    chosen = sort_keys(*keys, *orders, num_bits)
    assert keys[chosen].tolist() == key[order].tolist()
    assert orders[chosen].tolist() == order.tolist()
    nothing = np.empty(0, np.int32)
    keys = key.copy(), np.empty_like(key)
    chosen = sort_keys(*keys, nothing, nothing, num_bits)
    assert keys[chosen].tolist() == key[order].tolist()


def test_a_bucket_of_four_billion_ids_sorts(tmp_path: Path) -> None:
    """The product of the numbers of destinations and sources, (2^33)^2, does not fit into 64 bits."""
    num_nodes = 2**33
    buckets = EdgeBuckets(
        tmp_path / "edges",
        np.asarray([0, num_nodes]),
        expected_edges=1,
        memory_budget_bytes=1 << 24,
        index_dtype=np.dtype(np.int64),
        columns=edge_column_types(edge_id=True),
    )
    rng = np.random.default_rng(0)
    dst, src = rng.integers(0, num_nodes, (2, 500))
    dst[::3] = dst[0]  # one destination has many sources
    edge_id = np.arange(500) + 2**33  # these edges come after 2^33 other edges of the source

    # Only the first 500 rows of the map of new ids, because all would take 64 GB.
    buckets.append(buckets.group(SpilledEdges(src, np.arange(500), {"edge_id": edge_id}), id_of_row=dst))
    found: list[tuple[int, int, int]] = []
    for _, bucket in buckets.sorted_buckets(drop_duplicates=False, then=lambda bucket: bucket):
        ends = (bucket.key >> bucket.row_bits) + bucket.low, bucket.key & ((1 << bucket.row_bits) - 1)
        found += zip(*(column.tolist() for column in (*ends, bucket.columns["edge_id"])), strict=True)
    assert found == sorted(zip(dst.tolist(), src.tolist(), edge_id.tolist(), strict=True))


def test_sparse_original_ids_beyond_two_to_the_31st(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    original_id = np.unique(np.concatenate([[5, 2**31 - 1, 2**31, 2**32, 2**62], rng.integers(0, 2**50, 40)]))
    num_nodes = len(original_id)
    edges = rng.integers(0, num_nodes, (300, 2)).tolist()
    graph = ListedGraph(num_nodes=num_nodes, edges_listed=edges, original_id=original_id.tolist())
    for partitioner in ("random", "range", "ldg"):
        options = IngestOptions(num_partitions=3, partitioner=partitioner, edge_ids=True)
        ingest(graph, str(tmp_path / partitioner), options)
        opened = open_graph(str(tmp_path / partitioner))
        assert stored_graph(opened) == expected_graph(graph, options)
        ids = np.concatenate([opened.partition(p).original_id for p in range(3)])
        assert sorted(ids.tolist()) == original_id.tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_new_ids_keep_the_order_of_rows(dtype: type) -> None:
    part = np.random.default_rng(0).integers(0, 5, 100).astype(np.int32)
    part[part == 3] = 4  # an empty partition
    offsets = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=5))])
    id_of_row, row_of_id = (np.empty(100, dtype) for _ in range(2))
    renumber(part, offsets[:-1].copy(), id_of_row, row_of_id)
    assert id_of_row.dtype == row_of_id.dtype == dtype
    assert row_of_id.tolist() == np.argsort(part, kind="stable").tolist()
    assert id_of_row[row_of_id].tolist() == list(range(100))


def test_lists_in_memory_are_the_lists_on_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    appended = [
        (rng.integers(0, 9, n), rng.integers(0, 2**40, n), rng.random(n), rng.random((n, 2))) for n in (3, 0, 4)
    ]
    seen = []
    # If duplicates are dropped, fewer edges arrive than the upper bound says.
    for memory_bytes in (9 * 24, 9 * 24 - 1):
        types = edge_column_types(edge_id=True, weight=True, feature_dim=2)
        spool = SortedEdges(tmp_path / "sorted", np.dtype(np.int32), types, num_edges=9, memory_bytes=memory_bytes)
        with spool:
            for neighbor, *columns in appended:
                spool.append(SortedLists(neighbor, neighbor, dict(zip(types, columns, strict=True))))
            seen.append({name: (values.dtype, values.tolist()) for name, values in spool.columns().items()})
            assert bool(list(tmp_path.iterdir())) == (memory_bytes < 9 * 24)
    assert seen[0] == seen[1]
    assert seen[0]["edge_id"][1] == np.concatenate([columns[1] for columns in appended]).tolist()


def reference_window(
    edges: list[tuple[int, int]], partition: list[int], seen: list[int], size: list[int], capacity: int
) -> None:
    """A plain form of `place_window`, written from the description in `ldg_groups`."""
    around: dict[int, list[int]] = {node: [] for edge in edges for node in edge}
    for src, dst in edges:
        around[src].append(dst)
        around[dst].append(src)
    placed = [node for node, others in around.items() if len(others) >= seen[node]]
    for node in placed:
        seen[node] = len(around[node])
        if partition[node] >= 0:
            size[partition[node]] -= 1
            partition[node] = -1
    for _ in range(1 + NUM_RESTREAMS):
        for node in placed:
            if partition[node] >= 0:
                size[partition[node]] -= 1
            count = [sum(partition[other] == p for other in around[node]) for p in range(len(size))]
            open_to = [p for p in range(len(size)) if size[p] < capacity]
            best = max(open_to, key=lambda p: (count[p] * (1.0 - size[p] / capacity), -size[p], -p))
            partition[node] = best
            size[best] += 1


@given(
    edges=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=80),
    window=st.integers(1, 80),
    num_partitions=st.integers(1, 5),
)
def test_windows_are_placed_as_the_definition_says(
    edges: list[tuple[int, int]], window: int, num_partitions: int
) -> None:
    capacity = -(-20 // num_partitions) + 1
    expected, expected_seen, expected_size = [-1] * 20, [0] * 20, [0] * num_partitions
    partition, seen, size = np.full(20, -1, np.int32), np.zeros(20, np.int32), np.zeros((1, num_partitions), np.int64)
    one_type, most = np.array([0, 20]), np.array([capacity])
    for start in range(0, len(edges), window):
        some = edges[start : start + window]
        reference_window(some, expected, expected_seen, expected_size, capacity)
        src, dst = np.array(some, np.int64).reshape(-1, 2).T
        place_window(src, dst, partition, seen, one_type, size, most)
        assert partition.tolist() == expected
        assert size.tolist() == [expected_size]


@pytest.mark.parametrize("num_nodes", [5000, 2**31 + 11, 2**33])
def test_drawn_pairs_are_distinct_and_permuted_as_the_rows_are(num_nodes: int) -> None:
    """The compiled permutation and hashes equal numpy's, by which labels and splits are made."""
    size = num_nodes
    keys = np.arange(1, 5, dtype=np.uint64) * np.uint64(2**63 - 25)
    offset, table = np.array([0, size // 2, size]), np.zeros(4, np.int64)
    threshold = np.array([0.3, 0.6, 0.9])
    permutation = Permutation(size, 99)
    identity = (np.empty((0, 2), np.uint64), np.uint64(2**62 - 1), np.uint64(31), np.uint64(size))
    first = size - 1000
    plain, permuted = (np.empty((2, 9000), np.int64) for _ in range(2))
    for form, (a, b) in ((identity, plain), (permutation.compiled_form, permuted)):
        node, filled = draw_pairs(first, keys, threshold, 0.15, offset, table, np.uint64(3), 0.01, 8, form, a, b, 0)
        assert node == size
    plain, permuted = plain[:, :filled], permuted[:, :filled]
    assert np.array_equal(permutation.forward(plain.ravel()), permuted.ravel())
    assert plain.min() >= 0
    assert plain[0].min() >= first
    assert plain[0].max() == size - 1
    assert np.all(np.diff(plain[0]) >= 0)
    assert len(np.unique(plain, axis=1).T) == filled
    # The hash of a node gives its number of draws. Repeated draws and edges to later nodes are left out.
    nodes = np.arange(first, size)
    draws = 1 + np.searchsorted(threshold, unit_interval(hash_counters(int(keys[0]), nodes)), side="right")
    kept = np.bincount(plain[0] - first, minlength=1000)
    assert np.all(kept <= draws)
    assert kept.sum() > 0.8 * draws.sum()


def test_a_synthetic_graph_of_more_than_two_to_the_31_nodes() -> None:
    graph = SyntheticGraph(SyntheticOptions(num_nodes=2**33, mean_degree=16, feature_dim=1))
    chunks = graph.edges(1 << 14)
    for chunk in (next(chunks), next(chunks)):
        assert len(chunk.src) == 1 << 14
        ids = np.concatenate([chunk.src, chunk.dst])
        assert ids.min() >= 0
        assert 2**31 < ids.max() < 2**33
        assert np.array_equal(chunk.src[0::2], chunk.dst[1::2])
        assert np.array_equal(chunk.src[1::2], chunk.dst[0::2])
