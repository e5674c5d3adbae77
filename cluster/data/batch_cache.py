"""Keeps the batches of an evaluation on the device if all of them fit, because every evaluation has the same batches."""

from collections.abc import Iterator
from typing import Any

from graphmill.samplers.batches.device_copy import tensor_bytes
from graphmill.samplers.loading.loader import Loader


class BatchCache:
    """One rank's batches from a loader whose epochs are all equal. The batches stay on the device if all of them take at most `max_bytes`."""

    def __init__(self, loader: Loader, max_bytes: int) -> None:
        self._loader, self._max_bytes = loader, max_bytes
        self._kept: list[Any] | None = None

    @property
    def positions(self) -> range:
        return self._loader.positions

    def epoch(self, epoch: int) -> Iterator[Any]:
        """Yields the loader's batches of an epoch. If the loader raises an error, no batch is kept."""
        if self._kept is not None:
            yield from self._kept
            return
        batches: list[Any] = []
        left = self._max_bytes
        for batch in self._loader.epoch(epoch):
            left -= tensor_bytes(batch)
            if left >= 0:
                batches.append(batch)
            else:
                batches.clear()
            yield batch
        if left >= 0:
            self._kept = batches
