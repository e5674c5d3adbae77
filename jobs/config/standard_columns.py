"""Chooses the feature columns that a run standardises."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.core.summaries import counted
from graphmill.jobs.config.config import GraphSetOptions, NodeDataOptions
from graphmill.jobs.config.registry import OF_EDGES, Inputs, StandardColumn
from graphmill.storage.format.graph_set_manifest import GraphSetManifest
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import FeatureColumn
from graphmill.storage.format.statistics import ColumnStatistics

_NAMED = 3  # number of columns that the output names


def with_standard_columns(
    inputs: Inputs, rows: Iterable[Manifest | GraphSetManifest], options: NodeDataOptions | GraphSetOptions
) -> Inputs:
    """The inputs, with the columns to standardise. These are columns of nodes and, if the run reads edge features, of edges; of a set, or of a graph with all
    its types and relations. Raises ConfigError if the user asks to standardise and a manifest has no statistics of the columns."""
    embedded = {own[:2] for own in inputs.embedded}
    chosen: list[StandardColumn] = []
    names: list[str] = []
    for row in [] if options.standardise == "no" else rows:
        for part, dim, columns, named in _tables(row, options):
            if dim and not columns and options.standardise == "yes":
                raise ConfigError(
                    f"{row.name}: standardise: expected a manifest with the mean and deviation of each column, got none; ingest the data again, or set "
                    "--data.standardise no"
                )
            odd = have_other_scale(columns) if options.standardise == "auto" else np.ones(len(columns), bool)
            picked = [k for k in np.flatnonzero(odd).tolist() if (part, k) not in embedded]
            chosen += [(part, k, columns[k].mean, columns[k].deviation) for k in picked]
            names += [f"{part} {named[k] if named else k}".strip() for k in picked]
    if options.standardise == "yes" and not chosen:
        raise ConfigError("standardise: expected columns of numbers, the data has none; leave out --data.standardise")
    return replace(inputs, standard=tuple(chosen), standard_names=tuple(names[:_NAMED]))


def _tables(
    row: Manifest | GraphSetManifest, options: NodeDataOptions | GraphSetOptions
) -> list[tuple[str, int, Sequence[ColumnStatistics], list[str]]]:
    """(node type or relation, number of columns, their statistics, their names if known) for each feature table."""
    if isinstance(row, GraphSetManifest):
        both = [("", row.node, row.measured.node_columns), (OF_EDGES, row.edge, row.measured.edge_columns)]
        read = both if getattr(options, "edge_features", True) else both[:1]
        return [(part, schema.dim, columns, []) for part, schema, columns in read if schema.holds_numbers]
    part, split_set = "" if row.part is None else row.part.name, getattr(options, "split_set", 0)
    tables: list[tuple[str, int, Sequence[ColumnStatistics], list[str]]] = []
    if row.part is None or not row.has_topology:
        dim, columns = row.feature_dim, row.measured.feature.columns if row.measured.feature else ()
        own = columns[split_set * dim :][:dim] or columns[:dim]
        tables.append((part, dim, own, feature_names(row.feature_columns)))
    if row.has_topology and getattr(options, "edge_features", False):
        tables.append((part or OF_EDGES, row.edge_feature_dim, row.measured.edge_columns, []))
    return tables


def feature_names(columns: Iterable[FeatureColumn]) -> list[str]:
    """A name for each feature that the columns of a table produced."""
    names: list[str] = []
    for column in columns:
        several = {"number": ["", " is empty"], "categories": [f" {value}" for value in column.values]}
        numbered = [f" {k}" for k in range(column.width)]
        names += [f"{column.name}{each}" for each in several.get(column.kind, numbered)[: column.width]]
    return names


def have_other_scale(columns: Sequence[ColumnStatistics]) -> np.ndarray:
    """bool [columns]: whether the column's scale is so far from 1 that models cannot learn from it, or learn from nothing else.

    The size of a column is the root mean square of its nonzero numbers. It is 1 for one-hot columns and bags of words, however rare. The scale is far from 1 in
    three cases: the size is above 10, or below a hundredth of the mean size of all columns (sizes above 1 count as 1); the mean is more than 100 deviations
    from 0 and no number is 0; or the sizes of all columns add up to less than 0.3 (then every column counts).
    """
    mean, deviation, nonzero = np.array([(own.mean, own.deviation, own.nonzero) for own in columns]).reshape(-1, 3).T
    size = np.sqrt((mean**2 + deviation**2) / np.where(nonzero > 0, nonzero, 1))
    small = size < (np.inf if size.sum() < 0.3 else 0.01 * np.minimum(size, 1).mean())
    far = (nonzero == 1) & (deviation > 0) & (abs(mean) > 100 * deviation)
    return (size > 10) | (small & (size > 0)) | far


def standard_choice(inputs: Inputs) -> str:
    """One line for the output: number of standardised columns, with the names and statistics of the first."""
    named = zip(inputs.standard_names, inputs.standard, strict=False)
    texts = [f"{name}: mean {mean:.4g}, deviation {std:.4g}" for name, (*_, mean, std) in named]
    texts += ["…"] * (len(inputs.standard) > len(texts))
    return f"{counted(len(inputs.standard), 'column')} of features to mean 0 and deviation 1 ({'; '.join(texts)})"
