"""Stores a run's checkpoints in a folder that its nodes share, or on an object store. The methods are the same for both.

In a folder a checkpoint is synced and then renamed to its final name. On a store a checkpoint is all objects with the prefix `train/<name>/`. Of these objects
`state.json` is written last and removed first, because a prefix without `state.json` is no checkpoint. Every file is checked against the digests in
`state.json` before the file is used.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from graphmill.cluster.checkpoints.checkpoint import (
    NAME,
    OURS,
    Snapshot,
    TrainState,
    load_state,
    parse_state,
    verify_checkpoint,
    write_best,
    write_files,
)
from graphmill.cluster.receipts.chain import digest
from graphmill.cluster.runs.run_store import DEADLINE_S, RunStore
from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.disk_space import full_disk
from graphmill.storage.filesystem.fsync import sync_file
from graphmill.storage.filesystem.outputs import remove_ours

TRAIN = "train"  # a run's folder of checkpoints
BEST = "best"
STATE = "state.json"


def checkpoints_of(run: RunStore, deadline_s: float = DEADLINE_S) -> "Checkpoints":
    """The checkpoints of a run, local or on a store. `deadline_s`: the deadline of a request to a store."""
    return Checkpoints(replace(run.child(TRAIN), deadline_s=deadline_s))


def keep_best_of(checkpoint: Path, run: RunStore) -> None:
    """Replaces the run's best weights by the best weights in `checkpoint`, a folder on this host.

    On a store `state.json` is removed first and written last. Therefore a reader never finds a mixture of old and new files.
    """
    with _staged(run, BEST, f".{BEST}.tmp") as folder:
        write_best(folder, checkpoint)
        if not run.is_local:
            run.remove([f"{BEST}/{STATE}"])
            _publish(run, folder, BEST)
            return
        best, old = run.folder / BEST, run.folder / f".{BEST}.old"
        if old.exists() and not best.exists():  # an earlier driver was killed between the two renames
            old.rename(best)
        _retire(old, best)
        if best.exists():
            best.rename(old)
        _publish(run, folder, BEST)
        _retire(old, best)


def run_disk_full(run: RunStore) -> str | None:
    """Returns a message if the disk of the run's directory (or of the driver's working folder) has no room for another checkpoint; else None."""
    train = run.folder / TRAIN
    newest = next(iter(Checkpoints(RunStore.of(train)).names()), None)
    return full_disk(run.folder, 0 if newest is None else sum(p.stat().st_size for p in (train / newest).rglob("*")))


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, in the folder `store`. Files from an object store are copied to a temporary folder, which is removed after the block."""

    store: RunStore

    def names(self) -> list[str]:
        """Returns the names of the completely written checkpoints, newest first. A checkpoint may have been damaged after it was written."""
        return [name for name in self._folders() if STATE in self.store.names(name)]

    def state(self, name: str) -> TrainState:
        """Reads the state of a checkpoint. Raises FormatError if the state is damaged."""
        path = self.store.below(name, STATE)
        content = self.store.read(f"{name}/{STATE}")
        if content is None:
            raise FormatError(f"{path}: expected a checkpoint, found none")
        return parse_state(content, path)

    def look(self, damaged: list[str]) -> str | None:
        """Returns the name of the newest valid checkpoint. On a store this reads only state.json. The errors of newer checkpoints are appended to `damaged`."""
        return next((name for name in self.names() if self._is_whole(name, damaged)), None)

    @contextmanager
    def newest(self, damaged: list[str], latest: tuple[int, int] | None = None) -> Iterator[tuple[str, Path] | None]:
        """Yields the name and the folder (as `opened` does) of the newest valid checkpoint, or None if no checkpoint is valid.

        The errors of newer checkpoints are appended to `damaged`. `latest`: checkpoints after this (epoch, step) are ignored."""
        with ExitStack() as held:
            newest = None
            for name in self.names():
                try:
                    if latest is None or self.state(name).position <= latest:
                        newest = name, held.enter_context(self.opened(name))
                        break
                except FormatError as error:
                    damaged.append(str(error))
            yield newest

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Yields a folder on this host with the checkpoint's files. Raises FormatError if a file was changed since it was saved or cannot be copied here."""
        own = [file for file in self.store.names(name) if OURS.fullmatch(file)]
        with self.store.child(name).at_hand(*own) as folder:
            verify_checkpoint(folder)
            load_state(folder)
            yield folder

    def unused_name(self, name: str) -> str:
        """Returns `name`, or `name+1` … if the name exists. A name is never used twice, so nobody writes to a checkpoint that another process may read."""
        taken, unused, number = set(self.store.names()), name, 0
        while unused in taken:
            number += 1
            unused = f"{name}+{number}"
        return unused

    def save(self, name: str, snapshot: Snapshot, settle: Callable[[str], None] = lambda _: None) -> None:
        """Writes a new checkpoint. `settle` gets the digest of state.json; the checkpoint exists only after `settle` has ended. Raises OSError if writing fails;
        then the checkpoint does not exist."""
        with _staged(self.store, name, f".{name}.{os.getpid()}.tmp") as folder:
            write_files(folder, snapshot)
            settle(digest((folder / STATE).read_bytes()))
            _publish(self.store, folder, name)

    def sweep(self, keep: int) -> None:
        """Removes unfinished files of interrupted writers, and checkpoints older than the newest `keep` valid ones. Nobody may write at the same time."""
        if self.store.is_local:
            for path in self.store.folder.glob(".epoch-*.tmp"):
                shutil.rmtree(path, ignore_errors=True)
        num_kept = 0
        for name in self._folders():
            files = self.store.names(name)
            if num_kept < keep and STATE in files and self._is_whole(name, []):
                num_kept += 1
            elif num_kept or STATE not in files:  # never read: a newer one is valid, or state.json is missing
                with suppress(OSError):
                    _remove(self.store, name, files)

    def _folders(self) -> list[str]:
        """Returns the folders with a checkpoint's name, newest first. Folders with other names were not made by Graphmill."""
        return sorted((name for name in self.store.names() if NAME.fullmatch(name)), reverse=True)

    def _is_whole(self, name: str, damaged: list[str]) -> bool:
        """Returns whether the checkpoint is unchanged since it was saved. On a store only the state is checked. An error is appended to `damaged`."""
        try:
            if self.store.is_local:
                verify_checkpoint(self.store.folder / name)
            self.state(name)
        except FormatError as error:
            damaged.append(str(error))
            return False
        return True


