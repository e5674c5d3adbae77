"""Tests what the checks of columns conclude: which whole numbers are ids, which columns tell the split because it is by time, and that NaN hides nothing."""

from dataclasses import replace

import numpy as np
import pytest

from graphmill.jobs.leaks import column_checks
from graphmill.jobs.leaks.checks import Outcome
from graphmill.jobs.leaks.column_checks import Table, check_columns
from graphmill.jobs.leaks.column_scores import are_keys, cut, score_columns, tells_order
from graphmill.jobs.leaks.statistics_checks import of_all_rows
from graphmill.storage.format.statistics import ColumnStatistics

ROWS = 1000
RNG = np.random.default_rng(7)
LABEL = RNG.integers(0, 4, ROWS)
CODE = RNG.permutation(np.repeat([1, 2, 3], [500, 250, 250])).astype(np.int8)
SORTED = np.sort(CODE)
NOISE = RNG.normal(size=(ROWS, 3)).astype(np.float32)
INCOME = RNG.choice(10**6, ROWS, replace=False)
YEAR = np.where(SORTED == 1, RNG.integers(1990, 2018, ROWS), 2016 + SORTED.astype(int))


def table(*columns: np.ndarray, code: np.ndarray = CODE) -> Table:
    features = np.column_stack([NOISE, *columns]).astype(np.float32)
    names = [str(k) for k in range(features.shape[1])]
    return Table(
        code,
        LABEL,
        names,
        lambda rows, block: features[rows][:, block],
        lambda chosen, most: np.flatnonzero(chosen)[:most],
        *("nodes", "", (1000, 500), ROWS),
    )


def ids(own: Table) -> Outcome:
    return check_columns(own)[1]


@pytest.mark.parametrize(
    ("column", "severity"),
    [
        (RNG.permutation(ROWS) + 10_000, "leak"),
        (RNG.choice(2 * ROWS, ROWS, replace=False), "leak"),
        (np.arange(ROWS) * 1e5, "leak"),
        (INCOME, "warning"),
        (RNG.choice(2**30, ROWS, replace=False) + 2**24, "warning"),  # as float32 every number here is whole
        (RNG.integers(0, 50, ROWS), None),
        (RNG.random(ROWS), None),
    ],
)
def test_whole_numbers_are_ids_if_they_number_the_rows(column: np.ndarray, severity: str | None) -> None:
    assert ids(table(column)).severity == severity


def test_a_few_distinct_numbers_of_a_sample_do_not_number_the_rows() -> None:
    column = RNG.choice(10**6, 60, replace=False)[:, None].astype(np.float32)
    assert [each.tolist() for each in are_keys(column, 10**6)] == [[True], [False]]


def test_counts_of_graphs_are_no_ids() -> None:
    own = table()
    features = np.column_stack([np.arange(ROWS), 1000 + np.arange(ROWS)[::-1], NOISE]).astype(np.float32)
    own = replace(own, names=list("abcde"), features=lambda rows, block: features[rows][:, block])
    assert ids(own).severity == "leak"
    assert ids(replace(own, num_counts=2)).severity is None


def test_a_column_of_times_tells_the_split_by_its_nature() -> None:
    assert ids(table(YEAR, code=SORTED)).severity == "warning"
    assert ids(table(SORTED, code=SORTED)).severity == "leak"
    planted = np.where(CODE == 1, 0.3, 0.7) + 0.01 * RNG.random(ROWS)
    assert ids(table(planted)).severity == "leak"
    assert ids(replace(table(planted), is_timed=True)).severity == "warning"


@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_hides_no_column(hole: float) -> None:
    telling = LABEL + 0.4 * RNG.random(ROWS)
    row, key = np.arange(ROWS) / 7, RNG.permutation(ROWS).astype(float)
    for column in (telling, row, key):
        column[3] = hole
    labels, own = check_columns(table(telling, row, key))
    assert [(finding.severity, finding.examples[0][:2]) for finding in labels.findings] == [("leak", "3:")]
    assert [(finding.severity, finding.examples) for finding in own.findings] == [("leak", ("4",)), ("leak", ("5",))]
    assert tells_order(row[:, None].astype(np.float32)).all()


def test_nan_has_a_bin_of_its_own() -> None:
    values = RNG.random(ROWS).astype(np.float32)
    values[::2] = np.nan
    for own in (values, np.round(values, 1)):
        edges = cut(own)
        place = np.searchsorted(edges, own, side="right")
        assert set(place[::2]) == {len(edges)}
        assert place[1::2].max() < len(edges)
    is_rare = (np.arange(ROWS) % 50 == 0).astype(np.int64)
    missing = np.where(is_rare == 1, np.nan, RNG.random(ROWS))[:, None].astype(np.float32)
    assert score_columns(missing, is_rare, missing, is_rare).gain[0] == pytest.approx(1)
    numbers = is_rare[:, None].astype(np.float64)
    assert score_columns(missing, numbers, missing, numbers).gain[0] == pytest.approx(1)


def test_one_nan_does_not_hide_columns_that_were_standardised_with_all_rows() -> None:
    rows = (NOISE - NOISE.mean(axis=0)) / NOISE.std(axis=0)
    train = rows[CODE == 1]
    training = [
        ColumnStatistics(nonzero=1.0, mean=float(own.mean()), deviation=float(own.std()) + 0.1) for own in train.T
    ]
    assert of_all_rows([rows], training, "abc", ROWS, 500)
    rows[np.flatnonzero(CODE == 3)[0]] = np.nan
    rows = (rows - np.nanmean(rows, axis=0)) / np.nanstd(rows, axis=0)
    assert of_all_rows([rows], training, "abc", ROWS, 500)


def test_blocks_of_columns_change_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    own = table(YEAR, INCOME, np.arange(ROWS), LABEL, CODE)
    whole, widths = check_columns(own), []

    def told(rows: np.ndarray, block: slice) -> np.ndarray:
        widths.append(block.stop - block.start)
        return own.features(rows, block)

    monkeypatch.setattr(column_checks, "_MOST_VALUES", 2 * ROWS)
    assert check_columns(replace(own, features=told)) == whole
    assert max(widths) == 2
