"""Compares the block-wise attention with a simple attention that follows the paper's equations pair by pair."""

import pytest
import torch
from torch import Tensor, nn

import graphmill.models.grit.attention as grit_attention
from graphmill.models.grit.attention import ConditionalAttention, PairNorm, Pairs
from graphmill.models.grit.options import GRITConfig
from graphmill.models.primitives.graphs import Graphs


def make_graphs(sizes: list[int], max_nodes: int | None = None) -> Graphs:
    pointer = torch.tensor([0, *sizes]).cumsum(0)
    return Graphs(
        node_ptr=pointer,
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        node_id=torch.arange(sum(sizes)),
        max_nodes=max_nodes,
    )


def reference(layer: ConditionalAttention, x_nD: Tensor, e_graphs: list[Tensor], sizes: list[int]):
    """Computes the paper's equations one graph at a time, with full tensors of pairs. Returns (x̂, list with e + W_Oe ê of each graph)."""
    heads = layer.num_heads
    values, fresh, start = [], [], 0
    for size, e_NND in zip(sizes, e_graphs):
        x = x_nD[start : start + size]
        start += size
        q, k, v = (part(x).view(size, heads, -1) for part in (layer.query, layer.key, layer.value))
        w, b = layer.edge(e_NND).view(size, size, heads, -1).chunk(2, dim=-1)
        t = (q.unsqueeze(1) + k.unsqueeze(0)) * w
        rho = torch.sqrt(torch.relu(t)) - torch.sqrt(torch.relu(-t))
        hat = torch.relu(rho + b)
        s = torch.einsum("ijhc,ch->ijh", hat, layer.score.squeeze(2))
        if layer.clamp is not None:
            s = s.clamp(-layer.clamp, layer.clamp)
        alpha = s.softmax(dim=1)
        row = torch.einsum("ijh,ijhc->ihc", alpha, hat)
        out = torch.einsum("ijh,jhc->ihc", alpha, v) + torch.einsum("ihd,dhc->ihc", row, layer.edge_value)
        values.append(out.flatten(1))
        fresh.append(e_NND + layer.edge_out(hat.flatten(2)))
    return torch.cat(values), fresh


def attention(width: int, heads: int, **options) -> ConditionalAttention:
    return ConditionalAttention(GRITConfig(width=width, num_heads=heads, **{"attention_dropout": 0.0} | options))


def build(width=12, heads=3, **options) -> ConditionalAttention:
    torch.manual_seed(0)
    layer = attention(width, heads, **options).double()
    nn.init.normal_(layer.edge.bias)
    return layer


def inputs(sizes: list[int], width: int) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sum(sizes), width, dtype=torch.float64, generator=generator)
    pairs = [torch.randn(n, n, width, dtype=torch.float64, generator=generator) for n in sizes]
    return x.requires_grad_(), [p.requires_grad_() for p in pairs]


def pad_pairs(pairs: list[Tensor], places: int) -> Tensor:
    room = torch.zeros(len(pairs), places, places, pairs[0].shape[-1], dtype=pairs[0].dtype)
    for b, e in enumerate(pairs):
        room[b, : e.shape[0], : e.shape[0]] = e
    return room


SIZES = {"mixed": [5, 2, 7, 1, 4], "equal": [6, 6, 6], "one graph": [9]}


# For each plan: (number of elements in a block, bytes that may be kept for the backward pass).
PLANS = {"rows, kept": (1, 1 << 20), "queries": (200, 0), "queries, kept": (200, 1 << 20), "graphs": (1 << 16, 0)}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("clamp", [None, 0.4])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_two_layers_equal_the_equations_with_all_gradients(monkeypatch, sizes, clamp, plan):
    block, memory = plan
    monkeypatch.setitem(grit_attention._BLOCK_ELEMENTS, "cpu", block)
    first, second = (build(score_clamp=clamp, pair_memory=memory) for _ in range(2))
    x, pairs = inputs(sizes, 12)
    padding = make_graphs(sizes).padding

    hidden, state = first(x, Pairs(pad_pairs(pairs, padding.num_places)), padding)
    out, state = second(hidden, state, padding)
    states = padding.unpad(state.states() * padding.pair_mask_BNN.unsqueeze(3))
    ours = (out.square().sum() + states.pow(3).sum(), [x, *pairs, *first.parameters(), *second.parameters()])
    gradient = torch.autograd.grad(ours[0], ours[1])

    norms = [nn.BatchNorm1d(12).double() for _ in range(2)]
    expected, fresh = reference(first, x, pairs, sizes)
    fresh = normalise(norms[0], fresh)
    expected, fresh = reference(second, expected, fresh, sizes)
    fresh = normalise(norms[1], fresh)
    loss = expected.square().sum() + sum(e.pow(3).sum() for e in fresh)
    # Our norm's parameters are ones and zeros, as in the reference norms.
    leaves = [x, *pairs]
    for layer, norm in zip((first, second), norms):
        for name, parameter in layer.named_parameters():
            own = {"edge_norm.weight": norm.weight, "edge_norm.bias": norm.bias}
            leaves.append(own.get(name, parameter))
    expected_gradient = torch.autograd.grad(loss, leaves)

    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    for b, e in enumerate(fresh):
        n = e.shape[0]
        torch.testing.assert_close(state.states()[b, :n, :n], e, rtol=1e-9, atol=1e-9)
    for mine, theirs in zip(gradient, expected_gradient):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-7)
    for layer, norm in zip((first, second), norms):
        torch.testing.assert_close(layer.edge_norm.running_mean, norm.running_mean)
        torch.testing.assert_close(layer.edge_norm.running_var, norm.running_var)


