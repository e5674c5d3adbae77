"""Writes a folder of predictions in Parquet files. First it writes pieces, in the order in which batches arrive. Then it writes parts, in order of id. After an
interruption, a run continues from the pieces.

    _data                    the graph, or set of graphs, that was made from a user's file in order to predict it
    _source.json             a digest of that file and of the options with which it is read
    _settings.json           the settings of these predictions; written first; a later run must have the same settings
    _pieces/<name>.parquet   rows of several batches, ascending in id, with one row group for each part that has such rows; removed at the end
    part-00000.parquet …     the rows of consecutive ranges of ids, ascending
    _summary.json            counts and scores; written last: a folder with this file is complete

Readers of a folder of Parquet files skip names that begin with an underscore. A file under its final name is complete.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem

from graphmill.core.errors import ConfigError, FormatError
from graphmill.core.files.json_object import parse_object
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.object_stores import list_names, list_sizes, put_file
from graphmill.storage.filesystem.outputs import check_output, names_there, remove_ours
from graphmill.storage.filesystem.urls import is_local, split_url

SETTINGS, SUMMARY, PIECES, DATA, SOURCE = "_settings.json", "_summary.json", "_pieces", "_data", "_source.json"
# Patterns of the names of complete pieces, and of the files that a killed writer leaves.
_PIECE = re.compile(r"\d{3,}-\d{8,}\.parquet|\.\d{3,}-\d{8,}\.parquet\.[0-9a-f]{8}")


@dataclass(frozen=True)
class PredictionFolder:
    """A folder of predictions. The object is small and can be sent to workers, which must have access to the same storage."""

    url: str

    def check(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the summary if these predictions are complete, or None if a part is missing. A setting that is None matches any value.

        Writes nothing. Raises ConfigError if the folder cannot be used or holds other files.
        """
        self.check_place()
        stored = self._read_json(SETTINGS)
        if stored is None:
            return None
        expected = json.loads(json.dumps(dict(settings)))
        for key in expected.keys() & stored.keys():
            expected[key] = stored[key] if expected[key] is None else expected[key]
        differing = sorted(key for key in expected.keys() | stored.keys() if expected.get(key) != stored.get(key))
        if differing and not self.part_names() and not self.piece_names():
            return None  # no predictions were made with these settings
        if differing:
            differences = ", ".join(
                f"{key}: {_short(stored.get(key))} there, {_short(expected.get(key))} here" for key in differing[:3]
            )
            raise ConfigError(
                f"{self.url}: these predictions were made with other settings ({differences}); give the same ones to go on, or choose "
                "another folder"
            )
        summary = self._read_json(SUMMARY)
        parts = 0 if summary is None else summary.get("parts", 0)
        if len(self.part_names()) < parts:  # if a part is missing, it is made again
            return None
        return summary

    def check_place(self) -> None:
        """Raises ConfigError if the folder holds other files than predictions, or cannot be used."""
        if isinstance(split_url(self.url)[0], MemoryFileSystem):
            raise ConfigError(f"{self.url}: memory:// is not shared by workers; choose a path or another url")
        check_output(self.url, "predictions", _strangers, advice="choose another folder")

    def has_source(self, digest: str) -> bool:
        """Whether `_data` was made from files with this digest. Raises ConfigError if predictions were made from other files."""
        self.check_place()
        stored = (self._read_json(SOURCE) or {}).get("digest")
        if stored != digest and (self.part_names() or self.piece_names()):
            raise ConfigError(
                f"{self.url}: these predictions were made of other files (or they have changed), by another run, or with other options for files; choose another folder"
            )
        return stored == digest

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Makes the folder and writes the settings. Call `check` first."""
        self.write_json(SETTINGS, settings)

    def piece_names(self) -> set[str]:
        """Names of the pieces in the folder."""
        return {name for name in self._list(PIECES) if name.endswith(".parquet") and not name.startswith(".")}

    def part_names(self) -> set[str]:
        """Names of the parts in the folder. Empty files do not count."""
        filesystem, path = split_url(self.url)
        with one_line_errors(self.url, "list this folder"):
            return {name for name, size in list_sizes(filesystem, path).items() if size and name.startswith("part-")}

    def write_piece(self, name: str, table: pa.Table, bounds: np.ndarray) -> None:
        """Writes the rows of several batches as a piece. `bounds`: int64 [num_parts], the first id of each part."""
        table = table.sort_by("id")
        start = np.searchsorted(table["id"].to_numpy(), bounds)
        starts = sorted({0, *start.tolist()} - {table.num_rows})
        ends = [*starts[1:], table.num_rows] if starts else []  # no bounds and no rows if there is nothing to predict
        groups = [table.slice(a, b - a) for a, b in zip(starts, ends, strict=True)]
        self._write(f"{PIECES}/{name}", groups, table.schema)

    def read_piece(
        self, name: str, columns: Sequence[str] | None = None, of: tuple[int, int] | None = None
    ) -> pa.Table:
        """Returns the rows of a piece. With `of`, only the rows with ids in [of[0], of[1]), which belong to one part. Raises FormatError for a damaged file."""
        filesystem, path = split_url(self.url)
        where = f"{path}/{PIECES}/{name}"
        with one_line_errors(where, "read this file; remove it and run again"), filesystem.open(where, "rb") as stream:
            file = pq.ParquetFile(stream)  # raises ValueError if the file is damaged
            groups = list(range(file.num_row_groups))
            if of is not None:
                groups = [group for group in groups if of[0] <= _first_id(file, group) < of[1]]
            return file.read_row_groups(groups, columns=columns)

    def write_part(self, index: int, table: pa.Table) -> None:
        """Writes one part."""
        self._write(part_name(index), [table], table.schema)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Marks the predictions as complete and removes the pieces."""
        self.write_json(SUMMARY, summary)
        self.remove_pieces()

    def table(self) -> pa.Table:
        """Returns all predictions of a complete folder, with ascending ids. Raises FormatError if rows are missing."""
        filesystem, path = split_url(self.url)
        with one_line_errors(self.url, "read these predictions"):
            # Arrow knows fsspec's own classes only
            through = filesystem if is_local(filesystem) else pa_fs.PyFileSystem(pa_fs.FSSpecHandler(filesystem))
            table = pq.read_table(path, filesystem=through)
        num_rows = (self._read_json(SUMMARY) or {}).get("rows", table.num_rows)
        if table.num_rows != num_rows:
            raise FormatError(
                f"{self.url}: expected {num_rows} predictions, found {table.num_rows}; predict again, into the same folder"
            )
        return table

    def remove_pieces(self) -> None:
        """Removes the pieces of complete predictions; files with other names stay."""
        filesystem, path = split_url(self.url)
        with one_line_errors(f"{path}/{PIECES}", f"remove these files; the predictions are whole at {self.url}"):
            filesystem.invalidate_cache()
            remove_ours(f"{self.url.rstrip('/')}/{PIECES}", _PIECE)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._put(name, (json.dumps(dict(value), indent=1) + "\n").encode())

    def _list(self, folder: str) -> list[str]:
        filesystem, path = split_url(self.url)
        path = f"{path}/{folder}".rstrip("/")
        with one_line_errors(path, "list this folder"):
            return list_names(filesystem, path)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        filesystem, path = split_url(self.url)
        where = f"{path}/{name}"
        with one_line_errors(where, "read this file"):
            if not filesystem.exists(where):
                return None
            content = filesystem.cat_file(where)
        return parse_object(content, where, "choose another folder")

    def _write(self, name: str, groups: Sequence[pa.Table], schema: pa.Schema) -> None:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, schema) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=max(1, group.num_rows))
        self._put(name, sink.getvalue().to_pybytes())

    def _put(self, name: str, content: bytes) -> None:
        filesystem, path = split_url(self.url)
        where = f"{path}/{name}"
        with one_line_errors(where, "write this file"):
            put_file(filesystem, where, content)


def part_name(index: int) -> str:
    return f"part-{index:05d}.parquet"


def _first_id(file: pq.ParquetFile, group: int) -> int:
    column = file.schema_arrow.get_field_index("id")
    return int(file.metadata.row_group(group).column(column).statistics.min)


def _strangers(filesystem: fsspec.AbstractFileSystem, path: str) -> list[str]:
    """Returns the names of files that are not from predictions. Empty for a folder with settings, because predictions write and remove only their own files."""
    names = names_there(filesystem, path)
    return [] if SETTINGS in names else [name for name in names if name not in (DATA, SOURCE)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
