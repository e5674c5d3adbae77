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


GRAPHLAND = [name for name in NAMES if DATA_SETS[name].reader.startswith("graphland:")]


@pytest.mark.parametrize("name", GRAPHLAND)
@pytest.mark.filterwarnings("ignore")
def test_graphlands_split_sets_are_those_of_pygs_class(tmp_path, name):
    """PyG's class standardises the targets of regression; a run does that here. Its class returns one split at a time."""
    write_set(name, tmp_path)
    row = DATA_SETS[name]
    ours = row.read(tmp_path)
    rows = next(ours.nodes(10_000))
    for number, split in enumerate(row.arguments["splits"]):
        published = row.folder.partition("/")[0]
        theirs = datasets.GraphLandDataset(str(tmp_path), published, split, regression_targets_transform=None)[0]
        assert sorted(zip(ours.src.tolist(), ours.dst.tolist(), strict=True)) == sorted(
            map(tuple, theirs.edge_index.T.tolist())
        )
        np.testing.assert_allclose(rows.feature, theirs.x.numpy(), rtol=1e-5, atol=1e-5)
        target = theirs.y.numpy().reshape(rows.label.shape)
        known = ~np.isnan(target)
        np.testing.assert_array_equal(rows.label[known], target[known])
        missing = np.nan if rows.label.dtype.kind == "f" else -1
        np.testing.assert_array_equal(rows.label[~known], missing)
        assert 0 < np.count_nonzero(~known) < 40
        for code, part in enumerate(("train", "val", "test"), start=1):
            np.testing.assert_array_equal(rows.split[:, number] == code, theirs[f"{part}_mask"].numpy())


def test_graphlands_rows_are_joined_by_their_ids(tmp_path):
    """PyG's class ignores the ids: it would give a node the target of another."""
    folder = write_set("tolokers-2", tmp_path)
    before = next(DATA_SETS["tolokers-2"].read(tmp_path).nodes(10_000))
    header, *lines = (folder / "targets.csv").read_text().splitlines()
    (folder / "targets.csv").write_text("\n".join([header, *reversed(lines)]))
    np.testing.assert_array_equal(next(DATA_SETS["tolokers-2"].read(tmp_path).nodes(10_000)).label, before.label)
    (folder / "targets.csv").write_text("\n".join([header, lines[0], *lines[:-1]]))
    with pytest.raises(DataError, match=r"targets\.csv: expected the ids 0 to 239 in the first column, each once"):
        DATA_SETS["tolokers-2"].read(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_ingested_and_opened(tmp_path, name):
    write_set(name, tmp_path)
    source = DATA_SETS[name].read(tmp_path)
    ingest(source, str(tmp_path / "stored"))
    graph = open_graph(str(tmp_path / "stored"))
    assert graph.manifest.num_nodes == source.num_nodes
    assert (
        graph.manifest.label_kind
        == {"i": {1: "class", 2: "answers"}, "f": {1: "value"}}[source.label.dtype.kind][source.label.ndim]
    )
    if graph.manifest.label_kind != "value":
        is_class = source.label.ndim == 1
        assert graph.manifest.num_classes == (int(source.label.max()) + 1 if is_class else source.label.shape[1])
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
    how = (
        "unpack" if row.kind == "graphs" or row.url.endswith(".zip") else "get"
    )  # the files of these sets are archives
    assert str(caught.value).startswith(
        f"{name}: {row.files[-1]} missing at {folder}; {how} {row.url} and put them there"
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_files_may_lie_in_the_given_folder_itself(tmp_path, name):
    folder = write_set(name, tmp_path)
    assert DATA_SETS[name].read(folder).num_nodes == DATA_SETS[name].read(folder.parent).num_nodes > 0


@pytest.mark.parametrize(
    "name", ["cora", "flickr", "yelp", "reddit", "minesweeper", "amazon-photo", "crocodile", "hm-prices"]
)
def test_a_damaged_file_is_one_line(tmp_path, name):
    folder = write_set(name, tmp_path)
    for file in DATA_SETS[name].files:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) // 2])
        if not file.endswith((".test.index", "edgelist.csv")):  # half of these is a valid, shorter list
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
