"""Defines the specification of a training run. The driver checks it and sends it unchanged to every worker."""

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
    """Everything that a worker needs for training."""

    data: TrainingData
    build_model: Callable[[], torch.nn.Module]  # takes a batch, returns predictions or a StepOutput
    task: Task
    model_config: Mapping[str, Any]
    identity: Mapping[str, Any]  # values that must stay the same when the run is resumed: data, split, metric, seed
    sampler: Any  # options of the training sampler
    evaluation: Mapping[str, Any]  # options of the samplers that score "train", "valid" and "test"
    options: TrainOptions
    loader: LoaderOptions
    is_estimate: bool = False  # scores leave out a part of the graph; the names of the scores tell this
    keep_best: bool = True  # keep the weights with the best validation score; False: the weights of the last epoch
    table: "TableSpec | None" = None  # the table of trainable embeddings of nodes