@contextmanager
def _staged(run: RunStore, name: str, beside: str) -> Iterator[Path]:
    """Yields an empty folder on this host for the files of the run's folder `name`, and removes it after the block. For a local run, `beside` is the folder's
    name.
    """
    if not run.is_local:
        with run.child(name).scratch() as folder:
            yield folder
        return
    folder = run.folder / beside
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(run: RunStore, staged: Path, name: str) -> None:
    """Publishes the files of `staged` as the run's new folder `name`. Raises OSError if publishing fails; then the folder does not exist."""
    if run.is_local:
        staged.rename(run.folder / name)
        sync_file(run.folder)
        return
    files = sorted((path.name for path in staged.iterdir()), key=lambda file: file == STATE)
    try:
        for file in files:
            run.put(staged / file, f"{name}/{file}")
    except OSError:
        with suppress(OSError):  # the remaining files are no checkpoint; the next `sweep` removes them
            _remove(run, name, files)
        raise


def _remove(run: RunStore, name: str, files: list[str]) -> None:
    """Removes the files that Graphmill wrote, state.json first: without state.json the folder is no checkpoint. state.json may exist even if its writer got an
    error, because the store's answer may have been lost.
    """
    run.remove([f"{name}/{STATE}"])
    run.remove([f"{name}/{file}" for file in files if OURS.fullmatch(file) and file != STATE])


def _retire(old: Path, best: Path) -> None:
    """Removes earlier best weights. All other files of the old folder move to the folder of the new best weights."""
    if old.is_dir():
        for path in [path for path in old.iterdir() if not OURS.fullmatch(path.name)]:
            path.rename(best / path.name)
        remove_ours(old, OURS)