def normalise(norm: nn.BatchNorm1d, pairs: list[Tensor]) -> list[Tensor]:
    rows = norm(torch.cat([e.flatten(0, 1) for e in pairs]))
    return [part.view(e.shape) for part, e in zip(rows.split([e.shape[0] ** 2 for e in pairs]), pairs)]


@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["again", "kept"])
@pytest.mark.parametrize(
    "options",
    [pytest.param({}, marks=pytest.mark.long), {"dropout": 0.3, "attention_dropout": 0.4}],
    ids=["plain", "dropout"],
)
def test_gradcheck(monkeypatch, options, memory):
    monkeypatch.setitem(grit_attention._BLOCK_ELEMENTS, "cpu", 40)
    sizes = [3, 2]
    layer = build(4, 2, pair_memory=memory, **options)
    x, pairs = inputs(sizes, 4)
    padding = make_graphs(sizes).padding
    scale, shift = torch.rand(4).double() + 0.5, torch.randn(4).double()
    leaves = [x, pad_pairs(pairs, 3).detach(), scale, shift]

    def run(x, y, scale, shift, *parameters):
        torch.manual_seed(3)
        out, state = torch.func.functional_call(
            layer, dict(zip([n for n, _ in layer.named_parameters()], parameters)), (x, Pairs(y, scale, shift), padding)
        )
        return out, state.y_BNND, state.scale_D, state.shift_D

    leaves += [p.detach().clone() for p in layer.parameters()]
    # The square root of t is steep near t = 0, so the steps of gradcheck are small.
    assert torch.autograd.gradcheck(run, [leaf.requires_grad_() for leaf in leaves], eps=1e-7, atol=1e-4)


def test_dropout_is_fresh_in_each_call_and_follows_the_generator():
    layer = build(dropout=0.5, attention_dropout=0.5)
    sizes = [4, 3]
    x, pairs = inputs(sizes, 12)
    padding = make_graphs(sizes).padding
    state = Pairs(pad_pairs(pairs, 4))
    torch.manual_seed(5)
    first, other = layer(x, state, padding)[0], layer(x, state, padding)[0]
    torch.manual_seed(5)
    torch.testing.assert_close(layer(x, state, padding)[0], first, rtol=0, atol=0)
    assert not torch.allclose(first, other)
    layer.eval()
    torch.testing.assert_close(layer(x, state, padding)[0], layer(x, state, padding)[0], rtol=0, atol=0)


def test_attention_dropout_keeps_the_mean():
    layer = build(attention_dropout=0.5)
    x, pairs = inputs([6], 12)
    padding = make_graphs([6]).padding
    state = Pairs(pad_pairs(pairs, 6))
    torch.manual_seed(0)
    with torch.no_grad():
        mean = torch.stack([layer(x, state, padding, update_edges=False)[0] for _ in range(1500)]).mean(0)
        layer.eval()
        exact = layer(x, state, padding, update_edges=False)[0]
    assert (mean - exact).abs().max() < 0.1 * exact.abs().max()


def test_clamped_scores_bound_every_share_of_attention():
    layer = build(width=4, heads=1, score_clamp=5.0)
    with torch.no_grad():
        layer.score.mul_(1e4)
        layer.value.weight.copy_(torch.eye(4))
        layer.edge_value.zero_()
    n = 7
    pairs = torch.randn(1, n, n, 4, dtype=torch.float64)
    padding = make_graphs([n]).padding
    # Values are one-hot. So the output is the attention to four of the nodes.
    x = torch.zeros(n, 4, dtype=torch.float64)
    x[:4] = torch.eye(4)
    share = layer(x, Pairs(pairs), padding, update_edges=False)[0]
    bound = torch.tensor(10.0).double().exp()
    assert share.max() <= bound / (bound + n - 1) + 1e-12
    assert share.max() > 0.9


def test_the_signed_root_has_gradient_zero_at_zero():
    layer = build(width=4, heads=1)
    padding = make_graphs([3]).padding
    x = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        layer.query.bias.zero_()
    out, state = layer(x, Pairs(torch.randn(1, 3, 3, 4, dtype=torch.float64)), padding)
    (out.sum() + state.y_BNND.square().sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in [x, *layer.parameters()] if p.grad is not None)


