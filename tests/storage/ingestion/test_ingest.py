"""Compares ingestion with a slow reference. Tests atomic publishing, and input that is refused."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphmill.storage.external_sort.edge_buckets
import graphmill.storage.ingestion.edge_ingestion
import graphmill.storage.ingestion.node_spool
from graphmill.core.errors import ConfigError, DataError, FormatError, GraphmillError
from graphmill.storage.external_sort.edge_buckets import EdgeBuckets
from graphmill.storage.format.source import EdgeChunk, NodeChunk, SourceInfo
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import Partitioner
from graphmill.storage.snapshots.journal import CLOCK_MARGIN_S, LEASE_S
from graphmill.storage.snapshots.prune import prune
from tests.listed_graph import (
    ListedGraph,
    expected_graph,
    listed_graphs,
    random_listed_graph,
    stored_graph,
)
from tests.stored_files import all_files

REPOSITORY = Path(__file__).resolve().parents[3]
PARTITIONERS = ("random", "range", "ldg")


class TinyBuckets(EdgeBuckets):
    """The largest number of buckets, each of which is split if it has more than 3 edges. Chunks have 5 edges. There are two threads of each kind."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs | {"expected_edges": 8 * 2**20})
        self._max_records = 3
        self.chunk_edges, self.num_groupers, self._num_sorters = 5, 2, 2
        self._max_held_bytes = 100


@st.composite
def cases(draw: st.DrawFn) -> tuple[ListedGraph, IngestOptions]:
    graph = draw(listed_graphs())
    options = IngestOptions(
        num_partitions=draw(st.integers(1, min(4, graph.num_nodes))),
        partitioner=draw(st.sampled_from(PARTITIONERS)),
        seed=draw(st.integers(0, 3)),
        undirected=draw(st.sampled_from([None, True, False])),
        drop_duplicates=draw(st.booleans()),
        drop_self_loops=draw(st.booleans()),
        edge_ids=draw(st.booleans()),
        out_edges=draw(st.booleans()),
        feature_dtype=draw(st.sampled_from(["float16", "float32"])),
        memory_budget_bytes=1 << 24,
        num_threads=draw(st.sampled_from([None, 1, 3])),
    )
    return graph, options


def memory_url() -> str:
    return f"memory://tests/{uuid.uuid4().hex}/graph"


def beside(url: Path) -> list[str]:
    """Returns the names in the folder of the destination, including hidden names."""
    return sorted(os.listdir(url.parent))


@given(cases())
def test_any_graph_is_stored_as_the_reference_says(case: tuple[ListedGraph, IngestOptions]) -> None:
    graph, options = case
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/graph"
        manifest = ingest(graph, url, options)
        opened = open_graph(url)
        assert opened.manifest == manifest
        assert manifest.num_partitions == options.num_partitions
        expected = expected_graph(graph, options)
        assert stored_graph(opened) == expected
        assert manifest.num_edges == sum(len(node.in_edges) for node in expected.values())
        assert os.listdir(folder) == ["graph"]


@given(cases())
def test_tiny_buckets_and_their_splits_change_nothing(case: tuple[ListedGraph, IngestOptions]) -> None:
    graph, options = case
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        plain = ingest(graph, f"{folder}/plain", options)
        patch.setattr(graphmill.storage.external_sort.edge_buckets, "_MAX_BUCKETS", 6)
        patch.setattr(graphmill.storage.ingestion.edge_ingestion, "EdgeBuckets", TinyBuckets)
        tiny = ingest(graph, f"{folder}/tiny", options)
        assert tiny.content_hash == plain.content_hash
        assert stored_graph(open_graph(f"{folder}/tiny")) == expected_graph(graph, options)


@pytest.mark.parametrize("partitioner", [*PARTITIONERS, "metis"])
def test_the_partitions_do_not_show_through_original_ids(partitioner: str, tmp_path: Path) -> None:
    if partitioner == "metis":
        pytest.importorskip("pymetis")
    graph = random_listed_graph(300, 2000)
    graphs = []
    for count in (1, 2, 4, 7):
        ingest(graph, str(tmp_path / str(count)), IngestOptions(num_partitions=count, partitioner=partitioner))
        graphs.append(stored_graph(open_graph(str(tmp_path / str(count)))))
    assert all(graph == graphs[0] for graph in graphs)


