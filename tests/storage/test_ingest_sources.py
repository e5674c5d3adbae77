"""Ingests a graph with every importer, on a local disk, in memory and on S3, and reads it back. Bad sources leave no files behind."""

import fsspec
import numpy as np
import pytest

from graphmill.core.errors import ConfigError, DataError, FormatError, GraphmillError
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.files.npz_file import npz_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph, split_column
from graphmill.storage.importers.tables.edge_list import EdgeListGraph, EdgeListOptions
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.gs_server import gs_bucket
from tests.s3_server import s3_bucket

NUM_NODES, NUM_EDGES = 40, 200


def _source(**changes):
    random = np.random.default_rng(5)
    columns = {
        "name": "tiny",
        "num_nodes": NUM_NODES,
        "src": random.integers(0, NUM_NODES, NUM_EDGES),
        "dst": random.integers(0, NUM_NODES, NUM_EDGES),
        "feature": random.normal(size=(NUM_NODES, 4)).astype(np.float32),
        "label": random.integers(0, 3, NUM_NODES),
        "split": random.integers(0, 4, (NUM_NODES, 2)).astype(np.int8),
    }
    return ArrayGraph(**{**columns, **changes})


def _stored(url):
    """Returns the stored edges, as a sorted list of original ids, and features, labels and splits by original id."""
    graph = open_graph(url)
    graph.verify()
    parts = list(graph.partitions())
    original = np.concatenate([part.original_id for part in parts])
    src = np.concatenate([original[part.indices] for part in parts])
    dst = np.concatenate([np.repeat(part.original_id, np.diff(part.indptr)) for part in parts])
    order = np.argsort(original)
    each = {"feature": [part.feature_numbers() for part in parts], "label": [part.label for part in parts]}
    columns = {name: np.concatenate(rows)[order] for name, rows in each.items() if rows[0] is not None}
    if parts[0].split is not None:
        columns["split"] = np.concatenate([part.split.T for part in parts])[order]
    return sorted(zip(src.tolist(), dst.tolist(), strict=True)), columns


@pytest.fixture(scope="module")
def s3_url():
    with s3_bucket() as url:
        yield url


@pytest.fixture(scope="module")
def gs_url():
    with gs_bucket() as url:
        yield url


@pytest.fixture(params=["local", "memory", "s3", "gs"])
def base_url(request, tmp_path):
    if request.param == "local":
        return str(tmp_path)
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    return f"{request.getfixturevalue(f'{request.param}_url')}/{tmp_path.name}"


def test_every_file_system(base_url):
    url = f"{base_url}/graph"
    manifest = ingest(_source(), url, IngestOptions(num_partitions=2))
    assert open_graph(url).manifest == manifest
    edges, columns = _stored(url)
    assert len(edges) == NUM_EDGES
    np.testing.assert_array_equal(columns["split"], _source().split)
    with pytest.raises(ConfigError, match="overwrite"):
        ingest(_source(), url)
    ingest(_source(label=np.zeros(NUM_NODES, np.int64)), url, IngestOptions(overwrite=True))
    assert not _stored(url)[1]["label"].any()


def test_a_bucket_that_does_not_exist_is_refused_and_not_made(s3_url):
    import s3fs

    with pytest.raises(ConfigError, match="expected a bucket 'grpahs' that exists") as refused:
        ingest(_source(), "s3://grpahs/tiny/graph")
    assert "\n" not in str(refused.value)
    with pytest.raises(FormatError, match="found none"):
        open_graph("s3://grpahs/tiny/graph")
    assert "grpahs" not in s3fs.S3FileSystem(use_listings_cache=False).ls("")


