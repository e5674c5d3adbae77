"""A run's checkpoints, in a folder that its nodes share or on an object store: the same verbs for both.

On a store a checkpoint is a prefix `train/<name>/` of objects, of which `state.json` is written last and removed first: while it is not there,
there is no checkpoint. Every file is checked against the digests that it holds before it is used.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from graphmill.cluster.checkpoints.checkpoint import (
    NAME,
    Snapshot,
    TrainState,
    file_names,
    keep_best,
    load_state,
    newest_whole,
    parse_state,
    save_checkpoint,
    sweep,
    unused_name,
    verify_checkpoint,
    write_files,
    written,
)
from graphmill.cluster.runs.run_url import RunUrl
from graphmill.core.errors import FormatError
from graphmill.storage.filesystem.disk_space import full_disk
from graphmill.storage.filesystem.remote_folder import DEADLINE_S, StoredFolder
from graphmill.storage.filesystem.temporary_folder import owned, remove_orphans

TRAIN = "train"  # the folder of a run that holds them
BEST = "best"
_STATE = "state.json"
_SCRATCH = "graphmill-checkpoint-"


def checkpoints_of(run: RunUrl, deadline_s: float = DEADLINE_S) -> "Checkpoints":
    """Those of a run, wherever it is kept. `deadline_s`: of a request to a store."""
    if run.store is None:
        return LocalCheckpoints(run.folder / TRAIN)
    return StoredCheckpoints(replace(run.store, deadline_s=deadline_s))


def keep_best_of(checkpoint: Path, run: RunUrl) -> None:
    """Replaces the best weights of a run's directory by a checkpoint's, which is a folder on this host."""
    best = run.folder / BEST
    keep_best(checkpoint, best)
    if run.store is not None:
        # Without its state, which goes first and comes last, a reader finds no weights rather than some of each.
        names = sorted((path.name for path in best.iterdir()), key=lambda name: name == _STATE)
        run.store.remove([f"{BEST}/{_STATE}"])
        for name in names:
            run.store.put(best / name, f"{BEST}/{name}")


def run_disk_full(run: RunUrl) -> str | None:
    """What to say where the disk of a run's directory, or of the driver's working folder, has no room for another checkpoint; else None."""
    newest = next(iter(LocalCheckpoints(run.folder / TRAIN).names()), None)
    folder = run.folder / TRAIN / newest if newest is not None else None
    return full_disk(run.folder, sum(path.stat().st_size for path in folder.rglob("*")) if folder is not None else 0)


class Checkpoints(Protocol):
    """One run's."""

    @property
    def url(self) -> str:
        """Of the folder that they are in, for people."""
        ...

    def names(self) -> list[str]:
        """Of those that were written to the end, newest first."""
        ...

    def state(self, name: str) -> TrainState:
        """Raises FormatError where it is damaged."""
        ...

    def look(self, damaged: list[str]) -> str | None:
        """The name of the newest, for what wants its state alone: on a store, files of weights are not read."""
        ...

    def newest(
        self, damaged: list[str], latest: tuple[int, int] | None = None
    ) -> AbstractContextManager[tuple[str, Path] | None]:
        """The newest that is as it was saved, and a folder on this host with its files, as `opened`; None where there is none. What is
        wrong with newer ones goes to `damaged`. `latest`: an (epoch, step) that it may not lie behind."""
        ...

    def opened(self, name: str) -> AbstractContextManager[Path]:
        """A folder on this host with its files. Raises FormatError where one cannot be brought here whole."""
        ...

    def unused_name(self, name: str) -> str:
        """`name`, or `name+1` …"""
        ...

    def save(self, name: str, snapshot: Snapshot) -> None:
        """Writes a checkpoint that does not exist yet. Raises OSError where that fails; then it still does not exist."""
        ...

    def sweep(self, keep: int) -> None:
        """Removes what interrupted writers left, and those older than the newest `keep`; nobody may be writing."""
        ...


