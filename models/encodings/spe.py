"""Sinusoidal encoding of numbers (SPE): tells apart walk probabilities that a linear map sees as the same.

    p → [p, sin(2⁰πp), cos(2⁰πp), …, sin(2^(S-1)πp), cos(2^(S-1)πp)]      per channel

Width 1 + 2S per channel (PPGT's code; its paper prints 1 + 2^S). S = 0 is the identity.
"""

import math

import torch
from torch import Tensor

from graphmill.models.primitives.segments import at_least_float32


def spe(p: Tensor, num_scales: int) -> Tensor:
    """[…, C] → […, C·(1 + 2S)], the codes of one channel beside each other. Differentiable.

    Half-precision input is computed in float32: at scale s, an error of ε in p is one of 2^s·π·ε in the code.
    """
    if num_scales == 0:
        return p
    exact = at_least_float32(p)
    scales = math.pi * 2.0 ** torch.arange(num_scales, device=p.device, dtype=exact.dtype)
    angle = exact.unsqueeze(-1) * scales  # […, C, S]
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
    return torch.cat([exact.unsqueeze(-1), waves], dim=-1).flatten(-2).to(p.dtype)
