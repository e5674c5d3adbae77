"""Runs predictors as Ray actors. A free actor gets the next pieces. An actor that died is restarted.

A run may have been scored on the full graph, with the nodes spread over the workers. Then the prediction works in the same way: a piece is a worker's part of
a split, and all workers predict at the same time. With the same number of workers as the run, the predictions equal the run's predictions to the bit.
"""

import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError

from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S
from graphmill.cluster.prediction.prediction import Progress
from graphmill.cluster.prediction.predictor import Piece, PredictionSpec, Predictor, plan_passes
from graphmill.cluster.process.answers import answer
from graphmill.cluster.ray.process_group import Point, meet, meeting_point
from graphmill.core.errors import DeadlineError, GraphmillError, StageError
from graphmill.storage.predictions import PredictionFolder

WARM = (
    "torch",
    "graphmill.samplers.loading.loader",
    __name__,
    "graphmill.cluster.serving.partition_server",
)
"""Modules that a prediction's workers and servers import."""
_OTHERS_S = 5.0  # how long to wait for the other workers' errors after the first failure
Worker = Callable[..., ray.ObjectRef]  # (method, arguments) → reference to the result


class MeetingPredictor(Predictor):
    """A predictor that may share the full graph with other predictors. Then all of them call `meet` first, and `predict` is a collective call."""

    def meeting_point(self) -> Point:
        """Returns the meeting point of all predictors. This process will be rank 0."""
        return meeting_point()

    def meet(self, point: Point, rank: int, num_ranks: int) -> None:
        """Joins the process group at this point. A collective call."""
        meet(point, rank, num_ranks, "nccl" if self.device.type == "cuda" else "gloo")


class PredictorActor:
    """The Ray actor of a predictor. The first call makes the predictor.

    Each call passes the predictors' shared arguments as a reference. The constructor does not get the reference. Otherwise Ray would print an error: a restart
    of the actor would need the object again, and Ray does not know that this driver keeps the object until the end.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._predictor: MeetingPredictor | None = None

    def call(self, shared: Sequence[ray.ObjectRef], method: str, *arguments: Any) -> Any:
        """Calls the predictor's method and returns the result."""
        if self._predictor is None:
            spec, folder, bounds = ray.get(shared[0], timeout=COLLECTIVE_TIMEOUT_S)
            self._predictor = MeetingPredictor(spec, folder, bounds, self._device)
        return getattr(self._predictor, method)(*arguments)


@dataclass(frozen=True)
class PoolOptions:
    """Options of the workers that predict."""

    num_workers: int
    use_gpu: bool
    restarts: int  # largest number of restarts of a worker
    deadline_s: float  # longest wait for the next finished piece or part
    together: bool = False  # all workers share the full graph and predict at the same time, each its own pieces; no worker is restarted


