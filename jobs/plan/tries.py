"""Measures the cost of a batch in this process with one thread: the run's sampler draws the batch and the run's model computes it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmill.cluster.data.training_data import OpenData
from graphmill.cluster.tasks import Task, step_output
from graphmill.jobs.machine.memory_check import growth_bytes
from graphmill.samplers.drawing.protocol import Sampler

_ENOUGH_S = 20.0  # no further batch is tried after this many seconds


@dataclass(frozen=True)
class Tried:
    """Cost of the batches that this process drew and computed. Times are means over the batches, bytes are maxima."""

    count: int
    nodes: float
    edges: float
    roots: float
    num_bytes: int  # bytes of the largest batch
    draw_s: float  # processor time of one thread; other load affects it less than clock time
    step_s: float  # training: forward, backward and update; scoring: forward only
    # For training: bytes of the largest step, without the model and the batch. For scoring: also with the batch and its drawing.
    work_bytes: int


def mean_of(tried: Sequence[Tried], weights: Sequence[float] | None = None) -> Tried:
    """Combines the costs of several tries into one."""

    def mean(name: str) -> float:
        return float(np.average([getattr(entry, name) for entry in tried], weights=weights))

    return Tried(
        count=sum(entry.count for entry in tried),
        nodes=mean("nodes"),
        edges=mean("edges"),
        roots=mean("roots"),
        num_bytes=max(entry.num_bytes for entry in tried),
        draw_s=mean("draw_s"),
        step_s=mean("step_s"),
        work_bytes=max(entry.work_bytes for entry in tried),
    )


def extrapolated(eighth: Tried, quarter: Tried) -> Tried:
    """Estimates the cost of a whole batch from the costs of an eighth and a quarter of its nodes: doubling the nodes multiplies a cost by `ratio`.

    The ratio is 2 for costs that grow with the nodes and 4 for costs that grow with the edges inside a chunk. Measured ratios are clamped to that range.
    """
    whole = {}
    for name in ("nodes", "edges", "num_bytes", "draw_s", "step_s", "work_bytes"):
        small, large = getattr(eighth, name), getattr(quarter, name)
        ratio = min(max(large / max(small, 1e-9), 2.0), 4.0)
        whole[name] = type(large)(large * ratio**2)
    return replace(quarter, **whole)


@dataclass(frozen=True)
class Tries:
    """Draws batches of the data and computes them with the model."""

    data: OpenData
    model: torch.nn.Module
    complete: Callable[[Any], Any] = lambda batch: batch
    """Adds to a batch the columns that are not stored yet."""

    def train(self, sampler: Sampler, task: Task) -> Tried:
        """Times a training step on the last batch and on the first batch of an epoch, after a step that is not timed."""
        model = self.model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def loss(batch: Any) -> torch.Tensor:
            output, target = step_output(model(batch)), self.data.target(batch)
            total = task.loss(output.prediction, target) / task.weight(target).clamp_min(1).float()
            return total if output.penalty is None else total + output.penalty.float()

        def step(batch: Any) -> None:
            loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        tried: list[Tried] = []
        began = time.perf_counter()
        with one_thread():
            first = self._draw(sampler, 0)  # not timed: the first step compiles kernels
            step(first)
            work = max(saved_bytes(lambda: loss(first)), growth_bytes(lambda: loss(first).backward()) or 0)
            optimizer.zero_grad(set_to_none=True)
            # Times another batch before batch 0. A model that keeps the edges of the previous batch then saves time only if all batches have the same edges, as
            # in the run.
            for number in dict.fromkeys((sampler.num_batches - 1, 0)):
                tried.append(self._try(sampler, number, step, self.data.target))
                if time.perf_counter() - began > _ENOUGH_S:
                    break
        return replace(mean_of(tried), work_bytes=work)

    def score(self, sampler: Sampler, predicted: Callable[[Any], torch.Tensor] | None = None) -> Tried:
        """Runs the first batch through the model without gradients. `predicted`: batch -> one row per prediction, by default the batch's targets."""
        self.model.eval()
        tried: list[Tried] = []

        def passed(batch: Any) -> None:
            step_output(self.model(batch))

        with one_thread(), torch.no_grad():
            grown = growth_bytes(lambda: tried.append(self._try(sampler, 0, passed, predicted or self.data.target)))
        return replace(tried[0], work_bytes=grown or 0)

    def _draw(self, sampler: Sampler, number: int) -> Any:
        return self.complete(self.data.collate(sampler.sample(0, number)))

    def _try(
        self, sampler: Sampler, number: int, work: Callable[[Any], None], predicted: Callable[[Any], torch.Tensor]
    ) -> Tried:
        started = time.process_time()
        batch = self._draw(sampler, number)
        drawn = time.process_time()
        work(batch)
        done = time.process_time()
        nodes, edges = self.data.sizes(batch)
        return Tried(1, nodes, edges, len(predicted(batch)), num_bytes_of(batch), drawn - started, done - drawn, 0)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread inside the block, as for a worker on one CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def num_bytes_of(batch: Any) -> int:
    """Bytes of a batch's tensors."""
    tensors = sum(value.nbytes for value in vars(batch).values() if isinstance(value, torch.Tensor))
    return max(tensors, int(getattr(batch, "num_bytes", 0)))


def saved_bytes(step: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps between forward and backward. Each storage counts once."""
    # `seen` keeps the tensors alive: otherwise the address of a freed tensor could be used again. The tensors are detached: otherwise an output and the
    # autograd node that keeps it would keep each other alive, and would never be freed.
    seen: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided:  # a sparse matrix is an input and stays in memory anyway
            return tensor
        kept = tensor.detach()
        seen[kept.untyped_storage().data_ptr()] = kept
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
