"""Ingests graphs, sets of graphs and tables of Python libraries. Finds the reader of an object by its type.

Readers are imported when they are used. Importing any module in `storage.importers`, for example the options of a command, also imports this module.
"""

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from inspect import signature
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from graphmill.core.errors import ConfigError, DataError, GraphmillError
from graphmill.core.summaries import changed_options
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions
from graphmill.storage.ingestion.ingest_options import IngestOptions
from graphmill.storage.splits.split_options import SplitOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from graphmill.storage.format.graph_set_manifest import GraphSetManifest
    from graphmill.storage.format.manifest import Manifest
    from graphmill.storage.format.source import GraphSource, Progress, TypedSource
    from graphmill.storage.importers.memory.array_graph import ArrayGraph

UNDERSTOOD = (
    "PyG's Data, HeteroData or TemporalData, a DGLGraph, a list or data set of them (a set of graphs), a NetworkX graph, a scipy sparse matrix "
    "(x=, y=, split=), tables of pandas, polars or Arrow (edges=, nodes=), an ArrayGraph or another GraphSource"
)


def ingest(
    data: Any = None,
    url: str | None = None,
    options: IngestOptions | None = None,
    progress: "Progress | None" = None,
    **columns: Any,
) -> "Manifest | GraphSetManifest":
    """Writes a graph, or a set of graphs, from any library as a snapshot under `url`. Returns the manifest.

    `columns` are the options of the object's reader: `pyg_graph`, `typed_pyg_graph`, `dgl_graph`, `typed_dgl_graph`, `ingest_graphs` or `matrix_graph`. For
    NetworkX graphs and tables they are the fields of `EdgeListOptions`. Tables of several types are given as in `graph.yaml`, with a table in place of each
    file name. Every reader takes `SplitOptions` as `split`.

    Raises ConfigError for an option that the reader does not have, and DataError for an object that no reader takes. Also raises the errors of the reader and
    the writer.
    """
    from graphmill.storage.ingestion.ingest import ingest as write

    if url is None:
        raise ConfigError("ingest: expected the url at which the graph is written, got none; give url=")
    if not isinstance(url, str | PathLike):
        raise ConfigError(
            f"ingest: expected a path or URL as the second argument, got {_named(url)}; of tables write ingest(edges=…, nodes=…, url=…)"
        )
    options = options or IngestOptions()
    if isinstance(columns.get("split"), SplitOptions):
        options = replace(options, split=columns.pop("split"))
    if is_set(data):
        from graphmill.storage.importers.memory.graph_list import ingest_graphs

        if others := changed_options(replace(options, split=SplitOptions(), overwrite=False)):
            raise ConfigError(f"{_named(data)}: expected overwrite and split of the options of a set, got {others}")
        drawn = {"split": options.split} if options.split else {}
        return _read(ingest_graphs, data, {**columns, **drawn, "overwrite": options.overwrite}, url)
    with graph_source(data, **columns) as source:
        return write(source, url, options, progress)


def is_set(data: Any) -> bool:
    """Whether `data` holds many graphs: it is a list, an iterator, or a data set with more than one graph."""
    is_data_set = any(base.__name__.endswith("Dataset") for base in type(data).__mro__)
    return isinstance(data, list | tuple | Iterator) or (is_data_set and len(data) != 1)


@contextmanager
def graph_source(
    data: Any = None, *, edges: Any = None, nodes: Any = None, **columns: Any
) -> "Iterator[GraphSource | TypedSource]":
    """Makes a source from a graph of any library. The source is valid inside the context. Raises the errors of `ingest`."""
    from graphmill.storage.format.source import TypedSource
    from graphmill.storage.importers.memory.from_dgl import dgl_graph, typed_dgl_graph
    from graphmill.storage.importers.memory.from_pyg import pyg_graph, typed_pyg_graph
    from graphmill.storage.importers.memory.graph_objects import only_graph

    is_networkx = hasattr(data, "adj") and hasattr(data, "is_directed") and hasattr(data, "edges")
    if data is not None and (edges is not None or (nodes is not None and not _is_table(data))):
        raise ConfigError(f"{_named(data)}: expected a graph, or edges= and nodes= that make one, got both; give one")
    if is_networkx or edges is not None or _is_table(data):
        with _folder_of_tables() as folder:
            if is_networkx:
                yield _networkx_graph(data, folder, columns)
            elif isinstance(nodes, Mapping):
                yield _typed_tables(nodes, edges, folder, columns)
            else:
                yield _tables(edges if data is None else data, nodes, folder, columns)
        return
    only: Any = data if isinstance(data, TypedSource) else only_graph(data, _named(data))
    if isinstance(data, TypedSource) or (hasattr(data, "info") and hasattr(data, "edges")):
        if columns:
            raise ConfigError(f"{_named(data)}: expected no columns beside a source, got {', '.join(columns)}")
        yield data
    elif hasattr(only, "node_types"):
        yield _read(typed_pyg_graph, data, columns)
    elif hasattr(only, "canonical_etypes") and not only.is_homogeneous:
        yield _read(typed_dgl_graph, only, columns)
    elif hasattr(only, "ndata"):
        yield _read(dgl_graph, data, columns)
    elif getattr(only, "edge_index", None) is not None or getattr(only, "t", None) is not None:
        yield _read(pyg_graph, data, columns)
    elif hasattr(data, "tocsr"):
        yield _read(matrix_graph, data, columns)
    else:
        raise DataError(f"expected {UNDERSTOOD}; got {_named(data)}")


