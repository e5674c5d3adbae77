"""Reads OGB's node sets (`ogbn-products`, `ogbn-arxiv` …) from their raw files, with the readers of the `ogb` package.

Archives come over plain http, so nothing in them is unpickled: neither `processed/data_processed` nor any `.pt` file is read. `ogb`'s dataset class is not
used, because it unpickles files and asks on stdin. OGB's readers hold a whole set in memory; ogbn-papers100M needs over 100 GB.
"""

import contextlib
import csv
import importlib.util
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError, DataError, MissingDependencyError
from graphmill.storage.format.source import SPLIT_NAMES, Progress
from graphmill.storage.importers.memory.array_graph import ArrayGraph, edge_rows, label_column, split_sets
from graphmill.storage.importers.public.ogb_download import download_archive
from graphmill.storage.molecules.ogb_import import import_ogb

_PARTS = SPLIT_NAMES[1:]


def ogb_graph(
    name: str,
    root: str | Path = "data",
    *,
    download: bool = True,
    progress: Progress | None = None,
) -> ArrayGraph:
    """Reads the graph of one OGB node set. ogbn-products lies in root/ogbn_products. Edges have the directions that `ogb` gives them.

    With `download`, a missing set of any size is downloaded. Labels are classes; in ogbn-proteins a node has 112 answers (int8 of 1 and 0).

    Raises ConfigError for a name that is not an OGB node set. Raises DataError for a set with several node types, and for data that is incomplete, unreadable,
    or missing and cannot be downloaded (the message says what to put where). Raises MissingDependencyError if ogb is not installed.
    """
    meta = _node_meta(name)
    folder = set_folder(name, meta, root, download, progress)
    _check_layout(name, meta, folder)
    with readable(folder, meta):
        graph = read_raw_graph(meta, folder / "raw")
        label = _read_label(meta, folder / "raw")
        parts = [_read_csv(folder / "split" / meta["split"] / f"{part}.csv.gz").T[0] for part in _PARTS]
    num_nodes = int(graph["num_nodes"])
    src, dst = edge_rows(graph["edge_index"], name)
    return ArrayGraph(
        name=name,
        num_nodes=num_nodes,
        src=src,
        dst=dst,
        edge_feature=graph.get("edge_feat"),
        feature=graph.get("node_feat"),
        label=label_column(label, name, "auto" if label.ndim == 2 and label.shape[1] > 1 else "class"),
        split=split_sets(num_nodes, [[rows] for rows in parts], name),
        # If nodes have several labels, OGB's number of classes is the number of answers to one of them.
        num_classes=int(meta["num classes"]) if label.shape[1:] in ((), (1,)) else None,
        provenance=provenance(meta),
    )


def is_directed(name: str) -> bool:
    """Whether `ogb` gives the edges of this set, such as citations, in one direction only. A model also needs the reverse edges."""
    meta = read_meta("linkproppred", name) if name.startswith("ogbl-") else _node_meta(name)
    return meta["add_inverse_edge"] == "False"


def provenance(meta: Mapping[str, str]) -> dict[str, str]:
    return {"source": "ogb", "release": meta["version"], "split": meta["split"], "url": meta["url"]}


