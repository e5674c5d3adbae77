"""Replaces the session of a worker in tests. It records the worker's reports, never asks the worker to stop, and writes checkpoints at once."""

from collections.abc import Callable, Mapping
from typing import Any


class MemoryRecorder:
    """Has the interface of `graphmill.cluster.runs.records.Recorder`. Keeps records in memory."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def push(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    def stop_asked(self) -> bool:
        return False

    def flush(self) -> None: ...


def write_at_once(epoch: int, name: str, write: Callable[[], None] | None) -> None:
    """Replaces `TrainSession.register`, which writes a checkpoint in a thread. This function writes it before it returns."""
    if write is not None:
        write()
