"""Opens stored graphs. Arrays are views without a copy, and every kind of damage gives a clear one-line error."""

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphmill.storage.graph
from graphmill.core.errors import ConfigError, FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.format.arrow_files import array_from_numpy, neighbor_lists, write_batch
from graphmill.storage.format.manifest import Manifest, parse_manifest
from graphmill.storage.format.source import EdgeChunk, NodeChunk, SourceInfo
from graphmill.storage.graph import Partition, StoredGraph, _first_unordered_list, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import ListedGraph, expected_graph, random_listed_graph, stored_graph
from tests.stored_files import edit_manifest, newest_manifest, stored_file

REPOSITORY = Path(__file__).resolve().parents[2]
OPTIONS = IngestOptions(num_partitions=2, edge_ids=True, out_edges=True)
FILES = ("topology", "out_topology", "nodes", "features", "edges")


def full_graph() -> ListedGraph:
    """Returns a graph with every kind of column."""
    graph = random_listed_graph(40, 160)
    weight = (np.arange(160) / 8).tolist()
    return replace(graph, weight=weight, edge_feature=[[w, -w] for w in weight], edge_feature_dim=2)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    url = tmp_path_factory.mktemp("stored") / "graph"
    ingest(full_graph(), str(url), OPTIONS)
    return url


@pytest.fixture
def stored(pristine: Path, tmp_path: Path) -> Path:
    """Returns a copy of the graph, which a test may damage."""
    return Path(shutil.copytree(pristine, tmp_path / "graph"))


def arrays(partition: Partition) -> dict[str, np.ndarray]:
    return {name: value for name, value in vars(partition).items() if isinstance(value, np.ndarray)}


def refusal(url: str | Path, *, verify: bool) -> str:
    """Opens or verifies the whole graph. Returns the message of the error."""

    def read() -> None:
        graph = open_graph(str(url))
        if verify:
            graph.verify()
        else:
            list(graph.partitions())

    with pytest.raises(FormatError) as refused:
        read()
    assert "\n" not in str(refused.value)
    assert str(url) in str(refused.value)
    return str(refused.value)


def reseal(url: Path, **facts) -> None:
    """Writes a manifest whose checksums match the changed files, and whose metadata may be changed, too. So checksums do not show the damage."""
    path = newest_manifest(url)
    manifest = parse_manifest(path.read_text(), str(path))
    contents = {entry.path: (url / entry.path).read_bytes() for entry in manifest.files.values()}
    files = {
        name: FileEntry(len(contents[entry.path]), hashlib.sha256(contents[entry.path]).hexdigest(), entry.path)
        for name, entry in manifest.files.items()
    }
    path.write_text(replace(manifest, files=files, **facts).to_json())


def test_all_arrays_are_views_of_mapped_files(pristine: Path) -> None:
    before = pa.total_allocated_bytes()
    for partition in open_graph(str(pristine)).partitions():
        found = arrays(partition)
        assert len(found) == 13
        for name, array in found.items():
            assert not array.flags.writeable, name
            if name != "split":  # `split` is a copy, because it is stacked from one column per split set
                assert not array.flags.owndata, name
    assert pa.total_allocated_bytes() == before


def test_split_sets_are_rows_of_a_read_only_array(pristine: Path) -> None:
    partition = open_graph(str(pristine)).partition(0)
    assert partition.split is not None
    assert partition.split.shape == (2, partition.num_nodes)
    assert partition.split.dtype == np.int8


def big_source(num_nodes: int, feature_dim: int):
    class Big:
        info = SourceInfo(name="big", num_nodes=num_nodes, num_edges=num_nodes, feature_dim=feature_dim)

        def edges(self, chunk_edges: int):
            for start in range(0, num_nodes, chunk_edges):
                row = np.arange(start, min(start + chunk_edges, num_nodes))
                yield EdgeChunk(src=row, dst=(row * 7) % num_nodes)

        def nodes(self, chunk_nodes: int):
            for start in range(0, num_nodes, chunk_nodes):
                count = min(chunk_nodes, num_nodes - start)
                yield NodeChunk(feature=np.full((count, feature_dim), start + 2, np.float32))

    return Big()


