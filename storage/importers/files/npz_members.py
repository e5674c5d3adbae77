"""Gives access to the arrays in an `.npz` file. Each array is read at its first use.

Before memory is allocated, the size that a member claims is checked: its shape against its bytes, and its bytes against the file. Deflate expands a byte
to at most 1,032 bytes, so all members of a file of n bytes take at most 1,032 n bytes.
"""

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np

from graphmill.core.errors import DataError
from graphmill.storage.importers.memory.array_graph import NPY_ERRORS

_DEFLATE_RATIO = 1032
_MAX_EMPTY_ROWS = 1 << 24  # most rows of an array that has no bytes
_READ_BYTES = 4 << 20
_UNREADABLE: tuple[type[Exception], ...] = (
    *NPY_ERRORS,
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(NotImplementedError, RuntimeError),  # zipfile raises these for an unknown compression and for a password
)


class NpzMembers:
    """Maps names to the arrays of one open file."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        self._members = {
            member.filename.removesuffix(".npy"): member
            for member in archive.infolist()
            if member.filename.endswith(".npy")
        }
        self._bytes_left = _DEFLATE_RATIO * path.stat().st_size
        self._arrays: dict[str, np.ndarray] = {}

    @property
    def names(self) -> list[str]:
        return list(self._members)

    @property
    def read(self) -> list[str]:
        """The names of the arrays that were read."""
        return list(self._arrays)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the array with this name. Raises DataError if it is not a plain array, is damaged, or claims a size that the file cannot hold."""
        if name not in self._arrays:
            try:
                self._arrays[name] = self._read(name)
            except DataError:
                raise
            except _UNREADABLE as error:
                raise self._refused(name, error) from error
        return self._arrays[name]

    def _refused(self, name: str, got: object) -> DataError:
        return DataError(f"{self.path}: {name}: expected a plain array, got: {got}")

    def _read(self, name: str) -> np.ndarray:
        member = self._members[name]
        ratio = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _DEFLATE_RATIO}.get(member.compress_type)
        if ratio is None or member.flag_bits & 1:
            raise self._refused(name, "another compression than numpy's, or a password")
        if member.file_size > ratio * member.compress_size or member.file_size > self._bytes_left:
            raise self._refused(name, f"{member.file_size} bytes from {member.compress_size}, more than can be")
        self._bytes_left -= member.file_size
        with self._archive.open(member) as opened:
            stream = cast(zipfile.ZipExtFile, opened)
            shape, in_columns, dtype = _header(stream)
            num_bytes = math.prod(shape) * dtype.itemsize
            left = member.file_size - stream.tell()
            if dtype.hasobject:
                raise self._refused(name, "Python objects, which would have to be unpickled")
            if (
                min(shape, default=0) < 0
                or num_bytes > left
                or (not num_bytes and max(shape, default=0) > _MAX_EMPTY_ROWS)
            ):
                raise self._refused(name, f"{dtype} {list(shape)}, {num_bytes} bytes, with {left} bytes in the file")
            array = np.empty(math.prod(shape), dtype)
            into, done = array.view(np.uint8).data, 0
            while done < num_bytes:
                count = stream.readinto(into[done : done + _READ_BYTES])
                if not count:
                    raise self._refused(name, f"{done} bytes of {num_bytes}")
                done += count
            stream.read(1)  # at the end of the data, zipfile compares the checksum
        return array.reshape(shape, order="F" if in_columns else "C")


def _header(stream: zipfile.ZipExtFile) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"version {version} of numpy's format")


@contextmanager
def open_npz(path: str | Path) -> Iterator[NpzMembers]:
    """Opens an `.npz` file. Raises DataError for a file that is missing or is not an archive."""
    path = Path(path)
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; give the path of an .npz file") from None
    except _UNREADABLE as error:
        raise DataError(f"{path}: expected an .npz archive of plain arrays, got: {error}") from error
    with archive:
        yield NpzMembers(path, archive)
