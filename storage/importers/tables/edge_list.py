"""Reads a graph from plain files. Edges are a table, SNAP text or Matrix Market; columns of nodes are `.npy` files or tables.

Edges are streamed in record batches. Ids of nodes are held in memory unless they are row numbers. An id takes 8 bytes, a string up to 24. If only the
edges say how many nodes there are, they are read before the nodes. Then a bounded number of them stays in memory until the next reader asks for edges.
"""

from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.source import EdgeChunk, NodeChunk, SourceInfo
from graphmill.storage.importers.columns.column_roles import listed, role_of
from graphmill.storage.importers.columns.feature_table import FeatureTable, Learnt, learnt_before
from graphmill.storage.importers.columns.role_table import ColumnRole, base_name
from graphmill.storage.importers.tables.edge_file import READ_EDGES, EdgeFile, RawEdges, most_nodes
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions
from graphmill.storage.importers.tables.node_columns import NodeFile
from graphmill.storage.importers.tables.node_ids import NodeIds, OrderedNodes, ascending, rows_by_key
from graphmill.storage.ingestion.string_ids import StringIds
from graphmill.storage.splits.split_options import SplitOptions

_NAMED_BY = {
    "features": "feature_columns",
    "labels": "label_columns",
    "splits": "split_columns",
    "node_times": "time_column",
}
_MAY_MISS = ("labels", "splits")  # roles whose files may lack rows for some nodes


