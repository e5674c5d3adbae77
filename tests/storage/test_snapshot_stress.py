"""Tests reading during a write, killed writers, and power cuts. Every reader gets one complete snapshot.

By default each test runs in a short form. With `--long`, tests run as often as docs/performance.md reports.
"""

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.snapshots.journal import CLOCK_MARGIN_S, LEASE_S
from graphmill.storage.snapshots.prune import prune
from graphmill.storage.snapshots.snapshots import snapshot_numbers
from tests.conftest import REPOSITORY
from tests.listed_graph import NUM_PARTITIONS, check_mark, marked_graph
from tests.s3_server import s3_bucket

OVER = IngestOptions(num_partitions=NUM_PARTITIONS, overwrite=True)
LATER_S = LEASE_S + CLOCK_MARGIN_S + 60

READER = """
import sys
from graphmill.storage.graph import open_graph
from tests.listed_graph import check_mark
url, times, last = sys.argv[1], int(sys.argv[2]), 0
for _ in range(times):
    graph = open_graph(url)
    mark = check_mark(graph)
    assert graph.manifest.snapshot == mark + 1, (graph.manifest.snapshot, mark)
    assert mark >= last, (mark, last)
    last = mark
print("read", last)
"""
WRITER = """
import sys, time
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import NUM_PARTITIONS, marked_graph
first, pause_s = int(sys.argv[2]), float(sys.argv[4])
ingest(marked_graph(0), "memory://warm/graph", IngestOptions(num_partitions=NUM_PARTITIONS))  # loads the kernels
print("ready", flush=True)
for mark in range(first, first + int(sys.argv[3])):
    ingest(marked_graph(mark), sys.argv[1], IngestOptions(num_partitions=NUM_PARTITIONS, overwrite=True))
    print(mark, flush=True)
    time.sleep(pause_s)
"""


def _python(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _read_while_writing(url: str, num_readers: int, opens: int, publications: int, pause_s: float) -> None:
    """`pause_s`: time between publications. It is chosen so that writing lasts as long as reading."""
    ingest(marked_graph(0), url, IngestOptions(num_partitions=NUM_PARTITIONS))
    began = open_graph(url)
    readers = [_python(READER, url, opens // num_readers) for _ in range(num_readers)]
    writer = _python(WRITER, url, 1, publications, pause_s)
    try:
        for process in (writer, *readers):
            _, errors = process.communicate(timeout=3000)
            assert process.returncode == 0, errors[-2000:]
    finally:
        for process in (writer, *readers):
            process.kill()
    assert check_mark(open_graph(url)) == publications
    assert check_mark(began) == 0


def test_readers_beside_a_writer(tmp_path):
    _read_while_writing(str(tmp_path / "graph"), 2, 60, 10, 0.0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("store", ["local", "s3"])
def test_many_readers_beside_a_writer(tmp_path, store):
    if store == "local":
        _read_while_writing(str(tmp_path / "graph"), 4, 20_000, 200, 0.15)
        return
    with s3_bucket() as bucket:
        _read_while_writing(f"{bucket}/graph", 4, 20_000, 200, 2.0)


@contextlib.contextmanager
def _writing(url: str, mark: int, longest_s: float, rng: random.Random) -> Iterator[subprocess.Popen[str]]:
    """Starts a process that writes snapshots, from `mark` + 1 on. Kills it at a random moment within `longest_s` after its first snapshot."""
    writer = _python(WRITER, url, mark + 1, 1_000_000, 0)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, longest_s))
        yield writer
    finally:
        writer.kill()


def _last_told(writer: subprocess.Popen[str], mark: int) -> int:
    """Returns the last snapshot that a killed writer reported, or `mark` if it reported none."""
    lines = writer.communicate(timeout=60)[0].split()
    return int(lines[-1]) if lines else mark


def _kill_writers(url: str, times: int, seed: int) -> None:
    """Kills a writer at a random moment, `times` times. After each kill, the newest snapshot is complete, and later snapshots can be published."""
    rng, mark = random.Random(seed), 0
    ingest(marked_graph(0), url, IngestOptions(num_partitions=NUM_PARTITIONS))
    for killed in range(times):
        with _writing(url, mark, 0.25, rng) as writer:
            pass
        told = _last_told(writer, mark)
        mark = check_mark(open_graph(url))
        assert mark in (told, told + 1)  # the writer may have published one more snapshot without reporting it
        if killed % 10 == 9:
            # after a prune, only files that the manifests name, and files that are not Graphmill's, are left
            Path(url, "data", f"mine-{killed}").write_text("mine")
            held = prune(url, keep=1)
            assert held.orphans == ()
            before = {path for path in Path(url, "data").iterdir()}
            named = {path.split("/")[1] for path in (e.path for e in open_graph(url).manifest.files.values())}
            late = prune(url, keep=1, now=time.time() + LATER_S)
            assert {Path(url, folder) for folder in late.orphans} <= before
            mine = {path.name for path in Path(url, "data").glob("mine-*")}
            assert len(mine) == killed // 10 + 1
            assert {path.name for path in Path(url, "data").iterdir()} == named | mine
            assert check_mark(open_graph(url)) == mark
    assert len(snapshot_numbers(*split_url(url))) >= 1


def test_a_killed_writer(tmp_path):
    _kill_writers(str(tmp_path / "graph"), 3, seed=0)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_writers_killed_two_hundred_times(tmp_path):
    _kill_writers(str(tmp_path / "graph"), 200, seed=1)


class Disk:
    """An ext4 filesystem in a file, with simulated power cuts. After a cut, most data that was not synced is missing in the file."""

    def __init__(self, folder: Path) -> None:
        self.image, self.mounted = folder / "disk.img", folder / "mounted"
        self.mounted.mkdir()
        with open(self.image, "wb") as stream:
            stream.truncate(64 << 20)
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self.image))

    def mount(self) -> None:
        # commit=600: ext4 writes its journal at a sync, or after 10 minutes. noauto_da_alloc: a rename does not sync the file's data.
        _run("mount", "-o", "loop,commit=600,noauto_da_alloc", str(self.image), str(self.mounted))

    def unmount(self) -> None:
        _run("umount", str(self.mounted))

    def cut(self, after: Path) -> None:
        """Stops the writer. Copies the image to `after`, in the state that it would have after a loss of power."""
        shutil.copyfile(self.image, after)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=600)


