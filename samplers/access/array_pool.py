"""Large arrays whose memory is reused after their release.

A fresh array of hundreds of megabytes costs one page fault per 4 KiB. These faults take about as long as the gather that fills the array. A block returns
to the pool only when the last view of it (numpy's or torch's) is gone.
"""

import math
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from graphmill.core.process_memory import keep_freed_memory

_LEAST_BYTES = 1 << 20  # smaller arrays: the allocator itself reuses their memory, see `keep_freed_memory`
_STEPS_PER_DOUBLING = 8  # sizes are rounded up by at most 1/8, so that batches of similar size share blocks


class ArrayPool:
    """Returns uninitialised arrays and reuses their memory. Keeps at most `max_idle_bytes` of released memory. Thread-safe.

    A pool that is pickled and loaded in another process is empty there.
    """

    def __init__(self, max_idle_bytes: int = 1 << 29) -> None:
        keep_freed_memory()
        self._max_idle_bytes = max_idle_bytes
        self._idle: list[np.ndarray] = []  # ordered by idle time, longest first
        self._lock = threading.Lock()
        # The garbage collector may return a block at any point, even inside `empty`. SimpleQueue.put is safe there; a lock is not.
        self._returned: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()

    def __reduce__(self) -> tuple[type["ArrayPool"], tuple[int]]:
        return ArrayPool, (self._max_idle_bytes,)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Returns an uninitialised array. It does not share memory with any other array that is in use."""
        dtype = np.dtype(dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < _LEAST_BYTES:
            return np.empty(shape, dtype)
        lease = _Lease(self._take(_round_up(num_bytes)), self._give_back)
        return np.asarray(lease)[:num_bytes].view(dtype).reshape(shape)

    @property
    def idle_bytes(self) -> int:
        """Bytes of released memory that the pool keeps."""
        with self._lock:
            self._collect()
            return sum(block.nbytes for block in self._idle)

    def _give_back(self, block: np.ndarray) -> None:
        self._returned.put(block)
        # The thread that holds the lock will soon collect the blocks. Waiting for the lock here could deadlock, because this thread may hold it.
        if self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _take(self, num_bytes: int) -> np.ndarray:
        with self._lock:
            self._collect()
            for index in range(len(self._idle) - 1, -1, -1):  # the block released last is most likely still in a cache
                if self._idle[index].nbytes == num_bytes:
                    return self._idle.pop(index)
        return np.empty(num_bytes, np.uint8)

    def _collect(self) -> None:
        """Adds returned blocks to the idle blocks. If they exceed `max_idle_bytes`, frees the blocks that have been idle longest."""
        while True:
            try:
                self._idle.append(self._returned.get_nowait())
            except queue.Empty:
                break
        held = sum(block.nbytes for block in self._idle)
        while held > self._max_idle_bytes:
            held -= self._idle.pop(0).nbytes


class _Lease:
    """The base object of an array from the pool. It returns the block when the last view of the array is gone."""

    def __init__(self, block: np.ndarray, give_back: Callable[[np.ndarray], None]) -> None:
        self._block, self._give_back = block, give_back
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._give_back(self._block)


def _round_up(num_bytes: int) -> int:
    step = 1 << max((num_bytes - 1).bit_length() - 1 - (_STEPS_PER_DOUBLING.bit_length() - 1), 0)
    return -(-num_bytes // step) * step
