"""GraphSAINT: walks and counts against slow ones, normalised sums that are unbiased, and the same bytes for any partitions."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.counter_random import hash_counters
from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.kernels.random_streams import Purpose, stream_key
from graphmill.samplers.methods.saint import SaintSampler
from graphmill.samplers.vocabulary.messages import FetchRows, InducedEdges, StepWalks
from graphmill.samplers.vocabulary.options import SaintOptions
from tests.memory_graph import MemoryGraph, counting_owners, cut, memory_graphs, memory_router, random_graph
from tests.reference_sampler import assert_same_batch


def reference_walks(
    graph: MemoryGraph, options: SaintOptions, num_walks: int, purpose: Purpose, *position: int
) -> list[list[int]]:
    """Rows of each walk, by lists."""

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
    """Means over 3000 batches within 4.5 standard errors (of batches and of 3000 pre-samples); plain ones are far off."""
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
    """Chi-square at about 1 in 10,000 over the steps out of a node with a parallel edge; roots only from their split."""
    graph = MemoryGraph(4, [(1, 0), (2, 0), (2, 0), (3, 0)], split=[1, 2, 2, 3])
    sampler = SaintSampler(memory_router(graph), SaintOptions(num_walks=8000, walk_length=1, direction="in"))
    start, reached = sampler._walk(np.arange(8000), Purpose.WALKS, 0, 0)
    assert set(start.tolist()) == {0}
    observed = np.bincount(reached, minlength=4)[1:]
    expected = np.array([2000, 4000, 2000])
    assert np.sum((observed - expected) ** 2 / expected) < 18.4


def test_requests_batches_and_epochs():
    manifest, owners = counting_owners(random_graph(300, 2000), cut(300, 3))
    options = SaintOptions(num_walks=40, walk_length=3, num_presamples=20)
    sampler = SaintSampler(Router(manifest, owners), options, num_ranks=3)
    assert sampler.num_batches == 9  # 300 / 40 rounded up, then to a multiple of the ranks
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
