"""Tests the benchmark of many workers and their controller: how often it polls workers, and one small measurement."""

import json

import pytest

from benchmarks.controller import ControllerConfig, measure_driver, measure_watch
from graphmill.cluster.training.ray_train import poll_interval_s


def test_the_controller_asks_at_most_500_workers_a_second():
    assert poll_interval_s(2) == poll_interval_s(50) == 0.1
    assert [poll_interval_s(workers) for workers in (200, 1000)] == [0.4, 2.0]


@pytest.mark.slow
@pytest.mark.long
def test_a_driver_follows_what_1000_ranks_tell(tmp_path):
    cpu_s, _ = measure_driver(1000, ControllerConfig(epochs=3, epoch_s=0.02))
    assert 0 < cpu_s < 1
    assert 0 < measure_watch(20, ControllerConfig(polls=2)) < 1


@pytest.mark.ray
@pytest.mark.long
def test_the_measurement_leaves_its_table(shared_ray, tmp_path, monkeypatch):
    from benchmarks import controller

    words = ["controller", "--workers", "2", "20", "--epochs", "3", "--polls", "2", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", words)
    controller.main()
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [row[0] for row in rows] == [2, 20]
