"""Computes GECO's chain of gated convolutions for this worker's channels, from gates and values that have arrived from all workers.

    V ← P_i ⊙ (F_i ⊛ V + s_i ⊙ V) for i = 1 … K

Only P and V are kept for the backward pass. Without this, they would have to be sent again. The backward pass computes filters, spectra and
convolutions anew, one chunk of channels at a time. `graphmill.models.operators.gated_convolution` is the same chain plus the projection before it.

P and V may travel in half precision; convolutions, gates and sums are computed in float32.

Shapes: N nodes in the order π, G = K + 1 groups of C channels, I features of the filters' FFN.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graphmill.models.operators.filters import ImplicitFilter, chain_gates, circular_convolve
from graphmill.models.primitives.transform_length import transform_length

CHUNK_BYTES = 128 << 20


def gated_sequences(p_GCN: Tensor, filters: ImplicitFilter, skip_KC: Tensor | None, start: int, stop: int) -> Tensor:
    """Returns [C, N] for the filters' channels start … stop-1. P has the gates first and V last. Differentiable once."""
    weight_KDI, feature_IN = filters.factors(p_GCN.shape[2])
    with torch.autocast(p_GCN.device.type, enabled=False):
        return _GatedSequences.apply(p_GCN, weight_KDI[:, start:stop], feature_IN, skip_KC, filters)


class _GatedSequences(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        p_GCN: Tensor,
        weight_KCI: Tensor,
        feature_IN: Tensor,
        skip_KC: Tensor | None,
        filters: ImplicitFilter,
    ) -> Tensor:
        ctx.filters = filters
        ctx.save_for_backward(p_GCN, weight_KCI, skip_KC)  # without the features, because the FFN computes them again
        v_CN = p_GCN.new_empty(p_GCN.shape[1:])
        for chunk in _chunks(p_GCN):
            filter_KcN = weight_KCI[:, chunk] @ feature_IN
            skip_Kc = None if skip_KC is None else skip_KC[:, chunk]
            v_CN[chunk] = chain_gates(p_GCN[:, chunk], filter_KcN, skip_Kc, circular_convolve)
        return v_CN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_CN: Tensor) -> tuple[Tensor | None, ...]:
        p_GCN, weight_KCI, skip_KC = ctx.saved_tensors
        feature_IN = ctx.filters.factors(p_GCN.shape[2])[1].detach()
        grad_p, grad_weight, grad_feature = (torch.zeros_like(t) for t in (p_GCN, weight_KCI, feature_IN))
        grad_skip = None if skip_KC is None else torch.zeros_like(skip_KC)
        with torch.autocast(p_GCN.device.type, enabled=False):
            for chunk in _chunks(p_GCN):
                inputs = [p_GCN[:, chunk].detach(), weight_KCI[:, chunk] @ feature_IN]
                inputs += [] if skip_KC is None else [skip_KC[:, chunk].detach()]
                for value in inputs:
                    value.requires_grad_()
                with torch.enable_grad():
                    skip = inputs[2] if len(inputs) > 2 else None
                    v_cN = chain_gates(inputs[0], inputs[1], skip, circular_convolve)
                grads = torch.autograd.grad(v_cN, inputs, grad_CN[chunk].to(v_cN.dtype))
                grad_p[:, chunk] = grads[0]
                grad_weight[:, chunk] = grads[1] @ feature_IN.t()
                grad_feature.addmm_(weight_KCI[:, chunk].flatten(0, 1).t(), grads[1].flatten(0, 1))
                if grad_skip is not None:
                    grad_skip[:, chunk] = grads[2]
        return grad_p, grad_weight, grad_feature, grad_skip, None


def _chunks(p_GCN: Tensor) -> list[slice]:
    # A chunk takes at most half as many bytes as P and V. With more workers, each worker has less of P and V, so its chunks are smaller.
    groups, width, num_positions = p_GCN.shape
    room = min(CHUNK_BYTES, p_GCN.nbytes // 2)
    size = max(1, room // max(1, channel_bytes(groups, num_positions, p_GCN.element_size())))
    return [slice(first, min(first + size, width)) for first in range(0, width, size)]


def channel_bytes(groups: int, num_positions: int, element_size: int = 4) -> int:
    """Returns the bytes that one channel's backward pass holds: about eight arrays per convolution. Five of the eight are spectra or inverse transforms."""
    return groups * (3 * num_positions + 5 * transform_length(num_positions)) * element_size
