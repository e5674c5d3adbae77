"""A separate thread shows a run's progress, in order. It does not delay training, and its errors reach the main thread."""

import threading
import time

import pytest

from graphmill.cluster.runs.progress_thread import progress_thread
from tests.waiting import wait_until


def epoch(number: int) -> dict:
    return {"kind": "epoch", "epoch": number}


def test_all_is_shown_in_order_before_the_end():
    seen = []
    with progress_thread(seen.append) as tell:
        for number in range(300):
            tell(epoch(number))
    assert seen == [epoch(number) for number in range(300)]


def test_nobody_waits_for_one_who_does_not_look(monkeypatch):
    monkeypatch.setattr("graphmill.cluster.runs.progress_thread._END_S", 0.1)
    looks, seen = threading.Event(), []

    def show(record) -> None:
        looks.wait(60)
        seen.append(record)

    with progress_thread(show) as tell:
        for number in range(1000):
            tell({"kind": "step", "step": number})
            tell(epoch(number))
    looks.set()
    wait_until(lambda: len(seen) >= 1000 and seen[-1] == epoch(999), 30)
    assert [record for record in seen if record["kind"] == "epoch"] == [epoch(number) for number in range(1000)]
    assert len(seen) < 1200  # steps that wait too long are not shown


def test_an_error_in_showing_ends_the_body_and_is_raised():
    def show(record) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def follow() -> None:
        with progress_thread(show) as tell:
            tell(epoch(0))
            with pytest.raises(KeyboardInterrupt):
                time.sleep(60)

    with pytest.raises(BrokenPipeError):
        follow()
