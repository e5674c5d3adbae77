"""Converts the feature columns of a table (numbers with empty fields, truth values, lists, categories) to one matrix.

A column with at most `most` categories becomes one feature per category (one-hot). The values of a column with more categories are hashed to `most` features.
An embedded column becomes the number of its category, for which a model has a trainable row. An empty number becomes the mean of the training rows, with 1
in a separate feature. An empty category, or a category that no training row has, gives 0 in all features of its column.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from graphmill.core.errors import DataError
from graphmill.storage.format.source import FeatureColumn, Relation
from graphmill.storage.importers.columns.column_roles import is_number, is_otherwise_written, listed
from graphmill.storage.importers.columns.column_values import is_list_type, list_rows, numbers
from graphmill.storage.ingestion.string_ids import is_text_type

_MOST_EMBEDDED = 100_000  # most values of an embedded column, because the manifest lists them


class FeatureTable:
    """A table of feature columns. `categories` names the columns of numbers that hold categories. Raises DataError for columns of other types, and for
    columns that mix numbers and text."""

    def __init__(
        self, table: pa.Table, path: str, categories: Collection[str] = (), problems: Mapping[str, str] | None = None
    ) -> None:
        """`problems`: for a column, the message for the first field that is not a number."""
        if len({*table.column_names}) < len(table.column_names):
            raise DataError(f"{path}: expected different names of columns, found {listed(table.column_names)}")
        self._path, self.names, self._categories, self._problems = path, table.column_names, categories, problems or {}
        self._columns = [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in table.columns
        ]

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def num_nulls(self) -> list[int]:
        return [column.null_count for column in self._columns]

    def learn(self, train: np.ndarray | None, most: int, embedded: Collection[str] = ()) -> tuple[FeatureColumn, ...]:
        """Decides from the training rows (None: all rows) how each column becomes features."""
        mosts = [0 if name in embedded else most for name in self.names]
        return tuple(map(self._learnt, self.names, self._columns, repeat(train), mosts))

    def _learnt(self, name: str, column: pa.ChunkedArray, train: np.ndarray | None, most: int) -> FeatureColumn:
        """Decides how one column becomes features. `most` is 0 for an embedded column."""
        if is_list_type(column.type):
            return FeatureColumn(name, "list", list_rows(column, self._path).shape[1])
        known = column if train is None else column.take(pa.array(train))
        if not self._is_category(name, column):
            has_nulls = column.null_count > 0
            values = numbers(known.drop_null(), f"{self._path}: column {name!r}").astype(np.float64)
            mean = float(values.mean()) if len(values) and np.isfinite(values).all() else 0.0
            return FeatureColumn(name, "number", 1 + has_nulls, mean, has_nulls)
        texts = sorted(text for text in pc.unique(known.cast(pa.string())).to_pylist() if text is not None)
        if not most and len(texts) > _MOST_EMBEDDED:
            raise DataError(
                f"{self._path}: column {name!r}: expected at most {_MOST_EMBEDDED:,} categories, each with a trainable row, found {len(texts):,}; take it out "
                "of embedding_columns, so that they are hashed"
            )
        if not most:
            return FeatureColumn(name, "embedded", 1, values=tuple(texts))
        if len(texts) > most:
            return FeatureColumn(name, "hashed", most)
        return FeatureColumn(name, "categories", len(texts), values=tuple(texts))

    def _is_category(self, name: str, column: pa.ChunkedArray) -> bool:
        if name in self._categories:
            return True
        if not is_text_type(column.type):
            return False
        texts = [text for text in pc.unique(column.cast(pa.string())).to_pylist() if text is not None]
        digits = next(filter(is_number, texts), None)
        if digits is not None:
            other = next((text for text in texts if not is_number(text)), "")
            found = (
                f"{self._path}: column {name!r}: expected numbers or text, found both, {digits[:40]} and {other[:40]!r}"
            )
            raise DataError(
                f"{self._problems.get(name, found)}; correct the table, or name the column in --edge-list.categories"
            )
        if texts and all(map(is_otherwise_written, texts)):
            raise DataError(
                f"{self._path}: column {name!r}: expected numbers or words, found {texts[0][:40]!r}; write numbers as 1234.5, leave dates out with "
                "--edge-list.feature-columns, or name the column in --edge-list.categories"
            )
        return True

    def matrix(self, learnt: Sequence[FeatureColumn]) -> np.ndarray:
        """Returns the features, float32 [num_rows, dim]. Raises DataError if a column is not of the kind in `learnt`."""
        matrix = np.zeros((len(self), sum(column.width for column in learnt)), np.float32)
        end = 0
        for column in learnt:
            start, end = end, end + column.width
            self._fill(matrix[:, start:end], self._columns[self.names.index(column.name)], column)
        return matrix

    def _fill(self, into: np.ndarray, column: pa.ChunkedArray, learnt: FeatureColumn) -> None:
        noun = f"{self._path}: column {learnt.name!r}"
        if learnt.kind == "list":
            if not is_list_type(column.type) or (rows := list_rows(column, noun)).shape[1] != learnt.width:
                raise DataError(f"{noun}: expected lists of {learnt.width} numbers, found others, or {column.type}")
            into[:] = rows
        elif learnt.kind == "number":
            into[:, 0] = numbers(column, noun)
            if column.null_count:
                empty = np.asarray(column.is_null())
                into[empty, 0] = learnt.mean
                into[:, 1:] = empty[:, None]
        else:
            if is_list_type(column.type):
                raise DataError(f"{noun}: expected {learnt.kind}, found {column.type}")
            self._fill_category(into, column.cast(pa.string()), learnt)

    @staticmethod
    def _fill_category(into: np.ndarray, column: pa.ChunkedArray, learnt: FeatureColumn) -> None:
        if learnt.kind == "hashed":
            distinct = pc.unique(column)
            places = [-1 if text is None else _hashed(text, learnt.width) for text in distinct.to_pylist()]
            place = np.array(places, np.int64)[np.asarray(pc.index_in(column, distinct, skip_nulls=False))]
        else:
            place = np.asarray(pc.index_in(column, pa.array(learnt.values, pa.string())).fill_null(-1))
        if learnt.kind == "embedded":
            into[:, 0] = place + 1
            return
        rows = np.flatnonzero(place >= 0)
        into[rows, place[rows]] = 1

    def num_unknown(self, learnt: FeatureColumn) -> int:
        """Returns the number of rows whose category is not in `learnt`."""
        if learnt.kind not in ("categories", "embedded"):
            return 0
        given = self._columns[self.names.index(learnt.name)].cast(pa.string()).drop_null()
        return len(given) - int(pc.sum(pc.is_in(given, pa.array(learnt.values, pa.string()))).as_py() or 0)


def _hashed(text: str, width: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % width


@dataclass(frozen=True)
class Learnt:
    """What an earlier graph stores about a table of nodes: its feature columns in order, and its class names. Later tables are read likewise."""

    columns: tuple[FeatureColumn, ...] = ()
    class_names: tuple[str, ...] = ()
    dim: int = 0  # number of features of the earlier nodes

    @property
    def categories(self) -> set[str]:
        return {column.name for column in self.columns if column.kind not in ("number", "list")}

    def check_names(
        self,
        names: Sequence[str],
        path: str,
        asked: Collection[str] = (),
        categories: Collection[str] = (),
        embedded: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Returns the feature columns of a later table that has the columns `names`. `asked`: features in options. Raises DataError if they differ."""
        known = tuple(column.name for column in self.columns)
        missing = [name for name in known if name not in names]
        if missing or {*asked} - {*known} or (asked and {*known} - {*asked}):
            expected, found = (missing, names) if missing else (known, asked)
            raise DataError(
                f"{path}: expected the columns {listed(expected)}, as in the graph of features_as, found {listed([*found])}"
            )
        kinds = {column.name: column.kind for column in self.columns}
        others = [name for name in embedded if kinds.get(name) != "embedded"]
        if others := others or [name for name in categories if name not in self.categories]:
            raise DataError(
                f"{path}: column {others[0]!r}: expected {kinds.get(others[0], 'no feature')}, as in the graph of features_as, got another kind in the options; "
                "leave it out there"
            )
        return known

    def check_width(self, features: "np.ndarray | FeatureTable | None", path: str) -> None:
        """Raises DataError unless a later file has features of the same kind and number."""
        if isinstance(features, FeatureTable):
            found = "" if self.columns else "columns of a table"
        else:
            width = 0 if features is None else features.shape[1]
            found = "" if width == self.dim or not self.columns else f"{width or 'no'} features"
        if found:
            expected = (
                f"the columns {listed([column.name for column in self.columns])}"
                if self.columns
                else f"an array of {self.dim} features"
                if self.dim
                else "no features"
            )
            raise DataError(f"{path}: expected {expected}, as in the graph of features_as, found {found}")


def learnt_before(url: str) -> tuple[dict[str, Learnt], list[Relation]]:
    """Reads what the graph at `url` stores about the table of each node type. Returns this by type, and the graph's relations. A plain graph has one type."""
    from graphmill.storage.graph import PLAIN_OR_TYPED, open_graph

    manifest = open_graph(url, kind=PLAIN_OR_TYPED).manifest
    types = {
        (name if manifest.is_typed else manifest.provenance.get("node_type", name)): Learnt(
            row.feature_columns, row.class_names, row.feature_dim
        )
        for name, row in manifest.node_types.items()
    }
    return types, [*manifest.edge_types]
