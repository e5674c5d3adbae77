"""What the user is told of a host that falls silent, is given up, or comes back; and the knocking itself."""

import socket
import time

from cluster.host_watch import HostStates, knock

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
        closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
        ours, other = door.getsockname(), closed.getsockname()
        begun = time.monotonic()
        assert knock([ours, other, ("192.0.2.1", 9)], 0.5) == {ours}
        assert time.monotonic() - begun < 3
    assert knock([], 0.5) == set()
