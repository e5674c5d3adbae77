"""Which device workers get, and that a job waits for a cluster's nodes."""

import pytest

from cluster import trainer
from cluster.trainer import WorkerOptions, choose_device
from storage.errors import ConfigError


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(CPUs, GPUs) that the cluster has at each look; the last stays."""
    looks: list[tuple[int, int]] = []
    monkeypatch.setattr(trainer, "_resources", lambda: looks.pop(0) if len(looks) > 1 else looks[0])
    monkeypatch.setattr(trainer, "may_grow", lambda: True)
    monkeypatch.setattr(trainer, "_JOIN_S", 2.0)
    return looks


@pytest.mark.parametrize(
    ("looks", "options", "expected"),
    [
        ([(2, 0)], WorkerOptions(2), "cpu"),
        ([(1, 0), (1, 0), (2, 0)], WorkerOptions(2), "cpu"),
        ([(1, 0)], WorkerOptions(2, min_workers=1), "cpu"),
        ([(8, 0), (8, 2)], WorkerOptions(2, "gpu"), "gpu"),
        ([(8, 0), (8, 2)], WorkerOptions(2), "cpu"),  # auto does not wait for GPUs that may never come
        ([(1, 0), (8, 2)], WorkerOptions(2), "gpu"),
    ],
)
def test_who_joins_in_time_is_used(joining, looks, options, expected, capsys):
    joining.extend(looks)
    assert choose_device(options) == expected
    waited = expected == "gpu" or looks == [(1, 0), (1, 0), (2, 0)]
    assert ("waiting up to 2 s" in capsys.readouterr().out) == waited


@pytest.mark.parametrize("grows", [True, False])
def test_who_does_not_join_is_missed(joining, grows, monkeypatch, capsys):
    monkeypatch.setattr(trainer, "may_grow", lambda: grows)
    joining.append((1, 0))
    with pytest.raises(ConfigError, match=r"expected a CPU per worker \(2\), the cluster has 1"):
        choose_device(WorkerOptions(2))
    assert ("waiting" in capsys.readouterr().out) == grows