def test_opening_reads_nothing_into_memory_and_processes_share_pages(pristine: Path, tmp_path: Path) -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("needs /proc")
    url = tmp_path / "big"
    ingest(big_source(50_000, 256), str(url), IngestOptions(feature_dtype="float16"))
    feature_bytes = stored_file(url, "part-00000/features.arrow").stat().st_size
    assert feature_bytes > 25_000_000
    script = f"""
        import sys
        import numpy as np
        import pyarrow as pa
        from graphmill.storage.graph import open_graph
        def kilobytes(name):
            return int(open("/proc/self/smaps_rollup").read().split(name)[1].split()[0]) * 1024
        open_graph({str(pristine)!r}).partition(0)  # what the first use of Arrow and fsspec loads
        start = kilobytes("Anonymous:")
        feature = open_graph({str(url)!r}).partition(0).feature
        total = sum(float(block.max()) for block in np.array_split(feature, 100))  # touches every page
        print(kilobytes("Anonymous:") - start, pa.total_allocated_bytes(), flush=True)
        sys.stdin.readline()
        mapped = open("/proc/self/smaps").read().split("features.arrow")[1].split("VmFlags")[0]
        print(mapped.split("Pss:")[1].split()[0], mapped.split("Rss:")[1].split()[0], flush=True)
        sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    readers = [subprocess.Popen(command, cwd=REPOSITORY, **pipes) for _ in range(2)]
    try:
        for reader in readers:
            grown, allocated = (int(field) for field in reader.stdout.readline().split())
            assert grown < feature_bytes / 10
            assert allocated < feature_bytes / 100
        for reader in readers:
            reader.stdin.write("\n")
            reader.stdin.flush()
        for reader in readers:
            share, resident = (int(field) * 1024 for field in reader.stdout.readline().split())
            assert resident > 0.9 * feature_bytes
            assert share < 0.6 * feature_bytes  # Each page counts half, because both processes map it.
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate(timeout=30)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_have_the_width_and_type_asked_for(dtype: str, tmp_path: Path) -> None:
    graph = random_listed_graph(30, 60)
    ingest(graph, str(tmp_path / "graph"), IngestOptions(feature_dtype=dtype, partitioner="range"))
    feature = open_graph(str(tmp_path / "graph")).partition(0).feature
    assert feature is not None
    assert feature.dtype == dtype
    assert feature.flags.c_contiguous
    np.testing.assert_array_equal(feature, np.asarray(graph.feature, dtype))


def test_a_graph_of_bare_nodes(tmp_path: Path) -> None:
    ingest(ListedGraph(num_nodes=3, edges_listed=[]), str(tmp_path / "graph"), IngestOptions(num_partitions=3))
    for index, partition in enumerate(open_graph(str(tmp_path / "graph")).partitions(verify=True)):
        assert (partition.start, partition.stop, partition.num_edges) == (index, index + 1, 0)
        assert partition.indptr.tolist() == [0, 0]
        assert partition.feature is partition.label is partition.split is None


def test_a_memory_url_is_read_once_into_memory() -> None:
    url, graph = f"memory://tests/{uuid.uuid4().hex}/graph", full_graph()
    ingest(graph, url, OPTIONS)
    assert stored_graph(open_graph(url)) == expected_graph(graph, OPTIONS)


def test_a_partition_that_does_not_exist(pristine: Path) -> None:
    for index in (-1, 2):
        with pytest.raises(ConfigError, match=rf"expected a partition in \[0, 2\), got {index}"):
            open_graph(str(pristine)).partition(index)


def test_an_opened_graph_goes_to_another_process(pristine: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply_async(StoredGraph.partition, (open_graph(str(pristine)), 1)).get(60)
    np.testing.assert_array_equal(found.indices, open_graph(str(pristine)).partition(1).indices)


NO_GRAPH = {
    "nothing there": lambda path: path / "missing",
    "an empty folder": lambda path: path,
    "a file": lambda path: path / "file",
    "below a file": lambda path: path / "file" / "deeper",
    "a folder for a manifest": lambda path: path / "folder",
}


@pytest.mark.parametrize("name", NO_GRAPH)
def test_a_url_without_a_graph_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder" / "manifests" / "000001.json").mkdir(parents=True)
    with pytest.raises(FormatError) as refused:
        open_graph(str(NO_GRAPH[name](tmp_path)))
    assert "manifests/000001.json" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["memory://nothing/here", "carrier-pigeon://graph"])
def test_other_urls_without_a_graph(url: str) -> None:
    with pytest.raises(FormatError) as refused:
        open_graph(url)
    assert url in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_manifest_of_other_bytes(stored: Path) -> None:
    newest_manifest(stored).write_bytes(b"\xff\xfe{}")
    assert "expected UTF-8 JSON" in refusal(stored, verify=False)
    with open(newest_manifest(stored), "wb") as file:
        file.truncate(65 * 2**20)
    assert "expected at most 67108864 bytes, found more" in refusal(stored, verify=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_that_may_not_be_read(stored: Path) -> None:
    stored_file(stored, "part-00001/nodes.arrow").chmod(0)
    assert "nodes.arrow" in refusal(stored, verify=False)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(name: str, verify: bool, stored: Path) -> None:
    stored_file(stored, f"part-00001/{name}.arrow").unlink()
    message = refusal(stored, verify=verify)
    assert f"part-00001/{name}.arrow" in message
    assert "found none" in message


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file(name: str, verify: bool, stored: Path) -> None:
    path = stored_file(stored, f"part-00001/{name}.arrow")
    size = path.stat().st_size
    os.truncate(path, size - 1)
    message = refusal(stored, verify=verify)
    assert f"part-00001/{name}.arrow: expected {size} bytes, found {size - 1}" in message


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_seen_by_verification(name: str, stored: Path) -> None:
    path = stored_file(stored, f"part-00001/{name}.arrow")
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 8):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        message = refusal(stored, verify=True)
        assert f"part-00001/{name}.arrow: expected sha256" in message
    path.write_bytes(whole)
    open_graph(str(stored)).verify()


@pytest.mark.parametrize("name", ["topology", "nodes", "features"])
def test_a_flipped_bit_that_no_one_verified_ends_no_process(
    name: str, stored: Path, pytestconfig: pytest.Config
) -> None:
    """Without a check of checksums, damage is either refused with a one-line error or gives other numbers. Arrow must not crash or hang."""
    flips = 700 if pytestconfig.getoption("long") else 100
    script = f"""
        import sys
        from pathlib import Path
        from graphmill.core.errors import FormatError
        from graphmill.storage.graph import open_graph
        path = Path({str(stored_file(stored, f"part-00001/{name}.arrow"))!r})
        whole = path.read_bytes()
        graph, refused, flips = open_graph({str(stored)!r}), 0, 0
        for place in range(0, len(whole), len(whole) // {flips} or 1):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << (place % 8)
            flips += 1
            temporary = path.with_name("damaged")
            temporary.write_bytes(damaged)
            temporary.rename(path)
            try:
                partition = graph.partition(1)
                for array in vars(partition).values():
                    if hasattr(array, "sum"):
                        array.astype("float64").sum()
                for ids in (partition.indices, partition.out_indices):
                    assert 0 <= ids.min() <= ids.max() < 40, place
            except FormatError as error:
                assert "\\n" not in str(error), error
                assert "{name}.arrow" in str(error) or "edges.arrow" in str(error), error
                refused += 1
        print(refused, flips)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=REPOSITORY, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, flips = map(int, done.stdout.split())
    assert 20 < refused < flips


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"{}", b"ARROW1\0\0" + b"\0" * 100, b"\xff" * 1000])
def test_other_content_under_a_valid_checksum(content: bytes, stored: Path) -> None:
    stored_file(stored, "part-00001/nodes.arrow").write_bytes(content)
    reseal(stored)
    for verify in (False, True):
        assert "part-00001/nodes.arrow: expected" in refusal(stored, verify=verify)


