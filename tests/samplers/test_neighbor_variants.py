"""Tests every scheme of drawing neighbors. Its distribution agrees with theory, drawn edges exist in the source, and any partitions give the same batches.

Statistical tests use fixed keys, so their results never change. A chi-square test fails if p is below 0.001.
"""

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from graphmill.core.errors import ConfigError, DataError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.batches.layers import build_layers
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.batches.to_pyg import to_pyg
from graphmill.samplers.kernels.relabel import PositionMaps, Relabeler
from graphmill.samplers.methods.full_graph import FullGraphSampler
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.methods.ppr import PprSampler
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.methods.saint import SaintSampler
from graphmill.samplers.vocabulary.options import (
    FullGraphOptions,
    NeighborOptions,
    Node2SubgraphOptions,
    PprOptions,
    RandomPartitionOptions,
    SaintOptions,
)
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests import reference_sampler as reference
from tests.listed_graph import ListedGraph, expected_graph, random_listed_graph

LEVEL = 0.001
NUM_DRAWS = 6000


def router_of(graph: ListedGraph, folder, **options) -> Router:
    url = str(folder / f"graph-{len(list(folder.iterdir()))}")
    ingest(graph, url, IngestOptions(**{"edge_ids": True, "out_edges": True} | options))
    return local_router(open_graph(url))


def star(weight: list[float] | None = None, num_leaves: int = 5) -> ListedGraph:
    """A graph in which node 0 has in-edges from nodes 1, 2, …"""
    edges = [(leaf, 0) for leaf in range(1, num_leaves + 1)]
    return ListedGraph(num_nodes=num_leaves + 1, edges_listed=edges, weight=weight, split=[[1]] * (num_leaves + 1))


def drawn_sets(router: Router, fanout: int, **options) -> dict[tuple[int, ...], int]:
    """Draws neighbors of node 0 with many keys. Returns how often each tuple of neighbors was drawn."""
    (root,) = np.flatnonzero(router.fetch(np.arange(router.manifest.num_nodes)).original_id == 0)
    permanent = router.fetch(np.arange(router.manifest.num_nodes)).original_id
    seen: dict[tuple[int, ...], int] = {}
    for key in range(NUM_DRAWS):
        lists = router.sample_neighbors(np.array([root]), fanout, key, **options)
        which = tuple(permanent[lists.neighbor].tolist())
        assert which == tuple(sorted(which))
        seen[which] = seen.get(which, 0) + 1
    return seen


def assert_distribution(seen: dict[tuple[int, ...], int], probability: dict[tuple[int, ...], float]) -> None:
    assert set(seen) <= set(probability)
    observed = [seen.get(which, 0) for which in probability]
    expected = np.array(list(probability.values())) * NUM_DRAWS
    assert np.isclose(sum(probability.values()), 1.0)
    assert chisquare(observed, expected).pvalue > LEVEL


def successive_sampling(weight: list[float], take: int) -> dict[tuple[int, ...], float]:
    """The probability of each set, if entries are drawn by weight, one after another, without replacement."""
    probability = {which: 0.0 for which in combinations(range(1, len(weight) + 1), take)}
    for order in permutations(range(1, len(weight) + 1), take):
        chance, left = 1.0, sum(weight)
        for entry in order:
            chance *= weight[entry - 1] / left
            left -= weight[entry - 1]
        probability[tuple(sorted(order))] += chance
    return probability


def multisets(weight: list[float], take: int) -> dict[tuple[int, ...], float]:
    probability: dict[tuple[int, ...], float] = {}
    share = np.array(weight) / sum(weight)
    for drawn in np.ndindex(*[len(weight)] * take):
        which = tuple(sorted(entry + 1 for entry in drawn))
        probability[which] = probability.get(which, 0.0) + float(np.prod(share[list(drawn)]))
    return {which: chance for which, chance in probability.items() if chance > 0}


