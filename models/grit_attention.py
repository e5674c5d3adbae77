"""GRIT's attention: a conditional perceptron over all pairs of nodes, without keeping what it computes per pair.

For query i and key j, with [w_ij ; b_ij] = W_E e_ij + bias per head (arXiv:2305.17589, eq. 2 to 5):

    ê_ij = ReLU( ρ((W_Q x_i + W_K x_j) ⊙ w_ij) + b_ij ),   ρ(t) = sign(t) √|t|
    s_ij = aᵀ ê_ij;   α = softmax over j;   dropout on α
    x̂_i  = Σ_j α_ij W_V x_j + W_Ev Σ_j α_ij ê_ij
    e'_ij = BatchNorm(e_ij + W_Oe ê_ij)

The reference code keeps about twenty tensors of pairs × width per layer. Here a layer keeps one, y = e + W_Oe ê: the rest is computed
a block of queries at a time, in buffers that stay in the processor's cache, and computed again in the backward pass, whose gradients are
written out by hand. The batch normalisation is folded in as one scale and shift per channel, which the next layer applies to y as it
reads it, and whose gradient flows back through y's mean and variance. Both are exact, not approximations.

Where ρ has no derivative, at t = 0, its gradient is taken as 0 (as the reference's two square roots give).

Legend: B graphs, N places per graph, D width, H heads, C = D/H, P pairs of a block, G graphs and R queries of a block.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from models.graphs import Padding

_LEVELS = 1 << 16
# Elements of one buffer. CPU: a dozen such buffers stay in the last-level cache, and calls are few. CUDA: fewer still.
_BLOCK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}


class Pairs(NamedTuple):
    """The states e = y·scale + shift of all pairs; scale and shift None stand for 1 and 0. Padding of y is 0."""

    y_BNND: Tensor
    scale_D: Tensor | None = None
    shift_D: Tensor | None = None

    def states(self) -> Tensor:
        """e [B, N, N, D]; padding is not masked."""
        if self.scale_D is None or self.shift_D is None:
            return self.y_BNND
        return torch.addcmul(self.shift_D, self.y_BNND, self.scale_D)


class PairNorm(nn.Module):
    """Batch normalisation over the real pairs of a batch, from moments to one scale and shift per channel.

    Parameters and buffers are named as nn.BatchNorm1d's. Under data parallelism each process normalises by its own pairs, as
    BatchNorm does by default; `sync=True` shares (count, Σ, Σ of squares about the own mean) over all processes, as SyncBatchNorm
    does, by one differentiable all-reduce of 2D + 1 numbers, so every process must run the same number of layers.
    """

    def __init__(self, width: int, *, momentum: float = 0.1, eps: float = 1e-5, sync: bool = False) -> None:
        super().__init__()
        self.momentum, self.eps, self.sync = momentum, eps, sync
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, mean_D: Tensor | None, var_D: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor]:
        """(scale, shift) from the batch's moments; from the running ones in eval mode, where the moments may be None."""
        if self.training and mean_D is not None and var_D is not None:
            if self.sync and torch.distributed.is_initialized():
                mean_D, var_D, count = _share_moments(mean_D, var_D, count)
            self._track(mean_D.detach(), var_D.detach(), count)
        else:
            mean_D, var_D = self.running_mean, self.running_var
        scale_D = self.weight * torch.rsqrt(var_D + self.eps)
        return scale_D, self.bias - mean_D * scale_D

    @torch.no_grad()
    def _track(self, mean_D: Tensor, var_D: Tensor, count: Tensor) -> None:
        # A single pair has no variance to learn from, and no pair has no mean.
        momentum = self.momentum * (count > 1).to(mean_D.dtype)
        unbiased_D = var_D * (count / (count - 1).clamp(min=1)).to(var_D.dtype)
        self.running_mean.lerp_(mean_D.to(self.running_mean.dtype), momentum.to(self.running_mean.dtype))
        self.running_var.lerp_(unbiased_D.to(self.running_var.dtype), momentum.to(self.running_var.dtype))
        self.num_batches_tracked += 1


