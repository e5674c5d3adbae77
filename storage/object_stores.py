"""What differs between filesystems and object stores: buckets that must exist, and folders that need not."""

import fsspec

from storage.errors import ConfigError

# Their first path part is a bucket (container), which `makedirs` would create, and they have no directories to make.
_OBJECT_STORES = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"))


def is_object_store(filesystem: fsspec.AbstractFileSystem) -> bool:
    protocol = filesystem.protocol
    return not _OBJECT_STORES.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)


def check_bucket(filesystem: fsspec.AbstractFileSystem, path: str, url: str) -> None:
    """ConfigError where an object store has no such bucket: none is ever created, since a typo would make one."""
    bucket = path.split("/", 1)[0]
    if is_object_store(filesystem) and not filesystem.exists(bucket):
        raise ConfigError(
            f"{url}: expected a bucket {bucket!r} that exists and that these credentials may use, found none; create it first"
        )


def make_parent(filesystem: fsspec.AbstractFileSystem, path: str) -> None:
    """Makes the folder of a file, where the filesystem has folders."""
    if not is_object_store(filesystem):
        filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
