"""Looks for means, deviations, categories and vocabularies that were learnt on more than the training rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmill.jobs.leaks.checks import MOST_EXAMPLES, Finding, Outcome, skipped
from graphmill.jobs.leaks.node_rows import NodeRows
from graphmill.storage.format.source import SPLIT_TRAIN
from graphmill.storage.format.statistics import ColumnStatistics

if TYPE_CHECKING:
    from graphmill.storage.graph_sets.graph_set import StoredGraphs

_NEAR = 1e-3  # largest difference of two equal means or deviations, in deviations
_MOST_TOLD = 0.5  # a table counts as standardised if this share of its number columns is


def check_statistics(
    rows: NodeRows, part: str, split_set: int, standard: Sequence[tuple[str, int, float, float]]
) -> Outcome:
    """Compares what was learnt from columns with the statistics of the training rows. `standard`: the run's standardised columns (type, column, mean,
    deviation). Reads the features once if their means look standardised, or if columns are embedded."""
    manifest = rows.graph.manifest
    dim, feature = manifest.feature_dim, manifest.measured.feature
    if not rows.has_split or feature is None or not feature.columns:
        return skipped("statistics", part, "no training rows, no features, or no statistics of columns in the manifest")
    training = feature.columns[split_set * dim :][:dim]
    findings = [*_of_tables(rows, training), *_of_run(training, standard, part, rows.column_names)]
    number = [k for k in range(dim) if training[k].nonzero > 0 and training[k].deviation > 0]
    num_training = int((rows.code == SPLIT_TRAIN).sum())
    if look_standardised([training[k] for k in number], num_training):
        blocks = (manifest.feature_rows.decode(stored) for _, stored in rows.stored_features())  # type: ignore[union-attr]
        findings += of_all_rows(blocks, training, rows.column_names, len(rows.code), num_training)
    looked = f"{dim:,} columns against the statistics of {num_training:,} training nodes; {len(manifest.feature_columns)} encoded columns of a table"
    return Outcome("statistics", part, looked, tuple(findings))


def check_set_statistics(graphs: "StoredGraphs", task: Mapping[str, Any]) -> Outcome:
    """The same for a set of graphs. `task`: the task in a run's summary, whose means and scales must be those of the training targets."""
    measured, schema = graphs.manifest.measured, graphs.manifest.node
    if "train" not in graphs.split_names:
        return skipped("statistics", "", "the set has no training graphs")
    named, findings = task.get("names") or list(graphs.target_names), []
    targets = measured.parts[graphs.split_names.index("train") + 1].targets
    own = [target for name, target in zip(graphs.target_names, targets, strict=True) if name in named]
    findings += of_targets(task, [(target.mean, target.std) for target in own])
    looked = "means and deviations of the training targets"
    if schema.holds_numbers and measured.node_columns:
        number = [each for each in measured.node_columns if each.deviation > 0]
        training = graphs.split("train")
        num_training, total = int(graphs.num_nodes[training].sum()), graphs.manifest.num_nodes
        if look_standardised(number, num_training):
            blocks = (np.asarray(shard.node_feature, np.float32) for shard in graphs.shards)
            names = [str(k) for k in range(schema.dim)]
            findings += of_all_rows(blocks, measured.node_columns, names, total, num_training)
        looked = f"{schema.dim:,} columns of nodes against the statistics of {num_training:,} nodes of training graphs"
    return Outcome("statistics", "", looked, tuple(findings))


def look_standardised(training: Sequence[ColumnStatistics], num_training: int) -> bool:
    """Whether most columns have a mean near 0 and a deviation near 1 on the training rows."""
    if not training or not num_training:
        return False
    near = 10 / num_training**0.5
    return sum(abs(each.mean) < near and abs(each.deviation - 1) < near for each in training) >= _MOST_TOLD * len(
        training
    )


