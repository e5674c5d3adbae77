"""Tests primal attention: the formula, the kernel identities of the KSVD, invariances, options, and bad inputs."""

import pytest
import torch
from torch import Tensor

from graphmill.jobs.plan.tries import saved_bytes
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.attention import PrimalAttention, VirtualNode, primal_scores, unit
from graphmill.models.primphormer.options import PrimalOptions


def batch_of(*sizes: int) -> Graphs:
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    n = int(ptr[-1])
    return Graphs(ptr, torch.zeros(2, 0, dtype=torch.long), node_id=torch.arange(n))


def attention(width: int = 12, num_heads: int = 3, first: bool = True, **options) -> PrimalAttention:
    torch.manual_seed(0)
    return PrimalAttention(width, num_heads, PrimalOptions(**{"num_virtual": 5} | options), first).double().eval()


def slow(layer: PrimalAttention, x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's equations for one graph, with f_X as a matrix and a loop over heads."""
    options = layer.options
    pooled_D = x_ND.mean(0) if options.pool == "mean" else x_ND.sum(0)
    f_SM = layer.common_SM.clone()
    if layer.shift is not None:
        f_SM = f_SM + torch.outer(layer.shift(pooled_D), torch.ones(options.num_virtual, dtype=torch.float64))
    outs, losses, p = [], [], layer.head_width
    for h in range(layer.num_heads):
        rows = slice(h * p, (h + 1) * p)
        q_PN = layer.query.weight[rows] @ x_ND.t()
        k_PN = layer.key.weight[rows] @ x_ND.t()
        e_SN = f_SM @ layer.weight_e_HMP[h] @ (q_PN / q_PN.norm(dim=0))
        r_SN = f_SM @ layer.weight_r_HMP[h] @ (k_PN / k_PN.norm(dim=0))
        shared = options.heads == "shared"
        weight_PT, bias_P = layer.out_weight_HPT[0 if shared else h], layer.out_bias if shared else layer.out_bias[rows]
        outs.append((weight_PT @ torch.cat([e_SN, r_SN])).t() + bias_P)
        lam = torch.diag(layer.multiplier()[h] if shared else layer.multiplier())
        energy = 0.5 * torch.trace(e_SN.t() @ lam @ e_SN) + 0.5 * torch.trace(r_SN.t() @ lam @ r_SN)
        trace = torch.trace(layer.weight_e_HMP[h].t() @ layer.weight_r_HMP[h])
        losses.append(energy / (len(x_ND) if options.score_terms == "mean" else 1) - trace)
    total = torch.stack(losses)
    return torch.cat(outs, dim=1), total.mean() if options.score_terms == "mean" else total.sum()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool": "sum", "score_terms": "sum", "multiplier": "plain"},
        {"multiplier": "softplus", "num_scores": 3},
        {"virtual_nodes": "none"},
        {"heads": "shared"},
        {"heads": "shared", "virtual_nodes": "running", "num_scores": 4},
    ],
)
def test_the_packed_form_is_the_printed_one_graph_by_graph(options: dict) -> None:
    layer, sizes = attention(**options), (4, 1, 7)
    x = torch.randn(12, 12, dtype=torch.float64)
    out = layer(x, batch_of(*sizes))
    parts = [slow(layer, rows) for rows in x.split(sizes)]
    torch.testing.assert_close(out.x_nD, torch.cat([part[0] for part in parts]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.loss, torch.stack([part[1] for part in parts]).mean(), rtol=1e-12, atol=1e-12)


def test_j_over_a_batch_is_the_mean_over_its_nodes() -> None:
    """J (appendix D) is the mean of ½ (eᵀΛe + rᵀΛr) over batch, heads and nodes, minus the mean of the traces over heads. So the weight of a graph in J
    is its number of nodes."""
    options, sizes = {"heads": "shared", "virtual_nodes": "running"}, (4, 1, 7)
    layer, x = attention(**options, score_terms="batch"), torch.randn(12, 12, dtype=torch.float64)
    per_graph = attention(**options)  # the same weights
    weights = torch.tensor(sizes, dtype=torch.float64) / 12
    losses = torch.stack([slow(per_graph, rows)[1] for rows in x.split(sizes)])
    out = layer(x, batch_of(*sizes))
    torch.testing.assert_close(out.loss, (weights * losses).sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out.x_nD, per_graph(x, batch_of(*sizes)).x_nD, rtol=0, atol=0)
    assert (out.loss - losses.mean()).abs() > 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool": "sum", "score_terms": "sum", "multiplier": "plain"},
        {"multiplier": "softplus", "num_scores": 6, "virtual_nodes": "none"},
        {"heads": "shared", "virtual_nodes": "running", "num_scores": 4},
    ],
)
def test_one_graph_needs_no_scores_and_is_the_printed_form(monkeypatch: pytest.MonkeyPatch, options: dict) -> None:
    layer, x = attention(**options), torch.randn(11, 12, dtype=torch.float64, requires_grad=True)

    def gradients(out: Tensor, loss: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [x, *layer.parameters()]
        return torch.autograd.grad((out * torch.arange(12)).sum() + loss.square(), leaves, allow_unused=True)

    expected = slow(layer, x)
    wanted = gradients(*expected)
    monkeypatch.setattr("graphmill.models.primphormer.attention.primal_scores", None)
    for tile in (11, 4):
        in_tiles(monkeypatch, tile)
        out = layer(x, batch_of(11))
        for got, want in zip((out.x_nD, out.loss), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        for got, want in zip(gradients(out.x_nD, out.loss), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def in_tiles(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Uses a GPU's tiles of rows on the CPU."""
    monkeypatch.setattr("graphmill.models.primphormer.attention._TILE_ROWS", {"cpu": rows})
    monkeypatch.setattr("graphmill.models.primphormer.attention._BLOCK_ROWS", {"cpu": 3})


@pytest.mark.parametrize("sizes", [(11,), (4, 1, 0, 6), (0, 11, 0)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_tiles_of_rows_give_the_values_masks_and_gradients_of_all_rows(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], dropout: float
) -> None:
    layer, graphs = attention(num_scores=3, dropout=dropout).train(), batch_of(*sizes)
    x = torch.randn(11, 12, dtype=torch.float64, requires_grad=True)

    def outcome() -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        out = layer(x, graphs)
        objective = (out.x_nD * torch.arange(12)).sum() + out.loss.square()
        return out.x_nD, out.loss, *torch.autograd.grad(objective, [x, *layer.parameters()])

    expected = outcome()
    in_tiles(monkeypatch, 4)
    for got, want in zip(outcome(), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_tiles_keep_the_input_of_the_attention_and_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    for dropout in (0.0, 0.5):
        layer, x = attention(16, 2, dropout=dropout).train(), torch.randn(4000, 16, dtype=torch.float64)
        whole = saved_bytes(lambda: layer(x, batch_of(4000)).x_nD.sum())  # noqa: B023
        in_tiles(monkeypatch, 500)
        tiled = saved_bytes(lambda: layer(x, batch_of(4000)).x_nD.sum())  # noqa: B023
        assert tiled < 1.3 * x.nbytes < whole / 2
        monkeypatch.undo()


def matrix(virtual: VirtualNode) -> torch.Tensor:
    """f_X as a tensor [B, S, M]."""
    return virtual.common_SM + virtual.shift_BS.unsqueeze(2)


def test_primal_scores_equal_the_kernel_expansion() -> None:
    """For any h: if W_e = Σ_j f_Xᵀ h_j φ_k(x_j)ᵀ, then e(x) = Σ_j F_X h_j κ(x, x_j), where F_X = f_X f_Xᵀ."""
    torch.manual_seed(1)
    n, s, m, p = 9, 4, 6, 5
    phi_q, phi_k = (unit(torch.randn(n, 1, p, dtype=torch.float64)) for _ in range(2))
    h_SN = torch.randn(s, n, dtype=torch.float64)
    virtual = VirtualNode(torch.randn(s, m, dtype=torch.float64), torch.randn(1, s, dtype=torch.float64))
    f_SM = matrix(virtual)[0]
    weight_MP = f_SM.t() @ h_SN @ phi_k[:, 0]
    scores = primal_scores(phi_q, weight_MP.unsqueeze(0), virtual, batch_of(n).by_graph)[:, 0]
    kernel_NN = phi_q[:, 0] @ phi_k[:, 0].t()
    torch.testing.assert_close(scores, kernel_NN @ h_SN.t() @ (f_SM @ f_SM.t()).t(), rtol=1e-12, atol=1e-13)


def test_the_singular_vectors_of_the_kernel_solve_the_ksvd() -> None:
    """Let H_e and H_r be the top singular vectors, F_X a diagonal matrix, and Λ = (S F_X)⁻¹. Then both score equations hold, and J = 0."""
    torch.manual_seed(2)
    n, s = 20, 4
    layer = attention(8, 1, num_virtual=s, score_terms="sum", multiplier="plain", virtual_nodes="none")
    x = torch.randn(n, 8, dtype=torch.float64)
    phi_q, phi_k = (unit(x @ f.weight.t()) for f in (layer.query, layer.key))
    u, sigma, vt = torch.linalg.svd(phi_q @ phi_k.t())
    h_e, h_r = u[:, :s].t(), vt[:s]  # [S, N]
    f = torch.diag(torch.rand(s, dtype=torch.float64) + 0.5)
    capital_f = f @ f.t()
    with torch.no_grad():
        layer.common_SM.copy_(f)
        layer.weight_e_HMP.copy_((f.t() @ h_r @ phi_k).unsqueeze(0))
        layer.weight_r_HMP.copy_((f.t() @ h_e @ phi_q).unsqueeze(0))
        layer.multiplier_S.copy_(1 / (sigma[:s] * capital_f.diagonal()))
    graphs = batch_of(n)
    virtual = layer.virtual_node(x, graphs)
    e = primal_scores(phi_q.unsqueeze(1), layer.weight_e_HMP, virtual, graphs.by_graph)[:, 0]
    r = primal_scores(phi_k.unsqueeze(1), layer.weight_r_HMP, virtual, graphs.by_graph)[:, 0]
    torch.testing.assert_close(h_e, layer.multiplier_S.unsqueeze(1) * e.t(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(h_r, layer.multiplier_S.unsqueeze(1) * r.t(), rtol=1e-12, atol=1e-12)
    assert abs(layer(x, graphs).loss.item()) < 1e-12
    energy = float(0.5 * (e.square() * layer.multiplier_S).sum())
    assert energy == pytest.approx(float((sigma[:s] * capital_f.diagonal()).sum()) / 2)
    assert energy > 0.1


def test_equivariant_output_invariant_virtual_node() -> None:
    layer, graphs = attention(), batch_of(10)
    x, order = torch.randn(10, 12, dtype=torch.float64), torch.randperm(10)
    out, permuted = layer(x, graphs), layer(x[order], graphs)
    torch.testing.assert_close(permuted.x_nD, out.x_nD[order], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(matrix(permuted.virtual), matrix(out.virtual), rtol=1e-13, atol=1e-13)


def test_scores_do_not_depend_on_the_length_of_the_row() -> None:
    layer, graphs = attention(virtual_nodes="none"), batch_of(6)
    x = torch.randn(6, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x, graphs).x_nD, layer(7 * x, graphs).x_nD)


def test_a_running_virtual_node_adds_up() -> None:
    first = attention(virtual_nodes="running")
    second = attention(virtual_nodes="running", first=False)
    assert second.common_SM is None
    x, graphs = torch.randn(5, 12, dtype=torch.float64), batch_of(2, 3)
    one = first(x, graphs)
    two = second(one.x_nD, graphs, one.virtual)
    expected = first.common_SM + (first.shift(torch.stack([x[:2].mean(0), x[2:].mean(0)]))
                                  + second.shift(torch.stack([one.x_nD[:2].mean(0), one.x_nD[2:].mean(0)]))).unsqueeze(2)  # fmt: skip
    torch.testing.assert_close(matrix(two.virtual), expected)


def test_shared_heads_begin_orthogonal_over_all_of_them_and_have_appendix_ds_parameters() -> None:
    layer = PrimalAttention(12, 3, PrimalOptions(5, heads="shared"))
    whole_MD = layer.weight_e_HMP.transpose(0, 1).flatten(1)
    torch.testing.assert_close(whole_MD @ whole_MD.t(), torch.eye(5), rtol=0, atol=1e-6)
    d, m, s, h, p = 12, 5, 5, 3, 4
    expected = 2 * d * d + 2 * m * d + h * s + (2 * s * p + p) + (d * s + s) + s * m
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


def test_gradients() -> None:
    layer, graphs = attention(6, 2, num_virtual=3, num_scores=2), batch_of(3, 0, 2)
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def outputs(x: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, graphs))
        return out.x_nD, out.loss

    assert torch.autograd.gradcheck(outputs, (x, *values))


def test_zero_rows_give_zero_and_a_finite_gradient() -> None:
    layer = attention()
    x = torch.zeros(4, 12, dtype=torch.float64, requires_grad=True)
    out = layer(x, batch_of(4))
    assert torch.equal(out.x_nD, layer.out_bias.expand(4, -1))
    (out.x_nD.sum() + out.loss.square()).backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("sizes", [(), (0,), (0, 3), (1,)])
def test_empty_graphs_and_single_nodes(sizes: tuple[int, ...]) -> None:
    layer, n = attention(), sum(sizes)
    out = layer(torch.randn(n, 12, dtype=torch.float64), batch_of(*sizes))
    assert out.x_nD.shape == (n, 12)
    assert torch.isfinite(out.x_nD).all()
    assert torch.isfinite(out.loss)


def test_the_mean_of_the_batch_does_not_count_empty_graphs() -> None:
    layer, x = attention(), torch.randn(3, 12, dtype=torch.float64)
    # Batched products have other shapes for one graph than for three graphs.
    torch.testing.assert_close(layer(x, batch_of(3)).loss, layer(x, batch_of(0, 3, 0)).loss, rtol=1e-12, atol=1e-13)


def test_time_and_memory_are_linear_in_the_nodes() -> None:
    """The size of the tensors that autograd keeps is proportional to n. No tensor has n² entries, or n times the number of entries of f_X."""

    def kept(n: int) -> int:
        sizes: list[int] = []
        layer = attention(16, 2)
        pack = torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t)
        with pack:
            layer(torch.randn(n, 16, dtype=torch.float64), batch_of(n))
        return sum(sizes)

    assert kept(4000) - kept(2000) == 2 * (kept(2000) - kept(1000))


def test_bfloat16_autocast_keeps_the_scores_in_single() -> None:
    layer = attention().float()
    x = torch.randn(6, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x, batch_of(2, 4))
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.x_nD.float(), layer(x, batch_of(2, 4)).x_nD, rtol=0.05, atol=0.05)
