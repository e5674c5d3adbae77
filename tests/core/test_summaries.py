"""The repr of graphs, samplers, loaders, batches and configurations has only a few lines."""

import pytest

import graphmill as gm
from graphmill.core.summaries import changed_options
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("graphs") / "graph")
    gm.ingest(SyntheticGraph(SyntheticOptions(num_nodes=300)), url, gm.IngestOptions(num_partitions=2))
    return gm.open_graph(url)


def test_values_print_in_few_lines(graph):
    sampler = gm.samplers.NeighborSampler(gm.router(graph), gm.samplers.NeighborOptions(fanouts=(3,), batch_size=8))
    with gm.samplers.Loader(sampler) as loader:
        batch = next(iter(loader))
        values = (graph, graph.manifest, graph.partition(0), sampler, loader, sampler.sample(0, 0), batch, gm.config())
        for value in values:
            assert len(repr(value)) < 700, type(value)
            assert len(repr(value).splitlines()) <= 6, type(value)
    assert "300 nodes" in repr(graph)
    assert f"x float32 [{batch.num_nodes}, 100]" in repr(batch).replace("\n  ", " ")
    assert repr(sampler) == f"NeighborSampler({len(sampler)} batches an epoch, fanouts=(3,), batch_size=8)"
    assert repr(loader).startswith("Loader(epoch 0, step 1 of")


def test_a_graph_says_its_sizes(graph):
    assert (graph.num_nodes, graph.num_classes, graph.feature_dim, graph.num_partitions) == (300, 47, 100, 2)
    assert graph.num_edges == sum(partition.num_edges for partition in graph.partitions())


def test_only_changed_options_are_named():
    assert changed_options(gm.samplers.NeighborOptions(fanouts=(3,))) == "fanouts=(3,)"
    assert changed_options(gm.models.GECOConfig(in_dim=3, out_dim=2, width=8)) == "width=8"
