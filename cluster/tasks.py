"""Defines tasks. A task computes the loss of predictions, chooses the targets that count, and computes the scores of a split.

The driver builds a task, including class weights and target statistics, as a frozen value, and every worker receives it. A loss is a pair
(sum of losses over targets, sum of the targets' weights). The trainer adds both over a step's micro-batches and then divides, so that micro-batches of
unequal size give the gradient of one large batch.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from graphmill.cluster.metrics.class_scores import SplitScores, class_logits, gather_rows
from graphmill.cluster.metrics.graph_scores import AnswerCounts, BinaryScores, PairScores, RegressionScores
from graphmill.cluster.metrics.link_scores import HITS, LinkScores
from graphmill.cluster.options import is_own, metric_name
from graphmill.core.errors import ConfigError, DataError, quoted
from graphmill.samplers.methods.registry import load

_BY_CLASS = ("weighted_accuracy", "macro_f1")  # scores that need counts by class
_MOST_COUNTED, _MOST_SHOWN = 4096, 50  # largest numbers of classes: for a confusion matrix, for scores of each class
_BY_ANSWER = ("micro_f1", "macro_f1")  # scores that are computed from counts by answer
LinkLoss = Literal["bce", "margin", "softmax"]
RegressionLoss = Literal["l1", "mse", "huber"]


class StepOutput(NamedTuple):
    """A model's output: predictions, and a penalty that is added to the mean loss."""

    prediction: Tensor
    penalty: Tensor | None = None  # a scalar that is a mean over the batch (Primphormer's η Σ J²)


class Scores(Protocol):
    """Accumulates the scores of one split, for one position of a step. All ranks get the exact result of the whole split."""

    def update(self, prediction: Tensor, target: Tensor) -> None: ...

    def add(self, other: Any) -> None:
        """Adds the scores of a later position. `other` has the same class."""
        ...

    def compute(self) -> dict[str, float]:
        """Returns finite scores by name. "count" is always there, and "loss" if "count" is not 0. A collective call."""
        ...