@contextmanager
def _folder_of_tables() -> Iterator[Path]:
    """Makes a temporary folder for tables. Error messages name its files without path and ending: edges, nodes, nodes-0 …"""
    with TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        except GraphmillError as error:
            error.args = (re.sub(rf"{re.escape(folder)}/([\w-]+)\.\w+", r"\1", str(error.args[0])), *error.args[1:])
            raise


def matrix_graph(
    matrix: Any,
    *,
    x: Any = None,
    y: Any = None,
    split: Any = None,
    node_time: Any = None,
    ids: Any = None,
    num_classes: int | None = None,
    label_kind: str = "auto",
    name: str = "matrix",
) -> "ArrayGraph":
    """Makes a source from a scipy sparse matrix. Entry [i, j] is an edge from i to j. Entries are weights unless all are 1. Repeated entries are summed.

    `x`, `y`, `node_time`, `ids` (strings) and `split` (codes or names) have a row for each node. `split` may also be rows or masks under train, valid and
    test. Raises DataError for a matrix that is not square, and in the cases of `ArrayGraph`.
    """
    import numpy as np

    from graphmill.storage.importers.memory.array_graph import ArrayGraph

    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"{name}: expected a square adjacency matrix, got shape {list(matrix.shape)}")
    entries = matrix.tocoo()
    if entries.dtype.kind in "biu":
        entries = entries.astype(np.float64)  # because sums may overflow: 200 + 200 is 144 in uint8
    entries = entries.tocsr().tocoo()
    if not isinstance(split, Mapping) and np.ndim(split) == 1 and np.asarray(split).dtype.kind in "iu":
        split = np.asarray(split)[:, None]
    return ArrayGraph(
        name,
        matrix.shape[0],
        entries.coords[0],
        entries.coords[1],
        edge_weight=entries.data if np.any(entries.data != 1) else None,
        feature=x,
        label=y,
        split=split,
        node_time=node_time,
        strings=ids,
        num_classes=num_classes,
        label_kind=label_kind,
    )


def _read(reader: Any, data: Any, columns: Mapping[str, Any], *place: Any) -> Any:
    options = signature(reader).parameters.values()
    _check_names(_named(data), [option.name for option in options if option.kind == option.KEYWORD_ONLY], columns)
    return reader(data, *place, **columns)


def _check_names(noun: str, known: list[str], columns: Mapping[str, Any]) -> None:
    if unknown := sorted(columns.keys() - set(known)):
        raise ConfigError(f"{noun}: expected some of {', '.join(known)}, got {', '.join(unknown)}")


def _named(data: Any) -> str:
    return f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"


def _is_table(data: Any) -> bool:
    return hasattr(data, "iloc") or hasattr(data, "to_arrow") or hasattr(data, "to_batches")


def _tables(edges: Any, nodes: Any, folder: Path, columns: Mapping[str, Any]) -> "GraphSource":
    """Makes a source from a table of edges and a table of nodes. Writes them to files in `folder`, from which `EdgeListGraph` reads."""
    from graphmill.storage.importers.tables.edge_list import EdgeListGraph

    _check_names("tables", [field.name for field in fields(EdgeListOptions) if field.name != "nodes"], columns)
    file = None if nodes is None else _stored(_with_ids(nodes, columns.get("id_column")), folder / "nodes.parquet")
    options = EdgeListOptions(nodes=file, **columns)
    source = EdgeListGraph(_stored(edges, folder / "edges.parquet"), options, str(folder))
    _warn_of_unread(source)
    return source


def _typed_tables(nodes: Any, edges: Any, folder: Path, columns: Mapping[str, Any]) -> "TypedSource":
    from graphmill.storage.importers.tables.typed_tables import TABLES, typed_tables

    if columns or isinstance(edges, Mapping) or _is_table(edges):
        raise ConfigError(
            "tables: expected nodes={type: {'file': table, …}} and edges=[{'source': …, 'relation': …, 'target': …, 'file': table, …}], the form of "
            f"graph.yaml, got {', '.join(columns) or _named(edges)}"
        )
    types = {name: _with_file(table, folder, f"nodes-{number}") for number, (name, table) in enumerate(nodes.items())}
    relations = [_with_file(table, folder, f"edges-{number}") for number, table in enumerate(edges)]
    (folder / TABLES).write_text(json.dumps({"nodes": types, "edges": relations}))
    source = typed_tables(folder, str(folder))
    for part in (*source.nodes.values(), *source.relations.values()):
        _warn_of_unread(part)
    return source


