"""Implements GRIT's attention: a conditional perceptron over all pairs of nodes, which keeps few tensors per pair for the backward pass.

For query i and key j, with [w_ij ; b_ij] = W_E e_ij + bias per head (arXiv:2305.17589, eq. 2 to 5):

    ê_ij = ReLU( ρ((W_Q x_i + W_K x_j) ⊙ w_ij) + b_ij ),   ρ(t) = sign(t) √|t|
    s_ij = aᵀ ê_ij;   α = softmax over j;   dropout on α
    x̂_i  = Σ_j α_ij W_V x_j + W_Ev Σ_j α_ij ê_ij
    e'_ij = BatchNorm(e_ij + W_Oe ê_ij)

The reference code keeps about twenty tensors of pairs × width per layer. Here the layer computes one block of queries at a time, with
hand-written gradients. A layer keeps y = e + W_Oe ê. If `pair_memory` has room, the layer also keeps ê, the two derivatives of ρ and the
inputs of the softmax's gradient: 3 + 3/C tensors more. Without room, blocks share buffers for these tensors, and the backward pass computes
the tensors again, which adds two matrix products to its nine. Batch normalisation becomes one scale and shift per channel. The next layer
applies scale and shift when it reads y; their gradient flows back through y's mean and variance. All this is exact, not an approximation.

ρ has no derivative at t = 0; there the gradient is taken as 0 (the reference's two square roots give the same).

Legend: B graphs, N places per graph, D width, H heads, C = D/H, P pairs of a block, G graphs and R queries of a block.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from graphmill.models.grit.options import GRITConfig
from graphmill.models.primitives.dropout import dropout_factors
from graphmill.models.primitives.graphs import Padding, pair_blocks, unit_values
from graphmill.models.primitives.segments import at_least_float32

# Elements of one buffer. On a CPU, buffers of this size stay in the last-level cache and need few calls. On CUDA the buffers are larger and need even fewer
# calls.
_BLOCK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 25}


class Pairs(NamedTuple):
    """Holds the states e = y·scale + shift of all pairs; scale None means 1, shift None means 0. Padding of y is 0."""

    y_BNND: Tensor
    scale_D: Tensor | None = None
    shift_D: Tensor | None = None

    def states(self) -> Tensor:
        """e [B, N, N, D]; padding is not masked."""
        if self.scale_D is None or self.shift_D is None:
            return self.y_BNND
        return torch.addcmul(self.shift_D, self.y_BNND, self.scale_D)


class PairNorm(nn.Module):
    """Is batch normalisation over the real pairs of a batch: computes one scale and one shift per channel from the moments.

    Parameters and buffers have the same names as in nn.BatchNorm1d. As in BatchNorm, statistics cover the pairs of one forward pass.
    """

    def __init__(self, width: int, *, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, 1e-5
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, mean_D: Tensor | None, var_D: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (scale, shift) from the batch's moments. Eval mode uses the running moments, and the arguments may be None."""
        if self.training and mean_D is not None and var_D is not None:
            self._track(mean_D.detach(), var_D.detach(), count)
        else:
            mean_D, var_D = self.running_mean, self.running_var
        scale_D = self.weight * torch.rsqrt(var_D + self.eps)
        return scale_D, self.bias - mean_D * scale_D

    @torch.no_grad()
    def _track(self, mean_D: Tensor, var_D: Tensor, count: Tensor) -> None:
        # With fewer than two pairs the momentum is 0: one pair has no variance, and zero pairs have no mean.
        momentum = self.momentum * (count > 1).to(mean_D.dtype)
        unbiased_D = var_D * (count / (count - 1).clamp(min=1)).to(var_D.dtype)
        self.running_mean.lerp_(mean_D.to(self.running_mean.dtype), momentum.to(self.running_mean.dtype))
        self.running_var.lerp_(unbiased_D.to(self.running_var.dtype), momentum.to(self.running_var.dtype))
        self.num_batches_tracked += 1


