"""Reads a typed graph from tables. A YAML file names a table (Parquet, Arrow or text) for each node type and each relation.

    nodes:
      paper: {file: papers.csv, id: paper_id, features: papers.npy, label: venue, split: part}
      author: {file: authors.parquet, id: author_id, features: [h_index, age]}
      institution: {count: 8740}
    edges:
      - {source: author, relation: writes, target: paper, file: writes.csv, src: author_id, dst: paper_id, weight: share}
    features_as: ../graphs/papers

Node tables are read into memory. `.npy` features are mapped. Edges are streamed in batches.
"""

import re
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError, DataError, quoted
from graphmill.storage.filesystem.urls import absolute_url
from graphmill.storage.format.source import (
    EdgeChunk,
    NodeChunk,
    Relation,
    SourceInfo,
    TypedSource,
)
from graphmill.storage.importers.columns.column_roles import NO_ID
from graphmill.storage.importers.columns.feature_table import FeatureTable, Learnt, learnt_before
from graphmill.storage.importers.columns.role_table import ColumnRole, base_name
from graphmill.storage.importers.memory.array_graph import LABEL_KINDS
from graphmill.storage.importers.tables.edge_file import EdgeFile
from graphmill.storage.importers.tables.edge_list_options import ENDINGS_SAID, TABLE_ENDINGS, EdgeListOptions
from graphmill.storage.importers.tables.node_columns import NodeFile
from graphmill.storage.importers.tables.node_ids import NodeIds, OrderedNodes, ascending, rows_by_key
from graphmill.storage.ingestion.string_ids import StringIds
from graphmill.storage.splits.split_options import SplitOptions

TABLES = "graph.yaml"  # name of the YAML file in a folder
_HEADER = "a first line of column names"
_NAMES = {"labels": "label", "splits": "split", "node_times": "time"}  # maps a role to its option in `NodeTableOptions`


@dataclass(frozen=True)
class NodeTableOptions:
    """Options of one type of nodes. Paths of files are relative to the folder of the YAML file."""

    file: str | None = None
    """Table with one row per node, and with column names."""
    id: str | None = None
    """Column of the ids by which edges refer to nodes: whole numbers from 0, or strings, each once. Numbers are also the permanent ids. With strings, or
    without this column, the permanent id is the row number, from 0."""
    string_ids: bool | None = None
    """Whether ids are strings; then 007 is a string, too. None: ids are strings if their type in Parquet is, or if not all are whole numbers."""
    features: str | tuple[str, ...] | None = None
    """A file of features, which has the rows of `file` or a column of ids. Or a list of columns of `file` (numbers, lists of numbers, or text, which means
    categories). With `features_as` this option may be left out, and then the columns of the earlier type are read."""
    categories: tuple[str, ...] = ()
    """Columns of features that hold numbers, but are categories."""
    most_categories: int = 64
    """If a column has at most this number of categories, each category becomes a feature (one-hot). Otherwise the categories are hashed to this number of
    features."""
    embedding_columns: tuple[str, ...] = ()
    """Columns of categories that become one number each. A model has a trainable row for every category (--data.category_width)."""
    label: str | None = None
    """Column of labels: classes from 0 (-1 or empty: no label), or real numbers."""
    label_kind: str = "auto"
    """Kind of labels: class, number, or auto. auto: text and whole numbers, which may be written as floats, are classes."""
    split: str | None = None
    """Column of the split: train, valid, test or none, or their codes 1, 2, 3 and 0."""
    time: str | None = None
    """Column of times: whole numbers, or dates."""
    count: int | None = None
    """Number of nodes, if there is no table of nodes."""


@dataclass(frozen=True)
class EdgeTableOptions:
    """Options of one relation."""

    source: str
    relation: str
    target: str
    file: str
    src: str = "src"
    dst: str = "dst"
    """Columns of the ids of source and target nodes. In a file without header, the first two columns."""
    weight: str | None = None
    """Column of edge weights."""
    features: tuple[str, ...] = ()
    """Columns of edge features: columns of numbers, or in Parquet one column of lists."""
    time: str | None = None
    """Column of times: whole numbers, or dates. None: if nodes have times, an edge gets the later of the times of its two ends."""
    header: bool | None = None
    """Whether the first line of a text file has column names. None: it does if its first two fields are not numbers."""
    undirected_once: bool = False
    """The file gives each edge in one direction, and ingestion adds the reverse. Only for a relation within one type."""


