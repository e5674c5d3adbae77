"""In place of a worker's line to the driver: keeps what the worker tells, and never asks it to stop."""

from collections.abc import Callable, Mapping
from typing import Any


class RecordingLine:
    """What `cluster.driver_line.DriverLine` offers."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def push(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    def stop_asked(self) -> bool:
        return False

    def receipt(self) -> Callable[[], None]:
        return lambda: None
