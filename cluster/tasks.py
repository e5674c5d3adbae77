"""What a model is trained for: how predictions become a loss, which targets count, and what scores a split gets.

A task is a frozen value that the driver builds (class weights and target statistics included) and every worker receives. Its loss is
a pair (sum over targets, weight of those targets): the trainer divides the sum over a step's micro-batches by the weight over all of them,
so that unevenly filled micro-batches give the gradient of one large batch.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from graphmill.cluster.metrics.class_scores import SplitScores, class_logits
from graphmill.cluster.metrics.graph_scores import AnswerCounts, BinaryScores, PairScores, RegressionScores
from graphmill.cluster.metrics.link_scores import HITS, LinkScores
from graphmill.core.errors import ConfigError, DataError

_BY_CLASS = ("weighted_accuracy", "macro_f1")  # scores that need counts of every class
_MOST_COUNTED, _MOST_SHOWN = 4096, 50  # classes whose pairs are counted for that; that are scored one by one
_BY_ANSWER = ("micro_f1", "macro_f1")  # and of every answer
LinkLoss = Literal["bce", "margin", "softmax"]
RegressionLoss = Literal["l1", "mse", "huber"]


class StepOutput(NamedTuple):
    """What a model returns: predictions, and a term that is added to the mean loss."""

    prediction: Tensor
    penalty: Tensor | None = None  # scalar, a mean over the batch (Primphormer's η Σ J²)


class Scores(Protocol):
    """Accumulates one split: there is one for each position of a step, and all ranks get the exact result of the whole."""

    def update(self, prediction: Tensor, target: Tensor) -> None: ...

    def add(self, other: Any) -> None:
        """Takes in what the same kind of scores has of a later position."""
        ...

    def compute(self) -> dict[str, float]:
        """Scores by name, "count" and, unless that is 0, "loss" among them; all are finite. A collective call."""
        ...


class Task(Protocol):
    """One kind of supervision."""

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

    def weight(self, target: Tensor) -> Tensor:
        """float64 scalar: what the losses of these targets are divided by, all told; 0 where none counts."""
        ...

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The sum of losses, each times its weight; float32 scalar."""
        ...

    def scores(self, device: torch.device) -> Scores: ...


def step_output(value: Any) -> StepOutput:
    """What a model returned, as predictions and penalty: plain tensors have none."""
    return value if isinstance(value, StepOutput) else StepOutput(value)


