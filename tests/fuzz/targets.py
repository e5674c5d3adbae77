"""Fuzzing targets: one for each kind of file whose bytes come from others.

A target writes a valid folder once. For each input it replaces one file by the input's bytes. The manifest gets the
size and checksum of these bytes, so that the reader does not refuse them for their checksum. The reader must read the
bytes or refuse them with a GraphmillError. Any other error is a finding. So is a hang, and so is a use of memory that
is too large for the number of bytes.
"""

import hashlib
import json
import pickle
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from graphmill.core.errors import GraphmillError, StageError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.format.manifest import parse_head, parse_manifest
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.stored_files import newest_manifest, stored_file

Run = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """A target. `prepare(folder)` returns valid contents of a file, and a function that reads other contents instead."""

    name: str
    prepare: Callable[[Path], tuple[list[bytes], Run]]


def read_or_refused(run: Run, data: bytes) -> bool:
    """Returns True if the reader reads the bytes, and False if it refuses them with a GraphmillError."""
    try:
        run(data)
    except GraphmillError as error:
        if "\n" in str(error):
            raise ValueError(f"expected one line, got {error!r}") from error
        return False
    return True


def _graph(folder: Path) -> Path:
    path = folder / "graph"
    graph = SyntheticGraph(SyntheticOptions(num_nodes=12, mean_degree=3, num_classes=3, feature_dim=2))
    ingest(graph, str(path), IngestOptions(num_partitions=2, edge_ids=True))
    return path


def _entry(data: bytes, path: str) -> FileEntry:
    return FileEntry(len(data), hashlib.sha256(data).hexdigest(), path)


