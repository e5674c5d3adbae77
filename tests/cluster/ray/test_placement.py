"""Tests how many workers a job gets, and on which devices, for given options and resources. A job waits for nodes that will join."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.options import SessionOptions, WorkerOptions
from graphmill.cluster.ray import placement
from graphmill.cluster.ray.placement import Resources, place, resolve
from graphmill.cluster.ray.session import ray_session
from graphmill.core.errors import ConfigError


@pytest.mark.parametrize(
    ("asked", "cpus", "gpus", "expected"),
    [
        # No number of workers is given: as many workers as GPUs, or two workers on CPUs.
        (WorkerOptions(), 4, 0, (2, "cpu")),
        (WorkerOptions(), 4, 1, (1, "gpu")),
        (WorkerOptions(), 16, 8, (8, "gpu")),
        (WorkerOptions(), 4, 8, (4, "gpu")),  # a worker needs a CPU too
        (WorkerOptions(None, "gpu"), 4, 3, (3, "gpu")),
        (WorkerOptions(None, "cpu"), 4, 3, (2, "cpu")),
        (WorkerOptions(cpus_per_worker=4), 16, 8, (4, "gpu")),
        # A number of workers is given, and there are enough GPUs, or no GPUs.
        (WorkerOptions(2), 4, 2, (2, "gpu")),
        (WorkerOptions(2), 4, 4, (2, "gpu")),
        (WorkerOptions(2), 4, 0, (2, "cpu")),
        (WorkerOptions(2, "cpu"), 4, 8, (2, "cpu")),
        # A number of workers is given, but there are fewer GPUs: as many workers as GPUs.
        (WorkerOptions(2), 4, 1, (1, "gpu", "2 workers asked for, 1 GPU: training on 1 worker; set device to cpu to use CPUs")),
        (WorkerOptions(8), 4, 3, (3, "gpu", "8 workers asked for, 3 GPUs: training on 3 workers; set device to cpu to use CPUs")),
        # A number of workers is given, but there are fewer CPUs than GPUs. A worker needs one of each.
        (WorkerOptions(8), 2, 4, (2, "gpu", "8 workers asked for, 2 CPUs and 4 GPUs: training on 2 workers; each takes a CPU and a GPU")),
        (WorkerOptions(2), 1, 2, (1, "gpu", "2 workers asked for, 1 CPU and 2 GPUs: training on 1 worker; each takes a CPU and a GPU")),
        (WorkerOptions(8, min_workers=4), 2, 4, (8, "gpu", "4 workers asked for, 2 CPUs and 4 GPUs: training on 2 workers")),
        # Elastic runs start with at least `min_workers` workers.
        (WorkerOptions(4, min_workers=1), 4, 1, (4, "gpu")),
        (WorkerOptions(4, min_workers=2), 4, 0, (4, "cpu")),
        (WorkerOptions(4, min_workers=3), 4, 2, (4, "gpu", "3 workers asked for, 2 GPUs: training on 2 workers")),
        (WorkerOptions(min_workers=1), 8, 4, (4, "gpu")),
        (WorkerOptions(min_workers=4), 8, 2, (2, "gpu", "4 workers asked for, 2 GPUs: training on 2 workers; set device to cpu to use CPUs")),
        (WorkerOptions(min_workers=4), 8, 0, (4, "cpu")),
        (WorkerOptions(4, min_workers=1), 1, 0, (4, "cpu")),
    ],
)  # fmt: skip
def test_what_is_there_is_used_and_what_differs_is_said(asked, cpus, gpus, expected):
    resolved, note = resolve(asked, Resources(cpus, gpus))
    assert (resolved.num_workers, resolved.device) == expected[:2]
    assert (note or "").startswith(expected[2]) if expected[2:] else note is None, note
    assert resolve(resolved, Resources(cpus, gpus)) == (resolved, None), "resolved twice"


GB = 10**9


@pytest.mark.parametrize(
    ("asked", "gpus", "free_bytes", "data_bytes", "expected"),
    [
        # Without a cluster, there is one worker per GPU. Without GPUs, there is one process if the data fit into memory, or workers on CPUs.
        (WorkerOptions(), 2, 8 * GB, GB, (2, "gpu", "ray")),
        (WorkerOptions(), 1, 8 * GB, GB, (1, "gpu", "process")),
        (WorkerOptions(), 0, 8 * GB, GB, (1, "cpu", "process")),
        (WorkerOptions(device="cpu"), 2, 8 * GB, GB, (1, "cpu", "process")),
        (WorkerOptions(), 0, 8 * GB, 3 * GB, (2, "cpu", "ray")),
        (WorkerOptions(), 0, 8 * GB, None, (2, "cpu", "ray")),  # the data do not exist yet
        (WorkerOptions(1), 0, 8 * GB, 3 * GB, (1, "cpu", "process")),
        (WorkerOptions(2), 0, 8 * GB, GB, (2, "cpu", "ray")),
        (WorkerOptions(min_workers=1), 0, 8 * GB, GB, (2, "cpu", "ray")),
        (WorkerOptions(launcher="ray"), 0, 8 * GB, GB, (2, "cpu", "ray")),
        (WorkerOptions(1, launcher="ray"), 0, 8 * GB, GB, (1, "cpu", "ray")),
        (WorkerOptions(launcher="process"), 0, 8 * GB, 3 * GB, (1, "cpu", "process")),
        (WorkerOptions(launcher="process"), 4, 8 * GB, GB, (1, "gpu", "process")),
        # On a cluster, Ray always starts the workers.
        (WorkerOptions(), 0, None, GB, (2, "cpu", "ray")),
        (WorkerOptions(1), 0, None, GB, (1, "cpu", "ray")),
    ],
)
def test_one_process_is_chosen_where_it_is_enough(asked, gpus, free_bytes, data_bytes, expected):
    there = Resources(8, gpus, free_bytes)
    resolved, note = resolve(asked, there, data_bytes)
    assert (resolved.num_workers, resolved.device, resolved.launcher) == expected
    assert (note is not None) == (asked.num_workers is None and expected[1:] == ("cpu", "process"))
    assert resolve(resolved, there, data_bytes) == (resolved, None), "resolved twice"


@pytest.mark.parametrize("more", [{"num_workers": 2}, {"min_workers": 1}])
def test_one_process_is_one_worker(more):
    with pytest.raises(ConfigError, match=r"launcher: expected auto or ray for .* workers, got 'process'"):
        WorkerOptions(launcher="process", **more)


@pytest.mark.parametrize(
    ("asked", "there", "expected"),
    [
        (WorkerOptions(), Resources(16, 0, hosts=4), 4),
        (WorkerOptions(cpus_per_worker=4), Resources(16, 0, hosts=4), 4),
        (WorkerOptions(cpus_per_worker=8), Resources(16, 0, hosts=4), 2),
        (WorkerOptions(), Resources(16, 0, hosts=1), 2),
        (WorkerOptions(3), Resources(16, 0, hosts=4), 3),
        (WorkerOptions(min_workers=2), Resources(16, 0, hosts=4), 4),
        (WorkerOptions(), Resources(16, 3, hosts=8), 3),
    ],
)
def test_without_a_number_each_host_has_a_worker_unless_there_are_gpus(asked, there, expected):
    resolved, note = resolve(asked, there)
    assert resolved.num_workers == expected
    assert (note == "training on 4 workers: one for each host") == (expected == 4)
    assert resolve(resolved, there) == (resolved, None)


@pytest.mark.parametrize(
    ("asked", "total", "free", "said"),
    [
        (WorkerOptions(2), (1, 0), (1, 0), "expected room for 2 workers of 1 CPU, the cluster has 1 CPU and 0 GPUs"),
        (WorkerOptions(2), (4, 0), (1, 0), "of 4 CPUs and 0 GPUs in the cluster 1 CPU and 0 GPUs are free, the rest is in use"),
        (WorkerOptions(2, "gpu"), (4, 2), (4, 1), "expected room for 2 workers of 1 CPU and 1 GPU, of 4 CPUs and 2 GPUs"),
        (WorkerOptions(2, cpus_per_worker=3), (8, 0), (8, 0), "8 CPUs and 0 GPUs are free, but not together on hosts"),
        (WorkerOptions(1, label_selector=("zone=a",)), (8, 0), (8, 0), "but not together on hosts with the labels zone=a"),
    ],
)  # fmt: skip
def test_what_workers_wait_for_is_said(asked, total, free, said):
    assert said in placement.lacking_room(asked, Resources(*total), Resources(*free))


@pytest.mark.parametrize(
    ("asked", "cpus", "gpus", "said"),
    [
        (WorkerOptions(2, cpus_per_worker=4), 7, 0, r"expected 4 CPUs per worker \(8\), there are 7"),
        (WorkerOptions(2), 1, 0, r"expected a CPU per worker \(2\), there are 1; lower --workers"),
        (WorkerOptions(2), 0, 2, r"expected a CPU per worker \(1\), there are 0"),
        (WorkerOptions(2, "gpu"), 1, 2, r"expected a CPU per worker \(2\), there are 1; lower --workers"),
        (WorkerOptions(2, "cpu"), 1, 2, r"expected a CPU per worker \(2\), there are 1; lower --workers"),
        (WorkerOptions(2, "gpu"), 4, 1, "expected 2 GPUs, the cluster has 1; lower --workers or set device to cpu"),
        (WorkerOptions(2, "gpu"), 4, 0, "expected 2 GPUs, the cluster has 0; set device to cpu"),
        (WorkerOptions(None, "gpu"), 4, 0, "expected 1 GPU, the cluster has 0; set device to cpu"),
        (WorkerOptions(4, "gpu", min_workers=2), 4, 1, "expected 2 GPUs, the cluster has 1"),
    ],
)
def test_what_is_not_there_is_named(asked, cpus, gpus, said):
    with pytest.raises(ConfigError, match=said):
        resolve(asked, Resources(cpus, gpus))


@given(st.integers(1, 9) | st.none(), st.integers(1, 9) | st.none(), st.integers(1, 16), st.integers(0, 16))
def test_no_gpu_idles_beside_workers_on_cpus_and_none_is_asked_for_that_is_not_there(most, fewest, cpus, gpus):
    if most is not None and fewest is not None:
        fewest = min(fewest, most)
    asked = WorkerOptions(most, min_workers=fewest)
    try:
        resolved, note = resolve(asked, Resources(cpus, gpus))
    except ConfigError:
        assert gpus == 0
        assert cpus < (fewest or most or 2)
        return
    assert (resolved.device == "gpu") == (gpus > 0)
    usable = min(cpus, gpus) if gpus else cpus
    assert resolved.fewest <= usable, "Ray would wait for ever"
    assert (note is None) == (resolved.fewest >= asked.fewest)
    if most is None and gpus:
        assert resolved.num_workers == usable


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> list[Resources]:
    """The resources that a job finds on the cluster. Each time it looks, it gets the next entry of this list; the last entry stays."""
    looks: list[Resources] = []
    monkeypatch.setattr(placement, "resources_now", lambda: looks.pop(0) if len(looks) > 1 else looks[0])
    monkeypatch.setattr(placement, "may_grow", lambda: True)
    monkeypatch.setattr(placement, "_demand", lambda asked: print(f"demand for {asked.bundle}") or nullcontext())
    return looks


@pytest.mark.parametrize(
    ("looks", "asked", "expected", "waits"),
    [
        ([(2, 0)], WorkerOptions(2), (2, "cpu"), False),
        ([(1, 0), (1, 0), (2, 0)], WorkerOptions(2), (2, "cpu"), True),
        ([(8, 0), (8, 2)], WorkerOptions(2, "gpu"), (2, "gpu"), True),
        ([(8, 0), (8, 2)], WorkerOptions(2), (2, "cpu"), False),  # auto does not wait for GPUs
        ([(8, 1), (8, 2)], WorkerOptions(2), (1, "gpu"), False),
        ([(1, 0), (8, 2)], WorkerOptions(2), (2, "gpu"), True),
    ],
)
def test_who_joins_in_time_is_used(joining, looks, asked, expected, waits, capsys):
    joining.extend(Resources(*look) for look in looks)
    resolved = place(replace(asked, wait_s=2.0))
    assert (resolved.num_workers, resolved.device) == expected
    said = capsys.readouterr().out
    assert ("waiting up to 2 s" in said) == waits
    assert said.count("demand for") == waits, "an autoscaler would start no node"
    assert ("training on 1 worker;" in said) == (resolved.num_workers == 1)


@pytest.mark.parametrize("grows", [True, False])
def test_who_does_not_join_is_missed(joining, grows, monkeypatch, capsys):
    monkeypatch.setattr(placement, "may_grow", lambda: grows)
    joining.append(Resources(1, 0))
    with pytest.raises(ConfigError, match=r"expected a CPU per worker \(2\), there are 1"):
        place(WorkerOptions(2, wait_s=2.0))
    assert ("waiting" in capsys.readouterr().out) == grows


@pytest.mark.ray
def test_a_cluster_of_one_gpu_trains_on_it(capsys):
    """The GPU is only declared to Ray, which does not check that it exists."""
    with ray_session(SessionOptions(address="local", num_cpus=4, num_gpus=1, object_store_gb=80 / 1024)):
        resolved = place(WorkerOptions(2))
        assert (resolved.num_workers, resolved.device) == (1, "gpu")
        assert "2 workers asked for, 1 GPU: training on 1 worker;" in capsys.readouterr().out
        assert place(WorkerOptions(2, "cpu")) == WorkerOptions(2, "cpu", launcher="ray")
        with pytest.raises(ConfigError, match="expected 2 GPUs, the cluster has 1"):
            place(WorkerOptions(2, "gpu"))
