"""Tests properties of the function that assigns partitions to hosts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.serving.server_placement import Host, assign

HOSTS = tuple(Host(f"node{k}", f"h{k}", f"10.0.0.{k}") for k in range(6))
hosts = st.lists(st.sampled_from(HOSTS), min_size=1, unique=True)


def nodes(hosts):
    return [host.node_id for host in hosts]


@given(hosts, st.integers(1, 20), st.booleans(), st.data())
def test_partitions_that_any_host_can_have_are_spread_evenly_for_certain(hosts, num_partitions, shared, data):
    now = data.draw(st.lists(st.sampled_from([None, *nodes(HOSTS)]), min_size=num_partitions, max_size=num_partitions))
    held = [nodes(hosts) if shared else []] * num_partitions
    chosen = assign(hosts, held, now, can_fetch=not shared)
    load = Counter(chosen)
    assert None not in load
    assert max(load.values()) - min(load[host] for host in hosts) <= 1
    assert assign(hosts, held, nodes(chosen), can_fetch=not shared) == chosen, "what is even moves again"


@given(hosts, st.integers(1, 20), st.booleans())
def test_a_hosts_partitions_follow_each_other_where_any_host_can_have_them(hosts, num_partitions, shared):
    held = [nodes(hosts) if shared else []] * num_partitions
    chosen = assign(hosts, held, [None] * num_partitions, can_fetch=not shared)
    assert [hosts.index(host) for host in chosen] == sorted(hosts.index(host) for host in chosen)


@given(hosts, st.lists(st.sets(st.sampled_from(nodes(HOSTS))), min_size=1, max_size=12), st.booleans())
def test_a_partition_is_served_where_its_files_are(hosts, held, can_fetch):
    chosen = assign(hosts, held, [None] * len(held), can_fetch=can_fetch)
    alive = set(nodes(hosts))
    for holders, host in zip(held, chosen, strict=True):
        if holders & alive:
            assert host.node_id in holders
        else:
            assert (host is not None) == can_fetch


def test_a_host_that_is_back_has_its_partitions_again_and_the_others_stay():
    h0, h1 = HOSTS[:2]
    held = [{"node0"}, {"node0", "node1"}]
    assert assign([h0], held, ["node0", "node1"], can_fetch=False) == (h0, h0)
    assert assign([h0, h1], held, ["node0", "node0"], can_fetch=False) == (h0, h1)


def test_hosts_with_gpus_serve_only_what_no_other_can():
    plain, gpu = HOSTS[0], Host("gpu", "g", "10.0.0.9", has_gpus=True)
    assert assign([plain, gpu], [[], []], [None] * 2, can_fetch=True) == (plain, plain)
    assert assign([plain, gpu], [["gpu", "node0"], ["gpu"]], [None] * 2, can_fetch=True) == (plain, gpu)
    assert assign([gpu], [[]], [None], can_fetch=True) == (gpu,)


@pytest.mark.parametrize("lost", range(4))
def test_what_a_lost_host_had_goes_to_the_least_loaded(lost):
    hosts = HOSTS[:4]
    before = assign(hosts, [[]] * 8, [None] * 8, can_fetch=True)
    left = [host for host in hosts if host != HOSTS[lost]]
    after = assign(left, [[]] * 8, nodes(before), can_fetch=True)
    assert sorted(Counter(after).values()) == [2, 3, 3]
    stay = [old == new for old, new in zip(before, after, strict=True) if old in left]
    assert all(stay)
