"""Reads rows of a file on an object store by byte ranges. Sorts the requested rows, reads neighboring rows with one request, and runs several requests at once.

Opening checks structure, type and number of rows. While rows are read, the file's size, tag and time of change in the store are checked every half minute, and
the length of each range is checked. Checksums are not checked, because the manifest has them only for whole files.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from itertools import pairwise

import fsspec
import numpy as np
import pyarrow as pa

from graphmill.core.daemon_threads import begin
from graphmill.core.errors import DeadlineError, FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.retry import DEADLINE_S, retried
from graphmill.storage.format.arrow_files import numpy_column, only_batch
from graphmill.storage.format.feature_rows import FeatureRows

# A gap of up to MAX_GAP_BYTES between two rows is read and discarded, which saves a request. A request takes about as long as reading some hundred KiB.
MAX_GAP_BYTES, _MAX_RANGE_BYTES = 1 << 14, 1 << 18
IN_FLIGHT = 8  # requests that one call has running at a time; the calling thread makes one of them
_MOST_READERS = 32  # most reading threads of the process, in addition to the calling threads
_END_BYTES = 1 << 16  # bytes that are read at each end of a file; everything except the rows lies in the two ends
_LOOK_AGAIN_S = 30.0
_readers = threading.BoundedSemaphore(_MOST_READERS)
_MARKS = ("size", "ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "updated", "created")


class RangedRows:
    """The rows [n, stored_width] of a column that stays on the store. Several threads may read at once."""

    def __init__(
        self,
        filesystem: fsspec.AbstractFileSystem,
        path: str,
        entry: FileEntry,
        rows: FeatureRows,
        num_rows: int,
        *,
        deadline_s: float = DEADLINE_S,
        max_gap_bytes: int = MAX_GAP_BYTES,
    ) -> None:
        """`deadline_s`: longest wait for one range, including retries. Raises FormatError if the file does not match its entry or `rows`."""
        self._filesystem, self._path, self._rows, self._deadline_s = filesystem, path, rows, deadline_s
        self._file_bytes, self._max_gap_bytes = entry.num_bytes, max_gap_bytes
        self._counting = threading.Lock()
        self.num_ranges = self.num_bytes = 0  # how much was read so far
        self._mark = self._look()
        self._look_at = time.monotonic() + _LOOK_AGAIN_S
        self._first_byte = self._find(num_rows)

    def read(self, row: np.ndarray) -> np.ndarray:
        """Reads the rows at these indices, in the given order, as stored: [k, stored_width].

        Raises DeadlineError if the store does not answer, FormatError if the file was replaced after it was opened.
        """
        if time.monotonic() > self._look_at:
            self._look_again()
        out = np.empty((len(row), self._rows.stored_width), self._rows.stored_dtype)
        order = np.argsort(row, kind="stable")
        ascending = row[order]
        work = _Ranges(merged_ranges(ascending, self._rows.row_bytes, self._max_gap_bytes))
        read = partial(self._read_ranges, work, ascending, order, out)
        # The calling thread also reads. So a call never waits for threads that serve another call.
        readers: list[Future[None]] = []
        while len(readers) + 1 < min(IN_FLIGHT, len(work.bounds)) and _readers.acquire(blocking=False):
            readers.append(begin(partial(_then_free, read), "rows"))
        read()
        done, left = wait(readers, timeout=2 * self._deadline_s, return_when=FIRST_EXCEPTION)
        for reader in done:
            reader.result()
        if left:
            raise DeadlineError(f"{self._path}: cannot read rows: no answer from the store")
        return out

    def _read_ranges(self, work: "_Ranges", ascending: np.ndarray, order: np.ndarray, out: np.ndarray) -> None:
        """Reads ranges until none is left."""
        row_bytes = self._rows.row_bytes
        try:
            while (bounds := work.take()) is not None:
                rows = ascending[slice(*bounds)]
                first, stop = int(rows[0]), int(rows[-1]) + 1
                content = self._bytes(self._first_byte + first * row_bytes, self._first_byte + stop * row_bytes)
                block = np.frombuffer(content, self._rows.stored_dtype).reshape(stop - first, -1)
                out[order[slice(*bounds)]] = block[rows - first]
        except BaseException:
            work.stop()
            raise

    def _bytes(self, start: int, stop: int) -> bytes:
        def ask() -> bytes:
            content = bytes(self._filesystem.cat_file(self._path, start=start, end=stop))
            if len(content) != stop - start:
                raise OSError(f"expected {stop - start} bytes from {start} on, got {len(content)}")
            return content

        content = retried(ask, self._path, "read rows", self._deadline_s)
        with self._counting:
            self.num_ranges += 1
            self.num_bytes += len(content)
        return content

    def _look(self) -> tuple[object, ...]:
        """Returns the file's current size, tag and times in the store. Raises FormatError if the size differs from the manifest."""

        def ask() -> dict[str, object]:
            self._filesystem.invalidate_cache(self._path.rsplit("/", 1)[0])
            return dict(self._filesystem.info(self._path))

        try:
            info = retried(ask, self._path, "look at this file", self._deadline_s)
        except FileNotFoundError:
            raise FormatError(
                f"{self._path}: expected a file of {self._file_bytes} bytes, found none; it may be pruned"
            ) from None
        if info["size"] != self._file_bytes:
            raise FormatError(
                f"{self._path}: expected {self._file_bytes} bytes, found {info['size']}; the file is truncated or replaced"
            )
        return tuple(info.get(name) for name in _MARKS)

    def _look_again(self) -> None:
        self._look_at = time.monotonic() + _LOOK_AGAIN_S
        if self._look() != self._mark:
            raise FormatError(
                f"{self._path}: expected the file that was opened, found one that was written since; start the run again"
            )

    def _find(self, num_rows: int) -> int:
        """Checks the file's structure, and returns the position of the column's first byte.

        Arrow finds the position in a sparse local copy. The copy has both ends of the stored file, and a hole in place of the rows.
        """
        stops = [0, self._file_bytes]
        if self._file_bytes > 2 * _END_BYTES:
            stops = [0, _END_BYTES, self._file_bytes - _END_BYTES, self._file_bytes]
        with tempfile.NamedTemporaryFile(prefix="graphmill-") as sparse:
            sparse.truncate(self._file_bytes)
            for start, stop in list(pairwise(stops))[::2]:
                sparse.seek(start)
                sparse.write(self._bytes(start, stop))
            sparse.flush()
            with pa.memory_map(sparse.name) as source:
                batch = only_batch(source, self._path, num_rows)
                values = numpy_column(
                    batch, "feature", str(self._rows.stored_dtype), self._path, self._rows.stored_width
                )
                source.seek(0)
                return int(values.ctypes.data) - source.read_buffer().address if len(values) else 0


