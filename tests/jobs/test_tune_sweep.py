"""A hyper-parameter sweep: real trials that repeat the job alone to the last digit, a failing one, resume, Ctrl-C, bad input."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.options import WorkerOptions
from cluster.placement import Resources
from jobs.reporting.tune_report import Sweep, html, print_table, ranked
from jobs.run.run_record import read_run
from jobs.sweeps.tunable_jobs import JOBS, arguments_of, config_kind, metrics_of, option_types, parse_arguments
from jobs.sweeps.tune_plan import SweepConfig, at_once, metric_of, plan_trials
from jobs.sweeps.tune_space import Choice, Draw, parse_draw, parse_try, trial_options
from jobs.tune_sweep import load_trials, main, parse, sweep
from storage.errors import ConfigError, FormatError, GraphmillError
from tests.job_in_process import run_job

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = (
    *("--nodes", "600", "--width", "8", "--layers", "1", "--chunks", "1", "--partitions", "1", "--workers", "1"),
    *("--checkpoint-every", "1", "--schedule", "constant", "--object-store-gb", "0.2"),
)
TOO_MANY_EPOCHS = 500


def command(*arguments: str) -> list[str]:
    return [sys.executable, str(REPOSITORY / "jobs" / "tune_sweep.py"), *arguments]


def curve(run: Path) -> list[tuple[float, float, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["train_loss"], line["valid_loss"], line["valid_accuracy"]) for line in lines]


def records(out: Path) -> dict[int, dict]:
    return {one["number"]: one for one in map(json.loads, (out / "trials.jsonl").read_text().splitlines())}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_trials_repeat_the_job_alone_and_a_failing_one_is_recorded(tmp_path: Path) -> None:
    bad = "--try", "chunks=1,100000"  # more than there are nodes: refused once the graph is known
    arguments = ["--try", "learning-rate=1e-3,2e-2", *bad, "--metric", "valid_loss", "--out", "out"]
    line = command(*arguments, "--cpus", "2", "--", *SMALL[:6], *SMALL[8:], "--epochs", "3")
    first = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert first.returncode == 1, first.stdout + first.stderr  # trials failed
    # Ray may warn before that of many processes on few CPUs.
    assert first.stderr.splitlines()[-1] == "error: 2 of 4 trials failed; the report says why"
    assert "Traceback" not in first.stderr
    out = tmp_path / "out"
    found = records(out)
    assert {n: one["status"] for n, one in found.items()} == {0: "finished", 1: "failed", 2: "finished", 3: "failed"}
    for number in (1, 3):
        assert found[number]["cause"].startswith("num_chunks: expected at most one per node (600)"), found[number]
        assert not (out / f"trial-{number:03d}").exists()

    # The job alone, with its own Ray, by the command that the sweep names.
    with (out / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["finished", "finished", "failed", "failed"]
    assert float(rows[0]["valid_loss"]) < float(rows[1]["valid_loss"])
    best = int(rows[0]["trial"])
    alone = rows[0]["command"].split()
    alone[:2] = [sys.executable, str(REPOSITORY / alone[1])]
    subprocess.run([*alone, "--run-dir", "alone"], cwd=tmp_path, capture_output=True, timeout=400)
    run = out / f"trial-{best:03d}"
    assert curve(run) == curve(tmp_path / "alone")
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, tmp_path / "alone")]
    assert summaries[0]["scores"] == summaries[1]["scores"] == found[best]["scores"]
    losses = [loss for _, loss, _ in curve(run)]
    assert float(rows[0]["valid_loss"]) == found[best]["score"] == min(losses)
    assert found[best]["best_epoch"] == losses.index(min(losses)) + 1
    assert read_run(run).state == "finished"
    assert (run / "report.html").exists()

    # Nothing runs again; the table is the same, best first.
    kept = (out / "trials.jsonl").read_bytes(), (run / "metrics.jsonl").read_bytes()
    again = subprocess.run(command("--resume", "out"), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert again.returncode == 1
    assert "4 trials of products_geco, 4 of them run before" in again.stdout
    assert ((out / "trials.jsonl").read_bytes(), (run / "metrics.jsonl").read_bytes()) == kept
    table = [line for line in again.stdout.splitlines() if line.startswith("|")]
    assert table == [line for line in first.stdout.splitlines() if line.startswith("|")]
    assert table[0] == "| trial | learning-rate | chunks | valid_loss | best epoch | epochs | test | train s | end |"
    assert table[2].startswith(f"| {best} | {found[best]['options']['learning-rate']} | 1 | {min(losses):.4f} |")
    page = (out / "sweep.html").read_text()
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "num_chunks: expected" in page


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(400)
def test_ctrl_c_ends_the_sweep_and_leaves_nothing_running(tmp_path: Path) -> None:
    line = command("--try", "learning-rate=1e-3,2e-2", "--out", "out", "--cpus", "1", "--", *SMALL)
    job = subprocess.Popen(
        [*line, "--epochs", str(TOO_MANY_EPOCHS)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = tmp_path / "out" / "trial-000" / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 2:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.1)
    family = psutil.Process(job.pid).children(recursive=True)
    assert any("products_geco.py" in " ".join(one.cmdline()) for one in family)
    pressed = time.monotonic()
    os.kill(job.pid, signal.SIGINT)
    out, err = job.communicate(timeout=90)
    assert job.returncode == 130, out + err
    assert time.monotonic() - pressed < 60
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive, alive
    # The trial under way has no record, and its run says why it ended; --resume would continue it.
    assert not (tmp_path / "out" / "trials.jsonl").exists()
    run = read_run(tmp_path / "out" / "trial-000")
    assert run.state != "finished"
    assert "2 of 2 trials have not ended" in (tmp_path / "out" / "sweep.html").read_text()


# ---- one trial, with a program in place of a job

PROGRAM = """
import json, os, sys, time
from pathlib import Path
flag, where, _, address = sys.argv[1:]
run = Path(where)
run.mkdir(exist_ok=True)
(run / "config.json").write_text("{}")
done = len((run / "metrics.jsonl").read_text().splitlines()) if flag == "--resume" else 0
for epoch in range(done, EPOCHS):
    with (run / "metrics.jsonl").open("a") as file:
        line = {"epoch": epoch, "train_loss": 1.0, "flag": flag, "address": address, "threads": os.environ.get("OMP_NUM_THREADS")}
        file.write(json.dumps(line | ({"valid_loss": 2.0 - epoch} if epoch % EVERY == 0 else {})) + "\\n")
