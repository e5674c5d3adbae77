"""Collects a worker's entries and marks, and passes them on in groups.

Which steps are recorded is a function of the step's number alone, so any number of workers and any interruption records the same steps. Steps are counted
from 1 over the whole run. The distance between entries is 1 up to step 4,096, and doubles with each doubling of the number: a run of n steps has about
4,096 + 2,048 log2(n / 4,096) entries. A mark needs the time of reading all weights and gradients. Therefore the distance between marks is 64 entries, or more
for a model of many tensors, whose marks are long; the first steps have marks after 1, 2, 4 … entries, so that short runs have some.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor, nn

from graphmill.cluster.receipts.chain import Entry, Mark, Position, TensorDigests
from graphmill.cluster.receipts.digests import tensor_digests

_DENSE = 4096  # so many steps have an entry each
_MARK_EVERY = 64  # entries
_TENSORS = 256  # a model with more tensors has marks more rarely
_GROUP = 64  # most entries in a line


def distance(done: int) -> int:
    """Returns the distance between entries around step `done`, counted from 1: a power of two."""
    return 1 if done <= _DENSE else 1 << ((done - 1).bit_length() - _DENSE.bit_length() + 1)


def is_recorded(done: int) -> bool:
    """Returns whether step `done`, counted from 1, has an entry."""
    return done % distance(done) == 0


def mark_distance(num_tensors: int) -> int:
    """Returns the number of entries between marks. `num_tensors`: of weights, and of weights with a gradient, together."""
    return _MARK_EVERY * -(-num_tensors // (2 * _TENSORS))


def has_mark(done: int, every: int) -> bool:
    """Returns whether step `done`, counted from 1, has a mark. `every`: what `mark_distance` returned."""
    is_early = done < every and done & (done - 1) == 0
    return is_early or done % (every * distance(done)) == 0


class StepReceipts:
    """Records the steps of one rank. Only rank 0 has entries."""

    def __init__(self, model: nn.Module, rank: int, push: Callable[[Mapping[str, Any]], None]) -> None:
        self._model, self._is_first, self._push = model, rank == 0, push
        self.weights = tuple(name for name, value in model.state_dict().items() if isinstance(value, Tensor))
        self.trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._every = mark_distance(len(self.weights) + len(self.trained))
        self.num_steps = 1  # of an epoch
        self.group = _GROUP
        self.is_dense = False  # a replay records every step
        self.marked_also: frozenset[Position] = frozenset()  # further steps with a mark, for a replay
        self._waiting: list[Entry] = []

    def is_recorded(self, epoch: int, step: int) -> bool:
        """Returns whether the step has an entry. The same on all ranks."""
        return self.is_dense or is_recorded(epoch * self.num_steps + step + 1)

    def _has_mark(self, epoch: int, step: int) -> bool:
        return has_mark(epoch * self.num_steps + step + 1, self._every) or (epoch, step) in self.marked_also

    def gradients(self, epoch: int, step: int) -> TensorDigests | None:
        """Returns the digests of the step's gradients. None: the step has no mark, or another rank makes the marks. Call it before gradients are clipped."""
        if not (self._is_first and self._has_mark(epoch, step)):
            return None
        return tensor_digests(value.grad for value in self.trained.values() if value.grad is not None)

    def add(self, entry: Entry, gradients: TensorDigests | None) -> None:
        """Adds a step after its update. `gradients`: what `gradients` returned."""
        if not self._is_first:
            return
        mark = None if gradients is None else Mark(gradients, self.digests())
        self._waiting.append(replace(entry, mark=mark))
        if mark is not None or len(self._waiting) >= self.group:
            self.flush()

    def flush(self) -> None:
        """Passes on the entries that wait."""
        if self._waiting:
            mark = self._waiting[-1].mark
            body = {"kind": "receipt", "entries": [entry.row for entry in self._waiting], "of": self.num_steps}
            self._waiting = []
            self._push(body if mark is None else {**body, "mark": asdict(mark)})

    def digests(self) -> TensorDigests:
        """Returns the digests of the current weights."""
        state = self._model.state_dict()  # a module may replace a buffer
        return tensor_digests(state[name] for name in self.weights)

    def start(self, position: Position, facts: Mapping[str, Any], origin: tuple[str, str] | None) -> None:
        """Passes on the record of a start at this position. `origin`: name of the checkpoint that it continues and digest of its state.json."""
        body = {"kind": "receipt-start", "epoch": position[0], "step": position[1], "facts": dict(facts)}
        names = {"tensors": list(self.weights), "trained": list(self.trained)}
        self._push({**body, "origin": origin, "weights": asdict(self.digests()), **names})
