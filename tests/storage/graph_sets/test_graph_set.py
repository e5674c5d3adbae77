"""Many small graphs on disk. Graphs that are read equal the written graphs, in any order and from any shard. Damage is refused with a one-line error."""

import pickle
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError, DataError, FormatError
from graphmill.samplers.methods.graph_batches import GraphBatchSampler
from graphmill.samplers.vocabulary.options import GraphBatchOptions
from graphmill.storage.format.arrow_files import write_batch
from graphmill.storage.format.graph_set_manifest import Reject, RowSchema
from graphmill.storage.graph import PLAIN_OR_TYPED, open_graph
from graphmill.storage.graph_sets.graph_set import open_graphs, shard_batch
from graphmill.storage.graph_sets.graph_set_writer import GraphSetInfo, write_graphs
from graphmill.storage.graph_sets.packed_graphs import PackedGraphs
from tests.array_graph_store import ArrayGraphStore
from tests.stored_files import edit_manifest, stored_file

INFO = GraphSetInfo(
    "toy",
    node=RowSchema(2, "uint8", (9, 4)),
    edge=RowSchema(3, "uint8"),
    target_names=("a", "b"),
    split_names=("train", "valid", "test"),
)
_BAD_TEXT = pa.array([b"a", b"\xff", b"c"], pa.large_binary()).view(pa.large_string())


def _random_graphs(count, seed=0, node_dtype=np.uint8, bare=False):
    """Returns random graphs of 1 to 6 nodes. Every third graph has no edges."""
    rng = np.random.default_rng(seed)
    num_nodes = rng.integers(1, 7, count)
    num_edges = rng.integers(0, 9, count)
    num_edges[::3] = 0
    bound = np.repeat(num_nodes, num_edges)
    return PackedGraphs(
        num_nodes=num_nodes,
        num_edges=num_edges,
        edge_index=(rng.random((2, num_edges.sum())) * bound).astype(np.int32),
        node_feature=None if bare else rng.integers(0, 4, (num_nodes.sum(), 2)).astype(node_dtype),
        edge_feature=None if bare else rng.integers(0, 256, (num_edges.sum(), 3)).astype(np.uint8),
        target=None if bare else rng.normal(size=(count, 2)).astype(np.float32),
    )


def _reference(graphs):
    pointers = [np.concatenate([[0], np.cumsum(counts)]) for counts in (graphs.num_nodes, graphs.num_edges)]
    return ArrayGraphStore(*pointers, graphs.edge_index, graphs.node_feature, graphs.edge_feature, graphs.target)


def _split(count):
    return (np.arange(count) % 4).astype(np.int8)


def _write(url, parts, info=INFO, **options):
    start, batches = 0, []
    for graphs in parts:
        count = len(graphs.num_nodes)
        split = _split(count) if info.split_names else None
        batches.append(shard_batch(graphs, info.index_dtype, split, np.arange(start, start + count)))
        start += count
    return write_graphs(str(url), info, batches, **options)


def _write_and_replace(folder, batch):
    """Writes a store of `_random_graphs(3)`, and replaces its shard by `batch`, which has the same size. Because of the equal size, opening reads it."""
    _write(folder, [_random_graphs(3)])
    (file,) = folder.rglob("graphs.arrow")
    write_batch(file, dict(zip(batch.schema.names, batch.columns, strict=True)))


def _assert_equal(found, expected):
    for name, value in vars(expected).items():
        other = getattr(found, name)
        assert (value is None) == (other is None), name
        if value is not None:
            np.testing.assert_array_equal(other, value, err_msg=name)
            assert np.asarray(other).dtype == np.asarray(value).dtype, name


@pytest.fixture
def stored(tmp_path):
    parts = [_random_graphs(50, 1), _random_graphs(30, 2), _random_graphs(1, 3)]
    _write(tmp_path / "toy", parts)
    return open_graphs(str(tmp_path / "toy")), parts


