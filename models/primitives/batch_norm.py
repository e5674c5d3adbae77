"""Implements batch normalisation over rows, which also accepts fewer than two rows, rows that are spread over workers, and recomputation.
Implements layer normalisation that sums gradients in float32 for every type of rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from graphmill.models.primitives.segments import at_least_float32


class AllRows(Protocol):
    """Represents rows that are spread over workers, and computes means over all rows; implemented by
    `graphmill.models.parallel.global_terms.ShardedNodes`."""

    @property
    def total(self) -> int: ...

    def mean(self, x_nD: Tensor) -> Tensor: ...

    def spread(self, x_1D: Tensor) -> Tensor: ...


def normalise(norm: nn.Module, x_nD: Tensor, all_rows: AllRows | None) -> Tensor:
    """Applies `norm` to rows. A batch norm computes its moments over `all_rows`; the rows are a part of `all_rows`."""
    return norm(x_nD, all_rows) if isinstance(norm, RowBatchNorm) else norm(x_nD)


class RowBatchNorm(nn.BatchNorm1d):
    """Is BatchNorm1d over [n, D]. Fewer than two rows have no variance, so the running statistics normalise them.

    Models pass packed rows, never padding.
    """

    counts = True  # False: running statistics do not change

    def forward(self, x_nD: Tensor, all_rows: AllRows | None = None) -> Tensor:
        """With `all_rows`, x is a worker's part of all rows. A call in training is then collective, and all workers get the same running statistics."""
        if self.training and (x_nD.shape[0] if all_rows is None else all_rows.total) < 2:
            return nn.functional.batch_norm(
                x_nD, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if not self.training or (all_rows is None and self.counts):
            return super().forward(x_nD)
        if all_rows is None:
            # This updates copies, because the recomputation must keep as many tensors for the backward pass as the first computation.
            mean_D, var_D, momentum = self._running()
            kept = mean_D.clone(), var_D.clone()
            return nn.functional.batch_norm(x_nD, *kept, self.weight, self.bias, True, momentum, self.eps)
        with torch.autocast(x_nD.device.type, enabled=False):
            wide_nD = at_least_float32(x_nD)
            mean_1D = all_rows.mean(wide_nD)
            wide_nD = wide_nD - all_rows.spread(mean_1D)
            var_1D = all_rows.mean(wide_nD.square())
            if self.counts:
                self._remember(mean_1D, var_1D * all_rows.total / (all_rows.total - 1))
            return (wide_nD * all_rows.spread((var_1D + self.eps).rsqrt()) * self.weight + self.bias).to(x_nD.dtype)

    @torch.no_grad()
    def _remember(self, mean_1D: Tensor, var_1D: Tensor) -> None:
        running_mean_D, running_var_D, momentum = self._running()
        running_mean_D.lerp_(mean_1D[0].to(running_mean_D.dtype), momentum)
        running_var_D.lerp_(var_1D[0].to(running_var_D.dtype), momentum)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)

    def _running(self) -> tuple[Tensor, Tensor, float]:
        """Returns the running mean, the running variance, and the weight of a new batch."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        return self.running_mean, self.running_var, self.momentum


@contextmanager
def computing_again(layer: nn.Module) -> Iterator[None]:
    """Is a context in which batches do not update the layer's running statistics, because the first computation already updated them."""
    norms = [module for module in layer.modules() if isinstance(module, RowBatchNorm)]
    for norm in norms:
        norm.counts = False
    try:
        yield
    finally:
        for norm in norms:
            norm.counts = True


class LayerNorm(nn.LayerNorm):
    """Is an nn.LayerNorm that normalises half-precision rows in float32 and returns the rows' type.

    For bfloat16 rows PyTorch's CPU kernel adds up the gradients of weight and bias in bfloat16. With 3000 rows, the gradient of one
    entry was wrong by 7 %. Fewer threads make the error larger, because each thread keeps its own sum.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[…, D] → […, D]."""
        wide = at_least_float32(x)
        if wide is x:
            return super().forward(x)
        weight, bias = self.weight.float(), self.bias.float()
        return nn.functional.layer_norm(wide, self.normalized_shape, weight, bias, self.eps).to(x.dtype)
