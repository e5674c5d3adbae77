"""Tests GraphSAINT. Walks and counts equal slow references, normalised sums are unbiased, and any partitions give the same bytes."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.core.counter_random import hash_counters
from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import typed_router
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.kernels.random_streams import Purpose, stream_key
from graphmill.samplers.methods.saint import SaintSampler
from graphmill.samplers.vocabulary.messages import FetchRows, InducedEdges, StepWalks
from graphmill.samplers.vocabulary.options import SaintOptions
from graphmill.storage.format.source import Relation
from tests.memory_graph import (
    EdgeTable,
    MemoryGraph,
    NodeTable,
    TypedMemoryGraph,
    counting_owners,
    cut,
    memory_graphs,
    memory_router,
    random_graph,
    typed_graphs,
)
from tests.reference_sampler import assert_same_batch
from tests.typed_reference import arrays_of


def reference_walks(
    graph: MemoryGraph, options: SaintOptions, num_walks: int, purpose: Purpose, *position: int
) -> list[list[int]]:
    """The rows that each walk visits, computed with lists."""

    def draw(step: int, walk: int, bound: int) -> int:
        key = int(stream_key(options.seed, purpose, *position, step))
        return int((int(hash_counters(key, np.array([walk]))[0]) >> 11) * 2.0**-53 * bound)

    lists, roots = (
        graph.lists(options.direction),
        [i for i in range(graph.num_nodes) if graph.split is None or graph.split[i] == 1],
    )
    walks = []
    for walk in range(num_walks):
        rows = [roots[draw(0, walk, len(roots))]]
        for step in range(1, options.walk_length + 1):
            neighbors = lists[rows[-1]] or [rows[-1]]
            rows.append(neighbors[draw(step, walk, len(neighbors))])
        walks.append(rows)
    return walks


@given(
    memory_graphs(),
    st.builds(
        SaintOptions,
        num_walks=st.integers(1, 6),
        walk_length=st.integers(0, 3),
        num_presamples=st.integers(1, 8),
        direction=st.sampled_from(["in", "out", "both"]),
        seed=st.integers(0, 3),
    ),
    st.integers(1, 4),
)
def test_equals_slow_reference_for_any_partitions(graph, options, num_partitions):
    graph = replace(graph, split=[1 + (i % 3 == 1) for i in range(graph.num_nodes)])
    sampler = SaintSampler(memory_router(graph, cut(graph.num_nodes, min(num_partitions, graph.num_nodes))), options)
    one, in_lists = SaintSampler(memory_router(graph), options), graph.lists("in")
    pre = reference_walks(graph, options, options.num_walks * options.num_presamples, Purpose.PRESAMPLED_WALKS)
    samples = [
        {row for walk in pre[t * options.num_walks : (t + 1) * options.num_walks] for row in walk}
        for t in range(options.num_presamples)
    ]
    count = Counter(row for one_sample in samples for row in one_sample)
    row_of = {p: row for row, p in enumerate(graph.ids)}
    num_roots = sum(code == 1 for code in graph.split)
    for index in range(sampler.num_batches):
        batch = sampler.sample(1, index)
        assert_same_batch(batch, one.sample(1, index))
        walks = reference_walks(graph, options, options.num_walks, Purpose.WALKS, 1, index)
        rows = [row_of[p] for p in batch.node_id.tolist()]
        assert rows == list(dict.fromkeys(row for step in zip(*walks, strict=True) for row in step))
        assert batch.root_index.tolist() == [i for i, row in enumerate(rows) if graph.split[row] == 1]
        for i, row in enumerate(rows):
            weight = options.num_presamples / (max(count[row], 1) * num_roots) if graph.split[row] == 1 else 0
            assert batch.loss_weight[i] == np.float32(weight)
            some = slice(batch.indptr[i], batch.indptr[i + 1])
            assert [rows[j] for j in batch.indices[some]] == [other for other in in_lists[row] if other in rows]
            for j, coefficient in zip(batch.indices[some], batch.edge_coefficient[some], strict=True):
                together = sum(row in sample and rows[j] in sample for sample in samples)
                assert coefficient == np.float32(max(count[row], 1) / max(together, 1))


def test_normalised_sums_are_unbiased():
    """Means over 3,000 batches are within 4.5 standard errors (of the batches and of 3,000 pre-samples). Means without normalisation are far off."""
    edges = (
        [(0, i) for i in range(1, 9)]
        + [(i, 0) for i in range(1, 9)]
        + [(1, 2), (2, 1), (9, 8), (8, 9), (9, 10), (10, 9)]
    )
    graph, trials = MemoryGraph(11, edges, symmetric=True), 3000
    options = SaintOptions(num_walks=3, walk_length=2, num_presamples=3000, batches_per_epoch=trials)
    sampler = SaintSampler(memory_router(graph), options)
    value = np.arange(11, dtype=np.float64) ** 2 - 20
    loss, plain_loss, received = np.empty(trials), np.empty(trials), [[] for _ in range(11)]
    for index in range(trials):
        batch = sampler.sample(0, index)
        loss[index] = np.sum(batch.loss_weight * value[batch.node_id])
        plain_loss[index] = np.mean(value[batch.node_id])
        message = batch.edge_coefficient * value[batch.node_id[batch.indices]]
        total = np.add.reduceat(np.append(message, 0), batch.indptr[:-1]) * (np.diff(batch.indptr) > 0)
        for node, one in zip(batch.node_id.tolist(), total.tolist(), strict=True):
            received[node].append(one)
    error = loss.std() / np.sqrt(trials)
    assert abs(loss.mean() - value.mean()) < 4.5 * np.sqrt(2) * error
    assert abs(plain_loss.mean() - value.mean()) > 10 * plain_loss.std() / np.sqrt(trials)
    for node, neighbors in enumerate(graph.lists("in")):
        totals = np.array(received[node])
        exact = value[neighbors].sum()
        assert abs(totals.mean() - exact) < 4.5 * np.sqrt(2) * totals.std() / np.sqrt(len(totals)) + 1e-6, node


def test_walks_start_at_roots_and_steps_are_uniform():
    """A chi-square test (p about 1e-4) of the steps from a node that has a parallel edge. Walks start only at roots of the split."""
    graph = MemoryGraph(4, [(1, 0), (2, 0), (2, 0), (3, 0)], split=[1, 2, 2, 3])
    sampler = SaintSampler(memory_router(graph), SaintOptions(num_walks=8000, walk_length=1, direction="in"))
    start, reached = sampler._walk(np.arange(8000), Purpose.WALKS, 0, 0)
    assert set(start.tolist()) == {0}
    observed = np.bincount(reached, minlength=4)[1:]
    expected = np.array([2000, 4000, 2000])
    assert np.sum((observed - expected) ** 2 / expected) < 18.4


@settings(max_examples=40)
@given(
    typed_graphs(),
    st.builds(
        SaintOptions, num_walks=st.integers(1, 6), walk_length=st.integers(0, 3), num_presamples=st.integers(1, 8)
    ),
)
def test_types_and_relations_follow_their_walks(graph, options):
    """Any partitions give the same walks, which follow edges. Nodes, weights and coefficients are compared with sets and lists."""
    options = replace(options, direction="in", root_type="a")
    sampler, one = SaintSampler(typed_router(graph), options), SaintSampler(typed_router(graph.parted(1)), options)
    known = [(name, node) for name, table in graph.tables.items() for node in table.ids]
    stored = {relation: graph.in_edges(relation) for relation in graph.relations}

    def named(walked: list[np.ndarray]) -> list[list[tuple[str, int]]]:
        """The walks with permanent ids. (In one partition, stored ids have the order of permanent ids.)"""
        return [[known[row] for row in step.tolist()] for step in walked]

    walk = np.arange(options.num_walks * options.num_presamples)
    presampled = named(one._walk(walk, Purpose.PRESAMPLED_WALKS))
    for before, after in pairwise(presampled):
        for (name, node), there in zip(before, after, strict=True):
            ways = [(r.source, s) for r in graph.relations if r.target == name for s, _ in stored[r][node]]
            assert there in (ways or [(name, node)])
    samples = [set() for _ in range(options.num_presamples)]
    for step in presampled:
        for place, there in zip(walk // options.num_walks, step, strict=True):
            samples[place].add(there)
    for index in range(sampler.num_batches):
        batch = sampler.sample(1, index)
        assert arrays_of(batch) == arrays_of(one.sample(1, index))
        steps = named(one._walk(np.arange(options.num_walks), Purpose.WALKS, 1, index))
        visited = dict.fromkeys(there for step in steps for there in step)
        for name, nodes in batch.nodes.items():
            assert nodes.node_id.tolist() == [node for own, node in visited if own == name]
        assert batch.predicted_id.tolist() == batch.nodes["a"].node_id.tolist()
        count = {there: max(1, sum(there in sample for sample in samples)) for there in visited}
        roots = batch.nodes["a"]
        assert roots.loss_weight.tolist() == [
            np.float32(options.num_presamples / (count["a", node] * len(graph.tables["a"].ids)))
            for node in roots.node_id.tolist()
        ]
        for relation, edges in batch.edges.items():
            sources = batch.nodes[relation.source].node_id
            for row, node in enumerate(batch.nodes[relation.target].node_id.tolist()):
                end, some = (relation.target, node), slice(edges.indptr[row], edges.indptr[row + 1])
                near = sources[edges.indices[some]].tolist()
                assert near == [s for s, _ in stored[relation][node] if (relation.source, s) in visited]
                for source, coefficient in zip(near, edges.edge_coefficient[some], strict=True):
                    together = sum(end in sample and (relation.source, source) in sample for sample in samples)
                    assert coefficient == np.float32(count[end] / max(together, 1))


def test_steps_over_relations_are_uniform_over_edges():
    """A chi-square test (p about 1e-4) of the steps from a node with three edges in one relation and one edge in another."""
    graph = TypedMemoryGraph(
        {"a": NodeTable([0], labelled=True), "b": NodeTable([0, 1, 2])},
        {Relation("b", "to", "a"): EdgeTable([0, 1, 1], [0, 0, 0]), Relation("a", "self", "a"): EdgeTable([0], [0])},
    )
    sampler = SaintSampler(typed_router(graph), SaintOptions(num_walks=8000, walk_length=1, direction="in"))
    _, reached = sampler._walk(np.arange(8000), Purpose.WALKS, 0, 0)
    observed, expected = np.bincount(reached, minlength=4), np.array([2000, 2000, 4000, 1e-9])
    assert np.sum((observed - expected) ** 2 / expected) < 18.4


def test_requests_batches_and_epochs():
    manifest, owners = counting_owners(random_graph(300, 2000), cut(300, 3))
    options = SaintOptions(num_walks=40, walk_length=3, num_presamples=20)
    sampler = SaintSampler(Router(manifest, owners), options, num_ranks=3)
    assert sampler.num_batches == 9  # 300 / 40, rounded up to a multiple of 3 ranks
    assert len(sampler.sample_counts.node) > 100
    for owner in owners:
        owner.requests.clear()
    batch = sampler.sample(0, 0)
    for owner in owners:
        kinds = Counter(type(request) for request in owner.requests)
        assert kinds[StepWalks] <= 3
        assert kinds[InducedEdges] == kinds[FetchRows] == 1
    assert batch.node_id.tolist() != sampler.sample(1, 0).node_id.tolist()
    still = SaintSampler(Router(manifest, owners), replace(options, shuffle=False))
    assert_same_batch(replace(still.sample(0, 0), epoch=1), still.sample(1, 0))
    assert to_torch(batch).edge_coefficient.shape == (batch.num_edges,)


def test_pre_sampling_in_pieces_counts_the_same(monkeypatch):
    graph = random_graph(100, 500)
    options = SaintOptions(num_walks=10, num_presamples=30)
    whole = SaintSampler(memory_router(graph), options).sample_counts
    monkeypatch.setattr("graphmill.samplers.methods.saint._WALKS_AT_ONCE", 35)
    pieces = SaintSampler(memory_router(graph), options).sample_counts
    for name in ("node", "first", "sample"):
        assert getattr(whole, name).tolist() == getattr(pieces, name).tolist()


def test_bad_options():
    for bad in (
        {"num_walks": 0},
        {"walk_length": -1},
        {"num_presamples": 0},
        {"batches_per_epoch": 0},
        {"direction": "up"},
    ):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            SaintOptions(**bad)
    nobody = MemoryGraph(3, [], split=[2, 2, 2])
    with pytest.raises(ConfigError, match="root_split"):
        _ = SaintSampler(memory_router(nobody), SaintOptions()).num_batches
