import numpy as np
import pytest
from scipy.sparse import csr_array

from storage.errors import DataError
from storage.importers.npz_file import npz_graph

# name → nodes, undirected edges, features, classes, split sets
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
    assert (info.num_nodes, info.num_edges, info.feature_dim, info.num_split_sets) == (
        num_nodes,
        num_edges,
        feature_dim,
        num_sets,
    )
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


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"edges": None}, "'edges' or 'edge_index'"),
        ({"edges": np.zeros((2, 2))}, "integers"),
        ({"y": np.zeros(3, int)}, "labels must have one row per node: 4 nodes, got 3"),
        ({"x_shape": np.array([5, 3])}, "features and nodes disagree"),
        ({"x_indices": np.array([0, 1, 3])}, "x_indices must be 0 to 2"),
        ({"x_indptr": np.array([0, 2, 1, 3, 3])}, "x_indptr must ascend"),
        ({"x_shape": None}, "x_shape"),
        ({"test_idx": np.array([1, 3])}, "splits overlap: 1 rows are in valid and in test, the first is row 1"),
        ({"test_idx": np.array([4])}, "test split rows must be 0 to 3, got 4"),
        ({"test_idx": np.array([3, 3])}, "names a row twice"),
        ({"test_idx": None}, "found 2 of the three"),
        ({"y": np.array([{}, 1, 2, 3], dtype=object)}, "plain arrays"),
    ],
)
def test_bad_files_are_one_line(tmp_path, changes, match):
    with pytest.raises(DataError, match=match) as caught:
        npz_graph(_write(tmp_path, **changes))
    assert "\n" not in str(caught.value)


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
