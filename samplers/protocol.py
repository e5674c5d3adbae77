"""What every sampler is: a pure function from (epoch, batch) to a minibatch."""

from typing import Protocol

from samplers.minibatch import MiniBatch


class Sampler(Protocol):
    """Batches by number, in any order, from any thread. Batch `step · num_ranks + rank` belongs to `rank`."""

    @property
    def num_batches(self) -> int:
        """Batches of one epoch over all ranks; a multiple of the number of ranks."""
        ...

    def sample(self, epoch: int, batch: int) -> MiniBatch:
        """The minibatch; the same for the same arguments, always."""
        ...
