"""A snapshot is published by the exclusive creation of the next manifest. No file of another writer is deleted."""

import errno
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import graphmill.storage.snapshots.snapshot_writer
from graphmill.core.errors import ConfigError, ConflictError, DataError, FormatError
from graphmill.storage.encoding.encode import encode
from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.format.encodings import stored_encodings
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.snapshots.journal import JOURNAL
from graphmill.storage.snapshots.prune import prune
from graphmill.storage.snapshots.snapshot_writer import SnapshotWriter, write_snapshot
from graphmill.storage.snapshots.snapshots import snapshot_numbers
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.conftest import REPOSITORY
from tests.gs_server import gs_bucket
from tests.listed_graph import NUM_PARTITIONS, check_mark, marked_graph
from tests.s3_server import s3_bucket

NEW, OVER = IngestOptions(num_partitions=NUM_PARTITIONS), IngestOptions(num_partitions=NUM_PARTITIONS, overwrite=True)
RWSE = EncodingOptions("rwse", 3)


@pytest.fixture(scope="module")
def s3_url():
    with s3_bucket() as url:
        yield url


@pytest.fixture(scope="module")
def gs_url():
    with gs_bucket() as url:
        yield url


@pytest.fixture(params=["local", "memory", "s3", pytest.param("gs", marks=pytest.mark.long)])
def url(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "graph")
    if request.param == "memory":
        return f"memory://{tmp_path.name}/graph"
    return f"{request.getfixturevalue(f'{request.param}_url')}/{tmp_path.name}/graph"


