"""Copies of graphs on object stores in a folder of a bounded number of bytes on this host's disk, which its processes share and the next run finds again.

    lock                      held while room is made, not while files are copied
    3f2a…/                    a graph: a copy as storage/replicas/copied_files.py makes it, of those partitions that were asked for here
    3f2a…/claimed.json        bytes of its files, those that are still being copied too: what counts against the bound
    3f2a…/in-use              held shared by each process that reads it; its time is that of the last use
    3f2a…/part-00000.lock     held by the one process that copies this partition

Graphs that nobody uses give way to others, those that were used longest ago first, each as a whole.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from graphmill.core.errors import ConfigError
from graphmill.core.files.file_lock import locked, try_alone
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.fsync import write_durably
from graphmill.storage.filesystem.urls import absolute_url, is_local
from graphmill.storage.graph import GraphSnapshot, copy_of
from graphmill.storage.replicas.copied_files import CopiedPartition, copy_partition

COPY_BYTES_PER_S = 5e6  # over a slow link, to a slow disk
_CLAIMED, _IN_USE, _REMOVED = "claimed.json", "in-use", "removed-"
_GRAPH = re.compile("[0-9a-f]{32}")
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}")  # what copied_files names a file until it is whole
_LOCK_S = 60.0
_Graph = TypeVar("_Graph", bound=GraphSnapshot)


@dataclass(frozen=True)
class CopyCache:
    """The folder on whichever host this value is used."""

    folder: str
    num_bytes: int

    def copy_of(self, graph: _Graph) -> _Graph:
        """The graph as its copy here is opened, whether that has files or not; a graph that is no store's is itself."""
        if is_local(graph.filesystem):
            return graph
        named = f"{graph.url} {graph.manifest.content_hash}"
        return copy_of(graph, f"{absolute_url(self.folder)}/{hashlib.sha256(named.encode()).hexdigest()[:32]}")

    def has(self, copy: GraphSnapshot) -> bool:
        """Whether this graph is one that `copy_of` gave."""
        return os.path.dirname(copy.path) == absolute_url(self.folder)

    @contextmanager
    def holding(self, copy: GraphSnapshot, partitions: Sequence[int]) -> Iterator[list[CopiedPartition]]:
        """Inside the context the copy has these partitions, and keeps them. What lies here already is not copied again.

        Raises ConfigError where they do not fit, FormatError where the store's files are damaged or the disk is full, DeadlineError where
        the store stays away, or another process holds the folder for too long.
        """
        wanted = {entry.path: entry.num_bytes for index in partitions for entry in copy.partition_files(index)}
        with one_line_errors(self._here, "use this folder as a cache"):
            in_use = self._claim(Path(copy.path), wanted)
        try:
            copied = []
            for index in partitions:
                size = sum(entry.num_bytes for entry in copy.partition_files(index))
                with locked(Path(copy.path, f"part-{index:05d}.lock"), _LOCK_S + size / COPY_BYTES_PER_S):
                    copied.append(copy_partition(copy, index))
            yield copied
        finally:
            os.close(in_use)

    @property
    def _here(self) -> str:
        return f"{self.folder} on {socket.gethostname()}"

    def _claim(self, own: Path, wanted: dict[str, int]) -> int:
        """The descriptor that holds the graph's folder, once there is room for its files."""
        own.parent.mkdir(parents=True, exist_ok=True)
        with locked(own.parent / "lock", _LOCK_S):
            own.mkdir(exist_ok=True)
            in_use = os.open(own / _IN_USE, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if try_alone(in_use):  # nobody copies here: what a killed process left is no use
                    for path in own.rglob(".*"):
                        if _UNFINISHED.fullmatch(path.name):
                            path.unlink(missing_ok=True)
                fcntl.flock(in_use, fcntl.LOCK_SH)
                os.utime(in_use)
                claimed = _claimed(own)
                if not wanted.items() <= claimed.items():
                    claimed |= wanted
                    self._make_room(own, sum(claimed.values()))
                    write_durably(own / _CLAIMED, json.dumps(claimed).encode())
            except BaseException:
                os.close(in_use)
                raise
        return in_use

    def _make_room(self, own: Path, needed: int) -> None:
        """Removes graphs that nobody uses until `needed` bytes of this one fit. Raises ConfigError where they do not."""
        for left in own.parent.glob(f"{_REMOVED}*"):  # by a process that was killed meanwhile
            if _GRAPH.fullmatch(left.name.removeprefix(_REMOVED)):
                shutil.rmtree(left)
        sizes = {
            path: sum(_claimed(path).values())
            for path in own.parent.iterdir()
            if path != own
            and _GRAPH.fullmatch(path.name)
            and (path / _CLAIMED).exists()  # others' are not ours to remove
        }
        said = f"{self._here}: expected room for {_gb(needed)} of a graph in a cache of {_gb(self.num_bytes)}, "
        if needed > self.num_bytes:
            raise ConfigError(f"{said}found it too small; raise --servers.disk_cache_bytes, or leave out its folder")
        for path in sorted(sizes, key=_last_use):
            if sum(sizes.values()) + needed <= self.num_bytes:
                return
            if _remove(path):
                del sizes[path]
        if sum(sizes.values()) + needed > self.num_bytes:
            raise ConfigError(
                f"{said}found {_gb(sum(sizes.values()))} of graphs that other processes read; raise --servers.disk_cache_bytes, or wait for them"
            )


def _claimed(graph: Path) -> dict[str, int]:
    """Bytes by file; none where there is no such record: nothing is copied before it is written."""
    try:
        return {str(name): int(size) for name, size in json.loads((graph / _CLAIMED).read_text()).items()}
    except FileNotFoundError:
        return {}


def _last_use(graph: Path) -> int:
    try:
        return os.stat(graph / _IN_USE).st_mtime_ns
    except FileNotFoundError:
        return 0


def _remove(graph: Path) -> bool:
    """Whether nobody used it: then it is gone."""
    in_use = os.open(graph / _IN_USE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not try_alone(in_use):
            return False
        removed = graph.with_name(f"{_REMOVED}{graph.name}")
        graph.rename(removed)
        shutil.rmtree(removed)
        return True
    finally:
        os.close(in_use)


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.3g} GB"
