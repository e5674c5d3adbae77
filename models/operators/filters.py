"""Implicit convolution filters: an FFN from a position in the order to the filter's value there.

The recipe is Hyena's (arXiv 2302.10866, section 3.3, and the public code) without the exponential decay window. The window
favours near positions, but distances between GECO's positions have no meaning. Shapes: N positions, K filters per layer, D
channels, C code features, I inner width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from graphmill.models.options.filters import FilterConfig
from graphmill.models.primitives.transform_length import fold_lags, repeat_lags, transform_length


class Sine(nn.Module):
    """x ↦ sin(ω ⊙ x) with one ω per channel."""

    def __init__(self, width: int, frequency: float, trainable: bool) -> None:
        super().__init__()
        self.frequency_I = nn.Parameter(torch.full((width,), float(frequency)), requires_grad=trainable)

    def forward(self, x_NI: Tensor) -> Tensor:
        return torch.sin(self.frequency_I * x_NI)


class ImplicitFilter(nn.Module):
    """Computes the K filters of one layer by an FFN of the position: `forward(N)` returns [K, D, N]."""

    def __init__(self, config: FilterConfig, num_filters: int, width: int) -> None:
        super().__init__()
        self.config, self.num_filters, self.width = config, num_filters, width
        inner = config.inner_width
        layers: list[nn.Module] = [nn.Linear(2 * config.bands + 1, inner)]
        for _ in range(config.num_inner_layers):
            layers += [Sine(inner, config.frequency, config.trainable_frequency), nn.Linear(inner, inner)]
        layers += [Sine(inner, config.frequency, config.trainable_frequency)]
        self.inner = nn.Sequential(*layers)
        self.out = nn.Linear(inner, num_filters * width, bias=False)

    def forward(self, num_positions: int) -> Tensor:
        """Returns the filter values [K, D, N], in the parameters' dtype even under autocast.

        The code is not bfloat16, because bfloat16 could distinguish only about 256 positions.
        """
        weight = self.out.weight
        with torch.autocast(weight.device.type, enabled=False):
            bands, symmetric = self.config.bands, self.config.symmetric
            code_NC = positional_code(num_positions, bands, symmetric, dtype=weight.dtype, device=weight.device)
            # [KD, I] @ [I, N]: in this order the FFT axis of the result is contiguous.
            filter_KDN = (weight @ self.inner(code_NC).t()).view(self.num_filters, self.width, num_positions)
            return self._scaled(filter_KDN, num_positions)

    def factors(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Returns A [K, D, I] and Z [I, N] with `forward(N)` = A Z, scale included; see `graphmill.models.operators.gated_convolution`.

        The FFN's inner activations are never kept: forward and backward compute them for one block of positions at a time.
        """
        weight_KDI = self._scaled(self.out.weight.view(self.num_filters, self.width, -1), num_positions)
        stages = [layer for layer in self.inner if isinstance(layer, nn.Linear | Sine)]
        parameters = [p for layer in stages for p in layer.parameters()]
        with torch.autocast(weight_KDI.device.type, enabled=False):
            return weight_KDI, _Features.apply(num_positions, self.config, *parameters)

    def _scaled(self, values: Tensor, num_positions: int) -> Tensor:
        if self.config.scale == "none":
            return values
        length = max(num_positions, 1)
        return values / (length if self.config.scale == "length" else math.sqrt(length))

    def at(self, position_T: Tensor, length_T: Tensor) -> Tensor:
        """Returns [T, K·D]: the filters' values for T pairs of a position and a sequence length (the values that `forward(length)` has there)."""
        weight = self.out.weight
        with torch.autocast(weight.device.type, enabled=False):
            code_TC = positional_code_at(position_T, length_T, self.config.bands, self.config.symmetric, weight.dtype)
            rows_TC = self.out(self.inner(code_TC))
            if self.config.scale == "none":
                return rows_TC
            length_T1 = length_T.clamp_min(1).to(weight.dtype).unsqueeze(1)
            return rows_TC / (length_T1 if self.config.scale == "length" else length_T1.sqrt())


