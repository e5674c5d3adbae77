"""Measures the cost of a batch in this process with one thread: the run's sampler draws the batch and the run's model computes it.

The time for measuring is bounded. If a batch would take longer, parts of it are measured (`graphmill.jobs.plan.batch_parts`), and their costs are scaled up.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphmill.cluster.data.training_data import OpenData
from graphmill.cluster.process.malloc_trim import return_freed_blocks
from graphmill.cluster.tasks import Task, step_output
from graphmill.jobs.machine.memory_check import growth_bytes
from graphmill.jobs.plan.batch_parts import BatchSize, can_cut, part_of_size, with_fewer_roots
from graphmill.samplers.drawing.protocol import Sampler

_TRAIN_S, _SCORE_S = 5.5, 2.5  # processor seconds that tries of training and of scoring may take
_SMALL_PARTS = (512, 2048)  # nodes of the first parts of a large batch; the last part is as large as the time allows
_FASTER = 1.25  # a large part takes up to this factor longer than its nodes say, because its arrays leave the caches
_MAPPED, _LEAST_MAPPED = (
    32 << 20,
    64 << 10,
)  # bytes from which on glibc maps an array in any case; smallest such limit of a part
_LINEAR, _BYTES_LINEAR = (
    1.15,
    1.5,
)  # costs that grow by at most this power of the nodes count as linear: the rest is noise


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
    scaled_from: int = 0  # nodes of the largest part that was computed; 0: whole batches were computed

    @property
    def source(self) -> str:
        """Text that says what was computed."""
        return f"scaled from {self.scaled_from:,} nodes" if self.scaled_from else f"{self.count} tried"


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
        scaled_from=max(entry.scaled_from for entry in tried),
    )


def scaled(sizes: Sequence[float], costs: Sequence[float], size: float, linear: float = _LINEAR) -> float:
    """The cost at `size`, from the costs of the two largest sizes. Constant parts of a cost do not grow. A cost that grows by more than the power `linear` of its
    size, like all pairs of nodes, goes on with its power, at most the second. A cost of 0, such as memory that did not grow, tells nothing, nor do equal sizes: only the last counts then."""
    if len(sizes) < 2 or sizes[-2] >= sizes[-1] or costs[-2] <= 0:
        return costs[-1] * size / sizes[-1]
    (small, large), (first, last) = sizes[-2:], costs[-2:]
    power = np.log(max(last, 1e-12) / first) / np.log(large / small)
    if power > linear:
        return float(last * (size / large) ** min(power, 2.0))
    return float(last + max(last - first, 0.0) * (size - large) / (large - small))


class _Measured:
    """Costs of parts of a batch of `whole` nodes, with ever more nodes."""

    def __init__(self, work: Callable[[Any], None], saved: Callable[[Any], int], whole: int) -> None:
        self._work, self._saved_of, self._whole = work, saved, whole
        self.nodes: list[int] = []
        self._seconds: list[float] = []
        self._grown: list[int] = []
        self._saved_per_node = 0.0

    def add(self, part: Any, nodes: int) -> None:
        if not self.nodes:
            self._work(part)  # compiles kernels
        # The C library maps each large array anew and returns it when it is freed. Arrays of a part are treated like those of the whole.
        return_freed_blocks(max(_LEAST_MAPPED, _MAPPED * nodes // self._whole))
        try:
            seconds, grown = measured(self._work, part)
        finally:
            return_freed_blocks(_MAPPED)
        self.nodes.append(nodes)
        self._seconds.append(seconds)
        self._grown.append(grown)
        if len(self.nodes) <= len(_SMALL_PARTS):
            self._saved_per_node = self._saved_of(part) / nodes

    def seconds(self, nodes: float) -> float:
        """Processor seconds of one computation with this many nodes."""
        return scaled(self.nodes, self._seconds, nodes)

    def num_bytes(self, nodes: float) -> int:
        grown = scaled(self.nodes, self._grown, nodes, _BYTES_LINEAR)
        return int(max(grown, self._saved_per_node * nodes))


def measured(work: Callable[[Any], None], batch: Any) -> tuple[float, int]:
    """Returns (processor seconds of the work, bytes by which it makes the process grow)."""
    seconds: list[float] = []

    def timed() -> None:
        began = time.process_time()
        work(batch)
        seconds.append(time.process_time() - began)

    grown = growth_bytes(timed) or 0
    return seconds[0], grown


@dataclass(frozen=True)
class Tries:
    """Draws batches of the data and computes them with the model."""

    data: OpenData
    model: torch.nn.Module
    complete: Callable[[Any], Any] = lambda batch: batch
    """Adds to a batch the columns that are not stored yet."""

    def train(self, sampler: Sampler, task: Task, size: BatchSize | None = None) -> Tried:
        """Measures a training step. Times the last batch and the first batch of an epoch, after a step that is not timed.

        `size`: the sampler's batches are chunks of a batch of this size, and the result is the cost of this batch.
        """
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

        def saved(batch: Any) -> int:
            return saved_bytes(lambda: loss(batch))

        with one_thread():
            return self._measure(sampler, size, step, saved, _TRAIN_S, self.data.target)

    def score(
        self,
        sampler: Sampler,
        predicted: Callable[[Any], torch.Tensor] | None = None,
        size: BatchSize | None = None,
    ) -> Tried:
        """Measures a pass of the first batch through the model without gradients. `predicted`: batch -> one row per prediction, by default the batch's targets.
        `size`: see `train`."""
        self.model.eval()

        def passed(batch: Any) -> None:
            step_output(self.model(batch))

        with one_thread(), torch.no_grad():
            tried = self._measure(sampler, size, passed, lambda _: 0, _SCORE_S, predicted or self.data.target)
        return replace(tried, work_bytes=tried.work_bytes + tried.num_bytes)

    def _measure(
        self,
        sampler: Sampler,
        size: BatchSize | None,
        work: Callable[[Any], None],
        saved: Callable[[Any], int],
        budget_s: float,
        predicted: Callable[[Any], torch.Tensor],
    ) -> Tried:
        until = time.process_time() + budget_s
        batch, draw_s = self._draw(sampler, 0)
        if draw_s < budget_s / 4:  # the first draw also loads kernels
            batch, draw_s = self._draw(sampler, 0)
        nodes, edges = self.data.sizes(batch)
        tried = Tried(1, nodes, edges, len(predicted(batch)), num_bytes_of(batch), draw_s, 0.0, 0)
        whole = BatchSize.of(batch) if size is None else size
        parts = _Measured(work, saved, whole.nodes)
        if cuts := can_cut(batch):
            for count in _SMALL_PARTS:
                if count < nodes:
                    parts.add(part_of_size(batch, count, whole), count)
        else:
            for share, make in with_fewer_roots(sampler, self.data):
                if parts.nodes and time.process_time() + parts.seconds(nodes / share) > until:
                    break
                part = self.complete(make())
                parts.add(part, self.data.sizes(part)[0])
        left = until - time.process_time()
        if size is None and (not parts.nodes or 4 * _FASTER * parts.seconds(nodes) < left):
            return self._whole(sampler, batch, tried, work, saved, until)
        if cuts and parts.nodes:
            affordable = int(parts.nodes[-1] * left / (_FASTER * max(parts.seconds(parts.nodes[-1]), 1e-6)))
            if min(affordable, nodes) > parts.nodes[-1]:
                count = min(affordable, nodes)
                parts.add(part_of_size(batch, count, whole), count)
        if not parts.nodes:
            parts.add(batch, nodes)
        per_node = whole.nodes / nodes
        num_edges = sum(whole.edges.values())
        return replace(
            tried,
            nodes=whole.nodes,
            edges=num_edges,
            roots=tried.roots * per_node,
            num_bytes=int(tried.num_bytes * per_node + _EDGE_BYTES * max(0.0, num_edges - edges * per_node)),
            draw_s=draw_s * per_node,
            step_s=parts.seconds(whole.nodes),
            work_bytes=parts.num_bytes(whole.nodes),
            scaled_from=parts.nodes[-1] if parts.nodes[-1] < whole.nodes else 0,
        )

    def _whole(
        self,
        sampler: Sampler,
        first: Any,
        tried: Tried,
        work: Callable[[Any], None],
        saved: Callable[[Any], int],
        until: float,
    ) -> Tried:
        """Computes whole batches."""
        began = time.process_time()
        work(first)  # compiles kernels
        took_s = time.process_time() - began
        if time.process_time() + took_s > until:
            return replace(tried, step_s=took_s, work_bytes=saved(first))
        _, grown = measured(work, first)
        grown = max(grown, saved(first))
        # Times another batch before batch 0. A model that keeps the edges of the previous batch then saves time only if all batches have the same edges, as
        # in the run.
        each = list[Tried]()
        for number in dict.fromkeys((sampler.num_batches - 1, 0)):
            batch, draw_s = (first, tried.draw_s) if number == 0 else self._draw(sampler, number)
            began = time.process_time()
            work(batch)
            step_s = time.process_time() - began
            nodes, edges = self.data.sizes(batch)
            counts = {"nodes": nodes, "edges": edges, "num_bytes": num_bytes_of(batch)}
            each.append(replace(tried, **counts, draw_s=draw_s, step_s=step_s, work_bytes=grown))
            if time.process_time() + step_s > until:
                break
        return mean_of(each)

    def _draw(self, sampler: Sampler, number: int) -> tuple[Any, float]:
        """Returns a batch, and the processor seconds of drawing it."""
        began = time.process_time()
        batch = self.complete(self.data.collate(sampler.sample(0, number)))
        return batch, time.process_time() - began


_EDGE_BYTES = 4  # bytes of an edge in a batch


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