def _graph_manifest(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.storage.encoding.encode import store_encoding
    from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag

    path = _graph(folder)
    plain = newest_manifest(path).read_bytes()
    store_encoding(open_graph(str(path)), "rwse-2", np.zeros((12, 2), np.float32))
    encoded = newest_manifest(path).read_bytes()
    mag = synthetic_mag(SyntheticMagOptions(scale=1e-5, feature_dim=2, num_classes=2))
    ingest(mag, str(folder / "typed"), IngestOptions(num_partitions=2))

    def run(data: bytes) -> None:
        text = data.decode(errors="replace")
        try:
            parse_head(text, "a manifest")  # of any version
        except GraphmillError as error:
            if read_or_refused(lambda _: parse_manifest(text, "a manifest") and None, data):
                raise ValueError(f"read as a manifest, and its head was refused: {error}") from error
            raise
        manifest = parse_manifest(text, "a manifest")
        again = parse_manifest(manifest.to_json(), "again")
        assert again == manifest
        if manifest.statistics is not None:
            assert again.measured == manifest.measured

    return [plain, encoded, newest_manifest(folder / "typed").read_bytes()], run


def _typed_tables(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.storage.importers.tables.typed_tables import read_tables

    file = folder / "graph.yaml"
    valid = [
        b"nodes:\n  a: {count: 2}\nedges:\n  - {source: a, relation: r, target: a, file: e.csv}\n",
        b"nodes: {a: {file: a.csv, id: i, features: [x, y], label: l, split: s}, b: {features: x.npy}}\n",
    ]

    def run(data: bytes) -> None:
        file.write_bytes(data)
        read_tables(file)

    return valid, run


def _recipe(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.jobs.config.config import config_tree, read_config, read_recipe

    file = folder / "recipe.yaml"
    valid = [
        b"model: {name: gcn, width: 8, num_layers: 2}\nfit: {epochs: 3, learning_rate: 1.0e-3}\nrun: {defaults: recipe}\n",
        b"kind: graphs\nmodel: tokengt\ntask: {name: regression, target: null}\n",
        b"sampler:\n  name: neighbor\n  fanouts: [5, 3]\n  batch_size: 64\nmodel: {name: sage, num_layers: 2}\n",
    ]

    def run(data: bytes) -> None:
        file.write_bytes(data)
        read_config(config_tree("nodes", read_recipe(str(file))))  # may not import code from the folder

    return valid, run


def _published(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.jobs.convert_checkpoint import read_state

    file, valid = folder / "some.pt", []
    for zipped in (False, True):
        state = {"model": {"module.a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}, "epoch": 3}
        torch.save(state, file, _use_new_zipfile_serialization=zipped)
        valid.append(file.read_bytes())

    def run(data: bytes) -> None:
        file.write_bytes(data)
        read_state(file)

    return valid, run


def _partition_file(name: str) -> Callable[[Path], tuple[list[bytes], Run]]:
    def prepare(folder: Path) -> tuple[list[bytes], Run]:
        path = _graph(folder)
        stored = open_graph(str(path))
        name_in_format = f"part-00000/{name}.arrow"
        file = stored_file(path, name_in_format)
        entry = stored.manifest.files[name_in_format]
        valid = file.read_bytes()

        def run(data: bytes) -> None:
            file.write_bytes(data)
            files = {**stored.manifest.files, name_in_format: _entry(data, entry.path)}
            graph = replace(stored, manifest=replace(stored.manifest, files=files))
            partition = graph.partition(0)
            columns = (partition.indices, partition.indptr, partition.label, partition.feature, partition.split)
            for column in columns:
                if column is not None:
                    column.sum()
            graph.verify()

        return [valid], run

    return prepare


def _graph_set(folder: Path) -> Path:
    from graphmill.storage.format.graph_set_manifest import RowSchema
    from graphmill.storage.graph_sets.graph_set import shard_batch
    from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
    from graphmill.storage.graph_sets.packed_graphs import PackedGraphs

    packed = PackedGraphs(
        num_nodes=np.array([2, 3]),
        num_edges=np.array([2, 4]),
        edge_index=np.array([[0, 1, 0, 1, 1, 2], [1, 0, 1, 0, 2, 1]], np.int32),
        node_feature=np.arange(10, dtype=np.float32).reshape(5, 2),
        edge_feature=None,
        target=np.array([[0.5], [np.nan]], np.float32),
    )
    info = GraphSetInfo("two", RowSchema(2, "float32"), target_names=("y",), split_names=("train",))
    write_graphs(str(folder / "graphs"), info, [shard_batch(packed, "uint16", np.array([1, 0], np.int8))])
    return folder / "graphs"


def _graph_set_manifest(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.storage.format.graph_set_manifest import parse_graph_set_manifest

    valid = newest_manifest(_graph_set(folder)).read_bytes()

    def run(data: bytes) -> None:
        manifest = parse_graph_set_manifest(data.decode(errors="replace"), "000001.json")
        assert parse_graph_set_manifest(manifest.to_json(), "again") == manifest

    return [valid], run


def _graph_shard(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.storage.format.graph_set_manifest import parse_graph_set_manifest, shard_file
    from graphmill.storage.graph_sets.graph_set import open_graphs

    path = _graph_set(folder)
    where = newest_manifest(path)
    manifest = parse_graph_set_manifest(where.read_text(), str(where))
    file = stored_file(path, shard_file(0))
    entry = manifest.files[shard_file(0)]
    valid = file.read_bytes()

    def run(data: bytes) -> None:
        file.write_bytes(data)
        changed = replace(manifest, files={**manifest.files, shard_file(0): _entry(data, entry.path)})
        where.write_text(changed.to_json())
        graphs = open_graphs(str(path))
        graphs.fetch(np.arange(len(graphs)))
        graphs.verify()

    return [valid], run


def _checkpoint(folder: Path) -> tuple[Path, nn.Module, torch.optim.Optimizer]:
    from graphmill.cluster.checkpoints.checkpoint import Snapshot, TrainState, moments_of, write_files

    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = TrainState(next_epoch=4, best_epoch=2, best_score=0.75, identity={"seed": 7}, model_config={"width": 3})
    (folder / "epoch").mkdir(parents=True)
    write_files(folder / "epoch", Snapshot(state, model.state_dict(), None, moments_of(optimizer)))
    return folder / "epoch", model, optimizer


def _checkpoint_state(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.cluster.checkpoints.checkpoint import load_state, verify_checkpoint

    path, _, _ = _checkpoint(folder)
    body = json.loads((path / "state.json").read_text())
    del body["digest"]  # version 1 had no digest; with it, every changed text is refused

    def run(data: bytes) -> None:
        (path / "state.json").write_bytes(data)
        load_state(path)
        verify_checkpoint(path)

    return [json.dumps(body).encode()], run


def _tensors(name: str) -> Callable[[Path], tuple[list[bytes], Run]]:
    def prepare(folder: Path) -> tuple[list[bytes], Run]:
        from graphmill.cluster.checkpoints.checkpoint import load_optimizer, load_weights

        path, model, optimizer = _checkpoint(folder)
        file = path / f"{name}.safetensors"
        valid = file.read_bytes()

        def run(data: bytes) -> None:
            file.write_bytes(data)
            if name == "model":
                load_weights(file, model)
            else:
                load_optimizer(file, optimizer)

        return [valid], run

    return prepare


def _run_record(folder: Path) -> tuple[list[bytes], Run]:
    """The input has four texts, separated by zero bytes: settings, epochs, events, summary."""
    from graphmill.jobs.records.run_record import read_run
    from graphmill.jobs.reporting.run_report import run_page

    names = ("config.json", "metrics.jsonl", "events.jsonl", "summary.json")
    valid = b"\0".join(
        json.dumps(value).encode() + b"\n"
        for value in (
            {"fit": {"epochs": 2}, "graph": {"graph": None}},
            {"epoch": 0, "loss": 1.5, "train_s": 2.0, "val_accuracy": 0.25},
            {"kind": "start", "time": 1.0, "epoch": 0},
            {"epochs": 1, "job": "products_geco", "metric": "accuracy", "test": 0.5},
        )
    )

    def run(data: bytes) -> None:
        for name, part in zip(names, (data.split(b"\0") + [b""] * 4)[:4], strict=True):
            (folder / name).write_bytes(part)
        run_page(read_run(folder))

    return [valid], run


def _message(folder: Path) -> tuple[list[bytes], Run]:
    """The input is a message to a partition server. The server's reply is read too."""
    from graphmill.cluster.transport.wire import pack, unpack
    from graphmill.samplers.vocabulary.messages import NodeRows, SampleNeighbors

    sent = (
        SampleNeighbors(np.arange(9), 2, 2**64 - 1, columns=("weight",)),
        NodeRows(np.arange(9), np.eye(9, dtype=np.float32), None, np.ones(9, np.int8)),
    )

    def run(data: bytes) -> None:
        left = memoryview(data)

        def fill(memory: memoryview) -> None:
            nonlocal left
            if len(memory) > len(left):
                raise StageError("the connection ended")
            memory[:], left = left[: len(memory)], left[len(memory) :]

        unpack(fill)

    return [b"".join(pack(message)) for message in sent], run


def _npz(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.storage.importers.files.npz_file import npz_graph

    file = folder / "some.npz"
    np.savez(file, edges=np.array([[0, 1], [1, 2]]), x=np.eye(3, dtype=np.float32), y=np.array([0, 1, 0]))
    dense = file.read_bytes()
    sparse = {"indptr": np.array([0, 1, 1, 2]), "indices": np.array([1, 0]), "shape": np.array([3, 2])}
    splits = {f"{part}_mask": np.arange(3) == row for row, part in enumerate(("train", "val", "test"))}
    np.savez(
        file, edge_index=np.array([[0, 1], [1, 2]]), **{f"x_{key}": value for key, value in sparse.items()}, **splits
    )
    valid = [dense, file.read_bytes()]

    def run(data: bytes) -> None:
        file.write_bytes(data)
        _drain(npz_graph(file))

    # Deflate expands one byte to at most 1,032 bytes. While the type of an array changes, memory has it twice. While
    # features become dense, memory has them three times.
    return valid, _bounded(run, 3 * 1032)


def _split_dict(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.storage.molecules.pcqm4mv2 import PARTS, read_split_dict
    from graphmill.storage.molecules.smiles import RowSplit

    file = folder / "split_dict.pt"
    parts = {name: np.arange(2, dtype=f"i{2**index}") + 2 * index for index, name in enumerate(PARTS)}
    valid = []
    for protocol in (2, 3, 4, 5):
        for zipped in (False, True):
            torch.save(parts, file, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
            valid.append(file.read_bytes())

    def run(data: bytes) -> None:
        file.write_bytes(data)
        RowSplit.of(read_split_dict(file), str(file)).codes(100)

    return valid, _bounded(run, 64)


def _plain_pickle(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.core.errors import DataError
    from graphmill.storage.importers.files.pickle_reader import Refused, array, read_pickle, read_torch

    file = folder / "some.pickle"
    value = [{"x": np.arange(6).reshape(2, 3), "y": torch.arange(4)[1:]}, (1.5, None, "text", b"bytes", 2**70, [True])]
    valid = [pickle.dumps(value, protocol) for protocol in range(6)]
    for zipped in (False, True):
        torch.save(value, file, _use_new_zipfile_serialization=zipped)
        valid.append(file.read_bytes())

    def leaves(value: object) -> None:
        if isinstance(value, list | tuple):
            for inner in value[:100]:
                leaves(inner)
        elif isinstance(value, dict):
            leaves(list(value.values()))
        elif not isinstance(value, int | float | str | bytes | None):
            array(value)

    def run(data: bytes) -> None:
        file.write_bytes(data)
        try:
            leaves(read_torch(file) if data[:2] == b"PK" or data[2:3] == b"\x8a" else read_pickle(file))
        except (Refused, ValueError) as error:  # importers turn both into one line
            raise DataError(str(error)) from error

    return valid, _bounded(run, 256)


def _edge_csv(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.storage.importers.tables.edge_list import EdgeListGraph
    from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions

    file = folder / "edges.txt"
    valid = [
        b"src,dst\n0,1\n1,2\n",
        b"\xef\xbb\xbf# SNAP\n0\t1\r\n# between\r\n1 \t 2\r\n",
        b"% KONECT\n 0  1 0.5\n\n1 2 1\n",
        b"%%MatrixMarket matrix coordinate pattern symmetric\n% c\n2 2 1\n2 1\n",
        b'"src";"note";"dst"\n0;"a;b";1\n#1;;2\n',
    ]
    others = (
        EdgeListOptions(),
        EdgeListOptions(num_nodes=100, weight="2"),
        EdgeListOptions(header=False, delimiter=","),
        EdgeListOptions(header=True, delimiter="\t"),
    )

    def run(data: bytes) -> None:
        file.write_bytes(data)
        for options in others:
            with suppress(GraphmillError):
                _drain(EdgeListGraph(file, options))
        _drain(EdgeListGraph(file, EdgeListOptions(compact_ids=True)))

    return valid, _bounded(run, 1024)


def _edge_parquet(folder: Path) -> tuple[list[bytes], Run]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from graphmill.storage.importers.tables.edge_list import EdgeListGraph
    from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions

    file = folder / "edges.parquet"
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 2]}), file)
    valid = file.read_bytes()

    def run(data: bytes) -> None:
        file.write_bytes(data)
        _drain(EdgeListGraph(file, EdgeListOptions(compact_ids=True)))

    return [valid], run


def _node_csv(folder: Path) -> tuple[list[bytes], Run]:
    from graphmill.storage.importers.tables.node_columns import NodeFile, read_features, read_labels

    def read_splits(path: Path, header: bool | None = None) -> None:
        nodes = NodeFile(path, header)
        nodes.splits(nodes.split_places())

    file = folder / "nodes.csv"
    valid = [b"1\n2\n3\n", b"# c\r\n1\r\n\r\n0\r\n", b"\xef\xbb\xbflabel\n1\n0\n", b"a,label\n1,2\n3,1\n"]

    def run(data: bytes) -> None:
        file.write_bytes(data)
        for read in (read_features, read_splits, read_labels):
            for header in (True, False):
                with suppress(GraphmillError):
                    read(file, header)
        for read in (read_features, read_splits):
            with suppress(GraphmillError):
                read(file)
        labels = read_labels(file)  # numbers, or classes with -1 for unknown
        assert labels.dtype.kind == "f" or labels.min(initial=0) >= -1

    return valid, _bounded(run, 1024)


def _bounded(run: Run, bytes_per_byte: int) -> Run:
    """Wraps `run`. Fails if its peak memory is more than 32 MiB plus `bytes_per_byte` bytes for each byte of input."""

    def bounded(data: bytes) -> None:
        tracemalloc.start()
        try:
            run(data)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            if peak > (32 << 20) + bytes_per_byte * len(data):
                raise MemoryError(f"{peak} bytes for an input of {len(data)}")

    return bounded


def _drain(source) -> None:
    """Reads the source as ingestion does. Reads node columns only if the file claims a moderate number of nodes."""
    for chunk in source.edges(1 << 10):
        assert chunk.src.dtype == chunk.dst.dtype == np.int64
    if source.info.num_nodes < 1 << 20:
        for _ in source.nodes(1 << 10):
            pass


TARGETS = {
    target.name: target
    for target in (
        Target("graph_manifest", _graph_manifest),
        Target("typed_tables", _typed_tables),
        Target("recipe", _recipe),
        Target("published", _published),
        Target("topology", _partition_file("topology")),
        Target("nodes", _partition_file("nodes")),
        Target("features", _partition_file("features")),
        Target("graph_set_manifest", _graph_set_manifest),
        Target("graph_shard", _graph_shard),
        Target("checkpoint_state", _checkpoint_state),
        Target("weights", _tensors("model")),
        Target("moments", _tensors("optimizer")),
        Target("run_record", _run_record),
        Target("message", _message),
        Target("npz", _npz),
        Target("edge_csv", _edge_csv),
        Target("edge_parquet", _edge_parquet),
        Target("node_csv", _node_csv),
        Target("split_dict", _split_dict),
        Target("plain_pickle", _plain_pickle),
    )
}
