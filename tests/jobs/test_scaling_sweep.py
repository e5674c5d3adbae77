"""A sweep: real points in processes of their own, what fails recorded, a second run that measures nothing, a report without a network."""

import csv
import json
import re
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from jobs import scaling_sweep
from jobs.reporting.scaling_report import html, summarise
from jobs.run.child_process import run_process
from jobs.scaling_sweep import SweepConfig, grid, key, load_points, sweep
from jobs.sweeps.scaling_point import PointSettings, settings_of
from storage.errors import ConfigError, FormatError
from tests.job_in_process import run_job

TOO_MANY_CHUNKS = 10**9


@pytest.mark.ray
@pytest.mark.long
def test_points_are_measured_once_failures_are_recorded_and_the_report_stands_alone(tmp_path, capsys) -> None:
    config = SweepConfig(
        workers=(1, 2),
        samplers=("neighbor", "random-partition"),
        chunks=TOO_MANY_CHUNKS,
        graph_nodes=2000,
        batch_size=32,
        fanouts=(4, 3),
        width=16,
        steps=3,
        epochs=1,
        local_reads=False,
        data_dir=str(tmp_path / "data"),
        out=str(tmp_path / "out"),
    )
    assert sweep(config) == 1  # for points failed
    out = tmp_path / "out"
    points = load_points(out / "points.jsonl")
    good = {p["settings"]["workers"]: p for p in points if p["status"] == "ok"}
    failed = [p for p in points if p["status"] != "ok"]
    assert sorted(good) == [1, 2], [p["cause"] for p in points]
    assert {p["settings"]["sampler"] for p in failed} == {"random-partition"}
    for point in failed:
        assert point["cause"].startswith("num_chunks: expected at most one per node (2000)"), point["cause"]
        assert "\n" not in point["cause"]
    for workers, point in good.items():
        assert point["steps"] == 3
        assert point["torch_threads"] == 1
        assert point["remote_requests_per_batch"] == (2 + 1) * 2  # hops and rows, of two owners
        assert point["local_bytes_per_batch"] == 0
        assert point["received_bytes_per_batch"] > point["nodes_per_batch"] * point["feature_bytes"]
        assert 20 <= point["roots_per_batch"] <= 32
        assert point["roots_per_s"] == pytest.approx(workers * 3 * point["roots_per_batch"] / point["seconds"])
        assert 0 < point["train_cpu_s_per_batch"] <= point["worker_cpu_s_per_step"]
        assert point["peak_bytes_per_worker"] > 50e6

    before = (out / "points.jsonl").read_bytes()
    assert sweep(config) == 1
    assert (out / "points.jsonl").read_bytes() == before, "nothing was to be measured again"
    assert "4 points, 4 of them measured before" in capsys.readouterr().out

    page = (out / "report.html").read_text()
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "1 raylets on one machine: no real network" in page
    assert page.count("<svg") >= 2
    assert "num_chunks" in page
    assert not re.search(r"<script|<img|\bsrc=|url\(|@import|https?://", page)
    assert re.findall(r"<link.*", page) == ['<link rel="icon" href="data:,"/>']
    with (out / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == [p["status"] for p in points]


def measured(workers: int, rate: float, **others) -> dict:
    values = {
        "roots_per_s": rate,
        "edges_per_s": 10 * rate,
        "step_s": 0.1,
        "own_cores": 1.5,
        "cores": 2,
        "ray_nodes": 1,
    }
    values |= {"wait_share": 0.1, "ray_nodes": 1}
    settings = asdict(PointSettings(workers=workers, **others))
    return {"settings": settings, "status": "ok", "cause": None, "raylets_on_one_machine": True, **values}


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> list[PointSettings]:
    """Points that cost nothing: those of two workers are interrupted, those of three fail; which ones were asked for."""
    asked: list[PointSettings] = []

    def measure_point(settings: PointSettings, config: SweepConfig, folder: Path) -> dict:
        asked.append(settings)
        if settings.workers == 2:
            raise KeyboardInterrupt
        bad = {"status": "failed", "cause": "a reason"} if settings.workers == 3 else {}
        return {**measured(settings.workers, 100.0), "settings": asdict(settings), **bad}

    monkeypatch.setattr(scaling_sweep, "measure_point", measure_point)
    monkeypatch.setattr(scaling_sweep, "prepare_graphs", lambda *_: None)
    return asked


def test_an_interrupted_sweep_keeps_what_is_finished(tmp_path: Path, without_ray: list[PointSettings]) -> None:
    config = SweepConfig(workers=(1, 2, 4), out=str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        sweep(config)
    assert [point["settings"]["workers"] for point in load_points(tmp_path / "points.jsonl")] == [1]
    assert (tmp_path / "report.html").exists()
    without_ray.clear()
    assert sweep(replace(config, workers=(1, 4))) == 0
    assert [settings.workers for settings in without_ray] == [4]


def test_failed_points_are_measured_again_on_demand(tmp_path: Path, without_ray: list[PointSettings], capsys) -> None:
    config = SweepConfig(workers=(1, 3), out=str(tmp_path))
    assert sweep(config) == 1
    assert "1 of 2 points failed" in capsys.readouterr().err
    assert sweep(config) == 1
    assert sweep(replace(config, retry=True)) == 1
    assert [settings.workers for settings in without_ray] == [1, 3, 3]
    assert len(load_points(tmp_path / "points.jsonl")) == 2


def test_efficiency_is_per_worker_against_the_fewest_workers_of_the_same_kind() -> None:
    points = [
        measured(1, 100.0),
        measured(2, 150.0),
        measured(2, 190.0, repeat=1),
        measured(2, 170.0, repeat=2),
        measured(4, 200.0, scaling="strong"),
    ]
    rows = {(row.settings["scaling"], row.settings["workers"]): row for row in summarise(points)}
    assert rows["weak", 1].values["efficiency"] == 1.0
    assert rows["weak", 2].values["efficiency"] == pytest.approx(0.85)  # the median, over twice the baseline
    assert rows["weak", 2].values["ceiling"] == pytest.approx(2 / 3)  # 1.5 cores a worker, 2 cores
    assert rows["strong", 4].values["efficiency"] == 1.0  # alone of its kind
    assert "3 raylets" not in html(points, {})


def test_the_grid_has_every_combination_once_and_repeats_last() -> None:
    points = grid(SweepConfig(workers=(1, 2), scalings=("weak", "strong"), repeats=2))
    assert len(points) == len(set(points)) == 8
    assert [point.repeat for point in points] == [0] * 4 + [1] * 4
    assert {key(point) for point in points} == {key(asdict(point)) for point in points}
    assert settings_of(json.loads(key(points[3]))) == points[3]


def test_strong_scaling_divides_the_roots() -> None:
    assert PointSettings(scaling="strong", workers=4, batch_size=512).roots_per_worker == 128
    assert PointSettings(scaling="weak", workers=4, batch_size=512).roots_per_worker == 512
    with pytest.raises(ConfigError, match="a root per worker"):
        _ = PointSettings(scaling="strong", workers=4, batch_size=3).roots_per_worker


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": ()}, "the grid is empty: give --workers"),
        ({"samplers": ("labor",)}, "sampler: expected one of neighbor, .*got 'labor'"),
        ({"models": ("gat",)}, "model: expected one of geco, .*got 'gat'"),
        ({"workers": (1, 3), "cpus": 2}, r"a CPU per worker \(3\), Ray has 2"),
        ({"placement": "store"}, "at least 2 nodes"),
        ({"fanouts": (4,)}, "one entry per layer"),
        ({"address": "auto", "nodes": (2,)}, "leave out --nodes"),
        ({"repeats": 0}, "the grid is empty: give --repeats"),
    ],
)
def test_bad_grids_are_refused(change: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        grid(replace(SweepConfig(), **change))


def test_bad_input_is_one_line_and_not_status_zero() -> None:
    done = run_job(scaling_sweep.main, ["--samplers", "labor"])
    assert done.returncode == 1
    assert done.stderr == "error: sampler: expected one of neighbor, random-partition, node2subgraph, got 'labor'\n"


def test_a_hung_point_is_ended_with_all_that_it_started(tmp_path) -> None:
    script = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
    )
    cause = run_process([sys.executable, "-c", script], tmp_path / "log", timeout_s=10)
    assert cause is not None
    assert cause.startswith("no result within 10 s")
    child = int((tmp_path / "log").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("import sys; print('error: no room', file=sys.stderr); sys.exit(1)", "no room"),
        ("raise ValueError('odd')", "ValueError: odd (exit status 1)"),
        ("import os; os.kill(os.getpid(), 9)", f"no output (exit status {-signal.SIGKILL})"),
        ("print('fine')", None),
    ],
)
def test_the_cause_is_what_the_point_said_last(tmp_path, script: str, cause: str | None) -> None:
    assert run_process([sys.executable, "-c", script], tmp_path / "log", timeout_s=60) == cause


def test_what_a_killed_point_leaves_behind_is_ended(tmp_path: Path) -> None:
    script = (
        "import os, subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        "print(p.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    cause = run_process([sys.executable, "-c", script], tmp_path / "log", timeout_s=60)
    child = int((tmp_path / "log").read_text())
    assert cause == f"{child} (exit status -9)"
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_an_unfinished_last_line_is_cut_off_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    line = json.dumps(measured(1, 100.0))
    path.write_text(line + "\n" + line[:40])
    assert len(load_points(path)) == 1
    assert path.read_text() == line + "\n"
    path.write_text("{\n" + line + "\n")
    with pytest.raises(FormatError, match="line 1: expected a point"):
        load_points(path)
