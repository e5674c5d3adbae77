"""Measures the memory of this process and the free memory of the machine, and checks before the start whether a run fits."""

import ctypes
from collections.abc import Callable
from pathlib import Path

from graphmill.core.errors import ConfigError
from graphmill.core.process_memory import own_bytes
from graphmill.core.summaries import counted

_SHARE = 0.9  # share of the free memory that a run may need, because the need is an estimate
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def available_bytes() -> int:
    """Free memory of this machine, or of this process's container if that is less."""
    import psutil

    free = psutil.virtual_memory().available
    if _LIMIT.exists() and _USED.exists():
        limit = _LIMIT.read_text().strip()
        if limit != "max":
            free = min(free, max(0, int(limit) - int(_USED.read_text())))
    return free


def trim_heap() -> None:
    """Returns the free heap of the C library to the system. Does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def reset_peak() -> None:
    """Resets VmHWM, the process's peak memory. Raises OSError if the system does not support it."""
    trim_heap()  # otherwise memory that the allocator keeps hides the growth
    Path("/proc/self/clear_refs").write_text("5")


def growth_bytes(work: Callable[[], object]) -> int | None:
    """The peak of resident memory during `work` minus the resident memory before it. None if the system does not report the peak."""
    try:
        reset_peak()
    except OSError:
        work()
        return None
    before = own_bytes("VmRSS")
    work()
    return max(0, own_bytes("VmHWM") - before)


def check_fits(needed: int, available: int, num_workers: int, advice: str) -> None:
    """Raises ConfigError if a worker's shard needs more than `available` bytes. The message ends with `advice`."""
    if needed <= _SHARE * available:
        return
    raise ConfigError(
        f"the whole graph over {counted(num_workers, 'worker')} needs about {needed / 2**30:.1f} GiB per worker, "
        f"{available / 2**30:.1f} GiB are free for each; {advice}"
    )
