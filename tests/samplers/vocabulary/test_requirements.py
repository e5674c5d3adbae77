"""If a graph does not have what the options need, the constructor of the sampler refuses it, before any request is sent."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.methods.ppr import PprSampler
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.methods.saint import SaintSampler
from graphmill.samplers.vocabulary.options import (
    NeighborOptions,
    Node2SubgraphOptions,
    PprOptions,
    RandomPartitionOptions,
    SaintOptions,
)
from graphmill.samplers.vocabulary.requirements import EdgeUse, directed_lists
from graphmill.storage.format.source import SPLIT_VALID, Relation
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph

NO_OUT_EDGES = "direction '{}' needs lists of out-edges, the graph has none; ingest it with --out-edges"
SAMPLERS = {
    "neighbor": (NeighborSampler, NeighborOptions),
    "node2subgraph": (Node2SubgraphSampler, Node2SubgraphOptions),
    "ppr": (PprSampler, PprOptions),
    "saint": (SaintSampler, SaintOptions),
    "random-partition": (RandomPartitionSampler, RandomPartitionOptions),
}


class NoAnswer:
    """An owner that fails if it gets a request."""

    def submit(self, request):
        raise AssertionError(f"asked: {request}")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    folder, listed, stored = tmp_path_factory.mktemp("checked"), random_listed_graph(60, 400), {}
    full = replace(listed, weight=[1.0] * 400, edge_feature=[[0.5]] * 400, edge_feature_dim=1)
    for name, source, options in (
        ("plain", listed, IngestOptions()),
        ("parts", listed, IngestOptions(num_partitions=2)),
        ("out", full, IngestOptions(num_partitions=2, out_edges=True)),
        ("ids", full, IngestOptions(num_partitions=2, out_edges=True, edge_ids=True)),
        ("symmetric", listed, IngestOptions(undirected=True)),
        ("no-split", replace(listed, split=None), IngestOptions(out_edges=True)),
    ):
        ingest(source, str(folder / name), options)
        stored[name] = open_graph(str(folder / name))
    return stored


def silent(graph) -> Router:
    return Router(graph.manifest, [NoAnswer()] * graph.manifest.num_partitions)


@pytest.mark.parametrize("name", SAMPLERS)
def test_split_sets(name, graphs):
    sampler, options = SAMPLERS[name]
    sampler(silent(graphs["out"]), options(split_set=1))
    for graph, held, split_set in (
        ("out", "one of the graph's 2", 2),
        ("out", "one of the graph's 2", -1),
        ("no-split", "0, the graph has none", 1),
    ):
        with pytest.raises(ConfigError, match=rf"split set: expected {held}, got {split_set}; set --data\.split_set"):
            sampler(silent(graphs[graph]), options(split_set=split_set))


@pytest.mark.parametrize("name", SAMPLERS)
def test_all_nodes_of_a_graph_without_splits_train(name, graphs):
    sampler, options = SAMPLERS[name]
    codes: dict = {"root_splits": (SPLIT_VALID,)} if name == "random-partition" else {"root_split": SPLIT_VALID}
    sampler(silent(graphs["no-split"]), options())
    with pytest.raises(
        ConfigError, match=r"roots: expected training nodes, .* has no splits .*, got the split 2; give the roots"
    ):
        sampler(silent(graphs["no-split"]), options(**codes))
    router = local_router(graphs["no-split"])
    assert sampler(router, options(**codes), 1, np.arange(60)).num_batches >= 1


@pytest.mark.parametrize("direction", ["out", "both"])
@pytest.mark.parametrize("name", ["neighbor", "node2subgraph", "ppr", "saint"])
def test_directions(name, direction, graphs):
    sampler, options = SAMPLERS[name]
    for graph in ("out", "ids", "symmetric"):
        sampler(silent(graphs[graph]), options(direction=direction))
    for graph in ("plain", "parts"):
        sampler(silent(graphs[graph]), options(direction="in"))
        with pytest.raises(ConfigError, match=NO_OUT_EDGES.format(direction)):
            sampler(silent(graphs[graph]), options(direction=direction))


def test_searches_of_no_step_need_no_out_edges(graphs):
    router = local_router(graphs["plain"])
    for sampler in (
        Node2SubgraphSampler(router, Node2SubgraphOptions(max_hops=0, batch_size=5)),
        SaintSampler(router, SaintOptions(walk_length=0, num_walks=5, num_presamples=3)),
    ):
        assert sampler.sample(0, 0).num_nodes > 0


MISSING = {
    "ids of several partitions": ("parts", {"edge_columns": ("id",)}, "edge ids: .* ingest it with --edge-ids"),
    "ids of out-edges": ("no-ids", {"edge_columns": ("id",), "direction": "out"}, "edge ids: .* --edge-ids"),
    "weight column": ("plain", {"edge_columns": ("weight",)}, "the graph has no edge weights; ingest a source"),
    "weight scheme": ("plain", {"scheme": "weight"}, "the graph has no edge weights; ingest a source"),
    "feature column": ("plain", {"edge_columns": ("feature",)}, "the graph has no edge features; ingest a source"),
    "features of out-edges": (
        "ids",
        {"edge_columns": ("feature",), "direction": "both"},
        "they lie beside in-edges only.*; use direction 'in'",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_columns_that_the_graph_lacks(name, graphs, tmp_path):
    graph, options, message = MISSING[name]
    if graph == "no-ids":
        ingest(random_listed_graph(60, 400), str(tmp_path / "graph"), IngestOptions(out_edges=True))
        graphs = {graph: open_graph(str(tmp_path / "graph"))}
    with pytest.raises(ConfigError, match=message):
        NeighborSampler(silent(graphs[graph]), NeighborOptions(**options))


@pytest.mark.parametrize("edges", ["sampled", "induced"])
@pytest.mark.parametrize("direction", ["in", "out", "both"])
@pytest.mark.parametrize("columns", [("id",), ("weight",), ("feature",), ("id", "weight", "feature")])
@pytest.mark.parametrize("graph", ["plain", "parts", "out", "ids", "symmetric"])
def test_what_is_not_refused_at_once_works(graph, columns, direction, edges, graphs):
    """If the constructor accepts the options, sampling works. If it refuses them, the owners would refuse the request too."""
    options = NeighborOptions((2,), 5, edges=edges, direction=direction, edge_columns=columns)
    router = local_router(graphs[graph])
    try:
        sampler = NeighborSampler(router, options)
    except ConfigError:
        unchecked = NeighborSampler(router, NeighborOptions((2,), 5, edges=edges))
        unchecked.options = options
        unchecked._uses = dict.fromkeys(router.edges, EdgeUse("uniform", columns, timed=False, direction=direction))
        with pytest.raises(ConfigError):
            unchecked.sample(0, 0)
    else:
        assert np.isfinite(sampler.sample(0, 0).num_edges)


def test_no_edge_is_listed_twice_if_a_relation_and_its_reverse_store_out_edges():
    """A relation and its reverse are within one type, and each stores the edges of both directions. Still, no edge is listed twice."""
    stored = SimpleNamespace(manifest=SimpleNamespace(num_edges=3, symmetric=False, has_out_edges=True))
    cites = Relation("paper", "cites", "paper")
    pair = SimpleNamespace(edges={cites: stored, cites.reverse: stored}, nodes={})
    for direction in ("out", "both"):
        assert directed_lists(pair, [cites, cites.reverse], direction) == {cites: "in", cites.reverse: "in"}
    assert directed_lists(pair, [cites], "out") == {cites.reverse: "in"}
    alone = SimpleNamespace(edges={cites: stored}, nodes={})
    assert directed_lists(alone, [cites], "both") == {cites: "both"}
