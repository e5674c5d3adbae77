"""Deletes old snapshots and files that dead writers left. Nothing else in Graphmill deletes a file of a graph.

A file is deleted only if no kept manifest names it. In addition, an old manifest must name it, or it must lie in a folder with a journal. Old manifests are
deleted first. Therefore an interrupted prune leaves files for the next prune, but never a manifest without its files.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import fsspec

from graphmill.core.errors import ConfigError, FormatError
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.object_stores import list_names
from graphmill.storage.filesystem.urls import is_local, split_url
from graphmill.storage.format.manifest import SnapshotHead, parse_head
from graphmill.storage.snapshots.garbage import remove_files
from graphmill.storage.snapshots.journal import JOURNAL, is_abandoned, read_journal
from graphmill.storage.snapshots.snapshots import (
    DATA,
    FOLDER_NAME,
    PIECES,
    TOP_LEVEL,
    claims,
    foreign_names,
    manifest_path,
    read_manifest,
    snapshot_numbers,
)


@dataclass(frozen=True)
class Pruned:
    """The result of a prune: which snapshots, folders and files were removed, and which stay."""

    kept: tuple[int, ...]  # snapshot numbers
    removed: tuple[int, ...]
    orphans: tuple[str, ...]  # folders of dead writers
    held: tuple[str, ...]  # folders that no manifest names, but whose writers have a valid lease
    num_files: int
    num_bytes: int
    foreign: tuple[str, ...]  # files and folders inside the graph's folder that are not from Graphmill; they stay


def prune(url: str, *, keep: int, older_than_s: float = 0.0, now: float | None = None, dry_run: bool = False) -> Pruned:
    """Removes old snapshots and the folders of dead writers. A snapshot is old if it is not one of the newest `keep` and is older than `older_than_s` seconds.

    `now`: seconds since 1970 (None: this machine's clock). With `dry_run`, removes nothing and returns what would be removed. If a manifest cannot be
    read, raises FormatError and removes nothing.
    """
    if keep < 1:
        raise ConfigError(f"keep: expected at least 1 snapshot, got {keep}; set --keep")
    if not older_than_s >= 0:
        raise ConfigError(f"older_than: expected at least 0 seconds, got {older_than_s}; set --older-than")
    now = time.time() if now is None else now
    filesystem, path = split_url(url)
    numbers = snapshot_numbers(filesystem, path)
    heads = _heads(filesystem, path, url, numbers)
    numbers = sorted(heads)  # snapshots that another prune has removed in the meantime are not among them
    old = [number for number in numbers[:-keep] if now - heads[number].created > older_than_s]
    reached = {file for number in numbers if number not in old for file in heads[number].paths}
    listed = {file for number in old for file in heads[number].paths}
    gone = {"/".join(file.split("/")[:2]) for file in listed}
    names = [manifest_path(path, number) for number in old]
    names += [
        manifest_path(path, n).replace(".json", ".claim")
        for n in claims(filesystem, path)
        if n < max(numbers, default=0)
    ]
    with one_line_errors(path, "remove old manifests"):
        for where in () if dry_run else names:
            with contextlib.suppress(FileNotFoundError):
                filesystem.rm_file(where)
    orphans, held = [], []
    with one_line_errors(path, "list its folders"):
        top = list_names(filesystem, path) if numbers else []
        foreign = [name for name in top if name not in TOP_LEVEL] + foreign_names(filesystem, path)
    num_files = num_bytes = 0
    for folder in _folders(filesystem, path):
        named = any(file.startswith(f"{folder}/") for file in reached)
        journal = read_journal(filesystem, f"{path}/{folder}/{JOURNAL}")
        if folder not in gone:
            if journal is None and not (is_local(filesystem) and is_abandoned(f"{path}/{folder}", now)):
                if not named and list_names(filesystem, f"{path}/{folder}"):
                    foreign.append(folder)  # not a folder of Graphmill
                continue
            if journal is not None and not journal.is_over(now):
                held += [] if named else [folder]
                continue
        files, size, others = remove_files(
            filesystem, path, folder, reached, listed=listed if named or folder in gone else None, dry_run=dry_run
        )
        num_files, num_bytes = num_files + files, num_bytes + size
        foreign += [f"{folder}/{name}" for name in others]
        orphans += [] if named or folder in gone else [folder]
    kept = tuple(number for number in numbers if number not in old)
    return Pruned(kept, tuple(old), tuple(orphans), tuple(held), num_files, num_bytes, tuple(foreign))


def _heads(filesystem: fsspec.AbstractFileSystem, path: str, url: str, numbers: list[int]) -> dict[int, SnapshotHead]:
    heads = {}
    for number in numbers:
        try:
            heads[number] = parse_head(*read_manifest(filesystem, path, url, number, ""))
        except FormatError:
            if number in snapshot_numbers(filesystem, path):
                raise
    return heads


def _folders(filesystem: fsspec.AbstractFileSystem, path: str) -> Iterator[str]:
    """Yields the folders that may have a journal, as paths relative to the graph's folder."""
    for parent in (DATA, PIECES):
        with one_line_errors(path, "list its folders"):
            names = list_names(filesystem, f"{path}/{parent}")
        yield from (f"{parent}/{name}" for name in names if FOLDER_NAME.fullmatch(name))
