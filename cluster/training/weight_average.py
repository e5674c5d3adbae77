"""An exponential moving average of a model's weights, which is evaluated and kept while the raw weights train on.

After optimizer step t (from 0): average ← average + (1 - decay_t)(weights - average), decay_t = min(decay, (1 + t) / (10 + t)), so that
the first weights, which are random, are soon forgotten. decay_t depends on the step alone, so a resumed run needs only the average.

Running statistics of normalisations are averaged too: the newest ones do not fit averaged weights (docs/decisions/0080-average-running-statistics.md).
Other buffers, such as a Performer's random features, are copied from the newest model.
"""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Tensors = tuple[Tensor, ...] | list[Tensor]


def build_average(model: nn.Module, decay: float) -> AveragedModel:
    """A copy of `model`; its `module` holds the averaged weights."""

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
    """Adds the weights after optimizer step `step` to the average."""
    average.n_averaged.fill_(step + 1)  # at 0 the weights would be copied: the first step is averaged too
    statistics = _running_statistics(average.module)
    means = [buffer.clone() for buffer in statistics]
    average.update_parameters(model)  # copies all buffers
    assert average.multi_avg_fn is not None
    average.multi_avg_fn(means, statistics, step + 1)
    for buffer, mean in zip(statistics, means, strict=True):
        buffer.copy_(mean)