"""
FINISH = '(run / "summary.json").write_text("{}"); sys.exit(1)'  # 1: no better than the baselines
FAIL = 'print("error: no room", file=sys.stderr); sys.exit(1)'
HANG = "time.sleep(600)"


@pytest.fixture
def trial(tmp_path: Path):
    """Makes a trial that runs PROGRAM with this ending; what still runs of it is ended with the test."""
    from jobs.run.child_process import end_tagged, new_tag
    from jobs.sweeps.tune_trial import JobTrial, SweepPlan, TrialPlan

    tag = new_tag()

    def make(ending: str, epochs: int = 3, every: int = 1, metric: str = "valid_loss", timeout_s: float = 60.0):
        program = PROGRAM.replace("EPOCHS", str(epochs)).replace("EVERY", str(every)) + ending
        command = (sys.executable, "-c", program)
        one = TrialPlan(7, command, tmp_path / "run", tmp_path / "log", epochs)
        made = JobTrial.__new__(JobTrial)  # without Tune's folders and monitors
        environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "31"}
        made.setup({"trial": 7}, SweepPlan({7: one}, metric, tmp_path, "host:1", environment, tag, timeout_s))
        return made

    yield make
    end_tagged(tag, 5.0)


def steps(made) -> list[dict]:
    found = [made.step()]
    while not found[-1].get("done"):
        found.append(made.step())
    return found


def test_a_trial_reports_each_epoch_and_the_last_with_its_end(trial, tmp_path: Path) -> None:
    assert steps(trial(FINISH)) == [
        {"epoch": 1, "score": 2.0},
        {"epoch": 2, "score": 1.0},
        {"epoch": 3, "score": 0.0, "done": True, "cause": None},
    ]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {(line["flag"], line["address"], line["threads"]) for line in lines} == {("--run-dir", "host:1", "31")}


def test_epochs_without_a_validation_are_not_reported(trial) -> None:
    assert [one["epoch"] for one in steps(trial(FINISH, epochs=5, every=3))] == [1, 4]


def test_a_jobs_failure_is_a_result_with_its_cause(trial) -> None:
    last = steps(trial(FAIL))[-1]
    assert (last["done"], last["cause"]) == (True, "no room")


def test_a_metric_that_the_job_does_not_have_is_named(trial) -> None:
    assert steps(trial(FINISH, metric="valid_mae")) == [
        {"done": True, "cause": "metric: expected one of train_loss, valid_loss, got valid_mae; set --metric"}
    ]


def test_an_interrupted_trial_is_resumed_and_a_finished_one_not_started(trial, tmp_path: Path) -> None:
    first = trial(HANG, epochs=2)
    assert [first.step()["epoch"]] == [1]
    first.cleanup()
    assert first._process.poll() is not None
    assert [one["epoch"] for one in steps(trial(FINISH, epochs=4))] == [1, 2, 3, 4]
    flags = [json.loads(line)["flag"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert flags[-1] == "--resume"
    finished = trial(FAIL, epochs=4)
    assert finished._process is None
    assert steps(finished)[-1]["cause"] is None


def test_a_trial_that_takes_too_long_is_ended(trial) -> None:
    made = trial(HANG, epochs=1, timeout_s=1.0)
    assert steps(made)[-1]["cause"] == "not finished within 1 s (--trial-timeout-s)"
    assert made._process.poll() is not None


@pytest.mark.parametrize("lower", [True, False])
def test_asha_stops_who_is_behind_of_those_that_ran_before(lower: bool) -> None:
    from types import SimpleNamespace

    from jobs.sweeps.tune_runner import make_scheduler, recall

    scheduler = make_scheduler("asha", lower, epochs=16, grace=2, reduction=4)
    sign = -1.0 if lower else 1.0
    recall(scheduler, {n: [{"epoch": e, "score": sign * (n + e)} for e in (1, 2)] for n in range(4)})

    def decide(epoch: int, score: float) -> str:
        new = SimpleNamespace(trial_id=f"new-{epoch}-{score}")
        scheduler.on_trial_add(None, new)
        return scheduler.on_trial_result(None, new, {"epoch": epoch, "score": sign * score})

    assert decide(1, 0.0) == "CONTINUE"  # before the first rung
    assert decide(2, 9.0) == "CONTINUE"
    assert decide(2, 3.0) == "STOP"


# ---- search spaces


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("learning-rate=1e-3,3e-3", Choice("learning-rate", ("1e-3", "3e-3"))),
        ("--learning_rate= 1e-3 , 3e-3", Choice("learning-rate", ("1e-3", "3e-3"))),
        ("fanouts=10 5,5 5", Choice("fanouts", ("10 5", "5 5"))),
        ("skip=yes", Choice("skip", ("yes",))),
    ],
)
def test_choices(text: str, choice: Choice) -> None:
    assert parse_try(text) == choice


@pytest.mark.parametrize(
    ("text", "draw"),
    [
        ("learning-rate=1e-4..1e-2:log", Draw("learning-rate", 1e-4, 1e-2, True)),
        ("dropout=0..0.5", Draw("dropout", 0.0, 0.5)),
        ("dropout=-1..-0.5", Draw("dropout", -1.0, -0.5)),
    ],
)
def test_draws(text: str, draw: Draw) -> None:
    assert parse_draw(text) == draw


BOUNDS = st.floats(1e-12, 1e12).flatmap(lambda low: st.tuples(st.just(low), st.floats(low, 1e12)))


@given(bounds=BOUNDS, log=st.booleans(), seed=st.integers(0, 2**63), number=st.integers(0, 10**6))
def test_a_draw_lies_within_its_bounds_and_is_what_it_says(bounds, log: bool, seed: int, number: int) -> None:
    low, high = bounds
    said = Draw("x", low, high, log).value(seed, number)
    assert low <= float(said) <= high
    assert repr(float(said)) == said
    assert Draw("x", low, high, log).value(seed, number) == said


@given(low=st.integers(1, 50), more=st.integers(0, 50), log=st.booleans(), number=st.integers(0, 10**6))
def test_a_whole_draw_is_a_whole_number_within_its_bounds(low: int, more: int, log: bool, number: int) -> None:
    assert low <= int(Draw("x", low, low + more, log, whole=True).value(0, number)) <= low + more


def test_draws_fill_their_range_and_differ_between_options_and_seeds() -> None:
    draw = Draw("rate", 1e-4, 1e-2, log=True)
    values = [float(draw.value(0, number)) for number in range(400)]
    assert 0.4 < sum(value < 1e-3 for value in values) / 400 < 0.6  # half of a logarithm's range
    whole = [int(Draw("width", 3, 5, whole=True).value(0, number)) for number in range(300)]
    assert all(60 < whole.count(k) < 140 for k in (3, 4, 5))
    assert draw.value(0, 0) != draw.value(1, 0)
    assert draw.value(0, 0) != replace(draw, option="other").value(0, 0)


def test_a_sweep_with_more_draws_begins_with_the_same_trials() -> None:
    choices, draws = [Choice("layers", ("1", "2"))], [Draw("rate", 0.0, 1.0), Draw("width", 1, 9, whole=True)]
    eight = trial_options(choices, draws, 8, seed=3)
    assert len(eight) == 16
    assert trial_options(choices, draws, 12, seed=3)[:16] == eight
    assert trial_options(choices, draws, 8, seed=4) != eight
    assert eight[0]["rate"] == eight[1]["rate"] != eight[2]["rate"]
    assert len(trial_options([], [Draw("width", 1, 2, whole=True)], 50, seed=0)) == 2  # each combination once
    assert trial_options([Choice("a", ("1", "2")), Choice("b", ("x", "y"))], [], 1, 0) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "y"},
    ]


def test_trials_become_the_jobs_own_command_lines() -> None:
    config = SweepConfig(
        tries=("fanouts=4 3,5 5", "skip=yes,no", "clip-norm=none"),
        draws=("learning-rate=1e-4..1e-2:log", "width=8..64"),
        trials=2,
        options=("--layers", "2", "--sampler", "neighbor"),
    )
    trials = plan_trials(config)
    assert len(trials) == 8
    first = trials[0]
    start = ("--layers", "2", "--sampler", "neighbor", "--fanouts", "4", "3", "--skip", "--clip-norm", "None")
    assert first.arguments[: len(start)] == start
    assert "--no-skip" in trials[1].arguments
    assert first.config.batch.fanouts == (4, 3)
    assert first.config.fit.clip_norm is None
    assert (first.config.model.layers, first.config.model.skip) == (2, True)
    assert str(first.config.model.width) == first.options["width"]
    assert repr(first.config.fit.learning_rate) == first.options["learning-rate"]
    assert metric_of(config, trials) == "valid_accuracy"


@pytest.mark.parametrize("job", JOBS)
def test_every_training_job_can_be_swept(job: str) -> None:
    kind = config_kind(job)
    types = option_types(kind)
    config = parse_arguments(kind, arguments_of({"learning-rate": "0.5", "width": "24", "workers": "3"}, types))
    assert (config.fit.learning_rate, config.model.width, config.run.workers) == (0.5, 24, 3)
    assert metrics_of(config)[0] == ("valid_mae" if job == "pcqm4m_tokengt" else "valid_accuracy")


def test_a_sweep_compares_estimates_only_where_it_is_told_to() -> None:
    config = SweepConfig(tries=("width=8,16",), options=("--eval-chunks", "4"))
    with pytest.raises(ConfigError, match=r"scores are estimates .* pass --metric valid_estimate_accuracy"):
        metric_of(config, plan_trials(config))
    named = replace(config, metric="valid_estimate_accuracy")
    assert metric_of(named, plan_trials(named)) == "valid_estimate_accuracy"
    chosen = replace(config, options=("--eval-chunks", "4", "--select-by", "estimate"))
    assert metric_of(chosen, plan_trials(chosen)) == "valid_estimate_accuracy"
    with pytest.raises(ConfigError, match="expected one of valid_estimate_accuracy"):
        metric_of(replace(config, metric="valid_accuracy"), plan_trials(config))


ONE = {"tries": ("width=8,16",)}
BAD = [
    ({}, "the search space is empty"),
    ({"tries": ("widht=8,16",)}, "has no option --widht; perhaps --width"),
    ({"draws": ("widht=8..16",), "trials": 2}, "has no option --widht"),
    ({"tries": ("width=",)}, "expected an option of the job and a list"),
    ({"tries": ("width",)}, "expected an option of the job and a list"),
    ({"tries": ("width=8,,16",)}, "got an empty one"),
    ({"tries": ("width=8,8",)}, "each value once"),
    ({"tries": ("width=8", "width=16")}, "--width is in the search space twice"),
    ({"tries": ("width=8,many",)}, "trial 1 (width=many): --width: invalid literal"),
    ({"tries": ("precision=fp8",)}, "invalid choice 'fp8'"),
    ({"tries": ("skip=perhaps",)}, "--skip: expected yes or no, got 'perhaps'"),
    ({"tries": ("run-dir=a,b",)}, "the sweep sets --run-dir of every trial itself"),
    ({**ONE, "options": ("--run-dir", "here")}, "the sweep sets --run-dir of every trial itself"),
    ({**ONE, "options": ("--address=auto",)}, "the sweep sets --address of every trial itself"),
    ({**ONE, "options": ("--no-such-flag",)}, "no-such-flag"),
    ({"draws": ("learning-rate=1e-2..1e-4",), "trials": 2}, "expected the lower bound first, got 1e-2 > 1e-4"),
    ({"draws": ("learning-rate=0..1e-2:log",), "trials": 2}, "a logarithmic range begins above 0, got 0"),
    ({"draws": ("learning-rate=1e-4..1e-2:exp",), "trials": 2}, "expected LOW..HIGH or LOW..HIGH:log"),
    ({"draws": ("learning-rate=1e-4",), "trials": 2}, "expected LOW..HIGH"),
    ({"draws": ("learning-rate=a..b",), "trials": 2}, "expected numbers, got 'a'"),
    ({"draws": ("learning-rate=nan..inf",), "trials": 2}, "expected numbers, got 'nan'"),
    ({"draws": ("width=8.5..16",), "trials": 2}, "--width takes whole numbers"),
    ({"draws": ("sampler=1..2",), "trials": 2}, "--sampler takes no numbers of a range"),
    ({"draws": ("width=8..16",)}, "expected how often to draw; give --trials"),
    ({"draws": ("width=8..16",), "trials": 0}, "--trials: expected at least 1, got 0"),
    ({**ONE, "trials": 3}, "--trials: nothing is drawn"),
    ({**ONE, "metric": "valid_beauty"}, "metric: expected one of valid_accuracy, valid_loss, train_loss, got 'valid_beauty'"),
    ({**ONE, "metric": "valid_mae"}, "metric: expected one of valid_accuracy"),
    ({**ONE, "at_once": 0}, "at_once: expected at least 1, got 0"),
    ({**ONE, "reduction": 1}, "reduction: expected at least 2"),
    ({**ONE, "grace_epochs": 0}, "grace_epochs: expected at least 1"),
    ({**ONE, "trial_timeout_s": 0.0}, "trial_timeout_s: expected more than 0"),
    ({**ONE, "cpus": 1}, "a trial's workers: expected a CPU per worker (2), the cluster has 1"),
    ({**ONE, "cpus": 4, "at_once": 3}, "at_once: expected at most 2 (4 CPUs, 2 workers a trial), got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_input_is_refused_before_anything_is_written(
    options: dict, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GraphmillError) as caught:
        sweep(SweepConfig(**options))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_bad_input_is_one_line_and_not_status_zero(tmp_path: Path) -> None:
    for arguments, status in (["--try", "widht=1,2"], 1), (["--trials", "many"], 2):
        done = run_job(main, arguments, tmp_path)
        assert done.returncode == status
        assert re.fullmatch(r"error: .*\n", done.stderr), done.stderr
    assert not list(tmp_path.iterdir())


def test_how_many_trials_run_together() -> None:
    two = WorkerOptions(2)
    assert at_once(None, [two], Resources(8, 0)) == 4
    assert at_once(3, [two], Resources(8, 0)) == 3
    assert at_once(None, [two], Resources(16, 4)) == 2
    assert at_once(None, [two], Resources(16, 1)) == 1  # on the one GPU, which no other trial can have then
    assert at_once(None, [WorkerOptions(2, "cpu")], Resources(16, 4)) == 8
    assert at_once(None, [WorkerOptions(2, "cpu"), two], Resources(16, 4)) == 2
    assert at_once(None, [WorkerOptions()], Resources(16, 0)) == 8
    assert at_once(None, [WorkerOptions()], Resources(16, 4)) == 1  # each trial on all four
    assert at_once(None, [WorkerOptions(1)], Resources(16, 4)) == 4
    assert at_once(None, [WorkerOptions(4, min_workers=1)], Resources(2, 0)) == 1
    with pytest.raises(ConfigError, match=r"at most 2 \(4 GPUs, 2 workers a trial\), got 3"):
        at_once(3, [WorkerOptions(2, "gpu")], Resources(16, 4))
    with pytest.raises(ConfigError, match=r"a trial's workers: expected a CPU per worker \(2\), the cluster has 1"):
        at_once(None, [two], Resources(1, 0))


# ---- what a sweep keeps


def record(number: int, score: float | None, status: str = "finished", **others: object) -> dict:
    return {
        "number": number,
        "options": {"learning-rate": f"{10.0**-number}", "sampler": "neighbor"},
        "status": status,
        "cause": "no room" if status == "failed" else None,
        "score": score,
        "best_epoch": None if score is None else 2,
        "epochs": 0 if score is None else 3,
        "scores": {"test": 0.5} if status == "finished" else {},
        "num_parameters": 10,
        "train_s": 1.0,
        "date": "2026-01-01 00:00",
        **others,
    }


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A sweep of two draws, one of which has ended."""
    config = SweepConfig(draws=("learning-rate=1e-4..1e-2",), trials=2, options=("--epochs", "3"), seed=5)
    trial = plan_trials(config)[0]
    (tmp_path / "sweep.json").write_text(json.dumps({**config.__dict__}))
    (tmp_path / "trials.jsonl").write_text(json.dumps(record(0, 0.5, options=trial.options)) + "\n")
    return tmp_path


