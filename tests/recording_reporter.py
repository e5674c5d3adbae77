"""A replacement for a worker's session: records the worker's reports, never asks it to stop, and writes checkpoints at once."""

from collections.abc import Callable, Mapping
from typing import Any


class MemoryRecorder:
    """What `graphmill.cluster.runs.records.Recorder` offers."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def push(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    def stop_asked(self) -> bool:
        return False

    def flush(self) -> None: ...


def write_at_once(epoch: int, name: str, write: Callable[[], None] | None) -> None:
    """Replaces `TrainSession.register`, which writes in a thread."""
    if write is not None:
        write()