def test_a_failed_overwrite_on_s3_keeps_the_old_graph(s3_url, monkeypatch):
    import s3fs

    url = f"{s3_url}/kept/graph"
    manifest = ingest(_source(), url, IngestOptions(num_partitions=2))
    filesystem = fsspec.core.url_to_fs(url)[0]  # the filesystem object that ingestion also uses
    put_file = filesystem.put_file

    def fail_late(source, target):
        if "part-00001" in target:
            raise PermissionError("Access Denied")
        put_file(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(filesystem, "put_file", fail_late)
        with pytest.raises(FormatError, match=r"features\.arrow: cannot write this file: Access Denied"):
            ingest(_source(), url, IngestOptions(num_partitions=2, seed=1, overwrite=True))
    opened = open_graph(url)
    opened.verify()
    assert opened.manifest == manifest
    assert s3fs.S3FileSystem(use_listings_cache=False).ls(f"{s3_url}/kept") == [url.removeprefix("s3://")]


UNUSABLE = {
    "no credentials": ("s3://graphs/g", {}, "Unable to locate credentials"),
    "endpoint down": ("s3://graphs/g", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, "Could not connect"),
    "a name no bucket has": (
        "s3://Not!a!bucket/g",
        {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
        "Invalid bucket name",
    ),
    "no such profile": ("s3://graphs/g", {"AWS_PROFILE": "nonesuch"}, "profile (nonesuch) could not be found"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_store_that_cannot_be_used_is_one_line(name, monkeypatch, tmp_path):
    s3fs = pytest.importorskip("s3fs")
    url, environment, message = UNUSABLE[name]
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        for use, kind in ((lambda: ingest(_source(), url), ConfigError), (lambda: open_graph(url), FormatError)):
            with pytest.raises(GraphmillError) as refused:
                use()
            assert isinstance(refused.value, kind) or name == "no such profile"
            assert message in str(refused.value)
            assert "\n" not in str(refused.value)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("name", ["minesweeper", "planetoid_cora"])
def test_real_npz_files(real_data, tmp_path, name):
    source = npz_graph(real_data / f"nodes/{name}.npz")
    manifest = ingest(source, str(tmp_path / name), IngestOptions(num_partitions=4, partitioner="ldg"))
    assert manifest.num_edges == 2 * source.info.num_edges
    edges, columns = _stored(str(tmp_path / name))
    given = zip(source.src.tolist(), source.dst.tolist(), strict=True)
    assert edges == sorted(pair for a, b in given for pair in ((a, b), (b, a)))
    for column in ("label", "split"):
        np.testing.assert_array_equal(columns[column], getattr(source, column))
    np.testing.assert_array_equal(columns["feature"], next(source.nodes(10**6)).feature)


def test_compact_ids_come_back_as_original_ids(tmp_path):
    (tmp_path / "e.csv").write_text("7000000000,5\n5,3\n")
    ingest(EdgeListGraph(tmp_path / "e.csv", EdgeListOptions(compact_ids=True)), str(tmp_path / "graph"))
    assert _stored(str(tmp_path / "graph"))[0] == [(5, 3), (7_000_000_000, 5)]


def _with(values, row, value):
    values = values.copy()
    values[row] = value
    return values


def _overlap():
    return _source(split=split_column(NUM_NODES, np.arange(5), np.arange(4, 9), np.arange(9, 12), "tiny")[:, None])


BAD = {
    "all labels -100": (lambda: _source(label=np.full(NUM_NODES, -100)), DataError, "got -100, 40 such of 40; write -1"),
    "no label at all": (lambda: _source(label=np.full(NUM_NODES, -1)), DataError, "no node has a label, all 40 are missing"),
    "no target at all": (lambda: _source(label=np.full(NUM_NODES, np.nan)), DataError, "no node has a label"),
    "overlapping splits": (_overlap, DataError, "overlap"),
    "too few feature rows": (lambda: _source(feature=np.zeros((39, 4), np.float32)), DataError, "39"),
    "too many label rows": (lambda: _source(label=np.zeros(41, np.int64)), DataError, "41"),
    "missing file": (lambda: npz_graph("absent.npz"), DataError, "no such file"),
}  # fmt: skip


@pytest.mark.parametrize("label", [np.arange(NUM_NODES) % 2 == 0, (np.arange(NUM_NODES) % 2)[:, None]])
def test_truth_values_and_columns_are_classes(tmp_path, label):
    manifest = ingest(_source(label=label), str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    assert (manifest.label_kind, manifest.num_classes) == ("class", 2)
    np.testing.assert_array_equal(_stored(str(tmp_path / "graph"))[1]["label"], label.reshape(-1))


def test_classes_that_no_node_has_yet(tmp_path):
    unlabelled = _source(label=np.full(NUM_NODES, -1))
    assert ingest(unlabelled, str(tmp_path / "graph"), IngestOptions(num_classes=3)).num_classes == 3


@pytest.mark.parametrize("partitioner", ["random", "ldg"])
@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_sources_are_one_line_and_leave_nothing(tmp_path, case, partitioner):
    build, error, expected = BAD[case]
    options = IngestOptions(num_partitions=2, partitioner=partitioner)
    with pytest.raises(error) as caught:
        ingest(build(), str(tmp_path / "graph"), options)
    assert isinstance(caught.value, GraphmillError)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_bad_source_leaves_nothing_on_other_file_systems(base_url):
    import fsspec

    url = f"{base_url}/graph"
    with pytest.raises(DataError):
        ingest(_source(feature=_with(_source().feature, 3, np.nan)), url)
    filesystem, path = fsspec.core.url_to_fs(url)
    assert not filesystem.exists(path)