class TestDistributions:
    def test_uniform(self, tmp_path):
        seen = drawn_sets(router_of(star(), tmp_path), 3)
        assert_distribution(seen, successive_sampling([1.0] * 5, 3))

    def test_uniform_with_replacement(self, tmp_path):
        seen = drawn_sets(router_of(star(num_leaves=4), tmp_path), 3, replace=True)
        assert_distribution(seen, multisets([1.0] * 4, 3))

    def test_weighted(self, tmp_path):
        weight = [1.0, 2.0, 0.5, 4.0, 1.5]
        seen = drawn_sets(router_of(star(weight), tmp_path), 2, scheme="weight")
        assert_distribution(seen, successive_sampling(weight, 2))

    def test_weighted_with_replacement(self, tmp_path):
        weight = [1.0, 0.0, 3.0, 0.5]
        router = router_of(star(weight, 4), tmp_path)
        seen = drawn_sets(router, 2, scheme="weight", replace=True)
        assert_distribution(seen, multisets(weight, 2))

    def test_by_degree(self, tmp_path):
        graph = star(num_leaves=3)
        # Leaf i gets i in-edges from node 0. A leaf without in-edges would count as degree 1.
        extra = [(0, leaf) for leaf in (1, 2, 3) for _ in range(leaf)]
        graph = replace(graph, edges_listed=graph.edges_listed + extra)
        seen = drawn_sets(router_of(graph, tmp_path, num_partitions=3), 1, scheme="degree")
        assert_distribution(seen, {(1,): 1 / 6, (2,): 2 / 6, (3,): 3 / 6})

    def test_labor_takes_each_neighbor_by_chance(self, tmp_path):
        router = router_of(star(num_leaves=4), tmp_path)
        seen = drawn_sets(router, 1, scheme="labor")
        chance = {
            which: 0.25 ** len(which) * 0.75 ** (4 - len(which))
            for size in range(5)
            for which in combinations(range(1, 5), size)
        }
        common = {which: p for which, p in chance.items() if len(which) < 4}  # expected count of at least 5
        rest = 1 - sum(common.values())
        merged = {which: count for which, count in seen.items() if which in common}
        merged[(0,)] = sum(count for which, count in seen.items() if which not in common)
        assert_distribution(merged, common | {(0,): rest})

    def test_labor_sizes(self, tmp_path):
        """For fanout k, the expected number of drawn in-edges of a node s with degree d_s is min(k, d_s). A source t is drawn with the largest probability
        min(1, k / d_s) of its destinations s. The sum over t is the expected number of sources."""
        graph = random_listed_graph(300, 6000, seed=3)
        router = router_of(graph, tmp_path, drop_duplicates=True)
        degree = np.diff(next(iter(open_graph(str(tmp_path / "graph-0")).partitions())).indptr)
        seeds = np.arange(60)
        everything = router.sample_neighbors(seeds, -1, 0)
        fanout = 8
        chance = np.minimum(1, fanout / np.maximum(degree[seeds], 1))
        by_source = np.zeros(300)
        np.maximum.at(by_source, everything.neighbor, np.repeat(chance, everything.count))
        sizes, sources = [], []
        for key in range(600):
            lists = router.sample_neighbors(seeds, fanout, key, scheme="labor")
            sizes.append(lists.count)
            sources.append(len(np.unique(lists.neighbor)))
        mean_size, error = np.mean(sizes, axis=0), np.std(sizes, axis=0) / np.sqrt(600)
        assert np.all(np.abs(mean_size - np.minimum(fanout, degree[seeds])) <= 4.5 * error + 1e-9)
        assert abs(np.mean(sources) - by_source.sum()) < 4.5 * np.std(sources) / np.sqrt(600)
        uniform = [len(np.unique(router.sample_neighbors(seeds, fanout, key).neighbor)) for key in range(50)]
        assert np.mean(sources) < np.mean(uniform)  # the purpose of LABOR: fewer sources

    def test_labor_shares_its_coins(self, tmp_path):
        edges = [(leaf, root) for root in (0, 1) for leaf in range(2, 22)]
        router = router_of(ListedGraph(num_nodes=22, edges_listed=edges), tmp_path)
        for key in range(20):
            lists = router.sample_neighbors(np.array([0, 1]), 5, key, scheme="labor")
            first, second = np.split(lists.neighbor, [lists.count[0]])
            assert np.array_equal(first, second)

    def test_epochs_hops_and_batches_draw_apart(self, tmp_path):
        graph = replace(star(num_leaves=30), split=[[1]] + [[0]] * 30)
        sampler = NeighborSampler(router_of(graph, tmp_path), NeighborOptions(fanouts=(5,), batch_size=1))
        drawn = {tuple(sorted(sampler.sample(epoch, 0).node_id.tolist())) for epoch in range(20)}
        assert len(drawn) > 15


