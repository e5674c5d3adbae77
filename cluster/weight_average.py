"""An exponential moving average of a model's weights: what is evaluated and kept, while the raw weights go on training.

After optimizer step t (from 0): average ← average + (1 - decay_t)(weights - average), decay_t = min(decay, (1 + t) / (10 + t)), so that
the first weights, which are random, are soon forgotten. Buffers (BatchNorm's statistics) are copied before an evaluation. As decay_t is
a function of the step alone, the average itself is all that a resumed run needs.
"""

import copy

import torch
from torch import nn


class WeightAverage:
    """Keeps `model`, a copy of a network with averaged weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Takes in the weights after optimizer step `step`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for ours, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            ours.lerp_(theirs, 1.0 - decay)

    @torch.no_grad()
    def copy_buffers(self, model: nn.Module) -> None:
        for ours, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            ours.copy_(theirs)
