"""Memory: what this process has, what the machine has left, and whether a run fits, said before it starts."""

import ctypes
from collections.abc import Callable
from pathlib import Path

from graphmill.core.errors import ConfigError
from graphmill.core.process_memory import own_bytes
from graphmill.core.summaries import counted

_SHARE = 0.9  # of the free memory, for estimates are estimates
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def available_bytes() -> int:
    """Free memory of this machine, or of the container that the process is in, where that has less."""
    import psutil

    free = psutil.virtual_memory().available
    if _LIMIT.exists() and _USED.exists():
        limit = _LIMIT.read_text().strip()
        if limit != "max":
            free = min(free, max(0, int(limit) - int(_USED.read_text())))
    return free


def trim_heap() -> None:
    """Gives back what the C library's heap holds of freed memory, once. Nothing where the C library is another one than glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def reset_peak() -> None:
    """From here on the process's VmHWM counts from what is resident now. Raises OSError where the system cannot."""
    trim_heap()  # what the allocator holds free would hide the growth
    Path("/proc/self/clear_refs").write_text("5")


def growth_bytes(work: Callable[[], object]) -> int | None:
    """How much more memory is resident at the height of `work` than before it; None where the system does not tell."""
    try:
        reset_peak()
    except OSError:
        work()
        return None
    before = own_bytes("VmRSS")
    work()
    return max(0, own_bytes("VmHWM") - before)


def check_fits(needed: int, available: int, num_workers: int, advice: str) -> None:
    """Raises ConfigError, which ends with the advice, where a worker's shard needs more than `available` bytes."""
    if needed <= _SHARE * available:
        return
    raise ConfigError(
        f"the whole graph over {counted(num_workers, 'worker')} needs about {needed / 2**30:.1f} GiB per worker, "
        f"{available / 2**30:.1f} GiB are free for each; {advice}"
    )
