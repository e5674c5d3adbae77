"""Ctrl-C and SIGTERM during training. The first signal asks the run to stop; the second ends it at once. The tests send real signals."""

import os
import signal
import threading
import time

import pytest

from graphmill.cluster.process.graceful_stop import GracefulStop
from graphmill.core.errors import Terminated

ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


def send(signum: int) -> None:
    os.kill(os.getpid(), signum)
    time.sleep(0.01)  # the handler runs during this sleep


@pytest.fixture(autouse=True)
def handlers_are_put_back():
    before = [signal.getsignal(signum) for signum in ENDS]
    yield
    assert [signal.getsignal(signum) for signum in ENDS] == before


@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("first", ENDS)
def test_the_first_asks_and_the_second_ends(first, second):
    stop, told = GracefulStop(60.0), []

    def train() -> None:
        with stop.on_signals(lambda: True, told.append):
            send(first)
            assert stop.asked.is_set()
            assert (type(stop.error), told) == (ENDS[first], [first])
            send(second)

    with pytest.raises(ENDS[second]) as raised:
        train()
    assert (told, raised.type) == ([first], ENDS[second])


@pytest.mark.parametrize("signum", ENDS)
def test_where_nothing_can_be_saved_the_first_ends(signum):
    stop = GracefulStop(60.0)
    with pytest.raises(ENDS[signum]), stop.on_signals(lambda: False, lambda _: None):
        send(signum)
    assert not stop.asked.is_set()


def test_sigterm_is_sent_again_after_the_grace_time_and_ctrl_c_is_not():
    with GracefulStop(0.2).on_signals(lambda: True, lambda _: None):
        send(signal.SIGINT)
        time.sleep(0.5)

    def train() -> None:
        with GracefulStop(0.2).on_signals(lambda: True, lambda _: None):
            send(signal.SIGTERM)
            time.sleep(10)

    with pytest.raises(Terminated):
        train()


def test_a_thread_whose_work_failed_ends_the_block_although_nobody_pressed_a_key():
    stop = GracefulStop(60.0)

    def train() -> None:
        with stop.on_signals(lambda: True, lambda _: None):
            threading.Thread(target=stop.end_now).start()
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        train()
    assert not stop.asked.is_set()


def test_a_signal_that_the_parent_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = GracefulStop(60.0)
    try:
        with stop.on_signals(lambda: True, lambda _: None):
            send(signal.SIGINT)
        assert not stop.asked.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with pytest.raises(KeyboardInterrupt), stop.on_signals(lambda: True, lambda _: None):
            stop.end_now()  # called for a full disk, also without a terminal
    finally:
        signal.signal(signal.SIGINT, before)
