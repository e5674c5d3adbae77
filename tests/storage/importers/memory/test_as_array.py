"""Columns from every library give the same graph. Columns that cannot be converted are refused with a one-line error."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from graphmill.core.errors import DataError
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.memory.as_array import as_array
from graphmill.storage.ingestion.ingest import IngestOptions, ingest


def _polars(values: np.ndarray) -> Any:
    polars = pytest.importorskip("polars")
    return polars.Series(values) if values.ndim == 1 else polars.DataFrame(values)


def _like_polars(values: np.ndarray) -> Any:
    """An object like polars' objects: it can be converted to Arrow, and has no `__array__`."""
    return types.SimpleNamespace(to_arrow=lambda: LIBRARIES["arrow"](values))


LIBRARIES: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": np.asarray,
    "lists": lambda values: values.tolist(),
    "tuples": lambda values: tuple(map(tuple, values.tolist())) if values.ndim == 2 else tuple(values.tolist()),
    "objects": lambda values: values.astype(object),
    "masked": np.ma.array,
    "torch": torch.from_numpy,
    "torch with a gradient": lambda values: torch.tensor(values, requires_grad=values.dtype.kind == "f"),
    "rows of torch": lambda values: list(torch.from_numpy(values)),
    "pandas": lambda values: pd.Series(values) if values.ndim == 1 else pd.DataFrame(values),
    "nullable pandas": lambda values: (
        pd.Series(values) if values.ndim == 1 else pd.DataFrame(values)
    ).convert_dtypes(),
    "rows of pandas": lambda values: pd.Series(list(values)),
    "arrow": lambda values: (
        pa.array(values) if values.ndim == 1 else pa.table({str(i): column for i, column in enumerate(values.T)})
    ),
    "lists of arrow": lambda values: pa.array(values.tolist()),
    "chunks of arrow": lambda values: pa.chunked_array([pa.array(values[:2].tolist()), pa.array(values[2:].tolist())]),
    "polars": _polars,
    "like polars": _like_polars,
}
COLUMNS = {
    "src": np.array([0, 1, 3, 2]),
    "dst": np.array([1, 2, 0, 2]),
    "edge_weight": np.array([0.5, 2.0, 1.0, 3.0]),
    "edge_feature": np.array([[0.5, 1.0], [1.5, 2.0], [2.5, 3.0], [0.0, 0.25]]),
    "edge_time": np.array([5, 7, 9, 5]),
    "node_time": np.array([1, 2, 3, 4]),
    "feature": np.array([[0.5, 1.0, 2.0], [1.5, 2.0, 0.0], [2.5, 3.0, 1.0], [0.25, 0.0, 1.0]]),
    "label": np.array([0, 2, 1, 0]),
    "split": np.array([[1, 2], [2, 1], [3, 3], [0, 1]]),
}


def _chunks(graph: ArrayGraph) -> dict[str, Any]:
    (edges,), (nodes,) = graph.edges(10), graph.nodes(10)
    return {**vars(edges), **vars(nodes)}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_graph_of_any_library_is_the_same(library):
    expected = _chunks(ArrayGraph("a", 4, **COLUMNS))
    given = {name: LIBRARIES[library](values) for name, values in COLUMNS.items()}
    graph = ArrayGraph("a", 4, **given)
    for name, values in _chunks(graph).items():
        np.testing.assert_array_equal(values, expected[name], strict=True, err_msg=name)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float64])
def test_floats_of_torch_of_any_length(kind, tmp_path):
    values = torch.tensor([[0.5, 2.0], [1.0, 4.0]])
    ingest(ArrayGraph("a", 2, [0], [1], feature=values.to(kind)), str(tmp_path / "g"))
    stored = open_graph(str(tmp_path / "g")).partition(0)
    np.testing.assert_array_equal(stored.feature_numbers(), values.numpy())


def test_columns_of_one_number_each():
    """A column may be a vector, or a matrix with one column."""
    flat = ArrayGraph("a", 2, [0, 1], [1, 0], edge_weight=[1, 2], edge_feature=[3, 4], label=[0, 1])
    column = ArrayGraph("a", 2, [0, 1], [1, 0], edge_weight=[[1], [2]], edge_feature=[[3], [4]], label=[[0], [1]])
    for name, values in _chunks(flat).items():
        np.testing.assert_array_equal(values, _chunks(column)[name], err_msg=name)
    assert flat.info.edge_feature_dim == 1
    with pytest.raises(DataError, match=r"edge weights must have one number of each edge, got shape \(2, 2\)"):
        ArrayGraph("a", 2, [0, 1], [1, 0], edge_weight=np.ones((2, 2)))


