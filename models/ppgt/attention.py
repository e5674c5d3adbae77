"""Implements sL2 attention (softmax over squared distances) with universal relative position encoding (PPGT; URPE: arXiv:2205.13401).

    A_ij = φ(p_ij) · softmax_j( q_i·k_j/√d_h - |k_j|²/(2√d_h) + θ(p_ij) ),        out_i = Σ_j A_ij v_j

This is the softmax of -|q_i - k_j|²/(2√d_h) + θ, because |q_i|² would add the same number to a whole row. One linear map D_e → 2H of
the pair states p_ij gives θ and φ; dropout comes after φ. Options: 1 + φ in place of φ and q·k without 1/√d_h (both as in PPGT's
released code), or no φ. Without |k_j|² (`squared_keys`) the scores are dot products alone, an ablation of the paper.

Without φ, attention is one call of `scaled_dot_product_attention` with a float mask. With φ it is computed in blocks. The softmax, φ and
dropout's factors are kept for the backward pass if `pair_memory` has room for them. Without room, each block frees its part of the
[B, H, N, N] tensors, and the backward pass computes them again from p, which all layers share. Results are exact, not approximate.

Legend: B graphs, H heads, N places, d = d_h channels of a head, E = D_e channels of a pair; I queries of a block.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from graphmill.models.ppgt.options import PAIR_MEMORY, PPGTConfig
from graphmill.models.primitives.dropout import dropout_factors
from graphmill.models.primitives.graphs import pair_blocks, unit_values
from graphmill.models.primitives.segments import at_least_float32

# Number of scores per block: on a CPU the number that fits its caches, on other devices enough to fill the device.
_BLOCK_SCORES_CPU = 1 << 17
_BLOCK_SCORES = 1 << 26


def key_bias(k_BHNd: Tensor, mask_BN: Tensor | None, squared_keys: bool = True) -> Tensor:
    """[B, H, N]: -|k_j|²/(2√d_h), or 0 without `squared_keys`. Where the mask is False, the value is so low that a softmax returns 0. It is finite, so that rows of only padding stay
    finite.
    """
    if squared_keys:
        bias_BHN = at_least_float32(k_BHNd).square().sum(-1) * (-0.5 / math.sqrt(k_BHNd.shape[-1]))
    else:
        bias_BHN = torch.zeros_like(k_BHNd[..., 0])
    if mask_BN is not None:
        lowest = torch.finfo(k_BHNd.dtype).min / 2
        bias_BHN = bias_BHN.masked_fill(~mask_BN.unsqueeze(1), lowest)
    return bias_BHN.to(k_BHNd.dtype)


def sl2_attention(
    q_BHNd: Tensor,
    k_BHNd: Tensor,
    v_BHNd: Tensor,
    theta_BHNN: Tensor | None = None,
    mask_BN: Tensor | None = None,
    *,
    qk_scale: float | None = None,
    dropout: float = 0.0,
    squared_keys: bool = True,
) -> Tensor:
    """[B, H, N, d]: the attention without φ, through SDPA. `mask_BN` is True for keys that exist; `qk_scale` None means 1/√d_h."""
    bias_BHNN = key_bias(k_BHNd, mask_BN, squared_keys).unsqueeze(2)
    if theta_BHNN is not None:
        bias_BHNN = bias_BHNN + theta_BHNN.to(bias_BHNN.dtype)
    bias_BHNN = bias_BHNN.expand(-1, -1, q_BHNd.shape[2], -1)
    return nn.functional.scaled_dot_product_attention(
        q_BHNd, k_BHNd, v_BHNd, attn_mask=bias_BHNN, dropout_p=dropout, scale=qk_scale
    )


def sl2_urpe_attention(
    q_BHNd: Tensor,
    k_BHNd: Tensor,
    v_BHNd: Tensor,
    p_BNNE: Tensor,
    weight_2HE: Tensor,
    bias_2H: Tensor,
    mask_BN: Tensor | None = None,
    *,
    phi_offset: float = 0.0,
    qk_scale: float | None = None,
    dropout: float = 0.0,
    block_scores: int | None = None,
    pair_memory: int = PAIR_MEMORY,
    squared_keys: bool = True,
) -> Tensor:
    """[B, H, N, d]: the attention with (phi_offset + φ), where [θ; φ] = weight p + bias.

    Keeps its inputs and, if the blocks take at most `pair_memory` bytes, its blocks. `block_scores`: number of scores
    (graphs · heads · queries · keys) in one block; None chooses by device. Draws one number from torch's CPU generator if dropout > 0.
    """
    if block_scores is None:
        block_scores = _BLOCK_SCORES_CPU if q_BHNd.device.type == "cpu" else _BLOCK_SCORES
    seed = int(torch.randint(1 << 62, ())) if dropout > 0 else 0
    scale = 1 / math.sqrt(q_BHNd.shape[-1]) if qk_scale is None else qk_scale
    dtype = q_BHNd.dtype
    kept_bytes = q_BHNd[..., 0].numel() * q_BHNd.shape[2] * (3 if dropout else 2) * dtype.itemsize
    keep = torch.is_grad_enabled() and kept_bytes <= pair_memory
    plan = _Plan(scale, phi_offset, dropout, seed, block_scores, keep)
    with torch.autocast(q_BHNd.device.type, enabled=False):
        return _UrpeAttention.apply(
            q_BHNd.contiguous(),
            k_BHNd.contiguous(),
            v_BHNd.contiguous(),
            key_bias(k_BHNd, mask_BN, squared_keys),
            p_BNNE.to(dtype),
            weight_2HE.to(dtype),
            bias_2H.to(dtype),
            plan,
        )


@dataclass(frozen=True)
class _Plan:
    """Holds the settings that forward and backward share."""

    qk_scale: float
    phi_offset: float
    dropout: float
    seed: int
    block_scores: int
    keep: bool  # whether the blocks are kept for the backward pass

    def factors(self, b: slice, i: slice, like_bHIN: Tensor) -> Tensor | None:
        """Returns dropout's factors of a block, [b, H, I, N], numbered in the order graph, query, head, key; None without dropout."""
        if not self.dropout:
            return None
        like_bIHN = like_bHIN.transpose(1, 2)
        places = like_bHIN.shape[-1]
        start = (b.start * places + i.start) * like_bIHN[0, 0].numel()
        return dropout_factors(self.dropout, self.seed, start, like_bIHN).transpose(1, 2)


