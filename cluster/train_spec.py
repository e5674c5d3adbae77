"""What a training run is: options that the driver checks and every worker receives unchanged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from cluster.partition_server import PartitionServers
from cluster.schedule import Schedule
from samplers.loader import LoaderOptions
from samplers.neighbor import NeighborOptions, NeighborSampler
from samplers.protocol import Sampler
from samplers.random_partition import RandomPartitionOptions, RandomPartitionSampler
from samplers.router import Router
from storage.errors import ConfigError
from storage.manifest import Manifest
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

SamplerOptions = NeighborOptions | RandomPartitionOptions
Metric = Literal["accuracy", "rocauc"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TrainOptions:
    """How a model is fitted."""

    epochs: int = 100
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    warmup_epochs: int = 0
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    metric: Metric = "accuracy"
    eval_every: int = 1  # epochs between validations; the last epoch is always validated
    checkpoint_every: int = 10  # epochs between checkpoints; the last epoch always ends with one
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "eval_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name}: expected at least 1, got {getattr(self, name)}; set --{name.replace('_', '-')}"
                )
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate: expected a positive rate, got {self.learning_rate}; set --learning-rate")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm: expected a positive norm or none, got {self.clip_norm}; set --clip-norm")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing: expected a value in [0, 1), got {self.label_smoothing}")
        if self.weight_decay < 0 or self.warmup_epochs < 0:
            raise ConfigError(
                f"weight_decay and warmup_epochs: expected >= 0, got {self.weight_decay}, {self.warmup_epochs}"
            )
        if self.metric not in ("accuracy", "rocauc"):
            raise ConfigError(f"metric: expected accuracy or rocauc, got {self.metric!r}; set --metric")


@dataclass(frozen=True)
class TrainSpec:
    """Everything a worker needs."""

    servers: PartitionServers
    build_model: Callable[[Manifest], torch.nn.Module]  # takes a TorchBatch, returns logits [num_roots, num_classes]
    model_config: Mapping[str, Any]
    identity: Mapping[str, Any]  # what a run may not change between its parts: graph, split, metric, seed
    sampler: SamplerOptions
    evaluation: Mapping[str, SamplerOptions]  # "train", "valid", "test": how each split is scored
    options: TrainOptions
    loader: LoaderOptions


def build_sampler(router: Router, options: SamplerOptions, num_ranks: int) -> Sampler:
    """The sampler that these options describe."""
    if isinstance(options, NeighborOptions):
        return NeighborSampler(router, options, num_ranks)
    return RandomPartitionSampler(router, options, num_ranks)


def full_evaluation(split_set: int, num_chunks: int = 1) -> dict[str, SamplerOptions]:
    """Scores every split on the whole graph as one batch (or on fixed chunks of it, where it does not fit)."""
    codes = {"train": SPLIT_TRAIN, "valid": SPLIT_VALID, "test": SPLIT_TEST}
    return {
        name: RandomPartitionOptions(num_chunks=num_chunks, split_set=split_set, root_splits=(code,), shuffle=False)
        for name, code in codes.items()
    }
