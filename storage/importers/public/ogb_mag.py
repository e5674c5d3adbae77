"""Reads ogbn-mag from OGB's raw files: papers with features, venues and splits, and relations with authors, institutions and fields of study.

    raw/num-node-dict.csv.gz                             one column for each type
    raw/triplet-type-list.csv.gz                         the relations
    raw/relations/author___writes___paper/edge.csv.gz    two columns of row numbers
    raw/node-feat/paper/node-feat.csv.gz                 128 numbers for each paper
    raw/node-label/paper/node-label.csv.gz               the venue, 349 classes
    split/time/paper/train.csv.gz                        row numbers

Edges are streamed from the compressed files, because OGB's reader would hold all edges in memory.
"""

from pathlib import Path

import numpy as np

from graphmill.core.errors import DataError
from graphmill.storage.format.source import SPLIT_NAMES, NodeSource, Progress, Relation, TypedSource
from graphmill.storage.importers.columns.column_roles import NO_ID
from graphmill.storage.importers.memory.array_graph import array_nodes, split_sets
from graphmill.storage.importers.public.ogb_nodes import check_release, provenance, read_meta, set_folder
from graphmill.storage.importers.tables.node_columns import NodeFile, read_features, read_labels
from graphmill.storage.importers.tables.typed_tables import EdgeTableOptions, NodeTableOptions, TableEdges, TableNodes

NAME = "ogbn-mag"
_HEAD = ("raw/num-node-dict.csv.gz", "raw/triplet-type-list.csv.gz")


def ogb_mag(root: str | Path = "data", *, download: bool = True, progress: Progress | None = None) -> TypedSource:
    """Reads the typed graph in root/ogbn_mag. Edges have the direction that OGB gives them.

    Years of papers are not read. Raises DataError for data that is incomplete, unreadable, or missing and cannot be downloaded, and MissingDependencyError.
    """
    meta = read_meta("nodeproppred", NAME)
    folder = set_folder(NAME, meta, root, download, progress)
    check_release(NAME, meta, folder, (*_HEAD, f"RELEASE_v{meta['version']}.txt"))
    counts = _counts(folder / _HEAD[0])
    nodes: dict[str, NodeSource] = {name: _nodes(folder, name, count, meta["split"]) for name, count in counts.items()}
    rows = {name: TableNodes(name, folder, NodeTableOptions(count=count)) for name, count in counts.items()}
    relations = {}
    for relation in _relations(folder / _HEAD[1]):
        for end in (relation.source, relation.target):
            if end not in counts:
                raise DataError(f"{folder / _HEAD[1]}: expected types among {', '.join(counts)}, found {end!r}")
        file = f"raw/relations/{'___'.join(relation)}/edge.csv.gz"
        table = EdgeTableOptions(relation.source, relation.name, relation.target, file, header=False)
        relations[relation] = TableEdges(folder, table, rows[relation.source], rows[relation.target])
    return TypedSource(NAME, nodes, relations, provenance(meta))


def _counts(path: Path) -> dict[str, int]:
    """Returns the number of nodes of each type. Types are in alphabetical order, as in `ogb`."""
    table = NodeFile(path, True, NO_ID, option="a first line of column names")
    return {name: int(table.numbers(table.place(name))[0]) for name in sorted(table.names)}


def _relations(path: Path) -> list[Relation]:
    import gzip

    try:
        rows = [
            line.strip().split(",") for line in gzip.decompress(path.read_bytes()).decode().splitlines() if line.strip()
        ]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot read this file: {error}") from error
    wrong = [row for row in rows if len(row) != 3]
    if wrong:
        raise DataError(f"{path}: expected rows of source type, relation and target type, found {wrong[0]}")
    return sorted(map(Relation._make, rows))


def _nodes(folder: Path, name: str, count: int, split: str) -> NodeSource:
    feature = folder / f"raw/node-feat/{name}/node-feat.csv.gz"
    label = folder / f"raw/node-label/{name}/node-label.csv.gz"
    parts = [folder / f"split/{split}/{name}/{part}.csv.gz" for part in SPLIT_NAMES[1:]]
    rows = [read_labels(part, header=False) for part in parts] if parts[0].exists() else None
    return array_nodes(
        f"{NAME}: {name}",
        count,
        feature=read_features(feature, header=False) if feature.exists() else None,
        label=read_labels(label, header=False) if label.exists() else None,
        split=None if rows is None else split_sets(count, [[part.astype(np.int64)] for part in rows], NAME),
    )
