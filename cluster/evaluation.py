"""The forward pass of evaluation, which validation, test and prediction share."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from cluster.tasks import step_output


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The context of every forward pass of a run; `precision`: "float32" or "bfloat16"."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def predictions(
    model: torch.nn.Module, batches: Iterable[Any], device: torch.device, precision: str
) -> Iterator[tuple[Any, Tensor]]:
    """Each batch with the model's predictions for it, in evaluation mode and without gradients."""
    model.eval()
    for batch in batches:
        with torch.no_grad(), autocast(device, precision):
            prediction = step_output(model(batch)).prediction
        yield batch, prediction
