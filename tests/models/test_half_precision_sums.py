"""Sums of many bfloat16 terms are computed in float32 and rounded only once. This holds forward and backward, with and without autocast.

A bfloat16 number has 8 significant bits, so a running sum of ones stops at 256. Each test adds up thousands of terms. It expects the
sum of these terms in float64, up to the rounding of the result.
"""

import copy

import pytest
import torch
from torch import Tensor

from graphmill.models.ends.heads import link_scores, pool_nodes
from graphmill.models.grit.attention import ConditionalAttention, Pairs
from graphmill.models.grit.options import GRITConfig
from graphmill.models.operators.favor import FavorAttention, favor_attention
from graphmill.models.operators.filters import circular_convolve
from graphmill.models.ppgt.attention import sl2_urpe_attention
from graphmill.models.primitives.ada_rms_norm import AdaRMSNorm
from graphmill.models.primitives.batch_norm import LayerNorm, RowBatchNorm
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.propagation import Adjacency, sum_rows, sum_rows_bag, sum_rows_csr
from graphmill.models.primitives.segments import Grouping
from graphmill.models.tokengt.network import TokenView

MANY = 3000


def close(got: Tensor, exact: Tensor, roundings: float = 1.0) -> None:
    """Checks that numbers are equal up to two errors: `roundings` roundings to bfloat16 (each 2⁻⁸ of the number), and the float32 error of sums with mixed
    signs."""
    size = float(exact.detach().abs().max())
    torch.testing.assert_close(got.double(), exact.double(), rtol=roundings * 2**-7.9, atol=1e-5 * size)


