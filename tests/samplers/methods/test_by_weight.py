"""Tests PPR and Node2Subgraph with edge weights, on plain and typed graphs: exact PPR vectors, frequencies of draws, and equal results for any partitions."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2

from graphmill.core.errors import ConfigError, DataError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.access.typed_router import typed_router
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler, grow_subgraphs
from graphmill.samplers.methods.ppr import PprSampler, push_roots
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import Node2SubgraphOptions, PprOptions, TypedNode2SubgraphOptions
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph, array_edges, array_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.reference_sampler import assert_same_batch

NODES, EDGES = 40, 160
RNG = np.random.default_rng(3)
SRC, DST = RNG.integers(0, NODES, (2, EDGES))
WEIGHT = RNG.choice([0.0, 0.5, 1.0, 30.0], EDGES).astype(np.float32)
WEIGHT[DST == 7] = 0  # all in-edges of node 7 have weight 0


def router(folder, weight=WEIGHT, src=SRC, dst=DST, num_nodes=NODES, partitions=1) -> Router:
    graph = ArrayGraph("w", num_nodes, np.asarray(src), np.asarray(dst), edge_weight=weight)
    url = f"{folder}/{partitions}"
    ingest(graph, url, IngestOptions(num_partitions=partitions, out_edges=True))
    return local_router(open_graph(url))


def exact_ppr(alpha: float, direction: str) -> np.ndarray:
    walk = np.zeros((NODES, NODES))
    if direction != "out":
        np.add.at(walk, (DST, SRC), WEIGHT)
    if direction != "in":
        np.add.at(walk, (SRC, DST), WEIGHT)
    stays = walk.sum(1) == 0
    walk[stays, stays] = 1
    walk[stays] = np.eye(NODES)[stays]
    return alpha * np.linalg.inv(np.eye(NODES) - (1 - alpha) * walk / walk.sum(1, keepdims=True))


@pytest.mark.parametrize("direction", ["in", "out", "both"])
def test_walks_step_by_weight(tmp_path, direction) -> None:
    """For scores p and residuals r, p + r · PPR equals PPR(root)."""
    options = PprOptions(epsilon=1e-3, direction=direction, by_weight=True)
    pushed = push_roots(router(tmp_path), np.arange(NODES), options)
    exact = exact_ppr(options.alpha, direction)
    for root in range(NODES):
        some = slice(pushed.offset[root], pushed.offset[root] + pushed.size[root])
        score, residual = np.zeros(NODES), np.zeros(NODES)
        score[pushed.node[some]], residual[pushed.node[some]] = pushed.score[some], pushed.residual[some]
        np.testing.assert_allclose(score + residual @ exact, exact[root], atol=1e-9)
        assert score.sum() > 0.5
    if direction == "in":  # if all weights are 0, a walk stays at its node
        assert pushed.size[7] == 1
        assert pushed.score[pushed.offset[7]] == 1


def test_weights_of_one_are_no_weights(tmp_path) -> None:
    plain, ones = (router(tmp_path / name, weight) for name, weight in (("no", None), ("1", np.ones(EDGES, "f4"))))
    for kind, options in ((PprSampler, PprOptions), (Node2SubgraphSampler, Node2SubgraphOptions)):
        wide = options(batch_size=NODES, shuffle=False, by_weight=True)
        assert_same_batch(
            kind(ones, wide).sample(0, 0), kind(plain, options(batch_size=NODES, shuffle=False)).sample(0, 0)
        )


def test_a_part_of_a_layer_is_drawn_by_weight(tmp_path) -> None:
    """Only one neighbor of node 0 fits into the layer. A chi-square test (p = 1e-4) checks how often each is drawn. Parallel edges add up; edges of weight 0 do
    not count."""
    src, weight = [1, 2, 3, 3, 4], np.array([1, 5, 2, 2, 0], "f4")
    one, trials, count = router(tmp_path, weight, src, [0] * 5, 5), 4000, Counter()
    for seed in range(trials):
        options = Node2SubgraphOptions(max_hops=1, max_nodes=2, direction="in", seed=seed, by_weight=True)
        grown = grow_subgraphs(one, NodeList(np.array([0]), np.array([0])), options, 0)
        count.update(grown.node[1:].tolist())
    expected = {node: trials * share / 10 for node, share in ((1, 1), (2, 5), (3, 4))}
    assert set(count) == set(expected)
    statistic = sum((count[node] - mean) ** 2 / mean for node, mean in expected.items())
    assert statistic < chi2.ppf(1 - 1e-4, 2)
    whole = Node2SubgraphOptions(max_hops=1, direction="in", by_weight=True)
    grown = grow_subgraphs(one, NodeList(np.array([0]), np.array([0])), whole, 0)
    assert sorted(grown.node.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "options"),
    [(PprSampler, PprOptions(top_k=5)), (Node2SubgraphSampler, Node2SubgraphOptions(max_nodes=6))],
)
def test_partitions_and_batch_mates_change_nothing(tmp_path, kind, options) -> None:
    chosen = type(options)(**{**vars(options), "by_weight": True, "direction": "both", "edge_columns": ("weight",)})
    one, three = (kind(router(tmp_path, partitions=parts), chosen) for parts in (1, 3))
    assert_same_batch(one.sample(0, 0), three.sample(0, 0))
    first, batch = int(one.sample(0, 0).node_id[0]), one.sample(0, 0)
    alone = three.sample_roots(np.array([first]))
    assert alone.node_id.tolist() == batch.node_id[: batch.graph_ptr[1]].tolist()


def test_weights_that_are_none_are_refused(tmp_path) -> None:
    for kind, options in ((PprSampler, PprOptions), (Node2SubgraphSampler, Node2SubgraphOptions)):
        with pytest.raises(ConfigError, match="the graph has no edge weights"):
            kind(router(tmp_path / f"{kind.__name__}-no", None), options(by_weight=True))
        bad = np.where(np.arange(EDGES) == 9, -2, WEIGHT).astype("f4")
        sampler = kind(router(tmp_path / f"{kind.__name__}-bad", bad), options(by_weight=True))
        with pytest.raises(DataError, match=f"got -2.0 on an edge of node {DST[9]};"):
            sampler.sample(0, 0)
    with pytest.raises(ConfigError, match="edge weights: the graph has none"):
        router(tmp_path / "asked", None).list_neighbors(np.array([0]), by_weight=True)


@pytest.mark.parametrize(
    ("kind", "options"), [(PprSampler, PprOptions), (Node2SubgraphSampler, TypedNode2SubgraphOptions)]
)
@pytest.mark.parametrize("weight", [WEIGHT, None], ids=["weights", "no weights"])
def test_relations_without_weights_have_ones(tmp_path, kind, options, weight) -> None:
    """Edges between papers have weights; edges from authors to papers have none."""
    cites, writes = Relation("paper", "cites", "paper"), Relation("author", "writes", "paper")
    nodes = {"paper": array_nodes("paper", NODES, label=np.arange(NODES) % 2), "author": array_nodes("author", 3)}
    edges = {
        cites: array_edges("cites", SRC, DST, edge_weight=weight),
        writes: array_edges("writes", np.array([0, 1, 1]), np.array([7, 0, 1])),
    }
    ingest(TypedSource("t", nodes, edges), str(tmp_path), IngestOptions())
    router = typed_router(open_graph(str(tmp_path)))
    chosen = options(batch_size=NODES, shuffle=False, root_split=None, by_weight=True)
    if weight is None:
        with pytest.raises(ConfigError, match="edge column 'weight': no relation has it"):
            kind(router, chosen)
        return
    found = kind(router, chosen).sample(0, 0).nodes
    assert found["paper"].node_id[found["paper"].subgraph == 7].tolist() == [7]
    assert found["author"].node_id[found["author"].subgraph == 7].tolist() == [0]
