"""Tests that batches become graphs with the right edge direction, roots and subgraphs."""

import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from graphmill.cluster.tasks import StepOutput
from graphmill.jobs.tasks.model_inputs import (
    GECOClassifier,
    KeptEdges,
    NodeBatchGraphs,
    OverGraphs,
    graph_batch_graphs,
    node_batch_graphs,
    typed_batch_graphs,
    with_penalty,
)
from graphmill.models.geco.network import NodeGECO
from graphmill.models.geco.options import GECOConfig
from graphmill.models.message_passing.network import MessagePassing
from graphmill.models.message_passing.options import GCNConfig
from graphmill.models.primitives.propagation import Adjacency
from graphmill.models.relational.network import RSAGE, OverTypes
from graphmill.models.relational.options import RelationalConfig, RSAGEConfig
from graphmill.samplers.access.typed_router import typed_router
from graphmill.samplers.batches.minibatch import MiniBatch, to_torch
from graphmill.samplers.batches.typed_batch import typed_to_torch
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.graph_batches import GraphBatchSampler, graphs_to_torch
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import GraphBatchOptions, TypedNeighborOptions
from tests.array_graph_store import ArrayGraphStore
from tests.memory_graph import random_typed_graph


def minibatch(graph_ptr=None) -> MiniBatch:
    # In-edges: 0 ← 1, 1 ← 0 and 2, 2 ← none | 3 ← 4, 4 ← none.
    return MiniBatch(
        epoch=3,
        index=7,
        node_id=np.array([10, 11, 12, 20, 21]),
        indptr=np.array([0, 1, 3, 3, 4, 4]),
        indices=np.array([1, 0, 2, 4], np.int32),
        root_index=np.array([0, 3]),
        feature=np.arange(10, dtype=np.float32).reshape(5, 2),
        label=np.array([1, 0, 0, 2, 0]),
        graph_ptr=graph_ptr,
    )


def test_edges_point_from_source_to_destination():
    graphs = node_batch_graphs(to_torch(minibatch()))
    assert graphs.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [4, 3]]
    assert graphs.num_graphs == 1
    assert graphs.size_B.tolist() == [5]
    assert graphs.root_index.tolist() == [0, 3]
    assert graphs.node_id.tolist() == [10, 11, 12, 20, 21]
    assert graphs.padding.num_places == 5


@pytest.mark.parametrize("graph_ptr", [None, np.array([0, 3, 5])])
@pytest.mark.parametrize("is_corrected", [False, True])
def test_in_edges_in_their_lists_are_the_same_graph_as_edges_in_any_order(graph_ptr, is_corrected):
    corrected = {"edge_coefficient": np.arange(1.0, 5.0, dtype=np.float32), "degree": np.array([4, 8, 0, 2, 1])}
    feature = np.arange(8, dtype=np.float32).reshape(4, 2)
    batch = replace(minibatch(graph_ptr), edge_feature=feature, **(corrected if is_corrected else {}))
    graphs = node_batch_graphs(to_torch(batch))
    order = torch.tensor([2, 0, 3, 1])
    rows = {
        name: value[order] for name in ("edge_attr", "edge_coefficient") if (value := getattr(graphs, name)) is not None
    }
    mixed = replace(graphs, edge_index=graphs.edge_index[:, order], **rows)
    assert graphs.by_destination.is_sorted
    assert not mixed.by_destination.is_sorted
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    for transposed in (False, True):
        torch.testing.assert_close(
            graphs.adjacency.multiply(x, "mean", transposed), mixed.adjacency.multiply(x, "mean", transposed)
        )
    turned = replace(graphs, edge_index=graphs.edge_index.flip(0), degree=None)
    whole = replace(graphs, degree=None)
    torch.testing.assert_close(
        turned.adjacency.multiply(x, "sum", False), whole.adjacency.multiply(x, "sum", True), rtol=1e-6, atol=1e-6
    )
    assert torch.equal(graphs.adjacency.edge_feature, graphs.edge_attr)
    assert torch.equal(
        mixed.adjacency.by_destination.sum(mixed.adjacency.edge_feature),
        graphs.adjacency.by_destination.sum(graphs.edge_attr),
    )