def typed_tables(path: str | Path, scratch: str | None = None, features_as: str | None = None) -> TypedSource:
    """Reads the typed graph that a YAML file, or `graph.yaml` in a folder, describes. `scratch`: a folder for ids that are strings (None: the system's
    temporary folder). `features_as`: a stored graph whose categories, means and class names the tables reuse, unless the YAML file names such a graph.

    Raises ConfigError, with the line, for a mistake in the YAML file, and DataError for tables that are missing, malformed, or do not match each other.
    """
    file = tables_file(path)
    node_options, edge_options, own = read_tables(file)
    if own and features_as and absolute_url(own) != absolute_url(features_as):
        raise ConfigError(
            f"{file}: features_as: expected one earlier graph, got {own} there and {features_as}; leave one of them out"
        )
    before = own or features_as
    earlier, order = (dict.fromkeys(node_options), [*edge_options]) if before is None else learnt_before(before)
    if unknown := [name for name in node_options if name not in earlier]:
        raise ConfigError(
            f"{file}: expected types among {', '.join(earlier)}, as in the graph of features_as, got {unknown[0]}"
        )
    nodes = {
        name: TableNodes(name, file.parent, node_options[name], scratch, learnt)
        for name, learnt in earlier.items()
        if name in node_options
    }
    known = [relation for relation in order if relation in edge_options]
    relations = {
        relation: TableEdges(file.parent, edge_options[relation], nodes[relation.source], nodes[relation.target])
        for relation in dict.fromkeys([*known, *edge_options])
    }
    return TypedSource(f"tables:{file.resolve().parent.name}", nodes, relations, {"file": file.name})


def tables_file(path: str | Path) -> Path:
    """Returns `path`, or the YAML file in it if `path` is a folder."""
    return Path(path) / TABLES if Path(path).is_dir() else Path(path)


class TableNodes:
    """The nodes of one type. They are in ascending order of ids, or in the table's order if ids are strings."""

    def __init__(
        self,
        name: str,
        folder: Path,
        options: NodeTableOptions,
        scratch: str | None = None,
        earlier: Learnt | None = None,
    ) -> None:
        self.name, self._options, file = name, options, None
        if options.file is not None:
            file = NodeFile(folder / options.file, True, options.id or NO_ID, option=_HEADER)
        self._file, self._features_file = file, file
        if isinstance(options.features, str):
            self._features_file = NodeFile(folder / options.features)
        learnt = Learnt() if earlier is None else earlier
        rows: dict[str, Any] = {}
        class_names: tuple[str, ...] = ()
        ids = None
        if file is not None:
            if options.id is not None:
                ids = file.ids(file.place(options.id), options.string_ids, scratch)
            if options.label is not None:
                rows["labels"], class_names = file.labels(
                    [file.place(options.label)], options.label_kind, learnt.class_names
                )
            if options.split is not None:
                rows["splits"] = file.splits([file.place(options.split)])
            if options.time is not None:
                rows["node_times"] = file.times(file.place(options.time))
        if (features := self._read_features(learnt)) is not None:
            rows["features"] = features
        if earlier is not None:
            earlier.check_width(features, name)
        strings = ids if isinstance(ids, StringIds) else None
        key = None
        if self._features_file is not None and self._features_file is not file:
            key = self._features_file.keys(strings=strings is not None)
        counts = {} if ids is None else {"id": len(ids)}
        counts |= {_NAMES.get(role, role): len(column) for role, column in rows.items()}
        counts |= {} if options.count is None else {"count": options.count}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{column} {count}" for column, count in counts.items())
            raise DataError(f"{name}: expected equally many rows of each column, found {found}")
        numbers, order = ascending(ids) if isinstance(ids, np.ndarray) else (None, None)
        self.ids = NodeIds(name, next(iter(counts.values())), numbers, strings)
        orders = dict.fromkeys(rows, order)
        if features is not None and key is not None:
            orders["features"] = rows_by_key(self.ids, key, len(features), folder / str(options.features))
        learn = (learnt, options.most_categories, options.embedding_columns)
        self._nodes = OrderedNodes(name, self.ids, rows, orders, class_names, *learn)
        self.info = self._nodes.info

    def _read_features(self, earlier: Learnt) -> np.ndarray | FeatureTable | None:
        options, file = self._options, self._features_file
        names = options.features if isinstance(options.features, tuple) else ()
        categories = {*options.categories, *options.embedding_columns}
        if file is None or not (options.features or earlier.columns):
            return None
        if file.array is not None:
            return file.features((), categories)
        if earlier.columns:
            names = earlier.check_names(file.names, file.path, names, categories, options.embedding_columns)
            categories |= earlier.categories
        places = [file.place(column) for column in names] or file.feature_places()
        return file.features(places, categories, all_named=bool(names))

    def with_split(self, split: SplitOptions) -> "TableNodes":
        """Returns a copy with this split, as in `SplitSource`. Raises ConfigError if the table already has a split."""
        if self._options.split is not None:
            raise ConfigError(
                f"split: expected {split} or the splits of {self.name} in {self._options.file}, got both; leave one of them out"
            )
        drawn = copy(self)
        drawn._nodes = replace(self._nodes, split=split)
        drawn.info = drawn._nodes.info
        return drawn

    @property
    def roles(self) -> list[ColumnRole]:
        """How each column in the files of this type is used."""
        options, nodes, table = self._options, self._nodes, self._nodes.rows.get("features")
        roles = {options.id: ("id", "", f"{self.ids.num_nodes} nodes")}
        for role, column in (("labels", options.label), ("splits", options.split), ("node_times", options.time)):
            if column is not None:
                roles[column] = (_NAMES[role], *nodes.became(role))
        roles_by_file: dict[NodeFile | None, dict[str | None, tuple[str, str, str]]] = {self._file: roles}
        if isinstance(table, FeatureTable) and (file := self._features_file) is not None:
            of_features = roles_by_file.setdefault(file, {})
            if file.key is not None and file is not self._file:
                of_features[file.names[file.key]] = ("id", "", "key of the rows")
            of_features |= {name: ("feature", *nodes.became("features", i)) for i, name in enumerate(table.names)}
        return [
            ColumnRole(base_name(file.path), each, kind, *file_roles.get(each, ("none", "", "not read")))
            for file, file_roles in roles_by_file.items()
            if file is not None
            for each, kind in zip(file.names, file.table.type_names, strict=True)
        ]

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        return self._nodes.nodes(chunk_nodes)