def _share_moments(mean_D: Tensor, var_D: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from torch.distributed.nn.functional import all_reduce

    count = count.to(mean_D.dtype)
    first = all_reduce(torch.cat([mean_D * count, count.view(1)]))
    total = first[-1].clamp(min=1)
    mean = first[:-1] / total
    spread = all_reduce(count * (var_D + (mean_D - mean).square()))
    return mean, spread / total, total.detach()


class ConditionalAttention(nn.Module):
    """Attention and edge update of one GRIT layer; see the module's docstring.

    `clamp` bounds s to ±clamp (the code's 5; the paper has none). Initialised Xavier-normal with the tensors in the reference's
    shapes, which fix the fans. `dropout` acts on ê before W_Oe, `attention_dropout` on α.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        clamp: float | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__()
        if num_heads < 1 or width % num_heads:
            raise ValueError(f"width must be a multiple of the heads, got {width} and {num_heads}; set num_heads")
        self.num_heads, self.clamp, self.dropout, self.attention_dropout = num_heads, clamp, dropout, attention_dropout
        channels = width // num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(width, 2 * width)  # rows by head: C of w, then C of b
        self.score = nn.Parameter(torch.empty(channels, num_heads, 1))  # a
        self.edge_value = nn.Parameter(torch.empty(channels, num_heads, channels))  # W_Ev: in, head, out
        self.edge_out = nn.Linear(width, width)  # W_Oe
        self.edge_norm = PairNorm(width, momentum=momentum, sync=sync)
        for weight in (self.query.weight, self.key.weight, self.value.weight, self.edge.weight):
            nn.init.xavier_normal_(weight)
        nn.init.xavier_normal_(self.score)
        nn.init.xavier_normal_(self.edge_value)

    def forward(
        self, x_nD: Tensor, pairs: Pairs, padding: Padding, *, update_edges: bool = True
    ) -> tuple[Tensor, Pairs | None]:
        """(x̂ [n, D], the next pairs); without `update_edges` (the last layer: nothing reads them) None."""
        heads, width = self.num_heads, x_nD.shape[1]
        q_BND, k_BND, v_BND = (padding.pad(part(x_nD)) for part in (self.query, self.key, self.value))
        weight: Tensor = self.edge.weight
        bias: Tensor = self.edge.bias
        if pairs.scale_D is not None and pairs.shift_D is not None:
            # W (y·scale + shift) + b: W_E reads y itself.
            weight, bias = weight * pairs.scale_D, bias + (weight * pairs.shift_D).sum(1)
        weight_H2CD, bias_H2C = weight.view(heads, 2, -1, width), bias.view(heads, 2, -1)
        # a as a matrix [D, H], head h's channels in column h.
        score_DH = torch.diag_embed(self.score.squeeze(2)).transpose(0, 1).reshape(width, heads)
        full = x_nD.shape[0] == padding.num_graphs * padding.num_places
        mask_BN = None if full else padding.mask_BN
        moments = update_edges and self.edge_norm.training
        options = _Options(
            heads=heads,
            clamp=self.clamp,
            dropout=self.dropout if self.training else 0.0,
            attention_dropout=self.attention_dropout if self.training else 0.0,
            update_edges=update_edges,
            moments=moments,
            # Masks are drawn again in the backward pass, from this.
            seed=int(torch.randint(2**62, ())) if self.training and (self.dropout or self.attention_dropout) else 0,
            dtype=_compute_dtype(x_nD),
        )
        count = (padding.mask_BN.sum(1).square().sum()).to(pairs.y_BNND.dtype).clamp(min=1)
        value_BND, row_BND, y_BNND, mean_D, var_D = _PairAttention.apply(
            options,
            mask_BN,
            count,
            pairs.y_BNND,
            pairs.scale_D,
            pairs.shift_D,
            q_BND,
            k_BND,
            v_BND,
            weight_H2CD[:, 0].reshape(width, width),
            bias_H2C[:, 0].reshape(width),
            weight_H2CD[:, 1].reshape(width, width),
            bias_H2C[:, 1].reshape(width),
            score_DH,
            self.edge_out.weight,
            self.edge_out.bias,
        )
        row_nHC = padding.unpad(row_BND).unflatten(1, (heads, -1))
        edge_nD = torch.einsum("nhd,dhc->nhc", row_nHC, self.edge_value.to(row_nHC.dtype)).flatten(1)
        x_nD = padding.unpad(value_BND) + edge_nD
        if not update_edges:
            return x_nD, None
        scale_D, shift_D = self.edge_norm(mean_D, var_D, count)
        return x_nD, Pairs(y_BNND, scale_D, shift_D)


class _Options(NamedTuple):
    heads: int
    clamp: float | None
    dropout: float
    attention_dropout: float
    update_edges: bool
    moments: bool
    seed: int
    dtype: torch.dtype  # of products and buffers; y and the moments keep y's own


def _compute_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _blocks(num_graphs: int, places: int, width: int, device: str) -> Iterator[tuple[slice, slice]]:
    """Graphs and queries of each block: several whole graphs, or some queries of one graph."""
    if places == 0:
        return
    room = _BLOCK_ELEMENTS.get(device, _BLOCK_ELEMENTS["cuda"])
    graphs = room // max(places * places * width, 1)
    if graphs >= 1:
        for b in range(0, num_graphs, graphs):
            yield slice(b, min(b + graphs, num_graphs)), slice(0, places)
        return
    rows = max(room // (places * width), 1)
    for b in range(num_graphs):
        for i in range(0, places, rows):
            yield slice(b, b + 1), slice(i, min(i + rows, places))


class _Block:
    """What forward and backward compute alike for one block of pairs, in buffers that blocks share."""

    def __init__(self, options: _Options, mask_BN: Tensor | None, tensors: tuple[Tensor, ...]) -> None:
        y, self.scale, self.shift, q, k, v, w_weight, w_bias, b_weight, b_bias, score, o_weight, o_bias = tensors
        dtype = options.dtype
        self.options, self.mask_BN, self.y = options, mask_BN, y
        self.offset = None if self.shift is None else self.shift + o_bias
        self.q, self.k = q.to(dtype), k.to(dtype)
        self.v_HBNC = v.to(dtype).unflatten(2, (options.heads, -1)).permute(2, 0, 1, 3).contiguous()
        self.w_weight, self.w_bias = w_weight.to(dtype), w_bias.to(dtype)
        self.b_weight, self.b_bias = b_weight.to(dtype), b_bias.to(dtype)
        self.o_weight, self.o_bias = o_weight.to(dtype), o_bias
        # Products with a contiguous right side are a third faster on the CPU.
        self.w_weight_t, self.b_weight_t, self.o_weight_t = (
            weight.t().contiguous() for weight in (self.w_weight, self.b_weight, self.o_weight)
        )
        self.score_t = score.to(dtype).t().contiguous()
        width, heads = score.shape
        # Row h is one on head h's channels.
        self.own_HD = torch.eye(heads, dtype=dtype, device=score.device).repeat_interleave(width // heads, dim=1)
        self.generator: torch.Generator | None = None
        if options.dropout or options.attention_dropout:
            self.generator = torch.Generator(device=y.device)
            self.generator.manual_seed(options.seed)
        self._buffers: dict[str, Tensor] = {}

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        num_graphs, places, _, width = self.y.shape
        return _blocks(num_graphs, places, width, self.y.device.type)

    def buffer(self, name: str, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor of `like`'s shape, in memory that stays warm from block to block. The first block is the largest."""
        dtype = dtype or self.options.dtype
        if name not in self._buffers:
            self._buffers[name] = torch.empty(like.numel(), dtype=dtype, device=like.device)
        return self._buffers[name][: like.numel()].view(like.shape)

    def enter(self, graphs: slice, rows: slice) -> None:
        """Computes w, u = q + k, 1/√|t| and ê of the block, [P, D] each."""
        y_GRND = self.y[graphs, rows]
        self.shape = y_GRND.shape
        self.y_PD = y_GRND.view(-1, y_GRND.shape[-1]).to(self.options.dtype)
        self.w = torch.addmm(self.w_bias, self.y_PD, self.w_weight_t, out=self.buffer("w", self.y_PD))
        u = self.buffer("u", y_GRND)
        torch.add(self.q[graphs, rows].unsqueeze(2), self.k[graphs].unsqueeze(1), out=u)
        self.u = u.view_as(self.w)
        t = torch.mul(self.w, self.u, out=self.buffer("t", self.w))
        # √|t|/(|t| + tiny): 1/√|t|, and 0 at t = 0, where ρ(t) = t/√|t| is 0 and ρ'(t) = 1/(2√|t|) is to be 0.
        size = torch.abs(t, out=self.buffer("size", t))
        self.inverse = torch.sqrt(size, out=self.buffer("inverse", t))
        self.inverse.div_(size.add_(torch.finfo(t.dtype).tiny))
        self.hat = torch.addcmul(self.b_bias, t, self.inverse, out=self.buffer("hat", t))
        self.hat.addmm_(self.y_PD, self.b_weight_t).relu_()

    def update(self, graphs: slice, rows: slice, out: Tensor) -> None:
        """Writes y·scale + shift + W_Oe ê to `out` [G, R, N, D], zeros on padding."""
        y = self.y[graphs, rows]
        if self.scale is None:
            torch.add(y, self.o_bias, out=out)
        else:
            torch.addcmul(self.offset, y, self.scale, out=out)
        flat = out.view(-1, out.shape[-1])
        if flat.dtype == self.hat.dtype:
            flat.addmm_(self.hat, self.o_weight_t)
        else:
            flat.add_(self.hat @ self.o_weight_t)
        mask = self.real_pairs(graphs, rows)
        if mask is not None:
            out.mul_(mask)

    def real_pairs(self, graphs: slice, rows: slice) -> Tensor | None:
        """[G, R, N, 1] of ones on real pairs, zeros on padding; None where all are real."""
        if self.mask_BN is None:
            return None
        mask = self.mask_BN[graphs, rows].unsqueeze(2) & self.mask_BN[graphs].unsqueeze(1)
        return mask.unsqueeze(3).to(self.y.dtype)

    def attend(self, graphs: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """(s, α, dropout's factors) of the block, [H, G, R, N] each, s before the clamp."""
        g, r, places, _ = self.shape
        s = torch.mm(self.score_t, self.hat.t()).view(-1, g, r, places)
        bounded = s.float() if s.dtype in (torch.bfloat16, torch.float16) else s
        if self.options.clamp is not None:
            bounded = bounded.clamp(-self.options.clamp, self.options.clamp)
        if self.mask_BN is not None:
            # The least finite number: a graph without nodes must not divide 0 by 0.
            bounded = bounded.masked_fill(
                ~self.mask_BN[graphs].unsqueeze(1).unsqueeze(0), torch.finfo(bounded.dtype).min
            )
        alpha = torch.softmax(bounded, dim=-1).to(self.options.dtype)
        return s, alpha, self.keep(alpha, self.options.attention_dropout)

    def keep(self, like: Tensor, p: float) -> Tensor | None:
        """Factors 0 or 1/(1 - p), the same in forward and backward for the same order of calls."""
        if not p:
            return None
        if like.device.type != "cpu":
            return torch.rand(like.shape, device=like.device, generator=self.generator).ge_(p).to(like.dtype) / (1 - p)
        dropped = min(round(p * _LEVELS), _LEVELS - 1)
        words = torch.empty((like.numel() + 3) // 4, dtype=torch.int64)
        levels = words.random_(-(2**63), None, generator=self.generator).view(torch.int16)[: like.numel()]
        return (levels >= dropped - _LEVELS // 2).to(like.dtype).mul_(_LEVELS / (_LEVELS - dropped)).view(like.shape)


class _PairAttention(torch.autograd.Function):
    """(Σ α v, Σ α ê, y', mean of y', variance of y'), block by block; keeps its inputs and y' for the backward pass."""

    @staticmethod
    def forward(ctx, options: _Options, mask_BN, count, *tensors):
        y = tensors[0]
        with torch.autocast(y.device.type, enabled=False):
            block = _Block(options, mask_BN, tensors)
            value, row = torch.zeros_like(block.q), torch.zeros_like(block.q)
            out = torch.empty_like(y) if options.update_edges else None
            moments: list[tuple[Tensor, Tensor, Tensor]] = []
            for graphs, rows in block.blocks():
                block.enter(graphs, rows)
                hat = block.hat
                _, alpha, kept = block.attend(graphs)
                if kept is not None:
                    alpha = alpha * kept
                value[graphs, rows] = _from_heads(torch.matmul(alpha, block.v_HBNC[:, graphs]))
                row[graphs, rows] = _sum_edges(alpha, hat, block.shape)
                if out is None:
                    continue
                dropped = block.keep(hat, options.dropout)
                if dropped is not None:
                    hat.mul_(dropped)
                fresh = out[graphs, rows]
                block.update(graphs, rows, fresh)
                if options.moments:
                    moments.append(
                        _moments(fresh, block.real_pairs(graphs, rows), block.buffer("moments", hat, y.dtype))
                    )
            mean, var = _pool_moments(moments, count) if moments else (None, None)
        ctx.options, ctx.mask_BN = options, mask_BN
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, count, out, mean)
        return value, row, out, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx, d_value, d_row, d_out, d_mean, d_var):
        *tensors, count, out, mean = ctx.saved_tensors
        with torch.autocast(tensors[0].device.type, enabled=False):
            gradients = _backward(
                ctx.options, ctx.mask_BN, count, tensors, out, mean, d_value, d_row, d_out, d_mean, d_var
            )
        return None, None, None, *gradients


def _backward(options, mask_BN, count, tensors, out, mean, d_value, d_row, d_out, d_mean, d_var):
    """Gradients of the thirteen tensors; each block is computed again first."""
    block = _Block(options, mask_BN, tensors)
    y, scale, _, q, k, v = tensors[:6]
    dtype = options.dtype
    d_y = torch.empty_like(y)
    d_q, d_k, d_v_HBNC = torch.zeros_like(block.q), torch.zeros_like(block.k), torch.zeros_like(block.v_HBNC)
    d_value = torch.zeros_like(block.q) if d_value is None else d_value.to(dtype)
    d_row = torch.zeros_like(block.q) if d_row is None else d_row.to(dtype)
    sums = {
        name: torch.zeros_like(tensor)
        for name, tensor in zip(
            ("w_weight", "w_bias", "b_weight", "b_bias", "score", "o_weight", "o_bias"),
            tensors[6:],
        )
    }
    d_scale: Tensor | None = None
    if scale is not None:
        d_scale = torch.zeros_like(scale)
    # y' enters its own mean and variance: d y' += d_mean/count + 2 d_var (y' - mean)/count on real pairs.
    slope: Tensor | None = None
    offset: Tensor | None = None
    if mean is not None and (d_mean is not None or d_var is not None):
        slope = torch.zeros_like(mean) if d_var is None else 2 * d_var / count
        offset = (torch.zeros_like(mean) if d_mean is None else d_mean / count) - slope * mean
    updates = out is not None and (d_out is not None or slope is not None)
    for graphs, rows in block.blocks():
        block.enter(graphs, rows)
        g, r, places, width = block.shape
        hat, y_PD = block.hat, block.y_PD
        s, alpha, kept = block.attend(graphs)
        alpha_kept = alpha if kept is None else alpha * kept

        d_hat = block.buffer("t", hat)
        d_fresh = None
        if updates:
            dropped = block.keep(hat, options.dropout)
            d_fresh = _gradient_of_update(block, out, d_out, slope, offset, graphs, rows)
            d_flat = d_fresh.view(-1, width)
            sums["o_bias"] += d_flat.sum(0)
            if d_scale is not None:
                product = torch.mul(d_fresh, y[graphs, rows], out=block.buffer("product", d_fresh, y.dtype))
                d_scale += product.view(-1, width).sum(0)
            d_flat = d_flat.to(dtype)
            torch.mm(d_flat, block.o_weight, out=d_hat)
            seen = hat
            if dropped is not None:
                d_hat.mul_(dropped)
                seen = hat * dropped
            sums["o_weight"] += d_flat.t() @ seen
        else:
            # Keeps the generator in step with the forward pass.
            if options.update_edges:
                block.keep(hat, options.dropout)
            d_hat.zero_()

        # x̂'s two sums.
        d_value_HGRC = _to_heads(d_value[graphs, rows], options.heads)
        d_alpha = torch.matmul(d_value_HGRC, block.v_HBNC[:, graphs].transpose(2, 3))
        d_v_HBNC[:, graphs] += torch.matmul(alpha_kept.transpose(2, 3), d_value_HGRC)
        d_row_Q1D = d_row[graphs, rows].reshape(g * r, 1, width)
        product = torch.mul(
            hat.view(g * r, places, width), d_row_Q1D, out=block.buffer("size", hat).view(g * r, places, width)
        )
        d_alpha += torch.mm(block.own_HD, product.view(-1, width).t()).view_as(d_alpha)
        if kept is not None:
            d_alpha *= kept
        d_s = alpha * (d_alpha - (alpha * d_alpha).sum(-1, keepdim=True))
        if options.clamp is not None:
            d_s = d_s.masked_fill(s.abs() > options.clamp, 0.0)
        d_s_HP = d_s.reshape(options.heads, -1)
        sums["score"] += (d_s_HP @ hat).t()
        d_hat.addmm_(d_s_HP.t(), block.score_t)
        d_hat.view(g * r, places, width).baddbmm_(
            alpha_kept.view(options.heads, g * r, places).permute(1, 2, 0), d_row_Q1D * block.own_HD
        )

        torch.ops.aten.threshold_backward.grad_input(d_hat, hat, 0, grad_input=d_hat)  # ReLU
        sums["b_weight"] += d_hat.t() @ y_PD
        sums["b_bias"] += d_hat.sum(0)
        d_e = torch.mm(d_hat, block.b_weight, out=block.buffer("d_e", hat))
        d_t = d_hat.mul_(block.inverse)  # twice it: the halves come where numbers are few
        d_w = torch.mul(d_t, block.u, out=block.u)
        sums["w_weight"] += d_w.t() @ y_PD
        sums["w_bias"] += d_w.sum(0)
        d_e.addmm_(d_w, block.w_weight, alpha=0.5)
        d_u = torch.mul(d_t, block.w, out=d_t).view(block.shape)
        d_q[graphs, rows] = d_u.sum(2)
        d_k[graphs] += d_u.sum(1)

        d_block = d_y[graphs, rows]
        if d_fresh is None:
            d_block.copy_(d_e.view(block.shape))
        elif scale is None:
            torch.add(d_fresh, d_e.view(block.shape), out=d_block)
        else:
            torch.addcmul(d_e.view(block.shape), d_fresh, scale, out=d_block)
    d_v = d_v_HBNC.permute(1, 2, 0, 3).flatten(2)
    for twice in (d_q, d_k, sums["w_weight"], sums["w_bias"]):
        twice.mul_(0.5)
    # The shift adds to y' as W_Oe's bias does; through W_E it goes another way.
    d_shift = None if scale is None else sums["o_bias"]
    return d_y, d_scale, d_shift, d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), *sums.values()


def _gradient_of_update(block: _Block, out, d_out, slope, offset, graphs: slice, rows: slice) -> Tensor:
    """The whole gradient of the block's y', [G, R, N, D]: its own and through the moments."""
    d_fresh = block.buffer("d_fresh", out[graphs, rows], out.dtype)
    if slope is None:
        d_fresh.copy_(d_out[graphs, rows])
    else:
        torch.addcmul(offset, out[graphs, rows], slope, out=d_fresh)
        if d_out is not None:
            d_fresh.add_(d_out[graphs, rows])
    mask = block.real_pairs(graphs, rows)
    return d_fresh if mask is None else d_fresh.mul_(mask)


def _from_heads(x_HGRC: Tensor) -> Tensor:
    return x_HGRC.permute(1, 2, 0, 3).flatten(2)


def _to_heads(x_GRD: Tensor, heads: int) -> Tensor:
    return x_GRD.unflatten(2, (heads, -1)).permute(2, 0, 1, 3)


def _sum_edges(alpha_HGRN: Tensor, hat_PD: Tensor, shape: torch.Size) -> Tensor:
    """Σ_j α_ij ê_ij [G, R, D], per head: all heads against all channels, of which a head's own are kept.

    H times the work of the sum, and yet faster than a product with a broadcast α, since it is one matrix product.
    """
    g, r, places, width = shape
    heads = alpha_HGRN.shape[0]
    all_QHD = torch.bmm(alpha_HGRN.view(heads, g * r, places).transpose(0, 1), hat_PD.view(g * r, places, width))
    own_QHC = all_QHD.unflatten(2, (heads, -1)).diagonal(dim1=1, dim2=2).transpose(1, 2)
    return own_QHC.reshape(g, r, width)


def _moments(fresh_GRND: Tensor, mask: Tensor | None, scratch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(count, mean, Σ of squares about it) over the block's real pairs; padding of the input is 0."""
    flat = fresh_GRND.reshape(-1, fresh_GRND.shape[-1])
    count = flat.new_full((), float(flat.shape[0])) if mask is None else mask.sum()
    mean = flat.sum(0) / count.clamp(min=1)
    squares = torch.sub(flat, mean, out=scratch).square_()
    return count, mean, squares.sum(0) if mask is None else mask.view(1, -1).mm(squares).squeeze(0)


def _pool_moments(moments: list[tuple[Tensor, Tensor, Tensor]], total: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance over all blocks: Chan's formula, which does not cancel."""
    count, mean, spread = (torch.stack(part) for part in zip(*moments))
    share = (count / total).unsqueeze(1)
    pooled = (share * mean).sum(0)
    return pooled, spread.sum(0) / total + (share * (mean - pooled).square()).sum(0)
