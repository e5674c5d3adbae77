"""Compares forward push with a dense linear solve and a slow push over dicts. Also tests top-k batches, ties, and requests to owners."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router
from graphmill.samplers.methods.ppr import PprSampler, PushedRoots, push_roots
from graphmill.samplers.vocabulary.messages import FetchRows, InducedSubgraphs, ListNeighbors
from graphmill.samplers.vocabulary.options import PprOptions
from tests.memory_graph import MemoryGraph, counting_owners, cut, memory_graphs, memory_router, random_graph
from tests.reference_sampler import assert_same_batch


def exact_ppr(graph: MemoryGraph, alpha: float, direction: str) -> np.ndarray:
    """float64 [n, n]: entry (u, v) is the probability that a walk from u ends at v."""
    walk = np.zeros((graph.num_nodes, graph.num_nodes))
    for node, neighbors in enumerate(graph.lists(direction)):
        for neighbor in neighbors or [node]:
            walk[node, neighbor] += 1 / max(len(neighbors), 1)
    return alpha * np.linalg.inv(np.eye(graph.num_nodes) - (1 - alpha) * walk)


def reference_push(graph: MemoryGraph, root: int, options: PprOptions) -> tuple[dict[int, float], dict[int, float]]:
    """Slow push by the rule of the paper. Returns (scores, residuals) by node, in order of discovery."""
    lists = graph.lists(options.direction)
    score, residual, first = {root: 0.0}, {root: 1.0}, True
    while True:
        due = {
            node: value
            for node, value in residual.items()
            if value >= options.epsilon * max(len(lists[node]), 1) or first
        }
        if not due:
            return score, residual
        first = False
        residual |= dict.fromkeys(due, 0.0)
        for node, value in due.items():
            if not lists[node]:
                score[node] += value
                continue
            score[node] += options.alpha * value
            for neighbor in lists[node]:
                share = (1.0 - options.alpha) * value / len(lists[node])
                residual[neighbor] = residual.get(neighbor, 0.0) + share
                score.setdefault(neighbor, 0.0)


def of_root(pushed: PushedRoots, g: int) -> slice:
    return slice(int(pushed.offset[g]), int(pushed.offset[g] + pushed.size[g]))


@st.composite
def option_sets(draw: st.DrawFn) -> PprOptions:
    return PprOptions(
        alpha=draw(st.sampled_from([0.1, 0.15, 0.25, 0.5, 1.0])),
        epsilon=draw(st.sampled_from([1e-5, 1e-3, 1e-2, 0.2])),
        top_k=draw(st.integers(0, 8)),
        direction=draw(st.sampled_from(["in", "out", "both"])),
        batch_size=draw(st.integers(1, 9)),
    )


@given(memory_graphs(max_nodes=20, max_edges=80), option_sets())
def test_invariant_bound_and_slow_reference(graph, options):
    """p + r · PPR equals PPR(root). At the end, residuals are below epsilon · degree. Results are bit for bit those of the slow push."""
    pushed = push_roots(memory_router(graph), np.arange(graph.num_nodes), options)
    exact, lists = exact_ppr(graph, options.alpha, options.direction), graph.lists(options.direction)
    degree = np.array([max(len(one), 1) for one in lists])
    for root in range(graph.num_nodes):
        some = of_root(pushed, root)
        score, residual = np.zeros(graph.num_nodes), np.zeros(graph.num_nodes)
        score[pushed.node[some]], residual[pushed.node[some]] = pushed.score[some], pushed.residual[some]
        np.testing.assert_allclose(score + residual @ exact, exact[root], atol=1e-12)
        assert np.all(residual < options.epsilon * degree)
        assert np.all(residual >= 0)
        assert np.all(score <= exact[root] + 1e-12)
        expected_score, expected_residual = reference_push(graph, root, options)
        assert pushed.node[some].tolist() == list(expected_residual)
        assert pushed.residual[some].tolist() == list(expected_residual.values())
        assert pushed.score[some].tolist() == [expected_score[node] for node in expected_residual]


@given(memory_graphs(max_nodes=16, max_edges=60), option_sets(), st.integers(1, 4), st.integers(0, 3))
def test_batches_equal_slow_reference_for_any_partitions(graph, options, num_partitions, epoch):
    assignment = cut(graph.num_nodes, min(num_partitions, graph.num_nodes))
    sampler = PprSampler(memory_router(graph, assignment), options)
    one = PprSampler(memory_router(graph), options)
    row_of, in_lists, seen = {p: row for row, p in enumerate(graph.ids)}, graph.lists("in"), []
    for index in range(sampler.num_batches):
        batch = sampler.sample(epoch, index)
        assert_same_batch(batch, one.sample(epoch, index))
        for low, high in zip(batch.graph_ptr[:-1], batch.graph_ptr[1:], strict=True):
            rows = [row_of[p] for p in batch.node_id[low:high].tolist()]
            score, _ = reference_push(graph, rows[0], options)
            others = sorted((-value, row) for row, value in score.items() if row != rows[0] and value > 0)
            assert rows[1:] == [row for _, row in others[: options.top_k]]
            assert batch.score[low:high].tolist() == [np.float32(score[row]) for row in rows]
            for place, row in enumerate(rows):
                sources = batch.indices[batch.indptr[low + place] : batch.indptr[low + place + 1]] - low
                assert [rows[source] for source in sources] == [other for other in in_lists[row] if other in rows]
            seen.append(rows[0])
        assert batch.feature[:, 0].tolist() == batch.node_id.tolist()
        assert batch.root_index.tolist() == batch.graph_ptr[:-1].tolist()
    assert sorted(seen) == list(range(graph.num_nodes))


def test_larger_graph_many_rounds():
    """The roots need more memory several times. Any partitions give the same bytes. Each round sends one request per owner, and no list is read twice."""
    graph, options = random_graph(1500, 8000), PprOptions(epsilon=3e-5, top_k=50, batch_size=40, direction="both")
    assignment = cut(1500, 4)
    manifest, owners = counting_owners(graph, assignment)
    batch = PprSampler(Router(manifest, owners), options).sample(0, 3)
    assert_same_batch(batch, PprSampler(memory_router(graph), options).sample(0, 3))
    roots = batch.node_id[batch.root_index]
    router = memory_router(graph)
    pushed = push_roots(router, roots, options)
    assert pushed.size.max() > 300
    for g, root in enumerate(roots[:2].tolist()):
        score, residual = reference_push(graph, root, options)
        assert pushed.residual[of_root(pushed, g)].tolist() == list(residual.values())
        assert pushed.score[of_root(pushed, g)].tolist() == [score[node] for node in residual]
    for owner in owners:
        kinds = Counter(type(request) for request in owner.requests)
        assert kinds[ListNeighbors] <= pushed.num_rounds + 1
        assert kinds[InducedSubgraphs] == 1
        assert kinds[FetchRows] <= 2  # a second one only for permanent ids of ties
        sent = Counter()
        for request in owner.requests:
            if isinstance(request, ListNeighbors):
                reply = owner.owner.submit(request).result()
                sent.update(request.node[(reply.count > 0)].tolist())
        assert max(sent.values()) == 1


def test_root_does_not_depend_on_its_batch():
    graph = random_graph(400, 2500)
    sampler = PprSampler(memory_router(graph, cut(400, 2)), PprOptions(top_k=10))
    roots = sampler._root_batches.roots(0, 0)
    together = sampler.sample_roots(roots.original_id)
    assert_same_batch(together, sampler.sample(0, 0))
    with pytest.raises(ConfigError, match=r"roots: expected ids of nodes of .* got -1, "):
        sampler.sample_roots(np.array([-1]))
    for g in (0, 7, 31):
        alone = sampler.sample_roots(roots.original_id[g : g + 1])
        low, high = together.graph_ptr[g], together.graph_ptr[g + 1]
        assert alone.node_id.tolist() == together.node_id[low:high].tolist()
        assert alone.score.tobytes() == together.score[low:high].tobytes()


def test_hub_root_ties_and_isolated_root():
    """The hub of a star has a degree above 1 / epsilon. Its subgraph still has neighbors. All leaves have equal scores, so those with the lowest permanent ids
    count."""
    leaves = 300
    edges = [(0, leaf) for leaf in range(1, leaves + 1)]
    graph = MemoryGraph(leaves + 2, edges + [(b, a) for a, b in edges], symmetric=True)
    batch = PprSampler(
        memory_router(graph, cut(leaves + 2, 3)), PprOptions(epsilon=0.01, alpha=0.5, top_k=4, batch_size=1000)
    ).sample(0, 0)
    subgraphs = {
        int(batch.node_id[low]): batch.node_id[low:high].tolist()
        for low, high in zip(batch.graph_ptr[:-1], batch.graph_ptr[1:], strict=True)
    }
    assert subgraphs[0] == [0]  # residuals of the leaves stay below epsilon: only the hub has a score
    assert subgraphs[leaves + 1] == [leaves + 1]
    finer = PprSampler(memory_router(graph), PprOptions(epsilon=0.001, alpha=0.5, top_k=4, batch_size=1000)).sample(
        0, 0
    )
    low = finer.graph_ptr[finer.node_id[finer.root_index].tolist().index(0)]
    assert finer.node_id[low : low + 5].tolist() == [0, 1, 2, 3, 4]


def test_bad_options():
    bad_options = (
        {"alpha": 0.0},
        {"alpha": 1.1},
        {"alpha": float("nan")},
        {"epsilon": 0.0},
        {"epsilon": 1.0},
        {"top_k": -1},
    )
    for bad in (*bad_options, {"batch_size": 0}, {"direction": "up"}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            PprOptions(**bad)
