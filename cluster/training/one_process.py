"""This process is the one worker of a run: it needs no cluster, and Ray is not imported.

Everything else is as with Ray: an attempt that fails is made again from the latest checkpoint, and a run goes on with either.
"""

import socket
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

import torch

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints, checkpoints_of
from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S, WorkerOptions
from graphmill.cluster.process.outcome import Failed, Outcome
from graphmill.cluster.runs.records import AttemptRecords, Record, Recorder
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.training.train_loop import train_worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.core.daemon_threads import begin
from graphmill.core.errors import DamageError, GraphmillError, StageError


class ProcessSession:
    """The one rank's."""

    rank, world_size = 0, 1

    def __init__(
        self, device: torch.device, checkpoints: Checkpoints, reporter: Recorder, keep_checkpoints: int
    ) -> None:
        self.device, self.checkpoints, self.reporter = device, checkpoints, reporter
        self.host = socket.gethostname()
        self._keep = keep_checkpoints
        self._written: Future[None] | None = None

    def register(self, epoch: int, name: str, write: Callable[[], None] | None) -> None:
        """Raises what the thread of the checkpoint before this one has raised."""
        assert write is not None
        self.settle()

        def run() -> None:
            write()
            self.checkpoints.sweep(self._keep)

        self._written = begin(run, "checkpoint")

    def settle(self) -> None:
        """Waits for the last checkpoint. Raises what its thread has raised, StageError where it is never written."""
        written, self._written = self._written, None
        if written is None:
            return
        try:
            written.result(COLLECTIVE_TIMEOUT_S)
        except TimeoutError:
            raise StageError(
                f"{self.checkpoints.url}: a checkpoint is not written after {COLLECTIVE_TIMEOUT_S} s"
            ) from None


class ProcessLauncher:
    """Trains in this process."""

    def __init__(self, workers: WorkerOptions, run: Path | RunStore) -> None:
        self.workers, self._run = workers, RunStore.of(run)

    def watching(
        self, say: Callable[[str], None], end_now: Callable[[], None]
    ) -> AbstractContextManager[Callable[[], str]]:
        """There is no other host."""
        return nullcontext(lambda: "")

    def watch(self, record: Record) -> None:
        """Nobody else is shown anything."""

    def attempt(self, spec: TrainSpec, reports: AttemptRecords) -> Outcome:
        """What the loop returns; for what it raises, the failure that the worker of a cluster would have had."""
        device = torch.device("cuda", 0) if self.workers.device == "gpu" else torch.device("cpu")
        reporter = Recorder(reports)
        session = ProcessSession(device, checkpoints_of(self._run), reporter, self.workers.keep_checkpoints)
        try:
            try:
                return train_worker(spec, session)
            finally:
                session.settle()
                reporter.close()
        except GraphmillError as error:
            self._log(error)
            stage, owner, is_final = error.stage or "training", error.owner or "rank 0", isinstance(error, DamageError)
            return Failed(stage, owner, error.with_traceback(None), is_final)
        except Exception as error:  # noqa: BLE001  whatever it is, another attempt may get further, as that of another process
            log = self._log(error)
            last = (str(error).strip().splitlines() or [repr(error)])[-1]
            text = f"{type(error).__name__}: {last[:400]}; the traceback is in {log}"
            return Failed("training", "rank 0", StageError(text), is_final=False)

    def _log(self, error: Exception) -> Path:
        log = self._run.folder / "failure.log"
        with suppress(OSError), log.open("a") as stream:  # a full disk, which the driver tells
            stream.write(
                f"{datetime.now(UTC).isoformat(timespec='seconds')} {''.join(traceback.format_exception(error))}\n"
            )
        return log
