"""Tries options of a training job: each combination is a run of that job, several at once through Ray Tune; a table, a CSV, sweep.html.

    python jobs/tune_sweep.py --try learning-rate=1e-3,3e-3 --try width=64,128            all four combinations
    python jobs/tune_sweep.py --draw learning-rate=1e-4..1e-2:log --trials 8              eight draws
    python jobs/tune_sweep.py --job pcqm4m_tokengt --try model=tokengt,grit,ppgt --scheduler asha -- --epochs 20
    python jobs/tune_sweep.py --resume runs/tune-products_geco-20260101-120000            goes on, or shows what there is

What stands after `--` goes to every trial. A trial is the job as it would run alone, with its options and a run directory of its own
(OUT/trial-000 …: report.html, metrics.jsonl, best/), and gives the same scores to the last digit; the table says its command. `--try
"fanouts=10 5,5 5"` tries options of several values, `--try skip=yes,no` flags. Draws depend on --seed and their number alone, so
`--resume DIR --trials 16` adds eight trials to eight.

With --scheduler asha a trial stops at the epochs 1, 4, 16 … (--grace-epochs, --reduction) where its score is not among the best quarter of
those that came so far. Which trials stop depends on who comes first, so it repeats only with --at-once 1; a stopped run has a checkpoint, and
its job's --resume continues it. A trial that fails is recorded with its cause, and the sweep goes on; the exit status is then 1, and --resume
DIR --retry runs it again. Ctrl-C ends everything in seconds; --resume continues trials from their latest checkpoints.

The scaling sweep is a job of its own: its points are measured one at a time in a fresh Ray each, so that nothing disturbs a clock;
trials here share one Ray and run together, since only their scores count (docs/decisions/0013).
"""

import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cluster.options import WorkerOptions
from cluster.placement import Resources
from jobs.reporting.record_lines import append_record, load_records
from jobs.run.child_process import end_tagged, new_tag
from jobs.run.command_line import complain, one_line
from jobs.run.exit_codes import run
from jobs.run.run_options import RunOptions
from jobs.sweeps.tunable_jobs import lower_is_better, prepare, script_of
from jobs.sweeps.tune_plan import SweepConfig, Trial, at_once, check, metric_of, plan_trials, say_options
from storage.errors import ConfigError, FormatError

_STOP_TIMEOUT_S = 15.0  # for trials to save a checkpoint and end, after Ctrl-C


