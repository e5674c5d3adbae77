"""The most memory that training has taken."""

import torch

from graphmill.core.process_memory import own_bytes


def peak_bytes(device: torch.device) -> int | None:
    """On a GPU what PyTorch had allocated at its most; on a CPU what the process had resident, mapped files included. None where the system
    does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return own_bytes("VmHWM") or None
