"""Measures the time and memory of a function on the CPU or on a GPU."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from graphmill.jobs.machine.memory_check import available_bytes, growth_bytes, trim_heap

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")


def seconds_of(call: Callable[[], object], device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one `call`, measured until the device has finished. On a GPU, `clock` should be the wall clock."""
    wait_for(device)
    began = clock()
    call()
    wait_for(device)
    return clock() - began


def wait_for(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def free_bytes(device: str, at_most_gb: float) -> int:
    """Free bytes of the device, limited to `at_most_gb` (0: no limit)."""
    trim_heap()  # a pass over a million nodes left 9 GB of freed memory in the heap
    if device == "cpu":
        free = available_bytes()
    else:
        import torch

        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    return min(free, int(at_most_gb * 1e9)) if at_most_gb else free


def peak_bytes(step: "Callable[[], Tensor]", device: str) -> int | None:
    """Growth of memory over one forward and backward pass. None if the system does not report it (Linux and CUDA do)."""
    if device == "cpu":
        return growth_bytes(lambda: step().backward())
    import torch

    wait_for(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step().backward()
    wait_for(device)
    return torch.cuda.max_memory_allocated() - before


def unless_too_large(
    work: Callable[[], Result], needed: int, device: str, at_most_gb: float, less: str
) -> tuple[Result | None, str]:
    """(result of `work`, ""), or (None, reason) if the device has less than `needed` bytes or runs out of memory. `less`: advice, which the reason contains."""
    import torch

    free = free_bytes(device, at_most_gb)
    if needed > free:
        return None, f"needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB there; {less}, takes less"
    try:
        return work(), ""
    except torch.OutOfMemoryError as error:
        return None, f"out of memory: {str(error).splitlines()[0]}"
