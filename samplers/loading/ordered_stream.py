"""Threads do numbered work in advance, within bounds on the number and bytes of the results. The results are delivered in order.

Results may finish in any order; each waits for its turn. If work fails, the next `take` raises the error, even if earlier results are missing. A thread without
room waits, and checks every second whether the stream has ended. The consumer waits until its deadline.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from graphmill.core.compile_cache import COMPILE_S, is_compiling
from graphmill.core.errors import DeadlineError, StageError
from graphmill.samplers.vocabulary.stage_clock import StageClock, listen

Result = TypeVar("Result")
_POLL_S = 1.0


@dataclass(frozen=True)
class Bounds:
    """Bounds on work that is done in advance. One result is always allowed, whatever its size."""

    threads: int
    ahead: int  # number of results that are begun but not delivered
    max_bytes: int  # size of these results; an unfinished one counts as the largest so far
    timeout_s: float


@dataclass
class Delivery(Generic[Result]):
    """The state of the work for one number: running, finished or failed."""

    clock: StageClock = field(default_factory=StageClock)
    thread: str = ""
    result: Result | None = None
    error: BaseException | None = None
    num_bytes: int = 0
    done: bool = False


class OrderedStream(Generic[Result]):
    """Delivers the results of `work(number)` for numbers start … stop-1, in order. Call `begin` first. At the end call `close`, or read all results."""

    def __init__(
        self,
        work: Callable[[int], Result],
        size: Callable[[Result], int],
        start: int,
        stop: int,
        bounds: Bounds,
        largest_bytes: int = 0,
    ) -> None:
        self._work, self._size, self._bounds, self._stop = work, size, bounds, stop
        self._changed = threading.Condition()
        self._claimed = self._delivered = start  # the next number to begin, and the next to deliver
        self._under_way: dict[int, Delivery[Result]] = {}
        self._failed: int | None = None
        self._cancelled = False
        self.finished_bytes = self.peak_bytes = 0
        self.largest_bytes = largest_bytes
        self.blocked_s = 0.0  # time that threads waited for room
        self._threads = [
            threading.Thread(target=self._run, name=f"graphmill-sampler-{index}", daemon=True)
            for index in range(min(bounds.threads, max(stop - start, 0)))
        ]

    def begin(self) -> None:
        """Starts the threads. The constructor does not start them, so that a caller that is interrupted during the start can cancel the stream."""
        for thread in self._threads:
            thread.start()

    @property
    def num_finished(self) -> int:
        """Number of finished results that wait for delivery."""
        with self._changed:
            return sum(delivery.done for delivery in self._under_way.values())

    def _has_room(self) -> bool:
        ahead = self._claimed - self._delivered
        if ahead == 0:
            return True
        unfinished = sum(not delivery.done for delivery in self._under_way.values())
        expected = self.finished_bytes + (unfinished + 1) * self.largest_bytes
        return ahead < self._bounds.ahead and expected <= self._bounds.max_bytes

    def _claim(self) -> tuple[int, Delivery[Result]] | None:
        """Waits for room and returns the next number. Returns None at the end."""
        with self._changed:
            began = time.perf_counter()
            while not (self._cancelled or self._failed is not None or self._claimed >= self._stop):
                if self._has_room():
                    number, delivery = self._claimed, Delivery[Result](thread=threading.current_thread().name)
                    self._under_way[number] = delivery
                    self._claimed += 1
                    self.blocked_s += time.perf_counter() - began
                    return number, delivery
                self._changed.wait(_POLL_S)
            return None

    def _run(self) -> None:
        while (claimed := self._claim()) is not None:
            number, delivery = claimed
            try:
                with listen(delivery.clock):
                    result = self._work(number)
                num_bytes = self._size(result)
            except BaseException as error:  # noqa: BLE001  the consumer raises it, whatever it is
                self._finish(number, delivery, error=error)
                return
            self._finish(number, delivery, result=result, num_bytes=num_bytes)
            del result

    def _finish(
        self,
        number: int,
        delivery: Delivery[Result],
        result: Result | None = None,
        error: BaseException | None = None,
        num_bytes: int = 0,
    ) -> None:
        with self._changed:
            if self._cancelled:
                del self._under_way[number]
                return
            delivery.result, delivery.error, delivery.num_bytes, delivery.done = result, error, num_bytes, True
            self.finished_bytes += num_bytes
            self.largest_bytes = max(self.largest_bytes, num_bytes)
            self.peak_bytes = max(self.peak_bytes, self.finished_bytes)
            if error is not None and self._failed is None:
                self._failed = number
            self._changed.notify_all()

    def finished_from(self, number: int) -> list[Result]:
        """Returns the finished results from `number` on, up to the first unfinished one. They stay in the stream and are delivered later."""
        results: list[Result] = []
        with self._changed:
            while (delivery := self._under_way.get(number + len(results))) is not None and delivery.result is not None:
                results.append(delivery.result)
        return results

    def take(self) -> tuple[int, Delivery[Result]]:
        """Waits for the next result and returns it with its number. If any work has failed, even for a later number, raises its error.

        Raises DeadlineError, with the stage of the awaited number, if nothing arrives in time. The time in which this process or a server compiles loops does
        not count. Raises StageError after `cancel`.
        """
        began = time.monotonic()
        deadline = began + self._bounds.timeout_s
        with self._changed:
            while True:
                number = self._delivered if self._failed is None else self._failed
                delivery = self._under_way.get(number)
                if delivery is not None and delivery.done:
                    del self._under_way[number]
                    self._delivered += 1
                    self.finished_bytes -= delivery.num_bytes
                    self._changed.notify_all()
                    return number, delivery
                if self._cancelled:
                    raise StageError("cancelled")
                excused_s = 0.0 if delivery is None else delivery.clock.excused_s
                working_s = time.monotonic() if is_compiling() else excused_s
                deadline = max(deadline, min(working_s, began + COMPILE_S) + self._bounds.timeout_s)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineError(f"nothing after {self._bounds.timeout_s:g} s; {_standing(number, delivery)}")
                self._changed.wait(min(left, _POLL_S))

    def cancel(self) -> None:
        """Drops finished results, and prevents the start of more work. Does not wait."""
        with self._changed:
            self._cancelled = True
            self._under_way = {number: own for number, own in self._under_way.items() if not own.done}
            self.finished_bytes = 0
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Cancels, and waits until the threads have ended. If threads still run after `timeout_s`, raises DeadlineError with their names."""
        self.cancel()
        with self._changed:
            standing = [_standing(number, delivery) for number, delivery in self._under_way.items()]
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            with suppress(RuntimeError):  # not started
                thread.join(max(0.0, deadline - time.monotonic()))
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            raise DeadlineError(
                f"{', '.join(alive)}: still at work {timeout_s:g} s after cancellation: {'; '.join(standing)}"
            )


def _standing(number: int, delivery: Delivery | None) -> str:
    if delivery is None:
        return f"step {number} was not begun"
    clock = delivery.clock
    return (
        f"step {number} is in stage {clock.stage} since {time.perf_counter() - clock.since:.1f} s ({delivery.thread})"
    )