def rewrite(url: Path, name: str, change: Callable[[dict[str, pa.Array]], dict[str, pa.Array]], **facts) -> None:
    """Changes the columns of a file of partition 1, and updates its checksum."""
    path = stored_file(url, f"part-00001/{name}.arrow")
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        columns = {field: batch.column(field) for field in batch.schema.names}
        columns = {field: pa.concat_arrays([column]) for field, column in columns.items()}
    new = path.with_name("new")
    write_batch(new, change(columns))
    new.rename(path)
    reseal(url, **facts)


def put(name: str, values: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict], dict]:
    return lambda columns: columns | {name: array_from_numpy(values(columns[name].to_numpy()))}


def with_first(value: int, place: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        changed = values.copy()
        changed[place] = value
        return changed

    return change


def topology(
    indptr: Callable[[np.ndarray], np.ndarray] = lambda x: x, **columns: Callable[[np.ndarray], np.ndarray] | None
) -> Callable[[dict], dict]:
    """Returns a change that writes the file with other offsets and edge columns. None removes a column."""

    def change(found: dict[str, pa.Array]) -> dict[str, pa.Array]:
        lists = found["neighbors"]
        values = {field.name: lists.values.field(field.name).to_numpy() for field in lists.values.type}
        for name, new in columns.items():
            old = values.pop(name)
            if new is not None:
                values[name] = np.ascontiguousarray(new(old))
        return {"neighbors": neighbor_lists(indptr(lists.offsets.to_numpy().copy()), values)}

    return change


# name of the case: (file, change of its columns, part of the message, whether only verification finds the damage)
DAMAGES = {
    "labels as int32": ("nodes", put("label", lambda v: v.astype(np.int32)), "'label': expected int64, found int32", False),
    "labels as floats": ("nodes", put("label", lambda v: v.astype(np.float64)), "'label': expected int64, found double", False),
    "splits as int64": ("nodes", put("split_1", lambda v: v.astype(np.int64)), "'split_1': expected int8, found int64", False),
    "ids as uint64": ("nodes", put("original_id", lambda v: v.astype(np.uint64)), "'original_id': expected int64", False),
    "no ids": ("nodes", lambda c: {"label": c["label"]}, "'split_0': expected int8, found None", False),
    "rows too few": ("nodes", lambda c: {n: v[:-1] for n, v in c.items()}, "expected 20 rows, found 19", False),
    "ids as nulls": ("nodes", lambda c: c | {"original_id": pa.array([None, *range(19)])}, "expected no nulls, found 1", False),
    "ids not ascending": ("nodes", put("original_id", with_first(99)), "expected strictly ascending original ids", False),
    "label too large": ("nodes", put("label", with_first(5)), "expected labels in [-1, 5), found 0 to 5", False),
    "label negative": ("nodes", put("label", with_first(-2)), "expected labels in [-1, 5), found -2 to 4", False),
    "split code": ("nodes", put("split_0", with_first(4)), "expected split codes 0 to 3, found 0 to 4", False),
    "features as float64": (
        "features",
        lambda c: {"feature": array_from_numpy(np.zeros((20, 4)))},
        "'feature': expected fixed_size_list<item: float>[4], found fixed_size_list<item: double>[4]",
        False,
    ),
    "features too narrow": (
        "features",
        lambda c: {"feature": array_from_numpy(np.zeros((20, 3), np.float32))},
        "expected fixed_size_list<item: float>[4], found fixed_size_list<item: float>[3]",
        False,
    ),
    "features too few": (
        "features",
        lambda c: {"feature": array_from_numpy(np.zeros((19, 4), np.float32))},
        "expected 20 rows, found 19",
        False,
    ),
    "features with nulls inside": (
        "features",
        lambda c: {"feature": pa.FixedSizeListArray.from_arrays(pa.array([None] + [1.0] * 79, pa.float32()), 4)},
        "'feature': expected no nulls, found 1",
        False,
    ),
    "features as text": ("features", lambda c: {"feature": pa.array(["x"] * 20)}, "found string", False),
    "edge features too few": (
        "edges",
        lambda c: {"feature": array_from_numpy(np.zeros((3, 2), np.float32))},
        "rows, found 3",
        False,
    ),
    "no lists": ("topology", lambda c: {"other": pa.array([1] * 20)}, "'neighbors': expected a large_list", False),
    "lists of numbers": (
        "topology",
        lambda c: {"neighbors": pa.array([[1]] * 20, pa.large_list(pa.int32()))},
        "'neighbors': expected a list of structs",
        False,
    ),
    "lists too few": ("topology", lambda c: {"neighbors": c["neighbors"][:19]}, "expected 20 rows, found 19", False),
    "a list that is null": (
        "topology",
        lambda c: {"neighbors": pa.array([None] + [[{"index": 1}]] * 19, c["neighbors"].type)},
        "'neighbors': expected no nulls",
        False,
    ),
    "an edge that is null": (
        "topology",
        lambda c: {"neighbors": pa.array([[None]] + [[{"index": 1, "edge_id": 0, "weight": 0.0}]] * 19, c["neighbors"].type)},
        "expected no nulls, found 1",
        False,
    ),
    "wide node ids": ("topology", topology(index=lambda v: v.astype(np.int64)), "'index': expected int32, found int64", False),
    "no edge ids": ("topology", topology(edge_id=None), "'edge_id': expected int64, found None", False),
    "no weights": ("out_topology", topology(weight=None), "'weight': expected float, found None", False),
    "offsets that go back": ("topology", topology(with_first(3, 1)), "list offsets ascending from 0", False),
    "offsets short of the end": ("topology", topology(with_first(0, 20)), "list offsets ascending from 0", False),
    "node id too large": ("topology", topology(index=with_first(40)), "expected node ids in [0, 40)", False),
    "node id negative": ("topology", topology(index=with_first(-1)), "expected node ids in [0, 40)", False),
    "node id too large outwards": ("out_topology", topology(index=with_first(40)), "expected node ids in [0, 40)", False),
    "list out of order": ("topology", topology(index=lambda v: v[::-1]), "expected neighbor lists ascending in original id", True),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_under_a_valid_checksum(name: str, stored: Path) -> None:
    file, change, message, only_verified = DAMAGES[name]
    if name == "offsets that go back":
        change = topology(lambda indptr: np.where(np.arange(21) == 1, indptr[2] + 1, indptr))
    rewrite(stored, file, change)
    found = refusal(stored, verify=True)
    assert message in found
    assert f"part-00001/{file}.arrow" in found
    if not only_verified:
        assert message in refusal(stored, verify=False)


@pytest.mark.parametrize(
    ("place", "offset"), [(0, 1), (0, -1), (5, -(2**62)), (5, 2**62), (20, 10**6), (20, 0), (20, -5)]
)
def test_offsets_that_arrow_itself_would_not_write(place: int, offset: int, stored: Path) -> None:
    indptr = open_graph(str(stored)).partition(1).indptr
    path = stored_file(stored, "part-00001/topology.arrow")
    content = path.read_bytes()
    assert content.count(indptr.tobytes()) == 1
    path.write_bytes(content.replace(indptr.tobytes(), with_first(offset, place)(indptr).tobytes()))
    reseal(stored)
    for verify in (False, True):
        assert re.search(r"part-00001/topology\.arrow: (column 'neighbors': )?expected", refusal(stored, verify=verify))


def test_counts_that_do_not_add_up(stored: Path) -> None:
    reseal(stored, num_edges=161, statistics=None)
    assert "expected 161 edges in all topology.arrow, found 160" in refusal(stored, verify=True)
    reseal(stored, num_edges=160)
    # Arrow leaves out values before the first offset.
    rewrite(stored, "out_topology", topology(lambda indptr: np.maximum(indptr, 1)))
    assert "expected 160 edges in all out_topology.arrow, found 159" in refusal(stored, verify=True)


@given(
    lists=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4), max_size=6),
    block=st.integers(1, 5),
    timed=st.booleans(),
)
def test_the_order_of_lists_is_checked_over_blocks_and_empty_lists(
    lists: list[list[tuple[int, int]]], block: int, timed: bool
) -> None:
    original_id = np.array([5, 9, 7, 1])
    indptr = np.cumsum([0, *map(len, lists)])
    indices = np.array([entry for each in lists for entry, _ in each], np.int32)
    time = np.array([when for each in lists for _, when in each], np.int64) if timed else None
    listed = [[(when if timed else 0, original_id[entry]) for entry, when in each] for each in lists]
    expected = next((row for row, each in enumerate(listed) if each != sorted(each)), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphmill.storage.graph, "_CHECK_EDGES", block)
        assert _first_unordered_list(indptr, indices, original_id, time) == expected