class ActorCrew:
    """All workers of a prediction. The methods raise the error that a worker raised on purpose, StageError if a worker failed or died too often,
    DeadlineError if no result came in time."""

    def __init__(self, workers: Sequence[Worker], spec: PredictionSpec, pool: PoolOptions) -> None:
        self._workers, self._spec, self._pool = workers, spec, pool

    @classmethod
    @contextmanager
    def of(
        cls, pool: PoolOptions, spec: PredictionSpec, folder: PredictionFolder, bounds: np.ndarray
    ) -> "Iterator[ActorCrew]":
        """Starts the actors in the current Ray session, and ends them after the block."""
        restarts = 0 if pool.together else pool.restarts
        actor: Any = ray.remote(
            num_cpus=1, num_gpus=1 if pool.use_gpu else 0, max_restarts=restarts, max_task_retries=restarts
        )(PredictorActor)
        shared = ray.put((spec, folder, bounds))
        actors = [actor.remote("cuda" if pool.use_gpu else "cpu") for _ in range(pool.num_workers)]
        try:
            yield cls([partial(each.call.remote, [shared]) for each in actors], spec, pool)
        finally:
            for each in actors:
                ray.kill(each, no_restart=True)

    def predict(self, pieces: Sequence[Piece], missing: Sequence[Piece], progress: Progress) -> None:
        if self._pool.together:
            self._predict_together(pieces, {piece.split for piece in missing}, progress)
        else:
            self._run("predict", plan_passes(missing, self._spec.splits), progress)

    def join(self, parts: Sequence[int], pieces: Sequence[Piece], progress: Progress) -> None:
        self._run("join", [(index, pieces) for index in parts], progress)

    def _predict_together(self, pieces: Sequence[Piece], splits: Set[int], progress: Progress) -> None:
        """Predicts these splits with all workers at the same time. Worker i predicts batch i, in one pass for all splits that have the same batches."""
        workers = self._workers
        # Wait until all workers have started. In `meet`, waiting for a late worker would end with torch's deadline and torch's message.
        points = [worker("meeting_point") for worker in workers]
        _wait(points, "start", self._pool)
        point = ray.get(points[0], timeout=self._pool.deadline_s)
        _wait([worker("meet", point, rank, len(workers)) for rank, worker in enumerate(workers)], "meet", self._pool)
        passes = plan_passes([piece for piece in pieces if piece.split in splits], self._spec.splits)
        done = sum(piece.split not in splits for piece in pieces)
        for first in dict.fromkeys(together[0].split for together in passes):
            at_once = [together for together in passes if together[0].split == first]
            _wait([workers[together[0].start]("predict", *together) for together in at_once], "predict", self._pool)
            done += sum(map(len, at_once))
            progress("predict", done, len(pieces))

    def _run(self, method: str, calls: Sequence[tuple], progress: Progress) -> None:
        """Gives each call to the next free worker. Ends at the first failure."""
        pool, waiting, running, done = self._pool, iter(calls), {}, 0
        for worker, call in zip(self._workers, waiting):
            running[worker(method, *call)] = worker
        while running:
            ready, _ = ray.wait(list(running), num_returns=1, timeout=pool.deadline_s)
            if not ready:
                raise DeadlineError(
                    f"{method}: expected a finished piece within {pool.deadline_s:g} s, got none; has the cluster a free CPU (or GPU) per worker? "
                    "Lower --workers or raise --deadline_s; run again to go on"
                )
            worker = running.pop(ready[0])
            _result(ready[0], method, pool)
            done += 1
            progress(method, done, len(calls))
            for call in islice(waiting, 1):
                running[worker(method, *call)] = worker


def _wait(references: Sequence[Any], method: str, pool: PoolOptions) -> None:
    """Waits for all results or the first failure. After a failure, raises the error that shows the cause. The other workers' errors may only say that a worker
    is missing.
    """
    failed: list[GraphmillError] = []
    waiting, deadline = list(references), time.monotonic() + pool.deadline_s
    while waiting and (left := deadline - time.monotonic()) > 0:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
        for reference in done:
            try:
                _result(reference, method, pool)
            except GraphmillError as error:
                if not failed:
                    deadline = min(deadline, time.monotonic() + _OTHERS_S)
                failed.append(error)
    if failed:
        telling = [
            each for each in failed if not isinstance(each, StageError) or isinstance(each.__cause__, RayActorError)
        ]
        raise (telling or failed)[0]
    if waiting:
        raise DeadlineError(
            f"{method}: expected all workers within {pool.deadline_s:g} s, {len(waiting)} of {len(references)} are late; has the cluster a "
            "free CPU per worker? Lower --workers or raise --deadline_s; run again to go on"
        )


def _result(reference: Any, method: str, pool: PoolOptions) -> None:
    times = "" if pool.together else f" {pool.restarts + 1} times"
    again = "; is memory short? Lower --workers; run again to go on"
    answer(reference, method, pool.deadline_s, "lower --workers", died=f"a worker died{times}", again=again)
