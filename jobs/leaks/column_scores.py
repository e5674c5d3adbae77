"""Scores each feature column alone: a table from the column's values to the target is learnt on one sample and checked on another.

A column with at most 256 distinct values keeps them; any other column is cut into 256 bins with equally many training rows. The prediction for a bin is its most
frequent class, or its mean. Pure functions of arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

_BINS = 256
_BY_CHANCE = 14  # k numbers out of w are all distinct with probability exp(-k² / 2w): one in a thousand for k² = 14 w
_SEVERAL = 3  # a column of the splits' own numbers has one in training
_TELLING_GINI = 0.98  # a column with this 2 · ROC-AUC - 1 tells a binary label, however rare one class is


@dataclass(frozen=True)
class Scores:
    """For each column the share of what a constant prediction gets wrong that the column alone gets right; below 0 if the column is worse.

    Classes: (accuracy - majority) / (1 - majority); for two classes 2 · ROC-AUC - 1 if that is at least 0.98. Numbers: R². Several answers or numbers: the best
    of them.
    """

    gain: np.ndarray  # float64 [columns]
    accuracy: np.ndarray  # float64 [columns], the accuracy or R² itself
    constant: float  # accuracy of the constant prediction

    @classmethod
    def joined(cls, parts: Sequence["Scores"]) -> "Scores":
        """The scores of blocks of columns of the same rows."""
        gain, accuracy = (np.concatenate([getattr(part, name) for part in parts]) for name in ("gain", "accuracy"))
        return cls(gain, accuracy, parts[0].constant)


def score_columns(train: np.ndarray, target: np.ndarray, other: np.ndarray, other_target: np.ndarray) -> Scores:
    """Learns on `train` [n, f] with `target` and scores on `other` [m, f].

    target: int64 [n] classes, or float [n, L] numbers or answers (0 or 1), NaN: unknown. Answers count as numbers: a column that tells an answer has R² 1.
    """
    if target.ndim == 1:
        return _of_classes(train, target, other, other_target)
    best = np.full(train.shape[1], -np.inf)
    for column in range(target.shape[1]):
        known, other_known = ~np.isnan(target[:, column]), ~np.isnan(other_target[:, column])
        if known.sum() >= 2 and other_known.sum() >= 2 and np.ptp(other_target[other_known, column]) > 0:
            r2 = _of_numbers(train[known], target[known, column], other[other_known], other_target[other_known, column])
            best = np.maximum(best, r2)
    return Scores(best, best, 0.0)


def _of_classes(train: np.ndarray, target: np.ndarray, other: np.ndarray, other_target: np.ndarray) -> Scores:
    num_classes = int(max(target.max(), other_target.max())) + 1
    counts = np.bincount(target, minlength=num_classes)
    majority = int(counts.argmax())
    constant = float((other_target == majority).mean())
    accuracy = np.empty(train.shape[1])
    flags = is_flags(train) & is_flags(other)
    if flags.any():  # for bags of words one product counts all columns
        one_hot = np.zeros((len(target), num_classes), np.float32)
        one_hot[np.arange(len(target)), target] = 1
        ones = train[:, flags].T @ one_hot  # [columns, classes]
        for_one = np.where(ones.sum(axis=1) > 0, ones.argmax(axis=1), majority)
        zeros = counts - ones
        for_zero = np.where(zeros.sum(axis=1) > 0, zeros.argmax(axis=1), majority)
        is_one = other[:, flags] != 0
        right = np.where(is_one, other_target[:, None] == for_one, other_target[:, None] == for_zero)
        accuracy[flags] = right.mean(axis=0)
    for column in np.flatnonzero(~flags):
        edges = cut(train[:, column])
        place = np.searchsorted(edges, train[:, column], side="right")
        table = np.bincount(place * num_classes + target, minlength=(len(edges) + 1) * num_classes).reshape(
            -1, num_classes
        )
        guess = np.where(table.sum(axis=1) > 0, table.argmax(axis=1), majority)
        accuracy[column] = (guess[np.searchsorted(edges, other[:, column], side="right")] == other_target).mean()
    gain = (accuracy - constant) / max(1 - constant, 1e-9)
    if num_classes == 2 and 0 < other_target.sum() < len(other_target):
        gini = _gini(train, target, other, other_target)
        gain = np.where(gini >= _TELLING_GINI, np.maximum(gain, gini), gain)
    return Scores(gain, accuracy, constant)


def _gini(train: np.ndarray, target: np.ndarray, other: np.ndarray, other_target: np.ndarray) -> np.ndarray:
    """2 · ROC-AUC - 1 of each column, whose bins are ranked by their share of ones. Of a rare class, accuracy says little."""
    positive, flags = other_target == 1, is_flags(train) & is_flags(other)
    gini = np.empty(train.shape[1])
    ones_of, ones_of_other = train[:, flags], other[:, flags]
    rises = np.ones(ones_of.shape[1], bool)
    if 0 < target.sum() < len(target):
        rises = ones_of[target == 1].mean(axis=0) >= ones_of[target == 0].mean(axis=0)
    gini[flags] = np.where(rises, 1, -1) * (
        ones_of_other[positive].mean(axis=0) - ones_of_other[~positive].mean(axis=0)
    )
    for column in np.flatnonzero(~flags):
        edges = cut(train[:, column])
        place = np.searchsorted(edges, train[:, column], side="right")
        count = np.bincount(place, minlength=len(edges) + 1)
        share = (np.bincount(place, weights=target, minlength=len(edges) + 1) + target.mean()) / (count + 1)
        score = share[np.searchsorted(edges, other[:, column], side="right")]
        levels, rank = np.unique(score, return_inverse=True)
        ones, zeros = (np.bincount(rank[which], minlength=len(levels)) for which in (positive, ~positive))
        below = np.cumsum(zeros) - zeros
        gini[column] = 2 * (ones * (below + zeros / 2)).sum() / (ones.sum() * zeros.sum()) - 1
    return gini


def _of_numbers(train: np.ndarray, target: np.ndarray, other: np.ndarray, other_target: np.ndarray) -> np.ndarray:
    mean, around = target.mean(), ((other_target - other_target.mean()) ** 2).sum()
    r2 = np.empty(train.shape[1])
    for column in range(train.shape[1]):
        edges = cut(train[:, column])
        place = np.searchsorted(edges, train[:, column], side="right")
        count = np.bincount(place, minlength=len(edges) + 1)
        total = np.bincount(place, weights=target, minlength=len(edges) + 1)
        guess = np.where(count > 0, total / np.maximum(count, 1), mean)
        error = ((guess[np.searchsorted(edges, other[:, column], side="right")] - other_target) ** 2).sum()
        r2[column] = 1 - error / around
    return r2


def is_flags(rows: np.ndarray) -> np.ndarray:
    """bool [f]: whether a column has no other values than 0 and 1."""
    return ((rows == 0) | (rows == 1)).all(axis=0)


def cut(values: np.ndarray) -> np.ndarray:
    """The bounds of the bins of a column, ascending: halfway between distinct values, or quantiles of the finite values. The last bin is that of NaN."""
    distinct = np.unique(values[~np.isnan(values)])
    if len(distinct) <= _BINS:
        with np.errstate(invalid="ignore"):
            middle = (distinct[:-1] + distinct[1:]) / 2
        bounds = np.where(np.isfinite(middle), middle, distinct[1:])
    else:
        bounds = np.unique(np.quantile(values[np.isfinite(values)], np.arange(1, _BINS) / _BINS))
    return np.append(bounds, np.array(np.nan, bounds.dtype))


def tells_order(rows: np.ndarray) -> np.ndarray:
    """bool [f]: whether a column's values ascend or descend strictly with the row, or are a linear function of the row (|correlation| above 0.9999). `rows`:
    float [k, f], in the order of the data. Rows without a finite number are left out."""
    found = np.zeros(rows.shape[1], bool)
    place = np.arange(len(rows), dtype=np.float64)
    is_finite = np.isfinite(rows)
    is_whole = is_finite.all(axis=0)
    several = np.flatnonzero(is_whole & ~is_flags(rows))
    found[several] = _are_ordered(rows[:, several], place)
    for column in np.flatnonzero(~is_whole).tolist():
        known = is_finite[:, column]
        if 2 * known.sum() >= len(rows):
            found[column] = _are_ordered(rows[known, column, None], place[known])[0]
    return found


def _are_ordered(rows: np.ndarray, place: np.ndarray) -> np.ndarray:
    numbers, place = rows.astype(np.float64), place - place.mean()
    steps = np.diff(numbers, axis=0)
    numbers -= numbers.mean(axis=0)
    size = np.sqrt((numbers**2).sum(axis=0) * (place**2).sum())
    is_line = abs(place @ numbers) > 0.9999 * size
    return np.asarray((steps > 0).all(axis=0) | (steps < 0).all(axis=0) | (is_line & (size > 0)))


def are_keys(rows: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(bool [f]: whether a column's values are whole numbers and all distinct; bool [f]: whether they also lie so close together that they number the rows, as ids
    do). `num_rows`: of the whole table. Rows without a finite number are left out."""
    distinct, numbering = np.zeros((2, rows.shape[1]), bool)
    is_finite = np.isfinite(rows)
    with np.errstate(invalid="ignore"):
        is_whole = (~is_finite | (rows % 1 == 0)).all(axis=0) & (2 * is_finite.sum(axis=0) >= len(rows))
    for column in np.flatnonzero(is_whole & ~is_flags(rows)).tolist():
        own = np.sort(rows[is_finite[:, column], column].astype(np.float64))
        distinct[column] = np.all(own[1:] != own[:-1])
        width = own[-1] - own[0] + 1
        # In so narrow a range that many numbers at random are all distinct once in a thousand.
        numbering[column] = distinct[column] and width <= 2 * num_rows and len(own) ** 2 >= _BY_CHANCE * width
    return distinct, numbering


def are_years(rows: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """bool [f]: whether columns of whole numbers ascend or descend from split to split, with several numbers in training, as years do of a split by time.
    `codes` [k]: ascending in time."""
    found = np.zeros(rows.shape[1], bool)
    with np.errstate(invalid="ignore"):
        whole = np.flatnonzero((rows % 1 == 0).all(axis=0))
    parts = [rows[:, whole][codes == code] for code in np.unique(codes)]
    if len(parts) < 2 or not len(whole):
        return found
    pairs = list(pairwise(parts))
    ascend = np.all([one.max(axis=0) <= other.min(axis=0) for one, other in pairs], axis=0)
    descend = np.all([one.min(axis=0) >= other.max(axis=0) for one, other in pairs], axis=0)
    several = np.array([len(np.unique(column)) >= _SEVERAL for column in parts[0].T])
    found[whole] = (ascend | descend) & several
    return found
