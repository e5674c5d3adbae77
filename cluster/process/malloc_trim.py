"""Makes the C library give freed memory back to the system."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
# The heap keeps this much freed memory at its end. Without it, a loop over blocks would return memory after each block and request it again, which takes
# longer.
_HEAP_BYTES = 2 << 20


def return_freed_blocks(least_bytes: int = 4 << 20) -> None:
    """Makes the C library return every freed block of at least `least_bytes` to the system immediately, from now on. Does nothing without glibc.

    By default glibc raises this bound up to 32 MiB when such blocks are freed, and keeps smaller blocks in its heaps (one heap per thread). With arrays
    of 10 to 30 MB, as in a shard, freed memory was a third to two thirds of the memory in use (docs/performance.md). The cost is that pages are zeroed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, least_bytes)


def share_heap() -> None:
    """Makes all threads that start from now on take small blocks from one common heap. Otherwise each thread keeps freed memory in a separate heap.

    Use it if the threads hold Python's lock most of the time; then they do not wait for each other in the C library. Does nothing without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _HEAP_BYTES)
