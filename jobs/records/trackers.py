"""Sends runs to experiment trackers: `--run.track mlflow wandb` sends the configuration, every epoch and the final scores to MLflow and W&B.

The run directory is the record; a tracker gets a copy. A separate thread sends it: the run never waits for a slow tracker. If a tracker cannot be reached,
the run prints a message once, goes on, and sends the missing epochs together with a later epoch. A resumed run continues its entry in the tracker:
RUN/tracking.json holds the entry's id and the last epoch sent. Each epoch is sent once. After a fault, repeated epochs have the same values. With another
number of workers (`--workers.min_workers`) the values may differ; the tracker keeps the first values.

MLflow reads MLFLOW_TRACKING_URI; W&B reads WANDB_MODE and WANDB_API_KEY.
"""

import importlib.util
import json
import os
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphmill.cluster.runs.run_directory import RunDirectory, flat, write_atomic
from graphmill.core.errors import ConfigError

_PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb"}  # module -> package to install
# Longest wait at the end of the run, for all trackers together. After a signal or an error the wait is shorter.
_END_S = {"finished": 60.0, "failed": 10.0, "killed": 10.0}
_NO_NAME = re.compile(r"[^\w. -]")  # characters that MLflow rejects; names of targets may contain them
_MLFLOW_BATCH = {"metrics": 1000, "params": 100}  # maximum number of values in one request


def missing_tracker(names: Sequence[str]) -> str | None:
    """An error message about the first tracker that is not installed; None if all are installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            return f"track: {name} is not installed; pip install {_PACKAGES[name]}"
    return None


@contextmanager
def tracked(names: Sequence[str], project: str, run: RunDirectory, config: Mapping[str, Any]) -> Iterator[None]:
    """Sends the run's records while the context is open. Raises ConfigError if a tracker cannot be reached at the start."""
    file = run.path / "tracking.json"
    kept = _kept(file)
    lock = threading.Lock()
    trackers: list[Tracker] = []
    outcome = "failed"
    try:
        for name in dict.fromkeys(names):
            known = kept.get(name, {})
            tracker = _TRACKERS[name](project, run.path, flat(config), known.get("id"))
            tracker.sent = known.get("sent", -1)
            trackers.append(tracker)

            def keep(tracker: Tracker = tracker) -> None:
                with lock:
                    kept[tracker.name] = {"id": tracker.id, "sent": tracker.sent}
                    write_atomic(file, json.dumps(kept) + "\n")

            keep()
            tracker.on_sent = keep
            for record in run.metrics():
                tracker.take(record)
            run.listeners.append(tracker.take)
        yield
        outcome = "finished"
    except KeyboardInterrupt:
        outcome = "killed"
        raise
    finally:
        run.listeners.clear()
        summary = run.path / "summary.json"
        scores = numbers(json.loads(summary.read_text())) if outcome == "finished" and summary.exists() else {}
        for tracker in trackers:
            tracker.end(outcome, scores)
        deadline = time.monotonic() + _END_S[outcome]
        for tracker in trackers:
            tracker.wait(max(0.0, deadline - time.monotonic()))


