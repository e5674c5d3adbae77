"""Compares PPGT with its formulas, one graph at a time. Also tests equivariance, parameter counts, bad input, and a small training."""

import math
from dataclasses import replace

import pytest
import torch

import graphmill.models.ppgt.network as ppgt
from graphmill.models.options.features import Features
from graphmill.models.ppgt.network import PPGT
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.dropout import DropPath
from graphmill.models.primitives.graphs import Graphs
from tests.recipe_options import options_of

TINY = PPGTConfig(
    out_dim=3,
    node=Features(categories=(7, 3)),
    edge=Features(categories=(4,)),
    num_layers=2,
    width=8,
    num_heads=2,
    walk_steps=3,
    stem_hidden=10,
    edge_width=6,
    head_layers=2,
)
ROOTED = replace(TINY, task="node", readout="class_attention", root_embedding=True, node_masking=0.5, dual_walks=True)


FORMULAS = ("urpe", "unscaled_qk", "stem_init", "head_shape", "edge_query")


def as_released(config):
    """Options that select the formulas of the released code, as its recipe does."""
    recipe, names = options_of("ppgt/arxiv_released"), FORMULAS
    if config.readout == "direct":
        config = replace(config, undirected_walks=True)
    else:
        names = (*FORMULAS, "class_norm", "stem_branch")
    return replace(config, **{name: getattr(recipe, name) for name in names})


def random_graph(num_nodes, num_edges, seed):
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.triu_indices(num_nodes, num_nodes, 1)
    chosen = pairs[:, torch.randperm(pairs.shape[1], generator=generator)[:num_edges]]
    attr = torch.randint(4, (chosen.shape[1], 1), generator=generator)
    x = torch.stack([torch.randint(size, (num_nodes,), generator=generator) for size in (7, 3)], 1)
    return x, torch.cat([chosen, chosen.flip(0)], 1), torch.cat([attr, attr])


def pack(graphs, roots=None):
    sizes = [len(x) for x, _, _ in graphs]
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return Graphs(
        node_ptr=ptr,
        edge_index=torch.cat([edges + first for (_, edges, _), first in zip(graphs, ptr, strict=False)], 1),
        x=torch.cat([x for x, _, _ in graphs]),
        edge_attr=torch.cat([attr for _, _, attr in graphs]),
        root_index=None if roots is None else ptr[:-1] + torch.tensor(roots),
    )


# Five graphs: one with edges, one with a single node, one with an isolated node, one without edges, one with two components.
SHAPES = [(6, 8), (1, 0), (5, 3), (4, 0), (9, 7)]
GRAPHS = [random_graph(*shape, seed) for seed, shape in enumerate(SHAPES)]


