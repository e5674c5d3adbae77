"""Sums rows per group (`sum`), and copies group values to rows (`spread`); each operation is the other's gradient. `carry` does both in one step. No operation
uses atomics.

A sum adds a group's rows in ascending row order, forward and backward, on every device; `index_add` on a GPU has no fixed order.
Half-precision rows are added up in float32, and the sum is rounded once.

Shapes: E rows, S groups (T of another grouping of the same rows), D channels (any number of trailing axes), K heads of C channels.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_INT32_MAX = 2**31 - 1


class Grouping:
    """Holds E rows, each in one of S groups, and the lists of rows per group (built on first use by one stable sort)."""

    def __init__(self, group_E: Tensor, num_groups: int, ptr: Tensor | None = None) -> None:
        """`ptr` int64 [S + 1] promises that the rows are sorted and group s is [ptr[s], ptr[s + 1]).

        Raises ValueError on a group outside [0, S) (checked on the CPU only).
        """
        if group_E.numel() and is_readable(group_E):
            low, high = int(group_E.min()), int(group_E.max())
            if low < 0 or high >= num_groups:
                raise ValueError(
                    f"groups must lie in [0, {num_groups}), got {low} to {high}; "
                    "renumber the edges to the nodes of the batch"
                )
        self.group_E, self.num_groups, self._ptr = group_E, num_groups, ptr

    @property
    def is_sorted(self) -> bool:
        """Whether the rows are known to be sorted by group."""
        return self._ptr is not None

    @cached_property
    def lists(self) -> tuple[Tensor, Tensor]:
        """(ptr [S + 1], row [E]): group s holds the rows row[ptr[s]:ptr[s + 1]]."""
        if self._ptr is not None:
            return self._ptr, torch.arange(self.group_E.numel(), device=self.group_E.device)
        # A sort of int32 reads half the bytes and takes two thirds of the time.
        group_E = self.group_E.int() if self.num_groups < _INT32_MAX else self.group_E
        sorted_E, row_E = torch.sort(group_E, stable=True)
        # searchsorted does not wait for the device; bincount does.
        bounds = torch.arange(self.num_groups + 1, device=group_E.device, dtype=group_E.dtype)
        return torch.searchsorted(sorted_E, bounds), row_E

    @cached_property
    def size_S(self) -> Tensor:
        """int64 [S]: rows per group."""
        return self.lists[0].diff()

    def spread(self, x_SD: Tensor) -> Tensor:
        """[S, D] → [E, D]: each row gets its group's value."""
        return _Move.apply(x_SD, self, False)

    def sum(self, x_ED: Tensor) -> Tensor:
        """[E, D] → [S, D]; a group without rows gets 0."""
        return _Move.apply(x_ED, self, True)

    def mean(self, x_ED: Tensor) -> Tensor:
        """[E, D] → [S, D]; a group without rows gets 0."""
        count_S = self.size_S.clamp_min(1).to(x_ED.dtype)
        return self.sum(x_ED) / count_S.view(-1, *[1] * (x_ED.dim() - 1))

    def carry(self, x_SKC: Tensor, weight_EK: Tensor, to: "Grouping") -> Tensor:
        """[S, K, C] → [T, K, C]: `to.sum(weight ⊙ self.spread(x))`, without a tensor [E, K, C]. Differentiable once."""
        if not len(weight_EK) == self.group_E.numel() == to.group_E.numel():
            got = f"{len(weight_EK)} weights, {self.group_E.numel()} and {to.group_E.numel()} entries"
            raise ValueError(f"a weighted sum needs one weight per entry of both groupings, got {got}")
        return _Carry.apply(x_SKC, weight_EK, self, to)