def _tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_each_publication_is_a_snapshot_of_its_own(url):
    assert [ingest(marked_graph(mark), url, OVER).snapshot for mark in (1, 2, 3)] == [1, 2, 3]
    assert check_mark(open_graph(url)) == 3
    assert [check_mark(open_graph(url, number)) for number in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(FormatError, match="expected snapshot 7, found 1, 2, 3"):
        open_graph(url, 7)


def test_a_graph_stays_readable_over_the_publications_that_follow(url):
    ingest(marked_graph(1), url, NEW)
    graph = open_graph(url)
    for mark in range(2, 6):
        ingest(marked_graph(mark), url, OVER)
    assert check_mark(graph) == 1  # the files of the older graph are mapped only now


def test_without_overwrite_a_graph_is_refused_and_stays(url):
    ingest(marked_graph(1), url, NEW)
    with pytest.raises(ConfigError, match="found a graph; pass --overwrite"):
        ingest(marked_graph(2), url, NEW)
    assert check_mark(open_graph(url)) == 1


@pytest.mark.parametrize("options", [NEW, OVER], ids=["new", "overwrite"])
def test_of_two_writers_the_second_gets_one_line_and_destroys_nothing(url, options):
    if options is OVER:
        ingest(marked_graph(1), url, NEW)
    with pytest.raises(ConflictError, match="another writer published snapshot") as refused:
        ingest(marked_graph(3, meanwhile=lambda: ingest(marked_graph(2), url, options)), url, options)
    assert "\n" not in str(refused.value)
    filesystem, path = split_url(url)
    assert check_mark(open_graph(url)) == 2
    folders = {each.rstrip("/").rsplit("/", 1)[-1] for each in filesystem.ls(f"{path}/data", detail=False)}
    # the writer that lost removed its own files and no others
    assert len(folders) == len(snapshot_numbers(filesystem, path))


def test_many_writers_at_once_make_one_snapshot_each_or_none(url):
    start, outcomes = threading.Barrier(4), []

    def write(mark: int) -> None:
        start.wait(timeout=30)
        try:
            outcomes.append(ingest(marked_graph(mark), url, OVER).snapshot)
        except ConflictError:
            outcomes.append(0)

    threads = [threading.Thread(target=write, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    published = sorted(number for number in outcomes if number)
    assert len(outcomes) == 4
    assert published == list(range(1, max(published) + 1))
    assert len({check_mark(open_graph(url, number)) for number in published}) == len(published)


def test_two_encodings_that_are_stored_at_once_are_both_kept(url):
    ingest(marked_graph(1), url, NEW)
    first, second = open_graph(url), open_graph(url)
    encode(first, RWSE)
    encode(second, EncodingOptions("rwse", 4))  # `second` was opened before the first encoding was published
    assert tuple(stored_encodings(open_graph(url))) == ("rwse-3", "rwse-4")
    assert tuple(stored_encodings(open_graph(url, 2))) == ("rwse-3",)


def test_two_encodings_that_are_stored_at_the_same_time_are_both_whole(url, monkeypatch):
    """The second encoding is published just before the first. The first then takes the next number."""
    ingest(marked_graph(1), url, NEW)
    first, second = open_graph(url), open_graph(url)
    rebase = SnapshotWriter.rebase

    def meanwhile(writer: SnapshotWriter) -> None:
        monkeypatch.setattr(SnapshotWriter, "rebase", rebase)
        encode(second, EncodingOptions("rwse", 4))
        rebase(writer)

    monkeypatch.setattr(SnapshotWriter, "rebase", meanwhile)
    encode(first, RWSE)
    assert tuple(stored_encodings(open_graph(url))) == ("rwse-3", "rwse-4")
    for number in (1, 2, 3):
        open_graph(url, number).verify()


def test_an_encoding_is_not_put_on_another_graph(url):
    ingest(marked_graph(1), url, NEW)
    before = open_graph(url)
    ingest(marked_graph(2), url, OVER)
    with pytest.raises(ConflictError, match="encode that one"):
        encode(before, RWSE)
    assert tuple(stored_encodings(open_graph(url))) == ()


def test_the_same_content_again_keeps_the_encodings(url):
    ingest(marked_graph(1), url, NEW)
    encode(open_graph(url), RWSE)
    ingest(marked_graph(1), url, OVER)
    graph = open_graph(url)
    assert graph.manifest.snapshot == 3
    assert tuple(stored_encodings(graph)) == ("rwse-3",)
    assert [len(partition.encodings["rwse-3"]) for partition in graph.partitions()] == [
        partition.num_nodes for partition in graph.partitions()
    ]
    ingest(marked_graph(2), url, OVER)
    assert tuple(stored_encodings(open_graph(url))) == ()


USERS = {
    "files beside": {"thesis.tex": b"years", "data.csv": b"1,2"},
    "some manifest.json": {"manifest.json": b'{"name": "a web app"}', "index.html": b"<p>"},
    "a folder data of their own": {"data/mine.csv": b"1,2", "README.md": b"# Project"},
    "only folders of our names": {"data/mine.csv": b"1,2", "manifests/list.txt": b"x"},
    "a file of our name": {"manifests": b"list"},
    "a folder of a graph's name": {"manifests.txt": b"list", "src/part-00000/nodes.arrow": b"mine"},
}


@pytest.mark.parametrize("options", [NEW, OVER], ids=["new", "overwrite"])
@pytest.mark.parametrize("files", list(USERS.values()), ids=list(USERS))
def test_a_folder_with_other_files_is_refused_and_every_byte_stays(tmp_path, files, options):
    target = tmp_path / "home"
    for name, content in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    with pytest.raises(ConfigError, match="choose another url"):
        ingest(marked_graph(1), str(target), options)
    assert _tree(tmp_path) == {f"home/{name}": content for name, content in files.items()}


@pytest.mark.parametrize("options", [NEW, OVER], ids=["new", "overwrite"])
def test_other_files_beside_a_graph_are_left_on_every_store(url, options):
    ingest(marked_graph(1), url, NEW)
    filesystem, path = split_url(url)
    filesystem.pipe_file(f"{path}/notes.txt", b"mine")
    with nullcontext() if options.overwrite else pytest.raises(ConfigError, match="found a graph; pass --overwrite"):
        ingest(marked_graph(2), url, options)
    assert filesystem.cat_file(f"{path}/notes.txt") == b"mine"
    assert check_mark(open_graph(url)) == 1 + options.overwrite
    assert prune(url, keep=1).foreign == ("notes.txt",)
    assert filesystem.cat_file(f"{path}/notes.txt") == b"mine"


def test_other_files_inside_a_graphs_folders_are_left(tmp_path):
    url = str(tmp_path / "graph")
    folder = ingest(marked_graph(1), url, NEW).files["part-00000/nodes.arrow"].path.rsplit("/", 2)[0]
    mine = [f"{folder}/notes.txt", f"{folder}/part-00000/my.csv", "manifests/README", "data/backup/x.arrow"]
    for name in mine:
        Path(url, name).parent.mkdir(exist_ok=True)
        Path(url, name).write_bytes(name.encode())
    ingest(marked_graph(2), url, OVER)
    with pytest.raises(DataError):
        _fail(url)
    assert check_mark(open_graph(url)) == 2
    assert all(Path(url, name).read_bytes() == name.encode() for name in mine)


def _fail(url: str) -> None:
    def stop() -> None:
        raise DataError("the source ends here")

    ingest(marked_graph(9, meanwhile=stop), url, OVER)


@pytest.mark.parametrize("options", [NEW, OVER], ids=["new", "overwrite"])
def test_a_manifest_that_is_not_ours_is_left(tmp_path, options):
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "000001.json").write_text("{}")
    with pytest.raises(FormatError, match="not a Graphmill graph"):
        ingest(marked_graph(1), str(tmp_path), options)
    assert _tree(tmp_path) == {"manifests/000001.json": b"{}"}


def test_a_writer_that_fails_takes_nothing_from_another_at_the_same_new_place(url):
    def fail() -> None:
        with pytest.raises(DataError):
            _fail(url)

    assert ingest(marked_graph(1, meanwhile=fail), url, NEW).snapshot == 1
    assert check_mark(open_graph(url)) == 1


def test_a_writer_that_began_first_and_fails_takes_nothing_from_another(tmp_path):
    """The first writer made the folders, and would remove empty folders."""
    url, began, failed = str(tmp_path / "graph"), threading.Event(), threading.Event()

    def first() -> None:
        def stop() -> None:
            began.set()
            assert go.wait(timeout=30)
            raise DataError("the source ends here")

        with pytest.raises(DataError):
            ingest(marked_graph(9, meanwhile=stop), url, NEW)
        failed.set()

    def meanwhile() -> None:
        go.set()
        assert failed.wait(timeout=30)

    go = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    assert began.wait(timeout=30)
    assert ingest(marked_graph(1, meanwhile=meanwhile), url, NEW).snapshot == 1
    thread.join(timeout=30)
    assert check_mark(open_graph(url)) == 1


def test_a_graph_that_appears_as_a_writer_begins_is_not_published_over(url, monkeypatch):
    look = graphmill.storage.snapshots.snapshot_writer.check_destination

    def then_it_appears(*arguments, **options) -> None:
        look(*arguments, **options)
        monkeypatch.setattr(graphmill.storage.snapshots.snapshot_writer, "check_destination", look)
        ingest(marked_graph(1), url, NEW)

    monkeypatch.setattr(graphmill.storage.snapshots.snapshot_writer, "check_destination", then_it_appears)
    with pytest.raises(ConfigError, match="found a graph"):
        ingest(marked_graph(2), url, NEW)
    assert check_mark(open_graph(url)) == 1


def test_after_an_error_everything_is_as_before(url):
    with pytest.raises(DataError):
        _fail(url)
    filesystem, path = split_url(url)
    assert not filesystem.exists(path) or not filesystem.find(path)
    ingest(marked_graph(1), url, NEW)
    before = {name: filesystem.cat_file(name) for name in filesystem.find(path)}
    with pytest.raises(DataError):
        _fail(url)
    assert {name: filesystem.cat_file(name) for name in filesystem.find(path)} == before


def test_an_empty_folder_stays_after_an_error_and_new_parents_do_not(tmp_path):
    (tmp_path / "empty").mkdir()
    for target in ("empty", "new/parents/graph"):
        with pytest.raises(DataError):
            _fail(str(tmp_path / target))
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_link_to_a_folder_is_followed_and_one_to_nothing_refused(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "graph").symlink_to(tmp_path / "disk")
    ingest(marked_graph(1), str(tmp_path / "graph"), NEW)
    assert (tmp_path / "graph").is_symlink()
    assert check_mark(open_graph(str(tmp_path / "disk"))) == 1
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="found a link; choose another url"):
        ingest(marked_graph(1), str(tmp_path / "broken"), NEW)
    assert (tmp_path / "broken").is_symlink()


def test_a_graph_of_the_first_format_is_neither_read_nor_replaced(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": "graphmill-graph", "format_version": 1}')
    with pytest.raises(FormatError, match=r"format 1.*make it again in another folder: graphmill ingest"):
        open_graph(str(tmp_path))
    for options in (NEW, OVER):
        with pytest.raises(ConfigError, match="format 1"):
            ingest(marked_graph(1), str(tmp_path), options)
    assert list(tmp_path.iterdir()) == [tmp_path / "manifest.json"]


class _Heedless(MemoryFileSystem):
    """A store that ignores the condition of a conditional write, so that it overwrites existing files."""

    protocol = "heedless"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        return super().pipe_file(path, value, **kwargs)


class _LooksThenWrites(MemoryFileSystem):
    """A store that first checks the condition and then writes. The two steps are not atomic."""

    protocol = "looks"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        time.sleep(0.02)
        super().pipe_file(path, value)


@pytest.mark.parametrize("store", [_Heedless, _LooksThenWrites])
def test_a_store_without_exclusive_creation_is_refused(store, monkeypatch):
    fsspec.register_implementation(store.protocol, store, clobber=True)
    monkeypatch.setattr("graphmill.storage.snapshots.conditional_put.MemoryFileSystem", type("None", (), {}))
    with pytest.raises(ConfigError, match="creates a file only where there is none") as refused:
        ingest(marked_graph(1), f"{store.protocol}://graph", NEW)
    assert "\n" not in str(refused.value)
    assert not store().find("/")  # the attempt left no files


def test_a_put_that_was_sent_twice_is_no_conflict(tmp_path, monkeypatch):
    """The first request reached the store, but the answer was lost, so the request was sent again."""
    url, create = f"memory://{tmp_path.name}/graph", MemoryFileSystem.pipe_file

    def twice(self, path, value, mode="overwrite", **kwargs):
        create(self, path, value, mode=mode, **kwargs)
        if mode == "create":
            create(self, path, value, mode=mode, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", twice)
    assert ingest(marked_graph(1), url, NEW).snapshot == 1
    assert check_mark(open_graph(url)) == 1


def test_where_the_answer_of_the_commit_is_lost_nothing_published_is_removed(tmp_path, monkeypatch):
    url, create = f"memory://{tmp_path.name}/graph", MemoryFileSystem.pipe_file

    def lost(self, path, value, mode="overwrite", **kwargs):
        create(self, path, value, mode=mode, **kwargs)
        if mode == "create":
            raise OSError(errno.ETIMEDOUT, "timed out")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lost)
    with pytest.raises(FormatError, match="timed out"):
        ingest(marked_graph(1), url, NEW)
    assert check_mark(open_graph(url)) == 1


def test_without_hard_links_a_claim_decides(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    url = str(tmp_path / "graph")
    assert [ingest(marked_graph(mark), url, OVER).snapshot for mark in (1, 2)] == [1, 2]
    with pytest.raises(ConflictError):
        ingest(marked_graph(4, meanwhile=lambda: ingest(marked_graph(3), url, OVER)), url, OVER)
    # the claim of a writer that died before it wrote its manifest
    (tmp_path / "graph" / "manifests" / "000004.claim").touch()
    assert ingest(marked_graph(5), url, OVER).snapshot == 5
    assert [check_mark(open_graph(url, number)) for number in (1, 2, 3, 5)] == [1, 2, 3, 5]


def test_a_writer_whose_lease_is_over_publishes_nothing(tmp_path):
    url = str(tmp_path / "graph")
    manifest = ingest(marked_graph(1), str(tmp_path / "other"), NEW)
    with write_snapshot(url) as writer:
        next(Path(url, "data").iterdir()).joinpath(JOURNAL).unlink()  # a prune would do this after the end of the lease
        with pytest.raises(ConflictError, match="lease"):
            writer.commit(manifest)
    assert not Path(url).exists()


def test_a_lease_that_was_over_stays_over(tmp_path):
    """When a stopped process continues, its thread must not renew a lease that has expired."""
    url = str(tmp_path / "graph")
    manifest = ingest(marked_graph(1), str(tmp_path / "other"), NEW)
    for over in ("by the clock", "by its journal"):
        with write_snapshot(url, lease_s=0.4) as writer:
            journal = next(Path(url, "data").iterdir()) / JOURNAL
            if over == "by the clock":
                writer._lease._journal = replace(writer._lease._journal, lease_until=time.time() - 1)
            else:
                journal.unlink()
            time.sleep(0.5)  # After this time the thread would have renewed the lease.
            assert journal.exists() == (over == "by the clock")
            with pytest.raises(ConflictError, match="lease"):
                writer.commit(manifest)


def test_the_lease_is_renewed_while_the_writer_lives(tmp_path):
    url = str(tmp_path / "graph")
    with write_snapshot(url, lease_s=0.2):
        journal = next(Path(url, "data").iterdir()) / JOURNAL
        first, deadline = journal.read_text(), time.monotonic() + 20
        while journal.read_text() == first and time.monotonic() < deadline:
            time.sleep(0.02)
        assert journal.read_text() != first


def test_a_path_is_the_same_whether_its_parts_are_there_or_not(tmp_path):
    ingest(marked_graph(1), f"{tmp_path}/new/../graph", NEW)
    assert check_mark(open_graph(f"{tmp_path}/new/../graph")) == check_mark(open_graph(f"{tmp_path}/graph/")) == 1


def test_a_full_disk_is_one_line(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)), check=True, timeout=30)
    try:
        program = "import sys; from tests.storage.snapshots.test_snapshot_writer import fill; fill(sys.argv[1])"
        command = [sys.executable, "-c", program, str(small / "graph")]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
        assert done.stdout == f"{small}/graph: cannot prepare the graph: No space left on device\n", done
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(("umount", str(small)), check=True, timeout=30)


def fill(url: str) -> None:
    """Fills a disk. Runs in a separate process, because a signal may end it."""
    try:
        ingest(SyntheticGraph(SyntheticOptions(num_nodes=50_000, mean_degree=2, feature_dim=64)), url, NEW)
    except FormatError as error:
        print(error)