def build(config, seed=0):
    """A float64 model. All parameters are random, because some initial values (such as 0) could hide a fault."""
    torch.manual_seed(seed)
    model = PPGT(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def dense_reference(model, graph, root=None):
    """Computes the equations in the docstring of the PPGT module with dense matrices, for one graph."""
    config = model.config
    x_raw, edges, attr = graph
    n = len(x_raw)
    linear = torch.nn.functional.linear
    adjacency = torch.zeros(n, n, dtype=torch.float64)
    adjacency[edges[0], edges[1]] = 1
    if config.undirected_walks:
        adjacency = torch.maximum(adjacency, adjacency.T)
    degree = adjacency.sum(1)

    def powers(matrix):
        walk = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
        out = [walk]
        for _ in range(config.walk_steps - 1):
            out.append(out[-1] @ walk)
        return out

    channels = [torch.eye(n, dtype=torch.float64), *powers(adjacency)]
    if config.dual_walks:
        channels += powers(adjacency.T)
    walks = torch.stack(channels, -1)
    inverse = torch.where(degree > 0, 1 / degree.clamp(min=1), 0.0)
    extra = []
    for place in x_raw[:, x_raw.shape[1] - config.positions :].T:
        extra.append(place[None] - place[:, None])
    extra.append(torch.full((n, n), 1 / n, dtype=torch.float64))
    if config.degree_channels:
        extra += [inverse[:, None].expand(n, n), inverse[None].expand(n, n)]
    raw = torch.cat([walks, torch.stack(extra, -1)], -1)
    code = []
    for c in range(raw.shape[-1]):
        code.append(raw[..., c])
        for s in range(config.spe_scales):
            code += [(2**s * math.pi * raw[..., c]).sin(), (2**s * math.pi * raw[..., c]).cos()]
    stem = model.pair_stem
    gelu = torch.nn.functional.gelu

    def norm(layer, x):
        def rms(t):
            return (t.square().mean(-1, keepdim=True) + 1e-6).sqrt()

        if config.norm == "rms":
            return x / rms(x) * layer.weight
        return x / rms(x) * rms(layer.alpha_D * x + layer.beta_D)

    def ffn(layer, x):
        return layer.out(gelu(layer.hidden(x)))

    p = stem.out(gelu(stem.hidden(torch.stack(code, -1))))
    if stem.edge is not None:
        embedded = torch.zeros_like(p)
        query, key = (edges[0], edges[1]) if config.edge_query == "source" else (edges[1], edges[0])
        embedded[query, key] = stem.edge(attr)
        p = p + embedded
    if config.input_norms:
        p = norm(stem.input_norm, p)
    for layer_norm, layer, branch in zip(stem.ffn_norms, stem.ffns, stem.branches, strict=True):
        grown = ffn(layer, norm(layer_norm, p))
        p = p + (grown * branch[0].scale_D if config.stem_branch else grown)
    p = norm(stem.norm, p)

    nodes = model.node_stem
    x = nodes.features(x_raw) + nodes.walks(walks.diagonal().T)
    if config.node_sizes and config.node_degrees:
        x = x + nodes.degree(degree.log1p()[:, None])
    if config.positions:
        x = x + nodes.position(x_raw[:, -config.positions :])
    elif config.node_sizes:
        x = x + nodes.order(torch.full((n, 1), math.log1p(n), dtype=torch.float64))
    if root is not None and nodes.root_D is not None:
        x = x + nodes.root_D * (torch.arange(n) == root)[:, None]

    if config.input_norms:
        x = norm(model.input_norm, x)
    width, heads = config.width, config.num_heads
    d = width // heads
    scale = 1.0 if config.unscaled_qk else 1 / math.sqrt(d)

    def attend(q, k, v, maps):
        out = []
        for h in range(heads):
            part = slice(h * d, (h + 1) * d)
            score = q[:, part] @ k[:, part].T * scale - k[:, part].square().sum(1) / (2 * math.sqrt(d))
            gate = 1.0
            if maps is not None:
                score = score + maps[..., h]
                if config.urpe != "none":
                    gate = maps[..., heads + h] + (config.urpe == "one_plus_phi")
            out.append((gate * score.softmax(-1)) @ v[:, part])
        return torch.cat(out, 1)

    for layer in model.layers:
        y = norm(layer.norm_1, x)
        q, k, v = layer.attention.qkv(y).split(width, 1)
        x = x + layer.branch_1(layer.attention.out(attend(q, k, v, layer.attention.pair(p)))[None])[0]
        x = x + layer.branch_2(ffn(layer.ffn, norm(layer.norm_2, x))[None])[0]
    if config.readout == "direct":
        x = norm(model.norm, x)
        if config.task == "node":
            return model.head(x if root is None else x[root : root + 1])
        return model.head(x.sum(0, keepdim=True) if config.pool == "sum" else x.mean(0, keepdim=True))
    final = model.class_attention
    token = final.token_D + final.order(torch.tensor([[float(n)]], dtype=torch.float64))
    if config.class_norm == "before":
        x = norm(final.node_norm, x)
    for layer in final.layers:
        y = norm(layer.norm_1, x) if config.class_norm == "each" else x
        k, v = layer.kv(y).split(width, 1)
        q = linear(norm(layer.norm_1, token), layer.q.weight, layer.q.bias)
        token = token + layer.branch_1(layer.out(attend(q, k, v, None))[None])[0]
        token = token + layer.branch_2(ffn(layer.ffn, norm(layer.norm_2, token))[None])[0]
    return model.head(norm(final.norm, token))


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(TINY, urpe="none", pool="mean", degree_channels=False),
        replace(as_released(TINY), layer_scale=0.3, node_sizes=False, stem_layers=0),
        replace(TINY, task="node", spe_scales=0, dual_walks=True),
        ROOTED,
        replace(TINY, norm="rms"),
        replace(TINY, input_norms=True, stem_ratio=3, node_degrees=False),
        as_released(replace(ROOTED, layer_scale=0.3)),
    ],
    ids=["paper", "no urpe", "released", "node", "class attention", "rms", "released base", "released arxiv"],
)
def test_each_graph_of_a_batch_gets_what_the_formulas_say(config):
    model = build(config)
    roots = [0, 0, 4, 2, 5] if config.readout == "class_attention" else None
    got = model(pack(GRAPHS, roots))
    expected = [dense_reference(model, graph, None if roots is None else roots[b]) for b, graph in enumerate(GRAPHS)]
    torch.testing.assert_close(got, torch.cat(expected), rtol=1e-9, atol=1e-10)


