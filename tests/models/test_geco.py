"""Compares GECO with dense matrices and a slow reference, and tests its training. Also tests where it is equivariant, and where it must not be.

All comparisons are in float64.
"""

import math

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from graphmill.models.geco.network import GECO, GlobalBlock, param_groups
from graphmill.models.geco.options import GECOConfig
from graphmill.models.options.filters import FilterConfig
from graphmill.models.options.local import LocalOptions
from graphmill.models.primitives.node_order import node_order
from graphmill.models.primitives.propagation import Adjacency

SMALL = FilterConfig(bands=2, inner_width=4, num_inner_layers=1)


def config(**options):
    defaults = {"in_dim": 5, "out_dim": 3, "width": 4, "num_layers": 2, "dropout": 0.0, "filter": SMALL}
    return GECOConfig(**{**defaults, **options})


def random_edges(num_nodes, num_edges, seed):
    """Random directed edges, with self-loops and repeated edges. If there are at least three nodes, the last one is isolated."""
    generator = torch.Generator().manual_seed(seed)
    high = max(1, num_nodes - 1) if num_nodes > 2 else num_nodes
    edges = torch.randint(0, high, (num_edges, 2), generator=generator)
    return torch.cat([edges, edges[: num_edges // 4], torch.tensor([[0, 0]])])


def adjacency_of(edges, num_nodes, **options):
    order = torch.argsort(edges[:, 1] * num_nodes + edges[:, 0], stable=True)
    indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(edges[:, 1], minlength=num_nodes).cumsum(0)
    return Adjacency(indptr, edges[order, 0], **options)


def permuted_edges(edges, permutation):
    """Renumbers the nodes of the edges: row r of the new graph is row permutation[r] of the old graph."""
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(permutation.numel())
    return inverse[edges]


def build(geco_config, seed=0):
    torch.manual_seed(seed)
    model = GECO(geco_config).double().eval()
    with torch.no_grad():  # at their initial values, norms and biases have no effect
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def reference_forward(model, x, edges, node_id, encoding=None, epoch=0):
    """GECO's equations as loops over nodes and channels, in float64. Covers post-norm, a head on the last layer, and one hop."""
    c = model.config
    num, width = x.shape[0], c.width

    def linear(module, row):
        out = [sum(module.weight[o, i] * row[i] for i in range(len(row))) for o in range(module.weight.shape[0])]
        return [v + (0 if module.bias is None else module.bias[o]) for o, v in enumerate(out)]

    def gelu(v):
        return 0.5 * v * (1 + math.erf(float(v) / math.sqrt(2)))

    def layer_norm(module, row):
        mean = sum(row) / len(row)
        var = sum((v - mean) ** 2 for v in row) / len(row)
        return [(v - mean) / math.sqrt(var + module.eps) * module.weight[i] + module.bias[i] for i, v in enumerate(row)]

    rows = [[*x[i]] + ([] if encoding is None else [*encoding[i]]) for i in range(num)]
    h = [[gelu(v) for v in linear(model.encoder, row)] for row in rows]
    for index, layer in enumerate(model.layers):
        order = list(range(num))
        if c.permutation == "static":
            order = node_order(node_id, c.seed).tolist()
        elif c.permutation == "dynamic":
            order = node_order(node_id, c.seed, epoch=epoch + 1, layer=index).tolist()
        degree_in = [0] * num
        degree_out = [0] * num
        for source, target in edges.tolist():
            degree_in[target] += 1
            degree_out[source] += 1
        ah = [[0.0] * width for _ in range(num)]
        for source, target in edges.tolist():
            scale = {
                "mean": 1 / degree_in[target],
                "sum": 1.0,
                "sym": 1 / math.sqrt(degree_in[target] * degree_out[source]),
                "gcn": 1 / math.sqrt((degree_in[target] + 1) * (degree_in[source] + 1)),
            }[c.propagation]
            for d in range(width):
                ah[target][d] += scale * h[source][d]
        if c.propagation == "gcn":
            ah = [[v + u / (degree_in[i] + 1) for v, u in zip(ah[i], h[i])] for i in range(num)]
        projected = [linear(layer.glob.projection, h[i] + ah[i]) for i in range(num)]
        filters = layer.glob.filter(num)
        y = [[0.0] * width for _ in range(num)]
        for d in range(width):
            v = [projected[order[t]][c.order * width + d] for t in range(num)]
            for k in range(c.order):
                conv = [sum(filters[k, d, (t - s) % num] * v[s] for s in range(num)) for t in range(num)]
                if layer.glob.skip_KD is not None:
                    conv = [conv[t] + layer.glob.skip_KD[k, d] * v[t] for t in range(num)]
                v = [projected[order[t]][k * width + d] * conv[t] for t in range(num)]
            for t in range(num):
                y[order[t]][d] = v[t]
        h = [layer_norm(layer.norm_1, [a + b for a, b in zip(y[i], h[i])]) for i in range(num)]
        ffn = [linear(layer.ffn.w2, [gelu(v) for v in linear(layer.ffn.w1, h[i])]) for i in range(num)]
        h = [layer_norm(layer.norm_2, [a + b for a, b in zip(ffn[i], h[i])]) for i in range(num)]
    return torch.tensor([[float(v) for v in linear(model.head, row)] for row in h], dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"propagation": "sum", "order": 1},
        {"propagation": "gcn"},
        {"propagation": "sym", "order": 3, "skip": True},
        {"permutation": "dynamic", "encoding_dim": 2},
        {"permutation": "none"},
    ],
)
@pytest.mark.parametrize("num_nodes", [1, 7])
def test_equals_the_slow_reference(options, num_nodes):
    geco_config = config(**options, seed=5)
    model = build(geco_config)
    edges = random_edges(num_nodes, 12, seed=1)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(num_nodes, 5, dtype=torch.float64, generator=generator)
    encoding = (
        torch.randn(num_nodes, 2, dtype=torch.float64, generator=generator) if "encoding_dim" in options else None
    )
    node_id = torch.randperm(100, generator=generator)[:num_nodes]
    with torch.no_grad():
        fast = model(x, adjacency_of(edges, num_nodes), node_id_N=node_id, epoch=3, encoding_NE=encoding)
        slow = reference_forward(model, x, edges, node_id, encoding, epoch=3)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)


