"""The row cache: the owner's answers, fewer of its rows on the wire, one budget, any number of threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from samplers.messages import FetchRows, ListHot
from samplers.partition_owner import PartitionOwner
from samplers.router import LocalOwner, Router, local_router
from samplers.row_cache import CachedOwner
from storage.encode import encode
from storage.encoding_names import parse_encoding_name
from storage.errors import ConfigError
from storage.graph import open_graph
from storage.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph

DIM, NODES = 8, 400
ROW_BYTES = 4 * DIM + 17


class CountingOwner:
    """An owner that notes what it is asked."""

    def __init__(self, owner: LocalOwner) -> None:
        self.owner, self.requests = owner, []

    def submit(self, request):
        self.requests.append(request)
        return self.owner.submit(request)

    def rows_asked(self) -> int:
        return sum(len(request.node) for request in self.requests if isinstance(request, FetchRows))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("cache") / "graph")
    ingest(random_listed_graph(NODES, 4000, feature_dim=DIM), url, IngestOptions(num_partitions=3))
    graph = open_graph(url)
    for name in ("rwse-3", "laplacian-5-smallest"):
        graph, _ = encode(graph, parse_encoding_name(name))
    return graph


def cached_router(graph, rows_per_owner: int, feature_dtype=None):
    """(router, caches, owners behind them)"""
    behind, caches = [], []
    for index, partition in enumerate(graph.partitions()):
        behind.append(CountingOwner(LocalOwner(PartitionOwner(partition, NODES))))
        budget = 4 * partition.num_nodes + rows_per_owner * ROW_BYTES
        caches.append(CachedOwner(behind[-1], graph.manifest, index, budget))
    return Router(graph.manifest, caches, feature_dtype), caches, behind


def assert_same_rows(found, expected) -> None:
    for name, value in vars(expected).items():
        other = getattr(found, name)
        assert (value is None) == (other is None), name
        if value is not None:
            assert value.dtype == other.dtype
            assert np.array_equal(value, other), name


@pytest.mark.parametrize("rows_per_owner", [0, 20, NODES])
@pytest.mark.parametrize("split_set", [None, 1])
def test_answers_are_the_owner_s(graph, rows_per_owner, split_set):
    router, caches, behind = cached_router(graph, rows_per_owner)
    plain, rng = local_router(graph), np.random.default_rng(0)
    for size in (1, 50, 300, 0):
        node = rng.integers(0, NODES, size).astype(np.int32)
        assert_same_rows(router.fetch(node, split_set=split_set), plain.fetch(node, split_set=split_set))
    hits, misses = (sum(getattr(cache.stats, name) for cache in caches) for name in ("hits", "misses"))
    assert hits + misses == 351
    assert (hits == 0) == (rows_per_owner == 0)
    assert (misses == 0) == (rows_per_owner == NODES)
    assert sum(cache.stats.bytes_saved for cache in caches) == hits * 4 * DIM
    filled = sum(min(rows_per_owner, int(count)) for count in np.diff(graph.offsets))
    assert sum(owner.rows_asked() for owner in behind) == misses + filled


def test_encodings_are_cached_and_paid_for(graph):
    router, caches, behind = cached_router(graph, 20)
    plain, names = local_router(graph), ("rwse-3", "laplacian-5-smallest")
    node = np.arange(NODES)
    for _ in range(2):
        assert_same_rows(router.fetch(node, encodings=names), plain.fetch(node, encodings=names))
    num_cached = 20 * ROW_BYTES // (ROW_BYTES + 4 * 8)
    assert [cache.stats.hits for cache in caches] == [2 * num_cached] * 3
    asked = sum(owner.rows_asked() for owner in behind)
    assert_same_rows(router.fetch(node), plain.fetch(node))  # other columns: not from the cache
    assert sum(owner.rows_asked() for owner in behind) == asked + NODES


def test_budget_counts_every_byte(graph):
    _, caches, _ = cached_router(graph, 20)
    router, caches, _ = cached_router(graph, 20)
    router.fetch(np.arange(NODES), split_set=0)
    for index, cache in enumerate(caches):
        owned = int(np.diff(graph.offsets)[index])
        assert 0 < cache.stats.held_bytes <= 4 * owned + 20 * ROW_BYTES


def test_holds_the_nodes_of_most_in_edges(graph):
    router, _, behind = cached_router(graph, 20)
    every = np.arange(NODES)
    router.fetch(every)
    degree = np.concatenate([np.diff(partition.indptr) for partition in graph.partitions()])
    for index, owner in enumerate(behind):
        hot = next(request.count for request in owner.requests if isinstance(request, ListHot))
        assert hot == 20
        missed = owner.requests[-1].node
        owned = np.arange(*graph.offsets[index : index + 2])
        held = np.setdiff1d(owned, missed)
        assert degree[held].min() >= degree[missed].max()


def test_other_requests_pass(graph):
    router, caches, _ = cached_router(graph, 20)
    plain, node = local_router(graph), np.arange(0, NODES, 3)
    router.fetch(node, split_set=0)
    before = [(cache.stats.hits, cache.stats.misses) for cache in caches]
    assert_same_rows(router.fetch(node, split_set=1), plain.fetch(node, split_set=1))
    assert_same_rows(router.fetch(node, feature=False), plain.fetch(node, feature=False))
    assert np.array_equal(router.sample_neighbors(node, 3, 9).neighbor, plain.sample_neighbors(node, 3, 9).neighbor)
    assert [(cache.stats.hits, cache.stats.misses) for cache in caches] == before


def test_float16_on_the_wire(graph):
    router, caches, behind = cached_router(graph, 20, "float16")
    near = local_router(graph, feature_dtype="float16")
    node = np.random.default_rng(1).integers(0, NODES, 200)
    found = router.fetch(node)
    assert found.feature.dtype == np.float16
    assert_same_rows(found, near.fetch(node))  # the same batch wherever an owner is
    exact = local_router(graph).fetch(node).feature
    assert np.array_equal(found.feature, exact.astype(np.float16))
    assert all(r.feature_dtype == "float16" for owner in behind for r in owner.requests if isinstance(r, FetchRows))
    hits = sum(cache.stats.hits for cache in caches)
    assert sum(cache.stats.bytes_saved for cache in caches) == hits * 2 * DIM


def test_threads(graph):
    router, caches, behind = cached_router(graph, 30)
    plain = local_router(graph)

    def ask(seed: int) -> None:
        node = np.random.default_rng(seed).integers(0, NODES, 100)
        assert_same_rows(router.fetch(node), plain.fetch(node))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(60)))
    assert sum(cache.stats.hits + cache.stats.misses for cache in caches) == 6000
    for owner in behind:  # filled once, whoever came first
        assert sum(isinstance(request, ListHot) for request in owner.requests) == 1
    assert caches[0].stats.hits > 0
    assert caches[0].stats.misses > 0


def test_refuses_a_negative_budget(graph):
    owner = LocalOwner(PartitionOwner(graph.partition(0), NODES))
    with pytest.raises(ConfigError, match="row cache: expected a budget"):
        CachedOwner(owner, graph.manifest, 0, -1)