def superpixels(graph):
    """Replaces the node features by five numbers. The last two are a position in the image."""
    x, edges, attr = graph
    return torch.rand(len(x), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(len(x))), edges, attr


def test_places_of_superpixels():
    model = build(replace(TINY, node=Features(dim=5), positions=2, edge_query="target"))
    graphs = [one_way(superpixels(graph)) for graph in GRAPHS]
    expected = torch.cat([dense_reference(model, graph) for graph in graphs])
    torch.testing.assert_close(model(pack(graphs)), expected, rtol=1e-9, atol=1e-10)
    # All nodes move by the same vector. Distances of pairs do not change, but the node stem reads the new positions.
    moved = [(x + torch.tensor([0, 0, 0, 0.1, 0.2]), edges, attr) for x, edges, attr in graphs]
    with torch.no_grad():
        model.node_stem.position.weight.zero_()
        model.node_stem.features.linear.weight[:, 3:].zero_()
    torch.testing.assert_close(model(pack(moved)), model(pack(graphs)))


def test_a_norm_that_starts_as_the_identity():
    model = PPGT(replace(TINY, norm="ada_identity"))
    x = torch.randn(4, 8)
    torch.testing.assert_close(model.layers[0].norm_1(x), x)


def one_way(graph):
    """A graph in which two thirds of the edges exist in only one direction, with a self-loop."""
    x, edges, attr = graph
    kept = torch.tensor([(u + 2 * v) % 3 != 0 or u < v for u, v in edges.T.tolist()], dtype=torch.bool)
    return x, torch.cat([edges[:, kept], edges.new_zeros(2, 1)], 1), torch.cat([attr[kept], attr.new_ones(1, 1)])


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        as_released(TINY),
        replace(TINY, edge_query="target"),
        replace(as_released(TINY), undirected_walks=False, dual_walks=True),
    ],
    ids=["paper", "released", "targets ask", "released, dual walks"],
)
def test_directed_graphs(config):
    """In the released code, walks and degrees use each edge in both directions, except for dual walks. The features of an edge are at (target, source)."""
    graphs = [one_way(graph) for graph in GRAPHS]
    model = build(config)
    expected = torch.cat([dense_reference(model, graph) for graph in graphs])
    torch.testing.assert_close(model(pack(graphs)), expected, rtol=1e-9, atol=1e-10)


