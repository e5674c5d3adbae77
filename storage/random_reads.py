"""Advice to the system about mapped rows that do not fit in memory."""

import ctypes
import mmap
import os

import numpy as np

_SHARE = 0.5  # of the machine's memory: larger files will not stay there beside what else a run needs


def read_at_random(rows: np.ndarray, memory_bytes: int | None = None) -> bool:
    """Tells the system that these mapped rows are read in no order, where they are more than half of the memory (the machine's); whether it was told.

    A page fault then reads one page. Otherwise it reads some thirty around it (128 KiB), which are evicted before anybody asks for them. Several
    threads that fault at once keep a disk busy: loader threads, one for each batch (docs/performance.md, "Rows from a disk").
    """
    if memory_bytes is None:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None or not hasattr(mmap, "MADV_RANDOM") or rows.nbytes <= _SHARE * memory_bytes:
        return False
    first = -(-rows.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (rows.ctypes.data + rows.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    return length > 0 and not madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_RANDOM)
