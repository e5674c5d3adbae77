"""Looks for a feature that alone tells the label, the split, the id or the row's number. Both nodes of a graph and graphs of a set are rows of a table here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphmill.jobs.leaks.checks import MOST_EXAMPLES, Finding, Outcome, skipped
from graphmill.jobs.leaks.column_scores import Scores, are_keys, are_years, score_columns, tells_order
from graphmill.jobs.leaks.node_rows import is_known
from graphmill.storage.format.source import SPLIT_NONE, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

_TELLS, _TELLS_MOST = 0.95, 0.8  # gains from which a column is a leak, or a warning
_LEAST_ROWS = 50  # fewer rows show nothing
_MOST_VALUES = 1 << 24  # values in memory: wide rows are read and scored in blocks of columns


@dataclass(frozen=True)
class Table:
    """The rows whose columns are checked."""

    code: np.ndarray  # int8 [n], split codes
    target: np.ndarray | None  # int64 [n] classes (-1: none), float or int8 [n, L] numbers or answers
    names: Sequence[str]  # of the columns
    features: Callable[[np.ndarray, slice], np.ndarray]  # (rows (int64 [k]), columns) -> float32 [k, columns]
    sample: Callable[[np.ndarray, int], np.ndarray]  # (chosen rows bool [n], most) -> rows int64 [k]
    unit: str  # "nodes"
    part: str
    most: tuple[int, int]  # rows to learn on, rows to check on
    num_rows: int  # of the data, of which the table may have a part
    num_counts: int = 0  # the first columns are sizes, which Graphmill counts: they name no row
    is_timed: bool = False  # rows or their edges have times: a column may tell the split because the split is by time

    def blocks(self, num_rows: int) -> Iterator[slice]:
        """The columns in blocks, so narrow that `num_rows` rows of a block fit in memory."""
        width = max(1, _MOST_VALUES // max(1, num_rows))
        for start in range(0, len(self.names), width):
            yield slice(start, min(start + width, len(self.names)))


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
    blocks = table.blocks(len(train) + len(other))
    scores = Scores.joined(
        [
            score_columns(table.features(train, block), target, table.features(other, block), other_target)
            for block in blocks
        ]
    )
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
    looked = f"{len(table.names):,} columns on {len(rows):,} {table.unit}"
    code = table.code[rows]
    inside = code != SPLIT_NONE
    is_train = (code[inside] == SPLIT_TRAIN).astype(np.int64)
    half = np.arange(len(is_train)) % 2 == 0  # learnt on every other row, checked on the rest
    has_both = min(is_train.sum(), len(is_train) - is_train.sum()) >= _LEAST_ROWS
    columns, scores = _Columns([], [], [], []), []
    for block in table.blocks(len(rows)):
        features = table.features(rows, block)
        columns.order.append(tells_order(features))
        keys, numbering = are_keys(features, table.num_rows)
        columns.keys.append(keys)
        columns.numbering.append(numbering)
        if has_both:
            own = features[inside]
            columns.years.append(are_years(own, code[inside]))
            scores.append(score_columns(own[half], is_train[half], own[~half], is_train[~half]))
    is_order, is_key, is_numbering = map(np.concatenate, (columns.order, columns.keys, columns.numbering))
    for each in (is_order, is_key, is_numbering):
        each[: table.num_counts] = False
    findings = []
    for severity, which, what in (
        ("leak", is_order, "ascend or descend with the row's number"),
        ("leak", is_numbering & ~is_order, "number the rows, as ids do"),
        ("warning", is_key & ~is_numbering & ~is_order, "are whole numbers, different for every row, as ids are"),
    ):
        if which.any():
            told = tuple(table.names[k] for k in np.flatnonzero(which)[:MOST_EXAMPLES].tolist())
            findings.append(Finding(severity, f"{int(which.sum()):,} columns {what}", told))  # type: ignore[arg-type]
    if scores:
        is_time = np.concatenate(columns.years) | table.is_timed
        findings += _of_split(table, Scores.joined(scores), is_order, is_time)
    return Outcome("ids", table.part, looked, tuple(findings))


class _Columns(NamedTuple):
    """What was found of each block of columns."""

    order: list[np.ndarray]
    keys: list[np.ndarray]
    numbering: list[np.ndarray]
    years: list[np.ndarray]


def _of_split(table: Table, scores: Scores, is_order: np.ndarray, is_time: np.ndarray) -> Iterator[Finding]:
    """Findings about columns that tell whether a row trains. A split by time has such columns by its nature."""
    telling = (scores.gain >= _TELLS) & ~is_order
    telling[: table.num_counts] = False
    ranked = np.argsort(-scores.gain, kind="stable")
    for severity, which in (("leak", telling & ~is_time), ("warning", telling & is_time)):
        if which.any():
            own = ranked[which[ranked]][:MOST_EXAMPLES].tolist()
            told = tuple(f"{table.names[k]}: accuracy {scores.accuracy[k]:.3f}" for k in own)
            text = f"{int(which.sum()):,} columns tell whether a row trains, a constant {scores.constant:.3f}"
            text += ", as times do if the split is by time" if severity == "warning" else ""
            yield Finding(severity, text, told)  # type: ignore[arg-type]
