"""Tests a sweep: the planned trials and refused options; trials that end, fail, hang, are stopped and continued. Real trials equal separate runs."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
import yaml

from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.ray.placement import Resources
from graphmill.core.errors import ConfigError, FormatError, GraphmillError
from graphmill.jobs.cli.child_process import cause_of, kill_tagged, new_tag, start
from graphmill.jobs.config.config import config_tree, read_config, read_recipe
from graphmill.jobs.config.registry import MODELS
from graphmill.jobs.plan.cost_model import fit_rates, load_points
from graphmill.jobs.records.run_record import read_run
from graphmill.jobs.sweep import read_options, sweep
from graphmill.jobs.sweeps import trials as trials_module
from graphmill.jobs.sweeps import tuned_baselines as classic_module
from graphmill.jobs.sweeps.design import SweepDesign, SweepOptions, at_once, design_sweep, metric_of, metrics_of
from graphmill.jobs.sweeps.pages import print_table
from graphmill.jobs.sweeps.scaling import measures
from graphmill.jobs.sweeps.search import Search
from tests.runs import curve

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = [
    "--data.nodes",
    "600",
    "--data.partitions",
    "1",
    "--workers",
    "1",
    "--model.width",
    "8",
    "--model.num_layers",
    "1",
    "--fit.schedule",
    "constant",
    "--fit.checkpoint_every",
    "1",
    "--ray.object_store_gb",
    "0.2",
]


def plan(after: str = "", **options: Any) -> SweepDesign:
    return design_sweep(SweepOptions(**options), after.split())


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(REPOSITORY / "jobs" / "sweep.py"), "--baseline", "none", *arguments]


def slots(made: SweepDesign) -> list[dict[str, str]]:
    return [dict(slot.values) | ({} if slot.seed is None else {"seed": str(slot.seed)}) for slot in made.slots()]


# ---- planned trials


def test_every_combination_runs_once_with_each_seed_and_seeds_come_last() -> None:
    made = plan(grid=("model.width=8,16", "model.num_layers=1,2"), seeds=(0, 5))
    assert slots(made)[:4] == [
        {"model.width": "8", "model.num_layers": "1", "seed": "0"},
        {"model.width": "8", "model.num_layers": "2", "seed": "0"},
        {"model.width": "16", "model.num_layers": "1", "seed": "0"},
        {"model.width": "16", "model.num_layers": "2", "seed": "0"},
    ]
    assert [one["seed"] for one in slots(made)] == ["0"] * 4 + ["5"] * 4
    assert len(slots(plan(workers=(1, 2), nodes=(2000, 4000), after="--fit.epochs 3"))) == 4


def test_a_trial_is_the_run_of_the_same_flags_and_its_recipe_says_all_of_it(tmp_path: Path) -> None:
    made = plan(
        grid=("sampler.fanouts=4 3,5 5", "model.skip=yes,no", "--fit.clip-norm= none , 2.0"),
        seeds=(7,),
        after="--model.num_layers 2 --sampler neighbor",
    )
    first = next(made.slots())
    config = made.config(first.values, first.seed)
    assert (config.sampler.options.fanouts, config.model.options.skip, config.fit.clip_norm) == ((4, 3), True, None)
    assert (config.model.options.num_layers, config.fit.seed) == (2, 7)
    said = {
        "model": {"num_layers": 2, "skip": True},
        "sampler": {"name": "neighbor", "fanouts": [4, 3]},
        "fit": {"clip_norm": None, "seed": 7},
    }
    assert config == read_config(config_tree("nodes", said))
    file = tmp_path / "trial.yaml"
    file.write_text(yaml.safe_dump(config.tree(), sort_keys=False))
    assert read_config(config_tree("nodes", read_recipe(str(file)))) == config


@pytest.mark.parametrize(("kind", "model"), [(kind, model) for kind, models in MODELS.items() for model in models])
def test_every_model_can_be_swept(kind: str, model: str) -> None:
    made = plan(kind=kind, grid=(f"model={model}",), draw=("fit.learning_rate=0.1..0.5", "workers=2..3"), trials=1)
    config = made.config({"model": model, "fit.learning_rate": 0.5, "workers": 3}, None)
    assert (config.model.name, config.fit.learning_rate, config.workers.num_workers) == (model, 0.5, 3)
    assert metrics_of(config)[0] == ("valid_mae" if kind == "graphs" else "valid_accuracy")


def test_strong_scaling_shares_the_batch_and_weak_scaling_keeps_it() -> None:
    neighbor = "--sampler neighbor --sampler.batch_size 512 --fit.epochs 3"
    made = plan(workers=(1, 4), scaling=("weak", "strong"), after=neighbor)
    sizes = [made.config(slot.values, None).sampler.options.batch_size for slot in made.slots()]
    assert sizes == [512, 512, 512, 128]
    chunks = plan(workers=(4,), scaling=("strong",), after="--sampler.num_chunks 3 --fit.epochs 3")
    assert chunks.configs()[0].sampler.options.num_chunks == 12
    with pytest.raises(ConfigError, match=r"at least one per worker \(4\), got 3"):
        plan(workers=(4,), scaling=("strong",), after="--sampler neighbor --sampler.batch_size 3 --fit.epochs 3")
    with pytest.raises(ConfigError, match="has no batch to share"):
        plan(workers=(4,), scaling=("strong",), after="--fit.epochs 3")


def test_where_scaling_is_measured_a_run_is_validated_at_its_end_alone() -> None:
    assert plan(workers=(1,), after="--fit.epochs 4").configs()[0].fit.eval_every == 4
    assert plan(workers=(1,), after="--fit.epochs 4 --fit.eval_every 3").configs()[0].fit.eval_every == 3
    for after in ("--fit.epochs 2", "--fit.epochs 9 --fit.eval_every 1"):
        with pytest.raises(ConfigError, match="an epoch without validation between the first and the last"):
            plan(workers=(1,), after=after)


def test_a_sweep_compares_estimates_only_where_it_is_told_to() -> None:
    def metric(after: str, named: str | None = None) -> str:
        made = plan(grid=("model.width=8,16",), metric=named, after=after)
        return metric_of(made, made.configs())

    with pytest.raises(ConfigError, match=r"scores are estimates .* pass --metric valid_estimate_accuracy"):
        metric("--evaluation.chunks 4")
    assert metric("--evaluation.chunks 4", "valid_estimate_accuracy") == "valid_estimate_accuracy"
    assert metric("--evaluation.chunks 4 --evaluation.select_by estimate") == "valid_estimate_accuracy"
    with pytest.raises(ConfigError, match="expected one of valid_estimate_accuracy"):
        metric("--evaluation.chunks 4", "valid_accuracy")


ONE = {"grid": ("model.width=8,16",)}
BAD = [
    ({}, "nothing is tried"),
    ({"grid": ("model.widht=8,16",)}, "unknown option --model.widht of --model geco; perhaps --model.width"),
    ({"grid": ("widht=8,16",)}, "unknown option --widht; perhaps --embeddings.width or --model.width"),
    ({"draw": ("model.widht=8..16",), "trials": 2}, "unknown option --model.widht"),
    ({"grid": ("model.width=",)}, "expected an option and a list"),
    ({"grid": ("model.width",)}, "expected an option and a list"),
    ({"grid": ("model.width=8,,16",)}, "got an empty one"),
    ({"grid": ("model.width=8,8",)}, "each value once"),
    ({"grid": ("model.width=8", "model.width=16")}, "--model.width is tried twice"),
    ({"grid": ("fit.seed=1,2",), "seeds": (1,)}, "--fit.seed is tried twice"),
    ({"workers": (1, 2), "grid": ("workers.num_workers=1",)}, "--workers.num_workers is tried twice"),
    ({"grid": ("model.width=8,many",)}, "trial with model.width=many: --model.width: expected an integer, got 'many'"),
    ({"grid": ("fit.precision=fp8",)}, "expected one of auto, float32, bfloat16, got 'fp8'"),
    ({"grid": ("model.skip=perhaps",)}, "--model.skip: expected yes or no, got 'perhaps'"),
    ({"grid": ("model=perceptron",)}, "model: expected one of geco"),
    ({"grid": ("sampler=neighbor",), "after": "--sampler.fanouts 4 --model.num_layers 3"}, "fanouts needs one entry per layer"),
    ({"grid": ("run.dir=a,b",)}, "the sweep sets --run.dir and --run.resume"),
    ({**ONE, "after": "--run.dir here"}, "the sweep sets --run.dir and --run.resume"),
    ({**ONE, "after": "--run.resume=there"}, "the sweep sets --run.dir and --run.resume"),
    ({**ONE, "after": "--baseline gcn"}, "set --baseline before the --"),
    ({**ONE, "after": "--no-such-flag"}, "unknown option --no_such_flag"),
    ({**ONE, "after": "stray"}, "unexpected 'stray'"),
    ({**ONE, "after": "--model.width 4"}, "--model.width is tried, and stands after --"),
    ({**ONE, "recipe": "nowhere.yaml"}, "nowhere.yaml: expected a recipe file"),
    ({"draw": ("fit.learning_rate=1e-2..1e-4",), "trials": 2}, "expected the lower bound first, got 1e-2 > 1e-4"),
    ({"draw": ("fit.weight_decay=0..1e-2:log",), "trials": 2}, "a logarithmic range begins above 0, got 0"),
    ({"draw": ("fit.learning_rate=1e-4..1e-2:exp",), "trials": 2}, "expected LOW..HIGH or LOW..HIGH:log"),
    ({"draw": ("fit.learning_rate=1e-4",), "trials": 2}, "expected LOW..HIGH"),
    ({"draw": ("fit.learning_rate=a..b",), "trials": 2}, "expected numbers, got 'a'"),
    ({"draw": ("fit.learning_rate=nan..inf",), "trials": 2}, "expected numbers, got 'nan'"),
    ({"draw": ("fit.learning_rate=-1..1",), "trials": 2}, "learning_rate: expected more than 0, got -1.0"),
    ({"draw": ("model.width=8..16.5",), "trials": 2}, "--model.width takes whole numbers"),
    ({"draw": ("model.width=8.5..16",), "trials": 2}, "--model.width: expected an integer, got '8.5'"),
    ({"draw": ("model.skip=1..2",), "trials": 2}, "--model.skip takes no numbers of a range"),
    ({"draw": ("model.width=8..16",)}, "expected how often to draw; set trials"),
    ({"draw": ("model.width=8..16",), "trials": 0}, "trials: expected at least 1, got 0"),
    ({**ONE, "trials": 3}, "trials: nothing is drawn"),
    ({**ONE, "scaling": ("strong",)}, "scaling: expected worker counts"),
    ({**ONE, "metric": "valid_beauty"}, "metric: expected one of valid_accuracy, valid_loss, train_loss, got 'valid_beauty'"),
    ({**ONE, "metric": "valid_mae"}, "metric: expected one of valid_accuracy"),
    ({**ONE, "at_once": 0}, "at_once: expected at least 1, got 0"),
    ({**ONE, "prune_after": 0}, "prune_after: expected at least 1, got 0"),
    ({**ONE, "trial_timeout_s": 0.0}, "trial_timeout_s: expected more than 0"),
    ({**ONE, "cpus": 1}, "a trial's workers: expected a CPU per worker (2), there are 1"),
    ({**ONE, "cpus": 4, "at_once": 3}, "at_once: expected at most 2 (4 CPUs, 2 workers a trial), got 3"),
    ({"workers": (1, 9), "cpus": 2, "after": "--fit.epochs 3"}, "expected a CPU per worker (9), there are 2"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_input_is_refused_before_anything_is_written(
    options: dict, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = str(options.pop("after", "")).split() if "after" in (options := dict(options)) else []
    with pytest.raises(GraphmillError) as caught:
        sweep(SweepOptions(**options), words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_bad_input_is_one_line_and_not_status_zero(tmp_path: Path) -> None:
    for arguments, status in (
        ((), 1),
        (["--grid", "widht=1,2"], 2),
        (["--trials", "many"], 2),
        (["--grid", "a=1", "--grid", "b=2"], 2),
    ):
        done = subprocess.run(command(*arguments), cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == status
        assert re.fullmatch(r"error: .*\n", done.stderr), done.stderr
    assert not list(tmp_path.iterdir())


def test_how_many_trials_run_together() -> None:
    two = WorkerOptions(2)
    assert at_once(None, [two], Resources(8, 0)) == 4
    assert at_once(3, [two], Resources(8, 0)) == 3
    assert at_once(None, [two], Resources(16, 4)) == 2
    # One trial at a time, because a trial takes the only GPU.
    assert at_once(None, [two], Resources(16, 1)) == 1
    assert at_once(None, [WorkerOptions(2, "cpu")], Resources(16, 4)) == 8
    assert at_once(None, [WorkerOptions(2, "cpu"), two], Resources(16, 4)) == 2
    assert at_once(None, [WorkerOptions()], Resources(16, 0)) == 8
    assert at_once(None, [WorkerOptions()], Resources(16, 4)) == 1  # each trial takes all four GPUs
    assert at_once(None, [WorkerOptions(1)], Resources(16, 4)) == 4
    assert at_once(None, [WorkerOptions(4, min_workers=1)], Resources(2, 0)) == 1
    with pytest.raises(ConfigError, match=r"at most 2 \(4 GPUs, 2 workers a trial\), got 3"):
        at_once(3, [WorkerOptions(2, "gpu")], Resources(16, 4))
    with pytest.raises(ConfigError, match=r"a trial's workers: expected a CPU per worker \(2\), there are 1"):
        at_once(None, [two], Resources(1, 0))


# ---- draws


def drawn(out: Path, made: SweepDesign, score: float | None = 0.5) -> list[dict]:
    """The values of all trials. Each trial ends with this score before the next trial begins. A value None: the draw repeats an earlier draw."""
    out.mkdir(exist_ok=True)
    search = Search(out, made, False, {})
    values = []
    for slot in made.slots():
        known = search.trials().get(slot.number)
        trial = None if known is not None else search.begin(slot)
        values.append(known.params if known is not None else trial and trial.params)
        if trial is not None:
            search.end(trial, score, None)
    return values


@pytest.mark.parametrize("how", ["random", "tpe"])
@pytest.mark.long
def test_draws_lie_within_their_bounds_and_depend_on_the_seed(tmp_path: Path, how: str) -> None:
    made = plan(
        draw=("fit.learning_rate=1e-4..1e-2:log", "model.width=3..5", "model.dropout=0..0.5"),
        trials=12,
        search=how,
        seed=3,
    )
    values = [one for one in drawn(tmp_path / "a", made) if one is not None]
    assert all(1e-4 <= one["fit.learning_rate"] <= 1e-2 and 0 <= one["model.dropout"] <= 0.5 for one in values)
    assert {one["model.width"] for one in values} == {3, 4, 5}
    # On a logarithmic scale, half of the range is below 1e-3.
    assert 2 <= sum(one["fit.learning_rate"] < 1e-3 for one in values) <= 10
    config = made.config(values[0], None)
    assert config.fit.learning_rate == values[0]["fit.learning_rate"]
    assert drawn(tmp_path / "b", replace(made, options=replace(made.options, trials=2))) == values[:2]
    other = plan(draw=("fit.learning_rate=1e-4..1e-2:log",), trials=1, search=how, seed=4)
    assert drawn(tmp_path / "c", other)[0]["fit.learning_rate"] != values[0]["fit.learning_rate"]


def test_a_sweep_with_more_draws_begins_with_the_same_trials(tmp_path: Path) -> None:
    def made(trials: int) -> SweepDesign:
        return plan(grid=("model.num_layers=1,2",), draw=("model.dropout=0..0.5",), trials=trials, search="random")

    four = drawn(tmp_path / "a", made(2))
    assert four[0]["model.dropout"] == four[1]["model.dropout"] != four[2]["model.dropout"]
    assert [one["model.num_layers"] for one in four] == ["1", "2", "1", "2"]
    assert drawn(tmp_path / "a", made(3))[:4] == four  # the second call continues the sweep
    assert drawn(tmp_path / "b", made(3)) == drawn(tmp_path / "a", made(3))


def test_a_combination_that_is_drawn_again_does_not_run_again(tmp_path: Path) -> None:
    values = drawn(tmp_path / "a", plan(draw=("model.width=1..2",), trials=6, search="random"))
    assert len([one for one in values if one is not None]) == 2


@pytest.mark.long
def test_tpe_draws_near_what_scored_well(tmp_path: Path) -> None:
    made = plan(draw=("model.dropout=0..0.9",), trials=20)
    search = Search(tmp_path, made, True, {})
    for slot in made.slots():
        trial = search.begin(slot)
        search.end(trial, abs(trial.params["model.dropout"] - 0.3), None)
    late = [one.params["model.dropout"] for one in search.trials().values()][10:]
    assert sum(abs(value - 0.3) < 0.15 for value in late) > 5  # random draws would give about 3


# ---- trials, with a program instead of a training command

PROGRAM = """
import json, os, sys, time
from pathlib import Path
run = Path(sys.argv[-1])
resumed = sys.argv[-2] == "--run.resume"
run.mkdir(exist_ok=True)
(run / "config.json").write_text("{}")
done = len((run / "metrics.jsonl").read_text().splitlines()) if resumed else 0
width = 0 if resumed else int(Path(sys.argv[1]).read_text().split(" width: ")[1].split()[0])
def epoch(number, **scores):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"epoch": number, "train_loss": 1.0, "train_s": 1.0, "resumed": resumed, **scores}) + "\\n")
def finish(status=0):
    (run / "summary.json").write_text('{"scores": {"test": 0.5}, "num_parameters": 3}')
    sys.exit(status)
