"""Reads and writes files of records, one JSON object per line. Each record is appended as soon as it is known, so a kill loses at most one line."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.fsync import write_durably

Record = dict[str, Any]


def read_records(path: Path, key: Callable[[Mapping[str, Any]], Any], expected: str) -> list[Record]:
    """All records of the file, without a last line that a kill left unfinished. Empty if the file does not exist.

    Raises FormatError, with the text `expected`, if a line is not a record or a key is missing.
    """
    complete = path.read_text().rpartition("\n")[0] if path.exists() else ""
    records = []
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            records.append(json.loads(line))
            key(records[-1])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}, line {number}: expected {expected} ({error}); remove the line") from None
    return records


def load_records(path: Path, key: Callable[[Mapping[str, Any]], Any], expected: str) -> list[Record]:
    """The latest record of each key, in the order in which the keys first appear. Removes an unfinished last line from the file, because new records will be
    appended.

    Raises FormatError like `read_records`.
    """
    records = {key(record): record for record in read_records(path, key, expected)}
    if path.exists():
        complete, newline, rest = path.read_text().rpartition("\n")
        if rest:
            write_durably(path, (complete + newline).encode())
    return list(records.values())


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Appends one record. The record is on the disk when this function returns."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