class EdgeListGraph:
    """A `GraphSource` that reads a table of edges and files of nodes. `scratch`: a folder for ids that are strings (None: the system's temporary folder).
    `kept_bytes`: if the edges have to be read once before the nodes, they stay in memory for the next reader if they take at most so many bytes.

    Raises DataError for a file that is missing, of an unknown kind or malformed (with the parser's line), and for node columns whose rows do not match the
    nodes. Also raises it, with the line (or the row in Parquet), for ids that are negative, outside 0 … num_nodes - 1, or so large that the many nodes
    between few ids would fill the memory.
    """

    def __init__(
        self,
        path: str | Path,
        options: EdgeListOptions | None = None,
        scratch: str | None = None,
        kept_bytes: int = 1 << 28,
    ) -> None:
        self.path, self._kept_bytes = str(path), kept_bytes
        self.options = EdgeListOptions() if options is None else options
        self._file = EdgeFile(path, self.options)
        self._opened: dict[str, NodeFile] = {}
        self._like = _learnt_before(self.options)
        self.options = options = self._with_nodes(self.options)
        ids = None
        if options.ids is not None:
            ids = self._open(options.ids).ids(strings=options.string_ids, folder=scratch)
        self._strings = ids if isinstance(ids, StringIds) else None
        self._files = {role: self._open(at) for role in _NAMED_BY if (at := getattr(options, role)) is not None}
        self._places = {role: self._places_of(role, file) for role, file in self._files.items()}
        self._check_one_role_each()
        self._keyed = {role for role, file in self._files.items() if file.key is not None}
        if options.compact_ids and self._numbers_strings():
            self._strings = StringIds(scratch)
        self._rows, self._class_names = self._read()
        self._file.strings = (self._strings is not None,) * 2
        self._kept: list[deque[RawEdges]] = []  # all edges, or nothing; a copy of this object shares the list
        self._numbers: np.ndarray | None = None
        self._order: np.ndarray | None = None  # the order of rows in files that have no ids
        if isinstance(ids, np.ndarray):
            self._numbers, self._order = ascending(ids)
        self._num_named = None if ids is None else len(ids)

    @property
    def _named(self) -> set[str]:
        """Column names in the options and in the graph of `features_as`. A first line that has such a name is a header."""
        options = self.options
        return {
            *options.categories,
            *options.embedding_columns,
            *(name for role in _NAMED_BY for name in _chosen(options, role)),
            *(column.name for column in self._like.columns),
            *([options.id_column] if options.id_column else []),
        }

    def _check_one_role_each(self) -> None:
        taken: dict[tuple[str, int], str] = {}
        for role, places in self._places.items():
            file = self._files[role]
            for place in places:
                if (other := taken.setdefault((file.path, place), role)) != role:
                    raise ConfigError(
                        f"{file.path}: column {file.names[place]!r}: expected one role, got {other} and {role}; name the columns of one with --edge-list.{_NAMED_BY[role].replace('_', '-')}"
                    )

    def _open(self, path: str) -> NodeFile:
        options = self.options
        if path not in self._opened:
            of_ids, named = path in (options.ids, options.nodes), self._named
            header, id_column = options.node_header, options.id_column
            self._opened[path] = NodeFile(path, header, id_column, of_ids=of_ids, named=named)
        return self._opened[path]

    def _with_nodes(self, options: EdgeListOptions) -> EdgeListOptions:
        """Returns the options, in which the table `nodes` is the file of every role that has a column there and no separate file."""
        if options.nodes is not None:
            path, file = options.nodes, self._open(options.nodes)
            if file.array is not None:
                raise ConfigError(f"nodes: expected a table, got {path}; name it with --edge-list.features")
            named = {role: set(_chosen(options, role)) for role in _NAMED_BY}
            if not file.names:
                raise ConfigError(f"nodes: expected a table, got an empty file, {path}; leave --edge-list.nodes out")
            recognised = {role_of(name, file.names) for place, name in enumerate(file.names) if place != file.key}
            files = {role: path for role in _NAMED_BY if named[role] & set(file.names) or role in recognised}
            assigned = {name for names in named.values() for name in names}
            if any(file.names[place] not in assigned for place in file.feature_places(_NAMED_BY, empty=True)):
                files["features"] = path
            if file.key is not None and not options.compact_ids:
                files["ids"] = path
            chosen: dict[str, Any] = {role: at for role, at in files.items() if getattr(options, role) is None}
            options = replace(options, **chosen)
        for role, name in _NAMED_BY.items():
            if (columns := _chosen(options, role)) and getattr(options, role) is None:
                if options.nodes is not None:
                    self._opened[options.nodes].place(columns[0])  # raises, because the table has no such column
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"{name}: expected a table, --edge-list.{role.replace('_', '-')} or --edge-list.nodes, got none; leave --edge-list.{flag} out"
                )
        return options

    def _places_of(self, role: str, file: NodeFile) -> list[int]:
        """Returns the indices of the columns that hold this role in the file."""
        options, named = self.options, _chosen(self.options, role)
        if role == "features" and self._like.columns and file.array is None:
            named = self._like.check_names(file.names, file.path, named, options.categories)
        if named:
            return [file.place(name) for name in named]
        if file.array is not None:
            return []
        if role == "features":
            others = [other for other in _NAMED_BY if getattr(options, other) == file.path and other != role]
            taken = {file.place(name) for other in others for name in _chosen(options, other)}
            # In the table of nodes, columns with the names of other roles are no features. `roles` lists them as not read.
            places = file.feature_places(_NAMED_BY if file.path == options.nodes else others)
            return [place for place in places if place not in taken]
        if role == "labels":
            return file.label_places(options.label_kind)
        return file.split_places() if role == "splits" else [file.time_place()]

    def _read(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Reads the columns of each role. Returns them by role, and the class names."""
        rows: dict[str, Any] = {}
        names: tuple[str, ...] = ()
        categories = {*self.options.categories, *self.options.embedding_columns}
        if categories and "features" not in self._files:
            raise ConfigError(
                f"categories: expected a table of features, --edge-list.features or --edge-list.nodes, got none; leave the columns {listed(sorted(categories))} out"
            )
        for role, file in self._files.items():
            places = self._places[role]
            if role == "features":
                categories |= self._like.categories
                is_named = bool(_chosen(self.options, role) or self._like.columns)
                may_be_none = file.path == self.options.nodes
                features = file.features(places, categories, all_named=is_named, may_be_none=may_be_none)
                if isinstance(features, FeatureTable):
                    self._places[role] = [file.place(name) for name in features.names]
                if features is None:
                    del self._places[role]
                else:
                    rows[role] = features
            elif role == "labels":
                rows[role], names = file.labels(places, self.options.label_kind, self._like.class_names)
            else:
                rows[role] = file.splits(places) if role == "splits" else file.times(*places)
        if self.options.features_as is not None:
            self._like.check_width(rows.get("features"), self.options.features or self.options.nodes or self.path)
        return rows, names

    @cached_property
    def _nodes(self) -> OrderedNodes:
        """The nodes with their columns in order. Raises DataError if the rows of a file do not match the nodes."""
        ids, orders = self._node_ids, dict.fromkeys(self._rows, self._order)
        for role, rows in self._rows.items():
            if role in self._keyed:
                file = self._files[role]
                key = file.keys(strings=self._strings is not None)
                orders[role] = rows_by_key(ids, key, len(rows), file.path, may_miss=role in _MAY_MISS)
        learn = (self._like, self.options.most_categories, self.options.embedding_columns)
        return OrderedNodes(self.path, ids, self._rows, orders, self._class_names, *learn)

    def _numbers_strings(self) -> bool:
        """Whether `compact_ids` numbers strings. If it does, raises ConfigError for files of nodes without ids, because their rows could not be matched."""
        options = self.options
        strings = options.string_ids if options.string_ids is not None else self._file.names_strings
        without_ids = [role for role in self._files if role not in self._keyed]
        if strings and without_ids:
            raise ConfigError(
                f"compact_ids: strings are numbered as the edges name them, which says nothing of the rows of {', '.join(without_ids)}; name the "
                "nodes' ids with --edge-list.ids in place of --edge-list.compact-ids, or give these files a column of ids"
            )
        return bool(strings)

    def with_split(self, split: SplitOptions) -> "EdgeListGraph":
        """Returns a copy with this split, as in `SplitSource`. Raises ConfigError if the tables already have a split."""
        if "splits" in self._files:
            path = self._files["splits"].path
            raise ConfigError(
                f"split: expected {split} or the splits in {path}, got both; leave --split out, or take that column out"
            )
        nodes, drawn = replace(self._nodes, split=split), copy(self)
        drawn._nodes = nodes
        drawn.__dict__.pop("info", None)
        return drawn

    @cached_property
    def info(self) -> SourceInfo:
        return replace(
            self._nodes.info,
            name=f"edges:{base_name(self.path).split('.')[0]}",
            num_edges=self._num_edges,
            edge_feature_dim=self._file.feature_dim,
            has_edge_weight=self.options.weight is not None,
            has_edge_time=self.options.time is not None,
            undirected_once=self.options.undirected_once
            or (self._file.matrix is not None and self._file.matrix.symmetric),
            provenance={
                "file": base_name(self.path),
                "file_bytes": str(sum(file.num_bytes for file in self._file.files)),
                "compact_ids": str(self.options.compact_ids).lower(),
            },
        )

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        ids = self._node_ids
        for raw in self._kept_or_read():
            src, dst = raw.src, raw.dst
            if ids.is_row:
                self._check_range(raw, ids.num_nodes)
            else:
                src, dst = ids.rows(src, raw), ids.rows(dst, raw)
            yield from raw.chunks(src, dst, chunk_edges)

    def _kept_or_read(self) -> Iterator[RawEdges]:
        """Yields all edges: those that the first pass kept, or else from the file. Kept edges leave the memory as they are taken."""
        if not self._kept:
            yield from self._file.raw_edges()
            return
        kept = self._kept.pop()
        while kept:
            yield kept.popleft()

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        return self._nodes.nodes(chunk_nodes)

    @property
    def _node_ids(self) -> NodeIds:
        whose = "the nodes" if self.options.ids is None else self.options.ids
        return NodeIds(whose, self._num_nodes, self._ids, self._strings)

    @property
    def roles(self) -> list[ColumnRole]:
        """How each column of all files is used."""
        options, nodes = self.options, self._nodes
        roles = self._file.roles
        for path, node_file in self._opened.items():
            rows = {node_file.key: ("id", "", f"{self._num_nodes} nodes" if path == options.ids else "key of the rows")}
            for role, places in self._places.items():
                if self._files[role] is node_file:
                    order = nodes.orders[role]
                    num_missing = 0 if order is None else int((order < 0).sum())
                    missing = f"; {num_missing} nodes without a row" if num_missing else ""
                    for index, place in enumerate(places or [-1]):
                        nulls, became = nodes.became(role, index)
                        rows[place] = (role.removesuffix("s").removeprefix("node_"), nulls, became + missing)
            names = node_file.names or (["(array)"] if node_file.array is not None else [])
            for place, name in enumerate(names):
                kind = node_file.table.type_names[place] if node_file.array is None else str(node_file.array.dtype)
                entry = rows.get(-1 if node_file.array is not None else place, ("none", "", "not read"))
                roles.append(ColumnRole(base_name(path), name, kind, *entry))
        return roles

    @cached_property
    def _first_pass(self) -> tuple[np.ndarray | None, int, int]:
        """Reads all edges once. Returns the ids that occur, ascending (only compact_ids of numbers), the highest id, the number of edges. Numbers strings."""
        ids = np.empty(0, np.int64) if self.options.compact_ids and self._strings is None else None
        pending: list[np.ndarray] = []
        highest, count, where = -1, 0, ""
        stated = None if self.options.compact_ids else self._file.stated_ids
        if stated is not None and stated[0] >= 0 and stated[1] < most_nodes(self._file.num_edges or 0):
            highest, count = stated[1], self._file.num_edges or 0
            edges: Iterator[RawEdges] = iter(())
        else:  # also for ids that are refused: the message names the line
            edges = self._file.raw_edges()
        kept: deque[RawEdges] | None = None if stated is not None or self._strings is not None else deque()
        num_kept_bytes = 0
        for raw in edges:
            count += len(raw)
            if kept is not None:
                kept.append(raw)
                num_kept_bytes += raw.num_bytes
                kept = kept if num_kept_bytes <= self._kept_bytes else None
            for column in (raw.src, raw.dst):
                if self._strings is not None:
                    self._strings.add(column)
                elif len(column) and int(column.max()) > highest:
                    highest, where = int(column.max()), raw.where(int(column.argmax()))
            if ids is not None and len(raw):
                pending.append(np.unique(np.concatenate([raw.src, raw.dst])))
                # Merging only when much is pending keeps the whole pass O(n log n).
                if sum(map(len, pending)) > max(len(ids), READ_EDGES):
                    ids, pending = np.unique(np.concatenate([ids, *pending])), []
        if ids is not None and pending:
            ids = np.unique(np.concatenate([ids, *pending]))
        for role in self._keyed & set(_MAY_MISS) if ids is None and self._strings is None else ():
            key = self._files[role].keys(strings=False)
            if key is not None and len(key) and int(key.max()) > highest:
                highest, where = int(key.max()), f"{self._files[role].path}: row {int(key.argmax()) + 1}"
        if ids is None and highest >= most_nodes(count):
            raise DataError(
                f"{where}: id {highest} would make {highest + 1} nodes of {count} edges; correct it, number the ids that "
                "occur with --edge-list.compact-ids, or say how many nodes there are with --edge-list.num-nodes"
            )
        self._kept += [] if kept is None else [kept]
        return ids, highest, count

    @property
    def _ids(self) -> np.ndarray | None:
        """Ids of the nodes, int64, ascending; None if ids are row numbers or strings."""
        return self._first_pass[0] if self.options.compact_ids else self._numbers

    @property
    def _num_edges(self) -> int | None:
        known = self._file.num_edges
        return self._first_pass[2] if known is None and "_first_pass" in self.__dict__ else known

    @property
    def _num_nodes(self) -> int:
        return self._counted[0]

    @cached_property
    def _counted(self) -> tuple[int, str]:
        """The number of nodes, and for messages a text that says where the number comes from."""
        rows = [(self._files[role].path, len(column)) for role, column in self._rows.items() if role not in self._keyed]
        whole = rows + [
            (self._files[role].path, len(column))
            for role, column in self._rows.items()
            if role in self._keyed - set(_MAY_MISS)
        ]
        if self.options.compact_ids:
            numbers = self._first_pass[0]
            occurring = self._strings if self._strings is not None else cast(np.ndarray, numbers)
            num_nodes, counted = len(occurring), "ids occur in the edges"
        elif self._num_named is not None:
            num_nodes, counted = self._num_named, f"ids are in {self.options.ids}"
        elif self.options.num_nodes is not None:
            num_nodes, counted = self.options.num_nodes, "nodes are set by num_nodes"
        elif self._file.matrix is not None:
            num_nodes, counted = self._file.matrix.num_nodes, "are in its size line"
        elif whole:
            num_nodes, counted = whole[0][1], f"rows are in {whole[0][0]}"
        else:
            num_nodes, counted = self._first_pass[1] + 1, "is the highest id + 1"
        for file, count in rows:
            if count != num_nodes:
                raise DataError(f"{file}: expected one row per node ({num_nodes} {counted}), got {count} rows")
        if num_nodes < 1:
            raise DataError(f"{self.path}: expected at least one edge or a num_nodes, found neither")
        return num_nodes, counted

    def _check_range(self, raw: RawEdges, num_nodes: int) -> None:
        for column in (raw.src, raw.dst):
            if len(column) and int(column.max()) >= num_nodes:
                row = int(column.argmax())
                raise DataError(
                    f"{raw.where(row)}: expected ids {raw.base} to {num_nodes - 1 + raw.base}, "
                    f"got {column[row] + raw.base}, since {num_nodes} {self._counted[1]}; "
                    "with ids of another kind, set --edge-list.ids or --edge-list.compact-ids"
                )


def _chosen(options: EdgeListOptions, role: str) -> tuple[str, ...]:
    """Returns the columns that the options name for a role."""
    said = getattr(options, _NAMED_BY[role])
    return said if isinstance(said, tuple) else () if said is None else (said,)


def _learnt_before(options: EdgeListOptions) -> Learnt:
    """Reads what the graph at `features_as` stores about the columns of its nodes."""
    if options.features_as is None:
        return Learnt()
    types, _ = learnt_before(options.features_as)
    if len(types) > 1:
        raise ConfigError(
            f"features_as: expected a graph of one type of nodes, got {options.features_as}, of {', '.join(types)}; name tables of each type in a .yaml file"
        )
    (learnt,) = types.values()
    if not learnt.columns and not learnt.class_names:
        raise ConfigError(
            f"features_as: expected a graph whose features came from a table with names of columns, {options.features_as} keeps none; leave it out"
        )
    return learnt
