"""Streams a rank's minibatches: sampled ahead by threads, delivered in order, bounded by count and bytes.

The loader adds no randomness: a batch is what `sampler.sample(epoch, batch)` returns, so its whole position is (epoch, step). It needs
no Ray: a plain PyTorch loop can iterate it. Stages: plan, sample, fetch (inside the sampler), collate, pin, copy.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from graphmill.core.errors import ConfigError, DeadlineError, GraphmillError, StageError
from graphmill.samplers.batches.device_copy import DeviceCopy, tensor_bytes
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.drawing.pending_batch import DrawingSampler
from graphmill.samplers.drawing.protocol import Sampler, sampler_fingerprint
from graphmill.samplers.loading.ordered_stream import Bounds, Delivery, OrderedStream
from graphmill.samplers.loading.scheduled_rows import ScheduledBatches, SharedRows
from graphmill.samplers.vocabulary.options import LoaderOptions
from graphmill.samplers.vocabulary.rank_shares import own_positions
from graphmill.samplers.vocabulary.stage_clock import stage

# Fields of LoaderStats: where the sampling threads' time went, by stage; in `blocked_s` they had nothing to do.
STAGE_SECONDS = ("plan_s", "sample_s", "fetch_s", "collate_s", "pin_s", "copy_s", "blocked_s")


@dataclass
class LoaderStats:
    """What the loader has done since it was made; seconds are summed over batches."""

    num_batches: int = 0
    num_nodes: int = 0
    num_edges: int = 0
    num_bytes: int = 0
    plan_s: float = 0.0  # work of the sampling threads, by stage
    sample_s: float = 0.0
    fetch_s: float = 0.0
    collate_s: float = 0.0
    pin_s: float = 0.0
    copy_s: float = 0.0
    blocked_s: float = 0.0  # the sampling threads stood still for want of room: the consumer is slower
    wait_s: float = 0.0  # the consumer stood still: the sampling threads are slower
    queue_depth_sum: int = 0  # finished batches waiting whenever one was asked for
    peak_bytes: int = 0  # most bytes of finished batches waiting at once

    def as_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class _Ready:
    """A batch at the end of its stages."""

    batch: Any
    arrived: torch.cuda.Event | None
    num_nodes: int
    num_edges: int
    num_bytes: int


@dataclass
class _Position:
    epoch: int = 0
    delivered: int = 0  # of this rank's batches of the epoch
    stream: OrderedStream[_Ready] | None = field(default=None, repr=False)


def _planned(
    sampler: Sampler, options: LoaderOptions, batches: list[int], num_epochs: int, shared: Sequence[SharedRows]
) -> ScheduledBatches | None:
    """What fetches the sampler's rows by plan; None where that is not asked for, or all partitions are read in this process.

    Raises ConfigError for a sampler that cannot tell a batch's nodes ahead.
    """
    if not options.cache_bytes:
        return None
    if not isinstance(sampler, DrawingSampler):
        raise ConfigError(
            f"cache_bytes: expected a sampler with a method `draw` (docs/guides/your_sampler.md), got {type(sampler).__name__}; leave out "
            "--loader.cache_bytes"
        )
    return None if sampler.router.is_near.all() else ScheduledBatches(sampler, options, batches, num_epochs, shared)


class Loader:
    """A rank's view of a sampler. Use as a context manager, or call `close`, so that no thread stays behind.

    `collate` turns what the sampler makes into a frozen dataclass of tensors: `to_torch` makes a TorchBatch of a MiniBatch.
    Iterating walks from the position to the end of its epoch and leaves the position at the next epoch's start:

        for _ in range(epochs):
            for batch in loader: ...

    The position moves past a batch as it is handed over, so `state_dict` after a step's work resumes with the next one.

    A step is one batch for each of `num_positions`, which are as many as the ranks unless there are more: then a rank walks through its
    own positions (`graphmill.samplers.vocabulary.rank_shares.own_positions`) step by step. Steps, and the state between two steps, do not depend on the ranks.

    `num_epochs`: how many will be asked for, one after the other, as far as is known: rows are planned across their ends. `shared`: rows that
    need no plan, of each type of nodes.
    """

    def __init__(
        self,
        sampler: Sampler,
        options: LoaderOptions | None = None,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        num_positions: int | None = None,
        num_epochs: int = 0,
        shared: Sequence[SharedRows] = (),
        device: torch.device | str = "cpu",
        collate: Callable[[Any], Any] = to_torch,
    ) -> None:
        num_positions = num_ranks if num_positions is None else num_positions
        if not 0 <= rank < num_ranks:
            raise ConfigError(f"loader: expected a rank in [0, {num_ranks}), got {rank}")
        if num_positions < num_ranks:
            raise ConfigError(f"loader: expected a position or more for each of {num_ranks} ranks, got {num_positions}")
        if sampler.num_batches % num_positions:
            raise ConfigError(
                f"expected a number of batches that {num_positions} ranks share evenly, got {sampler.num_batches}; "
                "build the sampler with the same num_ranks"
            )
        self._sampler, self._options = sampler, options or LoaderOptions()
        self._rank, self._num_positions = rank, num_positions
        self.positions = own_positions(rank, num_ranks, num_positions)
        self._copy, self._collate = DeviceCopy(torch.device(device)), collate
        batches = [self._batch_of(number) for number in range(len(self))] if self._options.cache_bytes else []
        self.planned = _planned(sampler, self._options, batches, num_epochs, shared)
        self._position = _Position()
        self._largest_bytes = 0
        self._closed = False
        self.stats = LoaderStats()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        with suppress(DeadlineError):  # the error being raised says more, and must not wait for a thread that hangs
            self.close(timeout_s=min(0.5, self._options.close_timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Drops what is queued and waits for the threads. Raises DeadlineError naming a thread that does not end in time."""
        self._closed = True
        if self.planned is not None:
            self.planned.cancel()
        self._stop_stream(timeout_s)
        if self.planned is not None:
            self.planned.close(self._options.close_timeout_s if timeout_s is None else timeout_s)

    @property
    def num_steps(self) -> int:
        return self._sampler.num_batches // self._num_positions

    def __len__(self) -> int:
        """This rank's batches of an epoch."""
        return self.num_steps * len(self.positions)

    def __repr__(self) -> str:
        position = self._position
        step = position.delivered // len(self.positions)
        return f"Loader(epoch {position.epoch}, step {step} of {self.num_steps}, {self._sampler!r})"

    def reset(self, epoch: int, step: int = 0) -> None:
        """Moves the position; an iteration under way ends. Raises ConfigError where there is no such step."""
        if epoch < 0 or not 0 <= step <= self.num_steps:
            raise ConfigError(
                f"loader: expected an epoch >= 0 and a step in [0, {self.num_steps}], got {epoch} and {step}"
            )
        self._stop_stream()
        self._position = _Position(epoch, step * len(self.positions))

    def state_dict(self) -> dict[str, int | str]:
        """The position, which is all that resuming needs, with the data and the options that it is a position in.

        Raises ConfigError within a step, where only some of this rank's batches of it are handed over.
        """
        epoch, (step, more) = self._position.epoch, divmod(self._position.delivered, len(self.positions))
        if more:
            raise ConfigError(
                f"loader state: expected all {len(self.positions)} batches of a step to be handed over, got {more}; take the state between two steps"
            )
        if step == self.num_steps:
            epoch, step = epoch + 1, 0
        return {"epoch": epoch, "step": step, **self._place()}

    def _place(self) -> dict[str, str]:
        sampler = self._sampler
        return {"data": sampler.content_hash[:16], "fingerprint": sampler_fingerprint(sampler, self._num_positions)}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Moves to a saved position. Raises ConfigError where it is not one of this loader: other data, options, batches or ranks."""
        if set(state) != {"epoch", "step", "data", "fingerprint"}:
            raise ConfigError(
                f"loader state: expected epoch, step, data and fingerprint, got {sorted(state)}; if an earlier version saved it, begin "
                "an epoch, by reset(epoch) or from a checkpoint of an epoch's end"
            )
        place = self._place()
        if state["data"] != place["data"]:
            raise ConfigError(
                f"loader state: expected a position in the data {place['data']}, got one in {state['data']}: of another graph, of other "
                'given roots or, with cut="partitions" or "within", of other partitions; resume with the data that saved it'
            )
        if state["fingerprint"] != place["fingerprint"]:
            raise ConfigError(
                f"loader state: expected the fingerprint {place['fingerprint']} of these options, batches and ranks, got "
                f"{state['fingerprint']}; resume with the options and the number of micro-batches a step that saved it"
            )
        self.reset(int(state["epoch"]), int(state["step"]))

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Any]:
        """Yields this rank's batches of an epoch from `start_step` on: `reset`, then iterate."""
        self.reset(epoch, start_step)
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        """Yields batches from the position to the end of its epoch.

        Raises what a stage raised (a Graphmill error as itself, others as StageError; the stage's traceback, a server's included,
        is its cause and its note), or DeadlineError where a batch took longer than `timeout_s`.
        """
        if self._closed:
            raise ConfigError("loader: expected an open loader, this one is closed; build another")
        self._stop_stream()
        position, options = self._position, self._options
        epoch = position.epoch
        if self.planned is not None:
            self.planned.begin(epoch, position.delivered)
        stream = OrderedStream(
            lambda number: self._make(epoch, number),
            lambda ready: ready.num_bytes,
            position.delivered,
            len(self),
            Bounds(options.threads, max(options.prefetch, options.threads), options.max_bytes, options.timeout_s),
            self._largest_bytes,
        )
        position.stream = stream
        blocked_s = 0.0
        try:
            stream.begin()
            while position.delivered < len(self):
                ready = self._next(stream, epoch, position.delivered)
                position.delivered += 1
                self.stats.blocked_s += stream.blocked_s - blocked_s
                blocked_s = stream.blocked_s
                yield self._copy.receive(ready.batch, ready.arrived)
                del ready  # the consumer's alone from here
                if position is not self._position or position.stream is not stream:
                    return  # reset, closed or iterated anew meanwhile
            self._position = _Position(epoch + 1)
        finally:
            stream.cancel()
            if self.planned is not None and position.stream is stream and position is self._position:
                self.planned.cancel()  # not at the end of an epoch: its successor goes on with the plan
            self._largest_bytes = max(self._largest_bytes, stream.largest_bytes)

    def _stop_stream(self, timeout_s: float | None = None) -> None:
        timeout_s = self._options.close_timeout_s if timeout_s is None else timeout_s
        stream, self._position.stream = self._position.stream, None
        if stream is not None:
            stream.cancel()
            if self.planned is not None:  # first, for it holds up the stream's threads
                self.planned.close(timeout_s)
            stream.close(timeout_s)

    def _batch_of(self, number: int) -> int:
        """The sampler's number of this rank's batch `number`."""
        step, place = divmod(number, len(self.positions))
        return step * self._num_positions + self.positions[place]

    def _make(self, epoch: int, number: int) -> _Ready:
        """All stages of this rank's batch `number` of the epoch; runs in a sampling thread."""
        with stage("sample"):  # a sampler names its own stages where it knows them
            if self.planned is None:
                minibatch = self._sampler.sample(epoch, self._batch_of(number))
            else:
                minibatch = self.planned.batch(number)
        with stage("collate"):
            batch = self._collate(minibatch)
        num_bytes = max(minibatch.num_bytes, tensor_bytes(batch))  # collating may widen or pad
        moved, arrived = self._copy.send(batch)
        return _Ready(moved, arrived, minibatch.num_nodes, minibatch.num_edges, num_bytes)

    def _next(self, stream: OrderedStream[_Ready], epoch: int, expected: int) -> _Ready:
        stats, start = self.stats, time.perf_counter()
        stats.queue_depth_sum += stream.num_finished
        try:
            number, delivery = stream.take()
        except DeadlineError as error:
            raise DeadlineError(
                f"{error}; is a partition server down or the disk stuck? (raise --loader.timeout_s if batches are this slow)"
            ).at(f"epoch {epoch}, step {expected // len(self.positions)}", f"rank {self._rank}") from None
        stats.wait_s += time.perf_counter() - start
        if delivery.error is not None:
            raise self._failure(delivery, epoch, number // len(self.positions))
        ready = delivery.result
        assert ready is not None
        assert number == expected
        self._count(ready, delivery.clock.seconds)
        stats.peak_bytes = max(stats.peak_bytes, stream.peak_bytes)
        return ready

    def _count(self, ready: _Ready, seconds: Mapping[str, float]) -> None:
        stats = self.stats
        stats.num_batches += 1
        stats.num_nodes += ready.num_nodes
        stats.num_edges += ready.num_edges
        stats.num_bytes += ready.num_bytes
        for name in ("plan", "sample", "fetch", "collate", "pin", "copy"):
            setattr(stats, f"{name}_s", getattr(stats, f"{name}_s") + seconds.get(name, 0.0))

    def _failure(self, delivery: Delivery[_Ready], epoch: int, step: int) -> BaseException:
        """The error as the consumer sees it: where it happened, and the whole traceback as a note, which survives pickling."""
        cause = delivery.error
        assert cause is not None
        if isinstance(cause, GraphmillError):
            error: GraphmillError = type(cause)(str(cause))
        elif isinstance(cause, Exception):
            error = StageError(f"{type(cause).__name__}: {cause}")
        else:
            return cause  # SystemExit and the like are not ours to rename
        error.at(f"stage {delivery.clock.stage}, epoch {epoch}, step {step}", f"rank {self._rank}")
        error.add_note("".join(traceback.format_exception(cause)).rstrip())
        error.__cause__ = cause
        return error