class _Features(torch.autograd.Function):
    """Z [I, N] = sin(ω ⊙ (W sin(… (W code + b)) + b)) by blocks of positions, from the (W, b, ω) of all stages, one stage after another.

    The backward pass computes a block's activations again, because keeping the activations would take 3 (stages) I numbers per position.
    """

    @staticmethod
    def forward(ctx: Any, num_positions: int, config: FilterConfig, *parameters: Tensor) -> Tensor:
        ctx.num_positions, ctx.config = num_positions, config
        ctx.save_for_backward(*parameters)
        feature_IN = parameters[0].new_empty(parameters[0].shape[0], num_positions)
        stages = _stages(parameters)
        for block, z_CP in _code_blocks(num_positions, config, parameters[0]):
            for weight, bias, frequency in stages:
                z_CP = torch.addmm(bias.unsqueeze(1), weight, z_CP).mul_(frequency.unsqueeze(1)).sin_()
            feature_IN[:, block] = z_CP
        return feature_IN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_IN: Tensor) -> tuple[Tensor | None, ...]:
        parameters = ctx.saved_tensors
        grads = [torch.zeros_like(p) for p in parameters]
        stages, grad_stages = _stages(parameters), _stages(grads)
        for block, z_CP in _code_blocks(ctx.num_positions, ctx.config, parameters[0]):
            inputs, linears = [], []
            for weight, bias, frequency in stages:
                inputs.append(z_CP)
                linears.append(torch.addmm(bias.unsqueeze(1), weight, z_CP))
                z_CP = torch.sin(frequency.unsqueeze(1) * linears[-1])
            grad_CP = grad_IN[:, block]
            for i in reversed(range(len(stages))):
                weight, _, frequency = stages[i]
                grad_CP = grad_CP * torch.cos(frequency.unsqueeze(1) * linears[i])
                grad_stages[i][2].add_((grad_CP * linears[i]).sum(dim=1))
                grad_CP *= frequency.unsqueeze(1)
                grad_stages[i][1].add_(grad_CP.sum(dim=1))
                grad_stages[i][0].addmm_(grad_CP, inputs[i].t())
                if i:
                    grad_CP = weight.t() @ grad_CP
        return None, None, *grads


