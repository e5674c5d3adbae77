"""Runs a thread that copies the driver's files to the run on an object store.

The files are small. Changed files are copied whole, at most every few seconds, so a reader sees each file as it was at one moment. Only `sync` waits for the
store. The driver calls `sync` before a step that needs the files to survive a loss of this machine.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.cluster.runs.run_store import FILES, RunStore
from graphmill.core.daemon_threads import beside
from graphmill.core.errors import ConflictError, DeadlineError, FormatError

TENSORBOARD = "tensorboard"
_PERIOD_S = 5.0
_LAST_S = 20.0  # deadline after a failed run: the run may have failed because the store is unavailable
_SHARE = 0.05  # largest share of the time in which the thread copies


@contextmanager
def copied(run: RunDirectory) -> Iterator[None]:
    """Copies changes in the run's working folder to the store during the block, and all remaining changes at the end of the block.

    Raises ConflictError if another driver has taken the run over; then the store's files are not changed. Raises DeadlineError or FormatError if the
    last copy fails; then the working folder stays, and the message names it.
    """
    if run.place.is_local:
        yield
        return
    copy = RunCopy(run, run.place)
    copy.sync()  # from here on the run exists on the store, and can be resumed
    run.settle = copy.sync
    try:
        with beside(copy.follow, "copy", run.place.deadline_s):
            yield
    except BaseException:  # the error of the run is more important
        try:
            RunCopy(run, replace(run.place, deadline_s=_LAST_S)).finish()
        except (ConflictError, DeadlineError, FormatError) as error:
            print(error, file=sys.stderr)
        raise
    copy.finish()


class RunCopy:
    """Copies the files of one run to its store."""

    def __init__(self, run: RunDirectory, store: RunStore) -> None:
        self._store, self._run, self._folder = store, run, run.path
        self._lock = threading.Lock()
        self._sent: dict[str, tuple[int, int]] = {}

    def sync(self) -> None:
        """Waits until the store has everything that was written before the call. Raises DeadlineError or FormatError if the store cannot be reached,
        ConflictError if another driver has taken the run over."""
        with self._lock:
            if self._run.hold is not None:
                self._run.hold.check(self._store)
            for name in self._names():
                path = self._folder / name
                status = path.stat()
                stamp = (status.st_size, status.st_mtime_ns)
                if self._sent.get(name) != stamp:
                    self._store.write(name, path.read_bytes())
                    self._sent[name] = stamp

    def finish(self) -> None:
        """Syncs for the last time and removes the working folder. If the sync fails, the folder stays and the error names it."""
        self._run.place.leave_working_folder()
        try:
            self.sync()
        except (ConflictError, DeadlineError, FormatError) as error:
            raise type(error)(f"{error}; what the run has recorded since is in {self._folder}") from error
        self._run.place.remove_working_folder()

    def follow(self, ended: threading.Event) -> None:
        """Copies changes until `ended` is set. If a copy fails, the working folder is kept for the user."""
        pause, complained = _PERIOD_S, False
        while not ended.wait(pause):
            began = time.monotonic()
            try:
                self.sync()
            except ConflictError:  # the thread of the lease ends the run
                return
            except (DeadlineError, FormatError, OSError) as error:
                if not complained:
                    self._run.place.leave_working_folder()
                    print(f"\n{' '.join(str(error).split())}; the run goes on", file=sys.stderr)
                    complained = True
            pause = max(_PERIOD_S, (time.monotonic() - began) / _SHARE)

    def _names(self) -> list[str]:
        boards = sorted((self._folder / TENSORBOARD).glob("events.*")) if (self._folder / TENSORBOARD).is_dir() else []
        return [name for name in FILES if (self._folder / name).exists()] + [f"{TENSORBOARD}/{p.name}" for p in boards]