MISSING = {
    "list": [1, None, 0],
    "floats": np.array([1, np.nan, 0]),
    "masked": np.ma.array([1, 5, 0], mask=[0, 1, 0]),
    "pandas": pd.Series([1, None, 0]),
    "nullable pandas": pd.Series([1, None, 0], dtype="Int64"),
    "booleans of pandas": pd.Series([True, None, False], dtype="boolean"),
    "pandas of arrow": pd.Series([1, None, 0], dtype="int64[pyarrow]"),
    "arrow": pa.array([1, None, 0]),
    "booleans of arrow": pa.chunked_array([[True, None], [False]]),
    "decimals of arrow": pa.array([1, None, 0]).cast(pa.decimal128(30, 2)),
    "categories": pd.Series([1, None, 0]).astype("category"),
}


@pytest.mark.parametrize("given", MISSING.values(), ids=MISSING)
def test_what_is_missing(given, tmp_path):
    """A missing label is an unknown label. A missing id, number or split of a node is refused."""
    assert ArrayGraph("a", 3, [0], [1], label=given).label.tolist() == [1, -1, 0]
    with pytest.raises(DataError, match="src: expected rows of nodes as whole numbers, got nan, 1 such of float64"):
        ArrayGraph("a", 3, given, given)
    with pytest.raises(DataError, match="train split: expected rows"):
        ArrayGraph("a", 3, [0], [1], split={"train": given})
    feature = pd.DataFrame({"x": given}) if isinstance(given, pd.Series) else as_array(given, "x")[:, None]
    with pytest.raises(DataError, match="finite"):
        ingest(ArrayGraph("a", 3, [0], [1], feature=feature), str(tmp_path / "g"))


WORDS = {
    "list": lambda words: words,
    "numpy": lambda words: np.array(words, object),
    "pandas": pd.Series,
    "categories": lambda words: pd.Series(words).astype("category"),
    "arrow": lambda words: pa.chunked_array([words[:1], words[1:]]),
    "dictionary of arrow": lambda words: pa.array(words).dictionary_encode(),
}


@pytest.mark.parametrize("form", WORDS.values(), ids=WORDS)
def test_text_is_classes_splits_and_ids(form, tmp_path):
    """Classes are in sorted order, or in the order of the given names. The stored graph returns the names and the ids."""
    label, split = form(["www", None, "kdd", "www"]), form(["train", None, "val", "test"])
    graph = ArrayGraph("a", 4, [0, 1], [1, 2], label=label, split=split, strings=form(["d", "c", "b", "a"]))
    assert (graph.label.tolist(), graph.info.class_names) == ([1, -1, 0, 1], ("kdd", "www"))
    assert graph.split.tolist() == [[1], [0], [2], [3]]
    manifest = ingest(graph, str(tmp_path / "g"), IngestOptions(num_partitions=1))
    assert (manifest.class_names, manifest.id_kind) == (("kdd", "www"), "string")
    (chunk,) = graph.nodes(9)
    assert chunk.string_id.to_pylist() == ["d", "c", "b", "a"]
    assert ArrayGraph("a", 4, [0], [1], label=label, class_names=("www", "kdd")).label.tolist() == [0, -1, 1, 0]
    with pytest.raises(DataError, match="labels: expected kdd, got 'www'"):
        ArrayGraph("a", 4, [0], [1], label=label, class_names=("kdd",))
    with pytest.raises(DataError, match="labels: expected numbers, got text; label_kind is number"):
        ArrayGraph("a", 4, [0], [1], label=label, label_kind="number")


def test_labels_that_are_all_missing_and_empty_columns():
    unlabelled = ArrayGraph("a", 2, [], [], label=pa.nulls(2))
    assert np.isnan(unlabelled.label).all()
    graph = ArrayGraph("a", 2, pa.array([], pa.int64()), pd.Series([], dtype="Int64"))
    assert (graph.info.num_edges, graph.src.dtype, graph.dst.dtype) == (0, np.int64, np.int64)