def _stages(parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    return list(zip(parameters[::3], parameters[1::3], parameters[2::3], strict=True))


def _code_blocks(num_positions: int, config: FilterConfig, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yields blocks of positions and their codes [2·bands + 1, P]. A block is so small that on a CPU its activations stay in the cache."""
    size = 1 << (18 if like.is_cuda else 13)
    length = torch.tensor([num_positions], device=like.device)
    for start in range(0, num_positions, size):
        stop = min(start + size, num_positions)
        position_P = torch.arange(start, stop, device=like.device)
        yield slice(start, stop), positional_code_at(position_P, length, config.bands, config.symmetric, like.dtype).t()


def positional_code(
    num_positions: int, bands: int, symmetric: bool = False, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Returns [N, 2·bands + 1]: t in [0, 1], then cos and -sin of 2π f n / N for f evenly from 1e-4 to bands - 1.

    Like Hyena's public code, the lowest frequency is 1e-4 and not 0. `symmetric`: n is replaced by the distance min(n, N - n) on the circle.
    """
    if symmetric:
        position_N = torch.arange(num_positions, device=device)
        length_1 = torch.tensor([num_positions], device=device)
        return positional_code_at(position_N, length_1, bands, True, dtype)
    t_N1 = torch.linspace(0, 1, num_positions, dtype=dtype, device=device).unsqueeze(1)
    position_N1 = torch.arange(num_positions, dtype=dtype, device=device).unsqueeze(1)
    frequency_B = torch.linspace(1e-4, bands - 1, bands, dtype=dtype, device=device)
    angle_NB = frequency_B * (2 * math.pi / max(num_positions, 1)) * position_N1
    return torch.cat([t_N1, torch.cos(angle_NB), -torch.sin(angle_NB)], dim=1)


def positional_code_at(position_T: Tensor, length_T: Tensor, bands: int, symmetric: bool, dtype: torch.dtype) -> Tensor:
    """Returns [T, 2·bands + 1]: the rows of `positional_code` for pairs of a position and the sequence's length."""
    if symmetric:
        position_T = torch.minimum(position_T, length_T - position_T)
    position_T1, length_T1 = position_T.to(dtype).unsqueeze(1), length_T.to(dtype).unsqueeze(1)
    frequency_B = torch.linspace(1e-4, bands - 1, bands, dtype=dtype, device=position_T.device)
    angle_TB = frequency_B * (2 * math.pi / length_T1.clamp_min(1)) * position_T1
    return torch.cat([position_T1 / (length_T1 - 1).clamp_min(1), torch.cos(angle_TB), -torch.sin(angle_TB)], dim=1)


def chain_gates(
    p: Tensor,
    filter_K: Tensor,
    skip_KD: Tensor | None,
    convolve: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Computes V ← P_i ⊙ (F_i ⊛ V + s_i ⊙ V) for i = 1 … K, [..., D, N]; `p` [..., K + 1, D, N] has the gates first and V last, `convolve` is ⊛."""
    v = p[..., len(filter_K), :, :]
    for i in range(len(filter_K)):
        convolved = convolve(filter_K[i], v)
        if skip_KD is not None:
            convolved = convolved + skip_KD[i].unsqueeze(1) * v
        v = p[..., i, :, :] * convolved
    return v


def circular_convolve(filter_DN: Tensor, signal_DN: Tensor) -> Tensor:
    """Returns y [D, N] with y_t = Σ_s filter_{(t-s) mod N} · signal_s, exactly of length N, in at least float32.

    Transforms have length N or, if N has large prime factors, a greater length with the same result (`graphmill.models.primitives.transform_length`).
    The last axis is transformed and should be contiguous (2.5 times faster on a CPU than along the first axis).
    O(D N log N) for any N, primes included. Differentiable once.
    """
    if signal_DN.numel() == 0:
        return filter_DN * signal_DN
    # Half-precision transforms exist only on CUDA and only for powers of two.
    dtype = torch.promote_types(torch.promote_types(filter_DN.dtype, signal_DN.dtype), torch.float32)
    with torch.autocast(signal_DN.device.type, enabled=False):
        return _CircularConvolution.apply(filter_DN.to(dtype), signal_DN.to(dtype))


class _CircularConvolution(torch.autograd.Function):
    """Computes the convolution, and its gradients as correlations, which again need only real transforms.

    Autograd's own gradient of rfft is a full complex transform of a zero-padded spectrum and takes about twice the time.
    """

    @staticmethod
    def forward(ctx, filter_DN: Tensor, signal_DN: Tensor) -> Tensor:
        ctx.num_positions = signal_DN.shape[-1]
        ctx.length = transform_length(ctx.num_positions)
        filter_DM = torch.fft.rfft(repeat_lags(filter_DN, ctx.length))
        signal_DM = torch.fft.rfft(signal_DN, n=ctx.length)
        ctx.save_for_backward(filter_DM, signal_DM)
        return torch.fft.irfft(filter_DM * signal_DM, n=ctx.length)[..., : ctx.num_positions].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DN: Tensor):
        filter_DM, signal_DM = ctx.saved_tensors
        num, length = ctx.num_positions, ctx.length
        grad_DM = torch.fft.rfft(grad_DN, n=length)
        grad_filter_DN = grad_signal_DN = None
        if ctx.needs_input_grad[0]:
            grad_filter_DN = fold_lags(torch.fft.irfft(grad_DM * signal_DM.conj(), n=length), num)
        if ctx.needs_input_grad[1]:
            grad_signal_DN = torch.fft.irfft(grad_DM * filter_DM.conj(), n=length)[..., :num].contiguous()
        return grad_filter_DN, grad_signal_DN
