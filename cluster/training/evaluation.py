"""Makes the forward passes of validation, test and prediction, finds the splits that share one pass, and keeps the batches of a pass on the device."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from graphmill.cluster.data.training_data import OpenData
from graphmill.cluster.tasks import Scores, step_output
from graphmill.samplers.batches.device_copy import tensor_bytes
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.vocabulary.options import FullGraphOptions, RandomPartitionOptions
from graphmill.storage.format.source import SPLITS


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Returns the context of every forward pass of a run. `precision`: "float32" or "bfloat16"."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def deal_split(data: OpenData, options: Any, micro_batches: int, workers: int) -> tuple[Sampler, int]:
    """Returns (the sampler of a split's batches, the number of positions that score these batches).

    Roots are dealt as in training, with two exceptions. Each chunk of a graph is one batch and one position, and so are all links of the full graph
    together, because such a batch must not be computed for a part of its roots. In a full-graph evaluation each worker has a shard of the nodes.
    """
    if isinstance(options, FullGraphOptions):
        return data.sampler(options, workers), workers
    if isinstance(getattr(options, "around", options), RandomPartitionOptions):
        sampler = data.sampler(options, 1)
        return sampler, sampler.num_batches
    return data.sampler(options, micro_batches), micro_batches


def predictions(
    model: torch.nn.Module, batches: Iterable[Any], device: torch.device, precision: str
) -> Iterator[tuple[Any, Tensor]]:
    """Yields each batch and the model's predictions for it, in evaluation mode and without gradients."""
    model.eval()
    for batch in batches:
        with torch.no_grad(), autocast(device, precision):
            prediction = step_output(model(batch)).prediction
        yield batch, prediction


def scored_with(split: str, evaluation: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the splits that are scored in the same pass as this split, because their samplers have equal options. `evaluation`: options by split."""
    return tuple(name for name, options in evaluation.items() if options == evaluation[split])


def rows_of(split_code: int, data: OpenData, batch: Any) -> Tensor | slice:
    """Returns the index that selects a batch's predictions of this split."""
    codes = data.split_codes(batch)
    return slice(None) if codes is None else codes == split_code


def update_scores(scores: Mapping[str, Scores], data: OpenData, batch: Any, prediction: Tensor) -> None:
    """Adds a batch's predictions to the scores of their splits."""
    target = data.target(batch)
    for split, of_split in scores.items():
        rows = rows_of(SPLITS[split], data, batch) if len(scores) > 1 else slice(None)
        of_split.update(prediction[rows], target[rows])


class BatchCache:
    """One rank's batches from a loader whose epochs are all equal. The batches stay on the device if all of them take at most `max_bytes`."""

    def __init__(self, loader: Loader, max_bytes: int) -> None:
        self._loader, self._max_bytes = loader, max_bytes
        self._kept: list[Any] | None = None

    @property
    def positions(self) -> range:
        return self._loader.positions

    def epoch(self, epoch: int) -> Iterator[Any]:
        """Yields the loader's batches of an epoch. If the loader raises an error, no batch is kept."""
        if self._kept is not None:
            yield from self._kept
            return
        batches: list[Any] = []
        left = self._max_bytes
        for batch in self._loader.epoch(epoch):
            left -= tensor_bytes(batch)
            if left >= 0:
                batches.append(batch)
            else:
                batches.clear()
            yield batch
        if left >= 0:
            self._kept = batches