def test_resume_takes_the_sweeps_own_options_and_what_may_change(kept: Path) -> None:
    config = parse(["--resume", str(kept), "--trials", "4", "--at-once", "1", "--retry"])
    assert (config.draws, config.options, config.seed) == (("learning-rate=1e-4..1e-2",), ("--epochs", "3"), 5)
    assert (config.trials, config.at_once, config.retry) == (4, 1, True)
    trials = plan_trials(config)
    assert [number for number in load_trials(kept / "trials.jsonl", trials)] == [0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--try", "width=1,2"], "the sweep keeps its own --try"),
        (["--seed", "6"], "the sweep keeps its own --seed"),
        (["--job", "products_tokengt"], "the sweep keeps its own --job"),
        (["--metric", "valid_loss"], "the sweep keeps its own --metric"),
        (["--", "--epochs", "4"], "the sweep keeps its own what stands after --"),
        (["--trials", "1"], "expected at least the 2"),
    ],
)
def test_resume_refuses_another_sweep(kept: Path, arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse(["--resume", str(kept), *arguments])


def test_a_directory_that_is_no_sweeps_is_refused(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected a sweep's directory"):
        parse(["--resume", str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match=r"--resume .* to continue it"):
        sweep(SweepConfig(**ONE, cpus=2, out=str(kept)))
    (kept / "trials.jsonl").write_text(json.dumps(record(0, 0.5)) + "\n")
    with pytest.raises(FormatError, match=r"expected trial 0 with learning-rate=.*; start another sweep"):
        sweep(parse(["--resume", str(kept), "--cpus", "2"]))
    (kept / "sweep.json").write_text('{"trials": "many"}')
    with pytest.raises(FormatError, match=r"sweep\.json: trials"):
        parse(["--resume", str(kept)])


def test_best_first_in_either_direction_and_failures_last() -> None:
    some = [record(0, 0.5), record(1, None, "failed"), record(2, 0.7), record(3, 0.5, "stopped")]
    assert [one["number"] for one in ranked(some, lower=False)] == [2, 0, 3, 1]
    assert [one["number"] for one in ranked(some, lower=True)] == [0, 3, 2, 1]


def test_the_printed_table_is_markdown_with_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([record(0, 0.5), record(1, None, "failed"), record(2, 0.7, "stopped")], "accuracy", lower=False)
    *table, last = capsys.readouterr().out.splitlines()
    assert last == "failed: trial 1: no room"
    assert len({len(line) for line in table}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert cells[0] == [
        "trial",
        "learning-rate",
        "sampler",
        "accuracy",
        "best epoch",
        "epochs",
        "test",
        "train s",
        "end",
    ]
    assert [row[0] for row in cells[2:]] == ["2", "0", "1"]
    assert cells[3] == ["0", "1.0", "neighbor", "0.5000", "2", "3", "0.5000", "1.0", "finished"]


EVIL = "<script>window.pwned = 1</script>"


def page_of(records_: list[dict]) -> str:
    curves = {
        one["number"]: [{"epoch": k + 1, "score": (one["score"] or 0) * k / 2} for k in range(one["epochs"])]
        for one in records_
    }
    commands = {one["number"]: f"python jobs/products_geco.py --graph '{EVIL}'" for one in records_}
    return html(Sweep("products_geco", "valid_accuracy", False, 5, records_, curves, commands, {"job": EVIL}))


def test_the_page_stands_alone_and_holds_hostile_text_as_text() -> None:
    page = page_of([record(0, 0.5), record(1, None, "failed", cause=EVIL), record(2, 0.7), record(3, 0.1, "stopped")])
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "<script" not in page
    assert not re.search(r"<img|\bsrc=|url\(|@import|https?://", page)
    assert "1 of 5 trials have not ended" in page
    assert page.index('href="trial-002/report.html"') < page.index('href="trial-000/report.html"')
    assert page.count("<svg ") == 2  # over epochs, over the learning rate; a sampler is no number
    for some in ([], [record(1, None, "failed")]):
        ElementTree.fromstring(page_of(some).removeprefix("<!DOCTYPE html>"))
