"""The memory of this process: reads its size from the operating system, and tells the allocator to keep freed memory."""

from functools import cache
from pathlib import Path

import numpy as np

_STATUS = Path("/proc/self/status")
_KEPT_BY_GLIBC = (1 << 25) - (1 << 13)  # just below 32 MiB: glibc moves its thresholds only for blocks up to 32 MiB


def own_bytes(field: str) -> int:
    """Returns a field of /proc/self/status in bytes; 0 if it is missing. Fields: VmRSS (resident), VmHWM (peak of VmRSS), RssAnon (without mapped files)."""
    for line in _STATUS.read_text().splitlines() if _STATUS.exists() else ():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


@cache
def keep_freed_memory() -> None:
    """Makes glibc's allocator keep up to 64 MiB of freed memory per arena for later arrays. Without glibc the function does nothing.

    By default glibc may return the memory of small arrays to the system whenever a batch or a block of a table is dropped. The next one then takes one
    page fault per 4 KiB. When a mapped block is freed, glibc raises two thresholds: the mmap threshold to the block's size (up to 32 MiB), and the trim threshold to twice
    that size (up to 64 MiB). A user can fix both (mallopt(3), M_MMAP_THRESHOLD). This function allocates and frees one such block without touching its memory.
    """
    np.empty(_KEPT_BY_GLIBC, np.uint8)
