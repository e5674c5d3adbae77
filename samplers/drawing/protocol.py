"""The protocol of samplers: frozen options, and a pure function from (epoch, batch) to a minibatch.

A sampler has no state: the loader stores the position in the data (`Loader.state_dict`). One line adds a new sampler to the conformance suite
(tests/samplers/test_conformance.py).
"""

import hashlib
from typing import Any, Protocol

from graphmill.core.errors import ConfigError
from graphmill.core.summaries import changed_options


class Batch(Protocol):
    """A sampler's result: a MiniBatch or another frozen dataclass of arrays, with counts of its contents."""

    @property
    def num_nodes(self) -> int: ...

    @property
    def num_edges(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...


class Sampler(Protocol):
    """Makes batches by number, in any order, from any thread. Batch `step · num_ranks + rank` belongs to `rank`.

    In training, a "rank" here is a micro-batch: a position within the step. Any worker may compute it (`--fit.micro_batches`).
    """

    @property
    def options(self) -> Any:
        """Frozen options. Their repr names every value on which batches depend."""
        ...

    @property
    def content_hash(self) -> str:
        """Hash of the data: of the graph (`GraphStatistics.graph_digest`, independent of partitions) and of the given roots, if any."""
        ...

    @property
    def num_batches(self) -> int:
        """Number of batches in one epoch, over all ranks. A multiple of the number of ranks."""
        ...

    def sample(self, epoch: int, batch: int) -> Batch:
        """The minibatch. It depends only on the arguments."""
        ...


def sampler_repr(sampler: Sampler) -> str:
    """The repr of a sampler, for notebooks."""
    return f"{type(sampler).__name__}({sampler.num_batches:,} batches an epoch, {changed_options(sampler.options)})"


def sampler_len(sampler: Sampler) -> int:
    return sampler.num_batches


def check_batch(batch: int, num_batches: int) -> None:
    """Raises ConfigError unless `batch` is in [0, num_batches)."""
    if not 0 <= batch < num_batches:
        raise ConfigError(f"batch: expected a number in [0, {num_batches}), got {batch}")


def sampler_fingerprint(sampler: Sampler, num_positions: int) -> str:
    """16 hex digits: hash of the sampler's class, its options, the number of batches, and the number of batches in a step. Two loaders with the same data and
    the same order of batches have the same fingerprint."""
    walk = f"{type(sampler).__name__} {sampler.options!r} {sampler.num_batches} {num_positions}"
    return hashlib.sha256(walk.encode()).hexdigest()[:16]
