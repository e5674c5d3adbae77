"""Reads the folder of a graph. The folder has numbered manifests. Each manifest names all files of one snapshot.

    manifests/000017.json                    one per snapshot, never changed
    data/000017-3f9ac21b/journal.json        the folder's writer and its lease (`graphmill.storage.snapshots.journal`)
    data/000017-3f9ac21b/part-00000/…        immutable files; manifests of later snapshots may name them, too

A reader opens the newest manifest or a given manifest. A snapshot exists if and only if its manifest exists: the exclusive
creation of the manifest is the commit (`graphmill.storage.snapshots.snapshot_writer`). Only `graphmill.storage.snapshots.prune` deletes snapshots.
"""

import re

import fsspec

from graphmill.core.errors import FormatError
from graphmill.core.files.small_files import MOST_BYTES, read_small
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.object_stores import list_names
from graphmill.storage.filesystem.urls import is_local, split_url

MANIFESTS, DATA, PIECES = "manifests", "data", "pieces"
TOP_LEVEL = frozenset((MANIFESTS, DATA, PIECES))  # the names at the top of a graph's folder
# Pattern of folder names: below data/ a folder has the files of one snapshot, below pieces/ the files of one source.
FOLDER_NAME = re.compile(r"\d{6,18}-[0-9a-f]{8}|[0-9a-f]{16}")
# a name whose number has the form that `manifest_path` writes
_MANIFEST_NAME = re.compile(r"(\d{6}|[1-9]\d{6,17})\.(json|claim)")
_MOST_SNAPSHOTS = 10**18 - 1
_FIRST_FORMAT = "manifest.json"  # in Graphmill's first format, this file is at the top of a graph's folder
_TRIES = 3  # more than one, because a manifest may be pruned after it was listed and before it is read


def manifest_path(path: str, number: int) -> str:
    return f"{path}/{MANIFESTS}/{number:06d}.json"


def snapshot_numbers(filesystem: fsspec.AbstractFileSystem, path: str) -> list[int]:
    """Lists the numbers of the snapshots in a graph's folder, ascending. The list is empty if the folder does not exist."""
    return sorted(number for number, kind in _listed(filesystem, path) if kind == "json")


def last_number(filesystem: fsspec.AbstractFileSystem, path: str) -> int:
    """Returns the highest number that a manifest, or a claim file for a manifest, has; 0 if there is none."""
    highest = max((number for number, _ in _listed(filesystem, path)), default=0)
    if highest == _MOST_SNAPSHOTS:
        raise FormatError(
            f"{manifest_path(path, highest)}: expected a lower number, found the highest; remove this file"
        )
    return highest


def _listed(filesystem: fsspec.AbstractFileSystem, path: str) -> list[tuple[int, str]]:
    folder = f"{path}/{MANIFESTS}"
    with one_line_errors(folder, "list this folder"):
        matches = [_MANIFEST_NAME.fullmatch(name) for name in list_names(filesystem, folder)]
    return [(int(match[1]), match[2]) for match in matches if match]


def has_graph(url: str) -> bool:
    """Whether the url holds a published snapshot or a graph of the first format. Raises FormatError if the folder cannot be read."""
    filesystem, path = split_url(url)
    with one_line_errors(url, "look for a graph"):
        return bool(snapshot_numbers(filesystem, path)) or holds_first_format(filesystem, path)


def foreign_names(filesystem: fsspec.AbstractFileSystem, path: str) -> list[str]:
    """Lists the names in the folders `manifests`, `data` and `pieces` that are not from Graphmill, such as `manifests/notes.txt`."""
    foreign = []
    for parent, pattern in ((MANIFESTS, _MANIFEST_NAME), (DATA, FOLDER_NAME), (PIECES, FOLDER_NAME)):
        if filesystem.isfile(f"{path}/{parent}"):
            foreign.append(parent)
            continue
        names = list_names(filesystem, f"{path}/{parent}")
        foreign += [f"{parent}/{name}" for name in names if not pattern.fullmatch(name)]
    return foreign


def claims(filesystem: fsspec.AbstractFileSystem, path: str) -> list[int]:
    """Lists the numbers that writers have claimed on a filesystem without hard links."""
    return sorted(number for number, kind in _listed(filesystem, path) if kind == "claim")


def holds_first_format(filesystem: fsspec.AbstractFileSystem, path: str) -> bool:
    """Whether the first version of Graphmill wrote the folder."""
    return bool(filesystem.exists(f"{path}/{_FIRST_FORMAT}"))


def read_manifest(
    filesystem: fsspec.AbstractFileSystem, path: str, url: str, snapshot: int | None, make: str
) -> tuple[str, str]:
    """Returns the text and the path of a snapshot's manifest, by default of the newest snapshot. `make`: a command that makes such a graph, for error messages.

    Raises FormatError if there is no manifest, or if the file is too large or is not text.
    """
    for _ in range(_TRIES):
        numbers = snapshot_numbers(filesystem, path) if snapshot is None else [snapshot]
        if not numbers:
            break
        number = numbers[-1]
        where = manifest_path(path, number)
        with one_line_errors(where, "read this file"):
            try:
                return _text(filesystem, where), where
            except FileNotFoundError:
                if snapshot is not None and not holds_first_format(filesystem, path):
                    numbers_there = ", ".join(map(str, snapshot_numbers(filesystem, path)))
                    if numbers_there:
                        raise FormatError(
                            f"{url}: expected snapshot {snapshot}, found {numbers_there}; it may be pruned"
                        ) from None
                    raise FormatError(
                        f"{url}: expected snapshot {snapshot}, found no graph; all hosts that use it must read it there: choose a shared folder "
                        "or a URL, or copy it to the hosts: graphmill ingest ORIGIN FOLDER --place hosts"
                    ) from None
    with one_line_errors(url, "look for a graph"):
        if holds_first_format(filesystem, path):
            raise FormatError(
                f"{url}: expected a graph of format 2, found one of format 1, which this version does not read; "
                f"make it again in another folder: {make} NEW_FOLDER"
            )
    raise FormatError(f"{url}: expected a graph ({MANIFESTS}/000001.json …), found none; make one with: {make} {url}")


def _text(filesystem: fsspec.AbstractFileSystem, where: str) -> str:
    if is_local(filesystem):
        content = read_small(where)
    else:
        content = filesystem.cat_file(where, start=0, end=MOST_BYTES + 1)  # reads the file with one request
        if len(content) > MOST_BYTES:
            raise FormatError(f"{where}: expected at most {MOST_BYTES} bytes, found more; this is not a manifest")
    try:
        return str(content.decode())
    except UnicodeDecodeError:
        raise FormatError(f"{where}: expected UTF-8 JSON, found other bytes; the file is corrupt") from None
