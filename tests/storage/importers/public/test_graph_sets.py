"""Public sets of many graphs, in their real layout. PyG's class reads the same graphs from the same files, and storing does not change them."""

import warnings

import numpy as np
import pytest

from graphmill.core.errors import DataError, FormatError
from graphmill.storage.graph_sets.graph_set import open_graphs
from graphmill.storage.graph_sets.graph_set_source import shards
from graphmill.storage.graph_sets.graph_set_writer import write_graphs
from graphmill.storage.importers.public.data_sets import DATA_SETS
from tests.raw_layouts import PARTS, write_set

datasets = pytest.importorskip("torch_geometric.datasets")
transforms = pytest.importorskip("torch_geometric.transforms")

NAMES = [name for name, row in DATA_SETS.items() if row.kind == "graphs"]


def _of_pyg(name, root, split):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.startswith("zinc"):
            return datasets.ZINC(str(root / "ZINC"), subset=name == "zinc", split=split)
        if name == "malnet-tiny":
            return datasets.MalNetTiny(str(root / "MalNetTiny"), split=split, transform=transforms.LocalDegreeProfile())
        if name in ("mnist", "cifar10", "pattern", "cluster"):
            return datasets.GNNBenchmarkDataset(str(root), name.upper(), split=split)
        return datasets.LRGBDataset(str(root), name, split=split)


def _ingest(name, root, url, **options):
    source = DATA_SETS[name].read(root)
    return write_graphs(url, source.info, shards(source, options.get("most", 17), lambda *_: None))


@pytest.mark.parametrize("name", NAMES)
def test_they_are_the_graphs_of_pygs_class(tmp_path, name):
    write_set(name, tmp_path)
    _ingest(name, tmp_path, str(tmp_path / "stored"))
    store = open_graphs(str(tmp_path / "stored"))
    store.verify()
    assert store.split_names == ("train", "valid", "test")
    for part, stored in zip(PARTS, store.split_names, strict=True):
        theirs = _of_pyg(name, tmp_path, part)
        numbers = store.split(stored)
        assert len(theirs) == len(numbers) == PARTS[part]
        for data, number in zip(theirs, numbers, strict=True):
            ours = store.fetch(np.array([number]))
            assert ours.num_nodes.tolist() == [data.num_nodes]
            np.testing.assert_array_equal(ours.edge_index, data.edge_index.numpy())
            _same_features(name, ours, data)
            _same_targets(ours, data)


def _same_features(name, ours, data):
    x, attributes = data.x.numpy(), data.edge_attr
    if name in ("mnist", "cifar10"):
        x = np.concatenate([x, data.pos.numpy()], axis=1)
    if name == "malnet-tiny":
        np.testing.assert_allclose(ours.node_feature, x, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(ours.node_feature, x)
    if attributes is None:  # all edges have one category
        assert not ours.edge_feature.any()
        assert ours.edge_feature.shape == (data.num_edges, 1)
    else:
        np.testing.assert_array_equal(ours.edge_feature, attributes.numpy().reshape(data.num_edges, -1))


def _same_targets(ours, data):
    if ours.node_label is not None:
        np.testing.assert_array_equal(ours.node_label, data.y.numpy())
    elif ours.pairs is not None:
        np.testing.assert_array_equal(ours.pairs[:, :2].T, data.edge_label_index.numpy())
        np.testing.assert_array_equal(ours.pairs[:, 2], data.edge_label.numpy())
    else:
        y = data.y if isinstance(data.y, int) else data.y.numpy().reshape(-1)
        np.testing.assert_array_equal(ours.target.reshape(-1), y)


@pytest.mark.parametrize("name", ["pattern", "pcqm-contact", "mnist"])
def test_shards_do_not_matter(tmp_path, name):
    write_set(name, tmp_path)
    made = [_ingest(name, tmp_path, str(tmp_path / f"{most}"), most=most) for most in (5, 100)]
    assert made[0].num_shards == 8
    assert made[0].statistics == made[1].statistics
    several, one = (open_graphs(str(tmp_path / f"{most}")) for most in (5, 100))
    numbers = np.random.default_rng(0).permutation(len(one))
    for ours, theirs in zip(vars(several.fetch(numbers)).values(), vars(one.fetch(numbers)).values(), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs)


def test_a_set_s_digest_holds_its_labels(tmp_path):
    import torch

    folder = write_set("pattern", tmp_path)
    before = _ingest("pattern", tmp_path, str(tmp_path / "a")).statistics.digest
    parts = torch.load(folder / "PATTERN_v2.pt")
    parts[0][3]["y"][0] = 1 - parts[0][3]["y"][0]
    torch.save(parts, folder / "PATTERN_v2.pt")
    assert _ingest("pattern", tmp_path, str(tmp_path / "b")).statistics.digest != before


BAD = {
    "an edge outside": ("edge_index", lambda value: value + 3, "expected edges among"),
    "a class too many": ("y", lambda value: value + 1, "expected classes below 2 or -1, got [12] to 2"),
    "rows too few": ("x", lambda value: value[1:], "expected edges among"),
    "columns too few": ("x", lambda value: value[:, 1:], r"expected \d+ rows of 3"),
    "a number that is none": ("x", lambda value: value * float("nan"), "expected finite numbers"),
    "no tensor": ("y", lambda value: 3, "not of this set's layout: Refused: an array: expected an array, found int"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_graph_that_is_wrong_is_one_line(tmp_path, case):
    import torch

    key, change, message = BAD[case]
    folder = write_set("pattern", tmp_path)
    parts = torch.load(folder / "PATTERN_v2.pt")
    parts[1][2][key] = change(parts[1][2][key])
    torch.save(parts, folder / "PATTERN_v2.pt")
    with pytest.raises(DataError, match=message) as caught:
        _ingest("pattern", tmp_path, str(tmp_path / "stored"))
    assert "\n" not in str(caught.value)
    with pytest.raises(FormatError):
        open_graphs(str(tmp_path / "stored"))


def test_molecules_with_other_atom_types_are_refused(tmp_path):
    folder = write_set("zinc-full", tmp_path)
    for part in PARTS:
        (folder / f"{part}.index").write_text(",".join(map(str, range(8))))
    with pytest.raises(DataError, match=r"zinc: graph \d+: node features: column 0: expected categories below 21"):
        _ingest("zinc", tmp_path, str(tmp_path / "stored"))
