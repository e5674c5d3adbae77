"""In place of a worker's reporter: keeps what the worker reports, and never asks it to stop."""

from collections.abc import Mapping
from typing import Any


class RecordingReporter:
    """What `cluster.reporter.Reporter` offers."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def push(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    def stop_asked(self) -> bool:
        return False

    def flush(self) -> None: ...
