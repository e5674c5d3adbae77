"""Large blocks of memory that are freed go back to the system."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
# Freed memory that the heap keeps at its end: to give it back after each block of a loop, and fault it in again, costs time.
_HEAP_BYTES = 2 << 20


def return_freed_blocks(least_bytes: int = 4 << 20) -> None:
    """Makes the C library give every freed block of so many bytes or more back to the system at once, in this process, from now on.

    glibc raises that bound to 32 MiB as soon as such blocks are freed, and keeps what is smaller in its heaps, of which each thread
    has one. Where arrays of 10 to 30 MB come and go, as a shard's do, freed memory was a third to two thirds of the memory in use
    (docs/performance.md). Costs the pages' zeroing. Nothing where the C library is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, least_bytes)


def share_heap() -> None:
    """Makes all threads of this process that begin from now on take their small blocks from one heap, of glibc. Each would keep what it has freed in its own.

    For threads that hold Python's lock most of the time, and so do not wait for each other in the C library. Nothing where that is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _HEAP_BYTES)
