"""Reads small node sets in OGB's raw layout with the readers of the `ogb` package. Also tests malicious archives."""

import http.server
import pickle
import subprocess
import sys
import threading
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from graphmill.core.errors import ConfigError, DataError, GraphmillError
from graphmill.storage.importers.public import ogb_nodes
from graphmill.storage.importers.public.ogb_nodes import is_directed, ogb_graph
from tests.ogb_layout import NUM_NODES, check_graph, write_csv, write_graph

pytest.importorskip("ogb")

SPLIT_FOLDER = {"ogbn-products": "sales_ranking", "ogbn-arxiv": "time", "ogbn-papers100M": "time"}


def write_raw_layout(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Writes the files of a downloaded set. Returns their content."""
    truth = write_graph(folder)
    label = np.random.default_rng(8).integers(0, 40, NUM_NODES)
    parts = {"train": np.arange(0, 6), "valid": np.arange(6, 10), "test": np.arange(10, NUM_NODES)}
    write_csv(folder / "raw/node-label.csv.gz", label)
    if name == "ogbn-arxiv":
        write_csv(folder / "raw/node_year.csv.gz", np.full(NUM_NODES, 2017))
    for part, rows in parts.items():
        write_csv(folder / f"split/{SPLIT_FOLDER[name]}/{part}.csv.gz", rows)
    return {**truth, "label": label, **parts}


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise ogb_nodes.DataError("no route to host")

    monkeypatch.setattr(ogb_nodes, "download_archive", refuse)


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-arxiv"])
def test_reads_the_real_layout(tmp_path, name):
    truth = write_raw_layout(tmp_path / name.replace("-", "_"), name)
    for _ in range(2):  # twice, because the first reading must not change anything
        graph = ogb_graph(name, tmp_path, download=False)
        # ogb adds the inverse edges of ogbn-products. The citations of ogbn-arxiv stay directed.
        assert is_directed(name) == (name == "ogbn-arxiv")
        check_graph(graph, truth, directed=is_directed(name))
        assert graph.info.num_classes == (47 if name == "ogbn-products" else 40)
        chunk = next(graph.nodes(1000))
        np.testing.assert_allclose(chunk.feature, truth["feature"], rtol=1e-6)
        np.testing.assert_array_equal(chunk.label, truth["label"])
        for code, part in enumerate(("train", "valid", "test"), start=1):
            np.testing.assert_array_equal(np.flatnonzero(chunk.split[:, 0] == code), truth[part])
    assert list((tmp_path / name.replace("-", "_") / "processed").iterdir()) == []


def write_binary_layout(folder: Path) -> dict[str, np.ndarray]:
    """Writes the layout of ogbn-papers100M, which has arrays instead of text, and labels as floats."""
    truth = write_raw_layout(folder, "ogbn-papers100M")
    for path in (folder / "raw").iterdir():
        path.unlink()
    label = truth["label"].astype(np.float32)[:, None]
    label[3] = np.nan
    np.savez(
        folder / "raw/data.npz",
        edge_index=truth["edge"].T,
        num_nodes_list=np.array([NUM_NODES]),
        num_edges_list=np.array([len(truth["edge"])]),
        node_feat=truth["feature"],
        node_year=np.full((NUM_NODES, 1), 2017),
    )
    np.savez(folder / "raw/node-label.npz", node_label=label)
    return truth


def test_reads_the_real_binary_layout(tmp_path):
    truth = write_binary_layout(tmp_path / "ogbn_papers100M")
    graph = ogb_graph("ogbn-papers100M", tmp_path, download=False)
    np.testing.assert_array_equal(np.stack([graph.src, graph.dst], axis=1), truth["edge"])
    chunk = next(graph.nodes(1000))
    np.testing.assert_array_equal(chunk.feature, truth["feature"])
    assert chunk.label[3] == -1
    np.testing.assert_array_equal(np.delete(chunk.label, 3), np.delete(truth["label"], 3))


def test_proteins_have_112_answers_a_node_and_features_of_edges_alone(tmp_path):
    folder = tmp_path / "ogbn_proteins"
    truth = write_graph(folder)
    (folder / "raw/node-feat.csv.gz").unlink()
    rng = np.random.default_rng(9)
    label = rng.integers(0, 2, (NUM_NODES, 112))
    edge_feature = rng.random((len(truth["edge"]), 8)).astype(np.float32).round(3)
    write_csv(folder / "raw/node-label.csv.gz", label)
    write_csv(folder / "raw/edge-feat.csv.gz", edge_feature)
    write_csv(folder / "raw/node_species.csv.gz", np.full(NUM_NODES, 9606))
    for part, rows in {"train": range(20), "valid": range(20, 25), "test": range(25, NUM_NODES)}.items():
        write_csv(folder / f"split/species/{part}.csv.gz", np.array(rows))
    graph = ogb_graph("ogbn-proteins", tmp_path, download=False)
    assert not is_directed("ogbn-proteins")
    check_graph(graph, truth, directed=False)
    assert (graph.info.num_classes, graph.info.feature_dim, graph.info.edge_feature_dim) == (112, 0, 8)
    chunk = next(graph.nodes(1000))
    assert chunk.label.dtype == np.int8
    np.testing.assert_array_equal(chunk.label, label)
    of_edge = dict(zip(map(tuple, truth["edge"].tolist()), edge_feature, strict=True))
    for src, dst, feature in zip(graph.src.tolist(), graph.dst.tolist(), graph.edge_feature, strict=True):
        np.testing.assert_allclose(feature, of_edge.get((src, dst), of_edge.get((dst, src))), rtol=1e-6)


class Evil:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def write_evil_pickles(folder: Path, name: str, proof: Path) -> None:
    content = pickle.dumps({"graph": Evil(proof), "labels": Evil(proof)})
    pickle.loads(content)  # noqa: S301 - the pickle creates the file when it is read
    assert proof.exists()
    proof.unlink()
    (folder / "processed/data_processed").write_bytes(content)
    (folder / f"split/{SPLIT_FOLDER[name]}/split_dict.pt").write_bytes(content)


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-arxiv", "ogbn-papers100M"])
def test_pickles_in_an_archive_are_not_read(tmp_path, name):
    folder, proof = tmp_path / name.replace("-", "_"), tmp_path / "owned"
    truth = write_binary_layout(folder) if name == "ogbn-papers100M" else write_raw_layout(folder, name)
    write_evil_pickles(folder, name, proof)
    graph = ogb_graph(name, tmp_path, download=False)
    assert not proof.exists()
    chunk = next(graph.nodes(1000))
    np.testing.assert_array_equal(np.flatnonzero(chunk.split[:, 0] == 1), truth["train"])


def test_a_set_that_has_its_splits_only_as_a_pickle_is_refused(tmp_path):
    folder, proof = tmp_path / "ogbn_products", tmp_path / "owned"
    write_raw_layout(folder, "ogbn-products")
    write_evil_pickles(folder, "ogbn-products", proof)
    for part in ("train", "valid", "test"):
        (folder / f"split/sales_ranking/{part}.csv.gz").unlink()
    with pytest.raises(DataError, match=r"train\.csv\.gz.* missing.*split_dict\.pt would run code") as caught:
        ogb_graph("ogbn-products", tmp_path, download=False)
    assert "\n" not in str(caught.value)
    assert not proof.exists()


@pytest.mark.parametrize("file", ["data", "node-label"])
def test_pickled_objects_inside_arrays_are_refused(tmp_path, file):
    folder, proof = tmp_path / "ogbn_papers100M", tmp_path / "owned"
    write_binary_layout(folder)
    with np.load(folder / f"raw/{file}.npz") as arrays:
        content = dict(arrays)
    evil = np.empty(1, object)
    evil[0] = Evil(proof)
    np.savez(folder / f"raw/{file}.npz", **{**content, "node_feat" if file == "data" else "node_label": evil})
    with pytest.raises(DataError, match="ogb cannot read this folder"):
        ogb_graph("ogbn-papers100M", tmp_path, download=False)
    assert not proof.exists()


def test_missing_set_without_network_is_one_line_that_says_what_to_do(tmp_path, no_network):
    with pytest.raises(DataError) as caught:
        ogb_graph("ogbn-products", tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "no route to host" in message
    assert "products.zip" in message
    assert str(tmp_path / "ogbn_products") in message
    assert list(tmp_path.iterdir()) == []


def test_unknown_release_never_reaches_ogb_and_its_prompt(tmp_path):
    folder = tmp_path / "ogbn_products"
    write_raw_layout(folder, "ogbn-products")
    (folder / "RELEASE_v1.txt").unlink()
    # Runs in a separate process whose stdin never ends. So a prompt would hang until the timeout.
    code = (
        "import sys\nfrom graphmill.core.errors import GraphmillError\nfrom graphmill.storage.importers.public.ogb_nodes import ogb_graph\n"
        "try:\n    ogb_graph('ogbn-products', sys.argv[1])\nexcept GraphmillError as error:\n    print(error)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(ogb_nodes.__file__).parents[4],
    )
    try:
        process.wait(timeout=60)
    finally:
        process.kill()
    assert process.stdout is not None
    assert "RELEASE_v1.txt missing" in process.stdout.read()


@pytest.mark.parametrize("missing", ["raw/edge.csv.gz", "raw/node-label.csv.gz", "split/sales_ranking"])
def test_incomplete_folder_is_named(tmp_path, missing):
    folder = tmp_path / "ogbn_products"
    write_raw_layout(folder, "ogbn-products")
    (folder / missing).rename(folder / "elsewhere")
    with pytest.raises(DataError, match=missing):
        ogb_graph("ogbn-products", tmp_path)


def test_truncated_file_is_one_line(tmp_path):
    folder = tmp_path / "ogbn_products"
    write_raw_layout(folder, "ogbn-products")
    path = folder / "raw/node-feat.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="ogb cannot read this folder") as caught:
        ogb_graph("ogbn-products", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("ogbn-shops", ConfigError, "ogbn-products"),
        ("ogbn-mag", DataError, "several node types"),
    ],
)
def test_sets_of_another_kind_are_refused(tmp_path, name, error, match):
    with pytest.raises(error, match=match):
        ogb_graph(name, tmp_path)


@pytest.fixture
def archive_server(tmp_path, monkeypatch):
    """Serves tmp_path/www on a local port. The archive of each set is downloaded from this port."""
    (tmp_path / "www").mkdir()
    handler = partial(_QuietHandler, directory=str(tmp_path / "www"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    original, url = ogb_nodes._node_meta, f"http://127.0.0.1:{server.server_port}/products.zip"
    monkeypatch.setattr(ogb_nodes, "_node_meta", lambda name: {**original(name), "url": url})
    yield
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


@pytest.mark.usefixtures("archive_server")
def test_downloads_without_a_prompt(tmp_path):
    write_raw_layout(tmp_path / "made/products", "ogbn-products")
    with zipfile.ZipFile(tmp_path / "www/products.zip", "w") as archive:
        for path in sorted((tmp_path / "made").rglob("*")):
            archive.write(path, path.relative_to(tmp_path / "made"))
    seen = []
    graph = ogb_graph("ogbn-products", tmp_path / "sets", progress=lambda *step: seen.append(step))
    assert graph.num_nodes == NUM_NODES
    assert seen[-1][0] == "download"
    assert seen[-1][1] == seen[-1][2] > 0
    assert [path.name for path in (tmp_path / "sets").iterdir()] == ["ogbn_products"]


@pytest.mark.usefixtures("archive_server")
@pytest.mark.parametrize("served", [None, b"this is no zip file"])
def test_failed_download_leaves_nothing(tmp_path, served):
    if served is not None:
        (tmp_path / "www/products.zip").write_bytes(served)
    with pytest.raises(GraphmillError, match=r"products\.zip"):
        ogb_graph("ogbn-products", tmp_path / "sets")
    assert list((tmp_path / "sets").iterdir()) == []


def test_a_root_where_nothing_can_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(DataError, match="its download failed: cannot make a directory in") as caught:
        ogb_graph("ogbn-products", tmp_path / "file" / "below")
    assert "\n" not in str(caught.value)
