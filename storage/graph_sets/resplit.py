"""Draws a new split for a set of graphs during ingestion. The new split replaces the source's split."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from graphmill.core.errors import ConfigError
from graphmill.storage.format.source import SPLIT_TRAIN, SPLIT_VALID, SPLITS
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo
from graphmill.storage.splits.drawn_split import draw_split
from graphmill.storage.splits.split_options import SplitOptions

Batches = Callable[[], Iterable[pa.RecordBatch]]  # a function that returns the shards, the same shards at each call
# a function that maps rows of the source (int64 [n]) to the group of each row, an integer
Groups = Callable[[np.ndarray], np.ndarray]
Resplit = tuple[GraphSetInfo, Iterable[pa.RecordBatch]]


def resplit(info: GraphSetInfo, batches: Batches, options: SplitOptions, groups: Groups | None = None) -> Resplit:
    """Returns the info and the shards with a new split. If nodes or pairs are labelled, all graphs are split. Otherwise graphs that have a target are split,
    and the others are in no part. `groups` returns the scaffolds of molecules.

    Raises ConfigError if the set cannot be split as the options ask, and DataError if there are fewer than two graphs or scaffolds to divide.
    """
    row, target, _ = _columns(info, batches)
    chosen = np.ones(len(row), bool) if info.labelled else ~np.isnan(target).all(axis=1)
    has_classes = target.shape[1] == 1 and not np.any(target[chosen] % 1)
    fits = {"random": True, "label": has_classes, "scaffold": groups is not None, "time": False}
    if options.by_time or not fits[options.by]:
        raise ConfigError(
            f"{info.name}: split {options}: expected random, label for one target of classes, or scaffold for molecules; set --split.by"
        )
    grouped = groups(row) if groups is not None and options.by == "scaffold" else None
    codes = draw_split(info.name, options, chosen, target[:, 0] if options.by == "label" else grouped)
    provenance = {**info.provenance, "split": str(options)}
    return replace(info, split_names=tuple(SPLITS), provenance=provenance), _recoded(batches, codes)


def fill_parts(info: GraphSetInfo, batches: Batches, groups: Groups) -> Resplit:
    """Splits the graphs 80/10/10 without dividing a group. Returns the shards unchanged if both the training and the validation part have graphs with a target,
    or if there are fewer than two groups."""
    row, target, codes = _columns(info, batches)
    known, label = ~np.isnan(target).all(axis=1), groups(row)
    if {SPLIT_TRAIN, SPLIT_VALID} <= set(codes[known].tolist()) or len(np.unique(label[known])) < 2:
        return info, batches()
    codes = draw_split(info.name, SplitOptions(shares=(0.8, 0.1, 0.1), by="scaffold"), known, label)
    provenance = {**info.provenance, "filled": "0.8 0.1 0.1 of distinct molecules, as the hash left a part empty"}
    return replace(info, provenance=provenance), _recoded(batches, codes)


def _columns(info: GraphSetInfo, batches: Batches) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the graphs' rows in the source (int64 [n]), targets (float32 [n, num_targets]) and split codes (int8 [n])."""
    names = ("original_id", "split", *(("target",) if info.target_names else ()))
    table = pa.Table.from_batches([batch.select(names) for batch in batches()])
    target = table["target"].combine_chunks().flatten().to_numpy() if info.target_names else np.empty(0, np.float32)
    target = target.reshape(len(table), len(info.target_names))
    return table["original_id"].to_numpy(), target, table["split"].to_numpy()


def _recoded(batches: Batches, codes: np.ndarray) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in batches():
        place = batch.schema.get_field_index("split")
        yield batch.set_column(place, batch.schema.field(place), pa.array(codes[start : start + batch.num_rows]))
        start += batch.num_rows
