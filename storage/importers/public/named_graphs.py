"""Reads public data sets of one graph from the publishers' files. `graphmill.storage.importers.public.data_sets` lists the sets.

Tests compare edges, features, labels and splits with PyG's class for the set. The labels of Chameleon and Crocodile are an exception, because PyG's labels
are numbers of visits. PyG's classes unpickle files and write a copy of the data. This module does neither (`graphmill.storage.importers.files.pickle_reader`).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from graphmill.core.counter_random import derive_key, hash_counters
from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.importers.files.npz_members import NpzMembers, open_npz
from graphmill.storage.importers.files.pickle_reader import Refused, array, read_pickle
from graphmill.storage.importers.memory.array_graph import ArrayGraph, load_npy, mask_sets, split_sets

_MAX_WIDTH = 1 << 20  # most feature columns, because features become dense; Planetoid's widest set has 61,278
_VALIDATE = 500  # number of validation nodes in Planetoid's public split


def planetoid(folder: Path, name: str) -> ArrayGraph:
    """Reads Cora, CiteSeer or PubMed from Planetoid's pickles `ind.<name>.x` …. Parallel edges and self-loops are dropped."""
    parts = {
        part: read_pickle(folder / f"ind.{name}.{part}") for part in ("x", "tx", "allx", "y", "ty", "ally", "graph")
    }
    try:
        features = [csr_array(array(parts[part], part)) for part in ("allx", "tx")]
        one_hot = [np.asarray(array(parts[part], part)) for part in ("ally", "ty")]
        num_training, lists = len(array(parts["y"], "y")), parts["graph"]
        if max(matrix.shape[1] for matrix in features) > _MAX_WIDTH:
            raise Refused(f"features of {max(matrix.shape[1] for matrix in features)} columns")
        test = np.loadtxt(folder / f"ind.{name}.test.index", dtype=np.int64, ndmin=1)
        if not 0 <= test.min() <= test.max() < len(lists):
            raise Refused(f"test nodes {test.min()} to {test.max()} of {len(lists)}")
        pairs = [(node, other) for node, others in lists.items() for other in others]
    except (Refused, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{folder}/ind.{name}.*: expected Planetoid's files, found {one_line(error)[:200]}") from error
    # Some nodes of CiteSeer are in no file. They get features of 0 and class 0.
    first, num_tested = int(test.min()), int(np.ptp(test)) + 1
    place = np.sort(test) - first
    feature = csr_array((num_tested, features[1].shape[1]), dtype=features[1].dtype).tolil()
    label = np.zeros((num_tested, one_hot[1].shape[1]), one_hot[1].dtype)
    feature[place], label[place] = features[1].tolil(), one_hot[1]
    joined, labels = (
        vstack([features[0], csr_array(feature)]).tocsr(),
        np.concatenate([one_hot[0], label]).argmax(axis=1),
    )
    # The rows of tx are in the order of test.index, which is not sorted.
    order = np.arange(joined.shape[0])
    order[test] = np.sort(test)
    edges = np.array(pairs, np.int64).reshape(-1, 2).T
    src, dst = _distinct(edges[0], edges[1], joined.shape[0])
    rows = np.arange(num_training), np.arange(num_training, num_training + _VALIDATE), np.sort(test)
    return ArrayGraph(
        name=name,
        num_nodes=joined.shape[0],
        src=src,
        dst=dst,
        feature=csr_array(joined[order].astype(np.float32)),
        label=labels[order],
        split=split_sets(joined.shape[0], [[part] for part in rows], name),
        num_classes=int(labels.max()) + 1,
        provenance={"source": f"Planetoid's ind.{name}.*"},
    )


def attributed(folder: Path, file: str) -> ArrayGraph:
    """Reads Amazon or Coauthor from the two CSR matrices of Shchur et al. (arXiv:1811.05868). Edges have both directions, features are 0 and 1, no split."""
    with open_npz(folder / file) as arrays:
        feature, adjacency = _csr(arrays, "attr_"), _csr(arrays, "adj_").tocoo()
        label = arrays["labels"]
    binary = csr_array(((feature.data > 0).astype(np.float32), feature.indices, feature.indptr), shape=feature.shape)
    src, dst = both_ways(adjacency.row, adjacency.col, feature.shape[0])
    return ArrayGraph(
        Path(file).stem, feature.shape[0], src, dst, feature=binary, label=label, provenance={"source": file}
    )


def heterophilous(folder: Path, file: str) -> ArrayGraph:
    """Reads one of the five graphs of Platonov et al. (arXiv:2302.11640), with edges in both directions and ten split sets."""
    name = Path(file).stem
    with open_npz(folder / file) as arrays:
        feature, edges = arrays["node_features"], arrays["edges"].T
        masks = [mask_sets(arrays[f"{part}_masks"], len(feature), name) for part in ("train", "val", "test")]
        label = arrays["node_labels"]
    src, dst = both_ways(edges[0], edges[1], len(feature), loops=True)
    split = split_sets(len(feature), masks, name)
    return ArrayGraph(
        name, len(feature), src, dst, feature=feature, label=label, split=split, provenance={"source": file}
    )


def wikipedia(folder: Path, file: str) -> ArrayGraph:
    """Reads a graph of Wikipedia pages from MUSAE (arXiv:1909.13021). Each distinct edge is kept once, in its given direction. There is no split.

    The class is the column `label`. In a file without this column it is the quintile of the page's monthly traffic (`target`), as in Geom-GCN.
    """
    with open_npz(folder / file) as arrays:
        feature, edges = arrays["features"], arrays["edges"].T
        label = arrays["label"] if "label" in arrays else _fifths(arrays["target"])
    src, dst = _distinct(edges[0], edges[1], len(feature), loops=True)
    return ArrayGraph(
        Path(file).stem, len(feature), src, dst, feature=feature, label=label, provenance={"source": file}
    )


def saint(folder: Path, name: str) -> ArrayGraph:
    """Reads Flickr or Yelp (arXiv:1907.04931): a CSR matrix, features, JSON files with parts and classes. In Yelp a node's classes are a list of 0 and 1."""
    feature = load_npy(folder / "feats.npy")
    num_nodes = len(feature)
    with open_npz(folder / "adj_full.npz") as arrays:
        adjacency = _csr(arrays, "").tocoo()
    classes = _json(folder / "class_map.json")
    rows = _rows(classes, num_nodes, folder)
    try:
        values = np.array(list(classes.values()), np.int64)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{folder}/class_map.json: expected a class of each node, or as many 0 and 1: {one_line(error)}"
        ) from error
    label = np.full((num_nodes, *values.shape[1:]), -1, np.int64)
    label[rows] = values
    role = _json(folder / "role.json")
    parts = [np.array(role[part], np.int64) for part in ("tr", "va", "te")]
    return ArrayGraph(
        name,
        num_nodes,
        adjacency.row,
        adjacency.col,
        feature=feature,
        label=label,
        split=split_sets(num_nodes, [[part] for part in parts], name),
        provenance={"source": "GraphSAINT's files"},
    )


