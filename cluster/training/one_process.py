"""Trains a run with this process as its only worker, without a cluster; Ray is not imported.

In all other respects training is the same as with Ray. A failed attempt is repeated from the latest checkpoint, and each launcher can resume a run of the other
launcher.
"""

import socket
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints, checkpoints_of
from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S, WorkerOptions
from graphmill.cluster.process.outcome import Failed, Outcome
from graphmill.cluster.runs.records import AttemptRecords, Record, Recorder
from graphmill.cluster.runs.run_directory import log_failure
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.training.train_loop import train_worker
from graphmill.cluster.training.train_session import TrainSession
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.core.daemon_threads import begin
from graphmill.core.errors import GraphmillError, StageError

# Errors that would be raised again by the same program with the same data, for example by a user's model or callback.
_OF_THE_PROGRAM = (AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)


class CheckpointThread:
    """Writes the checkpoints of the only rank in a thread, one after another."""

    def __init__(self, checkpoints: Checkpoints, keep_checkpoints: int) -> None:
        self._checkpoints, self._keep = checkpoints, keep_checkpoints
        self._written: Future[None] | None = None

    def register(self, epoch: int, name: str, write: Callable[[], None] | None) -> None:
        """Begins to write a checkpoint. Raises the error of the thread that wrote the previous checkpoint."""
        assert write is not None
        self.settle()

        def run() -> None:
            write()
            self._checkpoints.sweep(self._keep)

        self._written = begin(run, "checkpoint")

    def settle(self) -> None:
        """Waits for the last checkpoint. Raises the error of its thread, or StageError if it is not written in time."""
        written, self._written = self._written, None
        if written is None:
            return
        try:
            written.result(COLLECTIVE_TIMEOUT_S)
        except TimeoutError:
            raise StageError(
                f"{self._checkpoints.store.url}: a checkpoint is not written after {COLLECTIVE_TIMEOUT_S} s"
            ) from None


class ProcessLauncher:
    """Trains in this process."""

    def __init__(self, workers: WorkerOptions, run: Path | RunStore) -> None:
        self.workers, self._run = workers, RunStore.of(run)

    def watching(
        self, say: Callable[[str], None], end_now: Callable[[], None], leave: Callable[[str, str], None]
    ) -> AbstractContextManager[Callable[[], str]]:
        """Does nothing, because there is no other host."""
        return nullcontext(lambda: "")

    def watch(self, record: Record) -> None:
        """Does nothing, because there are no gauges."""

    def uses(self, node: str) -> bool:
        """Returns False, because there are no nodes."""
        return False

    def attempt(self, spec: TrainSpec, reports: AttemptRecords) -> Outcome:
        """Runs the training loop and returns its outcome. An error becomes the same failure as in a worker of a cluster."""
        device = torch.device("cuda", 0) if self.workers.device == "gpu" else torch.device("cpu")
        checkpoints, reporter = checkpoints_of(self._run), Recorder(reports)
        thread = CheckpointThread(checkpoints, self.workers.keep_checkpoints)
        session = TrainSession(0, 1, device, socket.gethostname(), checkpoints, reporter, thread.register)
        try:
            try:
                return train_worker(spec, session)
            finally:
                thread.settle()
                reporter.close()
        except GraphmillError as error:
            self._log(error)
            return Failed.of(error.with_traceback(None), "rank 0")
        except Exception as error:  # noqa: BLE001  as with a worker process, another attempt may get further
            log = self._log(error)
            last = (str(error).strip().splitlines() or [repr(error)])[-1]
            text = f"{type(error).__name__}: {last[:400]}; the traceback is in {log}"
            failed = StageError(text)
            failed.__cause__ = error
            return Failed("training", "rank 0", failed, is_final=isinstance(error, _OF_THE_PROGRAM))

    def _log(self, error: Exception) -> Path:
        return log_failure(self._run, "".join(traceback.format_exception(error)))
