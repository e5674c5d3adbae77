"""Public sets of one graph, in their real layout. PyG's class reads the same graph from the same files."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from graphmill.core.errors import DataError
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.files.pickle_reader import array, read_pickle
from graphmill.storage.importers.public.data_sets import DATA_SETS, table
from graphmill.storage.importers.public.named_graphs import per_class_splits
from graphmill.storage.ingestion.ingest import ingest
from tests.raw_layouts import NUM_CLASSES, write_set

datasets = pytest.importorskip("torch_geometric.datasets")

NAMES = [name for name, row in DATA_SETS.items() if row.kind == "nodes"]
PYG = {
    **{
        name: ("Planetoid", title) for name, title in (("cora", "Cora"), ("citeseer", "CiteSeer"), ("pubmed", "PubMed"))
    },
    **{f"amazon-{name}": ("Amazon", name) for name in ("computers", "photo")},
    **{f"coauthor-{name}": ("Coauthor", name) for name in ("cs", "physics")},
    **{
        name: ("HeterophilousGraphDataset", name)
        for name in ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions")
    },
    "flickr": ("Flickr", None),
    "yelp": ("Yelp", None),
    "reddit": ("Reddit", None),
}


def _of_pyg(name, root):
    kind, argument = PYG[name]
    folder = root / DATA_SETS[name].folder.split("/")[0] if argument is None else root
    made = getattr(datasets, kind)(str(folder), *([] if argument is None else [argument]))
    return made[0]


@pytest.mark.parametrize("name", sorted(PYG))
@pytest.mark.filterwarnings("ignore")
def test_it_is_the_graph_of_pygs_class(tmp_path, name):
    write_set(name, tmp_path)
    ours, theirs = DATA_SETS[name].read(tmp_path), _of_pyg(name, tmp_path)
    assert ours.num_nodes == theirs.num_nodes
    assert sorted(zip(ours.src.tolist(), ours.dst.tolist(), strict=True)) == sorted(
        map(tuple, theirs.edge_index.T.tolist())
    )
    rows = next(ours.nodes(10_000))
    np.testing.assert_array_equal(rows.feature, theirs.x.numpy())
    np.testing.assert_array_equal(rows.label, theirs.y.numpy())
    if "train_mask" in theirs:
        for code, part in enumerate(("train", "val", "test"), start=1):
            mask = theirs[f"{part}_mask"].numpy()
            np.testing.assert_array_equal(rows.split == code, mask.reshape(len(mask), -1))
    else:
        assert ours.split is None
        assert DATA_SETS[name].per_class == 30


@pytest.mark.parametrize("name", NAMES)
def test_it_is_ingested_and_opened(tmp_path, name):
    write_set(name, tmp_path)
    source = DATA_SETS[name].read(tmp_path)
    ingest(source, str(tmp_path / "stored"))
    graph = open_graph(str(tmp_path / "stored"))
    assert graph.manifest.num_nodes == source.num_nodes
    is_class = source.label.ndim == 1
    assert graph.manifest.num_classes == (int(source.label.max()) + 1 if is_class else source.label.shape[1])
    assert graph.manifest.label_kind == ("class" if is_class else "answers")
    np.testing.assert_array_equal(graph.partition(0).label, source.label)


def test_a_page_s_class_is_the_fifth_of_its_traffic(tmp_path):
    file = write_set("crocodile", tmp_path) / "crocodile.npz"
    whole = DATA_SETS["crocodile"].read(tmp_path)
    with np.load(file) as arrays:
        content = dict(arrays)
    np.testing.assert_array_equal(whole.label, content.pop("label"))
    np.savez(file, **content)
    label, traffic = DATA_SETS["crocodile"].read(tmp_path).label, content["target"]
    assert np.bincount(label).tolist() == [48] * 5
    assert all(traffic[label == low].max() < traffic[label == low + 1].min() for low in range(4))


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_missing_file_is_named_with_its_place_and_source(tmp_path, name):
    row = DATA_SETS[name]
    folder = write_set(name, tmp_path)
    (folder / row.files[-1]).unlink()
    with pytest.raises(DataError) as caught:
        row.read(tmp_path)
    how = "unpack" if row.kind == "graphs" or name == "reddit" else "get"  # the files of these sets are archives
    assert str(caught.value).startswith(
        f"{name}: {row.files[-1]} missing at {folder}; {how} {row.url} and put them there"
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_files_may_lie_in_the_given_folder_itself(tmp_path, name):
    folder = write_set(name, tmp_path)
    assert DATA_SETS[name].read(folder).num_nodes == DATA_SETS[name].read(folder.parent).num_nodes > 0


@pytest.mark.parametrize("name", ["cora", "flickr", "yelp", "reddit", "minesweeper", "amazon-photo", "crocodile"])
def test_a_damaged_file_is_one_line(tmp_path, name):
    folder = write_set(name, tmp_path)
    for file in DATA_SETS[name].files:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) // 2])
        if not file.endswith(".test.index"):  # half of this file is a valid, shorter list
            with pytest.raises(DataError) as caught:
                next(DATA_SETS[name].read(tmp_path).nodes(10_000))
            assert "\n" not in str(caught.value)
        (folder / file).write_bytes(content)


def test_splits_per_class():
    label = np.array([0] * 70 + [1] * 100 + [-1] * 5)
    np.random.default_rng(0).shuffle(label)
    codes = per_class_splits(label, 30, 7, 0, "some")
    assert codes.shape == (175, 7)
    for column in codes.T:
        for one, size in ((0, 70), (1, 100)):
            assert np.bincount(column[label == one], minlength=4).tolist() == [0, size - 60, 30, 30]
        assert not column[label < 0].any()
    assert len({column.tobytes() for column in codes.T}) == 7
    np.testing.assert_array_equal(codes, per_class_splits(label, 30, 7, 0, "some"))
    assert (codes != per_class_splits(label, 30, 7, 1, "some")).any()
    with pytest.raises(DataError, match="more than 70 nodes of each class, got 70 of class 0; lower --per_class"):
        per_class_splits(label, 35, 1, 0, "some")


def test_classes_of_the_tiny_sets(tmp_path):
    write_set("cora", tmp_path)
    assert DATA_SETS["cora"].read(tmp_path).info.num_classes == NUM_CLASSES


@pytest.mark.parametrize("kind", ["nodes", "graphs"])
def test_the_guide_shows_the_table(kind):
    assert table(kind) in (Path(__file__).parents[4] / "docs/guides/data_sets.md").read_text()


def test_a_column_outside_a_sparse_matrix_is_refused(tmp_path):
    """With such an index, scipy's conversion to a dense matrix crashes the process."""
    file = write_set("amazon-photo", tmp_path) / "amazon_electronics_photo.npz"
    with np.load(file) as arrays:
        content = dict(arrays)
    content["attr_indices"][0] = 10**6
    np.savez(file, **content)
    with pytest.raises(DataError, match="attr_indptr and attr_indices are no CSR matrix: indic"):
        DATA_SETS["amazon-photo"].read(tmp_path)
    file = write_set("cora", tmp_path) / "ind.cora.allx"
    matrix = csr_matrix(array(read_pickle(file)))
    matrix.indices = np.where(matrix.indices == matrix.indices[0], 10**6, matrix.indices)
    file.write_bytes(pickle.dumps(matrix, 2))
    with pytest.raises(DataError, match="expected Planetoid's files, found indic"):
        DATA_SETS["cora"].read(tmp_path)


def test_an_edge_outside_is_refused(tmp_path):
    file = write_set("minesweeper", tmp_path) / "minesweeper.npz"
    with np.load(file) as arrays:
        content = dict(arrays)
    content["edges"][3] = [0, 240]
    np.savez(file, **content)
    with pytest.raises(DataError, match="edge 3: expected nodes 0 to 239, got 0 -> 240; 2 such edges"):
        DATA_SETS["minesweeper"].read(tmp_path)
