"""Pruning deletes old snapshots and the files of dead writers, and nothing else in the folder of a graph."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from graphmill.core.errors import ConfigError, FormatError
from graphmill.storage.encoding.encode import encode
from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.format.encodings import stored_encodings
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.snapshots.journal import CLOCK_MARGIN_S, JOURNAL, LEASE_S, Journal
from graphmill.storage.snapshots.prune import prune
from graphmill.storage.snapshots.snapshot_writer import SnapshotWriter
from graphmill.storage.snapshots.snapshots import manifest_path, snapshot_numbers
from tests.gs_server import gs_bucket
from tests.listed_graph import NUM_PARTITIONS, check_mark, marked_graph
from tests.s3_server import s3_bucket

OVER = IngestOptions(num_partitions=NUM_PARTITIONS, overwrite=True)
LATER_S = LEASE_S + CLOCK_MARGIN_S + 60


@pytest.fixture(params=["local", "memory", "s3", pytest.param("gs", marks=pytest.mark.long)])
def url(request, tmp_path):
    if request.param in ("s3", "gs"):
        with s3_bucket() if request.param == "s3" else gs_bucket() as bucket:
            yield f"{bucket}/graph"
    else:
        yield str(tmp_path / "graph") if request.param == "local" else f"memory://{tmp_path.name}/graph"


class Killed(BaseException):
    """Stands for SIGKILL, after which a process does not clean up."""


def die_while_writing(url: str, mark: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the remains of a killed writer: files, scratch files and a journal, but no manifest."""

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("graphmill.storage.snapshots.snapshot_writer.remove_temporary", lambda *_: None)
        patched.setattr("graphmill.storage.snapshots.snapshot_writer.remove_if_empty", lambda *_: None)
        patched.setattr(SnapshotWriter, "commit", lambda *_: die())
        with pytest.raises(Killed):
            ingest(marked_graph(mark), url, OVER)


def test_old_snapshots_go_with_their_files(url):
    for mark in range(4):
        ingest(marked_graph(mark), url, OVER)
    pruned = prune(url, keep=2)
    assert (pruned.kept, pruned.removed, pruned.orphans, pruned.foreign) == ((3, 4), (1, 2), (), ())
    assert [check_mark(open_graph(url, number)) for number in (3, 4)] == [2, 3]
    filesystem, path = split_url(url)
    filesystem.invalidate_cache()
    folders = {str(each)[len(path) :].split("/")[2][:6] for each in filesystem.find(f"{path}/data")}
    assert folders == {"000003", "000004"}
    assert prune(url, keep=2).num_files == 0


def test_young_snapshots_stay(url):
    for mark in range(3):
        ingest(marked_graph(mark), url, OVER)
    assert prune(url, keep=1, older_than_s=3600).removed == ()
    assert prune(url, keep=1, older_than_s=3600, now=time.time() + 4000).removed == (1, 2)


def test_an_old_file_that_a_kept_manifest_names_stays(url):
    ingest(marked_graph(1), url, OVER)
    encode(open_graph(url), EncodingOptions("rwse", 3))
    ingest(marked_graph(1), url, OVER)
    assert prune(url, keep=1, now=time.time() + LATER_S).removed == (1, 2)
    graph = open_graph(url)
    assert tuple(stored_encodings(graph)) == ("rwse-3",)
    graph.verify()


def test_a_dead_writers_folder_goes_once_its_lease_is_over(url, monkeypatch):
    ingest(marked_graph(1), url, OVER)
    die_while_writing(url, 2, monkeypatch)
    early = prune(url, keep=1)
    assert (early.orphans, len(early.held), early.num_files) == ((), 1, 0)
    late = prune(url, keep=1, now=time.time() + LATER_S)
    assert late.orphans == early.held
    assert late.num_files > 4
    assert prune(url, keep=1, now=time.time() + LATER_S).orphans == ()
    assert check_mark(open_graph(url)) == 1