def reddit(folder: Path) -> ArrayGraph:
    """Reads Reddit (arXiv:1706.02216) from the files that DGL provides. They hold both directions of each edge. Each distinct edge is kept once."""
    with open_npz(folder / "reddit_data.npz") as arrays:
        feature, label, part = arrays["feature"], arrays["label"], arrays["node_types"]
    with open_npz(folder / "reddit_graph.npz") as arrays:
        if "row" in arrays:
            ends = arrays["row"], arrays["col"]
        else:
            adjacency = _csr(arrays, "").tocoo()
            ends = adjacency.row, adjacency.col
    src, dst = _distinct(*ends, len(feature), loops=True)
    parts = [np.flatnonzero(part == code) for code in (SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST)]
    split = split_sets(len(feature), [[rows] for rows in parts], "reddit")
    return ArrayGraph(
        "reddit", len(feature), src, dst, feature=feature, label=label, split=split, provenance={"source": "reddit.zip"}
    )


def per_class_splits(label: np.ndarray, num_each: int, num_sets: int, seed: int, name: str) -> np.ndarray:
    """Draws split codes, int8 [num_nodes, num_sets]. In each split set, `num_each` random nodes of each class validate, as many test, and the others train.

    This is TokenGT's protocol (arXiv:2207.02505, appendix A.6; `num_each` is 30 there). The result is a function of (seed, set, node). Unlabelled nodes are in
    no part. Raises DataError for a class with too few nodes.
    """
    classes = np.unique(label[label >= 0])
    codes = np.zeros((len(label), num_sets), np.int8)
    codes[label >= 0] = SPLIT_TRAIN
    for number in range(num_sets):
        order = hash_counters(derive_key(seed, _PER_CLASS, number), np.arange(len(label)))
        for class_id in classes:
            nodes = np.flatnonzero(label == class_id)
            if len(nodes) <= 2 * num_each:
                raise DataError(
                    f"{name}: expected more than {2 * num_each} nodes of each class, got {len(nodes)} of class {class_id}; lower --per_class"
                )
            drawn = nodes[np.argsort(order[nodes], kind="stable")]
            codes[drawn[:num_each], number] = SPLIT_VALID
            codes[drawn[num_each : 2 * num_each], number] = SPLIT_TEST
    return codes