@dataclass(frozen=True)
class Classification:
    """One of several classes per root or graph, by cross-entropy; target int64 [r], -1 does not count."""

    num_classes: int
    metric: str = "accuracy"  # or "rocauc", for two classes, "weighted_accuracy" or "macro_f1"
    label_smoothing: float = 0.0
    class_weight: tuple[float, ...] | None = None  # of each class; the loss is divided by the weights of the targets
    batch_weights: bool = (
        False  # the weight of a class is the share of a micro-batch's targets that are of other classes
    )
    one_logit: bool = False  # of two classes: the prediction is the logit of the second
    class_names: tuple[str, ...] = ()  # in order; empty: numbers name them

    higher_is_better = True

    def __post_init__(self) -> None:
        known = ("accuracy", "rocauc", *_BY_CLASS)
        too_many = self.metric in _BY_CLASS and self.num_classes > _MOST_COUNTED
        if self.metric not in known or too_many or (self.metric == "rocauc" and self.num_classes != 2):
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

    def weight(self, target: Tensor) -> Tensor:
        weights = self._class_weight(target)
        if weights is None:
            return (target >= 0).sum().double()
        return torch.where(target >= 0, weights[target.clamp_min(0)], 0.0).double().sum()

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(
            class_logits(prediction.float()),
            target,
            self._class_weight(target),
            ignore_index=-1,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def _class_weight(self, target: Tensor) -> Tensor | None:
        if self.batch_weights:
            count = torch.bincount(target[target >= 0], minlength=self.num_classes).float()
            return 1 - count / count.sum().clamp_min(1)
        if self.class_weight is None:
            return None
        return torch.tensor(self.class_weight, dtype=torch.float32, device=target.device)

    def scores(self, device: torch.device) -> SplitScores:
        names = () if self.num_classes > _MOST_SHOWN else self.class_names or tuple(map(str, range(self.num_classes)))
        num_counted = self.num_classes if names or self.metric in _BY_CLASS else 0
        return SplitScores(device, self.num_classes == 2, num_counted, names)


@dataclass(frozen=True)
class BinaryClassification:
    """Several yes-or-no questions per graph or root, by binary cross-entropy; target [g, num_tasks] of 0, 1 and NaN (not known)."""

    num_tasks: int = 1
    # or "ap", average precision: both means over the tasks that have both answers; or "micro_f1" or "macro_f1"
    metric: str = "rocauc"
    label_smoothing: float = 0.0
    positive_weight: tuple[float, ...] | None = None  # of each task's positives
    names: tuple[str, ...] = ()  # of several tasks, each of which is then scored by itself too

    higher_is_better = True

    def __post_init__(self) -> None:
        known = ("rocauc", "ap", *_BY_ANSWER)
        if self.metric not in known:
            raise ConfigError(f"metric: expected {', '.join(known)}, got {self.metric!r}; set --task.metric")

    @property
    def out_dim(self) -> int:
        return self.num_tasks

    def weight(self, target: Tensor) -> Tensor:
        return (~_columns(target, self.num_tasks).isnan()).sum().double()

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        target = _columns(target, self.num_tasks).float()
        known = ~target.isnan()
        # The target of an unknown answer is replaced before the loss, not after: NaN times 0 is NaN.
        answer = torch.where(known, target, 0.0) * (1.0 - self.label_smoothing) + 0.5 * self.label_smoothing
        weight = None if self.positive_weight is None else target.new_tensor(self.positive_weight)
        loss = functional.binary_cross_entropy_with_logits(
            prediction.float(), answer, reduction="none", pos_weight=weight
        )
        return torch.where(known, loss, 0.0).sum()

    def scores(self, device: torch.device) -> BinaryScores | AnswerCounts:
        # Areas need every answer's score, F1 counts alone.
        return (AnswerCounts if self.metric in _BY_ANSWER else BinaryScores)(device, self.num_tasks, self.names)


@dataclass(frozen=True)
class PairClassification:
    """Whether pairs of nodes belong together, by binary cross-entropy; target int64 [p, 2] of (0 or 1, the pair's graph).

    The prediction's first column is the logit. In evaluation [p, 3]: of the graph's nodes but the pair's second one, how many have a higher score with
    the first one, and how many the same.
    """

    metric: str = "mrr"

    higher_is_better = True

    def __post_init__(self) -> None:
        if self.metric != "mrr":
            raise ConfigError(f"metric: expected mrr, got {self.metric!r}; set --task.metric")

    @property
    def out_dim(self) -> int:
        return 1

    def weight(self, target: Tensor) -> Tensor:
        return torch.tensor(float(len(target)), dtype=torch.float64, device=target.device)

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        logit = prediction[:, 0].float()
        return functional.binary_cross_entropy_with_logits(logit, target[:, 0].float(), reduction="sum")

    def scores(self, device: torch.device) -> PairScores:
        return PairScores(device)


@dataclass(frozen=True)
class LinkPrediction:
    """Which pairs of a graph's nodes are joined; target [m], 1 for links and 0 for pairs that are none.

    The prediction is [m, 1 + k], the logits of a link and its k negatives; in evaluation [m, 4] as `graphmill.cluster.metrics.link_scores` takes it. The loss of a link
    is, by `kind`: "bce": the mean of the binary cross-entropies of itself and its negatives; "margin": the mean over negatives of
    max(0, margin - its logit + the negative's); "softmax": the cross-entropy of it among itself and its negatives.
    """

    metric: str = "mrr"  # or "auc", "hits_1" …: `graphmill.cluster.metrics.link_scores`
    kind: LinkLoss = "bce"
    margin: float = 1.0
    own_rivals: bool = True  # links are ranked against rivals of their own, and not against the split's pairs

    higher_is_better = True
    out_dim = 1

    def __post_init__(self) -> None:
        known = ("mrr", "auc", *(f"hits_{K}" for K in HITS))
        if self.metric not in known:
            raise ConfigError(f"metric: expected {', '.join(known)}, got {self.metric!r}; set --task.metric")

    def weight(self, target: Tensor) -> Tensor:
        return torch.tensor(float(len(target)), dtype=torch.float64, device=target.device)

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
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
class Regression:
    """Numbers per graph or root; target [g, num_targets], NaN does not count.

    The model predicts (target - mean) / scale; the loss is of those standardised numbers, the scores are in the target's own unit. Several
    targets that have names are scored one by one, and the metric is the mean of their errors in units of `deviation`, so that each has a say.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)  # of the training split, as the mean
    kind: RegressionLoss = "l1"
    huber_delta: float = 1.0  # in standard deviations
    metric: str = "mae"  # or "rmse" or "r2"
    names: tuple[str, ...] = ()  # of several targets
    deviation: tuple[float, ...] = ()  # of each of them in the training split

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "r2"

    def __post_init__(self) -> None:
        if self.metric not in ("mae", "rmse", "r2"):
            raise ConfigError(f"metric: expected mae, rmse or r2, got {self.metric!r}; set --task.metric")
        if self.kind not in ("l1", "mse", "huber") or not self.huber_delta > 0:
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

    def weight(self, target: Tensor) -> Tensor:
        return (~_columns(target, self.out_dim).isnan()).sum().double()

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        target = _columns(target, self.out_dim).double()
        known = ~target.isnan()
        standard = ((target - target.new_tensor(self.mean)) / target.new_tensor(self.scale)).float()
        expected, predicted = torch.where(known, standard, 0.0), torch.where(known, prediction.float(), 0.0)
        if self.kind == "l1":
            return functional.l1_loss(predicted, expected, reduction="sum")
        if self.kind == "mse":
            return functional.mse_loss(predicted, expected, reduction="sum")
        return functional.huber_loss(predicted, expected, reduction="sum", delta=self.huber_delta)

    def scores(self, device: torch.device) -> RegressionScores:
        return RegressionScores(device, self.mean, self.scale, self.names, self.deviation)


def _columns(target: Tensor, width: int) -> Tensor:
    """[g] or [g, width] → [g, width]. Raises DataError where the widths differ."""
    target = target.unsqueeze(1) if target.dim() == 1 else target
    if target.shape[1] != width:
        raise DataError(f"targets: expected {width} per graph, got {target.shape[1]}; is this the graphs' own task?")
    return target