def test_what_is_written_comes_back_in_any_order_across_shards(stored):
    store, parts = stored
    references = [_reference(graphs) for graphs in parts]
    assert len(store) == 81
    assert store.manifest.graph_offsets == (0, 50, 80, 81)
    order = np.random.default_rng(0).permutation(81)
    order = np.concatenate([order, order[:5]])  # some graphs are requested twice
    fetched = store.fetch(order)
    one_by_one = [references[np.searchsorted([50, 80], g, side="right")] for g in order]
    local = [g - (0, 50, 80)[np.searchsorted([50, 80], g, side="right")] for g in order]
    each = [reference.fetch(np.array([g])) for reference, g in zip(one_by_one, local, strict=True)]
    for name in ("num_nodes", "num_edges", "node_feature", "edge_feature", "target"):
        np.testing.assert_array_equal(getattr(fetched, name), np.concatenate([getattr(graph, name) for graph in each]))
    np.testing.assert_array_equal(fetched.edge_index, np.concatenate([graph.edge_index for graph in each], axis=1))
    assert fetched.edge_index.dtype == np.int32
    assert fetched.node_feature.dtype == np.uint8
    none = store.fetch(np.empty(0, np.int64))
    assert (none.edge_index.shape, none.node_feature.shape, none.target.shape) == ((2, 0), (0, 2), (0, 2))


def test_sizes_targets_splits_and_rows(stored):
    store, parts = stored
    np.testing.assert_array_equal(store.num_nodes, np.concatenate([graphs.num_nodes for graphs in parts]))
    np.testing.assert_array_equal(store.num_edges, np.concatenate([graphs.num_edges for graphs in parts]))
    np.testing.assert_array_equal(store.target, np.concatenate([graphs.target for graphs in parts]))
    codes = np.concatenate([_split(len(graphs.num_nodes)) for graphs in parts])
    for code, name in enumerate(("train", "valid", "test"), 1):
        np.testing.assert_array_equal(store.split(name), np.flatnonzero(codes == code))
    np.testing.assert_array_equal(store.original_id, np.arange(81))
    assert store.target_names == ("a", "b")
    with pytest.raises(ConfigError, match=r"expected a split of train, valid, test, got 'dev'"):
        store.split("dev")
    with pytest.raises(ConfigError, match=r"expected graphs in \[0, 81\), got -1 to 3"):
        store.fetch(np.array([3, -1]))


def test_files_are_mapped_not_copied(stored):
    store, _ = stored
    for shard in store.shards:
        for value in (value for value in vars(shard).values() if value is not None):
            assert not value.flags.owndata
            assert not value.flags.writeable


def test_the_sampler_takes_the_store_as_it_takes_arrays(tmp_path):
    graphs = _random_graphs(200)
    _write(tmp_path / "toy", [graphs])
    options = GraphBatchOptions(max_nodes=64)
    ours, theirs = (
        GraphBatchSampler(store, options) for store in (open_graphs(str(tmp_path / "toy")), _reference(graphs))
    )
    assert ours.num_batches == theirs.num_batches > 5
    for batch in range(ours.num_batches):
        _assert_equal(ours.sample(1, batch), theirs.sample(1, batch))


@pytest.mark.parametrize(("dtype", "index_dtype"), [("float32", "int32"), ("float16", "uint8"), ("int64", "uint16")])
def test_other_dtypes(tmp_path, dtype, index_dtype):
    graphs = _random_graphs(20, node_dtype=dtype)
    info = GraphSetInfo("toy", RowSchema(2, dtype), RowSchema(3, "uint8"), index_dtype, ("a", "b"))
    _write(tmp_path / "toy", [graphs], info)
    store = open_graphs(str(tmp_path / "toy"))
    _assert_equal(store.fetch(np.arange(20)), graphs)
    assert store.shards[0].source.dtype == index_dtype
    assert len(store.split_names) == 0


def test_bare_nodes_without_features_or_targets(tmp_path):
    graphs = _random_graphs(20, bare=True)
    _write(tmp_path / "toy", [graphs], GraphSetInfo("bare"))
    store = open_graphs(str(tmp_path / "toy"))
    store.verify()
    _assert_equal(store.fetch(np.arange(20)), graphs)
    assert store.target.shape == (20, 0)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any), st.randoms(use_true_random=False))
def test_any_shards_hand_out_the_same_graphs(tmp_path_factory, sizes, random):
    folder = tmp_path_factory.mktemp("shards")
    whole = _random_graphs(sum(sizes), 7)
    reference, start, parts = _reference(whole), 0, []
    for size in sizes:  # some shards have no graph
        parts.append(reference.fetch(np.arange(start, start + size)))
        start += size
    _write(folder / "toy", parts)
    picked = np.array(random.choices(range(sum(sizes)), k=9))
    _assert_equal(open_graphs(str(folder / "toy")).fetch(picked), reference.fetch(picked))