class TableEdges:
    """The edges of one relation, read from a table."""

    def __init__(self, folder: Path, options: EdgeTableOptions, source: TableNodes, target: TableNodes) -> None:
        read = EdgeListOptions(
            src=options.src,
            dst=options.dst,
            weight=options.weight,
            time=options.time,
            edge_features=options.features,
            header=options.header,
        )
        strings = (source.ids.strings is not None, target.ids.strings is not None)
        self._file = EdgeFile(folder / options.file, read, flag="", strings=strings)
        self._options, self._source, self._target = options, source.ids, target.ids

    @property
    def roles(self) -> list[ColumnRole]:
        """The role of each column of the table."""
        return self._file.roles

    @cached_property
    def info(self) -> SourceInfo:
        return SourceInfo(
            name=str(self._file.path),
            num_nodes=self._target.num_nodes,
            num_edges=self._file.num_edges,
            edge_feature_dim=self._file.feature_dim,
            has_edge_weight=self._options.weight is not None,
            has_edge_time=self._options.time is not None,
            undirected_once=self._options.undirected_once,
        )

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        for raw in self._file.raw_edges():
            src, dst = self._source.rows(raw.src, raw), self._target.rows(raw.dst, raw)
            yield from raw.chunks(src, dst, chunk_edges)