def test_what_others_put_into_the_folders_stays(tmp_path, monkeypatch):
    url = str(tmp_path / "graph")
    ingest(marked_graph(1), url, OVER)
    ingest(marked_graph(2), url, OVER)
    die_while_writing(url, 3, monkeypatch)
    folders = sorted(path.name for path in Path(url, "data").iterdir())
    mine = [f"data/{folder}/{name}" for folder in folders for name in ("notes.txt", "part-00000/my.csv")]
    mine += ["manifests/README", "data/999999-00000000/part-00000/nodes.arrow", "data/backup/nodes.arrow"]
    (tmp_path / "home" / "part-00000").mkdir(parents=True)
    (tmp_path / "home" / "part-00000" / "nodes.arrow").write_bytes(b"mine")
    Path(url, "data", folders[0], "part-00077").symlink_to(tmp_path / "home" / "part-00000")
    Path(url, "data", "888888-00000000").symlink_to(tmp_path / "home")
    for name in mine:
        Path(url, name).parent.mkdir(parents=True, exist_ok=True)
        Path(url, name).write_bytes(name.encode())
    pruned = prune(url, keep=1, now=time.time() + LATER_S)
    assert (pruned.removed, len(pruned.orphans)) == ((1,), 1)
    whole = {"manifests/README", "data/999999-00000000", "data/888888-00000000", "data/backup"}
    assert set(pruned.foreign) == {name for name in mine if name.split("/")[1] in folders} | whole
    assert all(Path(url, name).read_bytes() == name.encode() for name in mine)
    assert (tmp_path / "home" / "part-00000" / "nodes.arrow").read_bytes() == b"mine"


def test_a_file_with_a_name_like_ours_stays_where_we_did_not_write_it(tmp_path, monkeypatch):
    url = str(tmp_path / "graph")
    for mark in (1, 2):
        ingest(marked_graph(mark), url, OVER)
    die_while_writing(url, 3, monkeypatch)
    folders = sorted(path.name for path in Path(url, "data").iterdir())
    names = ["part-00000/my_scores.arrow", "part-00000/encodings/mine.arrow", "scratch/thesis.tex"]
    mine = [f"data/{folder}/{name}" for folder in folders for name in names]
    # Graphmill's name, but this graph has no such file
    mine += [f"data/{folder}/part-00000/edges.arrow" for folder in folders[:2]]
    for name in mine:
        Path(url, name).parent.mkdir(parents=True, exist_ok=True)
        Path(url, name).write_bytes(name.encode())
    pruned = prune(url, keep=1, now=time.time() + LATER_S)
    assert (pruned.removed, len(pruned.orphans)) == ((1,), 1)
    assert set(pruned.foreign) == set(mine)
    assert all(Path(url, name).read_bytes() == name.encode() for name in mine)
    assert check_mark(open_graph(url)) == 2


def test_prunes_at_the_same_time(url):
    for mark in range(6):
        ingest(marked_graph(mark), url, OVER)
    with ThreadPoolExecutor(4) as pool:
        pruned = [future.result() for future in [pool.submit(prune, url, keep=2) for _ in range(4)]]
    assert {number for each in pruned for number in each.removed} == {1, 2, 3, 4}
    assert [check_mark(open_graph(url, number)) for number in snapshot_numbers(*split_url(url))] == [4, 5]


def test_claims_of_the_dead_go(tmp_path):
    url = str(tmp_path / "graph")
    for mark in range(3):
        ingest(marked_graph(mark), url, OVER)
    for number in (2, 4):
        Path(url, "manifests", f"00000{number}.claim").touch()
    prune(url, keep=3)
    # A claim with a higher number than the newest snapshot may belong to a snapshot that is being published.
    assert [path.name for path in Path(url, "manifests").glob("*.claim")] == ["000004.claim"]


def test_empty_folders_and_late_pieces_without_a_journal_go(tmp_path):
    url = str(tmp_path / "graph")
    ingest(marked_graph(1), url, OVER)
    Path(url, "data", "000005-0123abcd", "part-00000").mkdir(parents=True)
    piece = Path(url, "pieces", "0123456789abcdef", f"chunk-0000001-{'0' * 64}.arrow")
    piece.parent.mkdir(parents=True)
    piece.touch()
    assert prune(url, keep=1).orphans == ()
    assert len(prune(url, keep=1, now=time.time() + LATER_S).orphans) == 2
    assert not piece.parent.exists()
    assert len(list(Path(url, "data").iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"format": "graphmill-journal", "pid": 1}'])
def test_a_folder_whose_journal_is_not_ours_is_nobodys(tmp_path, content):
    url = str(tmp_path / "graph")
    ingest(marked_graph(1), url, OVER)
    folder = Path(url, "data", "000009-0123abcd", "part-00000")
    folder.mkdir(parents=True)
    (folder / "nodes.arrow").write_bytes(b"mine")
    (folder.parent / JOURNAL).write_bytes(content)
    assert prune(url, keep=1, now=time.time() + 1e9).num_files == 0
    assert (folder / "nodes.arrow").read_bytes() == b"mine"


def test_where_a_manifest_cannot_be_read_nothing_is_removed(tmp_path):
    url = str(tmp_path / "graph")
    for mark in range(3):
        ingest(marked_graph(mark), url, OVER)
    Path(manifest_path(url, 2)).write_text("{")
    before = sorted(Path(url).rglob("*"))
    with pytest.raises(FormatError, match=r"000002\.json"):
        prune(url, keep=1, now=time.time() + LATER_S)
    assert sorted(Path(url).rglob("*")) == before


def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path):
    url = str(tmp_path / "graph")
    ingest(marked_graph(1), url, OVER)
    ingest(marked_graph(2), url, OVER)
    (tmp_path / "mine.arrow").write_bytes(b"mine")
    manifest = Path(manifest_path(url, 1))
    for outside in ("../mine.arrow", "data/000001-00000000/../../../mine.arrow", "/etc/hostname", "data/x/y", 3, None):
        body = json.loads(manifest.read_text())
        next(iter(body["files"].values()))["path"] = outside
        manifest.write_text(json.dumps(body))
        with pytest.raises(FormatError, match="files"):
            prune(url, keep=1)
    assert (tmp_path / "mine.arrow").exists()


