"""What a training run is: options that the driver checks and every worker receives unchanged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from graphmill.cluster.data.training_data import TrainingData
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.tasks import Task
from graphmill.samplers.vocabulary.options import LoaderOptions

if TYPE_CHECKING:
    from graphmill.cluster.embeddings.embeddings import TableSpec


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
    table: "TableSpec | None" = None  # of trainable rows of nodes
