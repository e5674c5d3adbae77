"""Files that no manifest names, in folders with a journal: found and removed by name, so that a file of anybody else stays where it is."""

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import fsspec

from storage.arrow_files import is_local
from storage.durable import remove_if_empty
from storage.errors import FormatError
from storage.filesystem_errors import one_line_errors
from storage.object_stores import is_object_store
from storage.snapshots import manifest_path

# Every name that a writer gives to a file in its folder. The journal is removed last: without it the folder is nobody's.
_OURS = re.compile(
    r"(part-\d{5}/[a-z_]+\.arrow|part-\d{5}/encodings/[A-Za-z0-9._-]{1,128}\.arrow|rejects\.csv|manifest\.json"
    r"|chunk-\d{7}-[0-9a-f]{64}\.arrow|\.chunk-\d{7}-[0-9a-f]{64}\.arrow\.[0-9a-f]{8}|probe-[0-9a-f]{8}|\.journal\.json\.[0-9a-f]{8}|scratch/.+)"
)
_JOURNAL = "journal.json"


def remove_temporary(filesystem: fsspec.AbstractFileSystem, path: str, folder: str, number: int) -> None:
    """At a writer's end: removes what it did not publish as snapshot `number`. Where that cannot be known, all stays for `prune`."""
    with contextlib.suppress(FormatError), one_line_errors(path, "look for the manifest"):
        try:
            manifest = filesystem.cat_file(manifest_path(path, number))
        except FileNotFoundError:
            manifest = b""
        remove_files(filesystem, path, folder, keep_all=f'"{folder}/'.encode() in manifest)
        if not is_local(filesystem) and not is_object_store(filesystem):
            for empty in (f"{path}/{folder.split('/')[0]}", path):
                _remove_empty_folder(filesystem, empty)


def remove_files(
    filesystem: fsspec.AbstractFileSystem,
    path: str,
    folder: str,
    reached: Collection[str] = (),
    *,
    keep_all: bool = False,
    dry_run: bool = False,
) -> tuple[int, int, list[str]]:
    """Removes our files of a folder (`data/…`, `pieces/…`) but those that are `reached` or, with `keep_all`, all but the temporary.

    `reached`: paths below the graph's, as `folder` is.
    Returns how many, their bytes, and the names of others' files, which stay. A folder that is empty then goes. `dry_run`: counts alone.
    """
    where, removed, num_bytes, kept = f"{path}/{folder}", 0, 0, False
    foreign: list[str] = []
    with one_line_errors(where, "remove these files"):
        for name, size in sorted(_files(filesystem, where)):
            temporary = name.startswith(("scratch/", "probe-", ".journal", "manifest.json"))
            if name == _JOURNAL:
                continue
            if not _OURS.fullmatch(name):
                foreign.append(name)
            elif f"{folder}/{name}" in reached or (keep_all and not temporary):
                kept = True
            else:
                with contextlib.suppress(FileNotFoundError):
                    if not dry_run:
                        filesystem.rm_file(f"{where}/{name}")
                    removed, num_bytes = removed + 1, num_bytes + size
        if not kept and not dry_run:
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm_file(f"{where}/{_JOURNAL}")
    if not dry_run:
        _remove_empty_folders(filesystem, where)
    return removed, num_bytes, foreign


def _remove_empty_folders(filesystem: fsspec.AbstractFileSystem, where: str) -> None:
    if is_local(filesystem):
        for each, _, _ in () if os.path.islink(where) else os.walk(where, topdown=False):
            remove_if_empty(each)
    elif not is_object_store(filesystem):
        for each, _, _ in list(filesystem.walk(where, topdown=False)):
            _remove_empty_folder(filesystem, each)


def _remove_empty_folder(filesystem: fsspec.AbstractFileSystem, folder: str) -> None:
    with contextlib.suppress(OSError, NotImplementedError):  # it knows no folders, or this one is gone
        filesystem.invalidate_cache(folder)
        if not filesystem.ls(folder, detail=False):  # some (HDFS) would remove it with all that it holds
            filesystem.rmdir(folder)


def _files(filesystem: fsspec.AbstractFileSystem, where: str) -> Iterator[tuple[str, int]]:
    """(name below the folder, bytes) of every file; what lies behind a link is another's."""
    if is_local(filesystem):
        for folder, _, names in () if os.path.islink(where) else os.walk(where, followlinks=False):
            for name in names:
                each = Path(folder, name)
                if not each.is_symlink():
                    yield each.relative_to(where).as_posix(), each.stat().st_size
        return
    filesystem.invalidate_cache()
    try:
        found = filesystem.find(where, detail=True)
    except FileNotFoundError:
        return
    for each, info in found.items():
        yield str(each)[len(where) + 1 :], int(info.get("size") or 0)