@pytest.fixture
def disk(tmp_path):
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("cutting the power of a filesystem needs root and mkfs.ext4")
    made = Disk(tmp_path)
    try:
        made.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine mounts no loop device: {error.stderr.decode().strip()}")
    yield made
    subprocess.run(("umount", "-l", str(made.mounted)), check=False, capture_output=True, timeout=60)


def _cut_power(disk: Disk, tmp_path: Path, times: int, seed: int) -> tuple[int, int]:
    """Cuts the power at random moments. Returns how often the newest snapshot on disk was the last reported snapshot, and how often it was a later one."""
    rng, mark, same, later = random.Random(seed), 0, 0, 0
    url = str(disk.mounted / "graph")
    ingest(marked_graph(0), url, IngestOptions(num_partitions=NUM_PARTITIONS))
    for _ in range(times):
        with _writing(url, mark, 0.3, rng) as writer:
            writer.send_signal(signal.SIGSTOP)
            disk.cut(tmp_path / "after.img")
        told = _last_told(writer, mark)
        disk.unmount()
        shutil.move(tmp_path / "after.img", disk.image)
        disk.mount()  # the mount replays ext4's journal
        found = check_mark(open_graph(url))
        assert found in (told, told + 1), (found, told)
        open_graph(url).verify()
        for number in snapshot_numbers(*split_url(url))[-3:]:
            check_mark(open_graph(url, number))
        same, later, mark = same + (found == told), later + (found == told + 1), found
        prune(url, keep=3, now=time.time() + LATER_S)
    return same, later


def test_a_power_cut(disk, tmp_path):
    _cut_power(disk, tmp_path, 2, seed=0)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_power_cuts(disk, tmp_path):
    print(_cut_power(disk, tmp_path, 100, seed=1))


@pytest.mark.long
def test_without_syncing_a_power_cut_is_seen(disk, tmp_path, monkeypatch):
    """Without syncing, the simulated disk loses data. So the other test can fail."""
    program = "import os\nos.fsync = lambda descriptor: None\n" + WRITER
    monkeypatch.setattr(sys.modules[__name__], "WRITER", program)
    with pytest.raises((AssertionError, OSError)) as lost:
        _cut_power(disk, tmp_path, 20, seed=2)
    assert getattr(lost.value, "errno", None) != errno.ENOSPC
