"""The last stages of a batch: into page-locked memory, and from there to the GPU beside the computation. Nothing to do on a CPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from samplers.stage_clock import stage

Batch = TypeVar("Batch")  # a frozen dataclass, some of whose fields are tensors


def map_tensors(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The batch with every tensor changed."""
    changed: dict[str, Any] = {n: change(value) for n, value in vars(batch).items() if isinstance(value, torch.Tensor)}
    return replace(batch, **changed)  # type: ignore[type-var]


def tensor_bytes(batch: Any) -> int:
    """Bytes of the tensors that are the batch's own fields."""
    fields = getattr(batch, "__dict__", {}).values()
    return sum(value.numel() * value.element_size() for value in fields if isinstance(value, torch.Tensor))


class DeviceCopy:
    """Copies batches to one device on a stream of its own; `send` in a sampling thread, `receive` where the batch is used."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event | None]:
        """The batch, whose copy may still be running, and the event of its arrival."""
        if self._stream is None:
            here = self._device.type == "cpu"
            return batch if here else map_tensors(batch, lambda tensor: tensor.to(self._device)), None
        with stage("pin"):
            pinned = map_tensors(batch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory())
        with stage("copy"), torch.cuda.stream(self._stream):
            # torch keeps the pinned memory until the copy is done
            moved = map_tensors(pinned, lambda tensor: tensor.to(self._device, non_blocking=True))
            arrived = torch.cuda.Event()
            arrived.record(self._stream)
        return moved, arrived

    def receive(self, batch: Batch, arrived: torch.cuda.Event | None) -> Batch:
        """The batch, for use on the current stream: that stream waits for the copy, the host does not."""
        if arrived is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(arrived)
            for value in vars(batch).values():
                if isinstance(value, torch.Tensor):
                    value.record_stream(current)  # its memory is not used again before this stream is done with it
        return batch