class _UrpeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        q_BHNd: Tensor,
        k_BHNd: Tensor,
        v_BHNd: Tensor,
        bias_BHN: Tensor,
        p_BNNE: Tensor,
        weight_2HE: Tensor,
        bias_2H: Tensor,
        plan: _Plan,
    ) -> Tensor:
        ctx.plan = plan  # type: ignore[attr-defined]
        blocks: list[Tensor | None] = []
        size, heads, places = bias_BHN.shape
        out_BHNd = torch.empty_like(v_BHNd)
        for b, i in pair_blocks(size, places, heads, plan.block_scores):
            softmax, gate = _block(q_BHNd[b, :, i], k_BHNd[b], bias_BHN[b], p_BNNE[b, i], weight_2HE, bias_2H, plan)
            kept = plan.factors(b, i, softmax)
            attention = softmax * gate
            if kept is not None:
                attention.mul_(kept)
            out_BHNd[b, :, i] = attention @ v_BHNd[b]
            if plan.keep:
                blocks += softmax, gate, kept
        ctx.save_for_backward(q_BHNd, k_BHNd, v_BHNd, bias_BHN, p_BNNE, weight_2HE, bias_2H, *blocks)  # type: ignore[arg-type]
        return out_BHNd

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_BHNd: Tensor) -> tuple[Tensor | None, ...]:
        q_BHNd, k_BHNd, v_BHNd, bias_BHN, p_BNNE, weight_2HE, bias_2H, *blocks = ctx.saved_tensors  # type: ignore[attr-defined]
        plan: _Plan = ctx.plan  # type: ignore[attr-defined]
        size, heads, places = bias_BHN.shape
        weight_HE, weight_phi_HE = weight_2HE[:heads], weight_2HE[heads:]
        dq, dp_BNNE = torch.empty_like(q_BHNd), torch.empty_like(p_BNNE)
        # Sums over the blocks are at least float32, because bfloat16 would round the sums at each block.
        exact = torch.promote_types(q_BHNd.dtype, torch.float32)
        inputs = (k_BHNd, v_BHNd, bias_BHN, weight_2HE, bias_2H)
        sums = [torch.zeros_like(t, dtype=exact) for t in inputs]
        dk, dv, dbias_BHN, dweight, dbias_2H = sums
        for index, (b, i) in enumerate(pair_blocks(size, places, heads, plan.block_scores)):
            q, k, v, grad, p = q_BHNd[b, :, i], k_BHNd[b], v_BHNd[b], grad_BHNd[b, :, i], p_BNNE[b, i]
            if blocks:
                softmax, gate, kept = blocks[3 * index : 3 * index + 3]
            else:
                softmax, gate = _block(q, k, bias_BHN[b], p, weight_2HE, bias_2H, plan)
                kept = plan.factors(b, i, softmax)
            attention = softmax * gate
            dattention = grad @ v.transpose(-1, -2)
            if kept is not None:
                attention.mul_(kept)
                dattention.mul_(kept)
            dv[b] += attention.transpose(-1, -2) @ grad
            dphi = dattention * softmax
            dscore = torch.ops.aten._softmax_backward_data(dattention.mul_(gate), softmax, -1, softmax.dtype)
            dq[b, :, i] = (dscore @ k).mul_(plan.qk_scale)
            dk[b] += (dscore.transpose(-1, -2) @ q).mul_(plan.qk_scale)
            dbias_BHN[b] += dscore.sum(-2)
            count = dscore.shape[0]
            pairs_bPE = p.reshape(count, -1, p.shape[-1])
            dtheta_bHP, dphi_bHP = dscore.reshape(count, heads, -1), dphi.reshape(count, heads, -1)
            dpairs = dtheta_bHP.transpose(1, 2) @ weight_HE
            dpairs += dphi_bHP.transpose(1, 2) @ weight_phi_HE
            dp_BNNE[b, i] = dpairs.view(p.shape)
            dweight[:heads] += (dtheta_bHP @ pairs_bPE).sum(0)
            dweight[heads:] += (dphi_bHP @ pairs_bPE).sum(0)
            dbias_2H[:heads] += dtheta_bHP.sum((0, 2))
            dbias_2H[heads:] += dphi_bHP.sum((0, 2))
        dk, dv, dbias_BHN, dweight, dbias_2H = (t.to(like.dtype) for t, like in zip(sums, inputs, strict=True))
        return dq, dk, dv, dbias_BHN, dp_BNNE, dweight, dbias_2H, None


