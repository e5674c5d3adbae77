"""Writes one snapshot of a graph. It writes the files into a new folder, and then creates the manifest exclusively, which is the commit.

Two writers may work at the same time. The writer that commits second fails with a one-line error, and destroys nothing. A writer deletes only
files that it wrote itself and did not publish. On local filesystems every file is on disk before the manifest that names it is created.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from graphmill.core.errors import ConfigError, ConflictError, FormatError, GraphmillError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.filesystem_errors import one_line, one_line_errors
from graphmill.storage.filesystem.fsync import link_exclusively, remove_if_empty, sync_file, synced_entry
from graphmill.storage.filesystem.ingest_scratch import scratch_directory
from graphmill.storage.filesystem.outputs import check_output, names_there
from graphmill.storage.filesystem.urls import is_local, split_url
from graphmill.storage.format.graph_set_manifest import GraphSetManifest
from graphmill.storage.format.manifest import Manifest, parse_head
from graphmill.storage.snapshots.conditional_put import check_exclusive_creation
from graphmill.storage.snapshots.garbage import remove_temporary
from graphmill.storage.snapshots.journal import LEASE_S, Lease
from graphmill.storage.snapshots.snapshots import (
    DATA,
    MANIFESTS,
    TOP_LEVEL,
    foreign_names,
    holds_first_format,
    last_number,
    manifest_path,
    read_manifest,
    snapshot_numbers,
)

_LINK_TRIES = 3
_HASHERS = 2  # number of threads that hash, sync and upload files while the next files are written
# Creating a file is not atomic in fsspec's memory filesystem, so the writers of this process use a lock.
_MEMORY = threading.Lock()


Manifested = TypeVar("Manifested", Manifest, GraphSetManifest)


def check_destination(url: str, *, overwrite: bool = False) -> None:
    """Raises ConfigError if `url` is a file, holds files that are not from Graphmill, or holds a graph although `overwrite` is not set."""
    check_output(url, "a graph", graph_strangers, advice="choose another url")
    filesystem, path = split_url(url)
    with one_line_errors(url, "use this destination", ConfigError):
        if holds_first_format(filesystem, path):
            raise ConfigError(
                f"{url}: found a graph of format 1, which this version neither reads nor replaces; choose another url"
            )
        if snapshot_numbers(filesystem, path) and not overwrite:
            raise ConfigError(
                f"{url}: expected nothing there, found a graph; pass --overwrite to publish a new snapshot of it "
                "(the old one stays until it is pruned), or choose another url"
            )


def graph_strangers(filesystem: fsspec.AbstractFileSystem, path: str) -> list[str]:
    """Returns the names at the path that are not from Graphmill. Empty if a graph is there: a snapshot is written to a new folder, so other files are safe."""
    if holds_first_format(filesystem, path):
        return []
    if snapshot_numbers(filesystem, path):
        parse_head(*read_manifest(filesystem, path, path, None, ""))  # raises if the manifest is not from Graphmill
        return []
    others = [name for name in names_there(filesystem, path) if name not in TOP_LEVEL]
    return others + foreign_names(filesystem, path)


@contextlib.contextmanager
def write_snapshot(
    url: str, *, overwrite: bool = False, scratch: str | None = None, lease_s: float = LEASE_S
) -> Iterator["SnapshotWriter"]:
    """Yields the writer of one snapshot. At the end of the block, files that were not committed are removed.

    `scratch`: a local directory for temporary files. None: the snapshot's folder, or for a remote store the system's temporary directory.
    Raises ConfigError if `url` cannot be written to, FormatError for an OSError in the block.
    """
    check_destination(url, overwrite=overwrite)
    filesystem, path = split_url(url)
    base = last_number(filesystem, path)
    if base and not overwrite:
        # raises, because another writer has published a graph since the first check; if one publishes later, `commit` raises
        check_destination(url)
    name, local = Path(path).name, is_local(filesystem)
    attempted: list[int] = []
    with contextlib.ExitStack() as stack:
        folder = f"{DATA}/{base + 1:06d}-{secrets.token_hex(4)}"
        where = f"{path}/{folder}"
        made = stack.enter_context(_folders(Path(path), Path(where), url)) if local else []
        lease = Lease(filesystem, where, lease_s)
        with one_line_errors(url, "use this destination", ConfigError):
            stack.callback(remove_temporary, filesystem, path, folder, attempted)
            stack.callback(lease.release)
            lease.begin()
            if not local:
                check_exclusive_creation(filesystem, where, url)
            inside = local and scratch is None
            temporary = Path(where, "scratch") if inside else stack.enter_context(_elsewhere(scratch, name))
            staged = Path(where) if local else temporary / "graph"
            for each in (temporary, staged):
                each.mkdir(exist_ok=True)
        writer = SnapshotWriter(filesystem, path, url, folder, base, staged, temporary, lease, made, attempted)
        stack.callback(writer.close)
        try:
            yield writer
        except GraphmillError:
            raise
        except OSError as error:  # the disk is full, or a file of the source cannot be read
            named = f" ({error.filename})" if error.filename else ""
            raise FormatError(f"{url}: cannot prepare the graph: {one_line(error)}{named}") from error


@contextlib.contextmanager
def _folders(target: Path, own: Path, url: str) -> Iterator[list[Path]]:
    """Makes the missing folders of a graph, including `own`, and yields the folders that must be synced. At the end, removes those new folders that are still
    empty."""
    inner = (own, own.parent, target / MANIFESTS)
    missing = [folder for folder in (*inner, target, *target.parents) if not folder.exists()]
    try:
        with one_line_errors(url, "make this directory (choose another url)", ConfigError):
            for folder in reversed(missing):
                folder.mkdir(exist_ok=True)
        yield [*inner, target, *(folder.parent for folder in missing)]
    finally:
        for folder in missing:
            remove_if_empty(folder)


@contextlib.contextmanager
def _elsewhere(scratch: str | None, name: str) -> Iterator[Path]:
    """Makes a temporary directory in `scratch` (None: in the system's temporary directory)."""
    parent = Path(scratch) if scratch else None
    if parent:
        with one_line_errors(str(parent), "make this directory (--scratch)", ConfigError):
            parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(parent, name) as temporary:
        yield temporary


@dataclass
class SnapshotWriter:
    """The writer of one snapshot. The caller writes files below `files` and passes each complete file to `add`; `commit` publishes all files."""

    _filesystem: fsspec.AbstractFileSystem
    _path: str
    _url: str
    _folder: str
    base: int  # number of the newest snapshot when this snapshot was begun
    files: Path
    scratch: Path
    _lease: Lease
    _made: list[Path]
    _attempted: list[int]  # numbers under which this snapshot may have been published

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(_HASHERS, thread_name_prefix="snapshot-files")
        self._pending: dict[str, Future[FileEntry]] = {}

    @property
    def number(self) -> int:
        """The number of the snapshot that `commit` makes."""
        return self.base + 1

    def add(self, file: Path | str) -> None:
        """Takes a complete file, by its path or by its name below `files`. A thread then hashes the file, and syncs or uploads it."""
        name = (self.files / file).relative_to(self.files).as_posix()
        self._pending[name] = self._pool.submit(self._settle, name)

    def entries(self) -> dict[str, FileEntry]:
        """Returns the added files, by name, in ascending order. Raises FormatError if a file could not be written."""
        return {name: self._pending[name].result() for name in sorted(self._pending)}

    def _settle(self, name: str) -> FileEntry:
        local, target = self.files / name, f"{self._folder}/{name}"
        with one_line_errors(f"{self._path}/{target}", "write this file"):
            entry = synced_entry(local)._replace(path=target)
            if is_local(self._filesystem):
                return entry
            self._filesystem.put_file(str(local), f"{self._path}/{target}")
            stored = self._filesystem.size(f"{self._path}/{target}")
        if stored != entry.num_bytes:
            raise FormatError(
                f"{self._path}/{target}: expected {entry.num_bytes} bytes after the upload, found {stored}"
            )
        local.unlink()
        return entry

    def rebase(self) -> None:
        """Gives this snapshot the next number after the newest snapshot. Only for writers whose files do not depend on other snapshots."""
        self.base = last_number(self._filesystem, self._path)

    def commit(self, manifest: Manifested) -> Manifested:
        """Creates the manifest with its number and date, and returns it. Raises ConflictError if another writer published first."""
        self.entries()
        manifest = replace(manifest, snapshot=self.number, created=round(time.time(), 3))
        where, content = manifest_path(self._path, self.number), manifest.to_json().encode()
        self._lease.check()
        self._attempted.append(self.number)
        with one_line_errors(where, "write this file"):
            is_first = last_number(self._filesystem, self._path) == self.base and self._create(where, content)
        if not is_first:
            raise ConflictError(
                f"{self._url}: another writer published snapshot {last_number(self._filesystem, self._path)} meanwhile; "
                "it is whole, and nothing of this one was published; run again"
            )
        return manifest

    def _create(self, where: str, content: bytes) -> bool:
        filesystem = self._filesystem
        if is_local(filesystem):
            return self._create_local(Path(where), content)
        with _MEMORY if isinstance(filesystem, MemoryFileSystem) else contextlib.nullcontext():
            try:
                filesystem.pipe_file(where, content, mode="create")
            except FileExistsError:  # this writer may itself have created the file, if its request was sent twice
                return bool(filesystem.cat_file(where) == content)
        return True

    def _create_local(self, where: Path, content: bytes) -> bool:
        temporary = self.files / "manifest.json"
        temporary.write_bytes(content)
        sync_file(temporary)
        parents = {parent for name in self._pending for parent in Path(name).parents}
        folders = {self.files / parent for parent in parents} | set(self._made)

        def link() -> bool:
            where.parent.mkdir(exist_ok=True)
            for folder in folders:
                sync_file(folder)
            return link_exclusively(temporary, where)

        try:
            for _ in range(_LINK_TRIES - 1):
                # The folder may vanish, because another writer that fails at the same new url removes empty folders.
                with contextlib.suppress(FileNotFoundError):
                    return link()
            return link()
        finally:
            temporary.unlink(missing_ok=True)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