def test_the_store_travels_by_name(stored):
    store, _ = stored
    message = pickle.dumps(store)
    assert len(message) < 500
    received = pickle.loads(message)  # noqa: S301
    _assert_equal(received.fetch(np.array([4, 60])), store.fetch(np.array([4, 60])))


def test_a_relative_path_is_found_from_another_folder(stored, tmp_path, monkeypatch):
    store, _ = stored
    monkeypatch.chdir(Path(store.url).parent)
    message = pickle.dumps(open_graphs(Path(store.url).name))
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(message).url == store.url  # noqa: S301


def test_another_filesystem():
    graphs = _random_graphs(20)
    try:
        _write("memory://many/toy", [graphs])
        store = open_graphs("memory://many/toy")
        store.verify()
        _assert_equal(store.fetch(np.arange(20)), graphs)
    finally:
        fsspec.filesystem("memory").rm("/many", recursive=True)


def test_rejected_rows_come_back(tmp_path):
    rejects = [Reject(3, 'C"C,\nC', "not SMILES"), Reject(9, "ü", "no atoms")]
    _write(tmp_path / "toy", [_random_graphs(5)], rejects=rejects)
    store = open_graphs(str(tmp_path / "toy"))
    assert store.rejects() == rejects
    assert store.manifest.num_rejected == 2
    path = stored_file(tmp_path / "toy", "rejects.csv")
    path.write_text(path.read_text().replace("not", "now"))
    with pytest.raises(FormatError, match=r"rejects\.csv: expected sha256"):
        store.verify()


def test_what_is_there_stays_unless_overwritten(tmp_path):
    url = tmp_path / "toy"
    first = _write(url, [_random_graphs(5, 1)])
    with pytest.raises(ConfigError, match="pass --overwrite"):
        _write(url, [_random_graphs(6, 2)])
    assert open_graphs(str(url)).manifest == first
    reader = open_graphs(str(url))
    second = _write(url, [_random_graphs(6, 2)], overwrite=True)
    assert len(open_graphs(str(url))) == 6
    assert open_graphs(str(url), first.snapshot).manifest == first
    reader.verify()
    _assert_equal(reader.fetch(np.arange(5)), _random_graphs(5, 1))
    assert second.content_hash != first.content_hash
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_a_failure_half_way_leaves_nothing(tmp_path):
    def batches():
        yield shard_batch(_random_graphs(5), "uint16")
        raise DataError("the source broke")

    with pytest.raises(DataError, match="the source broke"):
        write_graphs(str(tmp_path / "toy"), INFO, batches())
    assert list(tmp_path.iterdir()) == []


def test_no_graph_at_all_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"expected at least one graph, got none; the first of 1 .* line 2: no atoms"):
        write_graphs(str(tmp_path / "toy"), INFO, [], [Reject(2, "", "no atoms")])
    with pytest.raises(FormatError, match=r"found none; make one with: graphmill ingest"):
        open_graphs(str(tmp_path / "toy"))


