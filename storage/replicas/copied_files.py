"""Copies partitions of a graph, or a whole set of graphs, to a host's disk. Each file of the origin is verified once, during the copy.

    manifests/000001.json                          the origin's manifest, with the origin's url
    data/<snapshot>/part-00000/…                   files of the partitions that this host serves; files of other partitions are missing
    copied/part-00000.json                         stamps of the verified files: a file whose stamp is unchanged is not read again

A file of a copy is either complete or missing. Ingestion never writes to a copy. The origin is only read.
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
_DEADLINE_S, _TRY_S = 120.0, 60.0  # for one chunk, which takes 34 s at 1 Mb/s


@dataclass(frozen=True)
class CopiedPartition:
    """A partition with all its files on this host."""

    # paths of all files of the partition, relative to the graph's path; their checksums match the manifest
    verified: frozenset[str]
    num_bytes: int  # bytes that this call read from the origin


def copy_manifest(url: str, manifest: Manifest | GraphSetManifest) -> None:
    """Writes the manifest of a copy, if it does not exist yet. Raises ConfigError if another graph is there."""
    if _manifest_there(url, manifest) == manifest:
        return
    where = Path(manifest_path(split_url(url)[1], manifest.snapshot))
    with _writing(where):
        where.parent.mkdir(parents=True, exist_ok=True)
        write_durably(where, manifest.to_json().encode())


def _manifest_there(url: str, manifest: Manifest | GraphSetManifest) -> Manifest | GraphSetManifest | None:
    """Returns the manifest of the copy at the url: of the same snapshot, or else of the newest snapshot. None if nothing is there. Raises ConfigError if the
    graph at the url is not a copy, or is a copy with other content."""
    if not has_graph(url):
        return None
    filesystem, path = split_url(url)
    is_same = Path(manifest_path(path, manifest.snapshot)).exists()
    number = manifest.snapshot if is_same else None
    manifest_of_copy = parse_any_manifest(*read_manifest(filesystem, path, url, number, "graphmill ingest <source>"))
    if manifest_of_copy.origin is None or (is_same and manifest_of_copy.content_hash != manifest.content_hash):
        raise ConfigError(
            f"{url} on {socket.gethostname()}: expected nothing, or a copy of {manifest.origin}, found the graph {manifest_of_copy.name}; "
            "choose another url"
        )
    return manifest_of_copy


def _check_place(url: str, manifest: Manifest | GraphSetManifest) -> None:
    """Raises ConfigError if a folder of this host cannot be used for this copy, because it holds other files or another graph, or cannot be written."""
    where = f"choose another url on {socket.gethostname()}"
    check_output(url, "a graph", lambda *at: [name for name in graph_strangers(*at) if name != COPIED], advice=where)
    _manifest_there(url, manifest)


def copy_here(origin: str, snapshot: int, url: str, partitions: Sequence[int] = ()) -> int:
    """Copies missing files to the copy at `url` on this host, for these partitions of a graph, or all files of a set. Returns the bytes read from the origin.

    Raises ConfigError if `url` holds other files or another graph, and FormatError if the origin is missing or damaged, or if the disk is full.
    """
    filesystem, path = split_url(origin)
    manifest = parse_any_manifest(*read_manifest(filesystem, path, origin, snapshot, "graphmill ingest <source>"))
    manifest = replace(manifest, origin=absolute_url(origin))
    _check_place(url, manifest)
    if isinstance(manifest, GraphSetManifest):
        num_bytes = _copy_files(url, _WHOLE, list(manifest.files.values()), lambda: (filesystem, path))
        copy_manifest(url, manifest)  # the manifest of a set comes last, because a set is opened with all its files
        return num_bytes
    copy_manifest(url, manifest)
    copy = open_graph(url, snapshot, kind=PLAIN_OR_TYPED)
    return sum(copy_partition(copy, partition).num_bytes for partition in partitions)


def copy_partition(copy: GraphSnapshot, index: int) -> CopiedPartition:
    """Copies the missing files of a partition to a copy on this host. Files that were verified before are not read again.

    Raises FormatError if the origin is missing or damaged, or if the disk is full.
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
    """Copies missing files to `url`, and writes the stamps of all files to the record `name`. Returns the number of copied bytes."""
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
    """Reads the stamps in a record, by file name. Returns no stamps if the record is missing or was not written by this module."""
    try:
        rows = json.loads(path.read_text())
        stamps = [Stamp(str(name), int(size), int(changed), str(digest)) for name, size, changed, digest in rows]
    except (OSError, ValueError, TypeError):
        return {}
    return {stamp.name: stamp for stamp in stamps}


def _copy_file(filesystem: fsspec.AbstractFileSystem, path: str, entry: FileEntry, target: Path) -> None:
    """Copies one file, and checks its checksum during the copy. The target is either complete or missing."""
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
    """Yields the chunks of a file. Requests to an unreachable store are repeated (storage/filesystem/retry.py)."""
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
    """Turns an error of this host's disk, for example a full disk, into one line that names the host."""
    with one_line_errors(f"{target} on {socket.gethostname()}", "write this file"):
        yield
