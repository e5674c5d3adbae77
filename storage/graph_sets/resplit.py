"""A split that ingestion draws for a set of graphs, in place of the source's."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from graphmill.core.errors import ConfigError
from graphmill.storage.format.source import SPLIT_TRAIN, SPLIT_VALID, SPLITS
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo
from graphmill.storage.splits.drawn_split import draw_split
from graphmill.storage.splits.split_options import SplitOptions

Batches = Callable[[], Iterable[pa.RecordBatch]]  # shards, each time the same
Groups = Callable[[np.ndarray], np.ndarray]  # of rows of the source (int64 [n]), an integer each
Resplit = tuple[GraphSetInfo, Iterator[pa.RecordBatch]]


def resplit(info: GraphSetInfo, batches: Batches, options: SplitOptions, groups: Groups | None = None) -> Resplit:
    """The shards with another split of the graphs that have a target; those without are in none. `groups`: scaffolds, of molecules.

    Raises ConfigError where the set cannot be split so, DataError where there are fewer than two graphs, or scaffolds, to divide.
    """
    row, target, _ = _columns(info, batches)
    chosen = np.ones(len(row), bool) if info.labelled else ~np.isnan(target).all(axis=1)
    label = wanted = None
    if options.time_shares:
        wanted = "a graph whose nodes have times"
    elif options.by == "scaffold":
        label, wanted = (None, "molecules") if groups is None else (groups(row), None)
    elif options.by == "label":
        label = target[:, 0] if target.shape[1] == 1 else None
        wanted = None if label is not None and not np.any(label[chosen] % 1) else "one target of classes 0, 1, 2 …"
    if wanted is not None:
        raise ConfigError(f"{info.name}: split {options}: expected {wanted}, got another set; set --split.by random")
    codes = draw_split(info.name, options, chosen, label)
    told = {**info.provenance, "split": str(options)}
    return replace(info, split_names=tuple(SPLITS), provenance=told), _recoded(batches, codes)


def fill_parts(info: GraphSetInfo, batches: Batches, groups: Groups) -> Resplit:
    """The shards as they are, but where no graph with a target trains, or none validates: then with shares of 80/10/10, each group whole."""
    row, target, codes = _columns(info, batches)
    known = ~np.isnan(target).all(axis=1)
    if not {SPLIT_TRAIN, SPLIT_VALID} <= set(codes[known].tolist()):
        label = groups(row)
        if len(np.unique(label[known])) > 1:
            codes = draw_split(info.name, SplitOptions(shares=(0.8, 0.1, 0.1), by="scaffold"), known, label)
            told = {**info.provenance, "filled": "0.8 0.1 0.1 of distinct molecules, as the hash left a part empty"}
            return replace(info, provenance=told), _recoded(batches, codes)
    return info, iter(batches())


def _columns(info: GraphSetInfo, batches: Batches) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int64 [n] rows of the source, float32 [n, targets], int8 [n] codes of the split."""
    rows, targets, codes = [np.empty(0, np.int64)], [np.empty(0, np.float32)], [np.empty(0, np.int8)]
    for batch in batches():
        rows.append(batch.column("original_id").to_numpy())
        codes.append(batch.column("split").to_numpy())
        if info.target_names:
            targets.append(batch.column("target").flatten().to_numpy())
    row = np.concatenate(rows)
    return row, np.concatenate(targets).reshape(len(row), len(info.target_names)), np.concatenate(codes)


def _recoded(batches: Batches, codes: np.ndarray) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in batches():
        place = batch.schema.get_field_index("split")
        yield batch.set_column(place, batch.schema.field(place), pa.array(codes[start : start + batch.num_rows]))
        start += batch.num_rows
