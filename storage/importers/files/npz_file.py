"""Reads graphs in public `.npz` files: undirected edges or an edge index, dense or CSR features, labels, splits as indices or masks.

The tuples below list the names that published files give to their arrays. Nothing is unpickled.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from graphmill.core.errors import DataError
from graphmill.storage.importers.files.npz_members import NpzMembers, open_npz
from graphmill.storage.importers.memory.array_graph import ArrayGraph, edge_rows, mask_sets, split_sets
from graphmill.storage.importers.memory.graph_objects import tell_unread

_DENSE_FEATURES = ("x", "node_features", "features", "feature")
_LABELS = ("y", "node_labels", "labels", "label")
_NUMBERS, _WHOLE = "biuf", "iu"  # kinds of numpy dtypes: numbers and truth values; whole numbers
_SPLIT_PARTS = (("train",), ("valid", "val"), ("test",))

# Limits for sparse features, because they are stored dense: a file of a few kilobytes may describe terabytes of dense features.
_MAX_DENSE_BYTES, _FREE_DENSE_BYTES = 64 << 30, 1 << 30
_DENSE_BYTES_PER_BYTE = 4096


def npz_graph(path: str | Path) -> ArrayGraph:
    """Reads the graph in one `.npz` file.

    `edges` [num_edges, 2] holds each undirected edge once, and ingestion adds the reverse. `edge_index` [2, num_edges] is used without changes. Optional
    arrays are `edge_weight` [num_edges], `edge_time` [num_edges] and `node_time` [num_nodes]. Sparse features are `x_indptr`, `x_indices`, `x_data` (if
    absent: ones) and `x_shape`. Splits are indices (`train_idx` …) or masks (`train_masks` …), with one split set or several.

    Raises DataError for a file that is missing, is not an archive, holds pickles, or lacks edges or nodes, and for shapes that disagree.
    """
    with open_npz(path) as arrays:
        graph = _graph(arrays)
        tell_unread(graph.name, arrays.names, arrays.read)
        return graph


def _graph(arrays: NpzMembers) -> ArrayGraph:
    path = arrays.path
    name = f"npz:{path.stem}"
    if "edges" in arrays:
        src, dst = edge_rows(arrays["edges"].T, name)
    elif "edge_index" in arrays:
        src, dst = edge_rows(arrays["edge_index"], name)
    else:
        raise DataError(f"{path}: expected an array 'edges' or 'edge_index', found {', '.join(sorted(arrays.names))}")
    feature = _feature(arrays, path)
    label = _first(arrays, _LABELS, path, dims=(1, 2))
    if feature is None and label is None:
        raise DataError(
            f"{path}: expected features or labels to count the nodes by, found {', '.join(sorted(arrays.names))}"
        )
    num_nodes = feature.shape[0] if feature is not None else len(label)  # type: ignore[arg-type]
    return ArrayGraph(
        name=name,
        num_nodes=num_nodes,
        src=src,
        dst=dst,
        edge_weight=_first(arrays, ("edge_weight", "edge_weights"), path, dims=(1,)),
        edge_time=_first(arrays, ("edge_time",), path, dims=(1,)),
        node_time=_first(arrays, ("node_time",), path, dims=(1,)),
        feature=feature,
        label=label,
        split=_split(arrays, num_nodes, path, name),
        undirected_once="edges" in arrays,
        provenance={"file": path.name, "file_bytes": str(path.stat().st_size)},
    )


def _first(
    arrays: NpzMembers, names: Sequence[str], path: Path, dims: tuple[int, ...], kinds: str = _NUMBERS
) -> np.ndarray | None:
    """Returns the array with the first of these names that the file has, or None. Raises DataError for other dimensions or another kind of dtype."""
    name = next((name for name in names if name in arrays), None)
    if name is None:
        return None
    array = arrays[name]
    if array.ndim not in dims or array.dtype.kind not in kinds:
        expected = "whole numbers" if kinds == _WHOLE else "numbers"
        raise DataError(
            f"{path}: {name}: expected {expected} in {' or '.join(map(str, dims))} dimensions, got {array.dtype} {list(array.shape)}"
        )
    return array


def _feature(arrays: NpzMembers, path: Path):
    if "x_indptr" not in arrays:
        return _first(arrays, _DENSE_FEATURES, path, dims=(2,))
    missing = {"x_indices", "x_shape"} - set(arrays.names)
    if missing:
        raise DataError(f"{path}: sparse features need x_indptr, x_indices and x_shape; {sorted(missing)} missing")
    indptr, indices, size = (
        _first(arrays, (f"x_{part}",), path, (1,), _WHOLE) for part in ("indptr", "indices", "shape")
    )
    assert indptr is not None
    assert indices is not None
    assert size is not None
    shape, data = size.tolist(), _first(arrays, ("x_data",), path, dims=(1,))
    data = np.ones(len(indices), np.float32) if data is None else data.astype(np.float32)
    if not len(indptr):
        raise DataError(f"{path}: x_indptr: expected one entry more than there are rows, got none")
    num_rows = len(indptr) - 1
    # Some publishers give the shape of the matrix, others the shape of its transpose in CSC form. The arrays of rows are the same.
    if len(shape) != 2 or num_rows not in shape:
        raise DataError(f"{path}: x_indptr has {num_rows} rows, x_shape says {shape}; features and nodes disagree")
    width = shape[1] if shape[0] == num_rows else shape[0]
    if width < 0:
        raise DataError(f"{path}: x_shape: expected sizes from 0, got {shape}")
    _check_dense(path, num_rows, width, len(indices), indices.nbytes + data.nbytes)
    if len(data) != len(indices) or int(indptr[-1]) != len(indices) or np.any(np.diff(indptr) < 0) or indptr[0] != 0:
        raise DataError(f"{path}: x_indptr must ascend from 0 to {len(indices)}, the length of x_indices and x_data")
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < width:
        raise DataError(f"{path}: x_indices must be 0 to {width - 1}, got {int(indices.min())} to {int(indices.max())}")
    return csr_array((data, indices, indptr), shape=(num_rows, width))


def _check_dense(path: Path, num_rows: int, width: int, num_values: int, value_bytes: int) -> None:
    """Raises DataError for sparse features whose dense float32 rows would be too large, or far larger than the file's values."""
    dense = num_rows * width * 4
    if dense > _MAX_DENSE_BYTES:
        most, size = f"{_MAX_DENSE_BYTES >> 30} GiB of dense features", f"{dense >> 30:,} GiB"
    elif dense > max(_FREE_DENSE_BYTES, _DENSE_BYTES_PER_BYTE * value_bytes):
        most = f"{_DENSE_BYTES_PER_BYTE:,} times the bytes of the values"
        size = f"{dense / 2**30:.1f} GiB of {num_values} values"
    else:
        return
    raise DataError(
        f"{path}: x_shape: expected at most {most}, since each row is stored dense, got {num_rows} x {width}, {size}; "
        "keep fewer columns, or leave the features out"
    )


def _split(arrays: NpzMembers, num_nodes: int, path: Path, name: str) -> np.ndarray | None:
    parts = []
    for names in _SPLIT_PARTS:
        index = _first(arrays, [f"{part}_idx" for part in names], path, dims=(1, 2))
        endings = [f"{part}_{ending}" for part in names for ending in ("masks", "mask")]
        mask = _first(arrays, endings, path, dims=(1, 2))
        if mask is not None:
            parts.append(mask_sets(mask, num_nodes, name))
        elif index is not None:
            parts.append([index] if index.ndim == 1 else list(index))
    if not parts:
        return None
    if len(parts) != 3:
        raise DataError(f"{name}: expected train, valid and test splits or none, found {len(parts)} of the three")
    return split_sets(num_nodes, parts, name)
