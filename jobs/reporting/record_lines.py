"""Files of records, one JSON object per line: appended as each is known, so that a kill loses at most the line under way."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.fsync import write_durably

Record = dict[str, Any]


def read_records(path: Path, key: Callable[[Mapping[str, Any]], Any], expected: str) -> list[Record]:
    """All records of the file, but for a last line that a kill left unfinished; none where there is no file.

    Raises FormatError, saying what was expected, where a line is no record or has no key.
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
    """The latest record of every key in the file, the first seen first, to append more to: an unfinished last line is cut off.

    Raises FormatError as `read_records` does.
    """
    records = {key(record): record for record in read_records(path, key, expected)}
    if path.exists():
        complete, newline, rest = path.read_text().rpartition("\n")
        if rest:
            write_durably(path, (complete + newline).encode())
    return list(records.values())


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Appends one record, and has it on the disk when it returns."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
