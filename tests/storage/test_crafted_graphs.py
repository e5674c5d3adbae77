"""Graphs with malicious files. Each is refused at once with a one-line error, and no memory is allocated for the sizes that it claims."""

import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.format.graph_set_manifest import RowSchema
from graphmill.storage.format.manifest import hash_of_files
from graphmill.storage.graph import open_graph
from graphmill.storage.graph_sets.graph_set import open_graphs, shard_batch
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from graphmill.storage.snapshots.snapshots import foreign_names, split_url
from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.stored_files import all_files, edit_manifest, newest_manifest, stored_file

GRAPH = SyntheticGraph(SyntheticOptions(num_nodes=60, mean_degree=4, num_classes=3, feature_dim=4))
FEATURES = "part-00000/features.arrow"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    ingest(GRAPH, str(folder / "graph"), IngestOptions(num_partitions=2, links=LinkSplitOptions(valid=0.1, test=0.1)))
    mag = synthetic_mag(SyntheticMagOptions(scale=1e-5, feature_dim=2, num_classes=2))
    ingest(mag, str(folder / "typed"), IngestOptions(num_partitions=2))
    packed = PackedGraphs(
        num_nodes=np.array([2, 3]),
        num_edges=np.array([2, 4]),
        edge_index=np.array([[0, 1, 0, 1, 1, 2], [1, 0, 1, 0, 2, 1]], np.int32),
        node_feature=np.arange(10, dtype=np.float32).reshape(5, 2),
        edge_feature=None,
        target=np.array([[0.5], [np.nan]], np.float32),
    )
    info = GraphSetInfo("two", RowSchema(2, "float32"), target_names=("y",), split_names=("train",))
    write_graphs(str(folder / "set"), info, [shard_batch(packed, "uint16", np.array([1, 0], np.int8))])
    return folder