@pytest.mark.parametrize("edges_per_chunk", [1, 2, 3, 1000])
def test_chunk_sizes_do_not_decide_which_of_two_equal_edges_stays(edges_per_chunk: int, tmp_path: Path) -> None:
    graph = ListedGraph(
        num_nodes=2,
        edges_listed=[(0, 1), (1, 0), (1, 0), (0, 1)],
        weight=[1.0, 2.0, 3.0, 4.0],
        edges_per_chunk=edges_per_chunk,
    )
    for name, options, weight in (
        ("first", IngestOptions(undirected=True, drop_duplicates=True), 1.0),
        ("summed", IngestOptions(undirected=True), 10.0),
    ):
        ingest(graph, str(tmp_path / name), options)
        rows = stored_graph(open_graph(str(tmp_path / name)))
        assert [[edge.weight for edge in rows[node].in_edges] for node in (0, 1)] == [[weight], [weight]]


def test_two_ingestions_of_the_same_source_are_the_same_bytes(tmp_path: Path) -> None:
    graph = random_listed_graph(200, 1500)
    options = IngestOptions(num_partitions=3, edge_ids=True)
    budgets = [replace(options, memory_budget_bytes=1 << bits) for bits in (24, 26)]
    hashes = {ingest(graph, str(tmp_path / str(run)), each).content_hash for run, each in enumerate(budgets)}
    assert len(hashes) == 1
    assert ingest(graph, str(tmp_path / "seed"), replace(options, seed=1)).content_hash not in hashes


def test_more_partitions_than_a_process_may_open_files(tmp_path: Path) -> None:
    graph = replace(random_listed_graph(400, 1000, feature_dim=0), weight=[1.0] * 1000)
    script = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        from graphmill.storage.ingestion.ingest import IngestOptions, ingest
        from tests.listed_graph import random_listed_graph
        from dataclasses import replace
        graph = replace(random_listed_graph(400, 1000, feature_dim=0), weight=[1.0] * 1000)
        ingest(graph, {str(tmp_path / "graph")!r}, IngestOptions(num_partitions=300, edge_ids=True))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=REPOSITORY, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    options = IngestOptions(num_partitions=300, edge_ids=True)
    assert stored_graph(open_graph(str(tmp_path / "graph"))) == expected_graph(graph, options)


