"""Finds the rank for which the other ranks wait. Reports its host, the slow stage, and the factor by which the stage is slower.

All ranks make their steps together and take the same time. The slow rank is the rank that waits least for the others. A rank's own time is
`train_s - peers_s`. It has two parts: computing, and waiting for batches (`wait_s`). The stages of the sampling threads explain the second part.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WINDOW_S = 20.0  # the ranks are compared over windows of this training time
_SLOWER = 1.5  # a rank is slow if its time is at least this multiple of the other ranks' median
_SHARE = 0.1  # a rank is slow if the others wait for it at least this share of the training time
# A link is slow if every rank waits for data of other hosts at least this share of the training time
_LINK_SHARE = 0.75
_CLEAR_SHARE = 0.25  # despite a slow link, a rank is reported if the others wait for it at least this share of the time
_STAGES = {"sample_s": "sampling", "fetch_s": "fetching rows", "collate_s": "collating", "plan_s": "planning"}


class PeerWait:
    """Adds up the seconds in its `with` blocks. In these blocks a rank waits for data of other ranks.

    `is_measured` is false if collective calls only queue work for a GPU; then nothing is added.
    """

    def __init__(self, is_measured: bool) -> None:
        self.seconds = 0.0
        self._is_measured = is_measured
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._is_measured:
            self.seconds += time.perf_counter() - self._begun


@dataclass(frozen=True)
class Straggler:
    """The slowest rank, and the stage in which it is slow."""

    rank: int
    stage: str
    times: float  # the rank's time in that stage, divided by the median time of the other ranks
    share: float  # share of the training time in which the others wait for this rank


def find_straggler(seconds: Mapping[str, Sequence[float]]) -> Straggler | None:
    """Finds the straggler. `seconds`: by the name of a measured time, the seconds of all ranks. Returns None if no rank is much slower than the others."""
    total = max(seconds["train_s"])
    waits = seconds["wait_s"]
    computing = [
        train - wait - peers for train, wait, peers in zip(seconds["train_s"], waits, seconds["peers_s"], strict=True)
    ]
    own = [compute + wait for compute, wait in zip(computing, waits, strict=True)]
    rank = max(range(len(own)), key=own.__getitem__)
    lost = own[rank] - _others(own, rank)
    if total <= 0 or lost < _SHARE * total or own[rank] < _SLOWER * _others(own, rank):
        return None
    stage, of_ranks = "computing", computing
    if waits[rank] - _others(waits, rank) > computing[rank] - _others(computing, rank):
        names = [name for name in _STAGES if name in seconds]
        name = max(names, key=lambda each: seconds[each][rank] - _others(seconds[each], rank))
        stage, of_ranks = _STAGES[name], list(seconds[name])
        if _times(of_ranks, rank) < _SLOWER:  # no stage explains the rank's time
            stage, of_ranks = "waiting for batches", list(waits)
    return Straggler(rank, stage, _times(of_ranks, rank), lost / total)


def find_slow_link(seconds: Mapping[str, Sequence[float]], received_bytes: Sequence[float]) -> str | None:
    """Returns a message if every rank waits most of the time for data of other hosts (rows or gradients); else None."""
    total, stages = max(seconds["train_s"]), {name: sum(seconds.get(name, ())) for name in _STAGES}
    rows = seconds["wait_s"] if max(stages, key=stages.__getitem__) == "fetch_s" else [0.0] * len(seconds["wait_s"])
    share = min(a + b for a, b in zip(rows, seconds["peers_s"], strict=True)) / max(total, 1e-9)
    if share < _LINK_SHARE:
        return None
    kind = "rows" if sum(rows) > sum(seconds["peers_s"]) else "gradients"
    rate = statistics.mean(received_bytes) / total / 1e6
    return (
        f"all ranks wait {share:.0%} of the training time for what other hosts send, most of it for {kind}; {rate:.2g} MB/s arrive at each "
        "rank: is a link slow?"
    )


def _times(values: Sequence[float], rank: int) -> float:
    """Returns the rank's value as a multiple of the other ranks' median."""
    return values[rank] / max(_others(values, rank), 1e-3)


def _others(values: Sequence[float], rank: int) -> float:
    """Returns the median of the other ranks' values."""
    return statistics.median(value for other, value in enumerate(values) if other != rank)


class StragglerWatch:
    """Compares the ranks window by window, and reports changes. Only rank 0 uses it."""

    def __init__(self, hosts: list[str]) -> None:
        """`hosts`: the host of each rank, for messages."""
        self.hosts = hosts
        self._sums: dict[str, list[float]] = {}
        self._told: str | None = None  # the rank or link of the last message
        self._windows, self._patience = 0, 1  # windows that contradict the last message; number that causes a new one

    def update(self, seconds: Mapping[str, Sequence[float]], received_bytes: Sequence[float]) -> str | None:
        """Adds all ranks' seconds of an epoch, and the bytes that they received from other processes. Returns a message for the user, or None.

        After each message, a change must last twice as many windows as before to be reported.
        """
        for name, values in {**seconds, "received_bytes": received_bytes}.items():
            before = self._sums.get(name, [0.0] * len(values))
            self._sums[name] = [a + b for a, b in zip(before, values, strict=True)]
        if max(self._sums["train_s"]) < _WINDOW_S:
            return None
        sums, self._sums = self._sums, {}
        slow, message = self._look(sums)
        if slow == self._told:
            self._windows = 0
            return None
        self._windows += 1
        if self._windows < self._patience:
            return None
        before_slow, self._told, self._windows, self._patience = self._told, slow, 0, 2 * self._patience
        return message or f"no longer slow: {before_slow}"

    def _look(self, sums: Mapping[str, Sequence[float]]) -> tuple[str | None, str]:
        """Returns (the slow rank or link, the message); (None, "") if no rank and no link is slow."""
        straggler = find_straggler(sums)
        link = find_slow_link(sums, sums["received_bytes"]) if len(set(self.hosts)) > 1 else None
        if link is not None and (straggler is None or straggler.share < _CLEAR_SHARE):
            return "the link", link
        if straggler is None:
            return None, ""
        who = f"rank {straggler.rank} on {self.hosts[straggler.rank]}"
        return who, (
            f"{who} is slow: {straggler.stage} takes it {straggler.times:.1f} times as long as the others; they wait for it "
            f"{straggler.share:.0%} of the training time"
        )
