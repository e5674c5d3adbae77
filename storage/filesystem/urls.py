"""Finds the filesystem and the path of an fsspec URL."""

import functools
import os

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.filesystem_errors import one_line, one_line_errors
from graphmill.storage.filesystem.retry import RepeatingFileSystem


def split_url(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Returns filesystem and path of an fsspec URL. A plain path is local, and is made absolute. A remote filesystem repeats its requests.

    Raises FormatError if the URL's protocol is unknown or its fsspec package is not installed.
    """
    if ":" not in url:  # shortcut for a plain path, because fsspec's parsing takes longer than reading a manifest
        filesystem = _local()
        return filesystem, os.path.normpath(filesystem._strip_protocol(url)).rstrip("/")
    try:
        with one_line_errors(url, "use this URL"):  # such as an error for a missing profile
            try:
                filesystem, path = fsspec.core.url_to_fs(url)
            except ValueError as error:  # an unknown protocol
                raise ImportError(str(error)) from None
    except ImportError as error:
        raise FormatError(
            f"{url}: cannot open this kind of URL ({one_line(error)}); use a path, memory://, or install an extra: "
            "pip install -e '.[s3]' or '.[gs]'"
        ) from None
    # "x/../graph" must be the same path even if x does not exist.
    path = os.path.normpath(path) if is_local(filesystem) else str(path)
    if not isinstance(filesystem, LocalFileSystem | MemoryFileSystem):
        # fsspec keeps one object for a filesystem and its options; so there is one that repeats
        plain, filesystem = filesystem, getattr(filesystem, "_repeating", None)
        if filesystem is None:
            filesystem = plain._repeating = RepeatingFileSystem(plain)
    return filesystem, path.rstrip("/")


@functools.cache
def _local() -> LocalFileSystem:
    return LocalFileSystem()


def is_local(filesystem: fsspec.AbstractFileSystem) -> bool:
    return isinstance(filesystem, LocalFileSystem)


def absolute_url(url: str) -> str:
    """Makes a local path absolute, because workers may run in another folder. Returns other URLs unchanged."""
    filesystem, path = split_url(url)
    return path if is_local(filesystem) else url
