"""Computes scores of numbers, yes-or-no answers and pairs over all ranks: errors in the target's unit, ROC-AUC, average precision, F1, ranks."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from graphmill.cluster.metrics.class_scores import all_reduce_sum, gather_rows, parts_sum, roc_auc, whole_parts


def average_precision(score: Tensor, positive: Tensor) -> float:
    """Returns the average precision, Σ (recall_k - recall_{k-1}) · precision_k over distinct thresholds, as in scikit-learn. NaN without positives."""
    order = torch.argsort(score.double(), descending=True, stable=True)
    ordered, positive = score.double()[order], positive[order].double()
    num_positive = float(positive.sum())
    if num_positive == 0:
        return float("nan")
    _, count = torch.unique_consecutive(ordered, return_counts=True)
    last = torch.cumsum(count, 0)
    hits = torch.cumsum(positive, 0)[last - 1]
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return float((gained * hits / last.double()).sum()) / num_positive


class RegressionScores:
    """MAE and RMSE over known targets, in the targets' unit, and R². "loss" is the MAE of standardised targets.

    With several named targets: these scores of each target, the mean R² over targets, and the mean over targets of the errors divided by `deviation`.
    """

    def __init__(
        self,
        device: torch.device,
        mean: Sequence[float],
        scale: Sequence[float],
        names: Sequence[str] = (),
        deviation: Sequence[float] = (),
    ) -> None:
        self._names, self._deviation = names, deviation
        self._mean = torch.tensor(mean, dtype=torch.float64, device=device)
        self._scale = torch.tensor(scale, dtype=torch.float64, device=device)
        # Sums over known targets. Rows: count, |error|, error², |error| / scale, target - mean, (target - mean)². Columns: the targets.
        self._sums = torch.zeros(1, 6, max(1, len(names)), dtype=torch.float64, device=device)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Adds graphs: standardised predictions [g, num_targets] and targets [g] or [g, num_targets]. Unknown targets are NaN."""
        target = target.double().reshape(prediction.shape)
        known = ~target.isnan()
        error = torch.where(known, prediction.double() * self._scale + self._mean - target, 0.0)
        centred = torch.where(known, target - self._mean, 0.0)
        added = (known.double(), error.abs(), error.square(), (error / self._scale).abs(), centred, centred.square())
        self._sums[0] += torch.stack([values.sum(dim=0) if self._names else values.sum()[None] for values in added])

    def add(self, other: "RegressionScores") -> None:
        self._sums = torch.cat([self._sums, other._sums])

    def compute(self) -> dict[str, float]:
        """Returns {"count", "mae", "rmse", "r2", "loss"} over all ranks, and "mae_NAME", "rmse_NAME", "r2_NAME". Only the count if no target is known."""
        sums = gather_rows(self._sums.flatten(1)).sum(dim=0).reshape(6, -1)
        count, standard = sums[0].sum().item(), sums[3].sum().item()
        if not count:
            return {"count": 0.0}
        by_target = sums.T.tolist()
        errors = {
            "mae": [absolute / known if known else math.nan for known, absolute, *_ in by_target],
            "rmse": [(squared / known) ** 0.5 if known else math.nan for known, _, squared, *_ in by_target],
            "r2": [_r2(known, squared, *of_target) for known, _, squared, _, *of_target in by_target],
        }
        means, own = {metric: values[0] for metric, values in errors.items()}, {}
        if self._names:
            unit = torch.tensor(self._deviation, dtype=torch.float64)
            means = {
                metric: (torch.tensor(values, dtype=torch.float64) / (unit if metric != "r2" else 1)).nanmean().item()
                for metric, values in errors.items()
            }
            own = {
                f"{metric}_{name}": value
                for metric, values in errors.items()
                for name, value in zip(self._names, values, strict=True)
                if not math.isnan(value)
            }
        return {"count": count, **means, "loss": standard / count, **own}


def _r2(known: float, squared: float, total: float, squares: float) -> float:
    """Returns 1 - squared errors / squared distances from the mean. If all targets are equal: 1 without errors, else 0 (as in scikit-learn)."""
    if not known:
        return math.nan
    around = squares - total * total / known
    return 1 - squared / around if around > 1e-12 * squares else float(squared == 0)


