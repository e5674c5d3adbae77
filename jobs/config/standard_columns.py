"""Which columns of node features a run standardises."""

from collections.abc import Iterable, Sequence

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.core.summaries import counted
from graphmill.jobs.config.config import NodeDataOptions
from graphmill.jobs.config.registry import StandardColumn
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.statistics import ColumnStatistics


def standard_columns(rows: Iterable[Manifest], options: NodeDataOptions) -> tuple[StandardColumn, ...]:
    """Those of a graph, or of all types of a typed one. Raises ConfigError where they are asked for and a manifest has no numbers of them."""
    chosen: list[StandardColumn] = []
    for row in [] if options.standardise == "no" else rows:
        dim, name = row.feature_dim, "" if row.part is None else row.part.name
        columns = row.measured.feature.columns if row.measured.feature else ()
        if dim and not columns and options.standardise == "yes":
            raise ConfigError(
                f"{row.name}: standardise: expected a manifest with the mean and deviation of each column, got none; ingest the graph again, or set "
                "--data.standardise no"
            )
        columns = columns[options.split_set * dim :][:dim] or columns[:dim]
        odd = have_other_scale(columns) if options.standardise == "auto" else np.ones(len(columns), bool)
        chosen += [(name, k, columns[k].mean, columns[k].deviation) for k in np.flatnonzero(odd).tolist()]
    return tuple(chosen)


def have_other_scale(columns: Sequence[ColumnStatistics]) -> np.ndarray:
    """bool [columns]: whether the column's scale is so far from 1 that models do not learn from it, or from nothing else.

    A column's size is the root mean square of its numbers that are not 0: 1 of one-hot columns and bags of words, however rare. Out of bounds is a size
    above 10, or below a hundredth of the mean of all (sizes above 1 count as 1); a mean more than 100 deviations from 0, where no number is 0; and every
    size where all add up to less than 0.3.
    """
    mean, deviation, nonzero = np.array([(own.mean, own.deviation, own.nonzero) for own in columns]).reshape(-1, 3).T
    size = np.sqrt((mean**2 + deviation**2) / np.where(nonzero > 0, nonzero, 1))
    small = size < (np.inf if size.sum() < 0.3 else 0.01 * np.minimum(size, 1).mean())
    far = (nonzero == 1) & (deviation > 0) & (abs(mean) > 100 * deviation)
    return (size > 10) | (small & (size > 0)) | far


def standard_choice(columns: Sequence[StandardColumn]) -> str:
    """What a run says of them, with the numbers of the first three."""
    told = [f"{name} {k}: mean {mean:.4g}, deviation {std:.4g}".strip() for name, k, mean, std in columns[:3]]
    told += ["…"] * (len(columns) > len(told))
    return f"{counted(len(columns), 'column')} of features to mean 0 and deviation 1 ({'; '.join(told)})"
