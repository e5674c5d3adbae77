"""Computes an exponential moving average of a model's weights. The average is evaluated and kept, and the raw weights are trained.

After optimizer step t (from 0): average ← average + (1 - decay_t)(weights - average), decay_t = min(decay, (1 + t) / (10 + t)). The small decay_t
of the first steps removes the random initial weights quickly. decay_t depends only on the step, so a resumed run needs only the average.

Running statistics of normalisations are averaged too, because the newest statistics do not fit averaged weights
(docs/decisions/0080-average-running-statistics.md). Other buffers, such as a Performer's random features, are copied from the newest model.
"""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Tensors = tuple[Tensor, ...] | list[Tensor]


def build_average(model: nn.Module, decay: float) -> AveragedModel:
    """Returns a copy of `model` for the average. Its attribute `module` holds the averaged weights."""

    def blend(averages: Tensors, weights: Tensors, num_averaged: Tensor | int) -> None:
        count = torch.as_tensor(num_averaged).double()
        weight = 1.0 - (count / (9.0 + count)).clamp(max=decay)
        for average, new in zip(averages, weights, strict=True):
            average.lerp_(new, weight.to(average.dtype))

    return AveragedModel(model, multi_avg_fn=blend).requires_grad_(False)


def _running_statistics(model: nn.Module) -> list[Tensor]:
    return [buffer for name, buffer in model.named_buffers() if name.endswith(("running_mean", "running_var"))]


@torch.no_grad()
def update_average(average: AveragedModel, model: nn.Module, step: int) -> None:
    """Updates the average with the model's weights after optimizer step `step`."""
    # With a count of 0 torch would copy the weights; the first step must be averaged too
    average.n_averaged.fill_(step + 1)
    statistics = _running_statistics(average.module)
    means = [buffer.clone() for buffer in statistics]
    average.update_parameters(model)  # copies all buffers
    assert average.multi_avg_fn is not None
    average.multi_avg_fn(means, statistics, step + 1)
    for buffer, mean in zip(statistics, means, strict=True):
        buffer.copy_(mean)
