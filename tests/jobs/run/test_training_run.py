"""Tests the lines that a training job prints about its run: the number of steps, and how the run ended."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from graphmill.cluster.runs.run_store import RunStore
from graphmill.jobs.cli.progress import progress
from graphmill.jobs.config.config import RunOptions
from graphmill.jobs.resolve.resolve import step_warnings
from graphmill.jobs.run import training_run
from graphmill.jobs.run.training_run import follow, print_end

SUMMARY = {
    "metric": "accuracy",
    "scores": {"valid": 0.5, "test": 0.5},
    "baselines": {},
    "best_epoch": 3,
    "epochs": 9,
    "num_parameters": 10,
    "workers": 1,
    "device": "cpu",
    "nodes_per_s": 1.0,
    "edges_per_s": 1.0,
    "wait_share": 0.0,
    "train_s": 1.0,
    "wall_s": 2.0,
    "has_report": True,
}


@pytest.mark.parametrize(
    ("num_steps", "num_warmup_steps", "warned"),
    [
        (40, 0, ["40 optimizer steps in all"]),
        (199, 50, ["199 optimizer steps in all"]),
        (200, 199, []),
        (5000, 0, []),
        (5000, 5000, ["the warm-up of 5,000 optimizer steps is no shorter than the run of 5,000"]),
        (40, 60, ["40 optimizer steps in all", "the warm-up of 60 optimizer steps is no shorter than the run of 40"]),
    ],
)
def test_few_steps_and_a_long_warm_up_are_warned_of_in_one_line_each(
    num_steps, num_warmup_steps, warned, capsys, monkeypatch
):
    monkeypatch.setattr("sys.argv", ["graphmill train_nodes"])
    said = step_warnings(num_steps, num_warmup_steps)
    assert [line.startswith(start) for line, start in zip(said, warned, strict=True)] == [True] * len(warned)
    with progress("training") as bar:
        follow(bar, 4, "accuracy", "nodes")({"kind": "planned", "steps": num_steps, "warmup_steps": num_warmup_steps})
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warnings == [f"warning: {line}" for line in said]


def test_an_early_stop_is_told_with_its_reason_and_how_to_go_on(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["graphmill train_nodes"])
    print_end(SUMMARY, RunStore(str(tmp_path)))
    assert "stopped early" not in capsys.readouterr().out
    early = {"epoch": 8, "why": "no better valid accuracy in 5 validations (--fit.patience 5)"}
    print_end(SUMMARY | {"stopped_early": early}, RunStore(str(tmp_path)))
    out = capsys.readouterr().out
    assert "peak memory" not in out
    assert f"best epoch 4 of 9, stopped early at epoch 9: {early['why']}, 10 parameters" in out
    assert "--fit.epochs 18 --fit.patience none" in out
    print_end(SUMMARY | {"workers": 2, "peak_bytes": 1_234_000_000}, RunStore(str(tmp_path)))
    assert "10 parameters, 2 workers on cpu, peak memory 1.23 GB each\n" in capsys.readouterr().out


def test_small_scores_are_not_printed_as_0(capsys: Any, tmp_path: Path) -> None:
    names = [f"target {number} " + "x" * 90 for number in range(12)]
    scores = {f"mae_{name}": 0.00002345 for name in names}
    task = {"names": names, "deviation": [1.0] * 12}
    more = {"task": task, "all_scores": {"valid": scores, "test": scores}, "baselines": {}}
    print_end(SUMMARY | {"metric": "mae", "scores": {"valid": 0.0, "test": 1e-5}, **more}, RunStore(str(tmp_path)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["model", "0.0000", "1e-05"]
    assert lines[3].split() == ["mae", "of", "target", "0", "x" * 90, "2.35e-05", "2.35e-05"]
    assert lines[13] == "mae of all 12: summary.json, and the report"


@pytest.mark.parametrize("score", [0.5, 12345.678, 702309.15194, -1e12, 3e18])
def test_printed_scores_never_run_together(score: float, capsys: Any, tmp_path: Path) -> None:
    scores = {"valid": score, "test": score}
    longest = {"constant": scores, "composition": None}  # its printed name has 28 characters
    print_end(SUMMARY | {"metric": "mae", "scores": scores, "baselines": longest}, RunStore(str(tmp_path)))
    head, model, constant = capsys.readouterr().out.splitlines()[1:4]
    assert head.split() == ["mae", "valid", "test"]
    assert model.split() == ["model", f"{score:.4f}", f"{score:.4f}"]
    assert constant.split() == ["mean", "of", "the", "training", "targets", f"{score:.4f}", f"{score:.4f}"]
    assert {len(head), len(model), len(constant)} == {len(head)}


def test_a_run_without_a_report_names_none(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    def without_matplotlib(*_: object) -> NoReturn:
        raise ModuleNotFoundError("No module named 'matplotlib'")

    monkeypatch.setattr(training_run, "run_page", without_matplotlib)
    place = RunStore(str(tmp_path / "run"))
    with training_run.open_run(place, RunOptions(), {}) as run:
        pass
    print_end(SUMMARY | {"has_report": run.has_report}, place)
    out, error = capsys.readouterr()
    assert error == "no report: No module named 'matplotlib'\n"
    assert "report.html" not in out
    assert "\npredict    " in out
