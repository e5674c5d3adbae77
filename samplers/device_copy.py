"""The last stages of a batch: into page-locked memory, and from there to the GPU beside the computation. Nothing to do on a CPU."""

import torch

from samplers.minibatch import TorchBatch
from samplers.stage_clock import stage


class DeviceCopy:
    """Copies batches to one device on a stream of its own; `send` in a sampling thread, `receive` where the batch is used."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def send(self, batch: TorchBatch) -> tuple[TorchBatch, torch.cuda.Event | None]:
        """The batch on its way, and the event that it has arrived."""
        if self._stream is None:
            return batch if self._device.type == "cpu" else batch.to(self._device), None
        with stage("pin"):
            pinned = batch.pin_memory()
        with stage("copy"), torch.cuda.stream(self._stream):
            moved = pinned.to(self._device, non_blocking=True)  # torch keeps the pinned memory until the copy is done
            arrived = torch.cuda.Event()
            arrived.record(self._stream)
        return moved, arrived

    def receive(self, batch: TorchBatch, arrived: torch.cuda.Event | None) -> TorchBatch:
        """The batch, for use on the current stream: that stream waits for the copy, the host does not."""
        if arrived is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(arrived)
            for tensor in batch.tensors().values():
                tensor.record_stream(current)  # its memory is not used again before this stream is done with it
        return batch
