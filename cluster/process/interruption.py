"""Counts what an interruption of the training costs: optimizer steps that are trained again, and the time without a step.

An interruption is announced (a drain of a host, a spot notice, a signal to a worker: the ranks have saved before they ended) or not (a failure).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class TrainClock:
    """Follows rank 0's records. Times are seconds of a monotonic clock."""

    num_steps: int | None = None
    """Optimizer steps of an epoch; None: not known yet."""
    reached: tuple[int, int] | None = None
    """(epoch, step) up to which the run has trained; None: nothing yet."""
    at_s: float = 0.0
    _interrupted: bool | None = None
    """Whether the interruption that lasts is announced; None: there is none."""

    def interrupt(self, *, announced: bool) -> None:
        """An attempt has ended before the training."""
        if self.reached is not None and self._interrupted is None:
            self._interrupted = announced

    def update(self, record: Mapping[str, Any], now_s: float) -> dict[str, Any] | None:
        """Returns, for the start record that ends an interruption, the event with its cost: whether it was `announced`, the `steps` lost, and the seconds
        that the run `stood_s`."""
        kind = record["kind"]
        if kind == "start":
            epoch, step = int(record["epoch"]), int(record["step"])
            announced, self._interrupted = self._interrupted, None
            cost = None if announced is None else self._cost(epoch, step, now_s) | {"announced": announced}
            self.reached, self.at_s = (epoch, step), now_s
            return cost
        if kind == "step":
            self.num_steps, position = int(record["num_steps"]), (int(record["epoch"]), int(record["step"]))
        elif kind == "epoch":
            position = int(record["epoch"]) + 1, 0
        else:
            return None
        self.arrive(position, now_s)
        return None

    def arrive(self, position: tuple[int, int], now_s: float) -> None:
        """The run has trained up to this (epoch, step)."""
        self.reached, self.at_s = max(position, self.reached or position), now_s

    def _cost(self, epoch: int, step: int, now_s: float) -> dict[str, Any]:
        assert self.reached is not None
        before, in_it = self.reached
        steps = (before - epoch) * (self.num_steps or 0) + in_it - step
        return {"steps": max(0, steps), "stood_s": round(now_s - self.at_s, 1)}