def test_skip_starts_as_the_identity_beside_the_filter():
    """If filters are zero and skips have their initial value, the block computes the product P₂ ⊙ P₁ ⊙ V of its gates and V."""
    torch.manual_seed(0)
    block = GlobalBlock(6, 4, 2, SMALL, skip=True).double()
    torch.nn.init.zeros_(block.filter.out.weight)
    h = torch.randn(9, 6, dtype=torch.float64)
    p1, p2, v = block.projection(h).split(4, dim=1)
    torch.testing.assert_close(block(h, None), p2 * p1 * v)


class ConstantFilter(torch.nn.Module):
    def __init__(self, num_filters, width):
        super().__init__()
        self.values = torch.randn(num_filters, width, 1, dtype=torch.float64)

    def factors(self, num):
        return self.values, torch.ones(1, num, dtype=torch.float64)


def test_permutation_equivariance_fails_for_generic_and_holds_for_constant_filters():
    torch.manual_seed(0)
    block = GlobalBlock(6, 4, 2, SMALL).double().requires_grad_(False)
    h = torch.randn(11, 6, dtype=torch.float64)
    permutation = torch.randperm(11, generator=torch.Generator().manual_seed(1))

    def error():
        y = block(h, None)
        return float((block(h[permutation], None) - y[permutation]).abs().max() / y.abs().max())

    assert error() > 1e-3
    block.filter = ConstantFilter(2, 4)
    assert error() < 1e-12


