"""The filters of some channels without the FFN's activations over all positions: they live for one piece of positions at a time.

Shapes: N positions, P of them in a piece, K filters, D channels, C of them asked for, I inner width.
"""

from typing import Any

import torch
from torch import Tensor

from models.filters import ImplicitFilter, positional_code

PIECE_POSITIONS = 8192


def channel_filters(filters: ImplicitFilter, num_positions: int, start: int, stop: int) -> Tensor:
    """Returns [K, C, N], the channels start … stop-1 of `filters(N)`; the FFN runs again in the backward pass."""
    weight = filters.out.weight.view(filters.num_filters, filters.width, -1)[:, start:stop]
    with torch.autocast(weight.device.type, enabled=False):
        return _Pieces.apply(filters, num_positions, weight, *filters.inner.parameters())


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, filters: ImplicitFilter, num_positions: int, weight_KCI: Tensor, *inner: Tensor) -> Tensor:
        ctx.filters, ctx.num_positions = filters, num_positions
        ctx.save_for_backward(weight_KCI, *inner)
        out_KCN = weight_KCI.new_empty(*weight_KCI.shape[:2], num_positions)
        for first, code_PC in _codes(filters, num_positions, weight_KCI):
            values_IP = filters.inner(code_PC).t()
            out_KCN[:, :, first : first + code_PC.shape[0]] = (weight_KCI @ values_IP) * _scale(filters, num_positions)
        return out_KCN

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_KCN: Tensor) -> tuple[Any, ...]:
        filters, num_positions = ctx.filters, ctx.num_positions
        weight_KCI, *inner = ctx.saved_tensors
        grad_weight_KCI = torch.zeros_like(weight_KCI)
        grad_inner = [torch.zeros_like(parameter) for parameter in inner]
        wanted = [i for i, parameter in enumerate(inner) if parameter.requires_grad]
        for first, code_PC in _codes(filters, num_positions, weight_KCI):
            grad_KCP = grad_KCN[:, :, first : first + code_PC.shape[0]] * _scale(filters, num_positions)
            with torch.enable_grad(), torch.autocast(code_PC.device.type, enabled=False):
                values_PI = filters.inner(code_PC)
            grad_weight_KCI += grad_KCP @ values_PI.detach()
            grad_PI = grad_KCP.flatten(0, 1).t() @ weight_KCI.flatten(0, 1)
            parts = torch.autograd.grad(values_PI, [inner[i] for i in wanted], grad_PI) if wanted else ()
            for i, part in zip(wanted, parts, strict=True):
                grad_inner[i] += part
        return None, None, grad_weight_KCI, *grad_inner


def _codes(filters: ImplicitFilter, num_positions: int, like: Tensor) -> list[tuple[int, Tensor]]:
    """(first position, the code of the piece that starts there)."""
    code_NC = positional_code(num_positions, filters.config.bands, dtype=like.dtype, device=like.device)
    starts = range(0, num_positions, PIECE_POSITIONS)
    return list(zip(starts, code_NC.split(PIECE_POSITIONS), strict=True)) if num_positions else []


def _scale(filters: ImplicitFilter, num_positions: int) -> float:
    power = {"none": 0.0, "length": -1.0, "sqrt_length": -0.5}[filters.config.scale]
    return max(num_positions, 1) ** power