def _block(
    q_bHId: Tensor,
    k_bHNd: Tensor,
    bias_bHN: Tensor,
    p_bINE: Tensor,
    weight_2HE: Tensor,
    bias_2H: Tensor,
    plan: _Plan,
) -> tuple[Tensor, Tensor]:
    """Returns a block's softmax [b, H, I, N] and gate (phi_offset + φ) [b, H, I, N]."""
    count, heads, queries, _ = q_bHId.shape
    places = k_bHNd.shape[2]
    maps_b2HP = torch.matmul(weight_2HE, p_bINE.reshape(count, queries * places, -1).transpose(1, 2))
    maps = maps_b2HP.view(count, 2 * heads, queries, places)
    gate = maps[:, heads:] + (bias_2H[heads:] + plan.phi_offset).view(-1, 1, 1)
    scores = (q_bHId * plan.qk_scale) @ k_bHNd.transpose(-1, -2)
    scores += maps[:, :heads]
    scores += (bias_bHN + bias_2H[:heads].unsqueeze(1)).unsqueeze(2)
    return torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype), gate


class Sl2Attention(nn.Module):
    """Is multi-head sL2 attention from every node to every node of the same graph, with the pairs' θ and, unless `urpe` is "none", φ."""

    kept_weights: list[Tensor] | None = None  # each call appends its A [B, H, N, N]; None: A is not kept

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        width, num_heads, self.urpe = config.width, config.num_heads, config.urpe
        self.num_heads, self.dropout, self.pair_memory = num_heads, config.attention_dropout, config.pair_memory
        self.qk_scale = 1.0 if config.unscaled_qk else 1 / math.sqrt(width // num_heads)
        self.squared_keys = config.attention == "sl2"
        self.qkv = nn.Linear(width, 3 * width)
        self.pair = nn.Linear(config.edge_width, num_heads if self.urpe == "none" else 2 * num_heads)
        self.out = nn.Linear(width, width)

    def forward(self, x_BND: Tensor, p_BNNE: Tensor, mask_BN: Tensor | None) -> Tensor:
        """Returns [B, N, D]; `mask_BN` is True at places that hold nodes (None: all places)."""
        size, places, width = x_BND.shape
        qkv = self.qkv(x_BND).view(size, places, 3, self.num_heads, width // self.num_heads)
        q_BHNd, k_BHNd, v_BHNd = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0

        def attend(v_BHNe: Tensor) -> Tensor:
            if self.urpe == "none":
                theta_BHNN = self.pair(p_BNNE).permute(0, 3, 1, 2)
                return sl2_attention(
                    q_BHNd,
                    k_BHNd,
                    v_BHNe,
                    theta_BHNN,
                    mask_BN,
                    qk_scale=self.qk_scale,
                    dropout=dropout,
                    squared_keys=self.squared_keys,
                )
            return sl2_urpe_attention(
                q_BHNd,
                k_BHNd,
                v_BHNe,
                p_BNNE,
                self.pair.weight,
                self.pair.bias,
                mask_BN,
                phi_offset=1.0 if self.urpe == "one_plus_phi" else 0.0,
                qk_scale=self.qk_scale,
                dropout=dropout,
                pair_memory=self.pair_memory,
                squared_keys=self.squared_keys,
            )

        if self.kept_weights is not None:
            self.kept_weights.append(attend(unit_values(v_BHNd)))
        y_BHNd = attend(v_BHNd)
        return self.out(y_BHNd.transpose(1, 2).reshape(size, places, width))
