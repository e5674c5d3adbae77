"""Implements GECO's chain of gated circular convolutions as one differentiable operator, with fewer transforms and less kept memory.

    P₁, …, P_K, V = split(H W + b);   V ← P_i ⊙ (F_i ⊛ V + s_i ⊙ V) for i = 1 … K     (arXiv 2406.12059, and Hyena's optional skip s)

The operator is the circular convolution of length N, exact up to rounding. It is fast and small because:

- Filters are passed as factors F_i = A_i Z: Z [I, N] is the input of the filter FFN's last linear map, and A_i [D, I] is this map. The
  transform is linear, so A_i rfft(Z) is F_i's spectrum. This takes I transforms instead of K·D; the gradient takes I transforms too.
- Gradients are correlations, computed by real transforms; autograd's own gradient of rfft is a full complex transform, twice the work.
- Between forward and backward only H, the convolutions F_i ⊛ V and Z's spectrum are kept (C + K·D + I·L/N numbers a node); gates,
  filters and every other spectrum are computed again. A GPU with enough free memory also keeps the spectra of filters and of V (4 K·D·L/N
  numbers a node), which saves a fifth of the transforms and one product; the results have the same bits.
- Channels are processed in chunks, so complex intermediates exist for one chunk only and stay in the cache if they fit.
- A transform is several times slower if its length N has large prime factors. For such N, signals are padded with zeros to a fast length
  L ≥ 2N - 1 and the filter's features are repeated periodically over the lags -(N-1) … N-1. The first N positions then hold the
  circular convolution of length N: the same operator, no approximation (`graphmill.models.primitives.transform_length`).

Transforms run in float32 at least; with bfloat16 gates (autocast) H, the kept convolutions and the result are in bfloat16. float16 cannot
hold a sum over many nodes, so everything is float32 then.

Shapes: N nodes in the order π, C input channels, D width, K order, I features, L transform length, M = L // 2 + 1 frequencies.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from graphmill.models.primitives.transform_length import fold_lags, repeat_lags, transform_length

# Bytes that a chunk's intermediates may take by default: (minimum, maximum). With fewer bytes than the minimum, the overhead of calls would exceed the work. If
# an eighth of the tensors kept for the gradient exceeds the maximum, a chunk may take this eighth: every product of a chunk reads the features' spectrum anew,
# so with few channels in a chunk the processor waits for memory.
_CHUNK_CPU = (16 << 20, 256 << 20)
_CHUNK_CUDA = (256 << 20, 2 << 30)  # or a sixteenth of the card: all 128 channels of 2M nodes on 140 GB
_CHANNELS = 16  # channels per chunk, if they fit; for a width above 64: a quarter of the width


def gated_convolve(
    h_NC: Tensor,
    weight_EC: Tensor,
    bias_E: Tensor,
    filter_KDI: Tensor,
    feature_IN: Tensor,
    skip_KD: Tensor | None = None,
    *,
    chunk_bytes: int | None = None,
    keep_spectra: bool | None = None,
) -> Tensor:
    """Returns [N, D]: the module's equation for rows in the order π; E = (K + 1) D, gates first and V last.

    `chunk_bytes` bounds the intermediates of the channels in one chunk (None: by device and size); a chunk has at least one channel. `keep_spectra`:
    the backward pass reads the spectra of filters and signals instead of computing them again (None: if they fit in a quarter of a GPU's free memory).
    O(D N log N + N C E) time. Differentiable once.
    """
    device = h_NC.device.type
    if torch.is_autocast_enabled(device):
        half = torch.get_autocast_dtype(device)
        h_NC, weight_EC, bias_E = h_NC.to(half), weight_EC.to(half), bias_E.to(half)
    if h_NC.dtype == torch.float16:  # float16 ends at 65,504, and sums over all nodes exceed it
        h_NC, weight_EC, bias_E = h_NC.float(), weight_EC.float(), bias_E.float()
    exact = torch.promote_types(torch.promote_types(h_NC.dtype, feature_IN.dtype), torch.float32)
    filter_KDI, feature_IN = filter_KDI.to(exact), feature_IN.to(exact)
    if skip_KD is not None:
        skip_KD = skip_KD.to(exact)
    order, width, inner = filter_KDI.shape
    num, length = h_NC.shape[0], transform_length(h_NC.shape[0])
    if chunk_bytes is None:
        least, most = _CHUNK_CUDA if device == "cuda" else _CHUNK_CPU
        if device == "cuda":
            most = max(most, torch.cuda.get_device_properties(h_NC.device).total_memory // 16)
        kept = h_NC.element_size() * num * (h_NC.shape[1] + order * width) + 4 * inner * length
        most = max(most, kept // 8) if torch.is_grad_enabled() else most
        preferred = width if device == "cuda" else max(_CHANNELS, -(-width // 4))
        chunk_bytes = min(most, max(least, preferred * _channel_bytes(length)))
    keep = torch.is_grad_enabled()
    if keep_spectra is None:
        keep_spectra = keep and device == "cuda" and 32 * order * width * length < _free_bytes(h_NC.device)
    with torch.autocast(device, enabled=False):
        return _GatedConvolution.apply(
            h_NC, weight_EC, bias_E, filter_KDI, feature_IN, skip_KD, chunk_bytes, keep, keep_spectra
        )


class _GatedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h_NC: Tensor,
        weight_EC: Tensor,
        bias_E: Tensor,
        filter_KDI: Tensor,
        feature_IN: Tensor,
        skip_KD: Tensor | None,
        chunk_bytes: int,
        keep: bool,
        keep_spectra: bool,
    ) -> Tensor:
        order, width, _ = filter_KDI.shape
        num = h_NC.shape[0]
        ctx.length, ctx.chunk_bytes, ctx.keep_spectra = transform_length(num), chunk_bytes, keep_spectra
        if num == 0:
            ctx.save_for_backward(h_NC, weight_EC, bias_E, filter_KDI, skip_KD, feature_IN)
            return h_NC.new_zeros(0, width)
        spectrum_IM = torch.fft.rfft(repeat_lags(feature_IN, ctx.length))
        p_GDN = _project(h_NC, weight_EC, order + 1)
        kept: list[Tensor] = []
        spectra: list[Tensor] = []
        for chunk in _chunks(width, ctx):
            p_GcN = p_GDN[:, chunk].add_(bias_E.view(order + 1, width, 1)[:, chunk])
            skip_Kc = None if skip_KD is None else skip_KD[:, chunk]
            lists = kept if keep else None, spectra if keep_spectra else None
            convolve_gates_(p_GcN, filter_KDI[:, chunk], spectrum_IM, skip_Kc, ctx.length, *lists)
        # The chain works in place, so the last gates now hold the result.
        y_ND = p_GDN[order - 1].t().contiguous()
        if keep:
            # The gradient needs only the conjugate of the features' spectrum.
            spectrum_IM = torch.conj_physical(spectrum_IM, out=spectrum_IM)
            ctx.save_for_backward(h_NC, weight_EC, bias_E, filter_KDI, skip_KD, spectrum_IM, *kept, *spectra)
        return y_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        h_NC, weight_EC, bias_E, filter_KDI, skip_KD, conjugate_IM, *kept = ctx.saved_tensors
        # There is no second pass over this autograd graph, so each tensor may be freed after its use.
        ctx.maybe_clear_saved_tensors()
        order, width, _ = filter_KDI.shape
        num, length = h_NC.shape[0], ctx.length
        if num == 0:
            empty = (h_NC, weight_EC, bias_E, filter_KDI, conjugate_IM)
            zeros = [torch.zeros_like(t) for t in empty]
            return (*zeros, None if skip_KD is None else torch.zeros_like(skip_KD), None, None, None)
        exact = filter_KDI.dtype
        of_spectra = (
            kept[-2 * len(kept) // 3 :] if ctx.keep_spectra else []
        )  # (signal, conjugate of the filter) for each of `kept`
        del kept[len(kept) - len(of_spectra) :]
        grad_filter_KDI = torch.empty_like(filter_KDI)
        grad_skip_KD = None if skip_KD is None else torch.empty_like(skip_KD)
        grad_spectrum_IM = torch.zeros_like(conjugate_IM)
        p_GDN = _project(h_NC, weight_EC, order + 1)
        grad_DN = grad_ND.t()
        for number, chunk in enumerate(_chunks(width, ctx)):
            p_GcN = p_GDN[:, chunk].add_(bias_E.view(order + 1, width, 1)[:, chunk])
            convolved = kept[number * order : (number + 1) * order]
            # Inputs of the convolutions in the time domain. Without a skip, only the spectra of the inputs are needed.
            signals = [p_GcN[order].to(exact)]
            signals += [(p_GcN[i] * convolved[i]).to(exact) for i in range(order - 1)]
            here = slice(2 * number * order, 2 * (number + 1) * order)
            spectra = of_spectra[here][::2] or [torch.fft.rfft(signal, n=length) for signal in signals]
            grad_cN = grad_DN[chunk].contiguous()
            for i in reversed(range(order)):
                inner_cN = (grad_cN * p_GcN[i]).to(exact)
                torch.mul(grad_cN, convolved[i], out=p_GcN[i])  # the gates' gradient replaces the gates
                inner_cM = torch.fft.rfft(inner_cN, n=length)
                if grad_skip_KD is not None:
                    torch.sum(inner_cN * signals[i], dim=1, out=grad_skip_KD[i, chunk])
                # The filter's gradient: the spectrum of Σ_t g_t v_{t-l} is ĝ v̂*; its conjugate is used, like the conjugate of Z's spectrum.
                product_cM = torch.conj_physical(inner_cM).mul_(spectra[i])
                _add_outer(grad_spectrum_IM, filter_KDI[i, chunk], product_cM, length)
                grad_filter_KDI[i, chunk] = _inner(product_cM, conjugate_IM, length)
                # The signal's gradient: Σ_t f_{t-s} g_t.
                skip_c = None if skip_KD is None else skip_KD[i, chunk]
                inner_cM *= (
                    of_spectra[here][2 * i + 1]
                    if ctx.keep_spectra
                    else _filter_spectrum(filter_KDI[i, chunk], conjugate_IM, skip_c, length)
                )
                grad_cN = _inverse(inner_cM, length, num).to(p_GDN.dtype)
            p_GcN[order].copy_(grad_cN)
            kept[number * order : (number + 1) * order] = [None] * order
            of_spectra[here] = [None] * len(of_spectra[here])
        del conjugate_IM, convolved, spectra, signals, p_GcN, grad_cN
        grad_IL = torch.fft.irfft(torch.conj_physical(grad_spectrum_IM, out=grad_spectrum_IM), n=length, norm="forward")
        del grad_spectrum_IM
        grad_p_EN = p_GDN.view(-1, num)
        return (
            grad_p_EN.t() @ weight_EC,
            grad_p_EN @ h_NC,
            grad_p_EN.sum(dim=1),
            grad_filter_KDI,
            fold_lags(grad_IL, num),
            grad_skip_KD,
            None,
            None,
            None,
        )


def _project(h_NC: Tensor, weight_EC: Tensor, groups: int) -> Tensor:
    """Returns [G, D, N], without the bias, by one product that writes the node axis contiguous, which the transforms need."""
    return (weight_EC @ h_NC.t()).view(groups, -1, h_NC.shape[0])


def _channel_bytes(length: int) -> int:
    """Returns the bytes of one channel's intermediates: backward holds about eight real arrays at once (a spectrum counts as one array)."""
    return 8 * 4 * length


def _free_bytes(device: torch.device) -> int:
    """Returns the bytes that the GPU has free, with memory that PyTorch reserved and does not use."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _chunks(width: int, ctx: Any) -> list[slice]:
    size = max(1, min(width, ctx.chunk_bytes // _channel_bytes(max(ctx.length, 1))))
    return [slice(start, min(start + size, width)) for start in range(0, width, size)]


def convolve_gates_(
    p_GcN: Tensor,
    filter_KcI: Tensor,
    spectrum_IM: Tensor,
    skip_Kc: Tensor | None,
    length: int,
    kept: list[Tensor] | None = None,
    spectra: list[Tensor] | None = None,
) -> Tensor:
    """Computes the chain for c channels in place: returns [c, N] in the memory of the last gates.

    `spectrum_IM`: spectrum of the filters' features, repeated over the lags of a transform of `length`. Appends the convolutions to `kept`,
    and to `spectra` each signal's spectrum and the conjugate of its filter's.
    """
    order, num = filter_KcI.shape[0], p_GcN.shape[2]
    v_cN = p_GcN[order]
    for i in range(order):
        signal_cM = torch.fft.rfft(v_cN.to(filter_KcI.dtype), n=length)
        skip_c = None if skip_Kc is None else skip_Kc[i]
        filter_cM = _filter_spectrum(filter_KcI[i], spectrum_IM, skip_c, length)
        if spectra is None:
            signal_cM *= filter_cM
        else:
            spectra.append(signal_cM)
            signal_cM = signal_cM * filter_cM
            spectra.append(torch.conj_physical(filter_cM, out=filter_cM))
        convolved_cN = _inverse(signal_cM, length, num).to(p_GcN.dtype)
        if kept is not None:
            kept.append(convolved_cN)
        v_cN = p_GcN[i].mul_(convolved_cN)
    return v_cN


def _filter_spectrum(filter_cI: Tensor, spectrum_IM: Tensor, skip_c: Tensor | None, length: int) -> Tensor:
    """Returns [c, M]: the filters' spectra divided by L, so that the inverse transform needs no scale."""
    real_c2M = (filter_cI / length) @ torch.view_as_real(spectrum_IM).flatten(1)
    filter_cM = torch.view_as_complex(real_c2M.view(filter_cI.shape[0], -1, 2))
    if skip_c is not None:  # a skip is a filter with one nonzero value, at lag 0; its spectrum is constant
        filter_cM += (skip_c / length).unsqueeze(1)
    return filter_cM


def _inverse(signal_cM: Tensor, length: int, num: int) -> Tensor:
    return torch.fft.irfft(signal_cM, n=length, norm="forward")[:, :num].contiguous()


def _add_outer(sum_IM: Tensor, filter_cI: Tensor, product_cM: Tensor, length: int) -> None:
    real_I2M = torch.view_as_real(sum_IM).flatten(1)
    real_I2M.addmm_((filter_cI / length).t(), torch.view_as_real(product_cM).flatten(1))


def _inner(product_cM: Tensor, conjugate_IM: Tensor, length: int) -> Tensor:
    """Returns [c, I]: Σ over lags of the products of two real sequences, from half spectra (Parseval): every frequency except the ends counts twice."""
    a_c2M, b_I2M = (torch.view_as_real(t).flatten(1) for t in (product_cM, conjugate_IM))
    total_cI = 2 * (a_c2M @ b_I2M.t()) - a_c2M[:, :1] @ b_I2M[:, :1].t()
    if length % 2 == 0:
        total_cI -= a_c2M[:, -2:-1] @ b_I2M[:, -2:-1].t()
    return total_cI / length