def _kept(file: Path) -> dict[str, dict[str, Any]]:
    """Tracker -> (id of the run's entry, last epoch that was sent)."""
    if not file.exists():
        return {}
    try:
        kept = json.loads(file.read_text())
        return {str(name): {"id": str(entry["id"]), "sent": int(entry["sent"])} for name, entry in kept.items()}
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file}: expected the trackers' entries, got {error!r}; remove it to begin new entries, or leave --run.track out"
        ) from None


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in nested mappings, by flat name."""
    return {
        name: float(value)
        for name, value in flat(values).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


class Tracker(ABC):
    """The entry of one run in a tracker."""

    name: str
    id: str

    def __init__(self) -> None:
        self.sent = -1  # last epoch sent
        self.on_sent: Callable[[], None] = lambda: None
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._last = -1  # last epoch queued
        self._changed = threading.Condition()
        self._news = False
        self._closing: tuple[str, Mapping[str, float]] | None = None
        self._thread = threading.Thread(target=self._follow, name=f"graphmill-{self.name}", daemon=True)
        self._complained = False

    def take(self, record: Mapping[str, Any]) -> None:
        """Queues the record of an epoch. Records that cannot be sent stay in the queue until the next record comes."""
        if int(record["epoch"]) <= max(self.sent, self._last):
            return
        with self._changed:
            self._last = int(record["epoch"])
            self._waiting.append(record)
            self._news = True
        self._wake()

    def end(self, outcome: str, scores: Mapping[str, float]) -> None:
        """Closes the entry as "finished", "failed" or "killed" after the queued records have been sent."""
        with self._changed:
            self._closing = outcome, scores
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()
        if not self._thread.is_alive():
            self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Waits until the entry is closed. Prints a line if that takes too long."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._complained = False
            self._complain(TimeoutError("its entry could not be closed in time"))

    def _follow(self) -> None:
        closing = None
        while closing is None:
            with self._changed:
                self._changed.wait_for(lambda: self._news or self._closing is not None)
                self._news, closing = False, self._closing
            try:
                self._send_waiting()
                if closing is not None:
                    self._close(*closing)
            except Exception as error:  # noqa: BLE001  whatever a tracker's package raises, the run goes on
                self._complain(error)

    def _send_waiting(self) -> None:
        while self._waiting:
            epoch = int(self._waiting[0]["epoch"])
            self._send(numbers(self._waiting[0]), epoch)
            self._waiting.popleft()
            self.sent = epoch
            self.on_sent()

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            text = " ".join(str(error).split())[:300]
            print(
                f"\n{self.name}: not reached, the run goes on and its directory has everything: {text}", file=sys.stderr
            )
            self._complained = True

    @abstractmethod
    def _send(self, values: Mapping[str, float], epoch: int) -> None: ...

    @abstractmethod
    def _close(self, outcome: str, scores: Mapping[str, float]) -> None: ...


class MLflow(Tracker):
    """An MLflow run in the experiment named after the project."""

    name = "mlflow"

    def __init__(self, project: str, run: Path, config: Mapping[str, Any], known: str | None) -> None:
        super().__init__()
        # MLflow's defaults allow minutes per request and several retries.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        try:
            self._client = MlflowClient()
            if known is not None:
                self._client.update_run(known, status="RUNNING")
                self.id = known
                return
            experiment = self._client.get_experiment_by_name(project)
            number = self._client.create_experiment(project) if experiment is None else experiment.experiment_id
            self.id = self._client.create_run(number, run_name=run.resolve().name).info.run_id
            self._log("params", [Param(name, str(value)[:500]) for name, value in config.items()])
        except MlflowException as error:
            raise ConfigError(f"track: mlflow: {' '.join(str(error).split())[:300]}; set MLFLOW_TRACKING_URI") from None

    def _send(self, values: Mapping[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        named = {_NO_NAME.sub("_", name): value for name, value in values.items() if name != "epoch"}
        self._log("metrics", [Metric(name, value, now, epoch) for name, value in named.items()])

    def _log(self, kind: str, entries: list[Any]) -> None:
        most = _MLFLOW_BATCH[kind]
        for start in range(0, len(entries), most):
            batch: Any = {kind: entries[start : start + most]}
            self._client.log_batch(self.id, **batch)

    def _close(self, outcome: str, scores: Mapping[str, float]) -> None:
        self._send({f"final.{name}": value for name, value in scores.items()}, max(self.sent, 0))
        self._client.set_terminated(self.id, {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}[outcome])


class WandB(Tracker):
    """A W&B run in the project. Its files stay in the run directory until W&B has them (with WANDB_MODE=offline they stay for good)."""

    name = "wandb"

    def __init__(self, project: str, run: Path, config: Mapping[str, Any], known: str | None) -> None:
        super().__init__()
        import wandb

        try:
            self._run = wandb.init(
                project=project,
                name=run.resolve().name,
                id=known,
                resume=None if known is None else "allow",
                config=dict(config),
                dir=str(run),
                settings=wandb.Settings(silent=True, console="off", init_timeout=30.0, finish_timeout=60.0),
            )
        except wandb.Error as error:
            raise ConfigError(
                f"track: wandb: {' '.join(str(error).split())[:300]}; set WANDB_API_KEY, or WANDB_MODE=offline"
            ) from None
        self.id = self._run.id

    def _send(self, values: Mapping[str, float], epoch: int) -> None:
        self._run.log({name: value for name, value in values.items() if name != "epoch"}, step=epoch)

    def _close(self, outcome: str, scores: Mapping[str, float]) -> None:
        self._run.summary.update({f"final.{name}": value for name, value in scores.items()})
        self._run.finish(exit_code=0 if outcome == "finished" else 1)


_TRACKERS: Mapping[str, Any] = {"mlflow": MLflow, "wandb": WandB}