@contextlib.contextmanager
def readable(folder: Path, meta: Mapping[str, str]) -> Iterator[None]:
    """Context in which ogb's readers run. Raises DataError if they fail on this folder, MissingDependencyError if ogb is not installed."""
    import_readers()
    try:
        yield
    except (RuntimeError, ValueError, LookupError, EOFError, OSError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(
            f"{folder}: ogb cannot read this folder ({type(error).__name__}: {' '.join(str(error).split())}); "
            f"remove it and run again to get {meta['url']} anew"
        ) from error


def read_raw_graph(meta: Mapping[str, str], raw: Path, edge_files: Sequence[str] = ()) -> dict[str, Any]:
    """Returns OGB's dictionary of the set's only graph: edge_index [2, num_edges], edge_feat, node_feat, num_nodes, and the columns in `edge_files`."""
    readers, add_inverse = import_readers(), meta["add_inverse_edge"] == "True"
    more = {"additional_edge_files": list(edge_files)} if edge_files else {}
    read = readers.read_binary_graph_raw if meta["binary"] == "True" else readers.read_csv_graph_raw
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        graphs = read(str(raw), add_inverse_edge=add_inverse, **more)
    if len(graphs) != 1:
        raise ValueError(f"expected one graph, found {len(graphs)}")
    return graphs[0]


def _read_label(meta: Mapping[str, str], raw: Path) -> np.ndarray:
    if meta["binary"] != "True":
        return _read_csv(raw / "node-label.csv.gz")
    with np.load(raw / "node-label.npz", allow_pickle=False) as arrays:
        return arrays["node_label"]


def _read_csv(path: Path) -> np.ndarray:
    """Reads a gzip file without a header as an array [num_rows, num_columns]."""
    import pandas  # ogb depends on pandas, and reads these files in the same way

    return pandas.read_csv(path, compression="gzip", header=None).to_numpy()


def import_readers() -> ModuleType:
    """Imports ogb's readers of raw files. Raises MissingDependencyError if ogb is not installed."""
    try:
        return import_ogb("ogb.io.read_graph_raw")
    except ImportError as error:
        raise MissingDependencyError(f"OGB sets need the ogb package: pip install -e '.[ogb]' ({error})") from error


def read_meta(kind: str, name: str) -> Mapping[str, str]:
    """Reads OGB's metadata of a set: version, url, download_name, split …. `kind`: "nodeproppred" or "linkproppred". Does not import ogb, which takes seconds.

    Raises ConfigError for an unknown name, MissingDependencyError.
    """
    package = importlib.util.find_spec("ogb")
    if package is None or not package.submodule_search_locations:
        raise MissingDependencyError("OGB sets need the ogb package: pip install -e '.[ogb]'")
    table = Path(package.submodule_search_locations[0]) / kind / "master.csv"
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    if name not in rows[0][1:]:
        raise ConfigError(f"unknown OGB {kind[:4]} set {name!r}: expected one of {', '.join(rows[0][1:])}")
    column = rows[0].index(name)
    return {row[0]: row[column] for row in rows[1:]}


def _node_meta(name: str) -> Mapping[str, str]:
    meta = read_meta("nodeproppred", name)
    if meta["is hetero"] == "True":
        raise DataError(f"{name} has several node types: expected one, such as ogbn-products or ogbn-arxiv")
    return meta


def set_folder(name: str, meta: Mapping[str, str], root: str | Path, download: bool, progress: Progress | None) -> Path:
    """Returns the folder of the set. With `download`, downloads a missing set. Otherwise raises a DataError that says what to put where."""
    folder, reason = Path(root) / name.replace("-", "_"), "downloading is off"
    if folder.exists() and any(folder.iterdir()):
        return folder
    if download:
        try:
            if folder.exists():
                folder.rmdir()
            download_archive(meta["url"], meta["download_name"], folder, progress)
            return folder
        except DataError as error:
            reason = f"its download failed: {error}"
    raise DataError(
        f"{name} is not at {folder} and {reason}; download {meta['url']} where there is a network, unpack it, "
        f"and put its folder {meta['download_name']!r} there as {folder}"
    )


def _check_layout(name: str, meta: Mapping[str, str], folder: Path) -> None:
    kind = "npz" if meta["binary"] == "True" else "csv.gz"
    raw = [f"raw/{name}" for name in ("data.npz" if kind == "npz" else "edge.csv.gz", f"node-label.{kind}")]
    splits = [f"split/{meta['split']}/{part}.csv.gz" for part in _PARTS]
    files = (*raw, f"RELEASE_v{meta['version']}.txt", *splits)
    missing = [name for name in files if not (folder / name).exists()]
    pickles = [
        name
        for name in ("processed/data_processed", f"split/{meta['split']}/split_dict.pt")
        if (folder / name).exists()
    ]
    if missing and pickles:
        raise DataError(
            f"{folder}: {' and '.join(missing)} missing, and {' and '.join(pickles)} would run code as it is read, so it is not "
            f"read; remove the folder to download {meta['url']} anew"
        )
    check_release(name, meta, folder, files)


def check_release(name: str, meta: Mapping[str, str], folder: Path, files: Sequence[str]) -> None:
    """Raises DataError unless the folder has these files, which belong to the set's current release."""
    if missing := [file for file in files if not (folder / file).exists()]:
        raise DataError(
            f"{folder}: not the current release of {name}, {' and '.join(missing)} missing; remove the folder to download it "
            f"anew, or unpack {meta['url']} and put its folder {meta['download_name']!r} there"
        )