"""
FINISH = "for e in range(done, 3): epoch(e, valid_accuracy=width / 100 + e / 1000, valid_loss=2.0 - e)\nfinish(1)"
FAIL_AT_16 = "print('error: no room', file=sys.stderr) if width == 16 else None\nif width == 16: sys.exit(1)\n" + FINISH
HANG = "epoch(done, valid_accuracy=0.5)\nif not resumed: time.sleep(600)\nfinish()"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Returns a function that sets the program which a trial's process runs. The working folder is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trials_module, "prepare", lambda config: None)
    file = tmp_path / "program.py"
    monkeypatch.setattr(trials_module, "command_of", lambda config: [sys.executable, str(file)])

    def write(ending: str) -> None:
        file.write_text(PROGRAM + ending)

    return write


def run_sweep(*words: str, after: Sequence[str] = ()) -> int:
    """Runs a sweep without a baseline, unless the arguments name one."""
    alone = [] if "--resume" in words or "--baseline" in words else ["--baseline", "none"]
    return sweep(*read_options([*words, *alone, *(["--", *after] if after else [])]))


def rows(out: str = "out") -> dict[int, dict[str, str]]:
    with (Path(out) / "trials.csv").open() as file:
        return {int(row["trial"]): row for row in csv.DictReader(file)}


def test_trials_are_recorded_with_their_scores_and_a_failure_with_its_cause(program, capsys) -> None:
    program(FAIL_AT_16)
    words = ["--grid", "model.width=8,16,32", "--seeds", "0", "1", "--cpus", "4", "--out", "out"]
    assert run_sweep(*words) == 1
    said = capsys.readouterr()
    assert said.err == "error: 2 of 6 trials failed; --resume out --retry runs them again\n"
    assert "trial-001 (model.width=16, fit.seed=0): failed: no room; log: out/trial-001.log" in said.out
    found = rows()
    assert [found[n]["status"] for n in range(6)] == ["finished", "failed", "finished"] * 2
    assert float(found[2]["valid_accuracy"]) == 0.322
    assert (found[2]["best_epoch"], found[2]["epochs"], found[2]["fit.seed"]) == ("3", "3", "0")
    table = [line.split("|")[1].strip() for line in said.out.splitlines() if line.startswith("| ")]
    assert table[0] == "options"
    assert table[2:] == ["model.width=32", "model.width=8"]  # best first
    assert "0.3220 ± 0.0000" in said.out
    ElementTree.fromstring(Path("out/sweep.html").read_text().removeprefix("<!DOCTYPE html>"))

    # A resumed sweep runs no trial again. Failed trials run again only with --retry, from their start.
    program(FINISH)
    assert run_sweep("--resume", "out") == 1
    assert "6 trials, 6 of them run before" in capsys.readouterr().out
    assert run_sweep("--resume", "out", "--retry") == 0
    assert "6 trials, 4 of them run before" in capsys.readouterr().out
    assert {row["status"] for row in rows().values()} == {"finished"}


def test_a_metric_that_the_run_does_not_have_is_named(program, capsys) -> None:
    program("for e in range(3): epoch(e, valid_beauty=1.0)\nfinish()")
    assert run_sweep("--grid", "model.width=8", "--out", "out") == 1
    cause = "metric: expected one of train_loss, valid_beauty, got valid_accuracy; set --metric"
    assert rows()[0]["cause"] == cause


@pytest.mark.long
def test_a_trial_that_takes_too_long_is_ended_with_all_that_it_started(program) -> None:
    program(
        "import subprocess\np = subprocess.Popen(['sleep', '600'])\n(run / 'pid').write_text(str(p.pid))\ntime.sleep(600)"
    )
    assert run_sweep("--grid", "model.width=8", "--out", "out", "--trial_timeout_s", "5") == 1
    assert rows()[0]["cause"] == "not finished within 5 s (--trial_timeout_s)"
    child = int(Path("out/trial-000/pid").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_a_weak_trial_is_stopped_early_and_keeps_what_it_had(program) -> None:
    program(
        "for e in range(done, 4):\n    epoch(e, valid_accuracy=width / 100)\n    time.sleep(0.5 if width == 1 else 0)\nif width == 1: time.sleep(600)\nfinish()"
    )
    widths = ",".join(map(str, (*range(20, 26), 1)))
    words = ["--grid", f"model.width={widths}", "--prune", "--prune_after", "2", "--at_once", "1", "--out", "out"]
    assert run_sweep(*words) == 0
    found = rows()
    assert [found[n]["status"] for n in range(7)] == ["finished"] * 6 + ["stopped"]
    assert found[6]["epochs"] in ("2", "3")
    assert float(found[6]["valid_accuracy"]) == 0.01


def test_an_interrupted_sweep_ends_its_trials_and_continues_them(program, monkeypatch, capsys) -> None:
    program(HANG)
    looks = trials_module.TrialRunner._look

    def interrupted(self, one):
        if (self.out / one.slot.name / "metrics.jsonl").exists():
            raise KeyboardInterrupt
        return looks(self, one)

    monkeypatch.setattr(trials_module.TrialRunner, "_look", interrupted)
    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        run_sweep("--grid", "model.width=8,16", "--at_once", "1", "--out", "out")
    assert "to continue: graphmill sweep --resume out" in capsys.readouterr().err
    ours = [child for child in psutil.Process().children() if child not in before]
    assert not [child for child in ours if child.status() != psutil.STATUS_ZOMBIE]
    assert "2 of 2 trials have not ended" in Path("out/sweep.html").read_text()
    monkeypatch.setattr(trials_module.TrialRunner, "_look", looks)
    program(HANG.replace("if not resumed: ", "if False: "))
    assert run_sweep("--resume", "out") == 0
    lines = [json.loads(line) for line in Path("out/trial-000/metrics.jsonl").read_text().splitlines()]
    assert [line["resumed"] for line in lines] == [False, True]

    # If a trial had finished when the sweep was killed, the resumed sweep records the trial and does not start it.
    made = design_sweep(*read_options(["--resume", "out"]))
    search = Search(Path("out"), made, False, {})
    search._study.enqueue_trial({"model.width": "8"}, user_attrs={"slot": 0, "seed": None})
    search._study.ask(search._distributions)
    program("sys.exit(3)")
    assert run_sweep("--resume", "out") == 0


def test_a_classic_model_is_trained_beside_the_trials_for_each_seed_and_split(program, monkeypatch, capsys) -> None:
    program(FINISH.replace("width / 100", "0.5"))
    monkeypatch.setattr(classic_module, "command_of", trials_module.command_of)
    program(
        "epoch(0, valid_accuracy=0.5)\n(run / 'summary.json').write_text(json.dumps({'scores': SCORES}))".replace(
            "SCORES", "{'valid': 0.8 if 'batch' in Path(sys.argv[1]).read_text() else 0.5, 'test': 0.4}"
        )
    )
    words = ["--grid", "model.width=8,16", "--seeds", "0", "1", "--cpus", "4", "--out", "out"]
    assert run_sweep(*words, "--baseline", "gcn", "sage", "--", "--baseline.configurations", "4") == 0
    said = capsys.readouterr().out
    assert "baseline gcn: valid 0.8000 ± 0.0000, test 0.4000 ± 0.0000 (2 runs)" in said
    assert "baseline sage: valid 0.8000" in said
    trained = list(Path("out").glob("beside-*/baselines/*/summary.json"))
    assert len(trained) == 2 * 2 * 4  # 2 seeds, 2 models, 4 configurations
    assert "GCN: 0.8000" in Path("out/sweep.html").read_text()
    # A resumed sweep does not train the baselines again.
    program("sys.exit(3)")
    assert run_sweep("--resume", "out") == 0
    assert "(2 runs)" in capsys.readouterr().out


def test_a_sweep_whose_trials_allow_no_baseline_says_why_and_goes_on(program, capsys) -> None:
    program(FINISH)
    words = ["--grid", "model.width=8,16", "--cpus", "4", "--out", "out", "--baseline", "gcn"]
    after = ["--data.nodes", "200", "--sampler", "neighbor", "--sampler.time", "before", "--evaluation", "sampled"]
    assert run_sweep(*words, after=after) == 0
    said = capsys.readouterr().out
    assert "no baseline beside them: baseline: expected edges of all times, which gcn would hear" in said
    assert "baseline gcn:" not in said
    assert not list(Path("out").glob("beside-*"))


def test_trials_that_run_together_have_gpus_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    runner = SimpleNamespace(at_once=2, plan=SimpleNamespace(options=SimpleNamespace(cpus=4)))
    shown = [trials_module.TrialRunner._environment(runner, lane)["CUDA_VISIBLE_DEVICES"] for lane in (0, 1)]  # type: ignore[arg-type]
    assert shown == ["4,5", "6,7"]


# ---- processes


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("import sys; print('error: no room', file=sys.stderr); sys.exit(1)", "no room"),
        ("raise ValueError('odd')", "ValueError: odd (exit status 1)"),
        ("import os; os.kill(os.getpid(), 9)", f"no output (exit status {-signal.SIGKILL})"),
    ],
)
def test_the_cause_is_what_the_trial_said_last(tmp_path: Path, script: str, cause: str) -> None:
    status = start([sys.executable, "-c", script], tmp_path / "log", new_tag(), os.environ).wait(60)
    assert cause_of(tmp_path / "log", status) == cause


def test_what_a_killed_trial_leaves_behind_is_ended(tmp_path: Path) -> None:
    script = (
        "import os, subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        "print(p.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    tag = new_tag()
    start([sys.executable, "-c", script], tmp_path / "log", f"{tag}.000001", os.environ).wait(60)
    kill_tagged(f"{tag}.000002")
    child = int((tmp_path / "log").read_text())
    assert psutil.pid_exists(child)
    kill_tagged(tag)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_failed_run_is_put_aside_whole(tmp_path: Path) -> None:
    for name in ("config.json", "notes.txt", "config.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{}")
        trials_module.put_aside(tmp_path / name)
    kept = ["config.json.failed-1", "config.json.failed-2", "notes.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    assert all(any(path.iterdir()) for path in tmp_path.iterdir())


# ---- resume


@pytest.fixture
def kept(tmp_path: Path, program) -> str:
    """A finished sweep of two draws."""
    program(FINISH)
    words = ["--draw", "model.width=8..64", "--trials", "2", "--seed", "5", "--out", "kept", "--search", "random"]
    assert run_sweep(*words, after=["--fit.epochs", "3"]) == 0
    return "kept"


def test_resume_takes_the_sweeps_own_options_and_what_may_change(kept: str) -> None:
    options, words = read_options(["--resume", kept, "--trials", "4", "--at_once", "1", "--retry"])
    assert (options.draw, words, options.seed) == (("model.width=8..64",), ["--fit.epochs", "3"], 5)
    assert (options.trials, options.at_once, options.retry) == (4, 1, True)
    before = rows(kept)
    assert sweep(options, words) == 0
    assert {n: rows(kept)[n]["model.width"] for n in (0, 1)} == {n: before[n]["model.width"] for n in (0, 1)}
    assert len(rows(kept)) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grid", "model.width=1,2"], "the sweep keeps its own --grid"),
        (["--seed", "6"], "the sweep keeps its own --seed"),
        (["--kind", "graphs"], "the sweep keeps its own --kind"),
        (["--metric", "valid_loss"], "the sweep keeps its own --metric"),
        (["--out", "other"], "the sweep keeps its own --out"),
        (["--", "--fit.epochs", "4"], "the sweep keeps its own what stands after --"),
        (["--trials", "1"], "expected at least the 2"),
    ],
)
def test_resume_refuses_another_sweep(kept: str, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_options(["--resume", kept, *arguments])


def test_a_directory_that_is_no_sweeps_is_refused(kept: str) -> None:
    with pytest.raises(FormatError, match="expected a sweep's directory"):
        read_options(["--resume", "nowhere"])
    with pytest.raises(ConfigError, match=r"--resume kept to continue a sweep"):
        run_sweep("--grid", "model.width=8", "--out", kept)
    (Path(kept) / "sweep.sqlite").write_text("no database")
    with pytest.raises(FormatError, match=r"sweep\.sqlite: expected the database of a sweep"):
        read_options(["--resume", kept])


# ---- scaling


def test_what_the_measured_epochs_cost(tmp_path: Path) -> None:
    def epoch(number: int, **more: float) -> dict[str, float]:
        rates = {"roots_per_s": 10.0, "nodes_per_s": 100.0, "edges_per_s": 1000.0}
        return {
            "epoch": number,
            "train_s": 2.0,
            "wait_s": 0.5,
            "batches": 8.0,
            "cpu_s": 3.0,
            "train_cpu_s": 1.0,
            **rates,
            **more,
        }

    warm = epoch(0, train_s=50.0, cpu_s=70.0)
    epochs = [warm, epoch(1), epoch(2), epoch(3, valid_loss=1.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in epochs))
    counts = {name: [8, 8] for name in ("remote_requests", "received_bytes", "local_requests", "local_bytes")}
    events = [
        {"kind": "traffic", "epoch": e, **counts, "sent_bytes": [sent, 0]}
        for e, sent in enumerate((9e9, 160, 160, 9e9))
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [{"kind": "begin"}, *events]))
    (tmp_path / "summary.json").write_text('{"num_parameters": 7}')
    point = measures(tmp_path, workers=2)
    assert (point["steps"], point["seconds"], point["step_s"], point["epoch_s"]) == (12, 6.0, 0.5, 2.0)
    assert (point["roots_per_s"], point["roots_per_batch"], point["wait_share"]) == (10.0, 60 / 24, 0.25)
    assert (point["sent_bytes_per_batch"], point["remote_requests_per_batch"]) == (320 / 16, 2.0)
    assert (point["train_cpu_s_per_batch"], point["worker_cpu_s_per_step"]) == (0.25, 0.75 * 2)


def test_one_row_for_all_seeds(capsys) -> None:
    def record(number: int, score: float | None, width: str, seed: str) -> dict:
        options = {"model.width": width, "fit.seed": seed}
        return {
            "number": number,
            "options": options,
            "score": score,
            "scores": {"test": 0.5},
            "train_s": 6.0,
            "epochs": 3,
            "nodes_per_s": 2e3,
            "peak_bytes": 3_000_000_000 if width == "8" else None,
        }

    print_table(
        [record(0, 0.5, "8", "0"), record(1, 0.7, "8", "1"), record(2, 0.9, "16", "0"), record(3, None, "16", "1")],
        "valid_accuracy",
    )
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["options", "valid_accuracy", "test", "nodes/s", "s per epoch", "peak GB", "trials"]
    assert lines[2] == ["model.width=16", "0.9000", "0.5000", "2,000", "2.00", "–", "2"]
    assert lines[3] == ["model.width=8", "0.6000 ± 0.1414", "0.5000 ± 0.0000", "2,000", "2.00", "3.00", "0 1"]
    splits = [record(number, 0.5 + number / 10, "8", "0") for number in range(3)]
    for number, one in enumerate(splits):
        one["options"] |= {"data.split_set": str(number)}
    print_table(splits, "valid_accuracy")
    assert "| 0.6000 ± 0.1000 |" in capsys.readouterr().out


# ---- real trials


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_trials_repeat_the_run_alone_and_a_failing_one_is_recorded(tmp_path: Path) -> None:
    tried = [
        "--grid",
        "fit.learning_rate=1e-3,2e-2",
        "sampler.num_chunks=1,100000",
    ]  # 100,000 chunks are more than the nodes: refused when the graph is known
    line = command(*tried, "--metric", "valid_loss", "--cpus", "2", "--out", "out", "--", *SMALL, "--fit.epochs", "3")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: 2 of 4 trials failed")
    assert "Traceback" not in done.stderr
    out = tmp_path / "out"
    found = rows(str(out))
    assert {n: row["status"] for n, row in found.items()} == {0: "finished", 1: "failed", 2: "finished", 3: "failed"}
    for number in (1, 3):
        assert found[number]["cause"].startswith("num_chunks: expected at most one per node (600)"), found[number]
        assert not (out / f"trial-{number:03d}").exists()
    best = min((0, 2), key=lambda n: float(found[n]["valid_loss"]))
    assert next(iter(found)) == best
    alone = found[best]["command"].split()
    alone[:2] = [sys.executable, str(REPOSITORY / alone[1])]
    subprocess.run([*alone, "--run.dir", "alone"], cwd=tmp_path, capture_output=True, timeout=400)
    run = out / f"trial-{best:03d}"
    assert curve(run) == curve(tmp_path / "alone")
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, tmp_path / "alone")]
    assert summaries[0]["scores"] == summaries[1]["scores"]
    assert float(found[best]["valid_loss"]) == min(loss for _, loss, _ in curve(run))
    assert read_run(run).status == "finished"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_ctrl_c_ends_real_trials_and_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    line = command("--grid", "fit.learning_rate=2e-2", "--out", "out", "--", *SMALL, "--fit.epochs", "50000")
    metrics = tmp_path / "out" / "trial-000" / "metrics.jsonl"

    def run_until(epochs: int, *arguments: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        job = subprocess.Popen([*line[:2], *(arguments or line[2:])], cwd=tmp_path, start_new_session=True, **pipes)
        deadline = time.monotonic() + 240
        while not metrics.exists() or len(metrics.read_text().splitlines()) < epochs:
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.1)
        return job, psutil.Process(job.pid).children(recursive=True)

    job, family = run_until(2)
    assert any("train_nodes.py" in " ".join(one.cmdline()) for one in family)
    pressed = time.monotonic()
    os.kill(job.pid, signal.SIGINT)
    said, err = job.communicate(timeout=120)
    assert job.returncode == 130, said + err
    assert time.monotonic() - pressed < 90
    assert "to continue: graphmill sweep --resume out" in err
    assert "Traceback" not in err
    assert not psutil.wait_procs(family, timeout=5)[1]
    assert read_run(metrics.parent).status != "finished"
    ended_at = len(metrics.read_text().splitlines())

    job, family = run_until(ended_at + 2, "--resume", "out")  # the trial continues where it stopped
    job.kill()
    job.communicate(timeout=60)
    assert [one for one in family if one.is_running()]  # the sweep was killed, so the trial still runs
    again, _ = run_until(ended_at + 4, "--resume", "out")
    # The old trial has ended, because a run has only one trainer.
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=120)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_points_of_a_scaling_sweep_are_what_the_cost_model_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    after = (
        "--data.partitions 2 --model.width 8 --model.num_layers 2 --sampler neighbor --sampler.fanouts 4 3 --sampler.batch_size 32 "
        "--fit.epochs 3 --ray.object_store_gb 0.2 --servers.local_reads no"
    )
    assert run_sweep("--workers", "1", "2", "--nodes", "2000", "--cpus", "2", "--out", "out", after=after.split()) == 0
    points = load_points(Path("out/points.jsonl"))
    assert [point["settings"]["workers"] for point in points] == [1, 2]
    for point in points:
        assert point["remote_requests_per_batch"] == pytest.approx(2 + 1, rel=0.2)  # hops and rows, of one server
        assert point["local_bytes_per_batch"] == 0
        assert point["received_bytes_per_batch"] > point["nodes_per_batch"] * point["feature_bytes"]
        assert 20 <= point["roots_per_batch"] <= 32
        assert 0 < point["train_cpu_s_per_batch"] <= point["worker_cpu_s_per_step"]
    fit_rates(points)
    page = Path("out/report.html").read_text()
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "ideal" in page
    before = Path("out/points.jsonl").read_bytes()
    assert run_sweep("--resume", "out") == 0
    assert Path("out/points.jsonl").read_bytes() == before
