"""The last two stages of a batch: copy it to page-locked memory, then copy it to the GPU while the GPU computes. On a CPU both stages do nothing."""

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

import torch

from graphmill.samplers.vocabulary.stage_clock import stage

Batch = TypeVar("Batch")  # a frozen dataclass; a field is a tensor, a dictionary of such dataclasses, or another value


def map_tensors(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """Returns the batch with `change` applied to every tensor, including the tensors in a typed batch's tables."""

    def changed(value: Any) -> Any:
        return {key: map_tensors(part, change) for key, part in value.items()} if _is_tables(value) else change(value)

    fields = {
        n: changed(value) for n, value in vars(batch).items() if isinstance(value, torch.Tensor) or _is_tables(value)
    }
    return replace(batch, **fields)  # type: ignore[type-var]


def _is_tables(value: Any) -> bool:
    """Whether a value is a dictionary of dataclasses: a typed batch's tables."""
    return isinstance(value, dict) and all(map(is_dataclass, value.values()))


def batch_tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Returns all tensors of the batch, including the tensors in a typed batch's tables."""
    for value in getattr(batch, "__dict__", {}).values():
        if isinstance(value, torch.Tensor):
            yield value
        elif _is_tables(value):
            for part in value.values():
                yield from batch_tensors(part)


def tensor_bytes(batch: Any) -> int:
    """Total size of all tensors of the batch, including the tensors in a typed batch's tables."""
    return sum(tensor.numel() * tensor.element_size() for tensor in batch_tensors(batch))


class DeviceCopy:
    """Copies batches to one device on a separate stream. A sampling thread calls `send`; the thread that uses the batch calls `receive`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event | None]:
        """Starts the copy. Returns the batch on the device, whose copy may not be finished, and the event that marks the end of the copy."""
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
        """Returns the batch for use on the current stream. This stream waits for the end of the copy; the host does not wait."""
        if arrived is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(arrived)
            for tensor in batch_tensors(batch):
                tensor.record_stream(current)  # torch keeps the tensor's memory until this stream has finished with it
        return batch
