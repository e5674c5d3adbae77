"""Tests Primphormer: equivariance, independence of the batch's other graphs, tasks, encodings, presets, the penalty, bad inputs, and learning."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphmill.models.gps.options import GPSOptions, PositionOptions
from graphmill.models.options.features import Features
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.network import Primphormer
from graphmill.models.primphormer.options import PrimalOptions, PrimphormerConfig
from tests.packed_graphs import alone, ring, rings
from tests.recipe_options import options_of


def permuted(graphs: Graphs, order: Tensor) -> Graphs:
    place = torch.argsort(order)
    encodings = {name: rows[order] for name, rows in graphs.encodings.items()}
    return replace(graphs, x=graphs.x[order], edge_index=place[graphs.edge_index], encodings=encodings)


def config(local: str = "gated_gcn", kind: str = "none", task: str = "graph", **options) -> PrimphormerConfig:
    defaults = {
        "node": Features(categories=(4, 4)),
        "edge": Features(categories=(3,)) if local == "gated_gcn" else Features(),
        "out_dim": 3,
        "task": task,
        "width": 16,
        "num_layers": 2,
        "num_heads": 2,
        "primal": PrimalOptions(num_virtual=5),
        "layer": GPSOptions(local=local),
        "position": PositionOptions(kind, dim=4, steps=5),
    }
    return PrimphormerConfig(**defaults | options)


def model_of(settings: PrimphormerConfig, seed: int = 0) -> Primphormer:
    torch.manual_seed(seed)
    model = Primphormer(settings).double()
    with torch.no_grad():  # changes the running statistics
        model(rings((6, 5, 9)))
    return model.eval()


LOCAL = pytest.mark.parametrize("local", ["gated_gcn", "gcn", "none"])


@LOCAL
def test_nodes_are_followed_and_graphs_are_invariant(local: str) -> None:
    graphs, order = rings((9,)), torch.randperm(9)
    nodes = model_of(config(local, "random_walk", "node"))
    torch.testing.assert_close(nodes(permuted(graphs, order)), nodes(graphs)[order], rtol=1e-10, atol=1e-11)
    whole = model_of(config(local, "random_walk"))
    torch.testing.assert_close(whole(permuted(graphs, order)), whole(graphs), rtol=1e-10, atol=1e-11)


@LOCAL
def test_a_graph_does_not_see_its_batch_mates(local: str) -> None:
    graphs, model = rings((4, 1, 0, 9, 2)), model_of(config(local, "random_walk"))
    out = model(graphs)
    for b in range(5):
        torch.testing.assert_close(model(alone(graphs, b))[0], out[b], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("virtual_nodes", ["per_layer", "running", "none"])
def test_the_penalty_is_eta_times_the_sum_of_squares_and_trains_the_multiplier(virtual_nodes: str) -> None:
    model = model_of(config(primal=PrimalOptions(num_virtual=5, virtual_nodes=virtual_nodes), eta=0.3))
    graphs = rings((5, 8))
    losses: list[Tensor] = []
    for attention in model.attentions:
        attention.register_forward_hook(lambda module, inputs, out: losses.append(out.loss))
    prediction, penalty = model.forward_with_penalty(graphs)
    assert penalty.item() == pytest.approx(0.3 * sum(loss.item() ** 2 for loss in losses))
    assert len(losses) == 2
    assert torch.equal(prediction, model(graphs))
    penalty.backward()
    assert all(attention.multiplier_S.grad.abs().sum() > 0 for attention in model.attentions)


def test_tasks() -> None:
    graphs = replace(rings((5, 8)), root_index=torch.tensor([7, 0]))
    assert model_of(config())(graphs).shape == (2, 3)
    nodes = model_of(config(task="node"))
    torch.testing.assert_close(nodes(graphs), nodes(replace(graphs, root_index=None))[[7, 0]])
    assert model_of(config(task="link"))(graphs).shape == (13, 16)


ENCODINGS = ("laplacian", "laplacian_linear", "stable_laplacian", "stable_expressive", "random_walk")


@pytest.mark.parametrize("kind", ENCODINGS)
def test_encodings_reach_the_output(kind: str) -> None:
    """Nodes with equal features have different outputs, because their encodings differ. Signs of the encoding are random only in training."""
    # seed=1: with other initial weights, all units of the head may be inactive.
    model = model_of(config("gated_gcn", kind, "node"), seed=1)
    graphs = rings((9,))
    graphs = replace(graphs, x=torch.zeros_like(graphs.x), edge_attr=torch.zeros_like(graphs.edge_attr))
    out = model(graphs)
    assert torch.equal(out, model(graphs))  # signs are not random in eval mode
    without = model_of(config("gated_gcn", "none", "node"), seed=1)(graphs)
    assert torch.isfinite(out).all()
    assert out.std(0).max() > without.std(0).max() * 0.1
    model.train()
    signs = {tuple(model(graphs).flatten().tolist()) for _ in range(8)}
    assert (len(signs) == 1) == (kind not in ("laplacian", "laplacian_linear"))


@pytest.mark.parametrize("kind", ["laplacian_linear", "stable_laplacian", "random_walk"])
def test_stored_encodings_replace_computed_ones(kind: str) -> None:
    settings = config(position=PositionOptions(kind, dim=4, stored="lap"))
    model, graphs = model_of(settings), rings((9,))
    out = model(graphs)
    changed = replace(graphs, encodings={"lap": 2 * graphs.encodings["lap"]})
    assert not torch.allclose(model(changed), out)
    with pytest.raises(ValueError, match=r"encoding 'lap' of at least 4 columns, got \{'lap': 2\}"):
        model(replace(graphs, encodings={"lap": torch.zeros(9, 2)}))


@LOCAL
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sizes", [(), (0,), (1,), (1, 1), (0, 3)])
def test_small_and_empty_batches(local: str, training: bool, sizes: tuple[int, ...]) -> None:
    for kind in ("none", "laplacian", "stable_expressive", "random_walk"):
        model = model_of(config(local, kind)).train(training)
        out, penalty = model.forward_with_penalty(rings(sizes))
        assert out.shape == (len(sizes), 3)
        assert torch.isfinite(out).all()
        (out.sum() + penalty).backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_no_features_at_all() -> None:
    bare = Graphs(torch.tensor([0, 4]), ring(4), node_id=torch.arange(4))
    model = model_of(config("gated_gcn", node=Features(), edge=Features()))
    assert torch.isfinite(model(bare)).all()


def test_large_graphs_without_edge_states() -> None:
    model = Primphormer(options_of("primphormer/products", node=Features(dim=7), width=32))
    graphs = replace(rings((30,)), x=torch.randn(30, 7), edge_attr=None)
    assert model(graphs).shape == (30, 2)


def test_bfloat16_autocast() -> None:
    model = model_of(config(kind="random_walk")).float()
    graphs = rings((5, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, penalty = model.forward_with_penalty(graphs)
    assert penalty.dtype == torch.float32
    torch.testing.assert_close(out.float(), model(graphs), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("local", ["gated_gcn", pytest.param("none", marks=pytest.mark.long)])
def test_it_fits_a_few_graphs(local: str) -> None:
    torch.manual_seed(1)  # with some other seeds, units of the head are inactive and the loss stays at 0.2
    graphs = rings(tuple(range(4, 20)))
    target = torch.randn(16, 1)
    model = Primphormer(
        config(local, "random_walk", out_dim=1, width=32, layer=GPSOptions(local=local, mlp="residual"))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        prediction, penalty = model.forward_with_penalty(graphs)
        loss = (prediction - target).abs().mean()
        optimizer.zero_grad()
        (loss + penalty).backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_dim": 0}, "out_dim: expected at least 1"),
        ({"task": "edge"}, "task: expected one of graph, node, link"),
        ({"local": "gcn", "kind": "stable_laplacian"}, r"set layer\.local to gated_gcn"),
    ],
)
def test_bad_configs(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_bad_positions_and_features() -> None:
    with pytest.raises(ValueError, match="stored encodings have no eigenvalues"):
        PositionOptions("laplacian", stored="lap")
    with pytest.raises(ValueError, match="set normalisation to sym"):
        PositionOptions("stable_laplacian", stored="lap", normalisation="none")
    with pytest.raises(ValueError, match="kind: expected one of none, laplacian"):
        PositionOptions("sine")
    with pytest.raises(ValueError, match="leaves no channel for the features"):
        Primphormer(config(position=PositionOptions("random_walk", 16)))
    with pytest.raises(ValueError, match=r"edge features need layer\.local gated_gcn, gine or gcne, or a local block"):
        Primphormer(config("gcn", edge=Features(categories=(3,))))
    with pytest.raises(ValueError, match="input_dropout acts on numeric features"):
        Primphormer(config(input_dropout=0.1))


def test_softmax_attention_in_its_place_is_the_formula():
    """Softmax attention replaces primal attention. The model is compared, one graph at a time, with a hybrid layer that the test computes itself."""
    model, graphs = model_of(config("gcn", attention="softmax", num_layers=1)), rings((6, 1, 9))
    x_nD, e_ED, position = model.stem(graphs)
    attention, mixed = model.attentions[0].attention, []
    for x in x_nD.split([6, 1, 9]):
        q, k, v = attention.qkv(x).view(len(x), 3, 2, -1).permute(1, 2, 0, 3)
        weight = torch.softmax(q @ k.transpose(1, 2) / q.shape[2] ** 0.5, dim=2)
        mixed.append(attention.out((weight @ v).transpose(0, 1).reshape(len(x), -1)))
    expected = model.readout(model.layers[0](x_nD, e_ED, graphs, torch.cat(mixed), position)[0], graphs)
    prediction, penalty = model.forward_with_penalty(graphs)
    torch.testing.assert_close(prediction, expected)
    assert penalty == 0


@pytest.mark.parametrize("attention", ["softmax", "performer", "none"])
def test_other_attentions_train_and_do_not_see_other_graphs(attention):
    settings = config("gcn", attention=attention)
    model, graphs = model_of(settings), rings((4, 7, 1))
    together = model(graphs)
    for b in range(3):
        torch.testing.assert_close(model(alone(graphs, b))[0], together[b], rtol=1e-9, atol=1e-9)
    model = Primphormer(settings)
    model(graphs).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_nothing_but_message_passing_is_the_layer_without_its_global_part():
    model, graphs = model_of(config("gcn", attention="none", num_layers=1)), rings((4, 7))
    x_nD, _, _ = model.stem(graphs)
    layer = model.layers[0]
    hidden = layer.norm_local(layer.local(x_nD, graphs.adjacency) + x_nD)
    torch.testing.assert_close(model(graphs), model.readout(layer.mlp(hidden), graphs))
    with pytest.raises(ValueError, match=r"there is none; set layer\.local"):
        config("none", attention="none")
