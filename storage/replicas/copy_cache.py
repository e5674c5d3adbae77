"""Caches graphs from object stores in a folder of limited size on this host's disk. All processes of the host, and later runs, share the folder.

    lock                      held while space is freed, but not during copies
    3f2a…/                    the copy of one graph (storage/replicas/copied_files.py), with the partitions that were requested on this host
    3f2a…/claimed.json        sizes of the copy's files, including files that are still being copied: all these files count against the bound
    3f2a…/in-use              each process that reads the graph holds a shared lock on it; its modification time is the time of the last use
    3f2a…/part-00000.lock     held by the one process that copies this partition

To free space, whole graphs that are not in use are removed, the least recently used first.
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

COPY_BYTES_PER_S = 5e6  # bytes per second over a slow link to a slow disk
_CLAIMED, _IN_USE, _REMOVED = "claimed.json", "in-use", "removed-"
_GRAPH = re.compile("[0-9a-f]{32}")
# temporary name that copied_files gives to a file until the file is complete
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}")
_LOCK_S = 60.0
_Graph = TypeVar("_Graph", bound=GraphSnapshot)


@dataclass(frozen=True)
class CopyCache:
    """The cache folder of the host on which this object is used."""

    folder: str
    num_bytes: int

    def copy_of(self, graph: _Graph) -> _Graph:
        """Returns the graph, to be read from its copy in this cache. The copy may have no files yet. Returns a local graph unchanged."""
        if is_local(graph.filesystem):
            return graph
        named = f"{graph.url} {graph.manifest.content_hash}"
        return copy_of(graph, f"{absolute_url(self.folder)}/{hashlib.sha256(named.encode()).hexdigest()[:32]}")

    def has(self, copy: GraphSnapshot) -> bool:
        """Whether the graph is a copy in this cache, as returned by `copy_of`."""
        return os.path.dirname(copy.path) == absolute_url(self.folder)

    @contextmanager
    def holding(self, copy: GraphSnapshot, partitions: Sequence[int]) -> Iterator[list[CopiedPartition]]:
        """Context in which the copy has these partitions. Copies the files that are not in the cache yet.

        Raises ConfigError if the partitions do not fit into the cache, FormatError if the store's files are damaged or the disk is full, and DeadlineError if
        the store does not answer or another process holds the folder for too long.
        """
        needed = {entry.path: entry.num_bytes for index in partitions for entry in copy.partition_files(index)}
        with one_line_errors(self._here, "use this folder as a cache"):
            in_use = self._claim(Path(copy.path), needed)
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

    def _claim(self, own: Path, needed: dict[str, int]) -> int:
        """Frees space for the graph's files, and locks its folder. Returns the file descriptor that holds the lock."""
        own.parent.mkdir(parents=True, exist_ok=True)
        with locked(own.parent / "lock", _LOCK_S):
            own.mkdir(exist_ok=True)
            in_use = os.open(own / _IN_USE, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if try_alone(in_use):
                    # no other process copies to this folder, so remove the files that a killed process left
                    for path in own.rglob(".*"):
                        if _UNFINISHED.fullmatch(path.name):
                            path.unlink(missing_ok=True)
                fcntl.flock(in_use, fcntl.LOCK_SH)
                os.utime(in_use)
                claimed = _claimed(own)
                if not needed.items() <= claimed.items():
                    claimed |= needed
                    self._make_room(own, sum(claimed.values()))
                    write_durably(own / _CLAIMED, json.dumps(claimed).encode())
            except BaseException:
                os.close(in_use)
                raise
        return in_use

    def _make_room(self, own: Path, needed: int) -> None:
        """Removes unused graphs until `needed` bytes of this graph fit. Raises ConfigError if they cannot fit."""
        for left in own.parent.glob(f"{_REMOVED}*"):  # a killed process left this folder
            if _GRAPH.fullmatch(left.name.removeprefix(_REMOVED)):
                shutil.rmtree(left)
        sizes = {
            path: sum(_claimed(path).values())
            for path in own.parent.iterdir()
            if path != own
            and _GRAPH.fullmatch(path.name)
            and (path / _CLAIMED).exists()  # a folder without this file may not be from Graphmill, and is not removed
        }
        message = f"{self._here}: expected room for {_gb(needed)} of a graph in a cache of {_gb(self.num_bytes)}, "
        if needed > self.num_bytes:
            raise ConfigError(f"{message}found it too small; raise --servers.disk_cache_bytes, or leave out its folder")
        for path in sorted(sizes, key=_last_use):
            if sum(sizes.values()) + needed <= self.num_bytes:
                return
            if _remove(path):
                del sizes[path]
        if sum(sizes.values()) + needed > self.num_bytes:
            raise ConfigError(
                f"{message}found {_gb(sum(sizes.values()))} of graphs that other processes read; raise --servers.disk_cache_bytes, or wait for them"
            )


def _claimed(graph: Path) -> dict[str, int]:
    """Reads the recorded size of each file; an empty result if there is no record. The record is written before anything is copied."""
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
    """Removes a graph and returns True. Returns False if another process uses the graph."""
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
