"""Tests properties of the function that assigns partitions to hosts."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.options import ServerOptions, WorkerOptions
from graphmill.cluster.serving.server_placement import Host, assign, has_labels, preferred, room_bytes

HOSTS = tuple(Host(f"node{k}", f"h{k}", f"10.0.0.{k}") for k in range(6))
hosts = st.lists(st.sampled_from(HOSTS), min_size=1, unique=True)


def nodes(hosts):
    return [host.node_id for host in hosts]


@given(hosts, st.integers(1, 20), st.booleans(), st.data())
def test_partitions_that_any_host_can_have_are_spread_evenly_for_certain(hosts, num_partitions, shared, data):
    now = data.draw(st.lists(st.sampled_from([None, *nodes(HOSTS)]), min_size=num_partitions, max_size=num_partitions))
    held = [nodes(hosts) if shared else []] * num_partitions
    chosen = assign([hosts], held, now, can_fetch=not shared)
    load = Counter(chosen)
    assert None not in load
    assert max(load.values()) - min(load[host] for host in hosts) <= 1
    assert assign([hosts], held, nodes(chosen), can_fetch=not shared) == chosen, "what is even moves again"


@given(hosts, st.integers(1, 20), st.booleans())
def test_a_hosts_partitions_follow_each_other_where_any_host_can_have_them(hosts, num_partitions, shared):
    held = [nodes(hosts) if shared else []] * num_partitions
    chosen = assign([hosts], held, [None] * num_partitions, can_fetch=not shared)
    assert [hosts.index(host) for host in chosen] == sorted(hosts.index(host) for host in chosen)


@given(hosts, st.lists(st.sets(st.sampled_from(nodes(HOSTS))), min_size=1, max_size=12), st.booleans())
def test_a_partition_is_served_where_its_files_are(hosts, held, can_fetch):
    chosen = assign([hosts], held, [None] * len(held), can_fetch=can_fetch)
    alive = set(nodes(hosts))
    for holders, host in zip(held, chosen, strict=True):
        if holders & alive:
            assert host.node_id in holders
        else:
            assert (host is not None) == can_fetch


def test_a_host_that_is_back_has_its_partitions_again_and_the_others_stay():
    h0, h1 = HOSTS[:2]
    held = [{"node0"}, {"node0", "node1"}]
    assert assign([[h0]], held, ["node0", "node1"], can_fetch=False) == (h0, h0)
    assert assign([[h0, h1]], held, ["node0", "node0"], can_fetch=False) == (h0, h1)


@pytest.mark.parametrize("lost", range(4))
def test_what_a_lost_host_had_goes_to_the_least_loaded(lost):
    hosts = HOSTS[:4]
    before = assign([hosts], [[]] * 8, [None] * 8, can_fetch=True)
    left = [host for host in hosts if host != HOSTS[lost]]
    after = assign([left], [[]] * 8, nodes(before), can_fetch=True)
    assert sorted(Counter(after).values()) == [2, 3, 3]
    stay = [old == new for old, new in zip(before, after, strict=True) if old in left]
    assert all(stay)


GB = 10**9
HEAD = Host("head", "head", "10.0.0.1", cpus=16, memory_bytes=64 * GB, is_head=True)
GPUS = [Host(f"gpu{k}", f"gpu{k}", f"10.0.1.{k}", cpus=32, gpus=4, memory_bytes=256 * GB) for k in range(8)]
CPUS = [Host(f"cpu{k}", f"cpu{k}", f"10.0.2.{k}", cpus=32, memory_bytes=128 * GB) for k in range(4)]
STORES = [
    Host(f"store{k}", f"store{k}", f"10.0.3.{k}", cpus=8, memory_bytes=512 * GB, labels={"role": "storage"})
    for k in range(2)
]
FULL = [replace(host, cpus=host.gpus) for host in GPUS]  # the workers take all CPUs
BIG = replace(HEAD, cpus=96, gpus=8)
EMPTY_HEAD = replace(HEAD, cpus=0)
ANY, DEFAULT = WorkerOptions(), ServerOptions()
ON_STORES = ServerOptions(label_selector=("role=storage",))


def placed(hosts, num_partitions, workers=ANY, options=DEFAULT, needs=(), now=None, files=()):
    """The number of partitions of each host, by name. All hosts can fetch all partitions."""
    chosen = assign(
        preferred(hosts, workers, options),
        [files] * num_partitions,
        now or [None] * num_partitions,
        can_fetch=True,
        needs=needs,
        room=room_bytes(hosts, workers),
    )
    return {name: count for name, count in sorted(Counter(host and host.name for host in chosen).items(), key=str)}


def each(hosts, count):
    return {host.name: count for host in hosts}


@pytest.mark.parametrize(
    ("hosts", "num_partitions", "workers", "options", "expected"),
    [
        # A head with CPUs and eight GPU nodes
        ([HEAD, *GPUS], 8, ANY, DEFAULT, each(GPUS, 1)),
        ([HEAD, *GPUS], 64, ANY, DEFAULT, each(GPUS, 8)),
        ([HEAD, *GPUS], 4, ANY, DEFAULT, {"gpu0": 1, "gpu2": 1, "gpu4": 1, "gpu6": 1}),
        ([EMPTY_HEAD, *GPUS], 8, ANY, DEFAULT, each(GPUS, 1)),
        ([HEAD, *GPUS], 9, WorkerOptions(device="cpu"), DEFAULT, each([HEAD, *GPUS], 1)),
        # The workers take all CPUs of the GPU nodes: other nodes serve, but not the head
        ([HEAD, *FULL], 8, ANY, DEFAULT, each(FULL, 1)),
        ([HEAD, *FULL, *CPUS], 8, ANY, DEFAULT, each(CPUS, 2)),
        ([HEAD, *GPUS], 8, WorkerOptions(cpus_per_worker=8), DEFAULT, each(GPUS, 1)),
        # Two storage nodes: with the selector alone
        ([HEAD, *GPUS, *STORES], 8, ANY, DEFAULT, each(GPUS, 1)),
        ([HEAD, *GPUS, *STORES], 64, ANY, ON_STORES, each(STORES, 32)),
        ([HEAD, *GPUS], 8, ANY, ON_STORES, {None: 8}),
        # Three kinds of nodes, by the device of the workers and by their labels
        ([EMPTY_HEAD, *CPUS, *GPUS], 8, ANY, DEFAULT, each(GPUS, 1)),
        ([EMPTY_HEAD, *CPUS, *FULL], 8, ANY, DEFAULT, each(CPUS, 2)),
        ([EMPTY_HEAD, *CPUS], 8, ANY, DEFAULT, each(CPUS, 2)),
        ([HEAD, *CPUS, *STORES], 8, WorkerOptions(label_selector=("role=storage",)), DEFAULT, each(STORES, 4)),
        # One big machine, and a cluster that has only its head yet
        ([BIG], 64, ANY, DEFAULT, {"head": 64}),
        ([EMPTY_HEAD], 8, ANY, DEFAULT, {"head": 8}),
    ],
)
def test_partitions_go_where_workers_read_them(hosts, num_partitions, workers, options, expected):
    assert placed(hosts, num_partitions, workers, options) == expected


def test_partitions_leave_the_head_when_nodes_join():
    """A cluster that an autoscaler starts from its head alone."""
    workers = WorkerOptions(device="gpu")
    now = [HEAD.node_id] * 8
    for nodes_there in (2, 4, 8):
        hosts = [HEAD, *GPUS[:nodes_there]]
        chosen = assign(preferred(hosts, workers, ServerOptions()), [()] * 8, now, can_fetch=True)
        assert Counter(chosen) == dict.fromkeys(GPUS[:nodes_there], 8 // nodes_there)
        now = [host.node_id for host in chosen if host]


def test_files_on_disks_stay_where_they_are_but_where_all_hosts_see_them_workers_hosts_serve():
    assert placed([HEAD, *GPUS], 8, files=["head"]) == {"head": 8}
    assert placed([HEAD, *GPUS], 8, files=nodes([HEAD, *GPUS])) == each(GPUS, 1)
    assert placed([HEAD, *GPUS, *STORES], 8, options=ON_STORES, files=["head"]) == each(STORES, 4)


def test_memory_is_counted_before_partitions_are_placed():
    # Each GPU node has room for 128 GB beside its workers, the head for 0.9 of its 64 GB.
    assert placed([HEAD, *GPUS[:2]], 8, needs=[30 * GB] * 8) == each(GPUS[:2], 4)
    assert placed([HEAD, *GPUS[:2]], 9, needs=[30 * GB] * 9) == {"gpu0": 4, "gpu1": 4, "head": 1}
    assert placed([HEAD, *GPUS[:2]], 10, needs=[30 * GB] * 10) == {"gpu0": 4, "gpu1": 4, "head": 1, None: 1}
    assert placed([HEAD, *GPUS[:2], *CPUS[:1]], 12, needs=[30 * GB] * 12) == {
        "cpu0": 3,
        "gpu0": 4,
        "gpu1": 4,
        "head": 1,
    }
    assert placed([HEAD, *GPUS[:2]], 99) == {"gpu0": 50, "gpu1": 49}, "mapped files need no memory"


@pytest.mark.parametrize(
    ("selector", "labels", "fits"),
    [
        ({"kind": "H100"}, {"kind": "H100"}, True),
        ({"kind": "H100"}, {}, False),
        ({"kind": "!H100"}, {"kind": "H100"}, False),
        ({"kind": "!H100"}, {}, True),
        ({"kind": "in(H100, H200)"}, {"kind": "H200"}, True),
        ({"kind": "in(H100,H200)"}, {"kind": "A100"}, False),
        ({"kind": "!in(H100,H200)"}, {"kind": "A100"}, True),
        ({"kind": "H100", "zone": "a"}, {"kind": "H100", "zone": "b"}, False),
    ],
)
def test_a_selector_is_read_as_ray_reads_it(selector, labels, fits):
    assert has_labels(replace(HEAD, labels=labels), selector) == fits