_PER_CLASS = 0x636C6173  # "clas": makes these draws independent of other draws with the same seed


def _csr(arrays: NpzMembers, prefix: str) -> csr_array:
    parts = [f"{prefix}{part}" for part in ("data", "indices", "indptr", "shape")]
    missing = [part for part in parts if part not in arrays]
    if missing:
        raise DataError(
            f"{arrays.path}: expected a CSR matrix {', '.join(parts)}, found {', '.join(sorted(arrays.names))}"
        )
    data, indices, indptr, shape = (arrays[part] for part in parts)
    try:
        matrix = csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
        matrix.check_format()  # without this check, scipy would write outside its memory for an index outside the shape
    except ValueError as error:
        raise DataError(
            f"{arrays.path}: {prefix}indptr and {prefix}indices are no CSR matrix: {one_line(error)}"
        ) from error
    return matrix


def _distinct(
    src: np.ndarray, dst: np.ndarray, num_nodes: int, *, loops: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct edges, sorted by source and destination. Self-loops are dropped unless `loops` is set."""
    src, dst = src.astype(np.int64), dst.astype(np.int64)
    outside = (src < 0) | (src >= num_nodes) | (dst < 0) | (dst >= num_nodes)
    if outside.any():
        edge = int(np.argmax(outside))
        raise DataError(
            f"edge {edge}: expected nodes 0 to {num_nodes - 1}, got {src[edge]} -> {dst[edge]}; {int(outside.sum())} such edges"
        )
    kept = slice(None) if loops else src != dst
    code = np.unique(src[kept] * num_nodes + dst[kept])
    return code // num_nodes, code % num_nodes


def both_ways(
    src: np.ndarray, dst: np.ndarray, num_nodes: int, *, loops: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct edges of both directions, like `_distinct`."""
    return _distinct(np.concatenate([src, dst]), np.concatenate([dst, src]), num_nodes, loops=loops)


def _fifths(target: np.ndarray) -> np.ndarray:
    """Returns the quintile of each value, 0 to 4."""
    edges = np.quantile(target, [0.2, 0.4, 0.6, 0.8])
    return np.searchsorted(edges, target, side="right").astype(np.int64)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON, got: {one_line(error)}") from error


def _rows(keys: Sequence[str], num_nodes: int, folder: Path) -> np.ndarray:
    rows = np.array([int(key) for key in keys], np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < num_nodes:
        raise DataError(
            f"{folder}/class_map.json: expected nodes 0 to {num_nodes - 1}, got {rows.min()} to {rows.max()}"
        )
    return rows
