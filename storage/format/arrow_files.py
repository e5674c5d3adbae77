"""Writes Arrow IPC files of one record batch each, with checksums, and reads them as numpy views without a copy.

Local files are memory-mapped, so all processes on a machine share their pages. A file of another filesystem is read into memory
once, by the one process that owns the file. The files have no compression, no pickles and no extension types.
"""

import hashlib
import struct
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa

from graphmill.core.errors import FormatError
from graphmill.core.files.small_files import check_regular
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.mapped_files import mapped_bytes, prefer_huge_pages, remember
from graphmill.storage.filesystem.urls import is_local


def array_from_numpy(values: np.ndarray) -> pa.Array:
    """Returns an Arrow array over the same memory. [n] becomes a primitive array, [n, d] an array of fixed-size lists of d. The input must be C-contiguous."""
    flat = (
        pa.Array.from_buffers(
            pa.from_numpy_dtype(values.dtype),
            values.size,
            [None, pa.py_buffer(values.reshape(-1).view(np.uint8))],
        )
        if values.size
        else pa.array(np.empty(0, values.dtype))
    )
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def neighbor_lists(indptr: np.ndarray, columns: dict[str, np.ndarray]) -> pa.Array:
    """Returns an Arrow large list without a copy. Its offsets are `indptr` (int64); its values are structs of `columns`."""
    values = pa.StructArray.from_arrays([array_from_numpy(column) for column in columns.values()], list(columns))
    return pa.LargeListArray.from_arrays(array_from_numpy(indptr), values)


def write_batch(path: Path, columns: dict[str, pa.Array]) -> None:
    """Writes `columns` as one record batch to a new file."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def file_digest(path: Path | str) -> str:
    """Returns the SHA-256 of a local file, in hex."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_batch(
    filesystem: fsspec.AbstractFileSystem,
    path: str,
    entry: FileEntry,
    *,
    verify: bool,
    num_rows: int | None = None,
    row_name: str = "rows",
) -> pa.RecordBatch:
    """Returns the file's record batch, memory-mapped if the file is local.

    Checks the size, the Arrow structure and the number of rows (None: any number). With `verify`, also compares the SHA-256. Raises a FormatError
    that names the file, what was expected and what was found.
    """
    with one_line_errors(path, "read this file"):
        try:
            if is_local(filesystem):
                check_regular(path)
                other_bytes = mapped_bytes()
                remember(path)
                source = pa.memory_map(path, "r")
                if source.size():
                    prefer_huge_pages(source.read_buffer().address, source.size(), other_bytes=other_bytes)
                    source.seek(0)
            else:
                source = _fetched(filesystem, path, entry.num_bytes)
        except FileNotFoundError:
            raise FormatError(
                f"{path}: expected a file of {entry.num_bytes} bytes, found none; ingest the graph again"
            ) from None
    if source.size() != entry.num_bytes:
        more = " or more" if source.size() > entry.num_bytes and not is_local(filesystem) else ""
        raise FormatError(
            f"{path}: expected {entry.num_bytes} bytes, found {source.size()}{more}; the file is truncated or replaced"
        )
    if verify:
        check_digest(source.read_buffer(), entry, path)
        source.seek(0)
    return only_batch(source, path, num_rows, row_name)


def only_batch(source: pa.NativeFile, path: str, num_rows: int | None = None, row_name: str = "rows") -> pa.RecordBatch:
    """Returns the record batch of an opened file. `path` names the file in errors. Raises the errors of `read_batch`."""
    try:
        with pa.ipc.open_file(source) as reader:
            if reader.num_record_batches != 1:
                raise FormatError(f"{path}: expected 1 record batch, found {reader.num_record_batches}")
            source.seek(0)
            if not is_plain(memoryview(source.read_buffer())):
                raise FormatError(
                    f"{path}: expected plain buffers, found compressed ones, a dictionary or another version of Arrow's metadata; ingest the graph again"
                )
            batch = reader.get_batch(0)
        batch.validate()
    except (pa.ArrowException, OSError, struct.error) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path}: expected an Arrow IPC file, found damage ({error}); ingest the graph again"
        ) from None
    if num_rows is not None and batch.num_rows != num_rows:
        raise FormatError(f"{path}: expected {num_rows} {row_name}, found {batch.num_rows}")
    return batch


def check_digest(content: bytes | pa.Buffer, entry: FileEntry, path: str) -> None:
    """Raises FormatError if the checksum of a file's content differs from the checksum in its entry."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry.sha256:
        raise FormatError(f"{path}: expected sha256 {entry.sha256}, found {digest}; the file is corrupt")


def check_split_codes(codes: np.ndarray, most: int, path: str) -> None:
    """Raises FormatError unless all split codes lie in 0 … `most`."""
    if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) <= most:
        raise FormatError(f"{path}: expected split codes 0 to {most}, found {int(codes.min())} to {int(codes.max())}")


def _fetched(filesystem: fsspec.AbstractFileSystem, path: str, num_bytes: int) -> pa.BufferReader:
    """Reads the file into memory with one request. The request asks for one byte more than expected, in order to notice a file that is too long."""
    return pa.BufferReader(filesystem.cat_file(path, start=0, end=num_bytes + 1))


def array_view(array: pa.Array) -> np.ndarray:
    """Returns an array of numbers without nulls as a read-only numpy view. `pa.Array.to_numpy` does the same, but imports pandas."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    content = array.buffers()[1]
    if not len(array) or content is None:
        return np.frombuffer(b"", dtype)
    view = np.frombuffer(content, dtype, len(array), array.offset * dtype.itemsize)
    view.flags.writeable = False
    return view


