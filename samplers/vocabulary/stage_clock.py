"""A batch's time by stage. A stage reports its name when it begins, and the clock of the running batch adds up its time.

Without a clock (if a sampler is called directly) a stage costs one look-up.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class StageClock:
    """Seconds per stage of one piece of work. Other threads read the clock to report the current stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    stage: str = "wait"
    since: float = field(default_factory=time.perf_counter)

    def enter(self, stage: str) -> str:
        """Ends the current stage and begins another one. Returns the name of the ended stage."""
        now, before = time.perf_counter(), self.stage
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self.since
        self.stage, self.since = stage, now
        return before


_listening: ContextVar[StageClock | None] = ContextVar("stage_clock", default=None)


@contextmanager
def listen(clock: StageClock) -> Iterator[StageClock]:
    """During the context, `clock` measures the stages that begin in this thread."""
    token = _listening.set(clock)
    try:
        yield clock
    finally:
        _listening.reset(token)


def credit(seconds: Mapping[str, float]) -> None:
    """Adds seconds by stage that other threads have spent on the work of this thread."""
    clock = _listening.get()
    if clock is not None:
        for name, value in seconds.items():
            clock.seconds[name] = clock.seconds.get(name, 0.0) + value


class stage(ContextDecorator):  # a class, because a context from a generator takes four times as long
    """The time of the context belongs to stage `name`. Stages may be nested; time counts once. After an error the clock keeps the stage, so that it can be
    reported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _recreate_cm(self) -> "stage":
        return stage(self._name)  # a new one for each call

    def __enter__(self) -> None:
        self._clock = _listening.get()
        self._before = "" if self._clock is None else self._clock.enter(self._name)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._clock is not None:
            self._clock.enter(self._before)
