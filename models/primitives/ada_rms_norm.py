"""Implements AdaRMSN: RMS normalisation that can keep the size of its input (PPGT, arXiv:2504.12588).

    y = x / rms(x) · rms(α ⊙ x + β),        rms(x) = √(mean x² + ε), over the last axis

With α = 0, β = 1 (the initial values) AdaRMSN is RMSNorm. With α = 1, β = 0 it is exactly the identity, because both roots hold the same ε.
The identity keeps the size of a node's state, in which a sum over neighbours encodes the node's degree. ε = 1e-6.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from graphmill.models.primitives.segments import at_least_float32

_EPS = 1e-6


class _AdaRMSNorm(torch.autograd.Function):
    """Computes the formula and its gradient in closed form. This keeps x and two numbers per row; autograd would keep four tensors."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, alpha_D: Tensor, beta_D: Tensor) -> Tensor:
        width = x.shape[-1]
        inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(width).add_(_EPS).rsqrt_()
        shaped = torch.addcmul(beta_D, alpha_D, x)
        size = torch.linalg.vector_norm(shaped, dim=-1, keepdim=True).square_().div_(width).add_(_EPS).sqrt_()
        ctx.save_for_backward(x, alpha_D, beta_D, inverse, size)
        return x * (inverse * size)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, alpha_D, beta_D, inverse, size = ctx.saved_tensors  # type: ignore[attr-defined]
        width = x.shape[-1]
        shaped = torch.addcmul(beta_D, alpha_D, x)
        gain = (grad * x).sum(-1, keepdim=True)  # ∂/∂(size · inverse)
        # ∂size = shaped/(D·size) · ∂shaped, ∂inverse = -inverse³/D · x · ∂x
        from_size = gain * inverse / (width * size)
        dx = grad * (inverse * size)
        dx.addcmul_(x, gain * inverse.pow(3) * size, value=-1 / width)
        dshaped = shaped.mul_(from_size)
        dx.addcmul_(dshaped, alpha_D)
        rows = dshaped.reshape(-1, width)
        dbeta = rows.sum(0)
        dalpha = (rows * x.reshape(-1, width)).sum(0)
        return dx, dalpha, dbeta


class AdaRMSNorm(nn.Module):
    """Applies AdaRMSN to the last axis, which has `width` entries. For half-precision input it computes in float32 and returns the input's type."""

    def __init__(self, width: int, *, identity: bool = False) -> None:
        """`identity`: α = 1 and β = 0 at the start."""
        super().__init__()
        self.alpha_D = nn.Parameter(torch.full((width,), float(identity)))
        self.beta_D = nn.Parameter(torch.full((width,), float(not identity)))

    def forward(self, x: Tensor) -> Tensor:
        """[…, D] → […, D]."""
        exact = at_least_float32(x)
        alpha_D, beta_D = self.alpha_D.to(exact.dtype), self.beta_D.to(exact.dtype)
        return _AdaRMSNorm.apply(exact, alpha_D, beta_D).to(x.dtype)
