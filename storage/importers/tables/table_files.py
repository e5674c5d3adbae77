"""Finds and opens the files of a table. A table is one file, a folder of part files, or a glob. Files are local or at an fsspec URL, plain or compressed."""

import lzma
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
import pyarrow as pa

from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line, one_line_errors
from graphmill.storage.filesystem.urls import is_local, split_url
from graphmill.storage.importers.tables.edge_list_options import ENDINGS_SAID, TABLE_ENDINGS

# UnicodeDecodeError comes from column names
UNREADABLE = (pa.ArrowException, OSError, EOFError, lzma.LZMAError, UnicodeDecodeError)
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


@dataclass(frozen=True)
class TableFile:
    """One file of a table."""

    name: str  # the file's name in messages
    filesystem: fsspec.AbstractFileSystem
    path: str

    @property
    def is_text(self) -> bool:
        return not self.path.endswith((".parquet", ".arrow", ".feather"))

    @property
    def num_bytes(self) -> int:
        with one_line_errors(self.name, "look at this file", DataError):
            return int(self.filesystem.size(self.path))

    def source(self) -> Any:
        """Returns the path or the file object from which Arrow reads."""
        if is_local(self.filesystem):
            return self.path
        with one_line_errors(self.name, "open this file", DataError):
            return self.filesystem.open(self.path, "rb")

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Opens the file's bytes, decompressed. Raises DataError for a file that cannot be read."""
        ending = self.path[self.path.rfind(".") :]
        try:
            source = self.source()
            if ending == ".xz":
                with lzma.open(source) as stream:
                    yield stream
            else:
                with pa.input_stream(source, compression=_CODECS.get(ending)) as stream:
                    yield stream
        except UNREADABLE as error:
            raise DataError(f"{self.name}: cannot read this file: {one_line(error)}") from error


def table_files(path: str | Path, endings: tuple[str, ...] = TABLE_ENDINGS) -> list[TableFile]:
    """Returns the file at a path or URL, or the files in a folder or matched by a glob, in the order of their names. Skips a folder's files whose names begin
    with `_` or `.`.

    Raises DataError for a file that is missing or of an unknown kind, and for files of two kinds.
    """
    name = str(path)
    filesystem, place = split_url(name)
    with one_line_errors(name, "look at this table", DataError):
        if filesystem.isfile(place):
            paths = [place]
        elif filesystem.isdir(place):
            paths = [part for part in filesystem.ls(place, detail=False) if not _base(part).startswith(("_", "."))]
        else:
            paths = filesystem.glob(place) if any(mark in place for mark in "*?[") else []
    if not paths:
        raise DataError(f"{name}: no such file; expected a file, a folder of part files, or a glob that matches some")
    whole_name = filesystem.unstrip_protocol if "://" in name else str
    files = [
        TableFile(name if part == place else whole_name(part), filesystem, part)
        for part in sorted(paths, key=_in_order)
    ]
    for file in files:
        if not file.path.endswith(endings):
            names = ENDINGS_SAID if endings == TABLE_ENDINGS else ", ".join(endings)
            raise DataError(f"{file.name}: expected a file ending in {names}")
    if len({file.is_text for file in files}) > 1:
        raise DataError(
            f"{name}: expected part files of one kind, found {_base(files[0].path)} and others; name one kind by a glob"
        )
    return files


def _in_order(path: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts part-2 before part-10."""
    return [(int(each), "") if each.isdecimal() else (-1, each) for each in re.split("([0-9]+)", path)]


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