def load_sweep(folder: Path) -> SweepConfig:
    """The options of an earlier sweep. Raises FormatError where there is none."""
    from pydantic import TypeAdapter, ValidationError

    file = folder / "sweep.json"
    try:
        return TypeAdapter(SweepConfig).validate_json(file.read_text())
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        raise FormatError(
            f"{folder}: expected a sweep's directory (sweep.json), found none; start one without --resume"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise FormatError(f"{file}: {where}: {first['msg']}; repair the file or start another sweep") from None


def load_trials(file: Path, trials: Sequence[Trial]) -> dict[int, dict[str, Any]]:
    """Records of trials that have ended, by number. Raises FormatError where one is not of this sweep."""
    found = {one["number"]: one for one in load_records(file, lambda one: one["number"], "a trial of this sweep")}
    for trial in trials:
        options = found.get(trial.number, {}).get("options", trial.options)
        if options != trial.options:
            raise FormatError(
                f"{file}: expected trial {trial.number} with {say_options(trial.options)}, found {say_options(options)}; "
                "start another sweep"
            )
    return found


def sweep(config: SweepConfig) -> int:
    """Runs the trials that are missing; 1 where one has failed."""
    check(config)
    trials = plan_trials(config)
    metric = metric_of(config, trials)
    out = _out(config)
    file = out / "trials.jsonl"
    records = load_trials(file, trials)
    again = {number for number, one in records.items() if config.retry and one["status"] == "failed"}
    missing = [trial for trial in trials if trial.number not in records or trial.number in again]
    here = _this_machine(config)
    if here is not None:
        at_once(config.at_once, [_workers(trial.config.run) for trial in trials], here)
    for one in {repr(getattr(t.config, "graph", None) or t.config.graphs): t for t in missing}.values():
        prepare(config.job, one.config)
    out.mkdir(parents=True, exist_ok=True)
    (out / "sweep.json").write_text(
        json.dumps(asdict(replace(config, resume=None, out=None, retry=False)), indent=1) + "\n"
    )
    print(
        f"{len(trials)} trials of {config.job}, {len(trials) - len(missing)} of them run before; kept in {out}",
        flush=True,
    )
    for trial in missing:
        if trial.number in again:
            shutil.rmtree(out / trial.name, ignore_errors=True)
            (out / f"{trial.name}.log").unlink(missing_ok=True)
    try:
        if missing:
            _run(config, missing, records, metric, out, here)
    finally:
        records = load_trials(file, trials)
        _write_report(config, trials, records, metric, out)
    ours = [records[trial.number] for trial in trials if trial.number in records]
    from jobs.reporting.tune_report import print_table

    print_table(ours, metric, lower_is_better(metric))
    print(f"kept in {out}: trials.jsonl, trials.csv, sweep.html, and each trial's run")
    failed = sum(one["status"] == "failed" for one in ours)
    if failed:
        print(f"error: {failed} of {len(trials)} trials failed; the report says why", file=sys.stderr)
    return 1 if failed else 0


def _this_machine(config: SweepConfig) -> Resources | None:
    """What a Ray that is started here has; None where the sweep uses one that runs."""
    from cluster.options import SessionOptions
    from cluster.session import joins_a_cluster

    if joins_a_cluster(SessionOptions(address=config.address)):
        return None
    import torch

    return Resources(config.cpus or os.cpu_count() or 1, torch.cuda.device_count())


def _workers(run: RunOptions) -> WorkerOptions:
    asked = None if isinstance(run.workers, str) else run.workers
    return WorkerOptions(asked, run.device, min_workers=run.min_workers)


def _out(config: SweepConfig) -> Path:
    if config.resume is not None:
        return Path(config.resume)
    out = Path(config.out or f"runs/tune-{config.job}-{time.strftime('%Y%m%d-%H%M%S')}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out}: expected nothing here, found something; pass --resume {out} to continue it, or another --out"
        )
    return out


def _run(
    config: SweepConfig,
    missing: Sequence[Trial],
    records: Mapping[int, Mapping[str, Any]],
    metric: str,
    out: Path,
    here: Resources | None,
) -> None:
    """Runs trials in one Ray, and keeps each one's record when it ends; nothing of them is left when this returns or raises."""
    environment = dict(os.environ)  # before Ray and Tune add theirs: a trial's is what the job would have alone
    from cluster.options import SessionOptions
    from cluster.session import ray_session

    runs = [trial.config.run for trial in missing]
    options = SessionOptions(
        address=config.address,
        num_cpus=None if here is None else here.cpus,
        num_gpus=None if here is None else here.gpus,
        object_store_gb=max(one.ray.object_store_gb for one in runs),
    )
    with ray_session(options) as session:
        import ray

        from jobs.sweeps.tune_runner import make_scheduler, recall, run_trials
        from jobs.sweeps.tune_trial import SweepPlan, TrialPlan, recorded

        has = ray.cluster_resources()
        cpus, gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
        together = at_once(config.at_once, [_workers(one) for one in runs], Resources(cpus, gpus))
        lower = lower_is_better(metric)
        epochs = max(trial.config.fit.epochs for trial in missing)
        scheduler = make_scheduler(config.scheduler, lower, epochs, config.grace_epochs, config.reduction)
        earlier = {n: one for n, one in records.items() if one["status"] != "failed"}
        recall(scheduler, {n: recorded((out / f"trial-{n:03d}"), metric, one["epochs"]) for n, one in earlier.items()})
        script = str(script_of(config.job))
        plan = SweepPlan(
            trials={
                trial.number: TrialPlan(
                    number=trial.number,
                    command=(sys.executable, script, *trial.arguments),
                    run=(out / trial.name).resolve(),
                    log=(out / f"{trial.name}.log").resolve(),
                    epochs=trial.config.fit.epochs,
                )
                for trial in missing
            },
            metric=metric,
            folder=Path.cwd(),
            address=session.address,
            # Ray turns tokens on by the environment of who starts it; trials join it with the same.
            environment=environment | {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH_")},
            tag=new_tag(),
            timeout_s=config.trial_timeout_s,
        )
        by_number = {trial.number: trial for trial in missing}
        ended: list[int] = []

        def on_end(number: int, reported: int, is_stopped: bool, cause: str | None) -> None:
            trial = by_number[number]
            record = trial_record(trial, out / trial.name, metric, reported, is_stopped, cause)
            append_record(out / "trials.jsonl", record)
            ended.append(number)
            print(f"[{len(ended)}/{len(missing)}] {say(record, metric)}", flush=True)

        print(
            f"{together} at once, on {'a local Ray' if session.is_ours else f'the Ray cluster at {session.address}'}",
            flush=True,
        )
        try:
            run_trials(plan, scheduler, together, on_end)
        finally:
            end_tagged(plan.tag, _STOP_TIMEOUT_S)


def trial_record(
    trial: Trial, run: Path, metric: str, reported: int, is_stopped: bool, cause: str | None
) -> dict[str, Any]:
    """What is kept of a trial: its best score and the epoch that had it, and, of a finished one, the scores of its best weights.

    `reported`: the epochs that a stopped trial had reported when it was stopped; it may have trained on for a moment.
    """
    from cluster.run_directory import RunDirectory

    status = "failed" if cause is not None else "stopped" if is_stopped else "finished"
    epochs = RunDirectory(run).metrics()
    if status == "stopped":
        epochs = [one for one in epochs if one["epoch"] < reported]
    scored = [(one[metric], one["epoch"] + 1) for one in epochs if metric in one]
    best = (min if lower_is_better(metric) else max)(scored, key=lambda one: one[0], default=(None, None))
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text()) if status == "finished" else {}
    return {
        "number": trial.number,
        "options": dict(trial.options),
        "status": status,
        "cause": cause,
        "score": best[0] if status != "failed" else None,
        "best_epoch": best[1] if status != "failed" else None,
        "epochs": len(epochs),
        "scores": summary.get("scores")
        or {f"{split}_estimate": score for split, score in summary.get("estimates", {}).items()},
        "num_parameters": summary.get("num_parameters"),
        "train_s": sum(one.get("train_s", 0.0) for one in epochs),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def _write_report(
    config: SweepConfig, trials: Sequence[Trial], records: Mapping[int, Mapping[str, Any]], metric: str, out: Path
) -> None:
    from jobs.reporting.tune_report import Sweep, write_report
    from jobs.sweeps.tune_trial import recorded

    done = [trial for trial in trials if trial.number in records]
    about = {
        "job": config.job,
        "search space": ", ".join([*(f"--try {x}" for x in config.tries), *(f"--draw {x}" for x in config.draws)]),
        "metric": f"{metric}, the best of each trial's epochs; {'lower' if lower_is_better(metric) else 'higher'} is better",
        "scheduler": config.scheduler,
        "every trial's options": " ".join(config.options) or "the job's defaults",
        "cluster": config.address or "a local Ray",
        "processor": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
    }
    found = Sweep(
        job=config.job,
        metric=metric,
        lower=lower_is_better(metric),
        planned=len(trials),
        records=[records[trial.number] for trial in done],
        curves={t.number: recorded(out / t.name, metric, records[t.number]["epochs"]) for t in done},
        commands={t.number: f"python jobs/{config.job}.py {shlex.join(t.arguments)}" for t in done},
        about=about,
    )
    write_report(out, found)


def say(record: Mapping[str, Any], metric: str) -> str:
    """A trial in one line."""
    what = f"trial {record['number']} ({say_options(record['options'])})"
    if record["status"] == "failed":
        return f"{what}: failed: {record['cause']}"
    after = f"stopped after epoch {record['epochs']}" if record["status"] == "stopped" else f"{record['epochs']} epochs"
    return f"{what}: {metric} {record['score']:.4f} at epoch {record['best_epoch']}, {after}"


def parse(arguments: Sequence[str]) -> SweepConfig:
    """The command line; with --resume, the sweep's own options with what may change. Raises ConfigError for what may not."""
    own = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    options = tuple(arguments[len(own) + 1 :])
    config: SweepConfig = _tyro(own, SweepConfig())
    if config.resume is None:
        return replace(config, options=options)
    saved = load_sweep(Path(config.resume))
    config = _tyro(own, replace(saved, tries=(), draws=(), options=(), resume=None, out=None, retry=False))
    given = [
        f"--{name}" for name, values in (("try", config.tries), ("draw", config.draws), ("out", config.out)) if values
    ]
    given += [f"--{name}" for name in ("job", "metric", "seed") if getattr(config, name) != getattr(saved, name)]
    given += ["what stands after --"] if options else []
    if given:
        raise ConfigError(
            f"--resume {config.resume}: the sweep keeps its own {', '.join(given)}; leave that out, or start another"
        )
    if (config.trials or 0) < (saved.trials or 0):
        raise ConfigError(
            f"--trials: expected at least the {saved.trials} of the sweep that is resumed, got {config.trials}"
        )
    return replace(config, tries=saved.tries, draws=saved.draws, options=saved.options)


def _tyro(arguments: list[str], default: SweepConfig) -> SweepConfig:
    import io
    from contextlib import redirect_stderr

    import tyro

    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(SweepConfig, args=arguments, default=default, description=__doc__)
    except SystemExit as end:
        if not end.code:
            raise
        complain(one_line(said.getvalue()))


def main() -> int:
    return sweep(parse(sys.argv[1:]))


if __name__ == "__main__":
    run(main)
