"""Layer normalisation whose gradients are sums in float32, whatever the type of its rows."""

import torch
from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm, but half-precision rows are normalised in float32, and the result has their type again.

    PyTorch's own kernel for CPUs adds the gradients of weight and bias up in bfloat16 when its rows are bfloat16: of 3000 rows, the
    gradient of one entry was off by 7 % (more with fewer threads, since each thread keeps a sum of its own).
    """

    def forward(self, x: Tensor) -> Tensor:
        """[…, D] → […, D]."""
        if x.dtype not in (torch.float16, torch.bfloat16):
            return super().forward(x)
        weight, bias = self.weight.float(), self.bias.float()
        return nn.functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)
