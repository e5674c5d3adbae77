"""Copies of a graph's partitions, or of a whole set of graphs, on a host's own disk: files of the origin, each verified once, while it is copied.

    manifests/000001.json                          the origin's, which it names
    data/<snapshot>/part-00000/…                   files of those partitions that this host serves; the others are not there
    copied/part-00000.json                         how the files looked when they were verified: what looks so still is not read again

A file is there whole or not at all. A copy is never written to by ingestion, and its origin is only read.
"""

import hashlib
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

import fsspec

from graphmill.core.errors import ConfigError, FormatError
from graphmill.storage.filesystem.file_entry import FileEntry
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.fsync import replaced_durably, write_durably
from graphmill.storage.filesystem.outputs import check_output
from graphmill.storage.filesystem.retry import retried
from graphmill.storage.filesystem.urls import absolute_url, is_local, split_url
from graphmill.storage.format.arrow_files import file_digest
from graphmill.storage.format.graph_set_manifest import GraphSetManifest, parse_any_manifest
from graphmill.storage.format.manifest import Manifest, partition_dir
from graphmill.storage.graph import PLAIN_OR_TYPED, GraphSnapshot, PinnedGraph, open_graph
from graphmill.storage.replicas.file_stamps import Stamp, take_stamps
from graphmill.storage.snapshots.snapshot_writer import graph_strangers
from graphmill.storage.snapshots.snapshots import has_graph, manifest_path, read_manifest

COPIED = "copied"
_WHOLE = "graphs.json"
_CHUNK_BYTES = 1 << 22
_DEADLINE_S, _TRY_S = 120.0, 60.0  # of a chunk: at 1 Mb/s it takes 34 s


@dataclass(frozen=True)
class CopiedPartition:
    """A partition whose files are on this host."""

    verified: frozenset[str]  # all its files, below the graph's path: they hold the bytes that the manifest names
    num_bytes: int  # that came from the origin just now


def copy_manifest(url: str, manifest: Manifest | GraphSetManifest) -> None:
    """Puts the manifest of a copy where it opens from, unless it is there. Raises ConfigError where another graph is there."""
    if _manifest_there(url, manifest) == manifest:
        return
    where = Path(manifest_path(split_url(url)[1], manifest.snapshot))
    with _writing(where):
        where.parent.mkdir(parents=True, exist_ok=True)
        write_durably(where, manifest.to_json().encode())


def _manifest_there(url: str, manifest: Manifest | GraphSetManifest) -> Manifest | GraphSetManifest | None:
    """That of the same snapshot, else the newest, of a copy that is there. Raises ConfigError where what is there is no copy, or one of other bytes."""
    if not has_graph(url):
        return None
    filesystem, path = split_url(url)
    is_same = Path(manifest_path(path, manifest.snapshot)).exists()
    number = manifest.snapshot if is_same else None
    there = parse_any_manifest(*read_manifest(filesystem, path, url, number, "graphmill ingest <source>"))
    if there.origin is None or (is_same and there.content_hash != manifest.content_hash):
        raise ConfigError(
            f"{url} on {socket.gethostname()}: expected nothing, or a copy of {manifest.origin}, found the graph {there.name}; "
            "choose another url"
        )
    return there


def _check_place(url: str, manifest: Manifest | GraphSetManifest) -> None:
    """Raises ConfigError where a folder of this host may not become this copy: it holds other files or another graph, or cannot be written."""
    where = f"choose another url on {socket.gethostname()}"
    check_output(url, "a graph", lambda *at: [name for name in graph_strangers(*at) if name != COPIED], advice=where)
    _manifest_there(url, manifest)


def copy_here(origin: str, snapshot: int, url: str, partitions: Sequence[int] = ()) -> int:
    """Makes sure that the copy at `url` has these partitions of a graph on this host, or all files of a set; bytes that came from the origin just now.

    Raises ConfigError where something else is at `url`, FormatError where the origin is gone or damaged, or the disk is full.
    """
    filesystem, path = split_url(origin)
    manifest = parse_any_manifest(*read_manifest(filesystem, path, origin, snapshot, "graphmill ingest <source>"))
    manifest = replace(manifest, origin=absolute_url(origin))
    _check_place(url, manifest)
    if isinstance(manifest, GraphSetManifest):
        num_bytes = _copy_files(url, _WHOLE, list(manifest.files.values()), lambda: (filesystem, path))
        copy_manifest(url, manifest)  # last: a set is opened with all its files
        return num_bytes
    copy_manifest(url, manifest)
    copy = open_graph(url, snapshot, kind=PLAIN_OR_TYPED)
    return sum(copy_partition(copy, partition).num_bytes for partition in partitions)


