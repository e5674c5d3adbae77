"""Peak memory of training."""

import torch

from graphmill.core.process_memory import own_bytes


def peak_bytes(device: torch.device) -> int | None:
    """Peak memory of this process: on a GPU allocated by PyTorch, on a CPU resident, mapped files included. None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return own_bytes("VmHWM") or None
