"""Streams a rank's minibatches. Threads sample them in advance, within bounds on their number and bytes; the loader delivers them in order.

The loader adds no randomness: a batch is the result of `sampler.sample(epoch, batch)`. Therefore (epoch, step) fully describes the position. A plain PyTorch
loop can use the loader without Ray. The stages of a batch are plan, sample and fetch (all three in the sampler), collate, pin, and copy.
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

# Fields of LoaderStats with the time that sampling threads spent in each stage. `blocked_s` is time without work.
STAGE_SECONDS = ("plan_s", "sample_s", "fetch_s", "collate_s", "pin_s", "copy_s", "blocked_s")


@dataclass
class LoaderStats:
    """Totals since the loader was constructed. Seconds are sums over batches."""

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
    blocked_s: float = 0.0  # sampling threads waited for room: the consumer is slower
    wait_s: float = 0.0  # the consumer waited for a batch: sampling is slower
    queue_depth_sum: int = 0  # number of waiting batches, added up over all requests for a batch
    peak_bytes: int = 0  # largest total size of waiting batches

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
    delivered: int = 0  # number of this rank's batches that are delivered in this epoch
    stream: OrderedStream[_Ready] | None = field(default=None, repr=False)


def _planned(
    sampler: Sampler, options: LoaderOptions, batches: list[int], num_epochs: int, shared: Sequence[SharedRows]
) -> ScheduledBatches | None:
    """Returns the object that fetches rows by plan. Returns None if cache_bytes is 0, or if this process reads all partitions itself.

    Raises ConfigError if the sampler does not know a batch's nodes before it fetches their rows.
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
    """Delivers the batches of one rank. Use it as a context manager, or call `close`; otherwise its threads continue.

    `collate` turns the sampler's batch into a frozen dataclass of tensors: `to_torch` makes a TorchBatch from a MiniBatch.
    An iteration runs from the current position to the end of the epoch. Afterwards the position is the start of the next epoch:

        for _ in range(epochs):
            for batch in loader: ...

    The position moves past a batch when the batch is delivered. A `state_dict` taken after a step's work therefore resumes with the next step.

    A step has one batch for each of `num_positions` positions; the default is one position per rank. If there are more positions than ranks, each rank has
    several positions (`graphmill.samplers.vocabulary.rank_shares.own_positions`) and delivers a batch for each of them. Neither the steps nor the state between
    two steps depends on the number of ranks.

    `num_epochs`: the number of epochs that will run one after another, if known. The plan of rows then continues from one of them to the next. `shared`: for
    each type of nodes, the rows in shared memory; the plan does not fetch these rows.
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
        with suppress(DeadlineError):  # a thread that hangs must not delay the original error
            self.close(timeout_s=min(0.5, self._options.close_timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Drops waiting batches and waits until the threads have ended. If a thread does not end in time, raises DeadlineError with its name."""
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
        """The number of this rank's batches in an epoch."""
        return self.num_steps * len(self.positions)

    def __repr__(self) -> str:
        position = self._position
        step = position.delivered // len(self.positions)
        return f"Loader(epoch {position.epoch}, step {step} of {self.num_steps}, {self._sampler!r})"

    def reset(self, epoch: int, step: int = 0) -> None:
        """Sets the position and ends a running iteration. Raises ConfigError if the step does not exist."""
        if epoch < 0 or not 0 <= step <= self.num_steps:
            raise ConfigError(
                f"loader: expected an epoch >= 0 and a step in [0, {self.num_steps}], got {epoch} and {step}"
            )
        self._stop_stream()
        self._position = _Position(epoch, step * len(self.positions))

    def state_dict(self) -> dict[str, int | str]:
        """Returns the position, with hashes of the data and options. To resume, nothing else is needed.

        Raises ConfigError if this rank has received only some of its batches of the current step.
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
        """Sets the position to a saved one. Raises ConfigError if it was saved with other data, options, batches or ranks."""
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
        """Yields this rank's batches of an epoch, beginning at `start_step`. The same as `reset` followed by iteration."""
        self.reset(epoch, start_step)
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches from the current position to the end of the epoch.

        If a stage fails, raises its error. A Graphmill error keeps its type; any other error becomes a StageError. The error has the stage's traceback as cause
        and as note, even if the stage failed in a server. Raises DeadlineError if a batch takes longer than `timeout_s`.
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
                del ready  # now only the consumer refers to the batch
                if position is not self._position or position.stream is not stream:
                    return  # in the meantime the loader was reset, closed or iterated again
            self._position = _Position(epoch + 1)
        finally:
            stream.cancel()
            if self.planned is not None and position.stream is stream and position is self._position:
                self.planned.cancel()  # not at the end of an epoch: the next epoch continues the plan
            self._largest_bytes = max(self._largest_bytes, stream.largest_bytes)

    def _stop_stream(self, timeout_s: float | None = None) -> None:
        timeout_s = self._options.close_timeout_s if timeout_s is None else timeout_s
        stream, self._position.stream = self._position.stream, None
        if stream is not None:
            stream.cancel()
            if self.planned is not None:  # closed first, because the stream's threads may wait for it
                self.planned.close(timeout_s)
            stream.close(timeout_s)

    def _batch_of(self, number: int) -> int:
        """The number that the sampler gives to batch `number` of this rank's epoch."""
        step, place = divmod(number, len(self.positions))
        return step * self._num_positions + self.positions[place]

    def _make(self, epoch: int, number: int) -> _Ready:
        """Makes this rank's batch `number` of the epoch: runs all stages, in a sampling thread."""
        with stage("sample"):  # the sampler may report other stages within
            if self.planned is None:
                minibatch = self._sampler.sample(epoch, self._batch_of(number))
            else:
                minibatch = self.planned.batch(number)
        with stage("collate"):
            batch = self._collate(minibatch)
        num_bytes = max(minibatch.num_bytes, tensor_bytes(batch))  # collating may increase the size
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
        """The error that the consumer receives. It names the batch and the stage. Its note has the whole traceback, because a note survives pickling."""
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