@pytest.mark.parametrize(
    ("column", "given", "match"),
    [
        ("src", [0.9, 1.9], "src: expected rows of nodes as whole numbers, got 0.9, 2 such of float64"),
        ("src", [0.0, np.inf], "src: expected rows .* got inf, 1 such"),
        ("src", [True, False], "src: expected rows .* got True, 2 such of bool"),
        ("src", ["a", "b"], "src: expected numbers, got <U1 of list; convert them"),
        ("src", [0, "b"], "src: expected numbers, got <U21 of list; convert them"),
        ("dst", {0: 1}, "dst: expected numbers, got dict"),
        ("dst", 3, "dst: expected numbers, got int64 of int"),
        ("feature", [[1, 2], [3]], "features: expected numbers, got list: .* inhomogeneous shape"),
        ("feature", pa.array([[1, 2], [3]]), "features: .* lists of one length are needed, got lengths 2, 1"),
        ("feature", pa.array([[1, 2], None]), "features: .* lists of one length are needed, got lengths 2, None"),
        ("feature", pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), "features: expected numbers, got object of DataFrame"),
        ("feature", torch.eye(2).to_sparse(), "features: .* a dense tensor is needed, not torch.sparse_coo"),
        ("feature", torch.ones(2, 1, dtype=torch.complex64), "features: expected numbers, got complex64 of Tensor"),
        ("feature", [[np.datetime64("2020-01-01")]] * 2, "features: expected numbers, got datetime64"),
        ("label", [[0, 1], [1]], "labels: expected numbers, got list"),
        ("label", [2**70, 1], "labels: expected numbers, got list"),
        ("split", ["train", "rest"], "splits: expected none, train, valid, test, val, validation, got 'rest'"),
        ("split", [["train"], ["test"]], "splits: expected numbers, got <U5"),
        ("strings", ["a", "a"], "ids: expected a string for each node, each once, found one that is missing, or twice"),
        ("strings", ["a", None], "ids: expected a string for each node, each once, found one that is missing"),
        ("label", ["a", "b", "c"], "labels must have one row per node: 2 nodes, got 3 rows"),
        ("split", {"train": [0], "holdout": [1]}, r"split_idx: expected some of train, .* got \['holdout', 'train'\]"),
        ("split", {"val": [0], "valid": [1]}, "split_idx: expected some of train"),
        ("split", {"train": [0.5]}, "train split: expected rows of nodes as whole numbers, got 0.5"),
        ("edge_time", ["2020", "2021"], "edge times: expected numbers or dates, got <U4"),
    ],
)  # fmt: skip
def test_what_is_refused(column, given, match):
    with pytest.raises(DataError, match=match) as caught:
        ArrayGraph("a", 2, **{"src": [0, 1], "dst": [1, 0], column: given})
    assert "\n" not in str(caught.value)


def test_whole_floats_and_dates():
    graph = ArrayGraph(
        "a", 3, pd.Series([0.0, 2.0]), [1.0, 1.0], edge_time=pd.to_datetime(["2020-01-01", "2020-01-02"])
    )
    assert (graph.src.tolist(), graph.src.dtype) == ([0, 2], np.int64)
    assert np.diff(graph.edge_time).tolist() == [86_400_000_000]


def test_split_by_rows_or_masks():
    expected = [[1], [2], [3], [0]]
    for split in (
        {"train": torch.tensor([0]), "valid": [1], "test": pd.Series([2.0])},
        {"train": [True, False, False, False], "val": np.array([1]), "test": pa.array([2])},
    ):
        assert ArrayGraph("a", 4, [0], [1], split=split).split.tolist() == expected
    assert ArrayGraph("a", 4, [0], [1], split={"train": [0]}).split.tolist() == [[1], [0], [0], [0]]


def test_mapped_files_stay_unread(tmp_path):
    np.save(tmp_path / "src.npy", np.array([0, 1]))
    mapped = np.load(tmp_path / "src.npy", mmap_mode="r")
    assert np.shares_memory(as_array(mapped, "src"), mapped)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_features_in_any_form_of_scipy(form):
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.array([[0.0, 1.5], [2.0, 0.0]])
    for kind in (f"{form}_array", f"{form}_matrix"):
        graph = ArrayGraph("a", 2, [0], [1], feature=getattr(sparse, kind)(dense))
        np.testing.assert_array_equal(_chunks(graph)["feature"], dense.astype(np.float32))