def test_an_original_id_in_two_partitions(stored: Path) -> None:
    first = open_graph(str(stored)).partition(0).original_id
    second = open_graph(str(stored)).partition(1).original_id.copy()
    second[0] = first[first < second[1]][-1]
    rewrite(stored, "nodes", put("original_id", lambda _: second))
    with pytest.raises(FormatError, match="expected each original id once"):
        open_graph(str(stored)).verify()


def test_two_record_batches_are_refused(stored: Path) -> None:
    path = stored_file(stored, "part-00001/nodes.arrow")
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(0, 5))
        writer.write_batch(batch.slice(5))
    reseal(stored)
    assert "expected 1 record batch, found 2" in refusal(stored, verify=False)


def test_a_manifest_that_points_outside_opens_nothing(stored: Path, tmp_path: Path) -> None:
    secret = tmp_path / "nodes.arrow"
    secret.write_text("secret")
    entry = {"num_bytes": 6, "sha256": "0" * 64}
    name = "part-00000/nodes.arrow"
    inside = json.loads(newest_manifest(stored).read_bytes())["files"][name]["path"]
    for place, path, message in (
        ("part-00000/../../nodes.arrow", inside, "only file names of the format"),
        (name, f"{inside.removesuffix(name)}../../../nodes.arrow", "expected paths below data/"),
        (name, str(secret), "expected paths below data/"),
    ):
        whole = newest_manifest(stored).read_bytes()
        edit_manifest(stored, lambda body, at=place, to=path: body["files"].update({at: entry | {"path": to}}))
        assert message in refusal(stored, verify=False)
        newest_manifest(stored).write_bytes(whole)
    open_graph(str(stored)).verify()


def test_verification_of_a_whole_graph_passes(pristine: Path) -> None:
    open_graph(str(pristine)).verify()
    filesystem = fsspec.filesystem("memory")
    filesystem.put(f"{pristine}/", "/verified/graph", recursive=True)
    open_graph("memory://verified/graph").verify()
    filesystem.rm("/verified", recursive=True)


def test_verification_of_a_remote_graph_holds_one_partition_at_a_time() -> None:
    url = f"memory://tests/{uuid.uuid4().hex}/graph"
    ingest(big_source(16_000, 64), url, IngestOptions(num_partitions=8, partitioner="range"))
    graph = open_graph(url)
    graph.verify()  # the encoding is loaded at first use
    sizes = [0] * 8
    for name, entry in graph.manifest.files.items():
        sizes[int(name[5:10])] += entry.num_bytes
    tracemalloc.start()
    try:
        graph.verify()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        graph.filesystem.rm(graph.path, recursive=True)
    assert peak < 1.8 * max(sizes), peak / max(sizes)


def test_manifests_are_values(pristine: Path) -> None:
    first, second = (open_graph(str(pristine)).manifest for _ in range(2))
    assert isinstance(first, Manifest)
    assert first == second
