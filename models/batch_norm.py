"""Batch normalisation over rows that also accepts a batch of one row or none."""

from torch import Tensor, nn


class RowBatchNorm(nn.BatchNorm1d):
    """BatchNorm1d over [n, D]; fewer than two rows have no variance and are normalised by the running statistics.

    Models pass packed rows, never padding.
    """

    def forward(self, x_nD: Tensor) -> Tensor:
        if self.training and x_nD.shape[0] < 2:
            return nn.functional.batch_norm(
                x_nD, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        return super().forward(x_nD)