def test_padding_neither_changes_nor_receives_anything():
    layer = build()
    sizes = [5, 2]
    x, pairs = inputs(sizes, 12)
    results = []
    for places in (5, 9):
        padding = make_graphs(sizes, max_nodes=places).padding
        y = pad_pairs(pairs, places).detach().requires_grad_()
        out, state = layer(x, Pairs(y), padding)
        gradient = torch.autograd.grad(out.sum() + (state.y_BNND * state.scale_D).square().sum(), y)[0]
        results.append((out, state.scale_D, gradient[:, :5, :5]))
        assert not gradient[~padding.pair_mask_BNN].any()
        assert not state.y_BNND[~padding.pair_mask_BNN].any()
    for small, large in zip(*results):
        torch.testing.assert_close(small, large)


@pytest.mark.parametrize("sizes", [[], [0], [0, 3, 0]], ids=str)
def test_empty_graphs(sizes):
    layer = build()
    padding = make_graphs(sizes).padding
    x = torch.randn(sum(sizes), 12, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(len(sizes), padding.num_places, padding.num_places, 12, dtype=torch.float64, requires_grad=True)
    out, state = layer(x, Pairs(y), padding)
    assert out.shape == x.shape
    (out.sum() + state.states().sum()).backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
    assert all(torch.isfinite(b).all() for b in layer.buffers())


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3, "attention_dropout": 0.4}], ids=["plain", "dropout"])
def test_kept_blocks_give_the_gradients_of_computing_again_and_stay_as_they_are(monkeypatch, options):
    monkeypatch.setitem(grit_attention._BLOCK_ELEMENTS, "cpu", 200)
    results = []
    for memory in (0, 1 << 20):
        layer = build(score_clamp=0.4, pair_memory=memory, **options)
        x, pairs = inputs([5, 2], 12)
        torch.manual_seed(7)
        out, state = layer(x, Pairs(pad_pairs(pairs, 5)), make_graphs([5, 2]).padding)
        leaves = [x, *pairs, *layer.parameters()]
        loss = out.square().sum() + state.states().pow(3).sum()
        results += [torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2)]
    for other in results[1:]:
        for one, two in zip(results[0], other):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["again", "kept"])
def test_masks_do_not_depend_on_the_blocks(monkeypatch, memory):
    results = []
    for block in (1, 200, 400, 1 << 19):  # block sizes: one query, some queries, one graph, all graphs
        monkeypatch.setitem(grit_attention._BLOCK_ELEMENTS, "cpu", block)
        layer = build(dropout=0.3, attention_dropout=0.4, pair_memory=memory)
        x, pairs = inputs([5, 2, 3], 12)
        torch.manual_seed(7)
        out, state = layer(x, Pairs(pad_pairs(pairs, 5)), make_graphs([5, 2, 3]).padding)
        loss = out.square().sum() + state.states().pow(3).sum()
        results.append([out, *torch.autograd.grad(loss, [x, *pairs, *layer.parameters()])])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("memory", [0, 1 << 28])
def test_saved_memory_of_pairs(monkeypatch, memory):
    sizes, width, heads = [20] * 4, 32, 4
    layers = [attention(width, heads, attention_dropout=0.1, pair_memory=memory) for _ in range(3)]
    padding = make_graphs(sizes).padding
    x = torch.randn(80, width)
    state = Pairs(torch.randn(4, 20, 20, width, requires_grad=True))
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for layer in layers:
            x, state = layer(x, state, padding)
    pair_bytes = 4 * 20 * 20 * width * 4
    # Kept are y of the input and of each layer and, with memory, more tensors of pairs. All other kept tensors are rows of nodes; each is at most a tenth of y.
    num_tensors = sum(size for size in seen.values() if size > pair_bytes / 10) / pair_bytes
    assert num_tensors == 4 + (3 * (3 + 3 * heads / width) if memory else 0)
    options, made = grit_attention._Options, []
    monkeypatch.setattr(grit_attention, "_Options", lambda **given: made.append(given["keep"]) or options(**given))
    layers[0](x, state, padding)
    with torch.no_grad():
        layers[0](x, state, padding)
    assert made == [bool(memory), False]


@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["again", "kept"])
def test_bfloat16_autocast_stays_close(memory):
    layer = attention(16, 4, score_clamp=0.7, pair_memory=memory)
    sizes = [6, 9]
    padding = make_graphs(sizes).padding
    torch.manual_seed(0)
    x, y = torch.randn(15, 16), pad_pairs([torch.randn(n, n, 16) for n in sizes], 9)
    exact = layer(x, Pairs(y), padding)[0]
    with torch.autocast("cpu", torch.bfloat16):
        out, state = layer(x, Pairs(y.requires_grad_()), padding)
    out.float().square().sum().backward()
    assert y.grad.dtype == torch.float32
    assert state.y_BNND.dtype == torch.float32
    assert (out - exact).abs().max() < 0.05 * exact.abs().max()


def test_norm_of_one_pair_learns_no_statistics():
    norm = PairNorm(3)
    norm(torch.ones(3), torch.zeros(3), torch.tensor(1.0))
    assert not norm.running_mean.any()
    assert (norm.running_var == 1).all()