def _then_free(read: Callable[[], None]) -> None:
    """Reads ranges, then releases the semaphore that limits reading threads."""
    try:
        read()
    finally:
        _readers.release()


class _Ranges:
    """A list of ranges, from which several threads take one range after another."""

    def __init__(self, bounds: list[tuple[int, int]]) -> None:
        self.bounds, self._lock, self._next = bounds, threading.Lock(), 0

    def take(self) -> tuple[int, int] | None:
        with self._lock:
            if self._next == len(self.bounds):
                return None
            self._next += 1
            return self.bounds[self._next - 1]

    def stop(self) -> None:
        with self._lock:
            self._next = len(self.bounds)


def merged_ranges(ascending: np.ndarray, row_bytes: int, max_gap_bytes: int) -> list[tuple[int, int]]:
    """Returns ranges [begin, end) of positions in `ascending`. One request reads a range, whose rows have small gaps and span at most _MAX_RANGE_BYTES."""
    if not len(ascending):
        return []
    gap = (np.diff(ascending) - 1) * row_bytes
    most_rows = max(1, _MAX_RANGE_BYTES // row_bytes)
    starts = np.concatenate([[0], np.flatnonzero(gap > max_gap_bytes) + 1])
    # A long range is cut after each `most_rows` rows, counted from its first row.
    since = ascending - np.repeat(ascending[starts], np.diff([*starts, len(ascending)]))
    part = since // most_rows
    cut = np.flatnonzero((np.diff(part) != 0) | (gap > max_gap_bytes)) + 1
    return list(pairwise([0, *cut.tolist(), len(ascending)]))