@pytest.fixture
def stored(pristine: Path, tmp_path: Path) -> Path:
    """Returns copies of graphs, which a test may damage."""
    return Path(shutil.copytree(pristine, tmp_path / "stored"))


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Ends the test if it waits."""

    def late(signum: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def read(folder: Path) -> None:
    if folder.name == "set":
        graphs = open_graphs(str(folder))
        graphs.fetch(np.arange(len(graphs)))
    elif folder.name == "typed":
        graph = open_graph(str(folder))
        for name in graph.manifest.rows:
            list(graph.part(name).partitions())
    else:
        list(open_graph(str(folder)).partitions())
        open_graph(str(folder)).verify()


def refusal(folder: Path) -> str:
    with pytest.raises(FormatError) as refused:
        read(folder)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000
    return str(refused.value)


@pytest.mark.parametrize("file", ["manifest", FEATURES])
@pytest.mark.parametrize("made", ["a pipe", "a device", "a folder"])
def test_what_is_no_file_is_not_waited_for(made: str, file: str, stored: Path) -> None:
    graph = stored / "graph"
    place = newest_manifest(graph) if file == "manifest" else stored_file(graph, file)
    place.unlink()
    {"a pipe": os.mkfifo, "a folder": os.mkdir, "a device": lambda path: os.symlink("/dev/zero", path)}[made](place)
    assert f"{place}: expected a file, found a folder, a pipe or a device" in refusal(graph)


def test_a_manifests_number_is_that_of_its_name(stored: Path) -> None:
    for name in ("graph", "typed", "set"):
        first = newest_manifest(stored / name)
        read(stored / name)
        for number in ("000002", "999999999999999999"):
            other = Path(shutil.copy(first, first.with_name(f"{number}.json")))
            said = f"'snapshot': expected {int(number)}, the number in the file's name, got 1"
            assert said in refusal(stored / name)
            other.unlink()
    graph = stored / "graph"
    # Graphmill writes the number 9 in another form
    shutil.copy(newest_manifest(graph), graph / "manifests" / "0000009.json")
    read(graph)
    assert foreign_names(*split_url(str(graph))) == ["manifests/0000009.json"]


def test_no_snapshot_follows_the_highest_number(stored: Path) -> None:
    graph = stored / "graph"
    shutil.copy(newest_manifest(graph), graph / "manifests" / "999999999999999999.json")
    edit_manifest(graph, of_all(snapshot=10**18 - 1))
    read(graph)
    before = all_files(graph)
    with pytest.raises(FormatError, match="expected a lower number, found the highest; remove this file"):
        ingest(GRAPH, str(graph), IngestOptions(num_partitions=2, overwrite=True))
    assert all_files(graph) == before


def of_nodes(**facts: object) -> Change:
    return lambda body: body["node_types"][0].update(facts)


def of_edges(**facts: object) -> Change:
    return lambda body: body["edge_types"][0].update(facts)


def of_all(**facts: object) -> Change:
    return lambda body: body.update(facts)


def swollen(body: dict[str, Any]) -> None:
    """The counts include nodes whose files are missing."""
    body["node_types"][0].update(num_nodes=2**50, partition_offsets=[0, 2**49, 2**50])
    for entry in body["files"].values():
        entry["num_bytes"] = 2**55


# Name → (graph, change, part of the message).
CRAFTED: dict[str, tuple[str, Change, str]] = {
    "edges": ("graph", of_edges(num_edges=2**61), "'num_edges': expected files topology.arrow of at least"),
    "nodes": (
        "graph",
        of_nodes(num_nodes=2**40, partition_offsets=[0, 30, 2**40]),
        "'num_nodes': expected files nodes.arrow of at least",
    ),
    "nodes and bytes": ("graph", swollen, f"expected {2**55} bytes, found"),
    "classes": ("graph", of_nodes(num_classes=2**61), "'num_classes': expected a width of at most"),
    "groups": ("graph", of_nodes(num_groups=2**50), "'num_groups': expected a width of at most"),
    "slots": ("graph", of_nodes(feature_slots=2**50), "'feature_slots': expected a width of at most"),
    "links": (
        "graph",
        lambda body: next(iter(body["links"].values())).update(positives=[0, 0, 2**61, 0]),
        "'links': expected files links.arrow of at least",
    ),
    "edges of a relation": ("typed", of_edges(num_edges=2**61), "'num_edges': expected files topology.arrow of"),
    "nodes of a type": (
        "typed",
        of_nodes(num_nodes=2**40, partition_offsets=[0, 1, 2**40]),
        "'num_nodes': expected files nodes.arrow of at least",
    ),
    "graphs": ("set", of_all(num_graphs=2**61, graph_offsets=[0, 2**61]), "'num_graphs': expected at most"),
    "nodes of a set": ("set", of_all(num_nodes=2**61), "'num_nodes': expected at most"),
    "edges of a set": ("set", of_all(num_edges=2**61), "'num_edges': expected at most"),
    "nodes of a set without features": (
        "set",
        of_all(num_nodes=2**61, node={"dim": 0, "dtype": None, "categories": []}),
        f"'num_nodes': expected at most {2 * 2**16}",
    ),
    "classes of a set": (
        "set",
        of_all(labelled="nodes", num_classes=2**61),
        "'num_classes': expected a width of at most",
    ),
    "a long name": ("graph", of_all(name="x" * 100_000), "'name': expected a string of at most 65536 characters"),
    "a long relation": ("typed", of_edges(relation="x" * 60_000), "'relation': expected a name of the format"),
    "a long kind": ("graph", of_all(kind=["x"] * 100_000), "expected kind 'one-graph', got ['x', 'x'"),
    "long provenance": ("set", of_all(provenance={"x": "y" * 100_000}), "'provenance': expected an object of strings"),
    "a long path": (
        "graph",
        lambda body: body["files"][FEATURES].update(path="data/" + "x" * 100_000),
        "'files': expected paths below data/",
    ),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_what_only_the_manifest_says_is_not_believed(name: str, stored: Path) -> None:
    graph, change, says = CRAFTED[name]
    edit_manifest(stored / graph, change)
    assert says in refusal(stored / graph)


def put(graph: Path, name: str, batch: pa.RecordBatch, **options: object) -> int:
    """Writes a file of one batch, and puts its size and checksum into the manifest. Returns the file's bytes."""
    path = stored_file(graph, name)
    written = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=written) as writer:
        writer.write_batch(batch)
    content = path.read_bytes()
    seal = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def seal_it(body: dict[str, Any]) -> None:
        body["files"][name].update(seal)
        body["content_hash"] = hash_of_files({key: FileEntry(**entry) for key, entry in body["files"].items()})

    edit_manifest(graph, seal_it)
    return len(content)


@pytest.mark.parametrize(
    "name", [FEATURES, "part-00001/topology.arrow", "part-00000/nodes.arrow", "part-00000/graphs.arrow"]
)
@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"compression": "lz4"},
        {"metadata_version": pa.ipc.MetadataVersion.V4},  # this older version could also have compression
    ],
    ids=str,
)
def test_compressed_files_are_refused(options: dict[str, Any], name: str, stored: Path) -> None:
    graph = stored / ("set" if "graphs" in name else "graph")
    batch = pa.ipc.open_file(stored_file(graph, name).read_bytes()).get_batch(0)
    put(graph, name, batch, **options)
    assert "expected plain buffers, found compressed ones" in refusal(graph)


def test_a_small_file_does_not_grow(stored: Path) -> None:
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(30_000_000, np.float32)), 1_000_000)
    batch = pa.RecordBatch.from_arrays([values], names=["feature"])
    assert put(stored / "graph", FEATURES, batch, compression="zstd") < 100_000
    edit_manifest(stored / "graph", of_nodes(feature_dim=1_000_000))
    del values, batch
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        assert "found compressed ones" in refusal(stored / "graph")
    finally:
        pa.set_memory_pool(usual)
    assert counted.max_memory() < 2**20


def test_a_column_with_a_dictionary_is_refused(stored: Path) -> None:
    column = pa.array(["a"] * 30).dictionary_encode()
    put(stored / "graph", FEATURES, pa.RecordBatch.from_arrays([column], names=["feature"]))
    assert "expected plain buffers, found compressed ones, a dictionary" in refusal(stored / "graph")


def test_untouched_graphs_are_read(pristine: Path) -> None:
    for name in ("graph", "typed", "set"):
        read(pristine / name)
