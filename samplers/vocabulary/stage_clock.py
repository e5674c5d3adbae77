"""Where a batch's time goes: a stage reports its name when it begins, and the clock of the running batch counts its time.

Without a listener (a sampler called directly) a stage costs one look-up.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class StageClock:
    """Seconds per stage of one piece of work; read by other threads to say where it stands."""

    seconds: dict[str, float] = field(default_factory=dict)
    stage: str = "wait"
    since: float = field(default_factory=time.perf_counter)

    def enter(self, stage: str) -> str:
        """Ends the stage under way and begins another; returns the former's name."""
        now, before = time.perf_counter(), self.stage
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self.since
        self.stage, self.since = stage, now
        return before


_listening: ContextVar[StageClock | None] = ContextVar("stage_clock", default=None)


@contextmanager
def listen(clock: StageClock) -> Iterator[StageClock]:
    """Stages that begin in this thread during the context are told to `clock`."""
    token = _listening.set(clock)
    try:
        yield clock
    finally:
        _listening.reset(token)


def credit(seconds: Mapping[str, float]) -> None:
    """Adds what other threads have spent, by stage, on the work that is under way in this one."""
    clock = _listening.get()
    if clock is not None:
        for name, value in seconds.items():
            clock.seconds[name] = clock.seconds.get(name, 0.0) + value


class stage(ContextDecorator):  # a generator's context takes four times as long
    """What runs in the context belongs to stage `name`; stages may nest, time counts once. An error leaves the stage as it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _recreate_cm(self) -> "stage":
        return stage(self._name)  # of each call

    def __enter__(self) -> None:
        self._clock = _listening.get()
        self._before = "" if self._clock is None else self._clock.enter(self._name)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._clock is not None:
            self._clock.enter(self._before)