@dataclass(frozen=True)
class LocalCheckpoints:
    """In a folder."""

    folder: Path

    @property
    def url(self) -> str:
        return str(self.folder)

    def names(self) -> list[str]:
        return [path.name for path in written(self.folder)]

    def state(self, name: str) -> TrainState:
        return load_state(self.folder / name)

    def look(self, damaged: list[str]) -> str | None:
        path = newest_whole(self.folder, damaged)
        return None if path is None else path.name

    def newest(
        self, damaged: list[str], latest: tuple[int, int] | None = None
    ) -> AbstractContextManager[tuple[str, Path] | None]:
        path = newest_whole(self.folder, damaged, latest)
        return nullcontext(None if path is None else (path.name, path))

    def opened(self, name: str) -> AbstractContextManager[Path]:
        return nullcontext(self.folder / name)

    def unused_name(self, name: str) -> str:
        return unused_name(self.folder, name)

    def save(self, name: str, snapshot: Snapshot) -> None:
        save_checkpoint(self.folder / name, snapshot)

    def sweep(self, keep: int) -> None:
        sweep(self.folder, keep)


@dataclass(frozen=True)
class StoredCheckpoints:
    """On an object store. They pass through the hosts' own temporary folders, each for the length of a block."""

    run: StoredFolder

    @property
    def url(self) -> str:
        return f"{self.run.url}/{TRAIN}"

    def names(self) -> list[str]:
        return [name for name in self._folders() if _STATE in self.run.names(f"{TRAIN}/{name}")]

    def state(self, name: str) -> TrainState:
        where = f"{TRAIN}/{name}/{_STATE}"
        content = self.run.read(where)
        if content is None:
            raise FormatError(f"{self.run.url}/{where}: expected a checkpoint, found none")
        return parse_state(content, f"{self.run.url}/{where}")

    def look(self, damaged: list[str]) -> str | None:
        for name in self.names():
            try:
                self.state(name)
            except FormatError as error:
                damaged.append(str(error))
            else:
                return name
        return None

    @contextmanager
    def newest(self, damaged: list[str], latest: tuple[int, int] | None = None) -> Iterator[tuple[str, Path] | None]:
        with ExitStack() as held:
            found = None
            for name in self.names():
                try:
                    if latest is None or self.state(name).position <= latest:
                        found = (name, held.enter_context(self.opened(name)))
                        break
                except FormatError as error:
                    damaged.append(str(error))
            yield found

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        with _scratch(name) as folder:
            self._fetch(name, folder)
            yield folder

    def unused_name(self, name: str) -> str:
        taken, unused, number = set(self._folders()), name, 0
        while unused in taken:
            number += 1
            unused = f"{name}+{number}"
        return unused

    def save(self, name: str, snapshot: Snapshot) -> None:
        with _scratch(name) as folder:
            write_files(folder, snapshot)
            names = sorted((path.name for path in folder.iterdir()), key=lambda file: file == _STATE)
            try:
                for file in names:
                    self.run.put(folder / file, f"{TRAIN}/{name}/{file}")
            except OSError:
                with contextlib.suppress(OSError):  # what stays is no checkpoint, and goes with the next sweep
                    self.run.remove([f"{TRAIN}/{name}/{_STATE}"])  # it may be there, and its answer was lost
                    self.run.remove([f"{TRAIN}/{name}/{file}" for file in names if file != _STATE])
                raise

    def sweep(self, keep: int) -> None:
        num_kept = 0
        for name in self._folders():
            files = self.run.names(f"{TRAIN}/{name}")
            if num_kept < keep and _STATE in files:
                num_kept += 1
            elif num_kept >= keep or _STATE not in files:
                # Nobody else's files are touched; without state.json it is no checkpoint from the first request on.
                ours = [f"{TRAIN}/{name}/{file}" for file in files if file in file_names()]
                self.run.remove([path for path in ours if path.endswith(_STATE)])
                self.run.remove([path for path in ours if not path.endswith(_STATE)])

    def _folders(self) -> list[str]:
        return sorted((name for name in self.run.names(TRAIN) if NAME.fullmatch(name)), reverse=True)

    def _fetch(self, name: str, folder: Path) -> None:
        """Brings the checkpoint into the folder, verified."""
        present = self.run.names(f"{TRAIN}/{name}")
        for file in (file for file in file_names() if file in present):
            self.run.get(f"{TRAIN}/{name}/{file}", folder / file)
        try:
            verify_checkpoint(folder)
        except FormatError as error:
            raise FormatError(str(error).replace(str(folder), f"{self.run.url}/{TRAIN}/{name}")) from None


@contextmanager
def _scratch(name: str) -> Iterator[Path]:
    """A folder of this host for one checkpoint's files, removed with the block; those that killed processes left go first."""
    remove_orphans(Path(tempfile.gettempdir()), _SCRATCH)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as made, owned(Path(made)):
        folder = Path(made) / name
        folder.mkdir()
        yield folder