def test_gradients_are_those_of_the_formulas():
    model = build(TINY)
    model(pack(GRAPHS)).square().sum().backward()
    got = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    torch.cat([dense_reference(model, graph) for graph in GRAPHS]).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-8, atol=1e-9, msg=lambda text, n=name: n + text)
        assert parameter.grad.abs().max() > 0, name


def test_blocks_of_the_stem_change_nothing(monkeypatch):
    model = build(TINY)
    whole = model(pack(GRAPHS))
    whole.sum().backward()
    gradient = model.pair_stem.hidden.weight.grad.clone()
    model.zero_grad()
    monkeypatch.setattr(ppgt, "_BLOCK_PAIRS_CPU", 170)
    again = build(replace(TINY, stem_memory=0))
    for fresh in (model, again):
        check_blocks(fresh, whole, gradient)


def check_blocks(model, whole, gradient):
    parts = model(pack(GRAPHS))
    parts.sum().backward()
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(model.pair_stem.hidden.weight.grad, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("config", [replace(TINY, task="node"), ROOTED], ids=["nodes", "class attention"])
def test_renumbering_the_nodes_renumbers_the_outputs(config):
    model = build(config)
    x, edges, attr = GRAPHS[4]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    place = order.argsort()
    moved = (x[order], place[edges], attr)
    if config.readout == "class_attention":
        got, expected = model(pack([moved], [int(place[3])])), model(pack([GRAPHS[4]], [3]))
    else:
        got, expected = model(pack([moved])), model(pack([GRAPHS[4]]))[order]
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_batch_mates_and_padding_change_nothing():
    model = build(TINY)
    together = model(pack(GRAPHS))
    for b, graph in enumerate(GRAPHS):
        torch.testing.assert_close(model(pack([graph]))[0], together[b], rtol=1e-11, atol=1e-12)
    wide = model(replace(pack(GRAPHS), max_nodes=15))
    torch.testing.assert_close(wide, together, rtol=1e-11, atol=1e-12)


def test_one_walk_more_than_k_is_kept_and_directions_matter():
    assert PPGTConfig(out_dim=1).walk_channels == 25
    assert replace(TINY, walk_steps=5, dual_walks=True).walk_channels == 11
    model = build(replace(TINY, task="node", edge=Features()))
    x, edges, _ = random_graph(5, 6, 1)
    one_way = edges[:, : edges.shape[1] // 2]
    forward = Graphs(node_ptr=torch.tensor([0, 5]), edge_index=one_way, x=x)
    assert (model(forward) - model(replace(forward, edge_index=one_way.flip(0)))).abs().max() > 1e-3


def test_roots_and_links():
    model = build(replace(TINY, task="node"))
    batch = pack(GRAPHS, [0, 0, 4, 2, 5])
    torch.testing.assert_close(model(batch), model(pack(GRAPHS))[batch.root_index])
    links = build(replace(TINY, task="link"))(batch)
    assert links.shape == (batch.num_nodes, TINY.width)


def test_training_masks_nodes_drops_graphs_and_repeats_with_the_seed():
    config = replace(ROOTED, drop_path=0.3, attention_dropout=0.2, head_dropout=0.2, dropout=0.1)
    model = build(config).train()
    batch = pack(GRAPHS, [0, 0, 4, 2, 5])

    def run(seed):
        torch.manual_seed(seed)
        model.zero_grad()
        out = model(batch)
        out.sum().backward()
        return out.detach(), model.pair_stem.hidden.weight.grad.clone()

    first, again, other = run(1), run(1), run(2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_a_stem_that_drops_graphs_has_the_same_gradients_computed_again():
    config = as_released(replace(ROOTED, layer_scale=0.3, drop_path=0.5))
    batch, gradients = pack(GRAPHS, [0, 0, 4, 2, 5]), []
    for memory in (1 << 29, 0):
        model = build(replace(config, stem_memory=memory)).train()
        torch.manual_seed(3)
        model(batch).square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-10, atol=1e-12)


def test_masked_nodes_keep_their_positions():
    stem = build(replace(ROOTED, node_masking=0.9)).node_stem.train()
    batch = pack(GRAPHS, [0, 0, 4, 2, 5])
    walks = ppgt.random_walk_probabilities(batch, 4, reverse=True, dtype=torch.float64)
    torch.manual_seed(0)
    masked = batch.padding.unpad(stem(walks, batch))
    whole = batch.padding.unpad(stem.eval()(walks, batch))
    bare = whole - stem.features(batch.x)
    same, empty = (masked - whole).abs().amax(1) < 1e-12, (masked - bare).abs().amax(1) < 1e-12
    assert (same | empty).all()
    assert empty.sum() > same.sum() > 0


def test_drop_path_keeps_the_mean_and_falls_on_whole_graphs():
    drop = DropPath(0.25).train()
    torch.manual_seed(0)
    out = drop(torch.ones(20_000, 2, 3))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert (out.amax((1, 2)) == out.amin((1, 2))).all()
    assert abs(out.mean() - 1) < 0.02


def test_empty_batches_and_empty_graphs():
    nothing = (torch.zeros(0, 2, dtype=torch.long), torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, 1).long())
    for config in (TINY, replace(TINY, task="node"), replace(TINY, urpe="none")):
        model = build(config)
        out = model(pack([nothing]))
        assert out.shape == ((1 if config.task == "graph" else 0), 3)
        none = Graphs(node_ptr=torch.zeros(1).long(), edge_index=nothing[1], x=nothing[0], edge_attr=nothing[2])
        assert model(none).shape == (0, 3)
    model = build(replace(TINY, readout="class_attention"))
    both = model(pack([nothing, GRAPHS[0]]))
    torch.testing.assert_close(both[1:], model(pack([GRAPHS[0]])))
    torch.testing.assert_close(both[:1], model(pack([nothing])))
    both.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_dim": 0}, "out_dim: expected at least 1"),
        ({"task": "edge"}, "task: expected one of"),
        ({"head_layers": 5}, "cannot be halved"),
        ({"task": "link", "readout": "class_attention"}, "class attention has no states"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **options)


def test_bad_batches():
    batch = pack(GRAPHS)
    with pytest.raises(ValueError, match="expects edge features"):
        PPGT(TINY)(replace(batch, edge_attr=None))
    for roots, got in ((None, "none"), (torch.tensor([0]), "1"), (torch.arange(5), "5")):
        with pytest.raises(ValueError, match=f"one root per graph.*5 graphs, got {got} roots"):
            PPGT(ROOTED)(replace(batch, root_index=roots))


def test_half_precision_is_close():
    torch.manual_seed(0)
    model = PPGT(TINY).eval()
    exact = model(pack(GRAPHS))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(pack(GRAPHS))
        half.float().sum().backward()
    torch.testing.assert_close(half.float(), exact, rtol=0.1, atol=0.05)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_learns_whether_a_cycle_is_one_or_two():
    """A ring of six nodes and two rings of three nodes have the same degrees. Random walks distinguish them."""

    def cycles(*lengths):
        edges, first = [], 0
        for length in lengths:
            ring = torch.arange(length)
            edges.append(torch.stack([ring, (ring + 1) % length]) + first)
            first += length
        one_way = torch.cat(edges, 1)
        return torch.zeros(first, 2).long(), torch.cat([one_way, one_way.flip(0)], 1), torch.zeros(2 * first, 1).long()

    batch = pack([cycles(6), cycles(3, 3), cycles(8), cycles(4, 4)])
    target = torch.tensor([0.0, 1.0, 0.0, 1.0])
    torch.manual_seed(0)
    model = PPGT(replace(TINY, out_dim=1, drop_path=0.05))
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3, weight_decay=1e-5)
    for _ in range(60):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