def list_column(batch: pa.RecordBatch, name: str, path: str) -> tuple[np.ndarray, pa.Array]:
    """Returns the offsets (int64 [n + 1], from 0, ascending) and the values of a column of lists. Raises FormatError for a column of another type."""
    index = batch.schema.get_field_index(name)
    kind = batch.schema.field(index).type if index >= 0 else None
    if kind is None or not pa.types.is_large_list(kind):
        raise FormatError(f"{path}: column {name!r}: expected a large_list, found {kind}")
    lists = batch.column(index)
    if lists.null_count:
        raise FormatError(f"{path}: column {name!r}: expected no nulls, found {lists.null_count}")
    pointers = array_view(lists.offsets) if batch.num_rows else np.zeros(1, np.int64)
    num_values = len(lists.values)
    if pointers[0] != 0 or pointers[-1] != num_values or np.any(pointers[1:] < pointers[:-1]):
        raise FormatError(
            f"{path}: column {name!r}: expected list offsets ascending from 0 to {num_values}, found others; the file is corrupt"
        )
    return pointers, lists.values


def struct_column(batch: pa.RecordBatch, name: str, path: str) -> tuple[np.ndarray, pa.RecordBatch]:
    """Returns offsets and values of a column of lists of structs, like `list_column`."""
    pointers, values = list_column(batch, name, path)
    if not pa.types.is_struct(values.type):
        raise FormatError(f"{path}: column {name!r}: expected a list of structs, found one of {values.type}")
    return pointers, pa.RecordBatch.from_struct_array(values)


def numpy_column(batch: pa.RecordBatch, name: str, dtype: str, path: str, width: int | None = None) -> np.ndarray:
    """Returns a column as a read-only numpy view: [n], or [n, width] for a fixed-size list. Raises FormatError if the column has another type."""
    expected = pa.from_numpy_dtype(np.dtype(dtype))
    expected = expected if width is None else pa.list_(expected, width)
    index = batch.schema.get_field_index(name)
    kind = batch.schema.field(index).type if index >= 0 else None
    if kind is None or not kind.equals(expected):
        # The child of a list may be named "item" or "element", so only the value type and the width of the list are compared.
        same = (
            kind is not None
            and width is not None
            and pa.types.is_fixed_size_list(kind)
            and kind.list_size == width
            and kind.value_type.equals(expected.value_type)
        )
        if not same:
            raise FormatError(f"{path}: column {name!r}: expected {expected}, found {kind}")
    column = batch.column(index)
    # `flatten` would import pyarrow.compute.
    values = column if width is None else column.values.slice(column.offset * width, len(column) * width)
    num_nulls = column.null_count or values.null_count
    if num_nulls:
        raise FormatError(f"{path}: column {name!r}: expected no nulls, found {num_nulls}")
    view = array_view(values)
    return view if width is None else view.reshape(-1, width)


_VERSION = 4  # metadata version V5, used since Arrow 1.0; earlier versions recorded compression in another field
_END = 10  # bytes at the end of a file: 4 for the footer's length, 6 for "ARROW1"


def is_plain(file: memoryview) -> bool:
    """Whether the first record batch has the current version and no compression, and no column has a dictionary. Raises struct.error if the file is damaged."""
    end = len(file) - _END
    footer = _table(file, end - _number(file, "<i", end))
    dictionaries, batches = _field(file, footer, 2), _field(file, footer, 3)
    if batches is None or (dictionaries is not None and _number(file, "<I", _table(file, dictionaries))):
        return False
    start = _number(file, "<q", _table(file, batches) + 4)
    # The message follows 8 bytes: a marker and the message's length.
    message = _table(file, start + 8)
    version, header = _field(file, message, 0), _field(file, message, 2)
    if version is None or header is None or _number(file, "<h", version) != _VERSION:
        return False
    return _field(file, _table(file, header), 3) is None


def _number(file: memoryview, form: str, place: int) -> int:
    if place < 0:  # struct would count a negative position from the end of the data
        raise struct.error(f"a place before the file's beginning, {place}")
    (number,) = struct.unpack_from(form, file, place)
    return int(number)


def _table(file: memoryview, place: int) -> int:
    """Returns the position to which the offset at `place` points."""
    return place + _number(file, "<I", place)


def _field(file: memoryview, table: int, index: int) -> int | None:
    """Returns the position of a field in a flatbuffer table; None if the field has its default value."""
    fields = table - _number(file, "<i", table)
    place = 4 + 2 * index
    offset = _number(file, "<H", fields + place) if place < _number(file, "<H", fields) else 0
    return table + offset if offset else None
