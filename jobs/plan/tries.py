"""What a batch costs: drawn here by the run's own sampler and computed by the run's own model, by one thread."""

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

_ENOUGH_S = 20.0  # after this long no further batch is tried


@dataclass(frozen=True)
class Tried:
    """Batches that were drawn and computed in this process: means of them, the largest where memory is meant."""

    count: int
    nodes: float
    edges: float
    roots: float
    num_bytes: int  # of the largest
    draw_s: float  # of one thread's processor time, which other work on the machine stretches less than the clock's
    step_s: float  # forward, backward, update; forward alone where there was no training
    work_bytes: int  # of the largest: what a step takes beyond the model and the batch; of a pass alone, drawing and the batch are in it


def mean_of(tried: Sequence[Tried], weights: Sequence[float] | None = None) -> Tried:
    """Tried batches as one."""

    def mean(name: str) -> float:
        return float(np.average([getattr(one, name) for one in tried], weights=weights))

    return Tried(
        count=sum(one.count for one in tried),
        nodes=mean("nodes"),
        edges=mean("edges"),
        roots=mean("roots"),
        num_bytes=max(one.num_bytes for one in tried),
        draw_s=mean("draw_s"),
        step_s=mean("step_s"),
        work_bytes=max(one.work_bytes for one in tried),
    )


def extrapolated(eighth: Tried, quarter: Tried) -> Tried:
    """The whole batch, of what an eighth and a quarter of its nodes cost: twice the nodes cost `ratio` times as much, each time.

    The ratio is 2 for what grows with the nodes, and 4 for what grows with the edges inside a chunk; what was measured lies between.
    """
    whole = {}
    for name in ("nodes", "edges", "num_bytes", "draw_s", "step_s", "work_bytes"):
        small, large = getattr(eighth, name), getattr(quarter, name)
        ratio = min(max(large / max(small, 1e-9), 2.0), 4.0)
        whole[name] = type(large)(large * ratio**2)
    return replace(quarter, **whole)


@dataclass(frozen=True)
class Tries:
    """Tries batches of the data on the model."""

    data: OpenData
    model: torch.nn.Module
    complete: Callable[[Any], Any] = lambda batch: batch
    """Adds to a batch what is not stored yet, in its shape."""

    def train(self, sampler: Sampler, task: Task) -> Tried:
        """The last and the first batch of an epoch, with a training step on each, after a step that is not timed."""
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
            first = self._draw(sampler, 0)  # compiles what is compiled
            step(first)
            work = max(saved_bytes(lambda: loss(first)), growth_bytes(lambda: loss(first).backward()) or 0)
            optimizer.zero_grad(set_to_none=True)
            # Batch 0 again, but not at once: what a model keeps of a batch for the next one helps only where every batch is the same.
            for number in dict.fromkeys((sampler.num_batches - 1, 0)):
                tried.append(self._try(sampler, number, step, self.data.target))
                if time.perf_counter() - began > _ENOUGH_S:
                    break
        return replace(mean_of(tried), work_bytes=work)

    def score(self, sampler: Sampler, predicted: Callable[[Any], torch.Tensor] | None = None) -> Tried:
        """The first batch, passed through the model without gradients. `predicted`: of a batch, by default its targets."""
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
    """torch computes with one thread inside the block, as a worker on one CPU does."""
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
    """What autograd keeps between forward and backward, each storage once."""
    # The tensors are held here, or a freed one's address could come again. Without their graph: an output that its own node keeps would
    # hold that node, and all of it would never be freed.
    seen: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided:  # a sparse matrix is an input, kept in any case
            return tensor
        kept = tensor.detach()
        seen[kept.untyped_storage().data_ptr()] = kept
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
