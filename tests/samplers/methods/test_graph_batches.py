"""Tests batches of many graphs. They keep their budgets, have every graph once, give all ranks the same number of steps, and equal a slow reference."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError, DataError
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids
from graphmill.samplers.methods.graph_batches import (
    GraphBatchSampler,
    graphs_to_torch,
    pack_graphs,
    plan_graph_batches,
    with_drawn_negatives,
)
from graphmill.samplers.vocabulary.options import GraphBatchOptions
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from tests.array_graph_store import ArrayGraphStore
from tests.reference_sampler import hash64, stream_key

GRAPH_ORDER, GRAPH_STEPS = 24, 25  # purposes of the random streams


def random_store(num_graphs: int, seed: int = 0, most_nodes: int = 30) -> ArrayGraphStore:
    rng = np.random.default_rng(seed)
    num_nodes = rng.integers(1, most_nodes + 1, num_graphs)
    num_edges = rng.integers(0, 6 * num_nodes + 1)
    owner = np.repeat(np.arange(num_graphs), num_edges)
    edge_index = np.stack([rng.integers(0, num_nodes[owner]), rng.integers(0, num_nodes[owner])]).astype(np.int32)
    return ArrayGraphStore(
        node_ptr=np.concatenate([[0], np.cumsum(num_nodes)]),
        edge_ptr=np.concatenate([[0], np.cumsum(num_edges)]),
        edge_index=edge_index.reshape(2, -1),
        node_feature=rng.integers(0, 99, (num_nodes.sum(), 3)).astype(np.int16),
        edge_feature=rng.integers(0, 9, (num_edges.sum(), 2)).astype(np.int16),
        target=rng.standard_normal(num_graphs).astype(np.float32),
    )


@st.composite
def option_sets(draw: st.DrawFn) -> GraphBatchOptions:
    return GraphBatchOptions(
        max_graphs=draw(st.sampled_from([0, 1, 7])),
        max_nodes=draw(st.sampled_from([30, 100])),
        max_edges=draw(st.sampled_from([0, 180, 250])),
        max_node_pairs=draw(st.sampled_from([0, 900, 3000])),
        bucket_ratio=draw(st.sampled_from([1.0, 1.2, 3.0, float("inf")])),
        seed=draw(st.integers(0, 2)),
        shuffle=draw(st.booleans()),
    )


@given(st.integers(1, 120), option_sets(), st.integers(1, 4), st.integers(0, 3))
def test_every_graph_once_within_budgets_for_any_ranks(num_graphs, options, num_ranks, epoch):
    store = random_store(num_graphs, seed=num_graphs)
    try:
        sampler = GraphBatchSampler(store, options, num_ranks)
        num_batches = sampler.num_batches
    except ConfigError as error:
        if num_ranks == 1 or "--workers" not in str(error):  # expected if batches cannot be split further
            raise
        return
    assert num_batches % num_ranks == 0
    seen = []
    for index in range(num_batches):
        batch = sampler.sample(epoch, index)
        assert batch.num_graphs >= 1
        nodes = store.num_nodes[batch.graph_id]
        assert nodes.sum() == batch.num_nodes <= options.max_nodes
        assert not options.max_graphs or batch.num_graphs <= options.max_graphs
        assert not options.max_edges or batch.num_edges <= options.max_edges
        assert not options.max_node_pairs or (nodes**2).sum() <= options.max_node_pairs
        seen += batch.graph_id.tolist()
    assert sorted(seen) == list(range(num_graphs))


@given(st.integers(1, 120), option_sets(), st.integers(1, 3), st.integers(0, 3))
def test_batches_are_those_of_a_slow_reference(num_graphs, options, num_ranks, epoch):
    """Compares the plan's buckets and batches with a slow reference. Hashes of positions and of graph numbers determine their order."""
    store = random_store(num_graphs, seed=num_graphs)
    graphs = np.random.default_rng(num_graphs).permutation(num_graphs)[: num_graphs // 2 + 1]
    sampler = GraphBatchSampler(store, options, num_ranks, graphs)
    graphs.sort()  # the given order does not matter
    try:
        plan = sampler.plan
    except ConfigError:
        return
    by_size = sorted(range(len(graphs)), key=lambda i: (store.num_nodes[graphs[i]], store.num_edges[graphs[i]]))
    assert plan.order.tolist() == by_size
    assert plan.place_ptr[0] == 0
    assert np.all(np.diff(plan.place_ptr) > 0)
    places, steps = list(range(len(graphs))), list(range(plan.num_batches // num_ranks))
    if options.shuffle:
        graph_key = stream_key(options.seed, GRAPH_ORDER, epoch)
        places.sort(key=lambda i: (plan.bucket[i], hash64(graph_key, int(graphs[by_size[i]]))))
        step_key = stream_key(options.seed, GRAPH_STEPS, epoch)
        steps.sort(key=lambda step: hash64(step_key, step))
    for batch in range(plan.num_batches):
        planned = steps[batch // num_ranks] * num_ranks + batch % num_ranks
        chosen = places[plan.place_ptr[planned] : plan.place_ptr[planned + 1]]
        assert sampler.graphs_of(epoch, batch).tolist() == [graphs[by_size[i]] for i in chosen]


def test_planning_an_epoch_is_linear_in_the_graphs(monkeypatch):
    """Counts the computed hashes. An epoch needs one hash per graph and per step, whatever the number of batches."""
    hashed = 0

    def counting(key: np.uint64, ids: np.ndarray) -> np.ndarray:
        nonlocal hashed
        hashed += len(ids)
        return hash_ids(key, ids)

    monkeypatch.setattr("graphmill.samplers.methods.graph_batches.hash_ids", counting)
    store = random_store(3000)
    sampler = GraphBatchSampler(store, GraphBatchOptions(max_graphs=4), num_ranks=2)
    for epoch in (0, 1):
        for batch in range(sampler.num_batches):
            sampler.graphs_of(epoch, batch)
    assert hashed == 2 * (3000 + sampler.num_batches // 2)


def test_packing_equals_a_slow_loop():
    store = random_store(200)
    batch = GraphBatchSampler(store, GraphBatchOptions(max_nodes=300)).sample(0, 2)
    edges, nodes, edge_features, base = [], [], [], 0
    for place, graph in enumerate(batch.graph_id.tolist()):
        node = slice(store.node_ptr[graph], store.node_ptr[graph + 1])
        edge = slice(store.edge_ptr[graph], store.edge_ptr[graph + 1])
        assert batch.node_ptr[place] == base
        assert batch.edge_ptr[place] == len(edges)
        edges += (store.edge_index[:, edge].T + base).tolist()
        nodes += store.node_feature[node].tolist()
        edge_features += store.edge_feature[edge].tolist()
        base += int(store.num_nodes[graph])
    assert batch.edge_index.T.tolist() == edges
    assert batch.edge_index.dtype == np.int32
    assert batch.node_feature.tolist() == nodes
    assert batch.edge_feature.tolist() == edge_features
    assert batch.target.tolist() == store.target[batch.graph_id].tolist()
    tensors = graphs_to_torch(batch)
    assert tensors.edge_index.tolist() == batch.edge_index.tolist()
    assert batch.num_bytes > batch.node_feature.nbytes


def test_epochs_mix_graphs_and_order_and_repeat_exactly():
    store = random_store(2000)
    sampler = GraphBatchSampler(store, GraphBatchOptions(max_nodes=200), num_ranks=2)

    def batches(epoch: int, which: GraphBatchSampler = sampler) -> list[frozenset[int]]:
        return [frozenset(which.graphs_of(epoch, index).tolist()) for index in range(which.num_batches)]

    again = GraphBatchSampler(store, GraphBatchOptions(max_nodes=200), num_ranks=2)
    assert batches(0) == batches(0, again)
    assert len(set(batches(0)) & set(batches(1))) < sampler.num_batches * 0.02  # new combinations of graphs
    first = [max(store.num_nodes[list(one)]) for one in batches(0)]
    second = [max(store.num_nodes[list(one)]) for one in batches(1)]
    assert first != second  # and a new order of steps
    assert batches(0, GraphBatchSampler(store, GraphBatchOptions(max_nodes=200, seed=1), 2)) != batches(0)
    fixed = GraphBatchSampler(store, replace(sampler.options, shuffle=False), num_ranks=2)
    assert batches(0, fixed) == batches(7, fixed)


def test_batches_are_full_and_ranks_get_like_sizes():
    store = random_store(20_000)
    sampler = GraphBatchSampler(store, GraphBatchOptions(max_nodes=1000), num_ranks=4)
    sizes = np.array([store.num_nodes[sampler.graphs_of(0, index)].sum() for index in range(sampler.num_batches)])
    assert sizes.mean() > 880
    largest = np.array([store.num_nodes[sampler.graphs_of(0, i)].max() for i in range(sampler.num_batches)])
    smallest = np.array([store.num_nodes[sampler.graphs_of(0, i)].min() for i in range(sampler.num_batches)])
    assert np.mean(largest <= 1.2 * smallest + 1e-9) > 0.95
    spread = largest.reshape(-1, 4).max(1) / largest.reshape(-1, 4).min(1)
    assert np.mean(spread <= 1.2 + 1e-9) > 0.9


def test_graphs_beyond_a_budget():
    nodes, edges = np.array([3, 50, 4, 2, 60]), np.array([9, 0, 100, 1, 0])
    with pytest.raises(ConfigError, match=r"max_nodes.*60.*graph 4"):
        plan_graph_batches(nodes, edges, GraphBatchOptions(max_nodes=10))
    plan = plan_graph_batches(nodes, edges, GraphBatchOptions(max_nodes=10, max_edges=20, oversize="alone"))
    batches = [sorted(plan.order[a:b].tolist()) for a, b in zip(plan.place_ptr[:-1], plan.place_ptr[1:], strict=True)]
    assert sorted(batches) == [[0, 3], [1], [2], [4]]


def test_too_few_graphs_for_the_ranks_is_one_error():
    with pytest.raises(ConfigError, match="multiple of 2 batches, got 3 graphs"):
        plan_graph_batches(np.array([5, 5, 5]), np.zeros(3), GraphBatchOptions(max_nodes=5), num_ranks=2)
    assert (
        plan_graph_batches(np.array([5, 5, 5]), np.zeros(3), GraphBatchOptions(max_nodes=9), num_ranks=3).num_batches
        == 3
    )


def test_some_graphs_of_a_store():
    store = random_store(50)
    chosen = np.array([40, 3, 17, 8])
    sampler = GraphBatchSampler(store, GraphBatchOptions(max_nodes=60), graphs=chosen)
    found = np.concatenate([sampler.sample(0, index).graph_id for index in range(sampler.num_batches)])
    assert sorted(found.tolist()) == [3, 8, 17, 40]
    for bad, message in (([1, 1], "repeats"), ([], "none"), ([50], "50"), ([-1], "-1")):
        with pytest.raises(ConfigError, match=message):
            GraphBatchSampler(store, GraphBatchOptions(max_nodes=60), graphs=bad)
    with pytest.raises(ConfigError, match="batch"):
        sampler.sample(0, sampler.num_batches)


def test_bad_options_and_edges_out_of_their_graph():
    for bad in ({}, {"max_nodes": -1}, {"max_nodes": 5, "max_edges": -2}):
        with pytest.raises(ConfigError, match="budgets"):
            GraphBatchOptions(**bad)
    with pytest.raises(ConfigError, match="bucket_ratio"):
        GraphBatchOptions(max_nodes=5, bucket_ratio=0.5)
    with pytest.raises(ConfigError, match="oversize"):
        GraphBatchOptions(max_nodes=5, oversize="drop")
    store = random_store(10)
    graphs = store.fetch(np.arange(10))
    edge = int(np.argmax(graphs.edge_index.max(axis=0)))
    broken = graphs.edge_index.copy()
    broken[0, edge] = 30
    owner = int(np.searchsorted(store.edge_ptr, edge, side="right")) - 1
    with pytest.raises(DataError, match=f"graph {owner}:.*30"):
        pack_graphs(0, 0, np.arange(10), replace(graphs, edge_index=broken))


def pairs_of(*links):
    """Packed graphs of five nodes each, with these links (first node, second node) and one stored pair that is none."""
    rows = [np.array([*((i, j, 1) for i, j in own), (4, 4, 0)], np.int32) for own in links]
    count = len(links)
    none = np.zeros(count, np.int64)
    sizes = np.full(count, 5, np.int64)
    counts = np.array([len(own) for own in rows], np.int64)
    return PackedGraphs(sizes, none, np.zeros((2, 0), np.int32), None, None, None, None, counts, np.concatenate(rows))


def test_each_link_gets_a_drawn_pair_that_is_no_link():
    graphs, seen = pairs_of([(0, 1), (0, 2), (3, 0)], [], [(1, 0), (1, 2), (1, 3), (1, 4)]), set()
    for epoch in range(60):
        drawn = with_drawn_negatives(graphs, np.array([7, 8, 9]), np.uint64(stream_key(0, Purpose.NEGATIVES, epoch)))
        assert drawn.num_pairs.tolist() == [6, 0, 4]  # node 1 of the last graph is linked with all
        first, last = drawn.pairs[:6], drawn.pairs[6:]
        assert first[:3].tolist() == [[0, 1, 1], [0, 2, 1], [3, 0, 1]]
        assert first[3:, 0].tolist() == [0, 0, 3]
        assert (last[:, 2] == 1).all()
        seen |= {(int(i), int(k)) for i, k, _ in first[3:]}
    assert seen == {(0, 3), (0, 4), (3, 1), (3, 2), (3, 4)}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_graph_without_nodes_has_no_drawn_pairs(place):
    links: list[list[tuple[int, int]]] = [[(0, 1)], [(1, 0), (1, 2)]]
    key, ids = np.uint64(stream_key(0, Purpose.NEGATIVES, 0)), np.array([7, 9])
    plain = with_drawn_negatives(pairs_of(*links), ids, key)
    graphs = pairs_of(*links[:place], [], *links[place:])
    graphs = replace(graphs, num_nodes=np.insert(np.full(2, graphs.num_nodes[0]), place, 0))
    drawn = with_drawn_negatives(graphs, np.insert(ids, place, 8), key)
    assert drawn.num_pairs.tolist() == np.insert(plain.num_pairs, place, 0).tolist()
    np.testing.assert_array_equal(drawn.pairs, plain.pairs)


def test_drawn_pairs_depend_on_the_graph_alone():
    links, key = [[(0, 1), (2, 3)], [(1, 4)]], np.uint64(stream_key(3, Purpose.NEGATIVES, 2))
    together = with_drawn_negatives(pairs_of(*links), np.array([5, 6]), key)
    alone = with_drawn_negatives(pairs_of(links[1]), np.array([6]), key)
    np.testing.assert_array_equal(together.pairs[4:], alone.pairs)
