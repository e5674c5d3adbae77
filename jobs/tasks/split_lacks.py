"""What splits lack, each in a few words with both counts: classes to train on, a second class to score, rows that were rejected."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLITS

if TYPE_CHECKING:
    from graphmill.storage.graph_sets.graph_set import StoredGraphs

_MOST_CLASSES = 1000  # of whole numbers as targets; more are measured, not told apart
_SHOWN = 5  # of classes, or of what targets lack


def graph_lacks(manifest: Manifest, split_set: int) -> list[str]:
    """Of a graph's split set; empty where its labels are no classes, or so many that ingestion keeps no counts."""
    split = manifest.measured.splits[split_set] if split_set < manifest.num_split_sets else None
    if split is None or split.class_counts is None:
        return []
    rows = {name: (split.class_counts[code], split.num_labelled[code]) for name, code in SPLITS.items()}
    return _lacks(rows, "nodes", manifest.class_names)


def set_lacks(store: "StoredGraphs", columns: Sequence[int] | None = None) -> list[str]:
    """Of a set, and of those of these targets (None: all) that are classes; of labelled nodes or pairs, of their labels."""
    from graphmill.jobs.tasks.graph_task import split_targets

    text, labelled = store.manifest.provenance.get("rejected"), store.manifest.labelled
    lacks = [f"rejected rows: {text}"] if text else []
    columns = range(len(store.target_names)) if columns is None else columns
    for column in [0] if labelled else columns:
        values = {name: split_targets(store, name, (column,))[:, 0] for name in store.split_names}
        known = {name: own[~np.isnan(own)] for name, own in values.items()}
        every = np.concatenate([np.empty(0), *known.values()])
        if (
            len(every)
            and not (every % 1).any()
            and 0 <= every.min() <= every.max() < _MOST_CLASSES
            and "train" in known
        ):
            width, target = int(every.max()) + 1, f"{store.target_names[column]}: " if len(columns) > 1 else ""
            rows = {name: (np.bincount(own.astype(int), minlength=width), len(own)) for name, own in known.items()}
            lacks += [target + each for each in _lacks(rows, labelled or "graphs", store.class_names)]
    return lacks if len(lacks) <= _SHOWN else [*lacks[:_SHOWN], f"{len(lacks) - _SHOWN} more of this kind"]


def _lacks(rows: Mapping[str, tuple[Any, int]], unit: str, names: Sequence[str]) -> list[str]:
    """`rows`: by split, counts by class and of all that have a label. `names`: of the classes; empty: numbers name them."""
    lacks, (trained, num_trained) = [], rows["train"]
    for name, (counts, total) in rows.items():
        of_class = {i: f"{names[i] if names else i} ({n:,} of {total:,}" for i, n in enumerate(counts) if n}
        if unseen := [told + ")" for i, told in of_class.items() if not trained[i]]:
            first_classes = ", ".join(unseen[:_SHOWN]) + (" …" if len(unseen) > _SHOWN else "")
            lacks.append(f"{name} has classes that none of {num_trained:,} training {unit} has: {first_classes}")
        if len(of_class) == 1 < len(counts) and sum(counts) == total:
            lacks.append(f"{name} has one class of {len(counts):,}: {', '.join(of_class.values())} {unit})")
    return lacks