def slow_labor(rows, options: NeighborOptions, key_of, roots: list[int]) -> list[int]:
    """The nodes of a batch, computed with lists. An in-edge is drawn if the coin of its source, a number in [0, 1), is below fanout / in-degree."""
    found = list(roots)
    frontier = roots
    for hop, fanout in enumerate(options.fanouts):
        drawn = [
            edge.other_end
            for node in frontier
            for edge in rows[node].in_edges
            if (reference.hash64(key_of(hop), edge.other_end) >> 11) * 2.0**-53 < fanout / len(rows[node].in_edges)
        ]
        frontier = list(dict.fromkeys(node for node in drawn if node not in found))
        found += frontier
    return found


class TestDependentBatches:
    """Tests LABOR with coins that the steps of a window share, or the hops of a batch."""

    @pytest.mark.parametrize("layer_dependency", [False, True])
    @pytest.mark.parametrize("num_ranks", [1, 3])
    def test_equals_the_slow_reference(self, tmp_path, num_ranks, layer_dependency):
        graph = replace(random_listed_graph(200, 3000, seed=2), split=[[1]] * 200)
        options = NeighborOptions(
            (4, 3), 5, scheme="labor", batch_dependency=3, layer_dependency=layer_dependency, seed=9
        )
        sampler = NeighborSampler(router_of(graph, tmp_path, num_partitions=2), options, num_ranks)
        rows = expected_graph(graph, IngestOptions())
        for batch in range(sampler.num_batches):
            window = batch // num_ranks // 3

            def key(hop: int, window: int = window) -> int:
                return reference.stream_key(9, reference.NEIGHBORS, 4, window, 0 if layer_dependency else hop)

            found = sampler.sample(4, batch)
            roots = sampler.roots_of(4, batch).tolist()
            assert found.node_id.tolist() == slow_labor(rows, options, key, roots)

    def test_a_window_has_one_set_of_coins(self, tmp_path):
        """24 roots have the same 30 neighbors. All ranks and steps of a window draw the same set of neighbors; the next window draws another set."""
        edges = [(leaf, root) for root in range(24) for leaf in range(24, 54)]
        graph = ListedGraph(num_nodes=54, edges_listed=edges, split=[[1]] * 24 + [[0]] * 30)
        options = NeighborOptions((8,), 2, scheme="labor", batch_dependency=3)
        sampler = NeighborSampler(router_of(graph, tmp_path), options, num_ranks=2)
        drawn = [frozenset(sampler.sample(0, batch).node_id[2:].tolist()) for batch in range(12)]
        assert set(drawn[:6]) == {drawn[0]}
        assert set(drawn[6:]) == {drawn[6]}
        assert drawn[0] != drawn[6]
        assert frozenset(sampler.sample(1, 0).node_id[2:].tolist()) not in drawn

    def test_hops_share_coins_where_they_shall(self, tmp_path):
        """All nodes are neighbors of each other. If all hops use the same coin for a node, the second hop finds no new nodes."""
        edges = [(source, end) for end in range(40) for source in range(40) if source != end]
        router = router_of(ListedGraph(num_nodes=40, edges_listed=edges, split=[[1]] * 40), tmp_path)
        for batch in range(40):
            options = NeighborOptions((6, 6), 1, scheme="labor", layer_dependency=True)
            assert (NeighborSampler(router, options).sample(0, batch).hop <= 1).all()
        apart = NeighborSampler(router, NeighborOptions((6, 6), 1, scheme="labor"))
        assert sum((apart.sample(0, batch).hop == 2).sum() for batch in range(40)) > 100

    def test_a_batch_is_unbiased_and_a_window_finds_as_few_as_one_batch(self, tmp_path):
        """Sums over drawn neighbors, weighted by in-degree / fanout, are unbiased. A window has as many sources as one batch of all its roots. There, a
        source is drawn with the largest probability min(1, fanout / in-degree) of its destinations. Checked within 4.5 standard errors of 400 windows."""
        graph = replace(random_listed_graph(300, 6000, seed=3), split=[[1]] * 48 + [[0]] * 252)
        router = router_of(graph, tmp_path, drop_duplicates=True)
        rows, value = expected_graph(graph, IngestOptions(drop_duplicates=True)), np.arange(300) ** 2 / 1000.0
        options = NeighborOptions((8,), 4, scheme="labor", batch_dependency=6, shuffle=True)
        sampler = NeighborSampler(router, options)
        sums, sizes, expected_sizes = [], [], []
        for epoch in range(200):
            for window in range(2):
                sources, chance = set(), np.zeros(300)
                for batch in range(6 * window, 6 * window + 6):
                    found = sampler.sample(epoch, batch)
                    for i, root in enumerate(found.node_id[:4].tolist()):
                        drawn = found.node_id[found.indices[found.indptr[i] : found.indptr[i + 1]]]
                        everything = [edge.other_end for edge in rows[root].in_edges]
                        p = min(1.0, 8 / max(len(everything), 1))
                        sums.append(value[drawn].sum() / p - value[everything].sum())
                        sources |= set(drawn.tolist())
                        chance[everything] = np.maximum(chance[everything], p)
                sizes.append(len(sources))
                expected_sizes.append(chance.sum())
        by_window = np.reshape(sums, (400, 24)).mean(axis=1)  # the roots of a window share coins
        assert abs(by_window.mean()) < 4.5 * by_window.std() / np.sqrt(400)
        difference = np.array(sizes) - np.array(expected_sizes)
        assert abs(difference.mean()) < 4.5 * difference.std() / np.sqrt(400)

    @pytest.mark.parametrize("more", [{"batch_dependency": 2}, {"layer_dependency": True}])
    def test_only_labor_has_coins(self, more):
        with pytest.raises(ConfigError, match="expected them with scheme 'labor' alone, got 'uniform'"):
            NeighborOptions(**more)
        with pytest.raises(ConfigError, match="batch_dependency: expected at least 1, got 0"):
            NeighborOptions(scheme="labor", batch_dependency=0)


