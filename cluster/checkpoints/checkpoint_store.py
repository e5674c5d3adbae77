"""A run's checkpoints, in a folder that its nodes share or on an object store: the same verbs for both.

In a folder a checkpoint is renamed into place, synced. On a store it is a prefix `train/<name>/` of objects, of which `state.json` is written last and removed first:
while it is not there, there is no checkpoint. Every file is checked against the digests that it holds before it is used.
"""

import os
import shutil
from collections.abc import Iterator
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
from graphmill.cluster.runs.run_store import DEADLINE_S, RunStore
from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.disk_space import full_disk
from graphmill.storage.filesystem.fsync import sync_file
from graphmill.storage.filesystem.outputs import remove_ours

TRAIN = "train"  # the folder of a run that holds them
BEST = "best"
_STATE = "state.json"


def checkpoints_of(run: RunStore, deadline_s: float = DEADLINE_S) -> "Checkpoints":
    """Those of a run, wherever it is kept. `deadline_s`: of a request to a store."""
    return Checkpoints(replace(run.child(TRAIN), deadline_s=deadline_s))


def keep_best_of(checkpoint: Path, run: RunStore) -> None:
    """Replaces the best weights of a run's directory by a checkpoint's, which is a folder on this host. Without their state, which on a store
    goes first and comes last, a reader finds no weights rather than some of each."""
    with _staged(run, BEST, f".{BEST}.tmp") as folder:
        write_best(folder, checkpoint)
        if not run.is_local:
            run.remove([f"{BEST}/{_STATE}"])
            _publish(run, folder, BEST)
            return
        best, old = run.folder / BEST, run.folder / f".{BEST}.old"
        if old.exists() and not best.exists():  # a kill came between the two names
            old.rename(best)
        _retire(old, best)
        if best.exists():
            best.rename(old)
        _publish(run, folder, BEST)
        _retire(old, best)


def run_disk_full(run: RunStore) -> str | None:
    """What to say where the disk of a run's directory, or of the driver's working folder, has no room for another checkpoint; else None."""
    train = run.folder / TRAIN
    newest = next(iter(Checkpoints(RunStore.of(train)).names()), None)
    return full_disk(run.folder, 0 if newest is None else sum(p.stat().st_size for p in (train / newest).rglob("*")))


@dataclass(frozen=True)
class Checkpoints:
    """One run's. `store`: of the folder that they are in. From a store they pass through the hosts' own temporary folders, each for the length of a block."""

    store: RunStore

    @property
    def url(self) -> str:
        """Of the folder that they are in, for people."""
        return self.store.url

    def names(self) -> list[str]:
        """Of those that were written to the end, whatever has happened to them since; newest first."""
        return [name for name in self._folders() if _STATE in self.store.names(name)]

    def state(self, name: str) -> TrainState:
        """Raises FormatError where it is damaged."""
        path = self.store.below(name, _STATE)
        content = self.store.read(f"{name}/{_STATE}")
        if content is None:
            raise FormatError(f"{path}: expected a checkpoint, found none")
        return parse_state(content, path)

    def look(self, damaged: list[str]) -> str | None:
        """The name of the newest that is as it was saved; on a store, files of weights are not read. What is wrong with newer ones goes to `damaged`."""
        return next((name for name in self.names() if self._is_whole(name, damaged)), None)

    @contextmanager
    def newest(self, damaged: list[str], latest: tuple[int, int] | None = None) -> Iterator[tuple[str, Path] | None]:
        """The newest that is as it was saved, and a folder on this host with its files, as `opened`; None where there is none. What is
        wrong with newer ones goes to `damaged`. `latest`: an (epoch, step) that it may not lie behind."""
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
        """A folder on this host with its files. Raises FormatError where one is not as it was saved, or cannot be brought here."""
        own = [file for file in self.store.names(name) if OURS.fullmatch(file)]
        with self.store.child(name).at_hand(*own) as folder:
            verify_checkpoint(folder)
            load_state(folder)
            yield folder

    def unused_name(self, name: str) -> str:
        """`name`, or `name+1` …: no name is given twice, so that none is written to while another process may read it."""
        taken, unused, number = set(self.store.names()), name, 0
        while unused in taken:
            number += 1
            unused = f"{name}+{number}"
        return unused

    def save(self, name: str, snapshot: Snapshot) -> None:
        """Writes a checkpoint that does not exist yet. Raises OSError where that fails; then it still does not exist."""
        with _staged(self.store, name, f".{name}.{os.getpid()}.tmp") as folder:
            write_files(folder, snapshot)
            _publish(self.store, folder, name)

    def sweep(self, keep: int) -> None:
        """Removes what interrupted writers left, and checkpoints older than the newest `keep` whole ones; nobody may be writing."""
        if self.store.is_local:
            for path in self.store.folder.glob(".epoch-*.tmp"):
                shutil.rmtree(path, ignore_errors=True)
        num_kept = 0
        for name in self._folders():
            files = self.store.names(name)
            if num_kept < keep and _STATE in files and self._is_whole(name, []):
                num_kept += 1
            elif num_kept or _STATE not in files:  # nobody comes to a damaged one that is older
                with suppress(OSError):
                    _remove(self.store, name, files)

    def _folders(self) -> list[str]:
        """All that bear a checkpoint's name, newest first; what has another name is not ours."""
        return sorted((name for name in self.store.names() if NAME.fullmatch(name)), reverse=True)

    def _is_whole(self, name: str, damaged: list[str]) -> bool:
        """Whether it is as it was saved: on a store, whether its state is."""
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
    """An empty folder of this host for files that become the run's folder `name`: in a folder it is called `beside`. It goes with the block."""
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
    """Gives these files their folder, which is not there, in the run. Raises OSError where that fails; then it is still not there."""
    if run.is_local:
        staged.rename(run.folder / name)
        sync_file(run.folder)
        return
    files = sorted((path.name for path in staged.iterdir()), key=lambda file: file == _STATE)
    try:
        for file in files:
            run.put(staged / file, f"{name}/{file}")
    except OSError:
        with suppress(OSError):  # what stays is no checkpoint, and goes with the next sweep
            _remove(run, name, files)
        raise


def _remove(run: RunStore, name: str, files: list[str]) -> None:
    """Removes these files where they are ours, state.json first, without which it is no checkpoint; it may be there though its writer had no answer."""
    run.remove([f"{name}/{_STATE}"])
    run.remove([f"{name}/{file}" for file in files if OURS.fullmatch(file) and file != _STATE])


def _retire(old: Path, best: Path) -> None:
    """Removes earlier best weights; what others put beside them moves on to the new ones' folder."""
    if old.is_dir():
        for path in [path for path in old.iterdir() if not OURS.fullmatch(path.name)]:
            path.rename(best / path.name)
        remove_ours(old, OURS)