class _Move(torch.autograd.Function):
    """Computes `sum` or `spread`. Each is the other's gradient, so the function is differentiable any number of times."""

    @staticmethod
    def forward(ctx, x: Tensor, grouping: Grouping, summing: bool) -> Tensor:
        ctx.grouping, ctx.summing = grouping, summing
        return _sum(x, grouping) if summing else x.index_select(0, grouping.group_E)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Move.apply(grad, ctx.grouping, not ctx.summing), None, None


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_SKC: Tensor, weight_EK: Tensor, source: Grouping, to: Grouping) -> Tensor:
        ctx.save_for_backward(x_SKC, weight_EK)
        ctx.source, ctx.to = source, to
        return _weighted_sum(x_SKC, weight_EK, source.group_E, to)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TKC: Tensor) -> tuple[Tensor | None, ...]:
        x_SKC, weight_EK = ctx.saved_tensors
        source, to = ctx.source, ctx.to
        grad_SKC = _weighted_sum(grad_TKC, weight_EK, to.group_E, source).to(x_SKC.dtype)
        grad_EK = torch.empty_like(weight_EK)
        rows = _BLOCK if grad_EK.device.type == "cpu" else 64 * _BLOCK
        for start in range(0, len(grad_EK), rows):
            block = slice(start, start + rows)
            x_eKC, grad_eKC = x_SKC.index_select(0, source.group_E[block]), grad_TKC.index_select(0, to.group_E[block])
            grad_EK[block] = (at_least_float32(x_eKC) * grad_eKC).sum(-1)
        return grad_SKC, grad_EK, None, None


_BLOCK = 1 << 14  # rows of a block; with 64 channels a block fits a CPU's cache


def _weighted_sum(x_SKC: Tensor, weight_EK: Tensor, row_E: Tensor, to: Grouping) -> Tensor:
    """[T, K, C]: for each group the sum of weight_e ⊙ x[row_e], in the wider of the two types."""
    dtype = torch.promote_types(x_SKC.dtype, weight_EK.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    if not x_SKC.numel() or not len(row_E):
        return x_SKC.new_zeros(to.num_groups, *x_SKC.shape[1:], dtype=dtype)
    ptr_T, order_E = to.lists
    if not to.is_sorted:
        row_E, weight_EK = row_E.index_select(0, order_E), weight_EK.index_select(0, order_E)
    out = [
        torch.nn.functional.embedding_bag(
            row_E, x_SC, ptr_T, mode="sum", per_sample_weights=weight_E, include_last_offset=True
        )
        for x_SC, weight_E in zip(_heads(x_SKC, wide), _heads(weight_EK, wide), strict=True)
    ]
    return torch.stack(out, dim=1).to(dtype)


def _heads(x_XK: Tensor, dtype: torch.dtype) -> Tensor:
    """[K, X, …], contiguous."""
    return x_XK.to(dtype).transpose(0, 1).contiguous()


def _sum(x_ED: Tensor, grouping: Grouping) -> Tensor:
    if x_ED.shape[0] != grouping.group_E.numel():
        raise ValueError(f"a sum needs one row per entry: {grouping.group_E.numel()}, got {x_ED.shape[0]}")
    shape = (grouping.num_groups, *x_ED.shape[1:])
    if x_ED.numel() == 0:
        return x_ED.new_zeros(shape)
    if grouping.num_groups == 1:
        # With one group, torch adds all rows as a tree. The lists of `Grouping` would add one row after another.
        return x_ED.sum(0, keepdim=True)
    ptr_S, row_E = grouping.lists
    wide = at_least_float32(x_ED) if x_ED.device.type == "cpu" else x_ED  # the GPU kernel itself adds up in float32
    out_SD = torch.nn.functional.embedding_bag(
        row_E, wide.reshape(wide.shape[0], -1).contiguous(), ptr_S, mode="sum", include_last_offset=True
    )
    return out_SD.to(x_ED.dtype).view(shape)


def reduce_runs(x_ED: Tensor, ptr: Tensor, reduction: str) -> Tensor:
    """[E, D] → [S, D]: "sum", "mean" or "max" of the rows [ptr[s], ptr[s + 1]), in ascending order, in x's dtype.

    `segment_reduce` adds in a fixed order, unlike a scatter on the GPU. But its running sum has the rows' precision, and in bfloat16
    256 + 1 is 256. So half-precision rows are converted to float32 first.
    """
    return torch.segment_reduce(at_least_float32(x_ED), reduction, offsets=ptr, axis=0).to(x_ED.dtype)


def is_readable(x: Tensor) -> bool:
    """Whether a check may read values: only on a CPU, and not while `torch.export` or `torch.compile` traces, because a trace has only shapes."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def at_least_float32(x: Tensor) -> Tensor:
    """Returns x, converted to float32 if it has half precision."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
