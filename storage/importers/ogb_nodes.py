"""OGB node sets (`ogbn-products`, `ogbn-arxiv` …) read by the `ogb` package, which never gets to ask anything.

The layout is checked before `ogb` is called, since it calls `input()` where it finds an unknown release or a large download.
OGB reads a whole set into memory; ogbn-papers100M needs over 100 GB.
"""

import contextlib
import csv
import functools
import importlib.util
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

from storage.errors import ConfigError, DataError, MissingDependencyError
from storage.importers.array_graph import ArrayGraph, edge_rows, label_column, split_sets
from storage.importers.ogb_download import download_archive


def ogb_graph(
    name: str,
    root: str | Path = "data",
    *,
    download: bool = True,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> ArrayGraph:
    """The graph of one OGB node set below `root` (ogbn-products lies in root/ogbn_products), edges as `ogb` gives them.

    A set that is not there is downloaded if `download`, whatever its size.

    Errors: ConfigError for a name that is no OGB node set; DataError for sets of another kind (hetero, many tasks), for data that
    is missing and cannot be downloaded (the line says what to put where), incomplete, or unreadable; MissingDependencyError.
    """
    meta = _meta(name)
    folder = Path(root) / name.replace("-", "_")
    if not folder.exists() or not any(folder.iterdir()):
        _fetch(name, meta, folder, download, progress)
    _check_layout(name, meta, folder)
    cache = folder / "processed" / "data_processed"
    cache.parent.mkdir(exist_ok=True)
    package = _import_ogb()
    try:
        with _whole_or_absent(cache), _ogb_call():
            dataset = package.NodePropPredDataset(name=name, root=str(root))
            parts = dataset.get_idx_split()
            graph, label = dataset[0]
    except (RuntimeError, ValueError, KeyError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise DataError(
            f"{folder}: ogb cannot read this folder ({type(error).__name__}: {' '.join(str(error).split())}); "
            f"remove it and run again to get {meta['url']} anew"
        ) from error
    num_nodes = int(graph["num_nodes"])
    src, dst = edge_rows(graph["edge_index"], name)
    rows = [[np.asarray(parts[part])] for part in ("train", "valid", "test")]
    edge_feature = graph.get("edge_feat")
    return ArrayGraph(
        name=name,
        num_nodes=num_nodes,
        src=src,
        dst=dst,
        edge_feature=edge_feature,
        feature=graph.get("node_feat"),
        label=_class_labels(label_column(label, name)),
        split=split_sets(num_nodes, rows, name),
        num_classes=int(meta["num classes"]),
        provenance={"source": "ogb", "release": meta["version"], "split": meta["split"], "url": meta["url"]},
    )


def is_directed(name: str) -> bool:
    """Whether `ogb` gives this set's edges in one direction only: citations, whose reverse a model wants too."""
    return _meta(name)["add_inverse_edge"] == "False"


def _import_ogb() -> ModuleType:
    # On import, ogb asks the package index for a newer version in a thread that the interpreter then waits for at exit, for
    # as long as a firewall swallows the packets. It does without where `outdated` cannot be imported.
    silenced = {} if "outdated" in sys.modules else {"outdated": None}
    sys.modules.update(silenced)  # type: ignore[arg-type]
    try:
        import ogb.nodeproppred
    except ImportError as error:
        raise MissingDependencyError(
            f"OGB sets need the ogb package: pip install 'graphmill[ogb]' ({error})"
        ) from error
    finally:
        for module in silenced:
            del sys.modules[module]
    return ogb.nodeproppred


def _meta(name: str) -> Mapping[str, str]:
    """OGB's own table of this set: version, url, download_name, split, num classes … Read without importing ogb (seconds)."""
    package = importlib.util.find_spec("ogb")
    if package is None or not package.submodule_search_locations:
        raise MissingDependencyError("OGB sets need the ogb package: pip install 'graphmill[ogb]'")
    table = Path(package.submodule_search_locations[0]) / "nodeproppred" / "master.csv"
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    if name not in rows[0][1:]:
        raise ConfigError(f"unknown OGB node set {name!r}: expected one of {', '.join(rows[0][1:])}")
    column = rows[0].index(name)
    meta = {row[0]: row[column] for row in rows[1:]}
    if meta["is hetero"] == "True" or int(meta["num tasks"]) != 1:
        kind = "several node types" if meta["is hetero"] == "True" else f"{meta['num tasks']} labels per node"
        raise DataError(
            f"{name} has {kind}: expected one node type with one label, such as ogbn-products or ogbn-arxiv"
        )
    return meta


def _fetch(name: str, meta: Mapping[str, str], folder: Path, download: bool, progress) -> None:
    reason = "downloading is off"
    if download:
        try:
            if folder.exists():
                folder.rmdir()
            download_archive(meta["url"], meta["download_name"], folder, progress)
            return
        except DataError as error:
            reason = f"its download failed: {error}"
    raise DataError(
        f"{name} is not at {folder} and {reason}; download {meta['url']} where there is a network, unpack it, "
        f"and put its folder {meta['download_name']!r} there as {folder}"
    )


def _check_layout(name: str, meta: Mapping[str, str], folder: Path) -> None:
    raw = "data.npz" if meta["binary"] == "True" else "edge.csv.gz"
    release = f"RELEASE_v{meta['version']}.txt"
    has_graph = (folder / "raw" / raw).exists() or (folder / "processed" / "data_processed").exists()
    missing = [] if has_graph else [f"raw/{raw}"]
    if not (folder / release).exists():
        missing.append(release)
    if not (folder / "split" / meta["split"]).is_dir():
        missing.append(f"split/{meta['split']}/")
    if missing:
        raise DataError(
            f"{folder}: not the current release of {name}, {' and '.join(missing)} missing; remove the folder to download it "
            f"anew, or unpack {meta['url']} and put its folder {meta['download_name']!r} there"
        )


@contextlib.contextmanager
def _whole_or_absent(cache: Path) -> Iterator[None]:
    """Removes the cache file where ogb is stopped while it writes it: the next call would read half of one."""
    existed = cache.exists()
    try:
        yield
    except BaseException:
        if not existed:
            cache.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _ogb_call() -> Iterator[None]:
    """What `ogb` needs and may not do: its own caches unpickle (torch refuses by default), stdin is empty, prints are dropped."""
    import torch

    load, stdin = torch.load, sys.stdin
    torch.load = functools.partial(load, weights_only=False)
    sys.stdin = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        torch.load, sys.stdin = load, stdin


def _class_labels(label: np.ndarray) -> np.ndarray:
    """Classes as int64; OGB gives those of papers100M as floats, NaN where there is none."""
    if np.issubdtype(label.dtype, np.floating):
        return np.where(np.isnan(label), -1, label).astype(np.int64)
    return label