def test_kinds_are_told_apart(stored):
    store, _ = stored
    assert open_graph(store.url).manifest == store.manifest
    with pytest.raises(
        FormatError, match="expected a graph of one type of nodes or a typed graph, found a set of graphs"
    ):
        open_graph(store.url, kind=PLAIN_OR_TYPED)
    edit_manifest(store.url, lambda body: body.update(kind="one-graph"))
    with pytest.raises(FormatError, match="expected kind 'many-graphs', got 'one-graph'"):
        open_graphs(store.url)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_graphs", 80, "graph_offsets"),
        ("graph_offsets", [0, 50, 40, 81], "ascending"),
        ("index_dtype", "uint32", "index_dtype"),
        ("split_names", ["a", "a"], "distinct"),
        ("target_names", [1], "strings"),
        ("node", {"dim": 2, "dtype": None, "categories": []}, "dtype"),
        ("node", {"dim": 2, "dtype": "uint8", "categories": [9]}, "categories"),
        ("node", [], "an object"),
        ("num_rejected", 1, r"rejects\.csv"),
        ("snapshot", "1", "snapshot"),
        ("created", None, "created"),
        ("requires", ["typed-graphs"], "requires"),
        ("files", {"part-00000/nodes.arrow": {"num_bytes": 1, "sha256": "0" * 64, "path": "/etc"}}, "below data/"),
        ("content_hash", "0", "content_hash"),
        ("num_nodes", 1, "expected num_nodes 1 in all shards"),
        ("target_names", ["a", "b", "c"], "column 'target': expected fixed_size_list"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(stored, field, value, message):
    store, _ = stored

    def change(body):
        assert body[field] != value
        body[field], body["statistics"] = value, None

    edit_manifest(store.url, change)
    with pytest.raises(FormatError, match=message) as caught:
        open_graphs(store.url)
    assert "\n" not in str(caught.value)


def test_files_missing_truncated_or_flipped(stored):
    store, parts = stored
    path = stored_file(store.url, "part-00001/graphs.arrow")
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[content.index(parts[1].target.tobytes())] ^= 1
    for damaged, message in ((content[:-8], "truncated"), (bytes(flipped), "the file is corrupt")):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=rf"part-00001/graphs\.arrow: expected .*{message}"):
            open_graphs(store.url).verify()
    path.unlink()
    with pytest.raises(FormatError, match=r"part-00001/graphs\.arrow: expected a file of \d+ bytes, found none"):
        open_graphs(store.url)


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("beyond", [0, -1])
def test_edges_that_leave_their_graph_are_refused(tmp_path, end, beyond):
    graphs = _random_graphs(20)
    last = int(np.flatnonzero(graphs.num_edges)[-1])
    # the number after the graph's last node, or a negative number
    node = int(graphs.num_nodes[last]) if beyond == 0 else beyond
    graphs.edge_index[end, -1] = node
    info = GraphSetInfo("toy", INFO.node, INFO.edge, "int32", INFO.target_names, INFO.split_names)
    _write(tmp_path / "toy", [graphs], info)
    found = f"{node} -> \\d" if end == 0 else f"\\d -> {node}"
    message = rf"graph {last}: expected edges among its {graphs.num_nodes[last]} nodes, found {found}$"
    with pytest.raises(FormatError, match=message):
        open_graphs(str(tmp_path / "toy"))


def test_categories_and_split_codes_out_of_range_are_refused(tmp_path):
    graphs = _random_graphs(20)
    graphs.node_feature[7, 1] = 4
    _write(tmp_path / "categories", [graphs])
    with pytest.raises(FormatError, match=r"node feature 1: expected categories in \[0, 4\), found 0 to 4"):
        open_graphs(str(tmp_path / "categories")).verify()
    batch = shard_batch(_random_graphs(3), "uint16", np.array([0, 4, 1], np.int8))
    with pytest.raises(DataError, match="expected split codes 0 to 3, got 0 to 4"):
        write_graphs(str(tmp_path / "codes"), INFO, [batch])
    _write_and_replace(tmp_path / "codes", batch)
    with pytest.raises(FormatError, match="expected split codes 0 to 3, found 0 to 4"):
        open_graphs(str(tmp_path / "codes"))


def test_lists_that_do_not_fit_are_refused(tmp_path):
    batch = shard_batch(_random_graphs(3), "uint16", np.zeros(3, np.int8))
    nodes = batch.column("nodes")
    broken = np.frombuffer(nodes.buffers()[1], np.int64).copy()
    broken[1] = broken[2] + 1
    lists = pa.LargeListArray.from_arrays(pa.array(broken), nodes.values)
    batch = batch.set_column(batch.schema.get_field_index("nodes"), "nodes", lists)
    with pytest.raises(DataError, match="column 'nodes': expected list offsets that ascend"):
        write_graphs(str(tmp_path / "toy"), INFO, [batch])
    _write_and_replace(tmp_path / "toy", batch)
    with pytest.raises(FormatError, match="column 'nodes': expected list offsets ascending from 0"):
        open_graphs(str(tmp_path / "toy"))


@pytest.mark.parametrize("found", [None, pa.array([1, 2, 3]), pa.array(["a", None, "c"], pa.large_string()), _BAD_TEXT])
def test_ids_that_are_not_what_the_manifest_says_are_refused(found, tmp_path):
    batch = shard_batch(_random_graphs(3), "uint16", ids=found)
    write_graphs(str(tmp_path / "set"), replace(INFO, split_names=(), id_kind="string"), [batch])
    with pytest.raises(FormatError, match=r"graphs\.arrow: column 'id': "):
        open_graphs(str(tmp_path / "set"))
