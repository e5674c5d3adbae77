"""Tests GRIT: published parameter counts, equivariance, independence of the batch's other graphs, bad input, and learning."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from graphmill.models.grit.network import GRIT
from graphmill.models.grit.options import GRITConfig
from graphmill.models.grit.published import as_released
from graphmill.models.options.features import Features, atoms, bonds
from graphmill.models.primitives.graphs import Graphs
from tests.packed_graphs import alone
from tests.recipe_options import MOLECULES

TINY = GRITConfig(
    node=Features(categories=(5,)), edge=Features(categories=(3,)), width=16, num_layers=3, num_heads=4, rrwp_steps=6
)


def random_graphs(sizes: list[int], seed: int = 0, chance: float = 0.4) -> Graphs:
    """Random undirected graphs with five categories of nodes and three categories of edges."""
    generator = torch.Generator().manual_seed(seed)
    sources, destinations, attributes, start = [], [], [], 0
    for n in sizes:
        upper = torch.triu(torch.rand(n, n, generator=generator) < chance, 1).nonzero().t()
        kind = torch.randint(3, (upper.shape[1],), generator=generator)
        sources += [upper[0] + start, upper[1] + start]
        destinations += [upper[1] + start, upper[0] + start]
        attributes += [kind, kind]
        start += n
    return Graphs(
        node_ptr=torch.tensor([0, *sizes]).cumsum(0),
        edge_index=torch.stack([torch.cat(sources), torch.cat(destinations)])
        if sizes
        else torch.zeros(2, 0, dtype=torch.long),
        x=torch.randint(5, (start, 1), generator=generator),
        edge_attr=torch.cat(attributes).unsqueeze(1) if sizes else torch.zeros(0, 1, dtype=torch.long),
    )


def build(config: GRITConfig = TINY, **options) -> GRIT:
    """A float64 model in eval mode. Its norms have the statistics of one training batch."""
    torch.manual_seed(0)
    model = GRIT(replace(config, **options)).double()
    model(random_graphs([6, 9, 4], seed=7))
    return model.eval()


@pytest.mark.parametrize("task", ["graph", "node"])
@pytest.mark.parametrize("released", [False, True])
def test_equivariance(task, released):
    config = replace(TINY, task=task, head="mlp", head_layers=2)
    model = build(as_released(config) if released else config)
    graphs = random_graphs([8], seed=1)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(2))
    place = torch.empty_like(order)
    place[order] = torch.arange(8)
    moved = replace(graphs, edge_index=place[graphs.edge_index], x=graphs.x[order])
    expected = model(graphs) if task == "graph" else model(graphs)[order]
    torch.testing.assert_close(model(moved), expected, rtol=0, atol=1e-12)


def test_a_graph_alone_equals_itself_among_others():
    model = build()
    sizes = [5, 1, 9, 3]
    batch = random_graphs(sizes, seed=3)
    together = model(batch)
    for b, n in enumerate(sizes):
        single = alone(batch, b)
        torch.testing.assert_close(model(single)[0], together[b], rtol=0, atol=1e-12)
        torch.testing.assert_close(model(replace(single, max_nodes=n + 4))[0], together[b], rtol=0, atol=1e-12)


def test_stem_puts_zero_on_absent_pairs_and_walks_start_at_the_query():
    model = build(rrwp_steps=2)
    path = Graphs(
        node_ptr=torch.tensor([0, 3]),
        edge_index=torch.tensor([[0, 1], [1, 2]]),  # a directed path
        x=torch.zeros(3, 1, dtype=torch.long),
        edge_attr=torch.zeros(2, 1, dtype=torch.long),
    )
    states = model.embed(path)[1].states()[0]
    edge = model.relative.weight[:, 1] + model.edge_encoder.embedding.weight[0]
    torch.testing.assert_close(states[0, 1], edge)
    assert not states[1, 0].any()
    assert not states[0, 2].any()
    transposed = build(rrwp_steps=2, transposed_rrwp=True).embed(path)[1].states()[0]
    torch.testing.assert_close(transposed[1, 0], model.relative.weight[:, 1])


def test_scaler_order_matters_and_equals_the_formula():
    layer = build().layers[0]
    h, log_degree = torch.randn(4, 16).double(), torch.rand(4, 1).double()
    stacked = torch.stack([h, h * log_degree], dim=-1)
    torch.testing.assert_close(layer.scale(h, log_degree), (stacked * layer.scaler_1D2).sum(-1))
    after, before = build(), build(degree_scaler="before")
    graphs = random_graphs([7])
    assert not torch.allclose(after(graphs), before(graphs))


def test_roots_of_node_tasks_and_states_of_link_tasks():
    graphs = random_graphs([4, 6])
    model = build(task="node", out_dim=3)
    roots = torch.tensor([7, 1])
    assert model(graphs).shape == (10, 3)
    torch.testing.assert_close(model(replace(graphs, root_index=roots)), model(graphs)[roots])
    assert build(task="link")(graphs).shape == (10, 16)


def test_all_trainable_parameters_receive_gradients():
    model = GRIT(as_released(TINY))
    model(random_graphs([5, 6])).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_edges_without_features_take_one_category():
    model = GRIT(replace(TINY, edge=Features(categories=(1,)))).eval()
    graphs = random_graphs([5])
    ones = model(replace(graphs, edge_attr=torch.zeros(graphs.edge_index.shape[1], 1, dtype=torch.long)))
    torch.testing.assert_close(model(replace(graphs, edge_attr=None)), ones)


def test_a_width_that_cannot_be_halved():
    with pytest.raises(ValueError, match="cannot be halved"):
        GRITConfig(width=16, num_heads=4, head_layers=6)


def cycles(*sizes: int) -> Graphs:
    edges, start = [], 0
    for n in sizes:
        ring = torch.arange(n) + start
        nxt = ring.roll(-1)
        edges += [torch.stack([ring, nxt]), torch.stack([nxt, ring])]
        start += n
    return Graphs(node_ptr=torch.tensor([0, start]), edge_index=torch.cat(edges, dim=1), node_id=torch.arange(start))


def test_tells_a_hexagon_from_two_triangles():
    """Message passing (1-WL) cannot distinguish these two graphs."""
    config = replace(TINY, node=Features(), edge=Features())
    torch.manual_seed(0)
    model = GRIT(config).double().eval()
    assert (model(cycles(6)) - model(cycles(3, 3))).abs() > 1e-4


def test_overfits_a_few_molecule_like_graphs():
    torch.manual_seed(0)
    config = GRITConfig(**MOLECULES, width=32, num_layers=2, num_heads=4, rrwp_steps=8, attention_dropout=0.0)
    graphs = random_graphs([5, 9, 7, 6, 8, 4, 9, 5], seed=5)
    graphs = replace(
        graphs,
        x=graphs.x.expand(-1, len(atoms().categories)) % 2,
        edge_attr=graphs.edge_attr.expand(-1, len(bonds().categories)) % 2,
    )
    target = torch.randn(8, 1)
    model = GRIT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        loss = (model(graphs) - target).abs().mean()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


DIRECTED = Graphs(
    node_ptr=torch.tensor([0, 4, 6]),
    # First graph: a cycle with a chord, a self-loop, and one edge in both directions with two attributes. Second graph: one edge.
    edge_index=torch.tensor([[0, 1, 2, 0, 3, 3, 2, 4], [1, 2, 0, 3, 0, 3, 1, 5]]),
    x=torch.tensor([[0], [1], [2], [3], [4], [0]]),
    edge_attr=torch.tensor([[0], [1], [2], [0], [1], [2], [1], [2]]),
)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("edge_query", ["source", "target"])
def test_pairs_of_directed_graphs(transposed, edge_query):
    """For the query node i, e_ij = Emb(edge) + W P_ij. In the paper the edge is i → j. In the released code queries are targets, so the edge is j → i."""
    model = build(rrwp_steps=4, transposed_rrwp=transposed, edge_query=edge_query)
    pairs = model.embed(DIRECTED)[1].states()
    for b, (start, stop) in enumerate([(0, 4), (4, 6)]):
        n = stop - start
        adjacency = torch.zeros(n, n, dtype=torch.float64)
        edges = [
            (u - start, v - start, e) for e, (u, v) in enumerate(DIRECTED.edge_index.T.tolist()) if start <= u < stop
        ]
        for u, v, _ in edges:
            adjacency[u, v] = 1
        walk = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
        walks = torch.stack([torch.linalg.matrix_power(walk, k) for k in range(4)], dim=-1)
        expected = (walks.transpose(0, 1) if transposed else walks) @ model.relative.weight.T
        for u, v, e in edges:
            place = (u, v) if edge_query == "source" else (v, u)
            expected[place] += model.edge_encoder.embedding.weight[DIRECTED.edge_attr[e, 0]]
        torch.testing.assert_close(pairs[b, :n, :n], expected, rtol=1e-12, atol=1e-13)


def test_released_options_are_those_of_the_code():
    released = as_released(replace(TINY, head="mlp"))
    assert (released.score_clamp, released.degree_scaler) == (5.0, "before")
    assert (released.transposed_rrwp, released.edge_query, released.head) == (True, "target", "graphgym")


def test_graphgym_heads_scale_hidden_layers_to_length_one():
    """GraphGym's MLP: each hidden layer computes h' = ReLU(W h + b) and then h = h'/|h'|₂. A linear map follows."""
    model = build(task="node", head="graphgym", head_layers=3, out_dim=4)
    graphs = random_graphs([6, 3], seed=5)
    states = []
    model.layers[-1].register_forward_hook(lambda module, inputs, out: states.append(out[0]))
    got = model(graphs)
    (h,) = states
    first, second, last = (module for module in model.head if isinstance(module, nn.Linear))
    for linear in (first, second):
        h = (h @ linear.weight.T + linear.bias).clamp(min=0)
        h = h / h.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)
    torch.testing.assert_close(got, h @ last.weight.T + last.bias, rtol=1e-12, atol=1e-13)


def test_activation_of_the_ffn_and_the_halving_head():
    model = build(activation="gelu")
    graphs = random_graphs([6, 3], seed=5)
    seen = []
    for module in (model.layers[0].ffn, model.head):
        module.register_forward_hook(lambda module, inputs, out: seen.append((inputs[0], out)))
    model(graphs)
    (x, y), (pooled, out) = seen
    gelu = lambda t: t * 0.5 * (1 + torch.erf(t / 2**0.5))  # noqa: E731
    ffn = model.layers[0].ffn
    torch.testing.assert_close(y, ffn[3](gelu(ffn[0](x))), rtol=1e-12, atol=1e-13)
    for linear in [module for module in model.head.layers if isinstance(module, nn.Linear)][:-1]:
        pooled = gelu(linear(pooled))
    torch.testing.assert_close(out, model.head.layers[-1](pooled), rtol=1e-12, atol=1e-13)
    with pytest.raises(ValueError, match="activation: expected one of relu, gelu, got 'tanh'"):
        replace(TINY, activation="tanh")


def test_as_released_on_directed_graphs():
    model = build(as_released(replace(TINY, head="mlp", head_layers=2, out_dim=2)))
    expected = [slow_forward(model, n, alone(DIRECTED, b)) for b, n in enumerate((4, 2))]
    torch.testing.assert_close(model(DIRECTED), torch.stack(expected), rtol=1e-10, atol=1e-11)
    for field, paper in {"edge_query": "source", "transposed_rrwp": False, "head": "mlp"}.items():
        other = GRIT(replace(model.config, **{field: paper})).double().eval()
        other.load_state_dict(model.state_dict())
        assert (other(DIRECTED) - model(DIRECTED)).abs().max() > 1e-3, field


ABLATIONS = {
    "no scaler": {"degree_scaler": "none"},
    "degree encoding": {"degree_scaler": "encoding"},
    "pairs as they are": {"update_pairs": False},
    "sparse": {"sparse": True},
    "graphormer": {"attention": "graphormer"},
    "graphormer, sparse": {"attention": "graphormer", "sparse": True},
    "rwse": {"encoding": "rwse"},
    "shortest paths": {"encoding": "shortest_path"},
}


def slow_forward(model: GRIT, n: int, graphs: Graphs) -> torch.Tensor:
    """Slow version of the model in eval mode, for one graph: node by node and pair by pair. Covers the released model and the ablations."""
    config = model.config
    adjacency = torch.zeros(n, n, dtype=torch.float64)
    adjacency[graphs.edge_index[0], graphs.edge_index[1]] = 1
    degree = adjacency.sum(1)
    walk = adjacency / degree.clamp(min=1).unsqueeze(1)
    powers = [torch.linalg.matrix_power(walk, k) for k in range(config.rrwp_steps)]
    x = model.node_encoder(graphs.x)
    e = torch.zeros(n, n, config.width, dtype=torch.float64)
    for i in range(n):
        if config.encoding != "shortest_path":
            x[i] = x[i] + model.absolute(torch.stack([power[i, i] for power in powers]))
        if config.degree_scaler == "encoding":
            x[i] = x[i] + model.degree.weight[int(degree[i])]
        for j in range(n):
            if config.encoding == "rrwp":
                walk_to = (j, i) if config.transposed_rrwp else (i, j)
                e[i, j] = model.relative(torch.stack([power[walk_to] for power in powers]))
            if config.encoding == "shortest_path":
                e[i, j] = model.distance.weight[
                    next((k for k, power in enumerate(powers) if power[i, j] > 0), config.rrwp_steps)
                ]
    for (i, j), row in zip(graphs.edge_index.t().tolist(), model.edge_encoder(graphs.edge_attr), strict=True):
        place = (i, j) if config.edge_query == "source" else (j, i)
        e[place] = e[place] + row
    for index, layer in enumerate(model.layers):
        attention, heads = layer.attention, config.num_heads
        q, k, v = (part(x).view(n, heads, -1) for part in (attention.query, attention.key, attention.value))
        hat = torch.zeros_like(e)
        out = torch.zeros_like(x)
        for i in range(n):
            seen = [j for j in range(n) if not config.sparse or i == j or adjacency[i, j]]
            scores = []
            for j in seen:
                if config.attention == "graphormer":
                    scores.append((q[i] * k[j]).sum(1) / q.shape[2] ** 0.5 + attention.bias(e[i, j]))
                    continue
                w, b = attention.edge(e[i, j]).view(heads, -1).chunk(2, dim=1)
                t = (q[i] + k[j]) * w
                hat[i, j] = torch.relu(t.sign() * t.abs().sqrt() + b).flatten()
                scores.append(torch.einsum("hc,ch->h", hat[i, j].view(heads, -1), attention.score.squeeze(2)))
            bound = config.score_clamp or float("inf")
            alpha = torch.stack(scores).clamp(-bound, bound).softmax(0)
            mixed = sum(alpha[a].unsqueeze(1) * v[j] for a, j in enumerate(seen))
            if config.attention == "conditional":
                row = sum(alpha[a].unsqueeze(1) * hat[i, j].view(heads, -1) for a, j in enumerate(seen))
                mixed = mixed + torch.einsum("hd,dhc->hc", row, attention.edge_value)
            out[i] = mixed.flatten()
        log_degree = torch.log1p(degree).unsqueeze(1)
        h = layer.out(layer.scale(out, log_degree) if config.degree_scaler == "before" else out)
        if config.degree_scaler == "after":
            h = layer.scale(h, log_degree)
        x = layer.norm_1(x + h)
        x = layer.norm_2(x + layer.ffn(x))
        if config.attention == "conditional" and config.update_pairs and index + 1 < len(model.layers):
            norm, fresh = attention.edge_norm, e + attention.edge_out(hat)
            e = (fresh - norm.running_mean) * torch.rsqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
    return model.head(x.sum(0, keepdim=True))[0]


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablated_model_equals_the_formula(ablation):
    model, graphs = build(**ABLATIONS[ablation]), random_graphs([7], seed=3)
    torch.testing.assert_close(model(graphs)[0], slow_forward(model, 7, graphs), rtol=0, atol=1e-10)
    others = random_graphs([4, 7, 1], seed=5)
    assert torch.isfinite(model(others)).all()
    plain = build()
    assert not torch.allclose(model(graphs), plain(graphs), atol=1e-6)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablated_model_trains(ablation):
    model = GRIT(replace(TINY, **ABLATIONS[ablation]))
    model(random_graphs([5, 1, 6])).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_statistics_of_sparse_pairs_are_those_of_neighbors_and_oneself():
    """Batch normalisation takes its statistics only over pairs that exist."""
    torch.manual_seed(0)
    model = GRIT(replace(TINY, sparse=True, num_layers=2)).double()
    graphs = random_graphs([6, 3], seed=2)
    seen = model._neighbors(graphs)
    assert int(seen.sum()) == graphs.edge_index.shape[1] + 9
    x, pairs = model.embed(graphs)
    attention = model.layers[0].attention
    attention.edge_norm.momentum = 1.0
    _, fresh = attention(x, pairs, graphs.padding, allowed_BNN=seen)
    torch.testing.assert_close(attention.edge_norm.running_mean, fresh.y_BNND[seen].mean(0))
    torch.testing.assert_close(attention.edge_norm.running_var, fresh.y_BNND[seen].var(0))
