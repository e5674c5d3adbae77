"""Where workers' metrics meet the driver: an actor that holds a short queue of records until the driver takes them.

Workers have all-reduced their numbers already; rank 0 pushes and does not wait. The driver polls, writes the run directory and draws
the progress bar. The other way goes one word: that the workers are to save and stop, which is the answer to every push from then on.
"""

import _thread
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from cluster.live_metrics import LiveMetrics
from storage.errors import StageError

Record = Mapping[str, Any]

_MAX_RECORDS = 100_000  # far beyond what one poll interval brings; oldest go first
_POLL_S = 0.2
_POLL_TIMEOUT_S = 10.0


class MetricsHub:
    """The actor."""

    def __init__(self, run: str) -> None:
        self._records: deque[Record] = deque(maxlen=_MAX_RECORDS)
        self._stop = False
        self._live = LiveMetrics(run)

    def push(self, record: Record) -> bool:
        """Takes a record; returns whether the workers are to stop."""
        self._records.append(record)
        self._live.update(record)
        return self._stop

    def drain(self, stop: bool) -> list[Record]:
        """All records since the last call, in order; `stop` is what pushes answer from now on."""
        self._stop = stop
        records = list(self._records)
        self._records.clear()
        return records


@contextmanager
def metrics_hub(
    consume: Callable[[Record], None], stopping: threading.Event | None = None, run: str = "run"
) -> Iterator[Any]:
    """Starts a hub for the `run` of this name, passes its records to `consume` from a thread while the context is open, and stops it.

    Once `stopping` is set, workers that push are told to stop.
    What was pushed before the context ends is consumed before it is left. An error in `consume` ends the body and is raised
    as StageError.
    """
    actor: Any = ray.remote(num_cpus=0, max_restarts=-1)(MetricsHub)
    hub = actor.remote(run)
    ended = threading.Event()
    failures: list[Exception] = []

    asked: list[Any] = []  # the question whose answer has not come: it holds records that no later one will

    def drain() -> None:
        if not asked:
            asked.append(hub.drain.remote(stopping is not None and stopping.is_set()))
        try:
            records = ray.get(asked[0], timeout=_POLL_TIMEOUT_S)
        except GetTimeoutError:
            return  # late; asked for again at the next turn
        except RayActorError:
            asked.clear()
            return  # metrics are lost; training is not
        asked.clear()
        for record in records:
            consume(record)

    def poll() -> None:
        try:
            while not ended.wait(_POLL_S):
                drain()
        except (OSError, ValueError, TypeError, KeyError) as error:
            failures.append(error)
            # Training without a record is worth nothing: what waits in the main thread ends as by Ctrl-C, and the error is shown.
            _thread.interrupt_main()

    thread = threading.Thread(target=poll, name="graphmill-metrics", daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        ended.set()
        thread.join(timeout=2 * _POLL_TIMEOUT_S)
        if not failures and ray.is_initialized():
            drain()
        if ray.is_initialized():
            ray.kill(hub, no_restart=True)
        if failures:
            raise StageError(f"recording metrics: {type(failures[0]).__name__}: {failures[0]}") from failures[0]
