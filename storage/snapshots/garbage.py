"""Removes, from folders with a journal, the files that no manifest names. Removes only files whose names Graphmill's writers use; other files stay."""

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

import fsspec

from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.fsync import remove_if_empty
from graphmill.storage.filesystem.object_stores import is_object_store
from graphmill.storage.filesystem.outputs import remove_empty_folder
from graphmill.storage.filesystem.urls import is_local
from graphmill.storage.format.manifest import NAME, PART_NAME, parse_head
from graphmill.storage.snapshots.journal import JOURNAL
from graphmill.storage.snapshots.snapshots import manifest_path

# Patterns of all names that a writer gives to files in its folder. The journal is removed last, because it marks the folder as Graphmill's.
_KEPT = (
    r"part-\d{5}/(topology|out_topology|nodes|ids|features|edges|links|graphs)\.arrow",
    rf"part-\d{{5}}/{PART_NAME}/(topology|out_topology|nodes|ids|features|edges|links)\.arrow",
    rf"part-\d{{5}}/({NAME}/)?encodings/(laplacian-\d{{1,4}}-(smallest|both_ends)|rwse-\d{{1,4}})\.arrow",
    r"rejects\.csv",
    r"\.?chunk-\d{7}-[0-9a-f]{64}\.arrow(\.[0-9a-f]{8})?",
)
_TEMPORARY = (
    rf"scratch/({PART_NAME}/)?(feature|gathered|sorted\.[a-z_]+|(edges|out_edges)/\d+\.[a-z_]+)",
    r"probe-[0-9a-f]{8}",
    r"\.journal\.json\.[0-9a-f]{8}",
    r"manifest\.json",
)
_OURS, _PASSING = re.compile("|".join(_KEPT + _TEMPORARY)), re.compile("|".join(_TEMPORARY))


def remove_temporary(filesystem: fsspec.AbstractFileSystem, path: str, folder: str, attempted: Collection[int]) -> None:
    """Cleans up after a writer. Removes its temporary files, or all its files if none of the snapshots `attempted` was published.

    If it cannot be determined which snapshots were published, all files stay until `prune` removes them.
    """
    published: set[str] = set()
    with contextlib.suppress(FormatError), one_line_errors(path, "look for the manifest"):
        for number in attempted:
            where = manifest_path(path, number)
            with contextlib.suppress(FileNotFoundError):
                paths = parse_head(filesystem.cat_file(where).decode("utf-8", "replace"), where).paths
                published |= {file for file in paths if file.startswith(f"{folder}/")}
        remove_files(filesystem, path, folder, published, listed=() if published else None)
        if not is_local(filesystem) and not is_object_store(filesystem):
            for empty in (f"{path}/{folder.split('/')[0]}", path):
                remove_empty_folder(filesystem, empty)


def remove_files(
    filesystem: fsspec.AbstractFileSystem,
    path: str,
    folder: str,
    reached: Collection[str] = (),
    *,
    listed: Collection[str] | None = None,
    dry_run: bool = False,
) -> tuple[int, int, list[str]]:
    """Removes Graphmill's files in a folder (`data/…`, `pieces/…`), except the files in `reached`, and then the folder if it is empty. Returns the number and
    the bytes of the removed files, and the names of files that are not Graphmill's, which stay.

    `listed` is given if a manifest names the folder, or did so before: then only these files and temporary files are removed. None: no manifest ever named
    the folder. All paths, including `folder`, are relative to the graph's path.
    """
    where, removed, num_bytes, kept = f"{path}/{folder}", 0, 0, False
    foreign: list[str] = []
    with one_line_errors(where, "remove these files"):
        for name, size in sorted(_files(filesystem, where)):
            if name == JOURNAL:
                continue
            if f"{folder}/{name}" in reached:
                kept = True
            elif _OURS.fullmatch(name) and (listed is None or f"{folder}/{name}" in listed or _PASSING.fullmatch(name)):
                with contextlib.suppress(FileNotFoundError):
                    if not dry_run:
                        filesystem.rm_file(f"{where}/{name}")
                    removed, num_bytes = removed + 1, num_bytes + size
            else:
                foreign.append(name)
        if not kept and not dry_run:
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm_file(f"{where}/{JOURNAL}")
    if not dry_run:
        _remove_empty_folders(filesystem, where)
    return removed, num_bytes, foreign


def _remove_empty_folders(filesystem: fsspec.AbstractFileSystem, where: str) -> None:
    if is_local(filesystem):
        for each, _, _ in () if os.path.islink(where) else os.walk(where, topdown=False):
            remove_if_empty(each)
    elif not is_object_store(filesystem):
        for each, _, _ in list(filesystem.walk(where, topdown=False)):
            remove_empty_folder(filesystem, each)


def _files(filesystem: fsspec.AbstractFileSystem, where: str) -> Iterator[tuple[str, int]]:
    """Yields (name relative to the folder, bytes) for every file. Links are not followed."""
    if is_local(filesystem):
        for folder, _, names in () if os.path.islink(where) else os.walk(where, followlinks=False):
            for name in names:
                each = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    # another process may prune at the same time and remove files
                    status = each.lstat()
                    if not stat.S_ISLNK(status.st_mode):
                        yield each.relative_to(where).as_posix(), status.st_size
        return
    filesystem.invalidate_cache()
    try:
        listed = filesystem.find(where, detail=True)
    except FileNotFoundError:
        return
    for path, info in listed.items():
        yield str(path)[len(where) + 1 :], int(info.get("size") or 0)
