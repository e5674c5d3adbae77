"""What a training run is: options that the driver checks and every worker receives unchanged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from cluster.schedule import SCHEDULES, Schedule
from cluster.tasks import Task
from cluster.training_data import TrainingData
from samplers.loader import LoaderOptions
from samplers.random_partition import RandomPartitionOptions
from storage.errors import ConfigError
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TrainOptions:
    """How a model is fitted."""

    epochs: int = 100
    learning_rate: float = 1e-3
    min_learning_rate: float = 0.0  # where the schedule ends
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    power: float = 1.0  # of the "poly" schedule
    warmup_epochs: int = 0
    warmup_steps: int | None = None  # optimizer steps, in place of epochs
    accumulate: int = 1  # batches of every rank in one optimizer step
    clip_norm: float | None = None
    ema_decay: float | None = None  # of the averaged weights, which are then what is evaluated and kept
    eval_every: int = 1  # epochs between validations; the last epoch is always validated
    checkpoint_every: int = 10  # epochs between checkpoints; the last epoch always ends with one
    checkpoint_minutes: float | None = None  # the longest time without one, within an epoch too; None: no bound
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "eval_every", "checkpoint_every", "accumulate"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}: expected at least 1, got {getattr(self, name)}; set --{name.replace('_', '-')}"
                )
        if self.checkpoint_minutes is not None and not self.checkpoint_minutes >= 0:
            raise ConfigError(
                f"checkpoint_minutes: expected 0 or more, or none, got {self.checkpoint_minutes}; set --checkpoint-minutes"
            )
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate: expected a positive rate, got {self.learning_rate}; set --learning-rate")
        if not 0 <= self.min_learning_rate <= self.learning_rate:
            raise ConfigError(
                f"min_learning_rate: expected 0 to the peak rate {self.learning_rate}, got {self.min_learning_rate}; "
                "set --min-learning-rate"
            )
        if self.schedule not in SCHEDULES or not self.power > 0:
            raise ConfigError(
                f"schedule: expected one of {', '.join(SCHEDULES)} with a positive power, got {self.schedule!r} with "
                f"{self.power}; set --schedule"
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm: expected a positive norm or none, got {self.clip_norm}; set --clip-norm")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ConfigError(f"ema_decay: expected a value in (0, 1) or none, got {self.ema_decay}; set --ema-decay")
        if self.weight_decay < 0 or self.warmup_epochs < 0 or (self.warmup_steps or 0) < 0:
            raise ConfigError(
                f"weight_decay and warm-up: expected >= 0, got {self.weight_decay}, {self.warmup_epochs} epochs, "
                f"{self.warmup_steps} steps"
            )


@dataclass(frozen=True)
class TrainSpec:
    """Everything a worker needs."""

    data: TrainingData
    build_model: Callable[[], torch.nn.Module]  # takes a batch, returns predictions or a StepOutput
    task: Task
    model_config: Mapping[str, Any]
    identity: Mapping[str, Any]  # what a run may not change between its parts: data, split, metric, seed
    sampler: Any  # its options, as are those of `evaluation`
    evaluation: Mapping[str, Any]  # "train", "valid", "test": how each split is scored
    options: TrainOptions
    loader: LoaderOptions
    is_estimate: bool = False  # scores leave a part of the graph out, and are recorded under names that say so
    keep_best: bool = True  # of the weights the best validated; else the last epoch's


def full_evaluation(split_set: int, num_chunks: int = 1) -> dict[str, RandomPartitionOptions]:
    """Scores every split on the whole graph as one batch, or on fixed chunks of it: an estimate, without the edges between chunks."""
    codes = {"train": SPLIT_TRAIN, "valid": SPLIT_VALID, "test": SPLIT_TEST}
    return {
        name: RandomPartitionOptions(num_chunks=num_chunks, split_set=split_set, root_splits=(code,), shuffle=False)
        for name, code in codes.items()
    }