def copy_partition(copy: GraphSnapshot, index: int) -> CopiedPartition:
    """Makes sure that a copy has a partition's files on this host, and reads only what was not verified here before.

    Raises FormatError where the origin is gone or damaged, or the disk is full.
    """
    assert copy.manifest.origin is not None
    whole = PinnedGraph(copy.manifest.origin, copy.manifest.snapshot, copy.manifest.content_hash)
    entries = copy.partition_files(index)

    def open_origin() -> tuple[fsspec.AbstractFileSystem, str]:
        origin = whole.open()
        return origin.filesystem, origin.path

    num_bytes = _copy_files(copy.url, f"{partition_dir(index)}.json", entries, open_origin)
    copy_manifest(copy.url, copy.manifest)
    return CopiedPartition(frozenset(entry.path for entry in entries), num_bytes)


def _copy_files(
    url: str,
    name: str,
    entries: Sequence[FileEntry],
    open_origin: Callable[[], tuple[fsspec.AbstractFileSystem, str]],
) -> int:
    """Copies what is missing at `url` and remembers, in the record `name`, how all looks; bytes copied."""
    filesystem, path = split_url(url)
    if not is_local(filesystem):
        raise ConfigError(f"{url}: expected a path on the hosts' own disks, got a URL")
    record = Path(path, COPIED, name)
    known = _read_record(record)
    origin: tuple[fsspec.AbstractFileSystem, str] | None = None
    num_bytes, stamps = 0, dict(known)
    for entry in entries:
        target = Path(path, entry.path)
        if target.exists():
            stamp = take_stamps(url, [entry]).stamps[0]
            if known.get(entry.path) == stamp:
                continue
            if file_digest(target) == entry.sha256:
                stamps[entry.path] = stamp
                continue
        origin = origin or open_origin()
        _copy_file(*origin, entry, target)
        num_bytes += entry.num_bytes
        stamps[entry.path] = take_stamps(url, [entry]).stamps[0]
    if stamps != known:
        with _writing(record):
            record.parent.mkdir(parents=True, exist_ok=True)
            write_durably(record, (json.dumps([astuple(stamp) for stamp in stamps.values()]) + "\n").encode())
    return num_bytes


def _read_record(path: Path) -> dict[str, Stamp]:
    """Stamps by name; none where there is no such file, or another than this module writes."""
    try:
        rows = json.loads(path.read_text())
        stamps = [Stamp(str(name), int(size), int(changed), str(digest)) for name, size, changed, digest in rows]
    except (OSError, ValueError, TypeError):
        return {}
    return {stamp.name: stamp for stamp in stamps}


def _copy_file(filesystem: fsspec.AbstractFileSystem, path: str, entry: FileEntry, target: Path) -> None:
    """Copies one file, and checks its bytes on their way; the target has all of them or is not there."""
    source = f"{path}/{entry.path}"
    digest = hashlib.sha256()
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with replaced_durably(target) as sink:
            for chunk in _chunks(filesystem, source, entry.num_bytes):
                digest.update(chunk)
                sink.write(chunk)
            if digest.hexdigest() != entry.sha256:
                raise FormatError(
                    f"{source}: expected sha256 {entry.sha256}, found {digest.hexdigest()}; the file is corrupt"
                )


def _chunks(filesystem: fsspec.AbstractFileSystem, source: str, num_bytes: int) -> Iterator[bytes]:
    """A store that is away is asked again, as storage/filesystem/retry.py says."""
    with one_line_errors(source, "copy this file"):
        if is_local(filesystem):
            with open(source, "rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    yield chunk
            return
        for start in range(0, num_bytes, _CHUNK_BYTES):
            read = partial(filesystem.cat_file, source, start=start, end=min(start + _CHUNK_BYTES, num_bytes))
            yield retried(read, source, "copy this file", _DEADLINE_S, _TRY_S)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """An error of this host's disk, such as a full one, as one line that names the host."""
    with one_line_errors(f"{target} on {socket.gethostname()}", "write this file"):
        yield
