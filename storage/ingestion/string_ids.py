"""Numbers the string ids of nodes in the order in which they arrive. The strings are in files. A hash table of their numbers finds them.

A string of any length takes 12 to 24 bytes of memory. The strings and their offsets are in unnamed files, which vanish when the process ends.
"""

import tempfile
from collections.abc import Callable
from io import FileIO
from typing import Any

import numpy as np
import pyarrow as pa

from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line_errors

_LEAST_CELLS = 1 << 10
_MOST = (1 << 40) - 2  # most strings, because a number must fit into a cell of the table


class StringFile:
    """Two files that hold strings, one after another, and their offsets. Raises DataError if the disk has no room."""

    def __init__(self, folder: str | None = None) -> None:
        """`folder`: folder in which the files are made. None: the system's temporary folder."""
        self._where = folder or tempfile.gettempdir()
        with one_line_errors(self._where, "make a temporary file; choose another --scratch", DataError):
            self._data_file, self._offsets_file = _unnamed(folder), _unnamed(folder)
        self.offsets = np.zeros(1, np.int64)  # int64 [n + 1]: string i is data[offsets[i] : offsets[i + 1]]
        self.data = np.empty(0, np.uint8)  # UTF-8; this array and `offsets` are mapped unless they are empty

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def append(self, strings: pa.LargeStringArray) -> None:
        offsets, data = string_buffers(strings)
        before = self.offsets if not len(self) else self.offsets[:0]
        with one_line_errors(self._where, "keep the ids of nodes; choose another --scratch", DataError):
            _write(self._data_file, data[offsets[0] : offsets[-1]])
            _write(self._offsets_file, np.append(before, offsets[1:] - offsets[0] + len(self.data)))
            count, num_bytes = len(self) + len(strings), len(self.data) + int(offsets[-1] - offsets[0])
            self.offsets = np.memmap(self._offsets_file, np.int64, "r", shape=(count + 1,))
            if num_bytes:
                self.data = np.memmap(self._data_file, np.uint8, "r", shape=(num_bytes,))

    def part(self, start: int, stop: int) -> pa.LargeStringArray:
        """Returns the strings [start, stop) as a view."""
        return string_array(self.offsets[start : stop + 1], self.data)

    def gather(self, rows: np.ndarray, offsets: np.ndarray, data: np.ndarray) -> pa.LargeStringArray:
        """Writes the strings at these rows to `offsets` (int64 [k + 1]) and `data` (uint8 [num_bytes(rows)])."""
        from graphmill.storage.ingestion.string_kernels import gather_strings

        offsets[0] = 0
        np.cumsum(self._lengths(rows), out=offsets[1:])
        gather_strings(self.offsets, self.data, rows, offsets, data)
        return string_array(offsets, data)

    def num_bytes(self, rows: np.ndarray) -> int:
        return int(self._lengths(rows).sum())

    def _lengths(self, rows: np.ndarray) -> np.ndarray:
        return self.offsets[rows + 1] - self.offsets[rows]


class StringIds:
    """A set of strings, numbered 0, 1, 2 … in the order in which they were added."""

    def __init__(self, folder: str | None = None) -> None:
        self.strings = StringFile(folder)
        self._cells = np.zeros(_LEAST_CELLS, np.uint64)

    def __len__(self) -> int:
        return len(self.strings)

    def add(self, strings: pa.LargeStringArray) -> np.ndarray:
        """Returns the number of each string, int64 [k]; new strings get the next numbers."""
        # Imported here because numba is slow to import.
        from graphmill.storage.ingestion.string_kernels import insert_strings

        distinct = strings.dictionary_encode()
        number = self.find(distinct.dictionary)
        new = distinct.dictionary.filter(pa.array(number < 0))
        if len(new):
            first = len(self)
            self.strings.append(new)
            if first + len(new) > min(_MOST, len(self._cells) * 2 // 3):
                self._cells = self._roomier_cells()
            else:
                insert_strings(*string_buffers(new), first, self._cells)
            number[number < 0] = first + np.arange(len(new))
        return number[distinct.indices.to_numpy()]

    def find(self, strings: pa.LargeStringArray) -> np.ndarray:
        """Returns the number of each string, int64 [k]; -1 for unknown strings."""
        from graphmill.storage.ingestion.string_kernels import find_strings

        number = np.empty(len(strings), np.int64)
        find_strings(*string_buffers(strings), self._cells, self.strings.offsets, self.strings.data, number)
        return number

    def _roomier_cells(self) -> np.ndarray:
        """Makes a larger table of all strings. It has at least one and a half cells for each string."""
        from graphmill.storage.ingestion.string_kernels import insert_strings

        if len(self) > _MOST:
            raise DataError(f"expected at most {_MOST} nodes with strings as ids, found more; number them")
        cells = np.zeros(max(_LEAST_CELLS, 1 << (len(self) * 3 // 2).bit_length()), np.uint64)
        insert_strings(self.strings.offsets, self.strings.data, 0, cells)
        return cells


def string_buffers(strings: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns views (offsets, data) of a column's strings. offsets: int64 [n + 1]; the first may be above 0. data: uint8."""
    if not len(strings):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    _, offsets, data = strings.buffers()
    places = np.frombuffer(offsets, np.int64, len(strings) + 1, strings.offset * 8)
    return places, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def string_array(offsets: np.ndarray, data: np.ndarray) -> pa.LargeStringArray:
    """Makes an Arrow array of the strings data[offsets[i] : offsets[i + 1]] without copying them."""
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def large_strings(column: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    """Returns a column of strings as one array."""
    joined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    joined = joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
    return joined.cast(pa.large_string())


def id_strings(column: pa.Array | pa.ChunkedArray, where: Callable[[int], str], what: str) -> pa.LargeStringArray:
    """Returns a column of string ids. If an id is empty, raises a DataError with its position."""
    strings = large_strings(column)
    import pyarrow.compute as pc  # a run reads ids, and needs none of its 286 functions

    empty = pc.equal(pc.binary_length(strings), 0).fill_null(True).to_numpy(zero_copy_only=False)
    if empty.any():
        raise DataError(f"{where(int(np.argmax(empty)))}: {what}: expected an id, found an empty field")
    return strings


def is_text_type(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)


def _unnamed(folder: str | None) -> Any:
    return tempfile.TemporaryFile(dir=folder, buffering=0)


def _write(file: FileIO, values: np.ndarray) -> None:
    rest = np.ascontiguousarray(values).view(np.uint8).data
    while rest:
        rest = rest[file.write(rest) :]
