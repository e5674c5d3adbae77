"""Streams a rank's minibatches: threads sample them in advance, and the loader delivers them in order, within bounds on count and bytes.

The loader adds no randomness. A batch is the result of `sampler.sample(epoch, batch)`, so the position is fully described by (epoch, step). A plain PyTorch
loop can iterate over the loader, without Ray. Stages: plan, sample, fetch (inside the sampler), collate, pin, copy.
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

# Fields of LoaderStats that hold the time of the sampling threads by stage. In `blocked_s` the threads had no work.
STAGE_SECONDS = ("plan_s", "sample_s", "fetch_s", "collate_s", "pin_s", "copy_s", "blocked_s")


@dataclass
class LoaderStats:
    """Totals since the loader was made; seconds are summed over batches."""

    num_batches: int = 0
    num_nodes: int = 0
    num_edges: int = 0
    num_bytes: int = 0
    plan_s: float = 0.0  # time of the sampling threads, by stage
    sample_s: float = 0.0
    fetch_s: float = 0.0
    collate_s: float = 0.0
    pin_s: float = 0.0
    copy_s: float = 0.0
    blocked_s: float = 0.0  # the sampling threads waited for room, because the consumer is slower
    wait_s: float = 0.0  # the consumer waited for a batch, because the sampling threads are slower
    queue_depth_sum: int = 0  # sum over requests for a batch: number of finished batches that wait
    peak_bytes: int = 0  # largest total size of finished batches that wait

    def as_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class _Ready:
    """A batch that has passed all stages and waits for the consumer."""

    batch: Any
    arrived: torch.cuda.Event | None
    num_nodes: int
    num_edges: int
    num_bytes: int


@dataclass
class _Position:
    epoch: int = 0
    delivered: int = 0  # number of this rank's batches of the epoch
    stream: OrderedStream[_Ready] | None = field(default=None, repr=False)


def _planned(
    sampler: Sampler, options: LoaderOptions, batches: list[int], num_epochs: int, shared: Sequence[SharedRows]
) -> ScheduledBatches | None:
    """Returns the fetcher that follows a plan of rows. Returns None without cache_bytes, or if all partitions are read in this process.

    Raises ConfigError for a sampler that does not know a batch's nodes in advance.
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
    """Delivers a rank's batches of a sampler. Use it as a context manager, or call `close`, so that no thread remains.

    `collate` turns the sampler's batch into a frozen dataclass of tensors: `to_torch` makes a TorchBatch from a MiniBatch.
    An iteration runs from the current position to the end of the epoch. Afterwards the position is the start of the next epoch:

        for _ in range(epochs):
            for batch in loader: ...

    The position moves past a batch when the batch is delivered. A `state_dict` taken after a step's work therefore resumes with the next step.

    A step is one batch for each of `num_positions`, by default the number of ranks. With more positions, a rank goes through its own positions
    (`graphmill.samplers.vocabulary.rank_shares.own_positions`) in each step. Steps do not depend on the number of ranks, and the state between two steps does
    not either.

    `num_epochs`: number of consecutive epochs, if known; the plan of rows continues across the ends of these epochs. `shared`: for each type of nodes, rows in
    shared memory, which the plan leaves out.
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
        with suppress(DeadlineError):  # The original error says more, and must not wait for a thread that hangs.
            self.close(timeout_s=min(0.5, self._options.close_timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Drops queued batches and waits for the threads to end. Raises DeadlineError with the name of a thread that does not end in time."""
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
        """Number of this rank's batches in an epoch."""
        return self.num_steps * len(self.positions)

    def __repr__(self) -> str:
        position = self._position
        step = position.delivered // len(self.positions)
        return f"Loader(epoch {position.epoch}, step {step} of {self.num_steps}, {self._sampler!r})"

    def reset(self, epoch: int, step: int = 0) -> None:
        """Moves the position. A running iteration ends. Raises ConfigError for a step that does not exist."""
        if epoch < 0 or not 0 <= step <= self.num_steps:
            raise ConfigError(
                f"loader: expected an epoch >= 0 and a step in [0, {self.num_steps}], got {epoch} and {step}"
            )
        self._stop_stream()
        self._position = _Position(epoch, step * len(self.positions))

    def state_dict(self) -> dict[str, int | str]:
        """The position, with hashes of its data and options. A resume needs nothing else.

        Raises ConfigError in the middle of a step, when only a part of this rank's batches of the step is delivered.
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
        """Moves to a saved position. Raises ConfigError if the position was saved with different data, options, batches or ranks."""
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
        """Yields this rank's batches of an epoch from `start_step` on. Same as `reset`, then iteration."""
        self.reset(epoch, start_step)
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        """Yields batches from the position to the end of its epoch.

        Raises the error of a stage: a Graphmill error with its own type, any other error as StageError. The stage's traceback, also one from a server, is the
        cause and note of the error. Raises DeadlineError if a batch takes longer than `timeout_s`.
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
                del ready  # from here on only the consumer holds the batch
                if position is not self._position or position.stream is not stream:
                    return  # the loader was reset, closed or iterated again in the meantime
            self._position = _Position(epoch + 1)
        finally:
            stream.cancel()
            if self.planned is not None and position.stream is stream and position is self._position:
                self.planned.cancel()  # not at the end of an epoch, because the next epoch continues the plan
            self._largest_bytes = max(self._largest_bytes, stream.largest_bytes)

    def _stop_stream(self, timeout_s: float | None = None) -> None:
        timeout_s = self._options.close_timeout_s if timeout_s is None else timeout_s
        stream, self._position.stream = self._position.stream, None
        if stream is not None:
            stream.cancel()
            if self.planned is not None:  # closed first, because it blocks the stream's threads
                self.planned.close(timeout_s)
            stream.close(timeout_s)

    def _batch_of(self, number: int) -> int:
        """The sampler's number for this rank's batch `number` of the epoch."""
        step, place = divmod(number, len(self.positions))
        return step * self._num_positions + self.positions[place]

    def _make(self, epoch: int, number: int) -> _Ready:
        """Runs all stages of this rank's batch `number` of the epoch, in a sampling thread."""
        with stage("sample"):  # a sampler may report further stages
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
        """The error that the consumer receives. It names the batch and the stage, and has the whole traceback as a note, which survives pickling."""
        cause = delivery.error
        assert cause is not None
        if isinstance(cause, GraphmillError):
            error: GraphmillError = type(cause)(str(cause))
        elif isinstance(cause, Exception):
            error = StageError(f"{type(cause).__name__}: {cause}")
        else:
            return cause  # SystemExit and similar errors keep their type
        error.at(f"stage {delivery.clock.stage}, epoch {epoch}, step {step}", f"rank {self._rank}")
        error.add_note("".join(traceback.format_exception(cause)).rstrip())
        error.__cause__ = cause
        return error
