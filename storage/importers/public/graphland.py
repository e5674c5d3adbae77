"""Reads the graphs of GraphLand (arXiv:2409.14500) from the published files: tables of features, targets, split masks and edges, and `info.yaml`.

The layout and the values are those of GraphLand's own loader (`dataset.py` in github.com/yandex-research/graphland) and of PyG's `GraphLandDataset`, with their
defaults: columns of numbers become normal by their quantiles over all nodes, categories become one column each, a hole becomes the column's most frequent value.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import yaml

from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line
from graphmill.storage.importers.memory.array_graph import ArrayGraph, mask_sets, split_sets
from graphmill.storage.importers.public.named_graphs import both_ways

_QUANTILES = 1000
_BOUND = 1e-7  # The most extreme values become the normal quantiles of this probability and of its complement.
_ENTRIES = ("numerical_features_names", "fraction_features_names", "categorical_features_names")


def graphland(folder: Path, task: str, splits: Sequence[str], normal_fractions: bool) -> ArrayGraph:
    """Reads one graph, with edges in both directions. Split set i is `split_masks_{splits[i]}.csv`, in which only nodes with a target count.

    Raises DataError for a damaged file, a missing column, or ids that are not the row numbers.
    """
    info = _info(folder / "info.yaml")
    features = _rows(folder / "features.csv")
    count = features.num_rows
    target = _numbers(_rows(folder / "targets.csv", count), [info["target_name"]], folder / "targets.csv")[:, 0]
    numeric, fraction, categories = (info[entry] for entry in _ENTRIES)
    numeric = [name for name in numeric if name not in set(fraction)]
    file = folder / "features.csv"
    columns = [
        _filled(_numbers(features, numeric, file), file, normal=True),
        _filled(_numbers(features, fraction, file), file, normal=normal_fractions),
        _one_hot(_numbers(features, categories, file), file),
    ]
    edges = _table(folder / "edgelist.csv")
    if edges.num_columns < 2 or not all(pa.types.is_integer(edges.schema.field(end).type) for end in (0, 1)):
        raise DataError(f"{folder}/edgelist.csv: expected two columns of node ids, got {edges.schema.names[:2]}")
    src, dst = both_ways(edges.column(0).to_numpy(), edges.column(1).to_numpy(), count, loops=True)
    known = ~np.isnan(target)
    masks = [[mask & known for mask in _masks(folder / f"split_masks_{split}.csv", count)] for split in splits]
    several = task == "yes or no"
    return ArrayGraph(
        folder.name,
        count,
        src,
        dst,
        feature=np.concatenate(columns, axis=1),
        label=target,
        label_kind={"class": "class", "number": "number"}.get(task, "several"),
        num_classes=None if several or task == "number" else len(np.unique(target[known])),
        split=split_sets(count, [*zip(*masks, strict=True)], folder.name),
        provenance={"source": "GraphLand's files", "split sets": " ".join(splits)},
    )


def _info(path: Path) -> Mapping[str, Any]:
    try:
        info = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path}: expected GraphLand's description, got: {one_line(error)[:200]}") from error
    lists = isinstance(info, dict) and all(isinstance(info.get(entry), list) for entry in _ENTRIES)
    if not lists or not isinstance(info.get("target_name"), str):
        raise DataError(f"{path}: expected target_name and the lists {', '.join(_ENTRIES)}, got another description")
    return info


def _table(path: Path) -> pa.Table:
    try:
        return pa_csv.read_csv(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: expected a table with a header, got: {one_line(error)[:200]}") from error


def _rows(path: Path, count: int | None = None) -> pa.Table:
    """Reads a table of nodes. Its first column has the ids 0 to N - 1. The rows come in the order of the ids."""
    table = _table(path)
    try:
        ids = table.column(0).to_numpy()
        if ids.dtype.kind not in "iu" or not np.array_equal(np.sort(ids), np.arange(count or len(ids))):
            raise ValueError("other values")
    except (ValueError, IndexError) as error:
        many = f"0 to {count - 1}" if count else "0, 1, 2 …"
        raise DataError(f"{path}: expected the ids {many} in the first column, each once, got {error}") from None
    return table if np.array_equal(ids, np.arange(len(ids))) else table.take(np.argsort(ids))


def _numbers(table: pa.Table, names: Sequence[str], path: Path) -> np.ndarray:
    """The columns as float32 [N, len(names)]. NaN is a hole."""
    result = np.empty((table.num_rows, len(names)), np.float32)
    for place, name in enumerate(names):
        if name not in table.schema.names:
            raise DataError(
                f"{path}: expected a column {name!r}, which info.yaml names, got {table.num_columns} others"
            )
        try:
            values = table.column(name).cast(pa.float64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(f"{path}: column {name!r}: expected numbers, got: {one_line(error)[:200]}") from error
        result[:, place] = values.to_numpy()  # null becomes NaN
    return result


def _filled(values: np.ndarray, path: Path, *, normal: bool) -> np.ndarray:
    """Puts the most frequent value of a column, the least of several, into the column's holes. With `normal`, the values then become normal."""
    for column in values.T:
        known = column[~np.isnan(column)]
        if not len(known):
            raise DataError(f"{path}: expected a value in each column of numbers, got a column without any")
        # linspace(0, 100) would differ in the last bits, and then a run of equal values would no longer be one run.
        shares = np.linspace(0, 1, min(_QUANTILES, len(column)))
        quantiles = np.percentile(known, shares * 100) if normal else None
        kinds, counts = np.unique(known, return_counts=True)
        column[np.isnan(column)] = kinds[np.argmax(counts)]
        if quantiles is not None:
            column[:] = _normal(column.astype(np.float64), np.maximum.accumulate(quantiles))
    return values


def _normal(values: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Maps values to the normal distribution by their quantiles, as scikit-learn's QuantileTransformer: of a run of equal quantiles, the middle counts."""
    from scipy.special import ndtri

    share = np.linspace(0, 1, len(quantiles))
    place = 0.5 * (np.interp(values, quantiles, share) - np.interp(-values, -quantiles[::-1], -share[::-1]))
    place[values + _BOUND > quantiles[-1]] = 1
    place[values - _BOUND < quantiles[0]] = 0
    bound = _BOUND - np.spacing(1)
    return np.clip(ndtri(place), ndtri(bound), ndtri(1 - bound))


def _one_hot(values: np.ndarray, path: Path) -> np.ndarray:
    """One column for each category of a column, in order; only the second category for a column of two."""
    if np.isnan(values).any():
        raise DataError(f"{path}: expected a value in each categorical column, got holes")
    columns = []
    for column in values.T:
        kinds = np.unique(column)
        columns += [column == kind for kind in (kinds[1:] if len(kinds) == 2 else kinds)]
    return np.stack(columns, axis=1).astype(np.float32) if columns else np.empty((len(values), 0), np.float32)


def _masks(path: Path, count: int) -> list[np.ndarray]:
    """The masks [N] of training, validation and test nodes."""
    table = _rows(path, count)
    if missing := {"train", "val", "test"} - {*table.schema.names}:
        raise DataError(f"{path}: expected the columns train, val and test, got no {', '.join(sorted(missing))}")
    return [mask_sets(table.column(part).to_numpy(), count, str(path))[0] for part in ("train", "val", "test")]
