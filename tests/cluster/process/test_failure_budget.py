"""A run that fails repeatedly either continues or gives up. The decision depends on the times of the failures and the progress between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.process.failure_budget import Failure, why_give_up

MINUTE = 60.0


def failures(*times_and_places: tuple[float, float | None]) -> list[Failure]:
    return [Failure(minutes * MINUTE, reached) for minutes, reached in times_and_places]


@pytest.mark.parametrize(
    ("history", "per_hour", "said"),
    [
        (failures((0, 1.0)), 3, None),
        (failures((0, 1.0)), 0, "1 failure within an hour, expected at most 0"),
        (failures((0, 1.0), (1, 2.0), (2, 3.0)), 3, None),
        (failures((0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)), 3, "4 failures within an hour, expected at most 3"),
        (failures((0, 1.0), (1, 2.0), (2, 3.0), (60, 4.0)), 3, None),  # the first is over an hour old
        # A run that takes weeks: many failures, but at least 21 minutes between two failures.
        (failures(*((21.0 * n, float(n)) for n in range(500))), 3, None),
        # All failures at the same place, at least 90 minutes apart: a limit on their rate alone would never end the run.
        (failures((0, 4.5), (90, 4.5)), 3, None),
        (failures((0, 4.5), (90, 4.5), (180, 4.5)), 3, "3 failures in a row, none further than 4.50 epochs"),
        (failures((0, 4.5), (90, 4.4), (180, 4.5)), 3, "3 failures in a row, none further than 4.50 epochs"),
        (failures((0, 4.5), (90, 4.4), (180, 4.6)), 3, None),
        (failures((0, None), (90, None), (180, None)), 3, "3 failures in a row, before training began"),
        (failures((0, None), (90, None), (180, 0.1)), 3, None),
        (failures((0, 7.0), (90, None), (180, None)), 3, "none further than 7.00 epochs"),
        (failures((0, 7.0), (90, None), (180, 7.5), (270, None)), 3, None),
    ],
)
def test_what_is_given_up(history, per_hour, said):
    why = why_give_up(history, per_hour)
    assert (why is None) if said is None else (why is not None and said in why), why


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 3)), min_size=60, max_size=60), st.integers(0, 10))
def test_a_run_that_gains_nothing_always_ends(gaps_and_places, per_hour):
    """Beginning with the failure at its furthest point, a run gives up at the third failure at the latest, whatever the times. So every run ends."""
    time_s, history = 0.0, []
    for gap, place in gaps_and_places:
        time_s += gap * MINUTE
        history.append(Failure(time_s, min(place, 1.0)))  # The run never finishes its first epoch.
        if why_give_up(history, per_hour) is not None:
            break
    furthest = max(range(len(history)), key=lambda i: (history[i].reached, -i))
    assert len(history) <= furthest + 3


@given(st.lists(st.floats(20.01, 300), min_size=1, max_size=50))
def test_a_run_that_gets_on_never_ends_within_its_rate(gaps):
    time_s, history = 0.0, []
    for number, gap in enumerate(gaps):
        time_s += gap * MINUTE
        history.append(Failure(time_s, float(number)))
        assert why_give_up(history, 3) is None
