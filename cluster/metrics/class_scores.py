"""Computes classification scores of a split over all ranks. Every rank adds its roots, and all ranks get the exact result of the whole split."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional


def all_reduce_sum(values: torch.Tensor) -> torch.Tensor:
    """Returns the sum over ranks (in a single process the values themselves)."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(values)
    return values


def begin_sum(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begins the sum over ranks and returns a function that waits for the sum. All ranks must begin their sums in the same order."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return lambda: values
    under_way = dist.all_reduce(values, async_op=True)
    assert under_way is not None

    def end() -> torch.Tensor:
        under_way.wait()
        return values

    return end


def gather_rows(rows: torch.Tensor) -> torch.Tensor:
    """Returns all ranks' rows in rank order. Ranks may have different numbers of rows."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return rows
    world_size = dist.get_world_size()
    count = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.empty_like(count) for _ in range(world_size)]
    dist.all_gather(counts, count)
    most = int(max(int(c) for c in counts))
    padded = torch.zeros((most, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    padded[: len(rows)] = rows
    pieces = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(pieces, padded)
    return torch.cat([piece[: int(c)] for piece, c in zip(pieces, counts, strict=True)])


def gather_objects(value: Any) -> list[Any]:
    """Returns all ranks' values in rank order. A collective call."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def roc_auc(score: torch.Tensor, positive: torch.Tensor) -> float:
    """Returns the area under the ROC curve, computed from ranks (Mann-Whitney). Ties count half. NaN if only one class is present."""
    order = torch.argsort(score.double(), stable=True)
    ordered, positive = score.double()[order], positive[order].bool()
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if num_positive == 0 or num_negative == 0:
        return float("nan")
    _, group, count = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    last = torch.cumsum(count, 0).double()
    mean_rank = (last - (count.double() - 1) / 2)[group]
    rank_sum = float(mean_rank[positive].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


# A root's loss is added as two integers: whole units, and parts of 2^-36 units. The rounding error is below 1e-11
_PARTS = 2**36


def whole_parts(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits float64 numbers >= 0 into int64 (whole units, parts of 1 / `_PARTS` units). The sums of integers do not depend on the order."""
    return values.floor().long(), ((values - values.floor()) * _PARTS).round().long()


def parts_sum(units: int, parts: int) -> float:
    """Combines the sums of the two integers of `whole_parts` to one number."""
    return units + parts / _PARTS


def class_logits(prediction: torch.Tensor) -> torch.Tensor:
    """[r, num_classes]: the logits. A single column [r, 1] holds the logits of the second class; then the first class gets 0."""
    return torch.cat([torch.zeros_like(prediction), prediction], dim=1) if prediction.shape[1] == 1 else prediction


class SplitScores:
    """Accumulates the scores of one split's roots. `compute` is a collective call.

    All sums are sums of integers. Therefore they do not depend on the order of roots or the number of ranks.
    """

    def __init__(self, device: torch.device, binary: bool, num_classes: int = 0, names: Sequence[str] = ()) -> None:
        """`num_classes`: labels and predictions are counted by class; 0: not counted. `names`: names of the classes; empty: no scores of single classes."""
        self._device, self._binary, self._names = device, binary, names
        self._sums = torch.zeros(4, dtype=torch.int64, device=device)  # roots, correct roots, losses: units, parts
        self._cells = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)  # [label, prediction]
        self._scores: list[torch.Tensor] = []

    def update(self, logits: torch.Tensor, label: torch.Tensor) -> None:
        """Adds roots: logits [r, num_classes] (or [r, 1]: the second of two classes), label int64 [r]. Unlabelled roots (-1) do not count."""
        labelled = label >= 0
        logits, label = class_logits(logits[labelled].float()), label[labelled]
        if not len(label):
            return
        loss = functional.cross_entropy(logits.double(), label, reduction="none")
        predicted = logits.argmax(dim=1)
        counted = (torch.ones_like(label), predicted == label, *whole_parts(loss))
        self._sums += torch.stack([values.sum() for values in counted])
        if size := len(self._cells):
            self._cells += torch.bincount(label * size + predicted, minlength=size * size).view(size, size)
        if self._binary:
            self._scores.append(torch.stack([(logits[:, 1] - logits[:, 0]).double(), label.double()], dim=1))

    def add(self, other: "SplitScores") -> None:
        self._sums += other._sums
        self._cells += other._cells
        self._scores += other._scores

    def compute(self) -> dict[str, Any]:
        """Returns {"count", "accuracy", "loss"} and, for two classes, "rocauc", over all ranks. Undefined scores are left out.

        If classes are counted, also "weighted_accuracy" and "macro_f1". "weighted_accuracy" is the mean recall over all classes, 0 for a class without roots
        (`accuracy_SBM` of the benchmarking GNNs). "macro_f1" is the mean of 2 · both / (labels + predictions) over the classes that occur in labels or
        predictions (as in scikit-learn). If classes have names, also "by_class": {name: {"precision", "recall", "f1", "count"}}, 0 if undefined, and
        "confusion": counts by label (row) and prediction (column).
        """
        count, correct, units, parts = all_reduce_sum(self._sums.clone()).tolist()
        result: dict[str, Any] = {"count": float(count)}
        if count:
            result |= {"accuracy": correct / count, "loss": parts_sum(units, parts) / count}
        if count and len(self._cells):
            cells = all_reduce_sum(self._cells.clone()).cpu()
            both, label, predicted = cells.diagonal().double(), cells.sum(dim=1), cells.sum(dim=0)
            recall, f1 = both / label.clamp_min(1), 2 * both / (label + predicted).clamp_min(1)
            result |= {"weighted_accuracy": float(recall.mean()), "macro_f1": float(f1[label + predicted > 0].mean())}
            if self._names:
                columns = {"precision": both / predicted.clamp_min(1), "recall": recall, "f1": f1, "count": label}
                named = zip(self._names, *(column.tolist() for column in columns.values()), strict=True)
                result["by_class"] = {name: dict(zip(columns, row, strict=True)) for name, *row in named}
                result["confusion"] = cells.tolist()
        if self._binary:
            empty = torch.empty((0, 2), dtype=torch.float64, device=self._device)
            rows = gather_rows(torch.cat([empty, *self._scores]))
            area = roc_auc(rows[:, 0], rows[:, 1])
            if not math.isnan(area):
                result["rocauc"] = area
        return result
