"""What splits lack, each in a few words with both counts: classes to train on, a second class to score, rows that were rejected."""

from collections.abc import Mapping, Sequence

import numpy as np

from graphmill.jobs.tasks.graph_task import split_targets
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLITS
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


def set_lacks(store: StoredGraphs, columns: Sequence[int]) -> list[str]:
    """Of a set, and of those of these targets that are classes; of labelled nodes or pairs, of their labels."""
    text, labelled = store.manifest.provenance.get("rejected"), store.manifest.labelled
    lacks = [f"rejected rows: {text}"] if text else []
    for column in [0] if labelled else columns:
        values = {name: split_targets(store, name, (column,))[:, 0] for name in store.split_names}
        values = {name: own[~np.isnan(own)] for name, own in values.items()}
        every = np.concatenate([np.empty(0), *values.values()])
        if (
            len(every)
            and not (every % 1).any()
            and 0 <= every.min() <= every.max() < _MOST_CLASSES
            and "train" in values
        ):
            width = int(every.max()) + 1
            rows = {
                name: (np.bincount(own.astype(int), minlength=width).tolist(), len(own)) for name, own in values.items()
            }
            target = f"{store.target_names[column]}: " if len(columns) > 1 else ""
            lacks += [target + each for each in _lacks(rows, labelled or "graphs", store.class_names)]
    return lacks if len(lacks) <= _SHOWN else [*lacks[:_SHOWN], f"{len(lacks) - _SHOWN} more of this kind"]


def _lacks(rows: Mapping[str, tuple[Sequence[int], int]], unit: str, class_names: Sequence[str]) -> list[str]:
    """`rows`: by split, counts by class and of all that have a label. `class_names`: empty where numbers name the classes."""
    lacks, (trained, num_trained) = [], rows["train"]
    names = class_names or list(map(str, range(len(trained))))
    for name, (counts, total) in rows.items():
        there = [each for each, count in enumerate(counts) if count]
        unseen = [f"{names[each]} ({counts[each]:,} of {total:,})" for each in there if not trained[each]]
        if unseen:
            shown = ", ".join(unseen[:_SHOWN]) + (" …" if len(unseen) > _SHOWN else "")
            lacks.append(f"{name} has classes that none of {num_trained:,} training {unit} has: {shown}")
        if len(there) == 1 and len(counts) > 1 and counts[there[0]] == total:
            lacks.append(f"{name} has one class of {len(counts):,}: {names[there[0]]} ({total:,} of {total:,} {unit})")
    return lacks
