"""Makes a staged graph visible at its destination, so that a reader finds the old graph, the new one, or none, never a mixture.

Locally: renames. On other filesystems, which have none that is atomic: the manifest is last to come and first to go. To replace a
graph, all files are uploaded beside it first, as `<path>.upload-xxxxxxxx`, a whole graph in itself; the old one is touched only
when every file is there in its full size. From then on only copies within the store can fail, and the error names the uploaded graph.
"""

import contextlib
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import fsspec

from storage.arrow_files import is_local
from storage.errors import ConfigError, FormatError
from storage.filesystem_errors import one_line_errors
from storage.manifest import MANIFEST_NAME, FileEntry
from storage.scratch import REPLACED, scratch_directory

# Their first path part is a bucket (container), which `makedirs` would create, and they have no directories to make.
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"))


class Manifested(Protocol):
    """A manifest of any kind: names the files that are to be put at the destination."""

    @property
    def files(self) -> Mapping[str, FileEntry]: ...


def check_destination(filesystem: fsspec.AbstractFileSystem, path: str, url: str, *, overwrite: bool) -> None:
    """ConfigError where there is something else than nothing, an empty directory, or (`overwrite`) a graph."""
    if not filesystem.exists(path):
        check_bucket(filesystem, path, url)
        return
    if not filesystem.isdir(path):
        raise ConfigError(f"{url}: expected a directory or nothing, found a file; choose another url")
    contents = filesystem.ls(path, detail=False)
    holds_graph = filesystem.exists(f"{path}/{MANIFEST_NAME}")
    if contents and not (holds_graph and overwrite):
        kind = "a graph" if holds_graph else "other files"
        advice = "pass --overwrite to replace it, or choose another url" if holds_graph else "choose an empty url"
        raise ConfigError(f"{url}: expected nothing there, found {kind}; {advice}")


def check_bucket(filesystem: fsspec.AbstractFileSystem, path: str, url: str) -> None:
    """ConfigError where an object store has no such bucket: none is ever created, since a typo would make one."""
    bucket = path.split("/", 1)[0]
    if is_object_store(filesystem) and not filesystem.exists(bucket):
        raise ConfigError(
            f"{url}: expected a bucket {bucket!r} that exists and that these credentials may use, found none; create it first"
        )


def is_object_store(filesystem: fsspec.AbstractFileSystem) -> bool:
    protocol = filesystem.protocol
    return not _OBJECT_STORES.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)


def publish(staged: Path, filesystem: fsspec.AbstractFileSystem, path: str, manifest: Manifested) -> None:
    """Puts the graph in `staged` at `path`, instead of the one that may lie there.

    FormatError where the destination fails; the old graph is then whole at its place, or the message says where the new one is.
    """
    if is_local(filesystem):
        with one_line_errors(path, "put the graph there"):
            _publish_local(staged, Path(path))
        return
    with one_line_errors(path, "look at the destination"):
        is_taken = filesystem.exists(f"{path}/{MANIFEST_NAME}")
    if not is_taken:
        _upload(staged, filesystem, path, manifest)
        return
    beside = f"{path}.upload-{secrets.token_hex(4)}"
    _upload(staged, filesystem, beside, manifest)
    with one_line_errors(
        path, f"finish replacing this graph; the new one is whole at {beside}, open or copy it from there"
    ):
        _replace(staged, filesystem, path, beside, manifest)
    with one_line_errors(beside, f"remove this copy of the new graph, which is whole at {path}"):
        filesystem.rm(beside, recursive=True)


def _upload(staged: Path, filesystem: fsspec.AbstractFileSystem, path: str, manifest: Manifested) -> None:
    """Uploads all files, the manifest last; where that fails or is interrupted, removes them again."""
    try:
        with one_line_errors(path, "upload the graph"):
            for name in manifest.files:
                _put(staged, filesystem, path, name)
            filesystem.invalidate_cache()
            for name, entry in manifest.files.items():
                found = filesystem.size(f"{path}/{name}")
                if found != entry.num_bytes:
                    raise FormatError(
                        f"{path}/{name}: expected {entry.num_bytes} bytes after the upload, found {found}"
                    )
            _put(staged, filesystem, path, MANIFEST_NAME)
    except BaseException:
        with contextlib.suppress(FormatError), one_line_errors(path, "remove what was uploaded"):
            filesystem.rm(path, recursive=True)
        raise


def _put(staged: Path, filesystem: fsspec.AbstractFileSystem, path: str, name: str) -> None:
    make_parent(filesystem, f"{path}/{name}")
    filesystem.put_file(str(staged / name), f"{path}/{name}")


def make_parent(filesystem: fsspec.AbstractFileSystem, path: str) -> None:
    """Makes the folder of a file, where the filesystem has folders."""
    if not is_object_store(filesystem):
        filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)


def _replace(staged: Path, filesystem: fsspec.AbstractFileSystem, path: str, beside: str, manifest: Manifested) -> None:
    """From here on there is no graph at `path`, until its new manifest is."""
    filesystem.rm_file(f"{path}/{MANIFEST_NAME}")
    for name in manifest.files:
        make_parent(filesystem, f"{path}/{name}")
        try:
            filesystem.cp_file(f"{beside}/{name}", f"{path}/{name}")  # within the store
        except NotImplementedError:
            _put(staged, filesystem, path, name)
    _remove_others(filesystem, path, manifest.files)
    _put(staged, filesystem, path, MANIFEST_NAME)


def _remove_others(filesystem: fsspec.AbstractFileSystem, path: str, names: Iterable[str]) -> None:
    """Removes the files below `path` that the new graph does not have, and the folders that are then empty."""
    filesystem.invalidate_cache()
    keep = {f"{path}/{name}" for name in names}
    folders = {name.rsplit("/", 1)[0] for name in keep}
    for found in filesystem.find(path):
        if found not in keep:
            filesystem.rm_file(found)
    if is_object_store(filesystem):
        return
    for found in filesystem.ls(path, detail=False):
        if not any(each == found or each.startswith(f"{found}/") for each in folders):
            filesystem.rm(found, recursive=True)


def _publish_local(staged: Path, target: Path) -> None:
    """Renames the staged directory to `target`; what was there before is put back where that fails."""
    with scratch_directory(target.parent, target.name) as beside:
        old, new = beside / REPLACED, staged
        if staged.stat().st_dev != target.parent.stat().st_dev:  # --scratch on another disk: copy beside, then rename
            new = beside / "graph"
            shutil.copytree(staged, new)
        try:
            if target.exists():
                target.rename(old)
            new.rename(target)
        except BaseException:
            if old.exists() and not target.exists():
                old.rename(target)
            raise