class TestWeights:
    def test_weight_zero_is_never_drawn(self, tmp_path):
        router = router_of(star([0.0, 1.0, 0.0, 2.0, 0.0]), tmp_path)
        assert drawn_sets(router, 4, scheme="weight") == {(2, 4): NUM_DRAWS}
        assert drawn_sets(router, -1, scheme="weight") == {(2, 4): NUM_DRAWS}

    def test_all_weights_zero(self, tmp_path):
        router = router_of(star([0.0] * 5), tmp_path)
        for replacing in (False, True):
            lists = router.sample_neighbors(np.array([0]), 3, 0, scheme="weight", replace=replacing)
            assert lists.count.tolist() == [0]

    @pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
    def test_bad_weights_are_one_clear_error(self, tmp_path, bad):
        router = router_of(star([1.0, bad, 1.0, 1.0, 1.0]), tmp_path, allow_nonfinite=True)
        with pytest.raises(DataError, match=r"edge weights: expected finite numbers >= 0 .* on an edge of node 0"):
            router.sample_neighbors(np.array([0]), 3, 0, scheme="weight")

    def test_large_fanout_of_a_hub(self, tmp_path):
        """The algorithm depends on the degree: bitmap, scan or hash set. Draws have the same distribution with each of them."""
        graph = star(num_leaves=5000)
        router = router_of(graph, tmp_path)
        for fanout in (10, 40, 60, 4999):
            neighbor = router.sample_neighbors(np.array([0]), fanout, 7).neighbor
            assert len(neighbor) == fanout
            assert np.all(np.diff(neighbor) > 0)
        weighted = router_of(replace(graph, weight=[1.0] * 5000), tmp_path)
        neighbor = weighted.sample_neighbors(np.array([0]), 60, 7, scheme="weight").neighbor
        assert len(np.unique(neighbor)) == 60


