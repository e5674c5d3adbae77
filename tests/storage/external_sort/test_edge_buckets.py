"""Tests the external sort alone: the order, that columns move together, that too large buckets are split, and that no file is left on the disk."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphmill.storage.external_sort.edge_buckets
from graphmill.storage.external_sort.edge_buckets import (
    Bucket,
    EdgeBuckets,
    SortedEdges,
    SortedLists,
    SpilledEdges,
    edge_column_types,
)


def make_buckets(
    directory: Path, offsets: list[int], *, expected_edges: int = 1, max_records: int | None = None, **columns
) -> EdgeBuckets:
    buckets = EdgeBuckets(
        directory,
        np.asarray(offsets),
        expected_edges=expected_edges,
        memory_budget_bytes=1 << 24,
        index_dtype=columns.pop("index_dtype", np.dtype(np.int32)),
        num_threads=columns.pop("num_threads", 1),
        columns=edge_column_types(**{"edge_id": True, **columns}),
    )
    if max_records is not None:
        buckets._max_records = max_records
    return buckets


def sorted_by_partition(buckets: EdgeBuckets, *, drop_duplicates: bool = False) -> list[tuple[int, Bucket]]:
    return list(buckets.sorted_buckets(drop_duplicates=drop_duplicates, then=lambda bucket: bucket))


def spilled(src: list[int], dst: list[int]) -> SpilledEdges:
    return SpilledEdges(np.asarray(src, np.int64), np.asarray(dst, np.int64), {"edge_id": np.arange(len(src))})


def spill(buckets: EdgeBuckets, edges: SpilledEdges, id_of_row) -> None:
    buckets.append(buckets.group(edges, id_of_row))


def ends(bucket: Bucket) -> tuple[np.ndarray, np.ndarray]:
    """Returns the new ids of the destinations, and the rows of the sources."""
    return (bucket.key >> bucket.row_bits) + bucket.low, bucket.key & ((1 << bucket.row_bits) - 1)


@given(
    edges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60),
    cut=st.integers(0, 10),
    max_records=st.integers(1, 70),
    chunk=st.integers(1, 60),
    drop=st.booleans(),
    with_edge_id=st.booleans(),
    held_bytes=st.sampled_from([1, 200, 10**6]),
    num_sorters=st.integers(1, 3),
)
def test_buckets_come_out_sorted(
    tmp_path_factory, edges, cut, max_records, chunk, drop, with_edge_id, held_bytes, num_sorters
) -> None:
    directory = tmp_path_factory.mktemp("sort") / "edges"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphmill.storage.external_sort.edge_buckets, "_MAX_BUCKETS", 6)
        buckets = make_buckets(
            directory, [0, cut, 10], expected_edges=10**8, max_records=max_records, edge_id=with_edge_id
        )
    buckets._max_held_bytes, buckets._num_sorters = held_bytes, num_sorters
    for start in range(0, len(edges), chunk):
        some = edges[start : start + chunk]
        one = spilled([src for src, _ in some], [dst for _, dst in some])
        ids = {"edge_id": np.arange(start, start + len(some))} if with_edge_id else {}
        one = SpilledEdges(one.src, one.dst, ids)
        spill(buckets, one, np.arange(10, dtype=np.int32))
    by_partition = sorted_by_partition(buckets, drop_duplicates=drop)
    assert {partition for partition, _ in by_partition} == {0, 1}
    for partition, (low, high) in enumerate(((0, cut), (cut, 10))):
        expected = sorted((dst, src, i) for i, (src, dst) in enumerate(edges) if low <= dst < high)
        if drop:
            expected = [one for i, one in enumerate(expected) if i == 0 or expected[i - 1][:2] != one[:2]]
        found = []
        for owner, bucket in by_partition:
            if owner != partition:
                continue
            ids = bucket.columns.get("edge_id", [None] * len(bucket.key))
            found += list(zip(*(end.tolist() for end in ends(bucket)), ids, strict=True))
        assert found == [one if with_edge_id else (*one[:2], None) for one in expected]
    assert list(directory.iterdir()) == []


@given(
    edges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30),
    cut=st.integers(0, 6),
    max_records=st.integers(1, 70),
    chunk=st.integers(1, 30),
)
def test_reverses_with_sums_are_pygs_to_undirected(tmp_path_factory, edges, cut, max_records, chunk) -> None:
    """Columns of equal edges are summed, and a self-loop counts twice. `torch_geometric.utils.to_undirected` does the same by default."""
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("torch_geometric.utils")
    buckets = make_buckets(
        tmp_path_factory.mktemp("sum") / "edges",
        [0, cut, 6],
        max_records=max_records,
        edge_id=False,
        weight=True,
        feature_dim=2,
    )
    pairs = np.asarray(edges, np.int64).reshape(-1, 2)
    weight = np.arange(len(edges), dtype=np.float32) - 7  # small integers, whose sums are exact in any order
    feature = np.stack([weight * weight, 3 - weight], axis=1)
    for start in range(0, len(edges), chunk):
        some = slice(start, start + chunk)
        one = SpilledEdges(pairs[some, 0], pairs[some, 1], {"weight": weight[some], "feature": feature[some]})
        spill(buckets, one.with_reverses(of_loops=True), np.arange(6, dtype=np.int32))
    found = [
        one for _, one in buckets.sorted_buckets(drop_duplicates=True, sum_columns=True, then=lambda bucket: bucket)
    ]
    ours = {
        (src, dst): (w, f)
        for bucket in found
        for dst, src, w, f in zip(
            *(column.tolist() for column in (*ends(bucket), bucket.columns["weight"], bucket.columns["feature"])),
            strict=True,
        )
    }
    assert len(ours) == sum(len(bucket.key) for bucket in found)
    index, columns = utils.to_undirected(
        torch.from_numpy(pairs.T.copy()), [torch.from_numpy(weight), torch.from_numpy(feature)], num_nodes=6
    )
    theirs = zip(index.T.tolist(), *(column.tolist() for column in columns), strict=True)
    assert ours == {tuple(pair): (w, f) for pair, w, f in theirs}


def test_an_oversized_bucket_is_read_in_ranges_of_bounded_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dst = rng.integers(0, 1000, 20_000)
    buckets = make_buckets(tmp_path / "edges", [0, 1000], max_records=500)
    spill(buckets, spilled(rng.integers(0, 1000, 20_000).tolist(), dst.tolist()), np.arange(1000, dtype=np.int32))
    sizes = [len(bucket.key) for _, bucket in sorted_by_partition(buckets)]
    assert sum(sizes) == 20_000
    assert len(sizes) >= 40
    assert max(sizes) <= 500 + np.bincount(dst).max()


def test_a_hub_larger_than_a_bucket_stays_whole(tmp_path: Path) -> None:
    buckets = make_buckets(tmp_path / "edges", [0, 5], max_records=10)
    dst = [0, 1, *([3] * 100), 4]
    spill(buckets, spilled([0] * len(dst), dst), np.arange(5, dtype=np.int32))
    found = [bucket for _, bucket in sorted_by_partition(buckets)]
    assert [len(bucket.key) for bucket in found if len(bucket.key) >= 100] in ([100], [101], [102])
    assert np.concatenate([ends(bucket)[0] for bucket in found]).tolist() == sorted(dst)


def test_ids_beyond_two_to_the_31st(tmp_path: Path) -> None:
    num_nodes = 2**33
    buckets = make_buckets(
        tmp_path / "edges", [0, 2**32, num_nodes], index_dtype=np.dtype(np.int64), max_records=2, expected_edges=10**8
    )

    src = [num_nodes - 1, 5, 2**31, num_nodes - 1]
    dst = [num_nodes - 1, 2**31 + 7, 2**32, 2**31 + 7]
    # Only the first 4 rows of the map of new ids, because all would take 64 GB.
    spill(buckets, spilled(src, [0, 1, 2, 3]), np.array(dst))
    found = [(int(d), int(s)) for _, bucket in sorted_by_partition(buckets) for d, s in zip(*ends(bucket), strict=True)]
    assert found == sorted(zip(dst, src, strict=True))


def test_a_bucket_without_edges_of_more_nodes_than_one_key_holds(tmp_path: Path) -> None:
    buckets = make_buckets(
        tmp_path / "edges", [0, 2**33], index_dtype=np.dtype(np.int64), max_records=2, expected_edges=1
    )
    assert sum(len(bucket.key) for _, bucket in sorted_by_partition(buckets)) == 0


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_reverses_follow_their_edges(chunk: int) -> None:
    src, dst = [0, 1, 2, 1, 0], [1, 0, 2, 3, 0]
    pairs = []
    for start in range(0, 5, chunk):
        some = slice(start, start + chunk)
        edges = SpilledEdges(
            np.asarray(src[some]),
            np.asarray(dst[some]),
            {
                "edge_id": np.arange(5)[some],
                "weight": np.arange(5, dtype=np.float32)[some],
                "feature": np.arange(10, dtype=np.float32).reshape(5, 2)[some],
            },
        ).with_reverses()
        edge_id = edges.columns["edge_id"]
        assert edges.columns["weight"].tolist() == edge_id.tolist()
        assert edges.columns["feature"][:, 0].tolist() == (2 * edge_id).tolist()
        pairs += list(zip(edges.src.tolist(), edges.dst.tolist(), edge_id.tolist(), strict=True))
    assert pairs == [(0, 1, 0), (1, 0, 0), (1, 0, 1), (0, 1, 1), (2, 2, 2), (1, 3, 3), (3, 1, 3), (0, 0, 4)]


def test_chunks_and_buckets_shrink_with_the_budget(tmp_path: Path) -> None:
    for name, budget in (("small", 1 << 24), ("large", 1 << 30)):
        buckets = EdgeBuckets(
            tmp_path / name,
            np.asarray([0, 10]),
            expected_edges=1,
            memory_budget_bytes=budget,
            index_dtype=np.dtype(np.int32),
            columns=edge_column_types(edge_id=True, weight=True, feature_dim=100),
        )
        record = 4 + 4 + 8 + 4 + 400
        assert buckets.chunk_edges * (16 + 2 * record) <= budget // 4
        assert buckets._max_records * (2 * record + 16) <= budget // 2


def test_sorted_columns_are_seen_whole_and_then_gone(tmp_path: Path) -> None:
    columns = edge_column_types(edge_id=True, weight=True, feature_dim=2)
    with SortedEdges(tmp_path / "sorted", np.dtype(np.int32), columns, num_edges=6, memory_bytes=0) as spool:
        for start in (0, 3):
            index = np.arange(start, start + 3)
            feature = np.stack([index, index], axis=1).astype(np.float32)
            spool.append(SortedLists(index, index, {"edge_id": 10 * index, "weight": index / 2, "feature": feature}))
        columns = spool.columns()
        assert columns["index"].tolist() == [0, 1, 2, 3, 4, 5]
        assert columns["edge_id"].tolist() == [0, 10, 20, 30, 40, 50]
        assert columns["weight"].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
        assert columns["feature"].shape == (6, 2)
        del columns
    assert list(tmp_path.iterdir()) == []
    columns = edge_column_types(feature_dim=3)
    with SortedEdges(tmp_path / "empty", np.dtype(np.int64), columns, num_edges=1, memory_bytes=0) as spool:
        assert spool.columns()["index"].shape == (0,)
        assert spool.columns()["feature"].shape == (0, 3)


def test_what_one_write_leaves_over_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write may be incomplete, after a signal or on a disk that writes less than requested."""
    calls = []

    def a_few_bytes(fd: int, views: list[memoryview]) -> int:
        calls.append(len(views))
        return os.write(fd, b"".join(views)[:5])

    monkeypatch.setattr(os, "writev", a_few_bytes)
    buckets = make_buckets(tmp_path / "edges", [0, 10])
    buckets._max_held_bytes = 2 * 4 * (4 + 4 + 8)  # both chunks
    for start in (0, 4):
        spill(buckets, spilled(list(range(start, start + 4)), [7, 1, 7, 9]), np.arange(10, dtype=np.int32))
    found = [(d, s) for _, b in sorted_by_partition(buckets) for d, s in zip(*ends(b), strict=True)]
    assert found == [(1, 1), (1, 5), (7, 0), (7, 2), (7, 4), (7, 6), (9, 3), (9, 7)]
    assert set(calls) == {2}, "both chunks by one call"