def half(*shape: int, seed: int = 0) -> Tensor:
    """Random bfloat16 numbers. They are positive, so that a sum grows with the number of its terms."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def star() -> Graphs:
    """Two graphs: one with MANY edges from node 0, and one with a single node."""
    ends = torch.arange(1, MANY + 1)
    return Graphs(torch.tensor([0, MANY + 1, MANY + 2]), torch.stack([torch.zeros_like(ends), ends]))


@pytest.mark.parametrize("kernel", [sum_rows, sum_rows_bag, sum_rows_csr])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_propagation(kernel, weighted, dtype):
    weight = half(MANY, seed=1).float() if weighted else None
    rows = Adjacency(torch.tensor([0, MANY] + [MANY] * MANY), torch.arange(1, MANY + 1), weight).rows(transposed=False)
    x = half(MANY + 1, 4).to(dtype)
    exact = (x[1:].double() * (1 if weight is None else weight.double().unsqueeze(1))).sum(0)
    with autocast():
        y = kernel(rows, x)
    assert y.dtype == dtype
    torch.testing.assert_close(y[0].double(), exact, rtol=1e-5 if dtype == torch.float32 else 2**-7.9, atol=0)


@pytest.mark.parametrize("groups", [1, 2])
def test_groups_forward_and_backward(groups):
    grouping = Grouping(torch.zeros(MANY, dtype=torch.int64), groups)
    x = half(MANY, 3).requires_grad_()
    with autocast():
        total, mean, spread = grouping.sum(x), grouping.mean(x), grouping.spread(x[:groups])
    close(total[0], x.double().sum(0))
    close(mean[0], x.double().mean(0), 2)
    (grad,) = torch.autograd.grad(spread, x, torch.ones_like(spread))
    close(grad[0], torch.full((3,), MANY))


@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
def test_pooling(pool):
    graphs = star()
    x = half(MANY + 2, 3)
    with autocast():
        pooled = pool_nodes(x, graphs, pool)
    assert pooled.dtype == torch.bfloat16
    rows = x[: MANY + 1].double()
    close(pooled[0], {"sum": rows.sum(0), "mean": rows.mean(0), "max": rows.amax(0)}[pool])


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_edge_tokens_of_a_hub(reduction):
    view = TokenView(star(), 1)
    x = half(2, view.num_places, 2)
    with autocast():
        added = view.nodes(view.add_edges_to_nodes(x, reduction))
    assert added.dtype == torch.bfloat16
    edges = x[0, view.num_special + MANY + 1 :].double()
    close(added[0], x[0, view.num_special].double() + getattr(edges, reduction)(0), 2)


def test_parallel_edges():
    graphs = Graphs(torch.tensor([0, 2]), torch.tensor([[0], [1]]).repeat(1, MANY))
    values = half(MANY, 2)
    with autocast():
        padded = graphs.padding.pad_pairs(values)
    assert padded.dtype == torch.bfloat16
    close(padded[0, 0, 1], values.double().sum(0))


def test_a_node_of_many_links():
    x = half(MANY + 1, 2).requires_grad_()
    pairs = torch.stack([torch.zeros(MANY, dtype=torch.int64), torch.arange(1, MANY + 1)])
    with autocast():
        scores = link_scores(x, pairs)
    (grad,) = torch.autograd.grad(scores, x, torch.ones_like(scores))
    close(grad[0], x[1:].double().sum(0))


def test_statistics_of_normalisations():
    x = (half(MANY, 4) + 3).requires_grad_()
    for norm in (RowBatchNorm(4), LayerNorm(4), AdaRMSNorm(4)):
        with autocast():
            y = norm(x)
        exact = type(norm)(4).double()(x.double())
        torch.testing.assert_close(y.double(), exact, rtol=2**-7, atol=2**-7)
        (grad,) = torch.autograd.grad(y.float().sum(), next(p for p in norm.parameters() if p.dim() == 1))
        if isinstance(norm, AdaRMSNorm):  # the gradient of α, the first parameter, is not a plain sum
            continue
        torch.testing.assert_close(grad.double(), exact.sum(0), rtol=1e-3, atol=0.02)


def test_kernel_sums_of_performer():
    q, k, v = (half(1, 1, MANY, 4, seed=seed) for seed in (0, 1, 2))
    projection = FavorAttention(4, 6).projection_RD
    with autocast():
        got = favor_attention(q, k, v, projection)
    close(got, favor_attention(q.double(), k.double(), v.double(), projection.double()))


def test_long_filters():
    f, v = half(2, MANY).float(), half(2, MANY, seed=1).float()
    with autocast():
        got = circular_convolve(f, v)
    torch.testing.assert_close(got.double(), circular_convolve(f.double(), v.double()), rtol=1e-5, atol=0)


def test_gradients_of_sl2_attention_over_many_blocks():
    """The gradients of keys, values and maps are sums with one term for each block of queries."""
    places, width, edge_width = 320, 4, 3
    q, k, v = (half(1, 1, places, width, seed=seed) for seed in (0, 1, 2))
    tensors = [q, k, v, half(1, places, places, edge_width, seed=3), half(2, edge_width, seed=4), half(2, seed=5)]
    grad = torch.ones(1, 1, places, width)

    def gradients(dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        with autocast():
            y = sl2_urpe_attention(*leaves, block_scores=places)  # a block is one query
        return torch.autograd.grad(y, [leaves[1], leaves[2], *leaves[4:]], grad.to(dtype))

    for got, exact in zip(gradients(torch.bfloat16), gradients(torch.float64), strict=True):
        error, size = (got.double() - exact).norm(), exact.norm()
        assert error < 0.02 * size


def test_gradients_of_grit_attention_over_many_blocks(monkeypatch):
    """Products within a block are bfloat16. Sums over blocks are float32."""
    places, width = 512, 4
    monkeypatch.setattr(
        "graphmill.models.grit.attention._BLOCK_ELEMENTS", {"cpu": places * width, "cuda": 1}
    )  # a block is one query
    torch.manual_seed(0)
    layer = ConditionalAttention(GRITConfig(width=width, num_heads=1, attention_dropout=0.0))
    graphs = Graphs(torch.tensor([0, places]), torch.zeros(2, 0, dtype=torch.int64))
    x, y = torch.rand(places, width), torch.rand(1, places, places, width)

    def gradients(half: bool) -> tuple[Tensor, ...]:
        own, dtype = (layer, torch.float32) if half else (copy_of(layer), torch.float64)
        rows = x.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out, _ = own(rows, Pairs(y.to(dtype)), graphs.padding, update_edges=False)
        leaves = (rows, own.key.weight, own.value.weight)
        return torch.autograd.grad(out.double().sum(), leaves)

    for got, exact in zip(gradients(True), gradients(False), strict=True):
        error, size = (got.double() - exact).norm(), exact.norm()
        assert error < 0.02 * size


def copy_of(layer: ConditionalAttention) -> ConditionalAttention:
    return copy.deepcopy(layer).double()