def rich_graph() -> ListedGraph:
    rng = np.random.default_rng(5)
    graph = random_listed_graph(120, 1500, seed=5)
    return replace(
        graph,
        weight=rng.random(1500).round(2).tolist(),
        edge_feature=rng.standard_normal((1500, 3)).astype(np.float32).tolist(),
        edge_feature_dim=3,
    )


VARIANTS = {
    "default": NeighborOptions(fanouts=(4, 3), batch_size=9),
    "replace": NeighborOptions(fanouts=(4, 3), batch_size=9, replace=True),
    "weight": NeighborOptions(fanouts=(4, 3), batch_size=9, scheme="weight"),
    "weight-replace": NeighborOptions(fanouts=(4, 3), batch_size=9, scheme="weight", replace=True),
    "degree": NeighborOptions(fanouts=(4, 3), batch_size=9, scheme="degree"),
    "labor": NeighborOptions(fanouts=(4, 3), batch_size=9, scheme="labor"),
    "out": NeighborOptions(fanouts=(4, 3), batch_size=9, direction="out"),
    "both": NeighborOptions(fanouts=(4, 3), batch_size=9, direction="both"),
    "both-weight": NeighborOptions(fanouts=(4, 3), batch_size=9, direction="both", scheme="weight"),
    "both-labor": NeighborOptions(fanouts=(4, 3), batch_size=9, direction="both", scheme="labor"),
    "induced": NeighborOptions(fanouts=(4, 3), batch_size=9, edges="induced"),
    "all": NeighborOptions(fanouts=(-1,), batch_size=9),
    "none": NeighborOptions(fanouts=(0, 3), batch_size=9),
}


