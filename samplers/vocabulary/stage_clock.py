"""Measures how much of a batch's time each stage takes. A stage reports its name when it begins; the clock of the running batch adds up the time of each stage.

If there is no clock (a sampler is called directly), a stage takes only the time of one look-up.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class StageClock:
    """The seconds that each stage of one piece of work has taken. Other threads read the clock to report the current stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    stage: str = "wait"
    since: float = field(default_factory=time.perf_counter)
    excused_s: float = 0.0  # `time.monotonic` when a server last said that it compiles

    def enter(self, stage: str) -> str:
        """Ends the current stage and begins another one. Returns the name of the stage that has ended."""
        now, before = time.perf_counter(), self.stage
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self.since
        self.stage, self.since = stage, now
        return before


_listening: ContextVar[StageClock | None] = ContextVar("stage_clock", default=None)


@contextmanager
def listen(clock: StageClock) -> Iterator[StageClock]:
    """Inside the `with` block, `clock` measures the stages that begin in this thread."""
    token = _listening.set(clock)
    try:
        yield clock
    finally:
        _listening.reset(token)


def excuse() -> None:
    """Notes that this thread's work waits for a server that compiles its loops."""
    clock = _listening.get()
    if clock is not None:
        clock.excused_s = time.monotonic()


def credit(seconds: Mapping[str, float]) -> None:
    """Adds time to this thread's clock: `seconds` has, for each stage, the seconds that other threads have worked for this thread."""
    clock = _listening.get()
    if clock is not None:
        for name, value in seconds.items():
            clock.seconds[name] = clock.seconds.get(name, 0.0) + value


class stage(ContextDecorator):  # a class, because a context from a generator takes four times as long
    """The time inside the `with` block counts for stage `name`. Stages may be nested; time counts only for the inner stage. After an error the clock keeps the
    stage's name, so that it can be reported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _recreate_cm(self) -> "stage":
        return stage(self._name)  # a new object for each call

    def __enter__(self) -> None:
        self._clock = _listening.get()
        self._before = "" if self._clock is None else self._clock.enter(self._name)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._clock is not None:
            self._clock.enter(self._before)
