"""Gives freed memory back to the system."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
# Freed memory that the heap keeps at its end: giving it back after each block of a loop, and faulting it in again, costs time.
_HEAP_BYTES = 2 << 20


def return_freed_blocks(least_bytes: int = 4 << 20) -> None:
    """From now on the C library returns every freed block of at least `least_bytes` to the system at once. Does nothing without glibc.

    By default glibc raises this bound to 32 MiB once such blocks are freed, and keeps smaller ones in its heaps, one per thread. With arrays
    of 10 to 30 MB, as in a shard, freed memory was a third to two thirds of the memory in use (docs/performance.md). The cost is zeroing pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, least_bytes)


def share_heap() -> None:
    """Threads that start from now on take small blocks from one heap, instead of each keeping freed memory in its own. Does nothing without glibc.

    For threads that hold Python's lock most of the time, and so do not contend in the C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _HEAP_BYTES)