def test_a_writer_that_died_before_its_journal_leaves_a_folder_that_goes(tmp_path):
    url = str(tmp_path / "graph")
    ingest(marked_graph(1), url, OVER)
    empty, torn, other = (Path(url, "data", f"00000{index}-0123abcd") for index in (7, 8, 9))
    for folder in (empty, torn, other):
        folder.mkdir()
    (torn / ".journal.json.0123abcd").write_text('{"form')
    (other / ".journal.json.backup").write_text("mine")
    assert prune(url, keep=1).orphans == ()  # kept, because a manifest may soon be written for these folders
    pruned = prune(url, keep=1, now=time.time() + LATER_S)
    assert pruned.orphans == (f"data/{empty.name}", f"data/{torn.name}")
    assert (other / ".journal.json.backup").read_text() == "mine"
    assert sorted(path.name[:6] for path in Path(url, "data").iterdir()) == ["000001", "000009"]


@pytest.mark.parametrize(
    ("options", "named"), [({"keep": 0}, "keep"), ({"keep": 1, "older_than_s": -1.0}, "older_than")]
)
def test_bad_options(tmp_path, options, named):
    with pytest.raises(ConfigError, match=named):
        prune(str(tmp_path), **options)


def test_where_there_is_no_graph_there_is_nothing_to_do(url):
    assert prune(url, keep=1).kept == ()


def test_a_lease_counts_with_a_margin_for_clocks():
    journal = Journal("host", 1, 0.0, 100.0)
    assert not journal.is_over(100.0 + CLOCK_MARGIN_S)
    assert journal.is_over(101.0 + CLOCK_MARGIN_S)


def test_whatever_happens_in_whatever_order(tmp_path):
    """Publishing, encoding, dying and pruning in any order leave every kept snapshot complete. Files that are not Graphmill's are not touched."""

    class Machine(RuleBasedStateMachine):
        count = 0

        def __init__(self) -> None:
            super().__init__()
            Machine.count += 1
            self.url = f"memory://{tmp_path.name}-{Machine.count}/graph"
            self.filesystem, self.path = split_url(self.url)
            self.alive: dict[int, int] = {}  # maps the number of a snapshot to its mark
            self.mine: list[str] = []
            self.clock = time.time()

        @rule(mark=st.integers(0, 3))
        def publish(self, mark: int) -> None:
            self.alive[ingest(marked_graph(mark), self.url, OVER).snapshot] = mark

        @rule(dim=st.integers(1, 3))
        def encode(self, dim: int) -> None:
            if self.alive:
                graph, computed = encode(open_graph(self.url), EncodingOptions("rwse", dim))
                if computed:
                    self.alive[graph.manifest.snapshot] = self.alive[max(self.alive)]

        @rule()
        def die(self) -> None:
            with pytest.MonkeyPatch.context() as patched:
                die_while_writing(self.url, 5, patched)

        @rule(name=st.sampled_from(["notes.txt", "part-00000/my.csv", "scratch.txt"]))
        def put(self, name: str) -> None:
            for each in self.filesystem.ls(f"{self.path}/data", detail=False) if self.alive else []:
                self.filesystem.pipe_file(f"{each}/{name}", b"mine")
                self.mine.append(f"{each}/{name}")

        @rule(keep=st.integers(1, 3), later=st.booleans())
        def prune(self, keep: int, later: bool) -> None:
            pruned = prune(self.url, keep=keep, now=self.clock + (LATER_S + 600 if later else 60))
            assert pruned.removed == tuple(sorted(self.alive)[:-keep])
            for number in pruned.removed:
                del self.alive[number]

        @invariant()
        def every_snapshot_is_whole(self) -> None:
            assert snapshot_numbers(self.filesystem, self.path) == sorted(self.alive)
            for number, mark in self.alive.items():
                graph = open_graph(self.url, number)
                assert check_mark(graph) == mark
                graph.verify()
            assert all(self.filesystem.cat_file(name) == b"mine" for name in self.mine)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=8,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
