"""Brings what the driver writes of a run to its place on an object store, from a thread.

Small files are copied whole, where they have changed, at most every few seconds: a reader finds each as it was at one moment. Nobody waits for the
store but `sync`, which the driver calls where what it has written must outlive this machine.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.cluster.runs.run_store import FILES, RunStore
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
        with copy.following(run.place.leave_working_folder):
            yield
    except BaseException:  # its own error comes first
        run.place.leave_working_folder()  # whatever the last copy ends with
        try:
            RunCopy(run, replace(run.place, deadline_s=_LAST_S)).sync()
        except (ConflictError, DeadlineError, FormatError) as error:
            print(f"{error}; what the run has recorded since is in {run.path}", file=sys.stderr)
        else:
            run.place.remove_working_folder()
        raise
    run.place.leave_working_folder()
    try:
        copy.sync()
    except (ConflictError, DeadlineError, FormatError) as error:
        raise type(error)(f"{error}; what the run has recorded since is in {run.path}") from error
    run.place.remove_working_folder()


class RunCopy:
    """One run's."""

    def __init__(self, run: RunDirectory, store: RunStore) -> None:
        self._run, self._folder, self._hold = store, run.path, run.hold
        self._lock = threading.Lock()
        self._sent: dict[str, tuple[int, int]] = {}
        self._ended = threading.Event()
        self._complained = False

    def sync(self) -> None:
        """Returns when the store has all that was written before. Raises DeadlineError or FormatError where it cannot be reached, ConflictError
        where another driver has taken the run over."""
        with self._lock:
            if self._hold is not None:
                self._hold.check(self._run)
            for name in self._names():
                path = self._folder / name
                status = path.stat()
                stamp = (status.st_size, status.st_mtime_ns)
                if self._sent.get(name) != stamp:
                    self._run.write(name, path.read_bytes())
                    self._sent[name] = stamp

    @contextmanager
    def following(self, on_trouble: Callable[[], None]) -> Iterator[None]:
        """Copies from a thread while the context is open. `on_trouble` is called when the store does not take something for the first time."""
        thread = threading.Thread(target=self._follow, args=(on_trouble,), name="graphmill-copy", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(timeout=self._run.deadline_s)

    def _follow(self, on_trouble: Callable[[], None]) -> None:
        pause = _PERIOD_S
        while not self._ended.wait(pause):
            began = time.monotonic()
            try:
                self.sync()
            except ConflictError:  # the holder ends the run
                return
            except (DeadlineError, FormatError, OSError) as error:
                if not self._complained:
                    on_trouble()
                    print(f"\n{' '.join(str(error).split())}; the run goes on", file=sys.stderr)
                    self._complained = True
            pause = max(_PERIOD_S, (time.monotonic() - began) / _SHARE)

    def _names(self) -> list[str]:
        boards = sorted((self._folder / TENSORBOARD).glob("events.*")) if (self._folder / TENSORBOARD).is_dir() else []
        return [name for name in FILES if (self._folder / name).exists()] + [f"{TENSORBOARD}/{p.name}" for p in boards]
