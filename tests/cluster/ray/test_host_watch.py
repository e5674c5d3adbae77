"""Tests the messages about a host that stops answering, is given up, or returns; and the attempts to connect to a host."""

import socket
import time

from graphmill.cluster.ray.host_watch import HeadState, HostStates, Knock, knock

HOSTS = {"10.0.0.2": "h1", "10.0.0.3": "h2"}


def test_a_host_that_falls_silent_is_told_once_and_so_is_its_return():
    states = HostStates()
    assert states.update(0, HOSTS, HOSTS) == []
    assert states.update(2, HOSTS, ["10.0.0.3"]) == []
    assert states.lost(2) == ""
    (said,) = states.update(5, HOSTS, ["10.0.0.3"])
    assert said.startswith("h1 (10.0.0.2) has not answered for 5 s")
    assert states.update(7, HOSTS, ["10.0.0.3"]) == []
    assert states.lost(7) == "h1 (10.0.0.2) has not answered for 7 s"
    assert states.update(20, HOSTS, HOSTS) == ["h1 (10.0.0.2) answers again, after 20 s"]
    assert states.lost(20) == ""


def test_a_host_that_ray_gives_up_and_that_starts_again():
    states = HostStates()
    states.update(0, HOSTS, HOSTS)
    states.update(5, HOSTS, ["10.0.0.3"])
    without = {"10.0.0.3": "h2"}
    assert states.update(50, without, without) == ["Ray has given up h1 (10.0.0.2), 50 s after its last answer"]
    assert states.update(60, without, without) == []
    assert "h1" in states.lost(60)
    assert states.update(90, HOSTS, HOSTS) == ["h1 (10.0.0.2) answers again, after 90 s"]


def test_a_host_that_leaves_in_order_is_told_at_once():
    states = HostStates()
    states.update(0, HOSTS, HOSTS)
    assert len(states.update(2, {}, [])) == 2


def test_only_open_doors_answer_and_none_is_waited_for_longer():
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but not listening
        ours, other = door.getsockname(), closed.getsockname()
        begun = time.monotonic()
        assert knock([ours, other, ("192.0.2.1", 9)], 0.5) == {ours}
        assert time.monotonic() - begun < 3
    assert knock([], 0.5) == set()


def test_a_head_at_whose_port_nothing_listens_is_lost_at_once_unless_its_state_is_kept():
    state, kept = HeadState(0, 40, is_kept=False), HeadState(0, 40, is_kept=True)
    assert state.update(1, Knock.CLOSED) == (None, None)
    assert state.update(3, Knock.CLOSED) == (None, "nothing listens at its port any more")
    kept.update(1, Knock.CLOSED)
    told, lost = kept.update(5, Knock.CLOSED)
    assert told == "the head has not answered for 5 s; the run ends if it is not back within 40 s"
    assert lost is None
    assert kept.update(20, Knock.ANSWERS) == ("the head answers again, after 20 s", None)


def test_a_silent_head_is_told_once_and_is_lost_before_ray_loses_patience():
    state = HeadState(0, 40, is_kept=False)
    said = [state.update(now, Knock.SILENT) for now in range(2, 42, 2)]
    assert [told is not None for told, _ in said] == [False, True, *[False] * 18]
    assert [lost for _, lost in said] == [*[None] * 19, "it has not answered for 40 s"]
    assert state.update(41, Knock.ANSWERS)[0] is not None
