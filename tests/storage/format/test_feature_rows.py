"""Compares stored rows of features, in each layout and type, with plain Python in float64. Tests the error bound of int8, and the smallest lossless layout."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError
from graphmill.storage.format.feature_rows import FeatureRows, RowMeasure, smallest_rows
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph

DIM = 9


def measured(numbers: np.ndarray, dtype: str = "float32") -> FeatureRows:
    measure = RowMeasure()
    for half in np.array_split(numbers, 2):
        measure.add(half)
    return smallest_rows(numbers.shape[1], dtype, measure.most_nonzero, only_zero_or_one=measure.only_zero_or_one)


def matrices(values: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    rows = st.lists(st.lists(values, min_size=DIM, max_size=DIM), min_size=1, max_size=8)
    return rows.map(lambda listed: np.array(listed, np.float32))


sparse = st.one_of(st.just(0.0), st.just(0.0), st.just(-0.0), st.floats(width=32), st.just(1.0))


@given(matrices(sparse), st.sampled_from(["float32", "float16"]))
def test_what_is_stored_is_read_to_the_bit(numbers, dtype):
    with np.errstate(over="ignore"):
        typed = numbers.astype(dtype)
    every = [measured(typed, dtype), FeatureRows(DIM, dtype), FeatureRows(DIM, dtype, "entries", DIM)]
    for rows in every:
        stored = rows.encode(typed.astype(np.float32))
        assert stored.shape == (len(numbers), rows.stored_width)
        assert stored.dtype == rows.stored_dtype
        assert stored.nbytes == len(numbers) * rows.row_bytes
        found = rows.decode(stored)
        assert found.dtype == np.float32
        for got, want in zip(found.flat, typed.flat, strict=True):
            assert (math.isnan(got) and math.isnan(want)) or np.float32(got).tobytes() == np.float32(want).tobytes()


@given(matrices(st.sampled_from([0.0, 1.0])), st.sampled_from(["float32", "float16", "int8"]))
def test_zeros_and_ones_are_exact_whatever_the_type(numbers, dtype):
    most = max(1, int(numbers.sum(axis=1).max()))
    every = [measured(numbers, dtype), FeatureRows(DIM, dtype, "bits"), FeatureRows(DIM, dtype, "indices", most)]
    for rows in (*every, FeatureRows(DIM, dtype)):
        assert rows.decode(rows.encode(numbers)).tolist() == numbers.tolist()
    assert every[0].row_bytes <= 2


@given(matrices(st.floats(-(2.0**100), 2.0**100, width=32)))
def test_int8_is_within_its_bound(numbers):
    rows = FeatureRows(DIM, "int8")
    assert rows.row_bytes == DIM + 4
    found = rows.decode(rows.encode(numbers)).astype(np.float64)
    for got, want in zip(found, numbers.astype(np.float64), strict=True):
        largest = np.abs(want).max()
        # allows for the rounding of float32, in which the scale may be subnormal
        rounding = 127.5 * (2.0**-149 + 2.0**-23 * largest / 127)
        assert np.abs(got - want).max() <= largest / 254 + rounding


def test_int8_of_one_row_by_hand():
    rows = FeatureRows(4, "int8")
    stored = rows.encode(np.array([[12.7, -6.35, 0.04, -12.7]], np.float32))
    assert stored[0, :4].view(np.float32)[0] == np.float32(12.7) / np.float32(127)
    assert stored[0, 4:].view(np.int8).tolist() == [127, -63, 0, -127] or stored[0, 4:].view(np.int8).tolist() == [
        127,
        -64,
        0,
        -127,
    ]


def test_the_smallest_layout():
    wide = np.zeros((3, 1000), np.float32)
    wide[0, :20], wide[1, 999] = 1, 1
    assert measured(wide) == FeatureRows(1000, "float32", "indices", 20)  # 40 bytes; the layout `bits` would take 125
    wide[2, :100] = 1
    assert measured(wide) == FeatureRows(1000, "float32", "bits")
    wide[0, 0] = 2
    assert measured(wide) == FeatureRows(1000, "float32", "entries", 100)
    assert measured(wide, "int8") == FeatureRows(1000, "int8")
    wide[2] = 3
    assert measured(wide) == FeatureRows(1000, "float32")
    minus = np.array([[0.0, -0.0, 1.0]], np.float32)  # -0 counts as neither 0 nor 1
    assert measured(minus).layout == "dense"


def test_columns_beyond_two_bytes():
    numbers = np.zeros((2, 70_000), np.float32)
    numbers[0, [3, 69_999]], numbers[1, 66_000] = 1, 1
    rows = measured(numbers)
    assert (rows.layout, rows.slots, rows.row_bytes) == ("indices", 2, 8)
    assert np.array_equal(rows.decode(rows.encode(numbers)), numbers)


@pytest.mark.parametrize(
    ("layout", "slots"), [("dense", 1), ("bits", 2), ("indices", 0), ("indices", 10), ("entries", 0), ("csr", 0)]
)
def test_rows_that_cannot_be(layout, slots):
    with pytest.raises(ConfigError):
        FeatureRows(DIM, "float32", layout, slots)
    with pytest.raises(ConfigError, match="got int8"):
        FeatureRows(DIM, "int8", "entries", 2)
    with pytest.raises(ConfigError, match="expected feature rows of 13 uint8, got float32"):
        FeatureRows(DIM, "int8").decode(np.zeros((2, 13), np.float32))


FORMS = {
    "float16": (IngestOptions(feature_dtype="float16", num_partitions=2), lambda x: x, "dense"),
    "int8": (IngestOptions(feature_dtype="int8", num_partitions=2), lambda x: x, "dense"),
    "bits": (IngestOptions(num_partitions=2), lambda x: (x > 0).astype(np.float32), "bits"),
    "indices": (
        IngestOptions(num_partitions=2),
        lambda x: np.pad((x > 0.8).astype(np.float32), ((0, 0), (0, 400))),
        "indices",
    ),
    "entries": (IngestOptions(num_partitions=2), lambda x: np.pad(x, ((0, 0), (0, 50))), "entries"),
}


@pytest.mark.parametrize("form", FORMS)
def test_ingested(tmp_path, form):
    options, change, layout = FORMS[form]
    listed = random_listed_graph(60, 200, feature_dim=7)
    numbers = change(np.array(listed.feature, np.float32))
    listed.feature[:] = numbers.tolist()
    manifest = ingest(listed, str(tmp_path / "graph"), options)
    assert manifest.feature_layout == layout
    graph = open_graph(str(tmp_path / "graph"))
    graph.verify()
    for partition in graph.partitions(verify=True):
        rows = FeatureRows(numbers.shape[1], options.feature_dtype, layout, manifest.feature_slots)
        want = rows.decode(rows.encode(numbers[partition.original_id]))
        assert np.array_equal(partition.feature_numbers(), want)
        error = np.abs(want - numbers[partition.original_id]).max()
        assert error <= {"float16": 2e-3, "int8": np.abs(numbers).max() / 253}.get(form, 0)
    measured_feature = manifest.measured.feature
    assert measured_feature.maximum == max(float(p.feature_numbers().max()) for p in graph.partitions())


def test_int8_holds_finite_numbers_alone(tmp_path):
    listed = random_listed_graph(20, 40, feature_dim=3)
    listed.feature[5][1] = math.inf
    from graphmill.core.errors import DataError

    for allow in (False, True):
        with pytest.raises(DataError, match="expected finite features, which int8 holds alone"):
            ingest(listed, str(tmp_path / "g"), IngestOptions(feature_dtype="int8", allow_nonfinite=allow))