def of_all_rows(
    blocks: Iterable[np.ndarray],
    training: Sequence[ColumnStatistics],
    names: Sequence[str],
    num_rows: int,
    num_training: int,
) -> list[Finding]:
    """A warning if columns have mean 0 and deviation 1 exactly over all rows, but not over the training rows: their scale was learnt on all rows."""
    total, squares, count = np.zeros((3, len(training)))
    for block in blocks:
        known = np.isfinite(block)
        numbers = block if known.all() else np.where(known, block, 0)
        total += numbers.sum(axis=0, dtype=np.float64)
        squares += np.einsum("ij,ij->j", numbers, numbers, dtype=np.float64)
        count += known.sum(axis=0)
    count = np.maximum(count, 1)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    near = min(_NEAR, 0.05 / num_rows**0.5)
    own = np.array([(each.mean, each.deviation) for each in training])
    is_exact = (abs(mean) <= near) & (abs(deviation - 1) <= max(near, 1 / num_rows))
    differs = np.maximum(abs(own[:, 0]), abs(own[:, 1] - 1)) > 10 * near
    numbers = own[:, 1] > 0
    found = np.flatnonzero(is_exact & differs)
    if len(found) < _MOST_TOLD * max(1, numbers.sum()):
        return []
    text = (
        f"{len(found):,} of {len(training):,} columns have mean 0 and deviation 1 over all {num_rows:,} rows, but not over the {num_training:,} training "
        "rows: they were standardised with validation and test"
    )
    told = tuple(f"{names[k]}: training mean {own[k, 0]:.4f}, deviation {own[k, 1]:.4f}" for k in found[:MOST_EXAMPLES])
    return [Finding("warning", text, told)]


def _of_tables(rows: NodeRows, training: Sequence[ColumnStatistics]) -> list[Finding]:
    """Findings about columns of a table that ingestion encoded. An empty field has the column's mean, so the mean over the stored training rows equals it."""
    means, unseen, start = [], [], 0
    for column in rows.graph.manifest.feature_columns:
        own = training[start : start + column.width]
        if column.kind == "number" and abs(own[0].mean - column.mean) > _NEAR * max(
            own[0].deviation, abs(own[0].mean), 1e-6
        ):
            means.append(f"{column.name}: {column.mean:.6g}, training rows {own[0].mean:.6g}")
        elif column.kind == "categories":
            unseen += [
                f"{column.name} {value}" for value, each in zip(column.values, own, strict=False) if not each.nonzero
            ]
        elif column.kind == "embedded":
            unseen += [
                f"{column.name} {column.values[code - 1]}"
                for code in _codes_without_training(rows, start, len(column.values))
            ]
        start += column.width
    findings = []
    if means:
        findings.append(
            Finding(
                "leak",
                f"{len(means):,} columns have a mean that is not the training rows' mean",
                tuple(means[:MOST_EXAMPLES]),
            )
        )
    if unseen:
        text = f"{len(unseen):,} categories of the vocabulary are in no training row"
        findings.append(Finding("leak", text, tuple(unseen[:MOST_EXAMPLES])))
    return findings


def _codes_without_training(rows: NodeRows, column: int, num_values: int) -> list[int]:
    """Codes of an embedded column that no training row has."""
    layout = rows.graph.manifest.feature_rows
    assert layout is not None
    seen = np.zeros(num_values + 1, bool)
    for place, stored in rows.stored_features():
        trains = rows.code[place] == SPLIT_TRAIN
        seen[layout.decode(stored[trains])[:, column].astype(np.int64)] = True
    return (np.flatnonzero(~seen[1:]) + 1).tolist()


def _of_run(
    training: Sequence[ColumnStatistics],
    standard: Sequence[tuple[str, int, float, float]],
    part: str,
    names: Sequence[str],
) -> list[Finding]:
    told = [
        f"{names[k]}: mean {mean:.6g}, training rows {training[k].mean:.6g}"
        for own, k, mean, deviation in standard
        if own == part
        and not np.allclose((mean, deviation), (training[k].mean, training[k].deviation), rtol=1e-6, atol=1e-9)
    ]
    text = f"the run standardises {len(told):,} columns with other statistics than those of the training rows"
    return [Finding("leak", text, tuple(told[:MOST_EXAMPLES]))] if told else []


def of_targets(task: Mapping[str, Any], training: Sequence[tuple[float | None, float | None]]) -> list[Finding]:
    """A leak if a run's task has other means than the training targets (mean, deviation). A task without a mean, or with 0, learnt none."""
    own = task.get("mean")
    means = own if isinstance(own, list | tuple) else [own]
    if len(means) != len(training):
        return []
    told = [
        f"{k}: mean {mean:.6g}, training targets {target:.6g}"
        for k, (mean, (target, deviation)) in enumerate(zip(means, training, strict=True))
        if isinstance(mean, int | float)
        and mean
        and target is not None
        and abs(mean - target) > _NEAR * (deviation or 1)
    ]
    text = f"the run standardises {len(told):,} targets with another mean than that of the training targets"
    return [Finding("leak", text, tuple(told[:MOST_EXAMPLES]))] if told else []
