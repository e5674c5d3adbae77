"""Where workers' metrics meet the driver: an actor that holds records until the driver has taken them.

Workers have all-reduced their numbers already; rank 0 tells them (`cluster.driver_line`) and does not wait. The driver asks for them, writes
the run directory and draws the progress bar. The other way goes one word: that the workers are to save and stop, with every answer from
then on.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.graceful_stop import interrupt_main
from cluster.live_metrics import LiveMetrics
from cluster.record_queue import Inbox, Numbered, Reader, Record
from storage.errors import StageError

_HELD_S = 0.2  # longest that the hub holds a question for records when there are none; the word to stop waits as long
_MAX_ITEMS = 100  # of one answer, so that what was taken is told before the next
_ANSWER_TIMEOUT_S = 10.0


class MetricsHub:
    """The actor. A call of either side may be lost, or come twice: what it says is said again by the next."""

    def __init__(self, run: str) -> None:
        self._inbox = Inbox()
        self._stop = False
        self._live = LiveMetrics(run)
        self._changed = asyncio.Condition()

    async def push(self, sender: str, first: int, records: Sequence[Record], held_s: float) -> tuple[int, bool]:
        """Takes in a worker's records from number `first` on; answers when the driver has taken them, at most `held_s` seconds later.

        Returns how many of the sender's records the driver has taken, and whether the workers are to stop.
        """
        for record in self._inbox.put(sender, first, records):
            self._live.update(record)
        end = first + len(records)
        await self._until(lambda: self._inbox.num_taken(sender) >= end, held_s)
        return self._inbox.num_taken(sender), self._stop

    async def drain(self, stop: bool, taken: Mapping[str, int], held_s: float) -> list[Numbered]:
        """What the driver has not taken, in order; where there is nothing, what comes within `held_s` seconds.

        `stop` is what workers hear from now on; `taken` how many records of these senders the driver has taken.
        """
        self._stop = stop
        self._inbox.taken(taken)
        await self._until(lambda: bool(self._inbox.waiting), held_s)
        return self._inbox.waiting[:_MAX_ITEMS]

    async def _until(self, condition: Callable[[], bool], held_s: float) -> None:
        async with self._changed:
            self._changed.notify_all()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(condition), held_s)


def begins_an_attempt(record: Record) -> bool:
    """The workers that told something before are no more, whatever of them still arrives."""
    return bool(record["kind"] == "start")


@contextmanager
def metrics_hub(
    consume: Callable[[Record], None],
    stopping: threading.Event | None = None,
    run: str = "run",
    end_now: Callable[[], None] = interrupt_main,
) -> Iterator[Any]:
    """Starts a hub for the `run` of this name, passes its records to `consume` from a thread while the context is open, and stops it.

    Once `stopping` is set, workers that push are told to stop. What the hub has got is consumed before the context is left; that it has
    got all is for the workers to see to (`DriverLine.receipt`). An error in `consume` ends the body, by `end_now`, and is raised as StageError.
    """
    actor_options: dict[str, Any] = {
        "num_cpus": 0,
        "max_restarts": -1,
        "enable_task_events": False,  # several questions a second, which Ray's list of tasks need not hold
    }
    actor: Any = ray.remote(**actor_options)(MetricsHub)
    # Beside the driver, without which it is of no use, and not on a node that may be lost.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    hub = actor.options(scheduling_strategy=here).remote(run)
    ended = threading.Event()
    failures: list[Exception] = []
    reader = Reader(begins_an_attempt)
    taken: dict[str, int] = {}  # what the hub is to hear next

    def drain(held_s: float) -> bool:
        """Whether anything came."""
        nonlocal taken
        is_stopping = stopping is not None and stopping.is_set()
        try:
            items = ray.get(hub.drain.remote(is_stopping, taken, held_s), timeout=_ANSWER_TIMEOUT_S)
        except RayTaskError:
            raise  # a mistake in the hub itself
        except RayError:  # late or lost, or the hub is being restarted: it is asked again, and told the same
            ended.wait(_HELD_S)
            return False
        for record in reader.fresh(items):
            consume(record)
        taken = reader.counts(items)
        return bool(items)

    def follow() -> None:
        try:
            while not ended.is_set():
                drain(_HELD_S)
            while ray.is_initialized() and drain(0.0):
                pass
        except Exception as error:  # noqa: BLE001  whatever it is, the main thread must hear of it
            failures.append(error)
            if not ended.is_set():
                # Training without a record is worth nothing: what waits in the main thread ends as by Ctrl-C, and the error is shown.
                end_now()

    thread = threading.Thread(target=follow, name="graphmill-metrics", daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        ended.set()
        thread.join(timeout=2 * _ANSWER_TIMEOUT_S)
        if ray.is_initialized():
            ray.kill(hub, no_restart=True)
        if failures:
            raise StageError(f"recording metrics: {type(failures[0]).__name__}: {failures[0]}") from failures[0]
