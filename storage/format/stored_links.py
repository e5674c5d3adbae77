"""Defines the pairs of nodes that a graph stores in addition to its edges. Some are links held out for validation and test; the others are not links.

A node is named by its row in the graph's source, which is its rank in ascending order of permanent ids. The row does not depend on partitions.
"""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from graphmill.core.errors import DataError, FormatError
from graphmill.core.offsets import pointers
from graphmill.storage.format.arrow_files import (
    array_from_numpy,
    check_split_codes,
    neighbor_lists,
    numpy_column,
    struct_column,
)
from graphmill.storage.format.manifest import StoredLinks
from graphmill.storage.format.source import SPLIT_NAMES, SPLIT_TEST, SPLIT_TRAIN

_DTYPES = {"source": "int64", "destination": "int64", "split": "int8", "is_link": "int8"}
_OTHERS = ("time", "relation")  # int64 columns; links have them if the graph's edges have them


@dataclass(frozen=True)
class Links:
    """Pairs of nodes with their splits. A pair is a link or a negative. Evaluation ranks a link against the negatives of its split."""

    source: np.ndarray  # int64 [m], rows of nodes
    destination: np.ndarray  # int64 [m]
    split: np.ndarray  # int8 [m], SPLIT_* codes except SPLIT_NONE
    is_link: np.ndarray  # int8 [m]: 1 for a link, 0 for a negative
    # int64 [m + 1]: negative[negative_ptr[i]:negative_ptr[i + 1]] are negative destinations for link i only
    negative_ptr: np.ndarray
    negative: np.ndarray  # int64
    time: np.ndarray | None = None  # int64 [m], if edges have times
    relation: np.ndarray | None = None  # int64 [m], in knowledge graphs: the relation number of each link

    @classmethod
    def of(
        cls,
        source: Any,
        destination: Any,
        split: Any,
        is_link: Any = 1,
        negative: Any = None,
        time: np.ndarray | None = None,
        relation: np.ndarray | None = None,
    ) -> "Links":
        """Makes `Links` from arrays. `split` and `is_link` are one value for all pairs, or one value for each pair. `negative`: int [m, k], or None."""
        source, destination = np.asarray(source, np.int64), np.asarray(destination, np.int64)
        count = len(source)
        width = 0 if negative is None else np.asarray(negative).shape[1]
        flat = np.empty(0, np.int64) if negative is None else np.asarray(negative, np.int64).reshape(-1)
        codes, truth = (np.broadcast_to(np.asarray(values, np.int8), (count,)) for values in (split, is_link))
        return cls(
            source, destination, codes, truth, np.arange(count + 1, dtype=np.int64) * width, flat, time, relation
        )

    @classmethod
    def join(cls, parts: "list[Links]") -> "Links":
        counts = np.concatenate([[0], *(np.diff(part.negative_ptr) for part in parts)])[1:]
        names = [*parts[0]._columns, "negative"]
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return cls(**columns, negative_ptr=pointers(counts))

    @property
    def _columns(self) -> dict[str, str]:
        """Arrow types of the columns that have one number for each pair."""
        return _DTYPES | {name: "int64" for name in _OTHERS if getattr(self, name) is not None}

    def take(self, rows: np.ndarray) -> "Links":
        """Returns these rows, in the given order."""
        counts = np.diff(self.negative_ptr)[rows]
        at = np.repeat(self.negative_ptr[:-1][rows] - pointers(counts)[:-1], counts) + np.arange(counts.sum())
        columns = {name: getattr(self, name)[rows] for name in self._columns}
        return Links(**columns, negative_ptr=pointers(counts), negative=self.negative[at])

    def canonical(self, *, symmetric: bool) -> "Links":
        """Sorts by (split, source, destination, relation, time), and keeps each pair of a split once. In a symmetric graph the source of a pair becomes the
        lower node. A link with a list of negatives keeps its source, because the negatives belong to the source."""
        source, destination = self.source, self.destination
        if symmetric:
            swap = (source > destination) & (np.diff(self.negative_ptr) == 0)
            source, destination = np.where(swap, destination, source), np.where(swap, source, destination)
        others = [values for values in (self.relation, self.time) if values is not None]
        order = np.lexsort((*others[::-1], destination, source, 1 - self.is_link, self.split))
        keys = np.stack([self.split, self.is_link, source, destination, *others])[:, order]
        is_new = np.ones(len(order), bool)
        is_new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        ordered = replace(self, source=source, destination=destination)
        return ordered.take(order[is_new])

    def check(self, num_nodes: int, name: str, num_sources: int | None = None) -> None:
        """Raises DataError for an unknown node, for an unknown split code, and, unless links have relations, for a link from a node to itself.

        `num_sources`: number of nodes of the source type, if links join two types.
        """
        of_sources, is_one_type = num_nodes if num_sources is None else num_sources, num_sources is None
        ends = ("link", self.source, of_sources), ("link", self.destination, num_nodes)
        for kind, ids, count in (*ends, ("negative", self.negative, num_nodes)):
            bad = np.flatnonzero((ids < 0) | (ids >= count))
            if len(bad):
                raise DataError(f"{name}: {kind}s: expected node ids in [0, {count}), got {int(ids[bad[0]])}")
        loops = np.flatnonzero((self.source == self.destination) & (self.is_link == 1) & is_one_type)
        if len(loops) and self.relation is None:
            raise DataError(f"{name}: links: expected two nodes each, got node {int(self.source[loops[0]])} twice")
        if len(self.split) and not SPLIT_TRAIN <= int(self.split.min()) <= int(self.split.max()) <= SPLIT_TEST:
            raise DataError(f"{name}: links: expected the splits {', '.join(SPLIT_NAMES[1:])}, got another code")

    def check_relations(self, count: int, name: str) -> None:
        """Raises DataError unless all relation numbers of the links are below `count`. 0 means that the graph and its links have no relations."""
        if (self.relation is None) != (count == 0):
            expected, found = ("relations", "none") if count else ("none with a relation", "some")
            raise DataError(f"{name}: links: expected {expected}, got {found}")
        bad = None if self.relation is None else self.relation[(self.relation < 0) | (self.relation >= count)]
        if bad is not None and len(bad):
            raise DataError(f"{name}: links: expected relations 0 to {count - 1}, got {int(bad[0])}")

    def columns(self) -> dict[str, pa.Array]:
        """Returns the columns of links.arrow."""
        plain = {name: array_from_numpy(getattr(self, name)) for name in self._columns}
        return plain | {"negatives": neighbor_lists(self.negative_ptr, {"destination": self.negative})}

    @classmethod
    def read(
        cls,
        batch: pa.RecordBatch,
        num_nodes: int,
        path: str,
        *,
        num_sources: int | None = None,
        has_time: bool = False,
        num_relations: int = 0,
    ) -> "Links":
        """Returns the links in a file as views. Raises FormatError if the file does not have the expected columns, or if a node is unknown."""
        others = {name: "int64" for name, exists in zip(_OTHERS, (has_time, num_relations), strict=True) if exists}
        columns = {name: numpy_column(batch, name, dtype, path) for name, dtype in (_DTYPES | others).items()}
        negative_ptr, lists = struct_column(batch, "negatives", path)
        links = cls(**columns, negative_ptr=negative_ptr, negative=numpy_column(lists, "destination", "int64", path))
        check_split_codes(links.split, SPLIT_TEST, path)
        try:
            links.check(num_nodes, path, num_sources)
            links.check_relations(num_relations, path)
        except DataError as error:
            raise FormatError(f"{error}; the file is corrupt") from None
        return links

    def stored(self, reverse: str = "") -> StoredLinks:
        """Returns the counts of links and negatives by split, and the digest of all links. `reverse`: the relation that holds the reverse edges."""
        digest = hashlib.sha256()
        for field in fields(self):
            if (column := getattr(self, field.name)) is not None:
                digest.update(np.ascontiguousarray(column).tobytes())
        codes = range(len(SPLIT_NAMES))
        per_link = np.diff(self.negative_ptr)
        return StoredLinks(
            positives=tuple(int(((self.split == code) & (self.is_link == 1)).sum()) for code in codes),
            negatives=tuple(int(((self.split == code) & (self.is_link == 0)).sum()) for code in codes),
            listed=tuple(int(per_link[self.split == code].sum()) for code in codes),
            digest=digest.hexdigest(),
            reverse=reverse,
        )