def read_tables(file: Path) -> tuple[dict[str, NodeTableOptions], dict[Relation, EdgeTableOptions], str | None]:
    """Reads the YAML file. Returns options by type, options by relation, and the URL of `features_as` or None. Mistakes raise ConfigError with the line."""
    from graphmill.core.files.plain_yaml import compose_yaml

    try:
        root = compose_yaml(file)
    except FileNotFoundError:
        raise ConfigError(f"{file}: expected a YAML file that names node and edge tables, found none") from None
    if root is None:
        raise ConfigError(f"{file}: expected nodes and edges, found an empty file")
    read = _TablesReader(file)
    top = read.mapping(root, ("nodes", "edges", "features_as"))
    if "nodes" not in top:
        raise read.wrong(root, "nodes, a table for each type", "none")
    types = {name: read.options(node, NodeTableOptions) for name, node in read.mapping(top["nodes"]).items()}
    for name, options in types.items():
        node = read.mapping(top["nodes"])[name]
        columns = [key for key in ("id", "label", "split", "time") if getattr(options, key) is not None]
        columns += ["features"] if isinstance(options.features, tuple) else []
        if columns and options.file is None:
            raise read.wrong(node, f"a file beside {', '.join(columns)}", "none")
        if options.file is not None and Path(options.file).suffix and not options.file.endswith(TABLE_ENDINGS):
            raise read.wrong(node, f"a file ending in {ENDINGS_SAID}", options.file)
        if not columns and options.features is None and options.count is None:
            raise read.wrong(node, f"one of id, features, label, split, time and count for {name}", "none")
        if options.label_kind not in LABEL_KINDS:
            raise read.wrong(node, f"label_kind: {', '.join(LABEL_KINDS)}", options.label_kind)
        if options.count is not None and options.count < 1:
            raise read.wrong(node, "a count of at least 1", options.count)
        if options.most_categories < 1:
            raise read.wrong(node, "most_categories of at least 1", options.most_categories)
    relations: dict[Relation, EdgeTableOptions] = {}
    for node in read.items(top["edges"]) if "edges" in top else []:
        table = read.options(node, EdgeTableOptions)
        relation = Relation(table.source, table.relation, table.target)
        for end in (table.source, table.target):
            if end not in types:
                raise read.wrong(node, f"types among {', '.join(types)}", end)
        if relation in relations:
            raise read.wrong(node, "each relation once", f"{relation} again")
        if table.undirected_once and table.source != table.target:
            raise read.wrong(node, "undirected_once in a relation of one type", relation)
        relations[relation] = table
    if "features_as" not in top:
        return types, relations, None
    earlier = read.text(top["features_as"], "features_as")
    return types, relations, earlier if "://" in earlier else str(file.parent / earlier)


class _TablesReader:
    """Reads values with their types from the nodes of a YAML file. Every error names the line."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def wrong(self, node: Any, expected: str, got: object) -> ConfigError:
        return ConfigError(f"{self._file}: line {node.start_mark.line + 1}: expected {expected}, got {quoted(got)}")

    def mapping(self, node: Any, known: tuple[str, ...] | None = None) -> dict[str, Any]:
        """Returns the values of a YAML mapping, by name."""
        if node.id != "mapping":
            raise self.wrong(node, "names and values (name: value)", node.value if node.id == "scalar" else "a list")
        values: dict[str, Any] = {}
        for key, value in node.value:
            if key.id != "scalar" or (known is not None and key.value not in known):
                raise self.wrong(key, f"one of {', '.join(known or ())}" if known else "a name", key.value)
            if key.value in values:
                raise self.wrong(key, "each name once", f"{key.value} again")
            values[key.value] = value
        return values

    def items(self, node: Any) -> list[Any]:
        if node.id != "sequence":
            raise self.wrong(node, "a list (- …)", node.value if node.id == "scalar" else "names and values")
        return list(node.value)

    def options(self, node: Any, kind: type) -> Any:
        """Makes an instance of an options class from a YAML mapping."""
        known = {field.name: field for field in fields(kind)}
        values = {}
        for name, value in self.mapping(node, tuple(known)).items():
            values[name] = self._value(value, str(known[name].type), name)
        missing = [name for name in ("source", "relation", "target", "file") if name in known and name not in values]
        if missing and kind is EdgeTableOptions:
            raise self.wrong(node, f"{', '.join(missing)} beside {', '.join(values) or 'nothing'}", "none")
        return kind(**values)

    def _value(self, node: Any, kind: str, name: str) -> Any:
        """Reads a value with the type of the field."""
        if node.id == "sequence" and "tuple" in kind and {entry.id for entry in node.value} == {"scalar"}:
            return tuple(entry.value for entry in node.value)
        if node.id != "scalar":
            raise self.wrong(node, f"{name}: a single value", "a list" if node.id == "sequence" else "names and values")
        if kind.startswith("tuple") and node.value:
            return (node.value,)
        if re.search(r"\bint\b", kind):
            if not node.value.isdecimal() or len(node.value) > 18:
                raise self.wrong(node, f"{name}: a whole number of at most 18 digits", node.value)
            return int(node.value)
        if "bool" in kind:
            if node.value.lower() not in ("true", "false"):
                raise self.wrong(node, f"{name}: true or false", node.value)
            return node.value.lower() == "true"
        return self.text(node, name)

    def text(self, node: Any, name: str) -> str:
        if node.id != "scalar" or not node.value or "\0" in node.value:
            raise self.wrong(node, f"{name}: text", (node.id == "scalar" and node.value) or "nothing")
        return str(node.value)
