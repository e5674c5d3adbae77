"""A worker's line to the driver, by way of the metrics hub: it tells and does not wait, and hears with a later word that it is to stop.

What it tells arrives once and in order, though messages and answers get lost and the hub be killed. A checkpoint counts only when the
driver has recorded all that was told before it (`receipt`): else a fault between the two would leave a gap in the run's record.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.record_queue import Outbox, Record
from storage.errors import StageError

_HELD_S = 1.0  # longest that the hub holds a message whose records the driver has not taken
_OVERDUE_S = 5.0  # after that a message counts as lost
_PAUSE_S = 0.1  # after one that failed
_LOOK_S = 0.02
_RECEIPT_S = 60.0  # longest wait for the driver to take one more
_MAX_ANSWERS = 12  # that are waited for: a minute of overdue ones
_MAX_KEPT = 100  # beyond that a step's progress is not worth keeping


class DriverLine:
    """One worker's; for several threads."""

    def __init__(self, hub: Any) -> None:
        self._hub, self._outbox = hub, Outbox()
        self._lock = threading.Lock()
        self._answers: list[Any] = []  # that have not come; the last one is of the message that is under way
        self._waits = False  # for that one
        self._sent, self._not_before = 0.0, 0.0
        self._stop = False

    def push(self, record: Record) -> None:
        """Sends a record, with the next message where one is under way; not a step's, where many wait to be taken."""
        with self._lock:
            if record["kind"] != "step" or self._outbox.num_kept < _MAX_KEPT:
                self._outbox.add(record)
            self._turn()

    def stop_asked(self) -> bool:
        """Whether the driver has said so, in any answer that has come."""
        with self._lock:
            self._turn()
            return self._stop

    def receipt(self) -> Callable[[], None]:
        """What waits until the driver has taken all that was pushed so far. It raises StageError where it takes none for a minute."""
        with self._lock:
            count = len(self._outbox)

        def wait() -> None:
            before, deadline = -1, 0.0
            while True:
                with self._lock:
                    self._turn()
                    num_taken, answers = self._outbox.num_taken, list(self._answers)
                if num_taken >= count:
                    return
                if num_taken > before:
                    before, deadline = num_taken, time.monotonic() + _RECEIPT_S
                if time.monotonic() > deadline:
                    raise StageError(f"the driver has not taken what the workers told it within {_RECEIPT_S:g} s")
                if answers:
                    ray.wait(answers, timeout=_HELD_S)
                else:
                    time.sleep(_LOOK_S)

        return wait

    def _turn(self) -> None:
        """Hears an answer that has come, and sends what is not taken where no message is under way; waits for nobody."""
        now = time.monotonic()
        ready = ray.wait(self._answers, num_returns=len(self._answers), timeout=0)[0] if self._answers else []
        for answer in ready:
            self._waits = self._waits and answer != self._answers[-1]
            self._answers.remove(answer)
            try:
                num_taken, stop = ray.get(answer, timeout=_OVERDUE_S)
            except RayTaskError:
                raise  # a mistake in the hub itself
            except RayError:  # lost on its way, or the hub is being restarted
                self._not_before = now + _PAUSE_S
            else:
                self._outbox.taken(num_taken)
                self._stop = self._stop or stop
        if now - self._sent > _OVERDUE_S:
            self._waits = False  # it may still come: late is not lost
        if not self._waits and self._outbox.num_taken < len(self._outbox) and now >= self._not_before:
            outbox = self._outbox
            self._answers = self._answers[-_MAX_ANSWERS + 1 :]
            self._answers.append(self._hub.push.remote(outbox.sender, outbox.num_taken, outbox.kept(), _HELD_S))
            self._sent, self._waits = now, True