def with_columns(options: NeighborOptions) -> NeighborOptions:
    columns = ("id", "weight", "feature") if options.direction == "in" else ("id", "weight")
    return replace(options, edge_columns=columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rich")
    for partitions in (1, 3):
        options = IngestOptions(num_partitions=partitions, edge_ids=True, out_edges=True)
        ingest(rich_graph(), str(folder / str(partitions)), options)
    return folder


@pytest.fixture(scope="module")
def sampler(folder):
    return NeighborSampler(
        local_router(open_graph(str(folder / "3"))), NeighborOptions(fanouts=(4, 3, 2), batch_size=9)
    )


class TestEdges:
    def batches(self, folder, partitions: int, options: NeighborOptions, kind: type = NeighborSampler):
        sampler = kind(local_router(open_graph(str(folder / str(partitions)))), options)
        return [sampler.sample(1, batch) for batch in range(sampler.num_batches)]

    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            (RandomPartitionSampler, RandomPartitionOptions(num_chunks=3)),
            (SaintSampler, SaintOptions(num_walks=20, num_presamples=5)),
            (Node2SubgraphSampler, Node2SubgraphOptions(max_hops=2, max_nodes=12, batch_size=20)),
            (PprSampler, PprOptions(epsilon=1e-3, top_k=12, batch_size=20, direction="both")),
            (FullGraphSampler, FullGraphOptions()),
        ],
    )
    def test_induced_edges_have_the_source_s_columns(self, folder, kind, options):
        graph, seen = rich_graph(), 0
        for batch in self.batches(folder, 3, replace(options, edge_columns=("id", "weight", "feature")), kind):
            target = batch.node_id[np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))]
            pairs = zip(batch.node_id[batch.indices].tolist(), target.tolist(), strict=True)
            assert list(pairs) == [graph.edges_listed[edge] for edge in batch.edge_id]
            assert batch.edge_weight.tolist() == np.float32(graph.weight)[batch.edge_id].tolist()
            assert batch.edge_feature.tolist() == np.float32(graph.edge_feature)[batch.edge_id].tolist()
            assert to_pyg(to_torch(batch)).edge_attr.shape == (len(batch.edge_id), 3)
            seen += len(batch.edge_id)
        assert seen

    @pytest.mark.parametrize("num_ranks", [1, 2, 4])
    def test_shards_of_the_full_graph_hold_each_edge_once_with_its_columns(self, folder, num_ranks):
        graph, router = rich_graph(), local_router(open_graph(str(folder / "3")))
        options = FullGraphOptions(edge_columns=("id", "weight", "feature"), alone="shard")
        shards = [FullGraphSampler(router, options, num_ranks).sample(0, rank) for rank in range(num_ranks)]
        permanent = np.concatenate([shard.node_id for shard in shards])
        for shard in shards:
            target = shard.node_id[np.repeat(np.arange(shard.num_nodes), np.diff(shard.indptr))]
            pairs = zip(permanent[shard.indices].tolist(), target.tolist(), strict=True)
            assert list(pairs) == [graph.edges_listed[edge] for edge in shard.edge_id]
            assert shard.edge_feature.tolist() == np.float32(graph.edge_feature)[shard.edge_id].tolist()
        edges = np.concatenate([shard.edge_id for shard in shards])
        assert sorted(edges.tolist()) == list(range(len(graph.edges_listed)))

    @pytest.mark.parametrize("name", VARIANTS)
    def test_same_batches_for_any_number_of_partitions(self, folder, name):
        options = with_columns(VARIANTS[name])
        for one, three in zip(self.batches(folder, 1, options), self.batches(folder, 3, options), strict=True):
            assert vars(one).keys() == vars(three).keys()
            for field, value in vars(one).items():
                other = getattr(three, field)
                if isinstance(value, np.ndarray):
                    assert value.dtype == other.dtype, field
                    assert value.tobytes() == other.tobytes(), field
                else:
                    assert value == other, field

    @pytest.mark.parametrize("name", VARIANTS)
    def test_edges_are_the_source_s(self, folder, name):
        graph, options = rich_graph(), with_columns(VARIANTS[name])
        for batch in self.batches(folder, 1, options):
            here = batch.node_id[np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))]
            there = batch.node_id[batch.indices]
            for i, edge in enumerate(batch.edge_id):
                ends = graph.edges_listed[edge]
                inward, outward = (there[i], here[i]), (here[i], there[i])
                allowed = {"in": [inward], "out": [outward], "both": [inward, outward]}[options.direction]
                assert ends in allowed
                assert batch.edge_weight[i] == np.float32(graph.weight[edge])
                if options.direction == "in":
                    assert batch.edge_feature[i].tolist() == np.float32(graph.edge_feature[edge]).tolist()

    def test_out_and_both_reach_what_they_should(self, folder):
        graph = rich_graph()
        for direction in ("out", "both"):
            options = NeighborOptions(fanouts=(-1,), batch_size=9, direction=direction)
            for batch in self.batches(folder, 3, options):
                for position in batch.root_index:
                    root = batch.node_id[position]
                    expected = [dst for src, dst in graph.edges_listed if src == root]
                    if direction == "both":
                        expected += [src for src, dst in graph.edges_listed if dst == root]
                    found = batch.node_id[batch.indices[batch.indptr[position] : batch.indptr[position + 1]]]
                    assert sorted(found.tolist()) == sorted(expected)

    def test_ids_without_stored_ids(self, tmp_path):
        graph = random_listed_graph(50, 400)
        router = router_of(graph, tmp_path, edge_ids=False)
        every = router.sample_neighbors(np.arange(50), -1, 0, columns=("id",))
        assert every.edge_id.tolist() == list(range(400))
        some = router.sample_neighbors(np.arange(50), 3, 0, columns=("id",))
        assert np.array_equal(every.neighbor[some.edge_id], some.neighbor)
        with pytest.raises(ConfigError, match="--edge-ids"):
            router.sample_neighbors(np.arange(50), 3, 0, "out", columns=("id",))
        two = router_of(graph, tmp_path, edge_ids=False, num_partitions=2)
        with pytest.raises(ConfigError, match="--edge-ids"):
            two.sample_neighbors(np.arange(50), 3, 0, columns=("id",))

    def test_fanout_zero_gives_the_roots_alone(self, folder):
        for batch in self.batches(folder, 3, VARIANTS["none"]):
            assert batch.num_edges == 0
            assert np.array_equal(batch.root_index, np.arange(batch.num_nodes))

    @pytest.mark.parametrize("scheme", ["uniform", "weight", "degree", "labor"])
    def test_isolated_root_and_self_loop(self, tmp_path, scheme):
        graph = ListedGraph(num_nodes=3, edges_listed=[(1, 1), (1, 1)], weight=[1.0, 1.0], split=[[1]] * 3)
        options = NeighborOptions(fanouts=(2, 2), batch_size=3, scheme=scheme, shuffle=False)
        batch = NeighborSampler(router_of(graph, tmp_path), options).sample(0, 0)
        assert batch.node_id.tolist() == [0, 1, 2]
        assert batch.indptr.tolist() == [0, 0, 2, 2]
        assert batch.indices.tolist() == [1, 1]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"fanouts": ()}, "fanouts"),
            ({"fanouts": (3, -2)}, "fanouts"),
            ({"direction": "sideways"}, "direction"),
            ({"scheme": "magic"}, "scheme"),
            ({"edges": "some"}, "edges"),
            ({"edge_columns": ("length",)}, "edge_columns"),
            ({"replace": True, "scheme": "labor"}, "replace"),
            ({"replace": True, "fanouts": (-1,)}, "replace"),
            ({"batch_size": 0}, "batch_size"),
        ],
    )
    def test_refused(self, options, message):
        with pytest.raises(ConfigError, match=f"^{message}: expected"):
            NeighborOptions(**options)