@pytest.mark.parametrize("permutation", ["static", "dynamic", "none"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_output_follows_the_rows_however_the_batch_is_ordered(permutation, norm):
    edges = random_edges(13, 40, seed=4)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(13, 5, dtype=torch.float64, generator=generator)
    node_id = torch.randint(0, 2**50, (13,), generator=generator)
    shuffle = torch.randperm(13, generator=generator)
    model = build(config(permutation=permutation, norm=norm))
    with torch.no_grad():
        y = model(x, adjacency_of(edges, 13), node_id_N=node_id, epoch=2)
        shuffled = adjacency_of(permuted_edges(edges, shuffle), 13)
        z = model(x[shuffle], shuffled, node_id_N=node_id[shuffle], epoch=2)
        by_row = model(x[shuffle], shuffled, epoch=2)
    error = float((z - y[shuffle]).abs().max())
    # If there are no ids, or if the order is "none", the result depends on the order of the rows.
    assert error > 1e-4 if permutation == "none" else error < 1e-11
    assert float((by_row - y[shuffle]).abs().max()) > 1e-4


def test_dynamic_order_changes_with_the_epoch_and_static_does_not():
    edges = random_edges(13, 40, seed=4)
    x = torch.randn(13, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for permutation in ("static", "dynamic"):
        model = build(config(permutation=permutation))
        first, again, later = (model(x, adjacency_of(edges, 13), epoch=epoch) for epoch in (0, 0, 1))
        assert torch.equal(first, again)
        assert torch.equal(first, later) == (permutation == "static")


def test_jump_pre_norm_and_output_projection_follow_their_definitions():
    edges = random_edges(8, 20, seed=6)
    adjacency = adjacency_of(edges, 8)
    x = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    model = build(config(norm="pre", jump="sum", output_projection=True, permutation="none"))
    with torch.no_grad():
        h = torch.nn.functional.gelu(model.encoder(x))
        total = h
        for layer in model.layers:
            h = h + layer.out(layer.glob(layer.local(layer.norm_1(h), adjacency), None))
            h = h + layer.ffn(layer.norm_2(h))
            total = total + h
        torch.testing.assert_close(model(x, adjacency), model.head(model.head_norm(total)))


def test_gradcheck_of_a_whole_model():
    model = build(config(width=2, in_dim=2, filter=FilterConfig(bands=1, inner_width=2, num_inner_layers=1), skip=True))
    adjacency = adjacency_of(random_edges(5, 9, seed=7), 5)
    x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(8), requires_grad=True)
    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}

    def forward(x, *values):
        return torch.func.functional_call(model, dict(zip(parameters, values, strict=True)), (x, adjacency))

    assert torch.autograd.gradcheck(forward, (x, *parameters.values()))


@pytest.mark.parametrize("permutation", ["static", "dynamic", "none"])
@pytest.mark.parametrize("num_nodes", [0, 1])
def test_no_node_and_one_node(num_nodes, permutation):
    model = GECO(config(permutation=permutation))
    adjacency = Adjacency(torch.zeros(num_nodes + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    y = model(torch.randn(num_nodes, 5), adjacency)
    assert y.shape == (num_nodes, 3)
    assert y.isfinite().all()
    y.sum().backward()
    # Every parameter gets a gradient. Otherwise, in DDP, other ranks would wait for the gradients of a rank with an empty batch.
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_overfits_random_labels():
    torch.manual_seed(0)
    num = 40
    adjacency = adjacency_of(random_edges(num, 120, seed=9), num)
    x, label = torch.randn(num, 5), torch.randint(0, 3, (num,))
    model = GECO(config(width=32))
    optimizer = torch.optim.AdamW(param_groups(model, lr=0.01, weight_decay=0.0, filter_lr=0.001))
    for _ in range(150):
        loss = torch.nn.functional.cross_entropy(model(x, adjacency), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss) < 0.05


@pytest.mark.long
def test_learns_what_only_far_nodes_tell():
    """The graph has no edges, and one marked node determines the label of all nodes. So only the global convolution can transport the information."""
    torch.manual_seed(0)
    num = 12
    model = GECO(config(in_dim=2, out_dim=2, width=16, filter=FilterConfig(scale="sqrt_length")))
    adjacency = Adjacency(torch.zeros(num + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    optimizer = torch.optim.AdamW(param_groups(model, lr=0.01, weight_decay=0.0))
    graphs = []
    for node in range(num):
        for label in range(2):
            x = torch.zeros(num, 2)
            x[node] = torch.tensor([1.0, 2.0 * label - 1])
            graphs.append((x, torch.full((num,), label)))
    for _ in range(40):
        logits = torch.cat([model(x, adjacency) for x, _ in graphs])
        labels = torch.cat([label for _, label in graphs])
        loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float((logits.argmax(1) == labels).float().mean()) > 0.95


def test_bfloat16_autocast_trains_and_stays_close():
    torch.manual_seed(0)
    num = 200
    adjacency = adjacency_of(random_edges(num, 1500, seed=10), num)
    x = torch.randn(num, 5)
    model = GECO(config(width=32, filter=FilterConfig(scale="length")))
    exact = model(x, adjacency)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x, adjacency)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)
    y.float().square().mean().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def test_same_inputs_give_the_same_bits():
    def run():
        model = build(config(width=8, dropout=0.3)).float().train()
        adjacency = adjacency_of(random_edges(300, 3000, seed=11), 300)
        x = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
        torch.manual_seed(1)
        model(x, adjacency).square().mean().backward()
        return [p.grad for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_parameter_groups_cover_all_once():
    model = GECO(config(skip=True))
    groups = {group["name"]: group for group in param_groups(model, 0.1, 0.5, 0.01)}
    listed = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())
    names = {id(p): name for name, p in model.named_parameters()}
    assert {n for n in map(names.get, map(id, groups["filters"]["params"]))} == {
        n for n in names.values() if ".filter." in n
    }
    assert all(names[id(p)].endswith(".weight") and p.dim() == 2 for p in groups["weights"]["params"])
    assert [(g["lr"], g["weight_decay"]) for g in groups.values()] == [(0.1, 0.5), (0.1, 0.0), (0.01, 0.0)]
    assert param_groups(model, 0.1, 0.0)[2]["lr"] == 0.1


def test_a_model_without_an_input_is_refused():
    with pytest.raises(ValueError, match="in_dim and encoding_dim are both 0"):
        config(in_dim=0)


def test_forward_refusals():
    model = GECO(config(encoding_dim=2))
    adjacency = adjacency_of(random_edges(4, 5, seed=0), 4)
    x, encoding = torch.randn(4, 5), torch.randn(4, 2)
    with pytest.raises(ValueError, match=r"features must be \[4, 5\].*got \(4, 6\)"):
        model(torch.randn(4, 6), adjacency, encoding_NE=encoding)
    with pytest.raises(ValueError, match=r"node_id must be \[4\], a row for each node, got \(3,\)"):
        model(x, adjacency, node_id_N=torch.arange(3), encoding_NE=encoding)
    with pytest.raises(ValueError, match=r"encodings must be \[4, 2\], a row for each node, got None"):
        model(x, adjacency)
    with pytest.raises(ValueError, match=r"encodings must be \[4, 0\], a row for each node, got \(4, 2\)"):
        GECO(config())(x, adjacency, encoding_NE=encoding)


@pytest.mark.parametrize("local", [LocalOptions(), LocalOptions("gcn", "gate", "linear", "batch")])
def test_recomputing_layers_changes_no_number_and_keeps_less(local):
    """Recomputed layers use the same dropout masks. Running statistics count a batch only once, although its layers run twice."""
    x, edges = torch.randn(40, 5, dtype=torch.float64), random_edges(40, 200, 3)
    adjacency, results = adjacency_of(edges, 40), []
    for recompute in (False, True):
        model = build(config(num_layers=3, dropout=0.4, recompute=recompute, local=local)).train()
        kept = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        torch.manual_seed(7)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            y = model(x, adjacency)
        after = torch.rand(())
        y.square().sum().backward()
        results.append((kept, [y.detach(), after, *model.buffers(), *(p.grad for p in model.parameters())]))
    (plain, expected), (less, values) = results
    # Random numbers are the same bit for bit, but gradients may be added up in another order.
    for a, b in zip(expected, values, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    assert less < 0.5 * plain
