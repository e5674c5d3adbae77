"""Compares local blocks with loops over nodes, and the models that use them with their formulas, all in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from graphmill.models.geco.graphs import Convolutions, GECOGraphs
from graphmill.models.geco.network import GECO
from graphmill.models.geco.options import GECOConfig, GECOGraphsConfig
from graphmill.models.gps.gated_gcn import GatedGCN
from graphmill.models.gps.options import GPSOptions
from graphmill.models.operators.local_blocks import LocalLayer, make_convolution
from graphmill.models.options.features import Features
from graphmill.models.options.filters import FilterConfig
from graphmill.models.options.local import READS_EDGES, LocalOptions
from graphmill.models.ppgt.network import PPGT
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.node_order import node_order
from graphmill.models.primphormer.network import Primphormer
from graphmill.models.primphormer.options import PrimphormerConfig
from graphmill.models.tokengt.network import TokenGT, TokenView
from graphmill.models.tokengt.options import TokenGTConfig
from tests.models.slow_local_blocks import EDGES, SLOW, graphs_of, slow_local, slow_with_edges
from tests.packed_graphs import alone

BLOCKS = list(SLOW)
each_block = pytest.mark.parametrize("block", BLOCKS)


def away_from_the_start(model: nn.Module) -> nn.Module:
    """Changes norms, biases, gates and running statistics. At their initial values they would have no effect, and tests could not see errors."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
        for name, buffer in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(0.2 * torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype))
    return model


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@each_block
def test_a_convolution_is_the_loop_over_nodes(block):
    torch.manual_seed(0)
    layer = away_from_the_start(make_convolution(LocalOptions(block, num_heads=2), 3, 4, hops=2).double())
    x = randn(5, 3)
    torch.testing.assert_close(layer(x, graphs_of(x).adjacency), SLOW[block](layer, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", READS_EDGES)
def test_a_convolution_that_reads_edges_is_the_loop_over_them(block):
    """Edges may have any order. The adjacency of `Graphs` sorts the edges together with their features."""
    torch.manual_seed(0)
    layer = away_from_the_start(make_convolution(LocalOptions(block, num_heads=2), 3, 4, edge_dim=2).double())
    x, e = randn(5, 3), randn(EDGES.shape[1], 2, seed=1)
    expected = slow_with_edges(block, layer, x, e)
    graphs = replace(graphs_of(x), edge_attr=e)
    torch.testing.assert_close(layer(x, graphs.adjacency), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda x, e: layer(x, replace(graphs, edge_attr=e).adjacency), (x.requires_grad_(), e.requires_grad_())
    )
    with pytest.raises(ValueError, match="features of edges must have 2 columns, got none"):
        layer(x, graphs_of(x).adjacency)


@each_block
def test_gradients_of_a_convolution(block):
    torch.manual_seed(0)
    layer = make_convolution(LocalOptions(block, num_heads=2), 3, 4).double()
    x = randn(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, graphs_of(x).adjacency), (x,))


@pytest.mark.parametrize(
    ("block", "edge_dim"), [*((block, 0) for block in BLOCKS), *((block, 2) for block in READS_EDGES)]
)
def test_an_edge_of_weight_w_is_w_parallel_edges(block, edge_dim):
    """Outputs and gradients are compared. An edge of weight 0 has no effect, even if its attention would be high."""
    torch.manual_seed(0)
    layer = away_from_the_start(
        make_convolution(LocalOptions(block, num_heads=2), 3, 4, hops=2, edge_dim=edge_dim).double()
    )
    x, weight = 100 * randn(5, 3), torch.arange(EDGES.shape[1]) % 4
    e = randn(EDGES.shape[1], edge_dim, seed=1) if edge_dim else None

    def graphs(edges: Tensor, rows: Tensor | None, **options) -> Graphs:
        return replace(graphs_of(x, edges), edge_attr=rows, **options)

    parallel = graphs(EDGES.repeat_interleave(weight, 1), None if e is None else e.repeat_interleave(weight, 0))
    weighted = graphs(EDGES, e, edge_coefficient=weight.double())
    results = []
    for each in (weighted, parallel):
        inner = x.clone().requires_grad_()
        out = layer(inner, each.adjacency)
        results.append((out, *torch.autograd.grad(out.square().sum(), [inner, *layer.parameters()], allow_unused=True)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-8)


def test_an_edge_of_gated_gcn_with_states_counts_by_its_weight():
    torch.manual_seed(0)
    layer = away_from_the_start(GatedGCN(4, update_edges=False).double()).eval()
    x, e, weight = randn(5, 4), randn(EDGES.shape[1], 4, seed=1), torch.arange(EDGES.shape[1]) % 4
    parallel = layer(x, e.repeat_interleave(weight, 0), graphs_of(x, EDGES.repeat_interleave(weight, 1)))[0]
    weighted = layer(x, e, replace(graphs_of(x), edge_coefficient=weight.double()))[0]
    torch.testing.assert_close(weighted, parallel, rtol=1e-12, atol=1e-12)


def test_weights_of_gcn_and_sage_are_pyg_s_coefficients():
    """GCNConv computes D̂^-½ (W + I) D̂^-½ X; D̂ is 1 plus the sum of the weights of the in-edges. SAGE computes the weighted mean."""
    x, weight = randn(5, 3), randn(EDGES.shape[1], seed=2).abs()
    adjacency = replace(graphs_of(x), edge_coefficient=weight).adjacency
    w_nn = torch.zeros(5, 5, dtype=torch.float64).index_put((EDGES[1], EDGES[0]), weight, accumulate=True)
    root_n1 = (w_nn.sum(1, keepdim=True) + 1).rsqrt()
    gcn = away_from_the_start(make_convolution(LocalOptions("gcn"), 3, 4).double())
    expected = root_n1 * ((w_nn + torch.eye(5)) @ (root_n1 * gcn.linear(x))) + gcn.bias
    torch.testing.assert_close(gcn(x, adjacency), expected, rtol=1e-12, atol=1e-12)
    sage = away_from_the_start(make_convolution(LocalOptions("sage"), 3, 4).double())
    mean_nF = torch.nan_to_num(w_nn / w_nn.sum(1, keepdim=True)) @ x
    torch.testing.assert_close(sage(x, adjacency), sage.own(x) + sage.neighbors(mean_nF), rtol=1e-12, atol=1e-12)


def test_a_weighted_gcn_is_pyg_s_gcn_conv():
    nn_of_pyg = pytest.importorskip("torch_geometric.nn")
    x, weight = randn(5, 3), randn(EDGES.shape[1], seed=2).abs()
    ours, theirs = make_convolution(LocalOptions("gcn"), 3, 4).double(), nn_of_pyg.GCNConv(3, 4).double()
    theirs.load_state_dict({"lin.weight": ours.linear.weight, "bias": ours.bias})
    # PyG uses the weight of an existing self-loop and does not add one of weight 1. So this graph has no self-loops.
    plain = EDGES[0] != EDGES[1]
    graphs = replace(graphs_of(x, EDGES[:, plain]), edge_coefficient=weight[plain])
    torch.testing.assert_close(
        ours(x, graphs.adjacency), theirs(x, EDGES[:, plain], weight[plain]), rtol=1e-12, atol=1e-12
    )


@each_block
def test_no_edges(block):
    x = torch.randn(4, 3)
    layer = make_convolution(LocalOptions(block), 3, 4)
    assert torch.isfinite(layer(x, graphs_of(x, torch.zeros(2, 0, dtype=torch.long)).adjacency)).all()


@each_block
@pytest.mark.parametrize("residual", ["none", "identity", "linear"])
@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_a_local_layer_is_its_formula(block, residual, norm):
    options = LocalOptions(block, "gate", residual, norm, dropout=0.5, num_heads=2)
    layer = away_from_the_start(LocalLayer(options, 4, 4).double()).eval()
    x = randn(5, 4)
    torch.testing.assert_close(layer(x, graphs_of(x).adjacency), slow_local(layer, block, x), rtol=1e-12, atol=1e-12)


@each_block
def test_a_local_layer_follows_the_order_of_the_nodes(block):
    layer = LocalLayer(LocalOptions(block, residual="linear", num_heads=2), 3, 4).double()
    x, order = randn(5, 3), torch.tensor([3, 0, 4, 1, 2])
    place = torch.argsort(order)
    moved = layer(x[order], graphs_of(x, place[EDGES]).adjacency)
    torch.testing.assert_close(moved, layer(x, graphs_of(x).adjacency)[order], rtol=1e-12, atol=1e-12)


def geco(**options) -> GECO:
    torch.manual_seed(0)
    filters = FilterConfig(bands=2, inner_width=4, num_inner_layers=1)
    values = {"in_dim": 3, "out_dim": 2, "width": 4, "num_layers": 2, "filter": filters, "seed": 5} | options
    return away_from_the_start(GECO(GECOConfig(**values)).double()).eval()


def dense_gcb(block: nn.Module, h: Tensor, order: Tensor) -> Tensor:
    """Computes the global convolution block (GCB) with circulant matrices over all nodes, in the order π."""
    num, num_filters = len(h), block.filter.num_filters
    t = torch.arange(num)
    parts = block.projection(h)[order].chunk(num_filters + 1, dim=1)
    filters, v = block.filter(num), parts[-1]
    for i in range(num_filters):
        mixed = torch.stack([filters[i, d][(t[:, None] - t[None, :]) % num] @ v[:, d] for d in range(v.shape[1])], 1)
        v = parts[i] * (mixed if block.skip_KD is None else mixed + block.skip_KD[i] * v)
    return v[torch.argsort(order)]


def dense_serial(layer: nn.Module, block: str, x: Tensor, order: Tensor) -> Tensor:
    """The post-norm layer of the paper, with the linear path that bypasses the gates."""
    near = (
        torch.stack([x[EDGES[0][EDGES[1] == n]].mean(0) if (EDGES[1] == n).any() else 0 * x[0] for n in range(len(x))])
        if block == "lcb"
        else SLOW[block](layer.local.convolution, x)
    )
    h = torch.cat([x, near], 1)
    mixed = dense_gcb(layer.glob, h, order)
    if layer.past_gates is not None:
        mixed = mixed + layer.past_gates(h)
    x = layer.norm_1(mixed + x)
    return layer.norm_2(layer.ffn.w2(nn.functional.gelu(layer.ffn.w1(x))) + x)


@each_block
@pytest.mark.parametrize("norm", ["layer", "batch", "none"])
@pytest.mark.parametrize("residual", ["none", "linear"])
def test_serial_geco_is_the_dense_form(block, norm, residual):
    model = geco(local=LocalOptions(block, "serial", residual, norm, num_heads=2))
    x, ids = randn(5, 3), torch.tensor([40, 3, 17, 8, 25])
    order = node_order(ids, 5)
    h = nn.functional.gelu(model.encoder(x))
    for layer in model.layers:
        h = dense_serial(layer, block, h, order)
    got = model(x, graphs_of(x).adjacency, node_id_N=ids)
    torch.testing.assert_close(got, model.head(h), rtol=1e-10, atol=1e-10)


@each_block
@pytest.mark.parametrize("in_dim", [3, 4])  # with 4 (the width), the first layer's GCB reads features too
def test_gated_geco_is_the_dense_form(block, in_dim):
    model = geco(in_dim=in_dim, local=LocalOptions(block, "gate", "linear", "batch", num_heads=2), skip=True)
    x, ids = randn(5, in_dim), torch.tensor([40, 3, 17, 8, 25])
    order, h = node_order(ids, 5), x
    for index, layer in enumerate(model.layers):
        local = slow_local(layer.local, block, h)
        read = torch.cat([h, local], 1) if index or in_dim == 4 else local
        h = local + layer.gate.scale_D * dense_gcb(layer.glob, read, order)
    got = model(x, graphs_of(x).adjacency, node_id_N=ids)
    torch.testing.assert_close(got, model.head(h), rtol=1e-10, atol=1e-10)


@each_block
def test_geco_on_top_is_the_dense_form(block):
    model = geco(local=LocalOptions(block, "top", "identity", "layer", num_heads=2, top_layers=2))
    assert len(model.layers) == 4
    x, ids = randn(5, 3), torch.tensor([40, 3, 17, 8, 25])
    order, h = node_order(ids, 5), x
    for layer in model.layers[:2]:
        h = slow_local(layer.local, block, h)
    for layer in model.layers[2:]:
        h = dense_serial(layer, "lcb", h, order)
    got = model(x, graphs_of(x).adjacency, node_id_N=ids)
    torch.testing.assert_close(got, model.head(h), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("join", ["serial", "gate", "top"])
def test_geco_follows_the_rows_however_the_batch_is_ordered(join):
    model = geco(local=LocalOptions("gcn", join, "linear", "layer"))
    x, ids, order = randn(5, 3), torch.tensor([40, 3, 17, 8, 25]), torch.tensor([3, 0, 4, 1, 2])
    moved = graphs_of(x, torch.argsort(order)[EDGES]).adjacency
    expected = model(x, graphs_of(x).adjacency, node_id_N=ids)[order]
    torch.testing.assert_close(model(x[order], moved, node_id_N=ids[order]), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("join", ["serial", "gate", "top"])
@pytest.mark.parametrize("num_nodes", [0, 1])
def test_no_node_and_one_node(join, num_nodes):
    model = geco(local=LocalOptions("gat", join, "linear", "batch", num_heads=2)).train()
    x = randn(num_nodes, 3)
    out = model(x, graphs_of(x, torch.zeros(2, 0, dtype=torch.long)).adjacency)
    out.sum().backward()
    assert out.shape == (num_nodes, 2)
    assert torch.isfinite(out).all()


def test_the_papers_geco_has_the_parameters_it_had():
    names = {name.removeprefix("layers.0.") for name, _ in geco(num_layers=1).named_parameters()}
    assert {name for name in names if not name.startswith(("glob.filter", "encoder", "head"))} == {
        "glob.projection.weight",
        "glob.projection.bias",
        "ffn.w1.weight",
        "ffn.w2.weight",
        *(f"norm_{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")),
    }


def test_a_gate_near_zero_leaves_the_local_layers():
    local = LocalOptions("gcn", "gate", "linear", "layer", gate_start=1e-9)
    torch.manual_seed(0)
    model = GECO(GECOConfig(in_dim=3, out_dim=2, width=4, num_layers=2, local=local)).double().eval()
    x = randn(5, 3)
    h = x
    for layer in model.layers:
        h = layer.local(h, graphs_of(x).adjacency)
    out = model(x, graphs_of(x).adjacency)
    torch.testing.assert_close(out, model.head(h), rtol=1e-6, atol=1e-6)
    out.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    assert model.layers[1].gate.scale_D.grad.abs().min() > 0


# Below: models over packed graphs.


def two_graphs() -> Graphs:
    second = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]) + 5
    return Graphs(torch.tensor([0, 5, 8]), torch.cat([EDGES, second], 1), x=randn(8, 3), node_id=torch.arange(8))


def other(name: str, local: LocalOptions, **options) -> nn.Module:
    torch.manual_seed(0)
    node = Features(dim=3)
    if name == "primphormer":
        config = PrimphormerConfig(
            node=node,
            width=4,
            num_layers=2,
            num_heads=2,
            task="node",
            local=local,
            layer=GPSOptions(local="none"),
            **options,
        )
        model: nn.Module = Primphormer(config)
    elif name == "geco-graphs":
        model = GECOGraphs(
            GECOGraphsConfig(
                node=node,
                width=8,
                num_layers=2,
                head="graphgym",
                task="node",
                local=local,
                layer=GPSOptions(local="none"),
                filter=FilterConfig(inner_width=8),
                skip=True,
                **options,
            )
        )
    elif name == "ppgt":
        model = PPGT(
            PPGTConfig(
                node=node, width=4, num_layers=2, num_heads=2, task="node", local=local, walk_steps=2, head_layers=1
            )
        )
    else:
        config = TokenGTConfig(
            node=node,
            width=8,
            num_layers=2,
            num_heads=2,
            task="node",
            local=local,
            identifier="none",
            attention=name,
            init_std=0.3,
        )
        model = TokenGT(config)
    return away_from_the_start(model.double()).eval()


OTHERS = ["primphormer", "ppgt", "softmax", "performer"]


@pytest.mark.parametrize("name", [*OTHERS, "geco-graphs"])  # GECO orders nodes by ids
@pytest.mark.parametrize("join", ["gate", "top"])
def test_a_graph_does_not_see_its_batch_mates(name, join):
    model, graphs = other(name, LocalOptions("sage", join, "linear", "batch")), two_graphs()  # in eval mode
    together = model(graphs)
    parts = [model(alone(graphs, b)) for b in range(2)]
    torch.testing.assert_close(together, torch.cat(parts), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("join", ["gate", "top"])
def test_the_other_models_follow_the_order_of_the_nodes(name, join):
    model = other(name, LocalOptions("gcn", join, "linear", "layer"))
    graphs, order = alone(two_graphs(), 0), torch.tensor([3, 0, 4, 1, 2])
    assert graphs.x is not None
    moved = Graphs(graphs.node_ptr, torch.argsort(order)[graphs.edge_index], x=graphs.x[order])
    torch.testing.assert_close(model(moved), model(graphs)[order], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["geco", "geco-graphs", "primphormer", "softmax", "performer"])
@pytest.mark.parametrize("top_layers", [0, 1])
def test_without_global_layers_no_node_hears_one_that_it_is_not_joined_to(name, top_layers):
    local = LocalOptions("gcn", "top", "linear", "layer", top_layers=top_layers)
    model = geco(local=local) if name == "geco" else other(name, local)
    x = randn(5, 3)  # node 4 is isolated
    changed = x.clone()
    changed[4] += 1
    before, after = (
        model(rows, graphs_of(rows).adjacency) if name == "geco" else model(graphs_of(rows)) for rows in (x, changed)
    )
    assert torch.equal(before[:4], after[:4]) == (top_layers == 0)


def slow_hybrid(model: nn.Module, block: str, graphs: Graphs) -> Tensor:
    """Slow version of a Primphormer or GECOGraphs whose local block is joined by a gate or on top."""
    h, e, _ = model.stem(graphs)

    def mixed(index: int) -> Tensor:
        if isinstance(model, Primphormer):
            return model.attentions[index](h, graphs).x_nD
        return model.operators[index](h, graphs, Convolutions(graphs), None)

    for index, layer in enumerate(model.local.layers):
        h = slow_local(layer, block, h, e=e)
        if model.local.gates:
            h = h + model.local.gates[index].scale_D * mixed(index)
    for index, layer in enumerate(model.layers):
        h = layer(h, None, graphs, mixed(index))[0]
    return model.readout(h, graphs)


HYBRIDS = {"primphormer": {}, "geco-graphs": {"permutation": "none"}}


@each_block
@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("join", ["gate", "top"])
def test_hybrid_models_with_local_blocks_are_their_formula(name, join, block):
    model = other(name, LocalOptions(block, join, "linear", "layer", num_heads=2), **HYBRIDS[name])
    graphs = alone(two_graphs(), 0)
    torch.testing.assert_close(model(graphs), slow_hybrid(model, block, graphs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("block", READS_EDGES)
@pytest.mark.parametrize(("name", "join"), [("geco-graphs", "gate"), ("primphormer", "top")])
def test_local_blocks_over_graphs_read_the_states_of_edges(name, join, block):
    """Edges may have any order. They have categories, which the stems turn into states."""
    graphs = replace(alone(two_graphs(), 0), edge_attr=torch.tensor([[0], [2], [1], [1], [0], [2]]))
    local = LocalOptions(block, join, "linear", "layer", num_heads=2)
    model = other(name, local, edge=Features(categories=(3,)), **HYBRIDS[name])
    torch.testing.assert_close(model(graphs), slow_hybrid(model, block, graphs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("attention", ["softmax", "performer"])
def test_gated_tokengt_is_its_formula(attention):
    model = other(attention, LocalOptions("gcn", "gate", "linear", "layer"))
    graphs = alone(two_graphs(), 0)
    view = TokenView(graphs, 0)
    tokens = model.embedding(view, model.local)[0]
    slot, n = view.slot_n, graphs.num_nodes
    assert slot.tolist() == list(range(n))
    for index, layer in enumerate(model.layers):
        nodes = slow_local(model.local.layers[index], "gcn", tokens[:n])
        tokens = torch.cat([nodes, tokens[n:]])
        branches = layer(tokens[None], None)[0] - tokens
        tokens = tokens + model.local.gates[index].scale_D * branches
    torch.testing.assert_close(model(graphs), model.head(tokens[:n]), rtol=1e-10, atol=1e-10)


def test_gated_ppgt_is_its_formula():
    model = other("ppgt", LocalOptions("gcn", "gate", "linear", "layer"))
    graphs = alone(two_graphs(), 0)
    seen = []
    for index, layer in enumerate(model.layers):
        layer.register_forward_hook(lambda _, inputs, output, index=index: seen.append((inputs, output)))
    out = model(graphs)
    for index, ((base, _, _), after) in enumerate(seen):
        joined = base + model.local.gates[index].scale_D * (after - base)
        if index + 1 < len(seen):
            torch.testing.assert_close(
                seen[index + 1][0][0][0], slow_local(model.local.layers[index + 1], "gcn", joined[0])
            )
        else:
            torch.testing.assert_close(out, model.head(model.norm(joined[0])), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenGTConfig(local=LocalOptions("gcn", "top", top_layers=0)), "the graph's token hears nodes in"),
        (lambda: PPGTConfig(local=LocalOptions("gcn", "top", top_layers=0)), "set it to at least 1"),
        (lambda: GECOConfig(local=LocalOptions(residual="identity")), "set local.residual to none or linear"),
        (lambda: GECOConfig(local=LocalOptions("gcn", "gate"), jump="sum"), "set jump to last"),
        (lambda: GECOConfig(local=LocalOptions("gcn", "gate"), norm="pre"), "set norm to post"),
        (
            lambda: GECOConfig(width=6, local=LocalOptions("gat", "gate")),
            "width must be a multiple of gat's heads, got 6 and 4",
        ),
        (lambda: PrimphormerConfig(local=LocalOptions("gcn")), "set local.join to gate or top"),
        (lambda: PrimphormerConfig(local=LocalOptions("gcn", "gate")), "set layer.local to none"),
        (lambda: TokenGTConfig(local=LocalOptions("gcn")), "set local.join to gate or top"),
        (lambda: PPGTConfig(local=LocalOptions(norm="batch")), "set local.join to gate or top"),
        (lambda: PPGTConfig(scale_rows=True), "scale_rows acts on numeric features"),
        (lambda: replace(TokenGTConfig(), input_dropout=0.5), "input_dropout acts on numeric features"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
