"""Batch normalisation over rows that also accepts a batch of one row or none, and rows that are spread over workers."""

from typing import Protocol

import torch
from torch import Tensor, nn

from models.segments import at_least_float32


class AllRows(Protocol):
    """Rows of which each worker has some, and the means over all of them; `models.parallel.global_terms.ShardedNodes`."""

    @property
    def total(self) -> int: ...

    def mean(self, x_nD: Tensor) -> Tensor: ...

    def spread(self, x_1D: Tensor) -> Tensor: ...


class RowBatchNorm(nn.BatchNorm1d):
    """BatchNorm1d over [n, D]; fewer than two rows have no variance and are normalised by the running statistics.

    Models pass packed rows, never padding.
    """

    def forward(self, x_nD: Tensor, all_rows: AllRows | None = None) -> Tensor:
        """`all_rows`: x is a worker's part of them, and a call in training is collective. All workers have the same running statistics."""
        if self.training and (x_nD.shape[0] if all_rows is None else all_rows.total) < 2:
            return nn.functional.batch_norm(
                x_nD, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if not self.training or all_rows is None:
            return super().forward(x_nD)
        with torch.autocast(x_nD.device.type, enabled=False):
            wide_nD = at_least_float32(x_nD)
            mean_1D = all_rows.mean(wide_nD)
            wide_nD = wide_nD - all_rows.spread(mean_1D)
            var_1D = all_rows.mean(wide_nD.square())
            self._remember(mean_1D, var_1D * all_rows.total / (all_rows.total - 1))
            return (wide_nD * all_rows.spread((var_1D + self.eps).rsqrt()) * self.weight + self.bias).to(x_nD.dtype)

    @torch.no_grad()
    def _remember(self, mean_1D: Tensor, var_1D: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean_1D[0].to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(var_1D[0].to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked.add_(1)