class Task(Protocol):
    """One kind of prediction: its loss, targets and scores."""

    @property
    def metric(self) -> str:
        """The score that selects the best epoch."""
        ...

    @property
    def higher_is_better(self) -> bool: ...

    @property
    def out_dim(self) -> int:
        """Width of the prediction."""
        ...

    def weight(self, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """float64 scalar: the sum of these targets' weights. The sum of their losses is divided by it. 0 if no target counts.

        `row_weight`: float32 [r], a sampler's factor of each row's loss (`root_weights`). The trainer passes it only if a batch has it.
        """
        ...

    def loss(self, prediction: Tensor, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """float32 scalar: the sum of the losses, each multiplied by its weight."""
        ...

    def scores(self, device: torch.device) -> Scores: ...


def step_output(value: Any) -> StepOutput:
    """Returns a model's output as a StepOutput. A plain tensor has no penalty."""
    return value if isinstance(value, StepOutput) else StepOutput(value)


def own_parts(options: Any) -> dict[str, Any]:
    """Returns arguments of a task. They come from the options `metric` and `loss`, which may be import paths."""
    loss = getattr(options, "loss", None)
    parts = {"metric": metric_name(options.metric)}
    parts |= {"own_metric": options.metric} if is_own(options.metric) else {}
    return parts | ({"own_loss": loss} if is_own(loss) else {})


@dataclass(frozen=True, kw_only=True)
class OwnParts:
    """A user's loss and metric, given by import path. They replace the task's loss and metric, and are functions of predictions and known targets.

    With several targets the metric gets all rows that have a known target; the unknown targets of these rows are NaN.
    """

    own_loss: str = ""
    own_metric: str = ""

    def _own(self, path: str, prediction: Tensor, target: Tensor) -> Tensor:
        """Calls the function and returns its value. Raises ConfigError if the value is not a number; a loss may also return a number for each row."""
        function = load(path)
        returned = (function() if isinstance(function, type) else function)(prediction, target)
        try:
            value = torch.as_tensor(returned)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(f"{metric_name(path)}: expected a number, got {quoted(returned)}; return one") from None
        if value.numel() != 1 and not (path == self.own_loss and value.shape == target.shape[:1]):
            raise ConfigError(
                f"{metric_name(path)}: expected a number, or of a loss one for each target, got shape {list(value.shape)}"
            )
        return value

    def _own_sum(self, prediction: Tensor, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        """Returns the batch's part of the step's loss: the sum of the rows' weighted losses, or the mean loss times the sum of weights. 0 without rows."""
        if not len(target):
            return prediction.sum() * 0.0
        value = self._own(self.own_loss, prediction, target).float()
        if value.numel() > 1:
            return _weighted_sum(value, row_weight)
        return value.sum() * (len(target) if row_weight is None else row_weight.sum())

    def _scored(self, scores: Any, device: torch.device) -> Any:
        return OwnScores(scores, self, device) if self.own_metric else scores

    def _is_known(self, metric: str, known: tuple[str, ...]) -> bool:
        return metric in known or (bool(self.own_metric) and metric == metric_name(self.own_metric))

    def _higher(self, of_task: bool) -> bool:
        return bool(getattr(load(self.own_metric), "higher_is_better", True)) if self.own_metric else of_task


class OwnScores:
    """A split's scores, and in addition the score of a user's function, which gets all predictions and targets."""

    def __init__(self, scores: Any, task: Any, device: torch.device) -> None:
        self._scores, self._task = scores, task
        self._rows: list[tuple[Tensor, Tensor]] = [task.known(*(rows.to(device) for rows in task.no_rows))]

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self._scores.update(prediction, target)
        self._rows.append(self._task.known(prediction.detach(), target))

    def add(self, other: "OwnScores") -> None:
        self._scores.add(other._scores)
        self._rows += other._rows

    def compute(self) -> dict[str, float]:
        scores = self._scores.compute()
        prediction, target = (gather_rows(torch.cat(column)) for column in zip(*self._rows, strict=True))
        if not len(target):
            return scores
        path = self._task.own_metric
        value = float(self._task._own(path, prediction, target))
        if not math.isfinite(value):
            holes = int(target.isnan().any(dim=-1).sum()) if target.ndim > 1 else 0
            hint = f", {holes} of them with unknown targets, which are NaN: leave those out" if holes else ""
            raise ConfigError(f"{path}: expected a finite number, got {value} of {len(target)} rows{hint}")
        return {**scores, metric_name(path): value}


@dataclass(frozen=True)
class Classification(OwnParts):
    """Predicts one of several classes per root or graph. Loss: cross-entropy. Target: int64 [r]; -1 does not count."""

    num_classes: int
    metric: str = "accuracy"  # "accuracy", "weighted_accuracy", "macro_f1" or, for two classes, "rocauc"
    label_smoothing: float = 0.0
    # Weight of each class. The loss is divided by the sum of the targets' weights, but with `batch_weights` and `one_logit` by the number of targets: the
    # released code of the benchmarks with one logit (GraphGPS, weighted_cross_entropy) does so.
    class_weight: tuple[float, ...] | None = None
    batch_weights: bool = False  # a class's weight is the share of the targets of other classes in the micro-batch
    one_logit: bool = False  # for two classes: the only prediction is the logit of the second class
    class_names: tuple[str, ...] = ()  # in order of classes; empty: classes are named by their indices

    @property
    def higher_is_better(self) -> bool:
        return self._higher(True)

    def __post_init__(self) -> None:
        known = ("accuracy", "rocauc", *_BY_CLASS)
        too_many = self.metric in _BY_CLASS and self.num_classes > _MOST_COUNTED
        if not self._is_known(self.metric, known) or too_many or (self.metric == "rocauc" and self.num_classes != 2):
            raise ConfigError(
                f"metric: expected accuracy, {', '.join(_BY_CLASS)}, or rocauc with 2 classes, got {self.metric!r} with {self.num_classes}; "
                "set --task.metric"
            )
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ConfigError(f"class_names: expected {self.num_classes} of them, got {len(self.class_names)}")
        if self.one_logit and self.num_classes != 2:
            raise ConfigError(f"one_logit: expected 2 classes, got {self.num_classes}; set --task.one_logit no")

    @property
    def out_dim(self) -> int:
        return 1 if self.one_logit else self.num_classes

    def weight(self, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        known = target >= 0
        weights = None if self.batch_weights and self.one_logit else self._class_weight(target)
        of_rows = known if weights is None else torch.where(known, weights[target.clamp_min(0)], 0.0)
        return _weighted_sum(of_rows.double(), row_weight)

    def known(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (logits [k, classes], classes [k]) of the known targets."""
        return class_logits(prediction.float())[target >= 0], target[target >= 0]

    @property
    def no_rows(self) -> tuple[Tensor, Tensor]:
        return torch.empty(0, self.out_dim), torch.empty(0, dtype=torch.int64)

    def loss(self, prediction: Tensor, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        if self.own_loss:
            own_weight = None if row_weight is None else row_weight[target >= 0]
            return self._own_sum(*self.known(prediction, target), own_weight)
        losses = functional.cross_entropy(
            class_logits(prediction.float()),
            target,
            self._class_weight(target),
            ignore_index=-1,
            reduction="sum" if row_weight is None else "none",
            label_smoothing=self.label_smoothing,
        )
        return losses if row_weight is None else _weighted_sum(losses, row_weight)

    def _class_weight(self, target: Tensor) -> Tensor | None:
        if self.batch_weights:
            count = torch.bincount(target[target >= 0], minlength=self.num_classes).float()
            return 1 - count / count.sum().clamp_min(1)
        if self.class_weight is None:
            return None
        return torch.tensor(self.class_weight, dtype=torch.float32, device=target.device)

    def scores(self, device: torch.device) -> Any:
        names = () if self.num_classes > _MOST_SHOWN else self.class_names or tuple(map(str, range(self.num_classes)))
        num_counted = self.num_classes if names or self.metric in _BY_CLASS else 0
        return self._scored(SplitScores(device, self.num_classes == 2, num_counted, names), device)


@dataclass(frozen=True)
class BinaryClassification(OwnParts):
    """Predicts several yes-or-no answers per graph or root. Loss: binary cross-entropy. Target: [g, num_tasks] of 0, 1 and NaN (unknown)."""

    num_tasks: int = 1
    # "rocauc", "ap" (average precision), "micro_f1" or "macro_f1"; "rocauc" and "ap" are means over the tasks that have both answers
    metric: str = "rocauc"
    label_smoothing: float = 0.0
    positive_weight: tuple[float, ...] | None = None  # weight of each task's positive answers
    names: tuple[str, ...] = ()  # names of several tasks; each named task also gets its own scores

    @property
    def higher_is_better(self) -> bool:
        return self._higher(True)

    def __post_init__(self) -> None:
        known = ("rocauc", "ap", *_BY_ANSWER)
        if not self._is_known(self.metric, known):
            raise ConfigError(f"metric: expected {', '.join(known)}, got {self.metric!r}; set --task.metric")

    @property
    def out_dim(self) -> int:
        return self.num_tasks

    def weight(self, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        return _weighted_sum((~_columns(target, self.num_tasks).isnan()).double(), row_weight)

    def loss(self, prediction: Tensor, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        target = _columns(target, self.num_tasks).float()
        if self.own_loss:
            return self._own_sum(*_known_entries(prediction.float(), target, row_weight))
        known = ~target.isnan()
        # Unknown targets are replaced before the loss, because NaN times 0 would be NaN.
        answer = torch.where(known, target, 0.0) * (1.0 - self.label_smoothing) + 0.5 * self.label_smoothing
        weight = None if self.positive_weight is None else target.new_tensor(self.positive_weight)
        loss = functional.binary_cross_entropy_with_logits(
            prediction.float(), answer, reduction="none", pos_weight=weight
        )
        return _weighted_sum(torch.where(known, loss, 0.0), row_weight)

    def known(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (logits, answers) of the rows with a known answer: [k] each, or [k, num_tasks] with several tasks. Unknown answers are NaN."""
        return _known_rows(prediction.float(), _columns(target, self.num_tasks).float())

    @property
    def no_rows(self) -> tuple[Tensor, Tensor]:
        return torch.empty(0, self.num_tasks), torch.empty(0, self.num_tasks)

    def scores(self, device: torch.device) -> Any:
        # ROC-AUC and average precision need the score of every answer. F1 needs only counts.
        kind = AnswerCounts if self.metric in _BY_ANSWER else BinaryScores
        return self._scored(kind(device, self.num_tasks, self.names), device)


@dataclass(frozen=True)
class PairClassification:
    """Predicts whether pairs of nodes belong together. Loss: binary cross-entropy. Target: int64 [p, 2], (0 or 1, index of the pair's graph).

    The prediction's first column is the logit. In evaluation the prediction has two more columns, [p, 3]. They compare the pair's second node with the graph's
    other nodes, by their scores with the pair's first node. Column 1 counts the nodes with a higher score, column 2 the nodes with the same score.
    """

    metric: str = "mrr"

    higher_is_better = True
    out_dim = 1

    def __post_init__(self) -> None:
        if self.metric != "mrr":
            raise ConfigError(f"metric: expected mrr, got {self.metric!r}; set --task.metric")

    def weight(self, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        return _number_of(target)

    def loss(self, prediction: Tensor, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        logit = prediction[:, 0].float()
        return functional.binary_cross_entropy_with_logits(logit, target[:, 0].float(), reduction="sum")

    def scores(self, device: torch.device) -> PairScores:
        return PairScores(device)


@dataclass(frozen=True)
class LinkPrediction:
    """Predicts links between a graph's nodes. Target: [m], 1 for links and 0 for other pairs.

    In training the prediction is [m, 1 + k]: the logits of a link and of its k negatives. In evaluation it is [m, 4], for
    `graphmill.cluster.metrics.link_scores`. `kind` chooses the loss of a link:

        bce      the mean of the binary cross-entropies of the link and its negatives
        margin   the mean over the negatives of max(0, margin - link's logit + negative's logit)
        softmax  the cross-entropy of choosing the link among the link and its negatives
    """

    metric: str = "mrr"  # "mrr", "auc", "hits_1" …: see `graphmill.cluster.metrics.link_scores`
    kind: LinkLoss = "bce"
    margin: float = 1.0
    own_rivals: bool = True  # each link has its own rivals; False: all links have the split's pairs as rivals

    higher_is_better = True
    out_dim = 1

    def __post_init__(self) -> None:
        known = ("mrr", "auc", *(f"hits_{K}" for K in HITS))
        if self.metric not in known:
            raise ConfigError(f"metric: expected {', '.join(known)}, got {self.metric!r}; set --task.metric")

    def weight(self, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        return _number_of(target)

    def loss(self, prediction: Tensor, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        logit = prediction.float()
        own, others = logit[:, :1], logit[:, 1:]
        if self.kind == "softmax":
            return -logit.log_softmax(dim=1)[:, 0].sum()
        if self.kind == "margin":
            return functional.relu(self.margin - own + others).mean(dim=1).sum()
        truth = torch.zeros_like(logit)
        truth[:, 0] = 1.0
        return functional.binary_cross_entropy_with_logits(logit, truth, reduction="none").mean(dim=1).sum()

    def scores(self, device: torch.device) -> LinkScores:
        return LinkScores(device, self.own_rivals)


@dataclass(frozen=True)
class Regression(OwnParts):
    """Predicts real numbers per graph or root. Target: [g, num_targets]; NaN does not count.

    The model predicts (target - mean) / scale. The loss is computed from these standardised numbers, the scores in the target's unit. If there are several
    named targets, each gets its own scores, and the metric is the mean of their errors divided by `deviation`, so that each target counts equally.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)  # mean and scale of the targets in the training split
    kind: RegressionLoss | str = "l1"
    huber_delta: float = 1.0  # delta of the Huber loss, in standard deviations
    metric: str = "mae"  # "mae", "rmse" or "r2"
    names: tuple[str, ...] = ()  # names of the targets, if there are several
    deviation: tuple[float, ...] = ()  # standard deviation of each named target in the training split

    @property
    def higher_is_better(self) -> bool:
        return self._higher(self.metric == "r2")

    def __post_init__(self) -> None:
        if not self._is_known(self.metric, ("mae", "rmse", "r2")):
            raise ConfigError(f"metric: expected mae, rmse or r2, got {self.metric!r}; set --task.metric")
        if (self.kind not in ("l1", "mse", "huber") and not self.own_loss) or not self.huber_delta > 0:
            raise ConfigError(
                f"loss: expected l1, mse or huber with a positive delta, got {self.kind!r} with {self.huber_delta}; set --task.loss"
            )
        if len(self.mean) != len(self.scale) or not all(value > 0 for value in self.scale):
            raise ConfigError(f"targets: expected a mean and a positive scale of each, got {self.mean}, {self.scale}")
        named = not self.names or len(self.names) == len(self.deviation) == len(self.mean)
        if not named or not all(value > 0 for value in self.deviation):
            raise ConfigError(f"targets: expected a positive deviation of each, got {self.deviation} of {self.names}")

    @property
    def out_dim(self) -> int:
        return len(self.mean)

    def weight(self, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        return _weighted_sum((~_columns(target, self.out_dim).isnan()).double(), row_weight)

    def loss(self, prediction: Tensor, target: Tensor, row_weight: Tensor | None = None) -> Tensor:
        target = _columns(target, self.out_dim).double()
        known = ~target.isnan()
        standard = ((target - target.new_tensor(self.mean)) / target.new_tensor(self.scale)).float()
        if self.own_loss:
            return self._own_sum(*_known_entries(prediction.float(), standard, row_weight))
        expected, predicted = torch.where(known, standard, 0.0), torch.where(known, prediction.float(), 0.0)
        reduction = "sum" if row_weight is None else "none"
        if self.kind == "l1":
            losses = functional.l1_loss(predicted, expected, reduction=reduction)
        elif self.kind == "mse":
            losses = functional.mse_loss(predicted, expected, reduction=reduction)
        else:
            losses = functional.huber_loss(predicted, expected, reduction=reduction, delta=self.huber_delta)
        return losses if row_weight is None else _weighted_sum(losses, row_weight)

    def known(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (predictions, targets) of the rows with a known target, in the targets' unit: [k] each, or [k, num_targets] with several targets. Unknown
        targets are NaN."""
        target = _columns(target, self.out_dim).double()
        own_unit = prediction.double() * target.new_tensor(self.scale) + target.new_tensor(self.mean)
        return _known_rows(own_unit, target)

    @property
    def no_rows(self) -> tuple[Tensor, Tensor]:
        return torch.empty(0, self.out_dim), torch.empty(0, self.out_dim)

    def scores(self, device: torch.device) -> Any:
        return self._scored(RegressionScores(device, self.mean, self.scale, self.names, self.deviation), device)


def _weighted_sum(values: Tensor, row_weight: Tensor | None) -> Tensor:
    """Returns the sum of `values`, [r] or [r, k], with each row multiplied by its weight (None: 1)."""
    if row_weight is None:
        return values.sum()
    return (values * row_weight.to(values.dtype).view(-1, *[1] * (values.dim() - 1))).sum()


def _number_of(target: Tensor) -> Tensor:
    return torch.tensor(float(len(target)), dtype=torch.float64, device=target.device)


def _known_entries(
    prediction: Tensor, target: Tensor, row_weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns (predictions, targets, weights), [k] each, of the known targets of all columns."""
    known = ~target.isnan()
    weight = None if row_weight is None else row_weight[:, None].expand_as(known)[known]
    return prediction[known], target[known], weight


def _known_rows(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    known = ~target.isnan().all(dim=1)
    rows = prediction[known], target[known]
    return (rows[0][:, 0], rows[1][:, 0]) if target.shape[1] == 1 else rows


def _columns(target: Tensor, width: int) -> Tensor:
    """Converts targets [g] or [g, width] to [g, width]. Raises DataError if the width is another one."""
    target = target.unsqueeze(1) if target.dim() == 1 else target
    if target.shape[1] != width:
        raise DataError(f"targets: expected {width} per graph, got {target.shape[1]}; is this the graphs' own task?")
    return target