def test_a_scratch_folder_elsewhere_is_left_empty(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    ingest(random_listed_graph(50, 100), str(tmp_path / "new" / "deep" / "graph"), IngestOptions(scratch=str(scratch)))
    assert os.listdir(scratch) == []
    assert beside(tmp_path / "new" / "deep" / "graph") == ["graph"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_scratch_folder_on_another_disk(overwrite: bool, tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second writable filesystem at /dev/shm")
    url = tmp_path / "graph"
    if overwrite:
        ingest(random_listed_graph(20, 30), str(url))
    graph = random_listed_graph(50, 100)
    with tempfile.TemporaryDirectory(dir=other) as scratch:
        ingest(graph, str(url), IngestOptions(scratch=scratch, overwrite=overwrite))
        assert os.listdir(scratch) == []
    assert stored_graph(open_graph(str(url))) == expected_graph(graph, IngestOptions())
    assert beside(url) == ["graph"]
    assert not url.stat().st_mode & 0o055 ^ 0o055  # Other users can read the graph, like any new folder here.


class Broken:
    """A source whose stream of edges or nodes raises after some chunks."""

    def __init__(self, graph: ListedGraph, stream: str, error: BaseException, after: int = 2) -> None:
        self._graph, self._stream, self._error, self._after = graph, stream, error, after

    @property
    def info(self) -> SourceInfo:
        return self._graph.info

    def _break(self, chunks: Iterator, stream: str) -> Iterator:
        if self._stream != stream:
            yield from chunks
            return
        yield from itertools.islice(chunks, self._after)
        raise self._error

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        return self._break(self._graph.edges(chunk_edges), "edges")

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        return self._break(self._graph.nodes(chunk_nodes), "nodes")


@pytest.mark.parametrize("old_graph", [False, True])
@pytest.mark.parametrize("error", [OSError("the disk went away"), KeyboardInterrupt(), DataError("bad rows")])
@pytest.mark.parametrize("stream", ["edges", "nodes"])
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_source_that_breaks_half_way_leaves_nothing(
    kind: str, stream: str, error: BaseException, old_graph: bool, tmp_path: Path, monkeypatch
) -> None:
    url = str(tmp_path / "graph") if kind == "local" else memory_url()
    old = random_listed_graph(30, 60, seed=1)
    if old_graph:
        ingest(old, url)
    graph = replace(random_listed_graph(40, 80), edges_per_chunk=10, nodes_per_chunk=10)
    # a separate folder, because another process may ingest at the same time
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(os.listdir(tempfile.gettempdir()))
    with pytest.raises(type(error)):
        ingest(Broken(graph, stream, error), url, IngestOptions(num_partitions=2, overwrite=old_graph))
    if old_graph:
        assert stored_graph(open_graph(url)) == expected_graph(old, IngestOptions())
    else:
        assert not fsspec.core.url_to_fs(url)[0].exists(url)
    if kind == "local":
        assert beside(Path(url)) == ["graph"] * old_graph
    else:
        assert not [name for name in set(os.listdir(tempfile.gettempdir())) - before if ".ingest-" in name]


@pytest.mark.parametrize("stage", ["edges", "write", "checksum"])
def test_ctrl_c_in_any_stage_leaves_the_old_graph(stage: str, tmp_path: Path) -> None:
    url, old = tmp_path / "graph", random_listed_graph(30, 60, seed=1)
    ingest(old, str(url))

    def interrupt(name: str, done: int, total: int | None) -> None:
        if name == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(random_listed_graph(40, 80), str(url), IngestOptions(num_partitions=2, overwrite=True), interrupt)
    assert stored_graph(open_graph(str(url))) == expected_graph(old, IngestOptions())
    assert beside(url) == ["graph"]


def failing_at(nth: int, function: Callable, error: BaseException) -> Callable:
    """Returns a function that calls `function`, but raises an error at call number `nth` (from 0)."""
    calls = itertools.count()

    def call(*args, **kwargs):
        if next(calls) == nth:
            raise error
        return function(*args, **kwargs)

    return call


def everything(filesystem: fsspec.AbstractFileSystem, path: str) -> dict[str, bytes]:
    """Returns the content of all files around the graph at `path`, by their paths below the common folder."""
    folder = path.rsplit("/", 1)[0]
    return {name.removeprefix(folder): filesystem.cat_file(name) for name in filesystem.find(folder)}


UPLOADED_FILES = 6  # Three files per partition. The manifest is not among them, because it is created from its text.


@pytest.mark.parametrize("error", [OSError("connection reset"), KeyboardInterrupt()])
@pytest.mark.parametrize("old_graph", [False, True])
@pytest.mark.parametrize("nth", [0, 3, UPLOADED_FILES - 1, None])
def test_a_broken_upload_leaves_the_old_graph_or_nothing(
    nth: int | None, old_graph: bool, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nth`: number of the file whose upload fails; None: the manifest."""
    url = memory_url()
    filesystem, path = fsspec.core.url_to_fs(url)
    store, pipe_file = type(filesystem), type(filesystem).pipe_file
    if old_graph:
        ingest(random_listed_graph(40, 60, seed=1), url, IngestOptions(num_partitions=3))
    before = everything(filesystem, path) if old_graph else {}

    def fail_for_the_manifest(self, target: str, *args, **kwargs) -> None:
        if "/manifests/" in target:
            raise error
        pipe_file(self, target, *args, **kwargs)

    with monkeypatch.context() as patch:
        if nth is None:
            patch.setattr(store, "pipe_file", fail_for_the_manifest)
        else:
            patch.setattr(store, "put_file", failing_at(nth, store.put_file, error))
        with pytest.raises(FormatError if isinstance(error, OSError) else type(error)) as failed:
            ingest(random_listed_graph(30, 60), url, IngestOptions(num_partitions=2, overwrite=old_graph))
    if isinstance(error, OSError):
        assert "cannot write this file: connection reset" in str(failed.value)
        assert "\n" not in str(failed.value)
    assert (everything(filesystem, path) if old_graph else {}) == before
    assert filesystem.exists(path) == old_graph


def test_an_upload_that_arrives_short_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    url, old = memory_url(), random_listed_graph(40, 60, seed=1)
    filesystem, path = fsspec.core.url_to_fs(url)
    ingest(old, url)
    before = everything(filesystem, path)
    put_file = type(filesystem).put_file

    def put_short(self, source: str, target: str, **kwargs) -> None:
        put_file(self, source, target, **kwargs)
        if target.endswith("features.arrow"):
            self.pipe_file(target, self.cat_file(target)[:-1])

    with monkeypatch.context() as patch:
        patch.setattr(type(filesystem), "put_file", put_short)
        with pytest.raises(FormatError, match=r"features\.arrow: expected \d+ bytes after the upload, found"):
            ingest(random_listed_graph(30, 60), url, IngestOptions(overwrite=True))
    assert everything(filesystem, path) == before


def test_a_new_snapshot_of_a_remote_graph_leaves_the_old_ones_files_alone() -> None:
    url, old = memory_url(), random_listed_graph(40, 60, seed=1)
    filesystem, path = fsspec.core.url_to_fs(url)
    ingest(old, url, IngestOptions(num_partitions=3))
    before = everything(filesystem, path)
    manifest = ingest(random_listed_graph(30, 60), url, IngestOptions(num_partitions=2, overwrite=True))
    after = everything(filesystem, path)
    assert before.items() <= after.items()
    folders = {"/".join(entry.path.split("/")[:2]) for entry in manifest.files.values()}
    assert len(folders) == 1
    new = {entry.path for entry in manifest.files.values()} | {"manifests/000002.json", f"{folders.pop()}/journal.json"}
    assert after.keys() - before.keys() == {f"/graph/{name}" for name in new}
    open_graph(url).verify()
    assert stored_graph(open_graph(url, 1)) == expected_graph(old, IngestOptions())


def test_a_destination_that_takes_no_files_is_refused_in_one_line() -> None:
    if not Path("/proc").is_dir():
        pytest.skip("needs /proc, where not even root can make a folder")
    with pytest.raises(ConfigError, match=r"/proc/graph: cannot make this directory \(choose another url\): "):
        ingest(SMALL, "/proc/graph")


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device", "nodes.arrow")

    monkeypatch.setattr(graphmill.storage.ingestion.node_spool, "write_batch", fail)
    with pytest.raises(FormatError, match=r"cannot prepare the graph: No space left on device \(nodes\.arrow\)"):
        ingest(SMALL, str(tmp_path / "graph"))
    assert os.listdir(tmp_path) == []


def test_a_killed_ingestion_leaves_no_graph_and_does_not_stop_the_next_one(tmp_path: Path) -> None:
    url = tmp_path / "graph"
    script = f"""
        import sys, time
        from graphmill.storage.ingestion.ingest import IngestOptions, ingest
        from tests.listed_graph import random_listed_graph
        def wait(stage, done, total):
            if stage == "write":
                print("writing", flush=True)
                time.sleep(600)
        ingest(random_listed_graph(40, 80), {str(url)!r}, IngestOptions(num_partitions=2), wait)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    with pytest.raises(FormatError, match=r"expected a graph .*, found none"):
        open_graph(str(url))
    # A killed ingestion leaves one folder with a journal. The next ingestion does not touch this folder; `prune` removes it later.
    (left,) = (url / "data").iterdir()
    assert (left / "journal.json").exists()
    assert beside(url) == ["graph"]
    before = all_files(left)
    graph = random_listed_graph(40, 80)
    ingest(graph, str(url))
    assert stored_graph(open_graph(str(url))) == expected_graph(graph, IngestOptions())
    assert beside(url) == ["graph"]
    assert all_files(left) == before
    assert prune(str(url), keep=1).held == (f"data/{left.name}",)
    pruned = prune(str(url), keep=1, now=time.time() + LEASE_S + CLOCK_MARGIN_S + 1)
    assert pruned.orphans == (f"data/{left.name}",)
    assert not left.exists()
    assert stored_graph(open_graph(str(url))) == expected_graph(graph, IngestOptions())


SMALL = random_listed_graph(20, 40)


def with_edges(*edges: tuple[int, int]) -> ListedGraph:
    return replace(SMALL, edges_listed=[*SMALL.edges_listed, *edges])


def with_feature(row: int, value: float) -> ListedGraph:
    assert SMALL.feature is not None
    feature = [list(values) for values in SMALL.feature]
    feature[row][1] = value
    return replace(SMALL, feature=feature)


class Rows:
    """SMALL with another stream of nodes or other metadata."""

    def __init__(self, change: Callable[[NodeChunk], NodeChunk] = lambda chunk: chunk, **facts) -> None:
        self._change = change
        self.info = replace(SMALL.info, **facts)

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        return SMALL.edges(chunk_edges)

    def nodes(self, chunk_nodes: int) -> Iterator[NodeChunk]:
        return map(self._change, SMALL.nodes(chunk_nodes))


class EdgeRows(Rows):
    """SMALL with another stream of edges."""

    def __init__(self, change: Callable[[EdgeChunk], EdgeChunk], **facts) -> None:
        super().__init__(**facts)
        self._change_edges = change

    def edges(self, chunk_edges: int) -> Iterator[EdgeChunk]:
        return map(self._change_edges, SMALL.edges(chunk_edges))


REFUSED_SOURCES = {
    "edge id too large": (with_edges((3, 20)), "edge 40: expected node ids in [0, 20), got 20"),
    "edge id negative": (with_edges((-1, 3)), "edge 40: expected node ids in [0, 20), got -1"),
    "edge id huge": (with_edges((2**40, 3)), f"got {2**40}"),
    "NaN feature": (with_feature(7, float("nan")), "1 non-finite values in 1 rows"),
    "infinite feature": (with_feature(7, float("-inf")), "1 non-finite values in 1 rows"),
    "label too large": (replace(SMALL, num_classes=3), "expected -1 (none) or a class in [0, 3), got 4"),
    "label beyond any count": (
        replace(SMALL, label=[0] * 19 + [10**9], num_classes=None),
        "labels out of range: the largest is 1000000000, more classes than the 20 nodes",
    ),
    "label negative": (replace(SMALL, label=[-2] + [0] * 19), "got -2; 1 such labels"),
    "no labels after all": (Rows(lambda c: replace(c, label=None)), "expected labels, the source gave none"),
    "fewer node rows": (Rows(num_nodes=25), "expected 25 node rows, got 20"),
    "more node rows": (Rows(num_nodes=10), "expected 10 node rows, got at least 20"),
    "no nodes": (Rows(num_nodes=0), "expected at least one node, got 0"),
    "unequal node columns": (Rows(lambda c: replace(c, label=c.label[:5])), "expected columns of equal length"),
    "features too narrow": (Rows(lambda c: replace(c, feature=c.feature[:, :2])), "expected features of width 4"),
    "features missing": (Rows(lambda c: replace(c, feature=None)), "expected features of width 4, got None"),
    "features unannounced": (Rows(feature_dim=0), "expected features of width 0"),
    "split code too large": (replace(SMALL, split=[[4, 0]] * 20), "expected codes 0 to 3, got 4"),
    "split code negative": (replace(SMALL, split=[[-1, 0]] * 20), "expected codes 0 to 3, got -1"),
    "split sets missing": (Rows(num_split_sets=3), "splits: expected shape (20, 3), got (20, 2)"),
    "ids not ascending": (replace(SMALL, original_id=[*range(19), 5]), "expected strictly ascending original ids"),
    "ids repeated over chunks": (
        replace(SMALL, original_id=[*range(10), *range(9, 19)], nodes_per_chunk=10),
        "expected strictly ascending original ids",
    ),
    "sources and destinations": (
        EdgeRows(lambda c: replace(c, dst=c.dst[:-1])),
        "expected as many sources as destinations, got 40 and 39",
    ),
    "weights unannounced": (
        EdgeRows(lambda c: replace(c, weight=np.ones(40, np.float32))),
        "edge weights: expected shape None, got (40,)",
    ),
    "weights missing": (EdgeRows(lambda c: c, has_edge_weight=True), "edge weights: expected shape (40,), got None"),
    "weights too few": (
        EdgeRows(lambda c: replace(c, weight=np.ones(39, np.float32)), has_edge_weight=True),
        "edge weights: expected shape (40,), got (39,)",
    ),
    "NaN weight": (
        EdgeRows(lambda c: replace(c, weight=np.full(40, np.nan, np.float32)), has_edge_weight=True),
        "edge weights hold 40 non-finite values",
    ),
    "edge features too narrow": (
        EdgeRows(lambda c: replace(c, feature=np.ones((40, 2), np.float32)), edge_feature_dim=3),
        "edge features: expected shape (40, 3), got (40, 2)",
    ),
    "edge features missing": (EdgeRows(lambda c: c, edge_feature_dim=3), "expected shape (40, 3), got None"),
    "infinite edge feature": (
        EdgeRows(lambda c: replace(c, feature=np.full((40, 1), np.inf, np.float32)), edge_feature_dim=1),
        "edge features hold 40 non-finite values",
    ),
}


@pytest.mark.parametrize("name", REFUSED_SOURCES)
def test_a_source_that_breaks_the_rules_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    source, message = REFUSED_SOURCES[name]
    with pytest.raises(DataError) as refused:
        ingest(source, str(tmp_path / "graph"))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("listed: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("partitioner", ["ldg", "metis"])
def test_partitioners_refuse_ends_of_unequal_number(partitioner: Partitioner, tmp_path: Path) -> None:
    source = EdgeRows(lambda c: replace(c, dst=c.dst[:-1]))
    with pytest.raises(DataError, match=r"^listed: expected as many sources as destinations, got 40 and 39$"):
        ingest(source, str(tmp_path / "graph"), IngestOptions(num_partitions=2, partitioner=partitioner))
    assert os.listdir(tmp_path) == []


def test_a_number_of_classes_wins_over_the_count(tmp_path: Path) -> None:
    url, labels = str(tmp_path / "graph"), [0] * 19 + [10**9]
    with pytest.raises(DataError, match=r"expected -1 \(none\) or a class in \[0, 3\), got 1000000000; 1 such"):
        ingest(replace(SMALL, label=labels, num_classes=None), url, IngestOptions(num_classes=3))
    assert ingest(SMALL, url, IngestOptions(num_classes=30)).num_classes == 30
    assert ingest(replace(SMALL, label=[3] * 20, num_classes=None), f"{url}-counted").num_classes == 4
    rich = ingest(replace(SMALL, label=labels, num_classes=None), f"{url}-rich", IngestOptions(num_classes=10**9 + 1))
    assert rich.num_classes == 10**9 + 1


@pytest.mark.parametrize("found", ["no labels", "real numbers"])
def test_a_number_of_classes_without_classes_is_refused(found: str, tmp_path: Path) -> None:
    label = None if found == "no labels" else [0.5] * 20
    with pytest.raises(ConfigError, match=f"num_classes 3: expected classes as labels, found {found}"):
        ingest(replace(SMALL, label=label, num_classes=None), str(tmp_path / "graph"), IngestOptions(num_classes=3))
    assert os.listdir(tmp_path) == []


def test_what_may_be_allowed_is_allowed(tmp_path: Path) -> None:
    ingest(with_feature(7, float("nan")), str(tmp_path / "graph"), IngestOptions(allow_nonfinite=True))
    assert np.isnan(open_graph(str(tmp_path / "graph")).partition(0).feature_numbers()).sum() == 1


def test_a_feature_too_large_for_float16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 non-finite values in 1 rows"):
        ingest(with_feature(7, 1e6), str(tmp_path / "graph"), IngestOptions(feature_dtype="float16"))
    assert os.listdir(tmp_path) == []


REFUSED_OPTIONS = {
    "no partition": ({"num_partitions": 0}, "num_partitions: expected 1 to 10000, got 0; set num_partitions"),
    "too many partitions": ({"num_partitions": 100_001}, "expected 1 to 10000, got 100001"),
    "more partitions than nodes": ({"num_partitions": 21}, "at most one partition per node (20), got 21"),
    "unknown partitioner": ({"partitioner": "spectral"}, "got 'spectral'; set partitioner"),
    "no class": ({"num_classes": 0}, "num_classes: expected at least 1, got 0; set num_classes"),
    "tiny budget": ({"memory_budget_bytes": 1 << 20}, "expected at least 16 MiB, got 1048576"),
}


@pytest.mark.parametrize("name", REFUSED_OPTIONS)
def test_an_option_that_cannot_work_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    options, message = REFUSED_OPTIONS[name]
    with pytest.raises(ConfigError) as refused:
        ingest(SMALL, str(tmp_path / "graph"), IngestOptions(**options))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert os.listdir(tmp_path) == []


def _a_file(folder: Path) -> str:
    (folder / "graph").write_text("precious")
    return str(folder / "graph")


def _other_files(folder: Path) -> str:
    (folder / "graph").mkdir()
    (folder / "graph" / "thesis.tex").write_text("precious")
    return str(folder / "graph")


def _below_a_file(folder: Path) -> str:
    return f"{_a_file(folder)}/deeper/graph"


REFUSED_PLACES = {
    "a file": (_a_file, True, "expected a graph or nothing there, found a file"),
    "other files": (
        _other_files,
        True,
        "expected a graph or nothing there, found other files ('thesis.tex'); choose another url",
    ),
    "below a file": (_below_a_file, False, "expected a folder, found that"),
    "unknown protocol": (lambda _: "carrier-pigeon://graph", False, "cannot open this kind of URL"),
}


@pytest.mark.parametrize("name", REFUSED_PLACES)
def test_a_place_that_is_taken_stays_as_it_is(name: str, tmp_path: Path) -> None:
    make, overwrite, message = REFUSED_PLACES[name]
    url = make(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(GraphmillError) as refused:
        ingest(SMALL, url, IngestOptions(overwrite=overwrite))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_empty_folder_is_a_fine_place(tmp_path: Path) -> None:
    ingest(SMALL, str(tmp_path))
    assert stored_graph(open_graph(str(tmp_path))) == expected_graph(SMALL, IngestOptions())


def test_overwrite_publishes_a_snapshot_without_the_surplus_partitions_of_the_one_before(tmp_path: Path) -> None:
    for url in (str(tmp_path / "graph"), memory_url()):
        first = ingest(SMALL, url, IngestOptions(num_partitions=4))
        second = ingest(SMALL, url, IngestOptions(num_partitions=2, overwrite=True))
        assert (first.snapshot, second.snapshot) == (1, 2)
        assert {name.split("/")[0] for name in second.files} == {"part-00000", "part-00001"}
        for snapshot, num_partitions in ((1, 4), (2, 2), (None, 2)):
            opened = open_graph(url, snapshot)
            assert opened.manifest.num_partitions == num_partitions
            assert stored_graph(opened) == expected_graph(SMALL, IngestOptions())
    assert sorted(os.listdir(tmp_path / "graph")) == ["data", "manifests"]


def test_progress_counts_every_stage_to_its_end(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    graph = replace(SMALL, edges_per_chunk=7, nodes_per_chunk=9)
    ingest(graph, str(tmp_path / "graph"), IngestOptions(num_partitions=2), lambda *event: seen.append(event))
    stages = [stage for stage, _ in itertools.groupby(seen, key=lambda event: event[0])]
    assert stages == ["nodes", "assign", "edges", "write", "checksum"]
    last = {stage: (done, total) for stage, done, total in seen}
    assert last["nodes"] == (20, 20)
    assert last["edges"] == (40, 40)
    assert last["write"] == (2, 2)


@pytest.mark.slow
def test_memory_is_bounded_by_the_budget_and_not_by_the_graph(tmp_path: Path) -> None:
    script = f"""
        import resource
        import numpy as np
        from graphmill.storage.ingestion.ingest import IngestOptions, ingest
        from graphmill.storage.format.source import EdgeChunk, NodeChunk, SourceInfo
        class Made:  # edges and features made as they are asked for
            def __init__(self, num_nodes, num_edges):
                self.info = SourceInfo(name="made", num_nodes=num_nodes, num_edges=num_edges, feature_dim=512)
            def edges(self, chunk_edges):
                num_nodes, num_edges = self.info.num_nodes, self.info.num_edges
                for start in range(0, num_edges, chunk_edges):
                    rng = np.random.default_rng(start)
                    count = min(chunk_edges, num_edges - start)
                    yield EdgeChunk(rng.integers(0, num_nodes, count), rng.integers(0, num_nodes, count))
            def nodes(self, chunk_nodes):
                num_nodes = self.info.num_nodes
                for start in range(0, num_nodes, chunk_nodes):
                    yield NodeChunk(feature=np.ones((min(chunk_nodes, num_nodes - start), 512), np.float32))
        folder, options = {str(tmp_path)!r}, IngestOptions(num_partitions=4, memory_budget_bytes=1 << 24)
        ingest(Made(100, 1000), folder + "/small", options)  # loads the compiler, and what it compiles
        def anonymous():  # mapped scratch files are the page cache's, and are given back under pressure
            status = open("/proc/self/status").read()
            return int(status.split("RssAnon:")[1].split()[0]) * 1024
        start, most = anonymous(), 0
        def watch(*_):
            global most
            most = max(most, anonymous())
        ingest(Made(50_000, 8_000_000), folder + "/graph", options, watch)  # 100 MB of features
        print(most - start)
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=REPOSITORY, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40 * 2**20, f"{int(done.stdout) / 2**20:.0f} MiB"
    assert time.perf_counter() - started < 120
