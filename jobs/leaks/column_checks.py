"""Looks for a feature that alone tells the label, the split, the id or the row's number. Both nodes of a graph and graphs of a set are rows of a table here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphmill.jobs.leaks.checks import MOST_EXAMPLES, Finding, Outcome, skipped
from graphmill.jobs.leaks.column_scores import are_keys, score_columns, tells_order
from graphmill.jobs.leaks.node_rows import is_known
from graphmill.storage.format.source import SPLIT_NONE, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

_TELLS, _TELLS_MOST = 0.95, 0.8  # gains from which a column is a leak, or a warning
_LEAST_ROWS = 50  # fewer rows show nothing


@dataclass(frozen=True)
class Table:
    """The rows whose columns are checked."""

    code: np.ndarray  # int8 [n], split codes
    target: np.ndarray | None  # int64 [n] classes (-1: none), float or int8 [n, L] numbers or answers
    names: Sequence[str]  # of the columns
    features: Callable[[np.ndarray], np.ndarray]  # rows (int64 [k]) -> float32 [k, f]
    sample: Callable[[np.ndarray, int], np.ndarray]  # (chosen rows bool [n], most) -> rows int64 [k]
    unit: str  # "nodes"
    part: str
    most: tuple[int, int]  # rows to learn on, rows to check on


def check_columns(table: Table) -> tuple[Outcome, Outcome]:
    """The outcomes of the checks "labels" and "ids"."""
    if not len(table.names):
        why = f"{table.unit} have no features"
        return skipped("labels", table.part, why), skipped("ids", table.part, why)
    return _labels(table), _ids(table)


def _labels(table: Table) -> Outcome:
    if table.target is None:
        return skipped("labels", table.part, f"{table.unit} have no labels")
    known = is_known(table.target)
    train = table.sample(known & (table.code == SPLIT_TRAIN), table.most[0])
    scored = SPLIT_VALID if np.any(known & (table.code == SPLIT_VALID)) else SPLIT_TEST
    other = table.sample(known & (table.code == scored), table.most[1])
    if min(len(train), len(other)) < _LEAST_ROWS:
        why = f"{len(train):,} training and {len(other):,} other labelled {table.unit}, fewer than {_LEAST_ROWS}"
        return skipped("labels", table.part, why)
    target, other_target = _targets(table.target, train), _targets(table.target, other)
    scores = score_columns(table.features(train), target, table.features(other), other_target)
    order = np.argsort(-scores.gain, kind="stable")
    best, kind = int(order[0]), "accuracy" if target.ndim == 1 else "R²"
    against = f", a constant {scores.constant:.3f}" if target.ndim == 1 else ""
    looked = (
        f"{len(table.names):,} columns, learnt on {len(train):,} training {table.unit}, checked on {len(other):,}; the best alone has {kind} "
        f"{scores.accuracy[best]:.3f} ({table.names[best]}{against})"
    )
    findings = []
    for severity, low, high in (("leak", _TELLS, np.inf), ("warning", _TELLS_MOST, _TELLS)):
        telling = [int(k) for k in order if low <= scores.gain[k] < high]
        if telling:
            told = tuple(f"{table.names[k]}: {kind} {scores.accuracy[k]:.3f}" for k in telling[:MOST_EXAMPLES])
            verb = "tell" if severity == "leak" else "nearly tell"
            text = f"{len(telling):,} of {len(table.names):,} columns alone {verb} the label{against}"
            findings.append(Finding(severity, text, told))  # type: ignore[arg-type]
    return Outcome("labels", table.part, looked, tuple(findings))


def _targets(target: np.ndarray, rows: np.ndarray) -> np.ndarray:
    own = target[rows]
    if own.ndim == 1 and own.dtype.kind == "i":
        return own.astype(np.int64)
    numbers = own.astype(np.float64).reshape(len(own), -1)
    return np.where(numbers < 0, np.nan, numbers) if target.dtype == np.int8 else numbers


def _ids(table: Table) -> Outcome:
    rows = table.sample(np.ones(len(table.code), bool), table.most[0])
    if len(rows) < _LEAST_ROWS:
        return skipped("ids", table.part, f"{len(rows):,} {table.unit}, fewer than {_LEAST_ROWS}")
    features = table.features(rows)
    looked = f"{len(table.names):,} columns on {len(rows):,} {table.unit}"
    is_order = tells_order(features)
    numbers = np.flatnonzero(is_order).tolist()
    keys = np.flatnonzero(are_keys(features) & ~is_order).tolist()
    findings = []
    for which, what in (
        (numbers, "ascend or descend with the row's number"),
        (keys, "are whole numbers, different for every row, as ids are"),
    ):
        if which:
            named = tuple(table.names[k] for k in which[:MOST_EXAMPLES])
            findings.append(Finding("leak", f"{len(which):,} columns {what}", named))
    code = table.code[rows]
    inside = code != SPLIT_NONE
    is_train = (code[inside] == SPLIT_TRAIN).astype(np.int64)
    if min(is_train.sum(), len(is_train) - is_train.sum()) >= _LEAST_ROWS:
        half = np.arange(len(is_train)) % 2 == 0  # learnt on every other row, checked on the rest
        own = features[inside]
        scores = score_columns(own[half], is_train[half], own[~half], is_train[~half])
        telling = [int(k) for k in np.argsort(-scores.gain, kind="stable") if scores.gain[k] >= _TELLS]
        telling = [k for k in telling if k not in numbers]
        if telling:
            told = tuple(f"{table.names[k]}: accuracy {scores.accuracy[k]:.3f}" for k in telling[:MOST_EXAMPLES])
            text = f"{len(telling):,} columns tell whether a row trains, a constant {scores.constant:.3f}"
            findings.append(Finding("leak", text, told))
    return Outcome("ids", table.part, looked, tuple(findings))
