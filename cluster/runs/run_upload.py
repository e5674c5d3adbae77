"""Brings what the driver writes of a run to its place on an object store, from a thread.

Small files are copied whole, where they have changed, at most every few seconds: a reader finds each as it was at one moment. Nobody waits for the
store but `sync`, which the driver calls where what it has written must outlive this machine.
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
_LAST_S = 20.0  # at the end of a run that failed: its error may be that the store is away
_SHARE = 0.05  # of the time, at most, a copy is under way


@contextmanager
def copied(run: RunDirectory) -> Iterator[None]:
    """While the context is open, what is written to the run's working folder is brought to its place, and at its end all of it.

    Where another driver has taken the run over, its files are left alone. Raises ConflictError then,
    DeadlineError or FormatError where the end cannot be brought there: what is missing then stays in the working folder, which is told.
    """
    if run.place.is_local:
        yield
        return
    copy = RunCopy(run, run.place)
    copy.sync()  # from here on the run is there, for whoever begins it again
    run.settle = copy.sync
    try:
        with beside(copy.follow, "copy", run.place.deadline_s):
            yield
    except BaseException:  # its own error comes first
        try:
            RunCopy(run, replace(run.place, deadline_s=_LAST_S)).finish()
        except (ConflictError, DeadlineError, FormatError) as error:
            print(error, file=sys.stderr)
        raise
    copy.finish()


class RunCopy:
    """One run's."""

    def __init__(self, run: RunDirectory, store: RunStore) -> None:
        self._store, self._run, self._folder = store, run, run.path
        self._lock = threading.Lock()
        self._sent: dict[str, tuple[int, int]] = {}

    def sync(self) -> None:
        """Returns when the store has all that was written before. Raises DeadlineError or FormatError where it cannot be reached, ConflictError
        where another driver has taken the run over."""
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
        """`sync` for the last time; the working folder stays, and is told, where that fails."""
        self._run.place.leave_working_folder()
        try:
            self.sync()
        except (ConflictError, DeadlineError, FormatError) as error:
            raise type(error)(f"{error}; what the run has recorded since is in {self._folder}") from error
        self._run.place.remove_working_folder()

    def follow(self, ended: threading.Event) -> None:
        """Copies until then. The working folder is the user's once the store does not take something."""
        pause, complained = _PERIOD_S, False
        while not ended.wait(pause):
            began = time.monotonic()
            try:
                self.sync()
            except ConflictError:  # the holder ends the run
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
