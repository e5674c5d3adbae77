"""Reads OGB's link sets (`ogbl-collab`, `ogbl-citation2`, `ogbl-ppa`) from their raw files, with the readers of the `ogb` package.

The raw graph has only the training edges. The splits are files of `torch.save`, which are not unpickled (`graphmill.storage.importers.files.pickle_reader`). A
split has pairs that are not links (`edge_neg`), or negative destinations for each link (`target_node_neg`).

In OGB's files some training edges are also held-out links: in ogbl-collab, pairs of authors who write together again. Ingestion counts these edges.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.source import SPLITS, Progress
from graphmill.storage.format.stored_links import Links
from graphmill.storage.importers.files.pickle_reader import Refused, array, read_torch
from graphmill.storage.importers.memory.array_graph import ArrayGraph, edge_rows
from graphmill.storage.importers.public.ogb_nodes import (
    check_release,
    provenance,
    read_meta,
    read_raw_graph,
    readable,
    set_folder,
)

NAMES = ("ogbl-collab", "ogbl-citation2", "ogbl-ppa")
_YEAR = "edge_year"  # a column of edges in ogbl-collab


def ogb_link_graph(
    name: str,
    root: str | Path = "data",
    *,
    download: bool = True,
    progress: Progress | None = None,
    years: bool = False,
) -> ArrayGraph:
    """Reads the training graph of one OGB link set, with the links of validation and test. ogbl-collab lies in root/ogbl_collab.

    Edges have the directions that `ogb` gives them. Edges of ogbl-collab have weights. With `years`, their time is their year, and pairs that are not links get
    the last year of their split. Raises ConfigError for an unknown name, and for `years` with another set; DataError for data that is incomplete, unreadable,
    or missing and cannot be downloaded; MissingDependencyError if ogb is not installed.
    """
    if name not in NAMES:
        raise ConfigError(f"unknown OGB link set {name!r}: expected one of {', '.join(NAMES)}")
    meta = read_meta("linkproppred", name)
    additional = meta["additional edge files"].split(",")
    if years and _YEAR not in additional:
        raise ConfigError(
            f"{name}: ogb_years: expected a set whose edges have years (ogbl-collab); leave --ogb-years out"
        )
    folder = set_folder(name, meta, root, download, progress)
    parts = {split: f"split/{meta['split']}/{split}.pt" for split in ("valid", "test")}
    check_release(name, meta, folder, (f"RELEASE_v{meta['version']}.txt", "raw/edge.csv.gz", *parts.values()))
    columns = [column for column in additional if column == "edge_weight" or (years and column == _YEAR)]
    with readable(folder, meta):
        graph = read_raw_graph(meta, folder / "raw", columns)
    src, dst = edge_rows(graph["edge_index"], name)
    weight = graph.get("edge_weight")
    return ArrayGraph(
        name=name,
        num_nodes=int(graph["num_nodes"]),
        src=src,
        dst=dst,
        edge_weight=None if weight is None else np.asarray(weight, np.float32).reshape(-1),
        edge_time=np.asarray(graph[_YEAR]).reshape(-1) if years else None,
        feature=graph.get("node_feat"),
        links=Links.join([_links(folder / file, SPLITS[split], years=years) for split, file in parts.items()]),
        repeats_links=True,
        provenance=provenance(meta),
    )


def _links(path: Path, code: int, *, years: bool) -> Links:
    """Reads the links of one split and their negatives. Raises DataError if the file has neither of OGB's two layouts."""
    content = read_torch(path)
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: expected a dictionary of arrays, found {type(content).__name__}")
    try:
        if "edge" in content:
            links, negatives = _pairs(content, "edge"), _pairs(content, "edge_neg")
            time = time_of_negatives = None
            if years:
                time = _column(content, "year", 1).astype(np.int64)
                if len(time) != len(links[0]):
                    raise Refused(f"{len(links[0])} links and {len(time)} years")
                time_of_negatives = np.full(len(negatives[0]), time.max(initial=0))
            others = Links.of(*negatives, code, is_link=0, time=time_of_negatives)
            return Links.join([Links.of(*links, code, time=time), others])
        source, target = (_column(content, key, 1) for key in ("source_node", "target_node"))
        negative = _column(content, "target_node_neg", 2)
        if not len(source) == len(target) == len(negative):
            raise Refused(f"{len(source)} sources, {len(target)} targets, negatives of {len(negative)}")
        return Links.of(source, target, code, negative=negative)
    except Refused as error:
        raise DataError(f"{path}: expected OGB's links with their negatives, found {error}") from None


def _pairs(content: Mapping[Any, Any], key: str) -> tuple[np.ndarray, np.ndarray]:
    values = _column(content, key, 2)
    if values.shape[1] != 2:
        raise Refused(f"{key} of shape {list(values.shape)}")
    return values[:, 0], values[:, 1]


def _column(content: Mapping[Any, Any], key: str, axes: int) -> np.ndarray:
    values = np.asarray(array(content.get(key), key))
    if values.ndim != axes or values.dtype.kind not in "iu":
        raise Refused(f"{key}: {values.dtype} of shape {list(values.shape)}")
    return values
