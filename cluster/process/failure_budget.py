"""Decides when a failing run is given up: after too many failures within an hour, or after several failures in a row without progress.

The first bound is a rate: a long run may fail as often per hour as a short run. The second bound ends a run that always crashes at the same place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_HOUR_S = 3600.0
_IN_VAIN = 3  # failures in a row without progress beyond the earlier failures


@dataclass(frozen=True)
class Failure:
    """One failed attempt to train."""

    time_s: float  # time of a monotonic clock
    reached: float | None  # epochs, with a fraction, that the attempt reported; None: the attempt did not begin


def why_give_up(failures: Sequence[Failure], per_hour: int) -> str | None:
    """Returns the reason to give up after these failures (oldest first). None: try again."""
    latest = [failure for failure in failures if failures[-1].time_s - failure.time_s < _HOUR_S]
    if len(latest) > per_hour:
        return f"{_count(len(latest))} within an hour, expected at most {per_hour} (--workers.failures_per_hour)"
    furthest, in_vain = None, 0
    for failure in failures:
        if failure.reached is not None and (furthest is None or failure.reached > furthest):
            furthest, in_vain = failure.reached, 0
        in_vain += 1
    if in_vain < _IN_VAIN:
        return None
    where = "before training began" if furthest is None else f"none further than {furthest:.2f} epochs"
    return f"{_count(in_vain)} in a row, {where}"


def _count(number: int) -> str:
    return "1 failure" if number == 1 else f"{number} failures"