def _with_file(options: Mapping[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """Writes the table in the options to a file. Returns the options with the file's name in place of the table."""
    from graphmill.storage.importers.columns.column_roles import NO_ID

    table = options.get("file")
    if table is None or isinstance(table, str):
        return dict(options)
    if "relation" not in options:
        table = _with_ids(table, options.get("id") or NO_ID)
    return {**options, "file": Path(_stored(table, folder / f"{name}.parquet")).name}


def _with_ids(nodes: Any, id_column: str | None) -> Any:
    """Returns a table of nodes. If a pandas index holds the ids, it becomes a column. Raises DataError if the index may give the rows another order."""
    from graphmill.storage.importers.columns.column_roles import key_place

    if not hasattr(nodes, "iloc"):
        return nodes
    index, rows = nodes.index, nodes.reset_index(drop=True)
    named = [str(name) for name in index.names if name is not None]
    names = [*named, *map(str, nodes.columns)]
    key = key_place(names, id_column, "nodes")
    if key == 0 and named == names[:1]:
        return nodes.reset_index()
    if (named or key is None) and not rows.index.equals(index):
        raise DataError(
            f"nodes: expected an index of the ids, or 0, 1, 2 … in order, got {', '.join(named) or 'one without a name'}: {str([*index[:3]])[:60]}; call "
            f"reset_index(drop=True){' for rows as they come, or name it id' if key is None else ''}"
        )
    return rows


def _stored(table: Any, path: Path) -> str:
    import pyarrow.parquet as pq

    pq.write_table(_as_table(table), path)
    return str(path)


def _as_table(table: Any) -> "pa.Table":
    """Converts a table of pandas, polars or Arrow, or a mapping of columns, to Arrow. A named pandas index becomes columns. Else raises DataError."""
    import pyarrow as pa

    try:
        if hasattr(table, "iloc"):
            named = table.reset_index() if any(table.index.names) else table
            table = pa.Table.from_pandas(named, preserve_index=False)
        elif hasattr(table, "to_arrow"):
            table = table.to_arrow()
        table = table if isinstance(table, pa.Table) else pa.table(table)
        for place, field in enumerate(table.schema):
            is_view = pa.types.is_string_view(field.type)
            if is_view or pa.types.is_dictionary(field.type):
                plain = pa.large_string() if is_view else field.type.value_type
                table = table.set_column(place, field.name, table.column(place).cast(plain))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"expected a table of pandas, polars or Arrow, got {_named(table)}: {' '.join(str(error).split())[:160]}"
        ) from None
    return table


def _networkx_graph(graph: Any, folder: Path, columns: Mapping[str, Any]) -> "GraphSource":
    """Makes a source from a NetworkX graph. Attributes become columns. The names of nodes are ids. The attribute `weight` of an edge is its weight."""
    nodes, edges = list(graph.nodes(data=True)), list(graph.edges(data=True))
    names: list[Any] = [name for name, _ in nodes]
    is_number = all(isinstance(name, int) for name in names)
    node_keys = dict.fromkeys(key for _, attributes in nodes for key in attributes)
    edge_keys = dict.fromkeys(key for *_, attributes in edges for key in attributes)
    id_column, src, dst = _free("node", node_keys), _free("source", edge_keys), _free("target", edge_keys)
    table = {id_column: names if is_number else list(map(str, names))}
    table |= {str(key): [attributes.get(key) for _, attributes in nodes] for key in node_keys}
    rows = {name: [edge[end] if is_number else str(edge[end]) for edge in edges] for end, name in enumerate((src, dst))}
    rows |= {str(key): [attributes.get(key) for *_, attributes in edges] for key in edge_keys}
    weight = {"weight": "weight"} if "weight" in rows else {}
    ends = {"undirected_once": not graph.is_directed(), "src": src, "dst": dst}
    return _tables(rows, table, folder, {"id_column": id_column, **ends, **weight, **columns})


def _free(name: str, taken: Iterable[Any]) -> str:
    """Returns `name`, with a prefix if an attribute already has this name."""
    return _free(f"networkx_{name}", taken) if name in map(str, taken) else name


def _warn_of_unread(source: Any) -> None:
    if unread := [role.column for role in source.roles if role.role == "none"]:
        warnings.warn(f"not read: {', '.join(unread)}; name its role (src, weight, time, …)", stacklevel=5)
