"""Decides which paths a command may write to, and which files it may remove there.

A command may write to a path that is free, that is an empty folder, or that holds an earlier output of the same command. A file of Graphmill marks such an
output. All other content is refused with a one-line error before anything is written. From an earlier output a command removes only files whose names its
writer uses. Other files and their folders stay.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec

from graphmill.core.errors import ConfigError
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.object_stores import check_bucket, is_object_store, list_names
from graphmill.storage.filesystem.urls import is_local, split_url

# files that a killed `write_durably` left; their names do not show which command wrote the folder
_LEFT = re.compile(r"\..+\.[0-9a-f]{8}")

# A function that returns the names at an existing path that are not from Graphmill. The result is empty if everything there may be replaced.
Strangers = Callable[[fsspec.AbstractFileSystem, str], Sequence[str]]


def names_there(filesystem: fsspec.AbstractFileSystem, path: str) -> list[str]:
    """Returns the names in a folder, without files that a killed writer left. For a file, returns its own name."""
    if filesystem.isfile(path):
        return [path.rsplit("/", 1)[-1]]
    return [name for name in list_names(filesystem, path) if not _LEFT.fullmatch(name)]


def check_output(
    where: str | Path,
    what: str,
    strangers: Strangers = names_there,
    *,
    is_file: bool = False,
    advice: str = "choose another --out",
) -> None:
    """Raises ConfigError if a command may not write `what` to a path or URL, because the path holds other content or is not writable. Creates nothing.

    An output that is a folder may be a link to a folder; a dangling link is refused. An output that is a file may not be a link.
    """
    filesystem, path = _opened(where)
    with one_line_errors(str(where), f"use this for {what}", ConfigError):
        filesystem.invalidate_cache()
        obstacle = _obstacle(filesystem, path, strangers, is_file=is_file)
        if obstacle is not None:
            raise ConfigError(f"{where}: expected {what} or nothing there, found {obstacle}; {advice}")
        if is_local(filesystem):
            check_writable(Path(path).parent if is_file else Path(path), advice)
        elif not filesystem.exists(path):
            check_bucket(filesystem, path, str(where))


def _obstacle(filesystem: fsspec.AbstractFileSystem, path: str, strangers: Strangers, *, is_file: bool) -> str | None:
    """Returns the reason why nothing may be written here; None if writing is allowed."""
    is_link, is_there = is_local(filesystem) and os.path.islink(path), filesystem.exists(path)
    if is_link and (is_file or not is_there):
        return "a link"
    if not is_there:
        return None
    is_folder = filesystem.isdir(path)
    if is_file:
        if not filesystem.isfile(path):  # opening a pipe or a device might never return
            return "a folder" if is_folder else "no regular file"
        return "another file" if strangers(filesystem, path) else None
    if not is_folder:
        return "a file"
    names = strangers(filesystem, path)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"other files ({names[0]!r}{more})" if names else None


def check_writable(folder: Path, advice: str) -> None:
    """Raises ConfigError if a local folder cannot be written, or does not exist and cannot be made. Creates nothing."""
    existing = existing_part(folder)
    if not existing.is_dir():
        raise ConfigError(f"{folder}: expected a folder, found that {existing} is a file; {advice}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder}: expected a folder to write to, but {existing} is read-only; {advice}")


def existing_part(path: Path) -> Path:
    """Returns the path if it exists, else the nearest folder above it that exists."""
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return existing


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yields a temporary folder for the block to fill. At the end of the block the folder is renamed to `out`. If the block raises, the folder is removed
    with its content. Call `check_output` first."""
    target = out.resolve()  # a link to an empty folder is followed
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        made = Path(scratch, target.name)
        made.mkdir()
        yield made
        made.rename(target)


def remove_ours(folder: str | Path, ours: re.Pattern[str]) -> None:
    """Removes the files in a folder whose names match `ours`, and then the folder if it is empty. Raises OSError."""
    filesystem, path = _opened(folder)
    paths = [f"{path}/{name}" for name in list_names(filesystem, path) if ours.fullmatch(name)]
    if is_object_store(filesystem):
        if paths:
            filesystem.rm(paths)  # removes all files with one request
        return
    for each in paths:
        with suppress(FileNotFoundError, IsADirectoryError):
            filesystem.rm_file(each)
    remove_empty_folder(filesystem, path)


def _opened(where: str | Path) -> tuple[fsspec.AbstractFileSystem, str]:
    """Returns the filesystem and the path. A `Path` is always local, even if its name looks like a URL."""
    return (split_url("/")[0], os.path.abspath(where)) if isinstance(where, Path) else split_url(where)


def remove_empty_folder(filesystem: fsspec.AbstractFileSystem, folder: str) -> None:
    # either the filesystem has no folders, or another process has removed this folder
    with suppress(OSError, NotImplementedError):
        filesystem.invalidate_cache(folder)
        if not filesystem.ls(folder, detail=False):  # some filesystems (HDFS) would remove a folder with its content
            filesystem.rmdir(folder)
