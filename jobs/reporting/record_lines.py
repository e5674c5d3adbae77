"""Files of records, one JSON object per line: appended as each is known, so that a kill loses at most the line under way."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from storage.errors import FormatError


def load_records(path: Path, key: Callable[[Mapping[str, Any]], Any], what: str) -> list[dict[str, Any]]:
    """The latest record of every key in the file, the first seen first; none where there is no file.

    A last line that a kill left unfinished is cut off. Raises FormatError, saying that `what` was expected, where another line is no
    record or has no key.
    """
    if not path.exists():
        return []
    whole = path.read_text()
    complete, _, rest = whole.rpartition("\n")
    if rest:
        path.write_text(complete + "\n" if complete else "")
    latest: dict[Any, dict[str, Any]] = {}
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            record = json.loads(line)
            latest[key(record)] = record
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}, line {number}: expected {what} ({error}); remove the line") from None
    return list(latest.values())


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Appends one record, and has it on the disk when it returns."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