class TestLayers:
    def test_layers_compute_what_the_batch_computes(self, sampler):
        for index in range(sampler.num_batches):
            batch = to_torch(sampler.sample(0, index))
            layers = build_layers(batch, 3)
            assert layers[0].num_sources == len(batch.node_id)
            assert layers[-1].num_destinations == len(batch.root_index)
            value = torch.arange(len(batch.node_id), dtype=torch.float64)
            whole = value
            target = torch.repeat_interleave(batch.indptr.diff())
            for layer in layers:
                value = torch.zeros(layer.num_destinations, dtype=torch.float64).index_add(
                    0, layer.destination, value[: layer.num_sources][layer.source.long()]
                )
                whole = torch.zeros(len(batch.node_id), dtype=torch.float64).index_add(
                    0, target, whole[batch.indices.long()]
                )
            assert torch.equal(value, whole[batch.root_index])
            assert layers[0].source.data_ptr() == batch.indices.data_ptr()

    def test_refuses_other_batches(self, sampler):
        batch = to_torch(sampler.sample(0, 0))
        with pytest.raises(ConfigError, match="layers: expected"):
            build_layers(batch, 1)
        with pytest.raises(ConfigError, match="layers: expected"):
            build_layers(replace(batch, hop=None), 3)


class TestRelabeling:
    def test_map_and_table_agree(self):
        rng = np.random.default_rng(0)
        maps = PositionMaps(500)
        for _ in range(3):  # the map is reused, so it must be reset
            roots = rng.choice(500, 20, replace=False)
            by_map, by_table = Relabeler(roots, maps), Relabeler(roots)
            for size in (0, 50, 1, 700):
                query = rng.integers(0, 500, size).astype(np.int32)
                assert np.array_equal(by_map.add(query), by_table.add(query))
                assert np.array_equal(by_map.node, by_table.node)
            by_map.close()
        position_of_id, zero = maps.borrow()
        assert zero > 1  # the same map as before
        assert np.all(position_of_id < zero)

    def test_a_map_lost_to_an_error_is_not_used_again(self):
        maps = PositionMaps(10)
        with pytest.raises(ValueError, match="node 3 twice"):
            Relabeler(np.array([1, 3, 3]), maps)
        position_of_id, zero = maps.borrow()
        assert np.all(position_of_id < zero)

    def test_no_map_where_it_would_be_too_large(self):
        relabeler = Relabeler(np.array([5]), PositionMaps(10**12))
        assert relabeler.add(np.array([7, 5, 7])).tolist() == [1, 0, 1]
        relabeler.close()
