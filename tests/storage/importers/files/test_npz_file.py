import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest
from scipy.sparse import csr_array

from graphmill.core.errors import DataError
from graphmill.storage.importers.files.npz_file import npz_graph
from graphmill.storage.importers.files.npz_members import open_npz

# name of the data set → numbers of nodes, undirected edges, features, classes, split sets
REAL = {
    "amazon_cs": (13_752, 245_861, 767, 10, 1),
    "amazon_photo": (7_650, 119_081, 745, 8, 1),
    "planetoid_cora": (2_708, 5_278, 1_433, 7, 1),
    "minesweeper": (10_000, 39_402, 7, 2, 10),
    "tolokers": (11_758, 519_000, 10, 2, 10),
}


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_files(real_data, name):
    num_nodes, num_edges, feature_dim, num_classes, num_sets = REAL[name]
    path = real_data / f"nodes/{name}.npz"
    graph = npz_graph(path)
    info = graph.info
    sizes = info.num_nodes, info.num_edges, info.feature_dim, info.num_split_sets
    assert sizes == (num_nodes, num_edges, feature_dim, num_sets)
    assert info.undirected_once
    chunks = list(graph.nodes(4000))
    label = np.concatenate([chunk.label for chunk in chunks])
    assert np.array_equal(np.unique(label), np.arange(num_classes))
    feature = np.concatenate([chunk.feature for chunk in chunks])
    assert feature.shape == (num_nodes, feature_dim)
    assert feature.dtype == np.float32
    split = np.concatenate([chunk.split for chunk in chunks])
    with np.load(path, allow_pickle=False) as arrays:
        if "train_masks" in arrays:
            for code, part in enumerate(("train", "val", "test"), start=1):
                assert np.array_equal((split == code).T, arrays[f"{part}_masks"])
            assert np.array_equal(feature, arrays["node_features"])
        else:
            for code, part in enumerate(("train", "valid", "test"), start=1):
                assert np.array_equal(np.flatnonzero(split[:, 0] == code), np.sort(arrays[f"{part}_idx"]))
            row = 17
            columns = arrays["x_indices"][arrays["x_indptr"][row] : arrays["x_indptr"][row + 1]]
            assert np.array_equal(np.flatnonzero(feature[row]), np.unique(columns))


def _arrays(**changes):
    feature = csr_array(np.eye(4, 3, dtype=np.float32))
    arrays = {
        "edges": np.array([[0, 1], [2, 3]]),
        "x_indptr": feature.indptr,
        "x_indices": feature.indices,
        "x_shape": np.array([4, 3]),
        "y": np.array([0, 1, 0, 1]),
        "train_idx": np.array([0]),
        "valid_idx": np.array([1]),
        "test_idx": np.array([2, 3]),
    }
    return {name: value for name, value in {**arrays, **changes}.items() if value is not None}


def _write(tmp_path, **changes):
    path = tmp_path / "tiny.npz"
    np.savez(path, **_arrays(**changes))
    return path


@pytest.mark.parametrize("shape", [[4, 3], [3, 4]])
def test_sparse_features_with_the_shape_either_way_round(tmp_path, shape):
    chunk = next(npz_graph(_write(tmp_path, x_shape=np.array(shape))).nodes(10))
    assert np.array_equal(chunk.feature, np.eye(4, 3))


def test_edge_index_is_taken_as_it_is(tmp_path):
    graph = npz_graph(_write(tmp_path, edges=None, edge_index=np.array([[0, 1, 2], [1, 0, 3]])))
    assert not graph.info.undirected_once
    assert graph.src.tolist() == [0, 1, 2]
    assert graph.dst.tolist() == [1, 0, 3]


