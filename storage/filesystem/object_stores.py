"""Handles the differences between local files, other filesystems and object stores: how to list and write, that buckets must exist and folders need not."""

import os
from contextlib import suppress

import fsspec

from graphmill.core.errors import ConfigError
from graphmill.storage.filesystem.fsync import write_durably
from graphmill.storage.filesystem.urls import is_local

# Object stores have no directories. The first part of a path is a bucket (container), which `makedirs` would create.
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"))


def is_object_store(filesystem: fsspec.AbstractFileSystem) -> bool:
    protocol = filesystem.protocol
    return not _OBJECT_STORES.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)


def check_bucket(filesystem: fsspec.AbstractFileSystem, path: str, url: str) -> None:
    """Raises ConfigError if the bucket of an object store does not exist. Graphmill never creates a bucket, because a typing error would create a wrong one."""
    bucket = path.split("/", 1)[0]
    if is_object_store(filesystem) and not filesystem.exists(bucket):
        raise ConfigError(
            f"{url}: expected a bucket {bucket!r} that exists and that these credentials may use, found none; create it first"
        )


def list_names(filesystem: fsspec.AbstractFileSystem, folder: str) -> list[str]:
    """Lists the names in a folder, ascending. Returns an empty list if the folder does not exist. Uses no cached listing."""
    try:
        return sorted(os.listdir(folder) if is_local(filesystem) else list_sizes(filesystem, folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def list_sizes(filesystem: fsspec.AbstractFileSystem, folder: str) -> dict[str, int]:
    """Lists the size in bytes of each file in a folder, by name, with one request. The result is empty if the folder does not exist. Uses no cached listing."""
    sizes: dict[str, int] = {}
    try:
        if is_local(filesystem):
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # the file was removed after it was listed
                        sizes[entry.name] = entry.stat().st_size
            return sizes
        filesystem.invalidate_cache(folder)
        listed = filesystem.ls(folder, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for entry_info in listed:
        if name := str(entry_info["name"]).rstrip("/").rsplit("/", 1)[-1]:
            sizes[name] = int(entry_info["size"] or 0)
    return sizes


def put_file(filesystem: fsspec.AbstractFileSystem, path: str, content: bytes) -> None:
    """Writes a small file, and makes its folder. A reader finds either the whole old content or the whole new content, even after a power failure."""
    if not is_object_store(filesystem):
        filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
    if is_local(filesystem):
        write_durably(path, content)
    else:
        filesystem.pipe_file(path, content)