class BinaryScores:
    """ROC-AUC and average precision of each named task, and their means over the tasks that have both answers (as OGB scores its molecules)."""

    def __init__(self, device: torch.device, num_tasks: int, names: Sequence[str] = ()) -> None:
        self._device, self._num_tasks, self._names = device, num_tasks, names
        self._rows: list[Tensor] = []

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Adds graphs: logits and targets [g, num_tasks]. A target is NaN if the answer is unknown."""
        target = target.double().reshape(prediction.shape)
        self._rows.append(torch.stack([prediction.double(), target], dim=2))

    def add(self, other: "BinaryScores") -> None:
        self._rows += other._rows

    def compute(self) -> dict[str, float]:
        """Returns {"count", "rocauc", "ap", "accuracy", "loss"} over all ranks, and "rocauc_NAME", "ap_NAME".

        "rocauc" and "ap" are left out if no task has both answers. Only the count remains if no answer is known.
        """
        empty = torch.empty((0, self._num_tasks, 2), dtype=torch.float64, device=self._device)
        logit, target = gather_rows(torch.cat([empty, *self._rows])).unbind(dim=2)
        known = ~target.isnan()
        count = int(known.sum())
        areas, precisions, own = [], [], dict[str, float]()
        for task in range(self._num_tasks):
            score, positive = logit[known[:, task], task], target[known[:, task], task] > 0
            if positive.any() and not positive.all():
                areas.append(roc_auc(score, positive))
                precisions.append(average_precision(score, positive))
                for name in self._names[task : task + 1]:
                    own |= {f"rocauc_{name}": areas[-1], f"ap_{name}": precisions[-1]}
        if not count:
            return {"count": 0.0}
        means = {"rocauc": sum(areas) / len(areas), "ap": sum(precisions) / len(precisions)} if areas else {}
        return {
            "count": float(count),
            **means,
            "accuracy": float(((logit > 0) == (target > 0))[known].double().mean()),
            "loss": float(functional.binary_cross_entropy_with_logits(logit[known], target[known])),
            **own,
        }


class AnswerCounts:
    """F1 of yes-or-no answers. A positive logit is a yes. All sums are sums of integers."""

    def __init__(self, device: torch.device, num_tasks: int, names: Sequence[str] = ()) -> None:
        self._names = names
        # Counts of known and of right answers; sum of losses: whole units and parts.
        self._sums = torch.zeros(4, dtype=torch.int64, device=device)
        # Counts by task: true yes, predicted yes, both.
        self._by_task = torch.zeros(3, num_tasks, dtype=torch.int64, device=device)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Adds graphs or roots: logits and targets [g, num_tasks]. A target is NaN if the answer is unknown."""
        logit, target = prediction.double(), target.double().reshape(prediction.shape)
        known, yes, predicted = ~target.isnan(), target > 0, logit > 0
        loss = functional.binary_cross_entropy_with_logits(logit[known], target[known], reduction="none")
        counted = (known, (predicted == yes) & known, *whole_parts(loss))
        self._sums += torch.stack([values.sum() for values in counted])
        self._by_task += torch.stack([(answers & known).sum(dim=0) for answers in (yes, predicted, yes & predicted)])

    def add(self, other: "AnswerCounts") -> None:
        self._sums += other._sums
        self._by_task += other._by_task

    def compute(self) -> dict[str, float]:
        """Returns {"count", "accuracy", "loss", "micro_f1", "macro_f1"} over all ranks, and "f1_NAME". Only the count if no answer is known.

        F1 is 2 · both / (true yes + predicted yes): computed once from the summed counts of all tasks (micro), or as the mean over tasks (macro).
        It is 0 without a true or predicted yes (as in scikit-learn).
        """
        count, right, units, parts = all_reduce_sum(self._sums.clone()).tolist()
        by_task = all_reduce_sum(self._by_task.clone()).double().cpu()
        if not count:
            return {"count": 0.0}
        (yes, predicted, both), (all_yes, all_predicted, all_both) = by_task, by_task.sum(dim=1)
        f1 = 2 * both / (yes + predicted).clamp_min(1)
        return {
            "count": float(count),
            "accuracy": right / count,
            "loss": parts_sum(units, parts) / count,
            "micro_f1": float(2 * all_both / (all_yes + all_predicted).clamp_min(1)),
            "macro_f1": float(f1.mean()),
            **{f"f1_{name}": value for name, value in zip(self._names, f1.tolist(), strict=False)},
        }


class PairScores:
    """Mean reciprocal rank of true pairs: the mean within each graph, then the mean over the graphs with true pairs. All sums are sums of integers.

    A pair's rank is 1 + nodes with a higher score + half the nodes with the same score (OGB's `Evaluator` for links counts ties in the same way).
    """

    def __init__(self, device: torch.device) -> None:
        # Sums: pairs, losses (units, parts), graphs, reciprocal ranks (units, parts).
        self._sums = torch.zeros(6, dtype=torch.int64, device=device)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Adds all pairs of these graphs: predictions [p, 3], targets int64 [p, 2] (`PairClassification`)."""
        if not len(target):
            return
        logit, higher, same = prediction.double().unbind(dim=1)
        true = target[:, 0] == 1
        loss = functional.binary_cross_entropy_with_logits(logit, target[:, 0].double(), reduction="none")
        _, graph = torch.unique(target[true, 1], return_inverse=True)
        counts = torch.bincount(graph)
        reciprocal = 1 / (1 + higher + same / 2)[true]
        means = torch.zeros_like(counts, dtype=torch.float64).index_add(0, graph, reciprocal) / counts
        counted = (torch.ones_like(target[:, 0]), *whole_parts(loss), torch.ones_like(counts), *whole_parts(means))
        self._sums += torch.stack([values.sum() for values in counted])

    def add(self, other: "PairScores") -> None:
        self._sums += other._sums

    def compute(self) -> dict[str, float]:
        """Returns {"count", "loss", "mrr"} over all ranks. Without pairs only the count, without true pairs no "mrr"."""
        count, *loss, graphs, units, parts = all_reduce_sum(self._sums.clone()).tolist()
        result = {"count": float(count)}
        if count:
            result["loss"] = parts_sum(*loss) / count
        if graphs:
            result["mrr"] = parts_sum(units, parts) / graphs
        return result
