"""Streams a rank's minibatches: sampled ahead by threads, delivered in order, bounded by count and bytes.

The loader adds no randomness and no state of its own: a batch is what `sampler.sample(epoch, batch)` returns, so its whole position
is (epoch, step). It needs no Ray: a plain PyTorch loop can iterate it.
"""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from samplers.minibatch import MiniBatch, TorchBatch, to_torch
from samplers.protocol import Sampler
from storage.errors import ConfigError, DeadlineError, GraphmillError, StageError


@dataclass(frozen=True)
class LoaderOptions:
    """How far and how wide the loader works ahead."""

    threads: int = 1
    prefetch: int = 2  # batches finished or under way beyond the one in use
    max_bytes: int = 1 << 30  # finished batches waiting; at least one is always allowed
    timeout_s: float = 300.0  # longest wait for one batch

    def __post_init__(self) -> None:
        if self.threads < 1 or self.prefetch < 1:
            raise ConfigError(
                f"loader: expected threads and prefetch of at least 1, got {self.threads} and {self.prefetch}"
            )
        if self.timeout_s <= 0:
            raise ConfigError(f"loader: expected a positive timeout_s, got {self.timeout_s}")


@dataclass
class LoaderStats:
    """What the loader has done since it was made; seconds are summed over batches."""

    num_batches: int = 0
    num_nodes: int = 0
    num_edges: int = 0
    num_bytes: int = 0
    sample_s: float = 0.0  # work of the sampling threads
    wait_s: float = 0.0  # the consumer stood still
    queue_depth_sum: int = 0  # finished batches waiting whenever one was asked for

    def as_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in vars(self).items()}


@dataclass
class _Window:
    """Batches under way or finished, in order."""

    futures: deque[Future[tuple[MiniBatch, float]]] = field(default_factory=deque)

    def finished_bytes(self) -> int:
        done = (future for future in self.futures if future.done() and not future.cancelled())
        return sum(future.result(0)[0].num_bytes for future in done if future.exception(0) is None)


class Loader:
    """A rank's view of a sampler. Use as a context manager, or call `close`, so that no thread stays behind."""

    def __init__(
        self,
        sampler: Sampler,
        options: LoaderOptions | None = None,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if sampler.num_batches % num_ranks:
            raise ConfigError(
                f"expected a number of batches that {num_ranks} ranks share evenly, got {sampler.num_batches}; "
                "build the sampler with the same num_ranks"
            )
        self._sampler, self._options = sampler, options or LoaderOptions()
        self._rank, self._num_ranks, self._device = rank, num_ranks, torch.device(device)
        self._pool = ThreadPoolExecutor(self._options.threads, thread_name_prefix="graphmill-sampler")
        self.stats = LoaderStats()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops what is queued and lets running samples end; each of their waits has a deadline of its own."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def num_steps(self) -> int:
        return self._sampler.num_batches // self._num_ranks

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[TorchBatch]:
        """Yields this rank's batches of an epoch from `start_step` on.

        Raises StageError with the cause where sampling failed, DeadlineError where a batch took longer than `timeout_s`.
        """
        window, next_step = _Window(), start_step
        try:
            for step in range(start_step, self.num_steps):
                while next_step < self.num_steps and self._has_room(window, next_step - step):
                    batch = next_step * self._num_ranks + self._rank
                    window.futures.append(self._pool.submit(self._timed_sample, epoch, batch))
                    next_step += 1
                self.stats.queue_depth_sum += sum(future.done() for future in window.futures)
                yield self._deliver(window.futures.popleft(), epoch, step)
        finally:
            for future in window.futures:
                future.cancel()

    def _has_room(self, window: _Window, ahead: int) -> bool:
        if ahead == 0:
            return True
        return ahead <= self._options.prefetch and window.finished_bytes() < self._options.max_bytes

    def _timed_sample(self, epoch: int, batch: int) -> tuple[MiniBatch, float]:
        start = time.perf_counter()
        minibatch = self._sampler.sample(epoch, batch)
        return minibatch, time.perf_counter() - start

    def _deliver(self, future: Future[tuple[MiniBatch, float]], epoch: int, step: int) -> TorchBatch:
        start = time.perf_counter()
        where = f"stage sample, epoch {epoch}, step {step}, rank {self._rank}"
        try:
            minibatch, sample_s = future.result(self._options.timeout_s)
        except GraphmillError as error:
            raise type(error)(f"{where}: {error}") from error
        except TimeoutError:
            raise DeadlineError(
                f"{where}: no batch after {self._options.timeout_s:.0f} s; is a partition server down or the disk stuck? "
                "(raise --loader.timeout-s if batches are this slow)"
            ) from None
        except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, OSError, MemoryError) as error:
            raise StageError(f"{where}: {type(error).__name__}: {error}") from error
        stats = self.stats
        stats.wait_s += time.perf_counter() - start
        stats.sample_s += sample_s
        stats.num_batches += 1
        stats.num_nodes += minibatch.num_nodes
        stats.num_edges += minibatch.num_edges
        stats.num_bytes += minibatch.num_bytes
        batch = to_torch(minibatch)
        if self._device.type == "cpu":
            return batch
        return batch.to(self._device, non_blocking=True)