class ConditionalAttention(nn.Module):
    """Attention and edge update of one GRIT layer; see the module's docstring.

    Initial weights are Xavier-normal with the fans of the reference's tensor shapes. `dropout` acts on ê before W_Oe,
    `attention_dropout` on α. `pair_memory`: bytes that a call may keep for its backward pass in addition to y.
    """

    kept_weights: list[Tensor] | None = None  # each call appends its α [B, H, N, N]; None: α is not kept

    def __init__(self, config: GRITConfig) -> None:
        super().__init__()
        width, num_heads = config.width, config.num_heads
        channels = width // num_heads
        self.num_heads, self.clamp, self.pair_memory = num_heads, config.score_clamp, config.pair_memory
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(width, 2 * width)  # rows of each head: C rows of w, then C of b
        self.score = nn.Parameter(torch.empty(channels, num_heads, 1))  # a
        self.edge_value = nn.Parameter(torch.empty(channels, num_heads, channels))  # W_Ev: in, head, out
        self.edge_out = nn.Linear(width, width)  # W_Oe
        self.edge_norm = PairNorm(width, momentum=config.momentum)
        for weight in (self.query.weight, self.key.weight, self.value.weight, self.edge.weight):
            nn.init.xavier_normal_(weight)
        nn.init.xavier_normal_(self.score)
        nn.init.xavier_normal_(self.edge_value)

    def forward(
        self,
        x_nD: Tensor,
        pairs: Pairs,
        padding: Padding,
        *,
        update_edges: bool = True,
        allowed_BNN: Tensor | None = None,
    ) -> tuple[Tensor, Pairs | None]:
        """Returns (x̂ [n, D], the next pairs). Without `update_edges` (in the last layer, because nothing reads its pairs) the pairs are None.

        `allowed_BNN`: the pairs that sparse attention uses, at least one for each node; None: all pairs of real nodes.
        """
        heads, width = self.num_heads, x_nD.shape[1]
        places = (padding.num_graphs, padding.num_places)
        full = x_nD.shape[0] == places[0] * places[1]  # without padding both layouts are the same
        q_BND, k_BND, v_BND = (
            part(x_nD).view(*places, width) if full else padding.pad(part(x_nD))
            for part in (self.query, self.key, self.value)
        )
        weight: Tensor = self.edge.weight
        bias: Tensor = self.edge.bias
        if pairs.scale_D is not None and pairs.shift_D is not None:
            # W (y·scale + shift) + b: scale and shift are folded into W_E, which then reads y.
            weight, bias = weight * pairs.scale_D, bias + (weight * pairs.shift_D).sum(1)
        weight_H2CD, bias_H2C = weight.view(heads, 2, -1, width), bias.view(heads, 2, -1)
        # The parameter a as a matrix [D, H]: column h holds the channels of head h.
        score_DH = torch.diag_embed(self.score.squeeze(2)).transpose(0, 1).reshape(width, heads)
        mask = None if full else padding.mask_BN
        mask = mask if allowed_BNN is None else allowed_BNN
        moments = update_edges and self.edge_norm.training
        dtype = _compute_dtype(x_nD)
        kept_bytes = pairs.y_BNND[..., 0].numel() * (3 * width + 3 * heads) * dtype.itemsize
        options = _Options(
            heads=heads,
            clamp=self.clamp,
            dropout=self.dropout if self.training else 0.0,
            attention_dropout=self.attention_dropout if self.training else 0.0,
            update_edges=update_edges,
            moments=moments,
            keep=torch.is_grad_enabled() and kept_bytes <= self.pair_memory,
            # The backward pass draws the masks again from this key.
            seed=int(torch.randint(2**62, ())) if self.training and (self.dropout or self.attention_dropout) else 0,
            dtype=dtype,
            kept_weights=self.kept_weights,
        )
        count = padding.mask_BN.sum(1).square().sum() if allowed_BNN is None else allowed_BNN.sum()
        count = count.to(pairs.y_BNND.dtype).clamp(min=1)
        value_BND, row_BND, y_BNND, mean_D, var_D = _PairAttention.apply(
            options,
            mask,
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
        value_nD, row_nD = (part.flatten(0, 1) if full else padding.unpad(part) for part in (value_BND, row_BND))
        row_nHC = row_nD.unflatten(1, (heads, -1))
        edge_nD = torch.einsum("nhd,dhc->nhc", row_nHC, self.edge_value.to(row_nHC.dtype)).flatten(1)
        x_nD = value_nD + edge_nD
        if not update_edges:
            return x_nD, None
        scale_D, shift_D = self.edge_norm(mean_D, var_D, count)
        return x_nD, Pairs(y_BNND, scale_D, shift_D)


class BiasAttention(nn.Module):
    """Is Graphormer's attention in place of conditional attention (GRIT's ablation): softmax_j(q_i·k_j/√C + b_h(e_ij)); pairs do not change."""

    kept_weights: list[Tensor] | None = None

    def __init__(self, config: GRITConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads, self.attention_dropout = config.num_heads, config.attention_dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.bias = nn.Linear(width, config.num_heads)

    def forward(
        self,
        x_nD: Tensor,
        pairs: Pairs,
        padding: Padding,
        *,
        update_edges: bool = True,
        allowed_BNN: Tensor | None = None,
    ) -> tuple[Tensor, Pairs | None]:
        """Has the call signature of a ConditionalAttention."""
        q, k, v = (
            padding.pad(part(x_nD)).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = padding.mask_BN.unsqueeze(1) if allowed_BNN is None else allowed_BNN
        bias_BHNN = self.bias(pairs.states()).permute(0, 3, 1, 2).to(q.dtype)
        bias_BHNN = bias_BHNN.masked_fill(~seen.unsqueeze(1), torch.finfo(q.dtype).min)
        dropout = self.attention_dropout if self.training else 0.0
        attend = partial(nn.functional.scaled_dot_product_attention, q, k, attn_mask=bias_BHNN, dropout_p=dropout)
        if self.kept_weights is not None:
            self.kept_weights.append(attend(value=unit_values(v)))
        y_BHNC = attend(value=v)
        return padding.unpad(y_BHNC.transpose(1, 2).flatten(2)), pairs


class _Options(NamedTuple):
    heads: int
    clamp: float | None
    dropout: float
    attention_dropout: float
    update_edges: bool
    moments: bool
    keep: bool  # whether the backward pass keeps each block's tensors instead of computing them again
    seed: int
    dtype: torch.dtype  # dtype of products and buffers; y and the moments have y's dtype
    kept_weights: list[Tensor] | None


def _compute_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class _Kept(NamedTuple):
    """Holds a block's tensors for the backward pass: 2 ∂ρ/∂w, 2 ∂ρ/∂u and ê, [P, D] each; s, α and dropout's factors, [H, G, R, N] each."""

    to_w: Tensor
    to_u: Tensor
    hat: Tensor
    s: Tensor
    alpha: Tensor
    factors: Tensor | None


class _Block:
    """Computes the part that forward and backward have in common for one block of pairs. All blocks use the same buffers."""

    def __init__(self, options: _Options, mask: Tensor | None, tensors: tuple[Tensor, ...]) -> None:
        """`mask`: real nodes [B, N], or allowed pairs [B, N, N]; None: all nodes and pairs."""
        y, self.scale, self.shift, q, k, v, w_weight, w_bias, b_weight, b_bias, score, o_weight, o_bias = tensors
        dtype = options.dtype
        self.options, self.mask, self.y = options, mask, y
        self.offset = None if self.shift is None else self.shift + o_bias
        self.q, self.k = q.to(dtype), k.to(dtype)
        self.v_HBNC = v.to(dtype).unflatten(2, (options.heads, -1)).permute(2, 0, 1, 3).contiguous()
        self.w_weight, self.w_bias = w_weight.to(dtype), w_bias.to(dtype)
        self.b_weight, self.b_bias = b_weight.to(dtype), b_bias.to(dtype)
        self.o_weight, self.o_bias = o_weight.to(dtype), o_bias
        # On the CPU, products with a contiguous right side are a third faster. One common product for w and b is not faster, because its two halves are
        # strided.
        self.w_weight_t, self.b_weight_t, self.o_weight_t = (
            weight.t().contiguous() for weight in (self.w_weight, self.b_weight, self.o_weight)
        )
        self.score_t = score.to(dtype).t().contiguous()
        width, heads = score.shape
        # Row h has ones at head h's channels.
        self.own_HD = torch.eye(heads, dtype=dtype, device=score.device).repeat_interleave(width // heads, dim=1)
        self._buffers: dict[str, Tensor] = {}

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        num_graphs, places, _, width = self.y.shape
        room = _BLOCK_ELEMENTS.get(self.y.device.type, _BLOCK_ELEMENTS["cuda"])
        return pair_blocks(num_graphs, places, width, room)

    def buffer(self, name: str, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Returns an uninitialised tensor of `like`'s shape. All blocks reuse its memory, so it stays in the cache. The first block is the largest."""
        dtype = dtype or self.options.dtype
        if name not in self._buffers:
            self._buffers[name] = torch.empty(like.numel(), dtype=dtype, device=like.device)
        return self._buffers[name][: like.numel()].view(like.shape)

    def pairs(self, graphs: slice, rows: slice) -> Tensor:
        """y of the block, [P, D]."""
        return self.y[graphs, rows].flatten(0, 2).to(self.options.dtype)

    def compute(self, graphs: slice, rows: slice) -> _Kept:
        """Computes the block: in new tensors if they are kept, else in buffers."""
        y_GRND = self.y[graphs, rows]
        y_PD = self.pairs(graphs, rows)

        def room(name: str, like: Tensor) -> Tensor:
            return torch.empty_like(like, dtype=self.options.dtype) if self.options.keep else self.buffer(name, like)

        w = torch.addmm(self.w_bias, y_PD, self.w_weight_t, out=room("w", y_PD))
        u = room("u", y_GRND)
        torch.add(self.q[graphs, rows].unsqueeze(2), self.k[graphs].unsqueeze(1), out=u)
        u = u.view_as(w)
        # Computes 1/√|t|. For t = 0, |t| is replaced by ∞, which gives 0: ρ(t) = t/√|t| and ρ'(t) = 1/(2√|t|) are then both 0.
        inverse = torch.mul(w, u, out=self.buffer("inverse", w)).abs_()
        torch.threshold_(inverse, 0.0, float("inf")).rsqrt_()
        to_w = u.mul_(inverse)
        hat = torch.addcmul(self.b_bias, w, to_w, out=room("hat", w))
        hat.addmm_(y_PD, self.b_weight_t).relu_()
        return _Kept(to_w, w.mul_(inverse), hat, *self._attend(hat, graphs, rows, y_GRND.shape))

    def _attend(
        self, hat: Tensor, graphs: slice, rows: slice, shape: torch.Size
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns (s after the clamp, α, dropout's factors)."""
        g, r, places, _ = shape
        s = torch.mm(self.score_t, hat.t()).view(-1, g, r, places)
        s = at_least_float32(s)
        if self.options.clamp is not None:
            s.clamp_(-self.options.clamp, self.options.clamp)
        bounded = s
        if self.mask is not None:
            seen = self.mask[graphs].unsqueeze(1) if self.mask.dim() == 2 else self.mask[graphs, rows]
            # The mask value is the least finite number, not -∞: a graph without nodes must not divide 0 by 0.
            bounded = s.masked_fill(~seen, torch.finfo(s.dtype).min)
        alpha = torch.softmax(bounded, dim=-1).to(self.options.dtype)
        if not self.options.attention_dropout:
            return s, alpha, None
        # Elements are numbered in the order graph, query, head, key.
        like_GRHN = alpha.permute(1, 2, 0, 3)
        start = self._first_query(graphs, rows) * like_GRHN[0, 0].numel()
        factors = dropout_factors(self.options.attention_dropout, self.options.seed, start, like_GRHN)
        return s, alpha, factors.permute(2, 0, 1, 3)

    def edge_factors(self, hat: Tensor, graphs: slice, rows: slice) -> Tensor | None:
        """Returns dropout's factors of ê [P, D], numbered in the order graph, query, key, channel; None without dropout."""
        if not self.options.dropout:
            return None
        start = self._first_query(graphs, rows) * self.y[0, 0].numel()
        return dropout_factors(self.options.dropout, self.options.seed + 1, start, hat)

    def _first_query(self, graphs: slice, rows: slice) -> int:
        """Returns the index of the block's first query among the queries of all graphs."""
        return int(graphs.start) * self.y.shape[1] + int(rows.start)

    def update(self, hat: Tensor, graphs: slice, rows: slice, out: Tensor) -> None:
        """Writes y·scale + shift + W_Oe ê to `out` [G, R, N, D], zeros on padding."""
        y = self.y[graphs, rows]
        if self.scale is None:
            torch.add(y, self.o_bias, out=out)
        else:
            torch.addcmul(self.offset, y, self.scale, out=out)
        flat = out.view(-1, out.shape[-1])
        if flat.dtype == hat.dtype:
            flat.addmm_(hat, self.o_weight_t)
        else:
            flat.add_(hat @ self.o_weight_t)
        mask = self.real_pairs(graphs, rows)
        if mask is not None:
            out.mul_(mask)

    def real_pairs(self, graphs: slice, rows: slice) -> Tensor | None:
        """[G, R, N, 1]: 1 on real pairs, 0 on padding; None if all pairs are real."""
        if self.mask is None:
            return None
        mask = self.mask[graphs, rows]
        if self.mask.dim() == 2:
            mask = mask.unsqueeze(2) & self.mask[graphs].unsqueeze(1)
        return mask.unsqueeze(3).to(self.y.dtype)


class _PairAttention(torch.autograd.Function):
    """Computes (Σ α v, Σ α ê, y', mean of y', variance of y') block by block; keeps its inputs, y' and, with `keep`, the blocks."""

    @staticmethod
    def forward(ctx, options: _Options, mask, count, *tensors):
        y = tensors[0]
        with torch.autocast(y.device.type, enabled=False):
            block = _Block(options, mask, tensors)
            value, row = torch.empty_like(block.q), torch.empty_like(block.q)
            out = torch.empty_like(y) if options.update_edges else None
            moments: list[tuple[Tensor, Tensor, Tensor]] = []
            kept: list[Tensor | None] = []
            if options.kept_weights is not None:
                options.kept_weights.append(y.new_zeros(len(y), options.heads, *y.shape[1:3]))
            for graphs, rows in block.blocks():
                computed = block.compute(graphs, rows)
                hat, alpha = computed.hat, computed.alpha
                if options.keep:
                    kept += computed
                if options.kept_weights is not None:
                    options.kept_weights[-1][graphs, :, rows] = alpha.transpose(0, 1).to(y.dtype)
                if computed.factors is not None:
                    alpha = alpha * computed.factors
                value[graphs, rows] = _from_heads(torch.matmul(alpha, block.v_HBNC[:, graphs]))
                row[graphs, rows] = _sum_edges(alpha, hat, y[graphs, rows].shape)
                if out is None:
                    continue
                factors = block.edge_factors(hat, graphs, rows)
                if factors is not None:
                    hat = factors.mul_(hat)
                fresh = out[graphs, rows]
                block.update(hat, graphs, rows, fresh)
                if options.moments:
                    moments.append(_moments(fresh, block.real_pairs(graphs, rows)))
            mean, var = _pool_moments(moments, count) if moments else (None, None)
        ctx.options, ctx.mask = options, mask
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(count, out, mean, *tensors, *kept)
        return value, row, out, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx, *d_outputs):
        saved = ctx.saved_tensors
        with torch.autocast(saved[0].device.type, enabled=False):
            gradients = _backward(ctx.options, ctx.mask, saved[:3], saved[3:16], saved[16:], *d_outputs)
        return None, None, None, *gradients


def _backward(options, mask, results, tensors, kept, d_value, d_row, d_out, d_mean, d_var):
    """Returns the gradients of the thirteen tensors; first computes again each block that was not kept."""
    count, out, mean = results
    block = _Block(options, mask, tensors)
    y, scale, _, q, k, v = tensors[:6]
    dtype = options.dtype
    d_y = torch.empty_like(y)
    d_q = torch.zeros_like(block.q)
    # These tensors, like `sums` below, are sums over blocks; bfloat16 would round the sums at each block.
    d_k, d_v_HBNC = (torch.zeros_like(t, dtype=y.dtype) for t in (block.k, block.v_HBNC))
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
    for i, (graphs, rows) in enumerate(block.blocks()):
        fields = len(_Kept._fields)
        computed = _Kept(*kept[fields * i : fields * (i + 1)]) if kept else block.compute(graphs, rows)
        to_w, to_u, hat, s, alpha, factors = computed
        y_PD = block.pairs(graphs, rows)
        g, r, places, width = y[graphs, rows].shape
        alpha_kept = alpha if factors is None else alpha * factors

        # The block of d_y first gets y's gradient through the residual, then adds the gradient through W_E.
        d_block = d_y[graphs, rows]
        d_hat = block.buffer("d_hat", hat)
        edge_factors = block.edge_factors(hat, graphs, rows) if options.update_edges else None
        if updates:
            d_fresh = d_block if scale is None else block.buffer("d_fresh", d_block, y.dtype)
            _gradient_of_update(block, out, d_out, slope, offset, graphs, rows, d_fresh)
            d_flat = d_fresh.view(-1, width)
            sums["o_bias"] += d_flat.sum(0)
            if d_scale is not None:
                product = torch.mul(d_fresh, y[graphs, rows], out=d_block)
                d_scale += product.view(-1, width).sum(0)
                torch.mul(d_fresh, scale, out=d_block)
            d_flat = d_flat.to(dtype)
            torch.mm(d_flat, block.o_weight, out=d_hat)
            seen = hat
            if edge_factors is not None:
                d_hat.mul_(edge_factors)
                seen = edge_factors.mul_(hat)
            sums["o_weight"] += d_flat.t() @ seen
        else:
            d_hat.zero_()
            d_block.zero_()

        # Gradients through the two sums of x̂.
        d_value_HGRC = _to_heads(d_value[graphs, rows], options.heads)
        d_alpha = torch.matmul(d_value_HGRC, block.v_HBNC[:, graphs].transpose(2, 3))
        d_v_HBNC[:, graphs] += torch.matmul(alpha_kept.transpose(2, 3), d_value_HGRC)
        d_row_Q1D = d_row[graphs, rows].reshape(g * r, 1, width)
        product = block.buffer("product", hat)
        torch.mul(hat.view(g * r, places, width), d_row_Q1D, out=product.view(g * r, places, width))
        d_alpha.view(options.heads, -1).addmm_(block.own_HD, product.t())
        if factors is not None:
            d_alpha *= factors
        d_s = torch.ops.aten._softmax_backward_data(d_alpha, alpha, -1, dtype)
        if options.clamp is not None:
            # The comparison is made in the precision of s, where the bound equals the value that the clamp wrote.
            d_s = torch.ops.aten.hardtanh_backward(d_s.to(s.dtype), s, -options.clamp, options.clamp).to(dtype)
        d_s_HP = d_s.view(options.heads, -1)
        sums["score"] += (d_s_HP @ hat).t()
        d_hat.addmm_(d_s_HP.t(), block.score_t)
        d_hat.view(g * r, places, width).baddbmm_(
            alpha_kept.view(options.heads, g * r, places).permute(1, 2, 0), d_row_Q1D * block.own_HD
        )

        torch.ops.aten.threshold_backward.grad_input(d_hat, hat, 0, grad_input=d_hat)  # gradient of the ReLU
        sums["b_weight"] += d_hat.t() @ y_PD
        sums["b_bias"] += d_hat.sum(0)
        # These are twice the gradients of w and u; the factor ½ is applied later, to smaller tensors.
        d_w = torch.mul(d_hat, to_w, out=product)
        sums["w_weight"] += d_w.t() @ y_PD
        sums["w_bias"] += d_w.sum(0)
        if dtype == y.dtype:
            d_block.view(-1, width).addmm_(d_hat, block.b_weight).addmm_(d_w, block.w_weight, alpha=0.5)
        else:
            d_block += (d_hat @ block.b_weight).addmm_(d_w, block.w_weight, alpha=0.5).view(d_block.shape)
        d_u = d_hat.mul_(to_u).view(d_block.shape)
        d_q[graphs, rows] = d_u.sum(2)
        d_k[graphs] += d_u.sum(1)
    d_v = d_v_HBNC.permute(1, 2, 0, 3).flatten(2)
    for twice in (d_q, d_k, sums["w_weight"], sums["w_bias"]):
        twice.mul_(0.5)
    # The shift adds to y' like W_Oe's bias, so both have one gradient. The shift's gradient through W_E is computed elsewhere.
    d_shift = None if scale is None else sums["o_bias"]
    return d_y, d_scale, d_shift, d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), *sums.values()


def _gradient_of_update(block: _Block, out, d_out, slope, offset, graphs: slice, rows: slice, d_fresh: Tensor) -> None:
    """Writes the full gradient of the block's y', [G, R, N, D], to d_fresh: the direct gradient plus the gradient through the moments."""
    if slope is None:
        d_fresh.copy_(d_out[graphs, rows])
    else:
        torch.addcmul(offset, out[graphs, rows], slope, out=d_fresh)
        if d_out is not None:
            d_fresh.add_(d_out[graphs, rows])
    mask = block.real_pairs(graphs, rows)
    if mask is not None:
        d_fresh.mul_(mask)


def _from_heads(x_HGRC: Tensor) -> Tensor:
    return x_HGRC.permute(1, 2, 0, 3).flatten(2)


def _to_heads(x_GRD: Tensor, heads: int) -> Tensor:
    return x_GRD.unflatten(2, (heads, -1)).permute(2, 0, 1, 3)


def _sum_edges(alpha_HGRN: Tensor, hat_PD: Tensor, shape: torch.Size) -> Tensor:
    """Returns Σ_j α_ij ê_ij [G, R, D] per head: multiplies all heads by all channels and keeps each head's own channels.

    This does H times the work of the sum, but as one matrix product it is faster than a product with a broadcast α.
    """
    g, r, places, width = shape
    heads = alpha_HGRN.shape[0]
    all_QHD = torch.bmm(alpha_HGRN.view(heads, g * r, places).transpose(0, 1), hat_PD.view(g * r, places, width))
    own_QHC = all_QHD.unflatten(2, (heads, -1)).diagonal(dim1=1, dim2=2).transpose(1, 2)
    return own_QHC.reshape(g, r, width)


def _moments(fresh_GRND: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (count, mean, Σ of squared deviations from the mean) over the block's real pairs; padding of the input is 0."""
    flat = fresh_GRND.flatten(0, 2)
    if mask is None:
        # This needs two passes; the operators below need four.
        mean, var = torch.batch_norm_update_stats(flat.t().view(1, flat.shape[1], -1, 1), None, None, 0.0)
        count = flat.new_full((), float(flat.shape[0]))
        return count, mean, var * count
    count = mask.sum()
    mean = flat.sum(0) / count.clamp(min=1)
    return count, mean, mask.view(1, -1).mm((flat - mean).square_()).squeeze(0)


def _pool_moments(moments: list[tuple[Tensor, Tensor, Tensor]], total: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean and (biased) variance over all blocks by Chan's formula, which avoids cancellation."""
    count, mean, spread = (torch.stack(part) for part in zip(*moments))
    share = (count / total).unsqueeze(1)
    pooled = (share * mean).sum(0)
    return pooled, spread.sum(0) / total + (share * (mean - pooled).square()).sum(0)