def test_edges_that_come_again_are_made_once():
    made = []

    def make(batch):
        made.append(batch)
        return len(made)

    first, other = to_torch(minibatch()), to_torch(replace(minibatch(), indices=np.array([1, 0, 1, 4], np.int32)))
    again = to_torch(replace(minibatch(), epoch=4, root_index=np.array([1])))
    weighed = to_torch(replace(minibatch(), edge_coefficient=np.ones(4, np.float32), degree=np.ones(5, np.int64)))
    subgraphs = to_torch(minibatch(np.array([0, 3, 5])))
    featured = to_torch(replace(minibatch(), edge_feature=np.ones((4, 1), np.float32)))
    kept = KeptEdges(make)
    # After the first batch nothing is kept yet, because the edges of minibatches seldom repeat.
    assert [kept(batch) for batch in (first, again, first, again)] == [1, 2, 2, 2]
    assert [kept(batch) for batch in (other, first, weighed, first, subgraphs, first, featured)] == [
        3,
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    assert [kept(batch) for batch in (featured, featured)] == [10, 10]


@pytest.mark.parametrize("name", ["graphs", "geco"])
def test_kept_edges_are_those_of_the_batch(name):
    """Batches come from two graphs in turn, with other rows and roots each time.

    The results equal the results of a new reader or model, which has seen no earlier batch.
    """
    torch.manual_seed(0)
    model = GECOClassifier(GECOConfig(in_dim=2, out_dim=3, width=8, num_layers=1)).eval()
    fresh = deepcopy(model)

    def heard(graphs):
        return graphs.adjacency.propagate(graphs.x)[graphs.root_index], graphs.node_id

    graphs_of = NodeBatchGraphs()
    for epoch, graph in enumerate("AABBAABA"):
        batch = to_torch(
            replace(
                minibatch(),
                epoch=epoch,
                indices=np.array([1, 0, 2, 4] if graph == "A" else [3, 0, 4, 2], np.int32),
                root_index=np.array([epoch % 5, 1]),
                node_id=np.arange(5) + epoch,
                feature=np.random.default_rng(epoch).random((5, 2), np.float32),
            )
        )
        if name == "geco":
            assert torch.equal(model(batch), deepcopy(fresh)(batch))
        else:
            for found, expected in zip(heard(graphs_of(batch)), heard(node_batch_graphs(batch)), strict=True):
                assert torch.equal(found, expected)


def test_what_is_known_of_a_whole_graph_stays_known():
    graphs_of, batch = NodeBatchGraphs(), to_torch(minibatch())
    seen = [graphs_of(replace(batch, epoch=epoch)).adjacency for epoch in range(4)]
    assert [one is seen[1] for one in seen] == [False, True, True, True]


@pytest.mark.parametrize("name", ["gcn", "geco"])
def test_a_copy_of_a_model_has_its_weights_and_nothing_of_its_batches(name):
    batch = to_torch(minibatch())
    if name == "geco":
        model = GECOClassifier(GECOConfig(in_dim=2, out_dim=3, width=8, num_layers=1)).eval()
    else:
        model = OverGraphs(MessagePassing(GCNConfig(in_dim=2, out_dim=3, width=8)), NodeBatchGraphs()).eval()
    size = len(pickle.dumps(model))
    expected = [model(batch) for _ in range(3)][-1]
    assert len(pickle.dumps(model)) == size
    predicted = deepcopy(model)(batch)
    if name == "gcn":
        predicted, expected = predicted.prediction, expected.prediction
    assert torch.equal(predicted, expected)


def test_corrected_sums_reach_the_models():
    """Coefficients are used only together with degrees. GraphSAINT's batches have no degrees."""
    plain = to_torch(minibatch())
    coefficient, degree = torch.tensor([2.0, 1.0, 3.0, 0.5]), torch.tensor([4, 8, 0, 2, 1])
    batch = replace(plain, edge_coefficient=coefficient, degree=degree)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([2 * x[1] / 4, (x[0] + 3 * x[2]) / 8, torch.zeros(3), 0.5 * x[4] / 2, torch.zeros(3)])
    graphs = node_batch_graphs(batch)
    torch.testing.assert_close(graphs.adjacency.propagate(x, "mean"), expected)
    grad = torch.autograd.grad(graphs.adjacency.propagate(x.requires_grad_(), "sum").sum(), x)[0]
    torch.testing.assert_close(grad[:, 0], torch.tensor([1.0, 2.0, 3.0, 0.0, 0.5]))
    config = GECOConfig(in_dim=2, out_dim=3, width=8, num_layers=1)
    model = GECOClassifier(config).eval()
    adjacency = Adjacency(batch.indptr, batch.indices, coefficient, degree=degree)
    logits = model.model(batch.x, adjacency, node_id_N=batch.node_id, epoch=3)
    assert torch.equal(model(batch), logits[batch.root_index])
    assert not torch.equal(model(batch), model(plain))
    assert torch.equal(model(replace(plain, edge_coefficient=coefficient)), model(plain))


def test_subgraphs_are_graphs():
    batch = to_torch(minibatch(np.array([0, 3, 5])))
    graphs = node_batch_graphs(batch)
    assert graphs.size_B.tolist() == [3, 2]
    # In-edges of the first subgraph: 0 ← 1, 1 ← 0 and 2; of the second: 0 ← 1. In models A_ij stands for i → j.
    expected = torch.zeros(2, 3, 3, dtype=torch.bool)
    expected[[0, 0, 0, 1], [1, 0, 2, 1], [0, 1, 1, 0]] = True
    assert torch.equal(graphs.padding.adjacency(torch.bool), expected)
    padded = torch.zeros(2, 3, 2)
    padded[0], padded[1, :2] = batch.x[:3], batch.x[3:]
    assert torch.equal(graphs.padding.pad(graphs.x), padded)


def test_whole_graphs_keep_their_features_and_edges():
    edge_index = np.array([[0, 1, 0], [1, 0, 0]], np.int32)
    store = ArrayGraphStore(
        np.array([0, 2, 3]),
        np.array([0, 2, 3]),
        edge_index,
        np.arange(3, dtype=np.uint8)[:, None],
        np.arange(3, dtype=np.uint8)[:, None],
        np.array([[1.0], [2.0]], np.float32),
    )
    sampler = GraphBatchSampler(store, GraphBatchOptions(max_graphs=2, shuffle=False, bucket_ratio=10))
    batch = graphs_to_torch(sampler.sample(0, 0))
    graphs = graph_batch_graphs(batch)
    assert graphs.size_B.tolist() == [1, 2]
    assert graphs.edge_index.dtype == torch.int64
    assert graphs.edge_index.T.tolist() == [[0, 0], [1, 2], [2, 1]]
    assert graphs.x[:, 0].tolist() == [2, 0, 1]
    assert graphs.edge_attr[:, 0].tolist() == [2, 0, 1]


class Penalised(nn.Module):
    def forward(self, graphs, *, epoch):
        return graphs.x.sum(1, keepdim=True) + epoch

    def forward_with_penalty(self, graphs, *, epoch):
        return self(graphs, epoch=epoch), torch.tensor(2.0)


def test_the_penalty_is_for_training_only():
    batch = to_torch(minibatch())
    model = OverGraphs(Penalised(), node_batch_graphs, with_penalty)
    trained = model(batch)
    assert isinstance(trained, StepOutput)
    assert float(trained.penalty) == 2.0
    assert float(trained.prediction[0]) == 1.0 + 3  # 3 is the epoch of the batch
    assert model.eval()(batch).penalty is None
    assert OverGraphs(Penalised(), node_batch_graphs)(batch).penalty is None


def test_typed_batches_train_r_sage_and_geco_behind_relational_layers():
    """At full fan-out R-SAGE's predictions do not depend on the batch.

    The features are functions of the node ids, and both models learn whether an id is large.
    """
    graph = random_typed_graph()
    half = np.median(graph.tables["paper"].ids)
    dims = {name: table.feature_dim for name, table in graph.tables.items()}
    sampler = NeighborSampler(typed_router(graph), TypedNeighborOptions(fanouts=(-1, -1), batch_size=20))
    config = RSAGEConfig(dims, graph.relations, width=16, dropout=0.0, out_dim=5)
    torch.manual_seed(0)
    geco = NodeGECO(GECOConfig(in_dim=16, out_dim=5, width=16, num_layers=1))
    layers = RelationalConfig(dims, graph.relations, width=16, num_layers=1, dropout=0.0)
    for model in (RSAGE(config), OverTypes(layers, geco)):
        model.layers.input["type paper"].weight.data.mul_(0.01)  # papers' features are as large as ids
        optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
        with Loader(sampler, collate=typed_to_torch) as loader:
            for _ in range(15):
                for batch in loader:
                    target = (batch.predicted_id > half).long()
                    loss = nn.functional.cross_entropy(model(typed_batch_graphs(batch)), target)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
        assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])
    model = RSAGE(config).double().eval()
    batch = typed_to_torch(sampler.sample(0, 0))
    some = batch.predicted_id[[3, 1]]
    alone = typed_to_torch(sampler.sample_roots(some.numpy()))
    expected = model(typed_batch_graphs(batch))[[3, 1]]
    torch.testing.assert_close(model(typed_batch_graphs(alone)), expected)