def test_members_that_nothing_reads_are_named(tmp_path):
    with pytest.warns(UserWarning, match="npz:tiny: not read: edge_index, year"):
        npz_graph(_write(tmp_path, year=np.arange(4), edge_index=np.array([[0], [1]])))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"edges": None}, "'edges' or 'edge_index'"),
        ({"edges": np.full((2, 2), 0.5)}, "edge_index: expected rows of nodes as whole numbers, got 0.5"),
        ({"y": np.zeros(3, int)}, "labels must have one row per node: 4 nodes, got 3"),
        ({"x_shape": np.array([5, 3])}, "features and nodes disagree"),
        ({"x_indices": np.array([0, 1, 3])}, "x_indices must be 0 to 2"),
        ({"x_indptr": np.array([0, 2, 1, 3, 3])}, "x_indptr must ascend"),
        ({"x_shape": None}, "x_shape"),
        ({"test_idx": np.array([1, 3])}, "splits overlap: 1 rows are in valid and in test, the first is row 1"),
        ({"test_idx": np.array([4])}, "test split rows must be 0 to 3, got 4"),
        ({"test_idx": np.array([3, 3])}, "names a row twice"),
        ({"test_idx": None}, "found 2 of the three"),
        ({"y": np.array([{}, 1, 2, 3], dtype=object)}, "y: expected a plain array, got: Python objects"),
        (
            {"x_shape": np.array([4, 2**40])},
            "at most 64 GiB of dense features, .* got 4 x 1099511627776, 16,384 GiB; keep",
        ),
        ({"x_shape": np.array([4, 2**27])}, "at most 4,096 times .* got 4 x 134217728, 2.0 GiB of 3 values; keep"),
        ({"x_shape": np.array([4, -3])}, r"x_shape: expected sizes from 0, got \[4, -3\]"),
        ({"y": np.array([0, 1, -100, 1])}, "-1 .none. or classes from 0, got -100, 1 such of 4; write -1"),
        ({"y": np.array([0, 1, 2**63, 1], np.uint64)}, "got 9223372036854775808"),
    ],
)
def test_bad_files_are_one_line(tmp_path, changes, match):
    with pytest.raises(DataError, match=match) as caught:
        npz_graph(_write(tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_sparse_features_that_would_fill_the_memory(tmp_path):
    """One file has a few kilobytes and claims 3.8 TiB of rows. In another, a few values in many rows would take 40 GiB."""
    path = tmp_path / "wide.npz"
    for rows, width in ((1_000_000, 1 << 20), (100_000, 100_000)):
        np.savez_compressed(
            path,
            edges=np.zeros((1, 2), np.int64),
            x_indptr=np.r_[np.zeros(rows, np.int64), 1],
            x_indices=np.array([5]),
            x_shape=np.array([rows, width]),
        )
        assert path.stat().st_size < 20_000
        with pytest.raises(DataError, match=f"x_shape: expected at most .* got {rows} x {width}") as caught:
            npz_graph(path)
        assert "\n" not in str(caught.value)


def test_wide_sparse_features_with_values_are_taken(tmp_path):
    """10,000 texts, each with ten of 30,000 words: 100,000 values, which take 1.1 GiB when they are stored."""
    random = np.random.default_rng(0)
    path = tmp_path / "words.npz"
    np.savez(
        path,
        edges=np.zeros((1, 2), np.int64),
        x_indptr=np.arange(10_001) * 10,
        x_indices=random.integers(0, 30_000, 100_000),
        x_shape=np.array([10_000, 30_000]),
    )
    assert next(npz_graph(path).nodes(2)).feature.shape == (2, 30_000)


def test_files_that_are_no_archive(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        npz_graph(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match=r"expected an \.npz archive"):
        npz_graph(tmp_path / "text.npz")
    whole = _write(tmp_path).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"expected an \.npz archive"):
        npz_graph(tmp_path / "half.npz")


def _member(shape, content: bytes, name: str = "y", version: bytes = b"\x01\x00") -> tuple[str, bytes]:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(11 + len(header)) % 64) + "\n"
    return f"{name}.npy", b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode() + content


@contextmanager
def memory_below(most):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
@pytest.mark.parametrize(
    "shape", ["(1099511627776,)", "(5,)", "(-1,)", "(1099511627776, 0)", "(18446744073709551616, 2)", "(2.5,)", "3"]
)
def test_a_size_that_cannot_be_is_refused_before_it_is_allocated(tmp_path, shape, compression):
    with zipfile.ZipFile(tmp_path / "bad.npz", "w", compression) as archive:
        archive.writestr(*_member("(2, 3)", np.zeros(6, np.int64).tobytes(), "edge_index"))
        archive.writestr(*_member(shape, np.zeros(4, np.int64).tobytes()))
    with memory_below(1 << 20), pytest.raises(DataError, match="expected a plain array") as caught:
        npz_graph(tmp_path / "bad.npz")
    assert "\n" not in str(caught.value)


def test_a_forged_length_in_the_archive_is_refused(tmp_path):
    """The archive's directory and the member's header claim 4 GB, but the member has a few bytes."""
    path = tmp_path / "bad.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(*_member("(2, 3)", np.zeros(6, np.int64).tobytes(), "edge_index"))
        name, content = _member("(500000000,)", b"")
        archive.writestr(name, content)
    whole = path.read_bytes()
    length = len(content).to_bytes(4, "little")
    at = whole.rindex(b"PK\x01\x02")
    forged = whole[:at] + whole[at:].replace(length, (4_000_000_000 + len(content)).to_bytes(4, "little"), 1)
    assert forged != whole
    path.write_bytes(forged)
    with memory_below(1 << 20), pytest.raises(DataError, match="y: expected a plain array, got: 4000000128 bytes from"):
        npz_graph(path)


def test_members_that_nobody_asked_for_are_not_read(tmp_path):
    """The archive has three unused members: one of 200 MB, one that is not an array, and one with Python objects."""
    np.savez_compressed(tmp_path / "some.npz", **_arrays(), much=np.zeros(25_000_000), objects=np.array([{}], object))
    with zipfile.ZipFile(tmp_path / "some.npz", "a") as archive:
        archive.writestr("nothing.npy", b"no array")
        archive.writestr("readme.txt", b"text")
    with memory_below(4 << 20):
        assert npz_graph(tmp_path / "some.npz").num_nodes == 4


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_every_layout_that_numpy_writes(tmp_path, save):
    random = np.random.default_rng(0)
    arrays = {
        "columns": np.asfortranarray(random.normal(size=(5, 3))),
        "big": random.integers(0, 9, (3, 4)).astype(">i4"),
        "none": np.zeros((0, 3)),
        "one": np.array(7),
        "mask": random.random(9) < 0.5,
        "text": np.array(["a", "bc"]),
        "long": random.integers(0, 2**60, 3_000_000),
    }
    save(tmp_path / "some.npz", **arrays)
    with open_npz(tmp_path / "some.npz") as members:
        for name, values in arrays.items():
            np.testing.assert_array_equal(members[name], values)
            assert members[name].dtype == values.dtype


def test_a_changed_byte_is_seen(tmp_path):
    path = _write(tmp_path)
    whole = bytearray(path.read_bytes())
    at = whole.index(np.array([0, 1, 0, 1]).tobytes())
    whole[at] = 1
    path.write_bytes(whole)
    with pytest.raises(DataError, match="y: expected a plain array, got: Bad CRC-32"):
        npz_graph(path)
