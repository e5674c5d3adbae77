"""The parts of a training run that do not depend on the kind of data: its directory, resume, progress and summary."""

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphmill.cluster.checkpoints.checkpoint import TrainState, check_continues
from graphmill.cluster.checkpoints.checkpoint_store import checkpoints_of, run_disk_full
from graphmill.cluster.data.training_data import TrainingData
from graphmill.cluster.runs.records import Record
from graphmill.cluster.runs.run_directory import RunDirectory, flat, make_folder, write_atomic
from graphmill.cluster.runs.run_lease import held
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.runs.run_upload import copied
from graphmill.cluster.tasks import Task
from graphmill.cluster.training.initial_weights import freeze, load_start, with_rates
from graphmill.cluster.training.train_session import Launcher
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.cluster.training.trainer import train
from graphmill.core.errors import (
    ClusterLostError,
    ConfigError,
    DeadlineError,
    FormatError,
    GraphmillError,
    StageError,
    Terminated,
)
from graphmill.core.summaries import counted, rounded
from graphmill.jobs.baselines.node_baselines import Baselines
from graphmill.jobs.cli.faults import last_words
from graphmill.jobs.cli.progress import Progress, progress, results
from graphmill.jobs.cli.typed_commands import command_line, program_name
from graphmill.jobs.config.config import RunConfig, RunOptions, read_saved, saved_tree
from graphmill.jobs.config.reader import shown, to_tree
from graphmill.jobs.machine.environment import describe_command, describe_environment
from graphmill.jobs.records.promise import cost_of, kept_promise, promise_lines
from graphmill.jobs.records.run_record import Run, read_run, stored_partitions
from graphmill.jobs.records.trackers import tracked
from graphmill.jobs.records.verdict import BASELINE_NAMES, end_of_run, judge, metric_of_one
from graphmill.jobs.reporting.run_report import run_page
from graphmill.jobs.resolve.resolve import ResolvedRun, step_warnings
from graphmill.jobs.run.python_words import spoken_here
from graphmill.jobs.subjects.subject import Served, Subject
from graphmill.samplers.access.traffic import COLUMNS
from graphmill.storage.filesystem.urls import absolute_url

if TYPE_CHECKING:
    from graphmill.cluster.embeddings.embeddings import TableSpec

TRAINERS = ("products_geco", "pcqm4m_tokengt", "train_nodes", "train_graphs", "train_links", "train")
_LAST_LOOK_S = 20.0  # longest wait for the store at the end of a run, which may have failed because of the store
_MOST_PRINTED = 10  # maximum number of targets whose scores are printed separately
# Groups of options. If a value in these groups changes, a finished run is trained or scored again.
_DECIDES_THE_END = ("model", "task", "evaluation", "fit", "baseline")
# Maps a key of a summary to a text. The value of the key is the epoch whose weights were kept. Each summary has one of these keys.
KEPT_EPOCH = {
    "best_epoch": "best epoch",
    "best_epoch_by_estimate": "best epoch by an estimate",
    "last_epoch": "kept the last epoch,",
}


@contextmanager
def open_run(place: RunStore, options: RunOptions, config: Mapping[str, Any]) -> Iterator[RunDirectory]:
    """Opens the run's directory, new or continued. At the end of the context, the run's report is written, also after an error.

    Raises ConflictError if another process trains this run.
    """
    make_folder(place)
    with held(place) as hold:
        run = RunDirectory.resume(place, config) if options.resume else RunDirectory.create(place, config)
        write_atomic(run.path / "environment.json", json.dumps(describe_environment(), indent=1) + "\n")
        run.note("begin", resumed=options.resume is not None, **describe_command())
        run.hold = hold
        with copied(run), _told(run, options, config):
            yield run


@contextmanager
def _told(run: RunDirectory, options: RunOptions, config: Mapping[str, Any]) -> Iterator[None]:
    """Records in the run's directory and its trackers how the run ends, and prints how to continue the run."""
    url = run.place.url
    command = command_line(program_name(), "--run.resume", url)
    is_cluster_lost = False

    def record_fault(line: str) -> str:
        """Records in the run's directory the fault that ends this process now. Returns the text that says how to continue."""
        with suppress(OSError), (run.path / "failure.log").open("a") as stream:
            faulthandler.dump_traceback(stream)
            stream.write(f"{line}\n")
            run.note("fail", error=line)
        return "" if _newest(run.place) is None else f"; to continue: {command}"

    try:
        with tracked(options.track, options.track_project, run, config), last_words(record_fault):
            yield
    except BaseException as error:  # also Ctrl-C and SIGTERM: the events record the end of every run
        with suppress(OSError):  # on a full disk this fails too, and must not hide the first error
            run.note("fail", error=_why(error))
        is_cluster_lost = isinstance(error, ClusterLostError)
        if isinstance(error, KeyboardInterrupt) and not run.is_lost:
            newest = _newest(run.place)
            saved = "nothing saved yet" if newest is None else f"saved up to {newest}"
            print(f"\nstopped, {saved}; to continue:\n{command}", file=sys.stderr)
        if isinstance(error, (StageError, DeadlineError, FormatError)) and _newest(run.place) is not None:
            raise type(error)(f"{error}; to continue: {command}") from error
        raise
    else:
        run.note("finish")
    finally:
        if not is_cluster_lost:  # otherwise Ray may abort this process before it prints its error
            _write_report(run)


def _newest(place: RunStore) -> str | None:
    """The newest checkpoint's name; None: there is no checkpoint, or the store does not answer."""
    with suppress(OSError):
        return next(iter(checkpoints_of(place, _LAST_LOOK_S).names()), None)
    return None


def _why(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted (SIGTERM)" if isinstance(error, Terminated) else "interrupted (Ctrl-C)"
    return " ".join(f"{type(error).__name__}: {error}".split())[:2000]


def _write_report(run: RunDirectory) -> None:
    """Writes report.html. If the report cannot be written, prints the reason and continues."""
    try:
        record = read_run(run.path)
        write_atomic(run.path / "report.html", run_page(record, stored_partitions(record)))
        run.has_report = True
    except (OSError, ImportError, GraphmillError) as error:
        print(f"no report: {' '.join(str(error).split())}", file=sys.stderr)


def check_resume(run_dir: RunStore, resolved: ResolvedRun) -> None:
    """Raises an error if the options do not describe the run in this directory. Changes no file of the run."""
    damaged: list[str] = []
    checkpoints, epochs = checkpoints_of(run_dir), resolved.config.fit.epochs
    newest = checkpoints.look(damaged)
    if newest is None and damaged:
        raise FormatError(f"{damaged[0]}; no older checkpoint is whole: start another run")
    architecture, where = resolved.architecture, f"{checkpoints.store.url}/{newest}"
    if newest is not None:
        state = checkpoints.state(newest)
    else:  # the run ended before its first checkpoint, and begins again
        began = saved_tree(run_dir.url, "start one without --run.resume", allow_import=True)
        identity, where = began.get("resolved", {}).get("identity", {}), run_dir.url
        state = TrainState(0, -1, None, identity, {"model": began.get("model", {})})
        architecture = {"model": resolved.tree()["model"]}
    try:
        check_continues(state, architecture, resolved.identity, epochs, where)
    except ConfigError as error:
        message = str(error) if newest is not None else str(error).replace("this checkpoint is", "what it holds is")
        if ": None there" in message and not _changed_options(run_dir, resolved.config):
            message = message.replace("resume with its options", "another version began it: resume with that version")
        raise ConfigError(message) from None


def _changed_options(run_dir: RunStore, config: RunConfig) -> list[str]:
    """Paths of the options that differ between the stored run and the resume."""
    saved = read_saved(run_dir.url, "start one without --run.resume", allow_import=True)
    return [path for path in saved.diff(config) if not path.startswith("run.")]


def finished_summary(run_dir: RunStore, resolved: ResolvedRun) -> Mapping[str, Any] | None:
    """The summary of a finished run. None: the run is not finished, or the options train or score something new."""
    record = read_run(run_dir)
    asked = json.loads(json.dumps(resolved.tree(), default=str))
    same = all(record.config.get(name) == asked.get(name) for name in _DECIDES_THE_END)
    return record.summary if record.status == "finished" and same else None


@results()
def end_finished(summary: Mapping[str, Any], run_dir: RunStore, run: RunOptions) -> int:
    """Prints that the run is finished. Returns the exit status of the repeated command."""
    text = f"{run_dir} is finished ({kept_line(summary)}), nothing is left to do; more --fit.epochs go on with it"
    print(spoken_here(text))
    return end_of_run(summary, require_baselines=run.require_baselines)


def follow(
    bar: Progress, num_epochs: int, metric: str, unit: str, *, on_hosts: bool = False
) -> Callable[[Record], None]:
    """Returns a callback that shows rank 0's records as progress. `unit`: the predicted objects, such as "nodes" or "graphs". `on_hosts`: several hosts serve
    the graph, so a line says how much of it is near the workers."""
    scores = ""
    rate = "nodes_per_s" if unit == "nodes" else "roots_per_s"

    def show(done: float, step: str = "") -> None:
        bar.update(done, num_epochs, "; ".join(part for part in ("epochs", step, scores) if part))

    def on_record(record: Record) -> None:
        nonlocal scores
        if record["kind"] == "epoch":
            exact, estimate = record.get(f"valid_{metric}"), record.get(f"valid_estimate_{metric}")
            scores = f"loss {record['train_loss']:.4f}"
            scores += "" if exact is None else f", valid {metric} {exact:.4f}"
            scores += "" if estimate is None else f", valid {metric} {estimate:.4f} (estimate)"
            scores += f", {record[rate]:,.0f} {unit}/s"
            show(record["epoch"] + 1)
        elif record["kind"] == "step" and record["step"] < record["num_steps"]:
            step, num_steps = record["step"], record["num_steps"]
            show(record["epoch"] + step / num_steps, f"step {step} of {num_steps}")
        elif record["kind"] == "planned":
            for warning in step_warnings(record["steps"], record["warmup_steps"]):
                print(f"\nwarning: {spoken_here(warning)}", file=sys.stderr)
        elif record["kind"] == "stopping":
            again = "; Ctrl-C once more ends at once" if record["signal"] == signal.SIGINT else ""
            print(
                f"\nstopping: the step or validation under way ends, and a checkpoint is saved{again}", file=sys.stderr
            )
        elif record["kind"] == "failure":
            print(f"\n{record['what']}\nall workers start again from the latest checkpoint", file=sys.stderr)
        elif record["kind"] == "near" and on_hosts:
            print(f"\n{near_line(record['shares'], record['hosts'])}", file=sys.stderr)
        elif record["kind"] in ("hosts", "slow"):
            print(f"\n{record['what']}", file=sys.stderr)
        elif record["kind"] == "damage":
            print(f"\nan older checkpoint is used: {record['what']}", file=sys.stderr)
        elif record["kind"] == "start":
            step = f", step {record['step']}" if record["step"] else ""
            continues = record["epoch"] or record["step"]
            show(record["epoch"], f"continuing from epoch {record['epoch']}{step}" if continues else "")

    show(0, "starting the workers")
    return on_record


def near_line(shares: Sequence[float], hosts: Sequence[str]) -> str:
    """The text about the share of rows that each rank reads on its own host, with a warning if a rank has none there."""
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    line = f"near rows: a worker reads {least if least == most else f'{least} to {most}'} of its bytes on its own host"
    far = sorted({host for share, host in zip(shares, hosts, strict=True) if not share})
    if not far:
        return line
    return (
        f'warning: {line}; none on {", ".join(far)[:300]}, where every batch waits for the network: see "Partitions near the workers" in '
        "docs/guides/cluster.md"
    )


@dataclass(frozen=True)
class Ready:
    """A run that can start: its data is readable and its workers can be started."""

    subject: Subject
    resolved: ResolvedRun
    launcher: Launcher
    served: Served
    table: "TableSpec | None"


def train_spec(
    subject: Subject, resolved: ResolvedRun, data: TrainingData, task: Task, table: "TableSpec | None"
) -> TrainSpec:
    """The specification from which the workers of a run, or a replay of it, train. `data`: the data as served to the workers."""
    config = resolved.config
    return TrainSpec(
        data=subject.shared(data, resolved),
        build_model=resolved.build_model,
        task=task,
        model_config=resolved.architecture,
        identity=resolved.identity,
        sampler=subject.training(resolved),
        evaluation=subject.evaluation(resolved),
        is_estimate=config.evaluation.estimate is not None,
        keep_best=config.evaluation.keeps_best,
        table=table,
        options=resolved.fit,
        loader=config.loader,
    )


def train_and_score(
    job: str,
    run_dir: RunStore,
    ready: Ready,
    task: Task,
    baselines: Callable[[], Baselines],
    lacks: Sequence[str],
    audited: Sequence[str],
    started_s: float,
) -> dict[str, Any]:
    """Trains, and returns the summary that is stored in the run's directory. `baselines`: a function that waits for the baselines and returns them. `lacks`:
    parts that are missing in the splits. `audited`: the lines of the cheap checks for leaks."""
    subject, resolved, served = ready.subject, ready.resolved, ready.served
    config, entry, unit = resolved.config, subject.entry, subject.unit(resolved.config)
    if config.run.resume is not None:
        resolved = replace(resolved, chosen=(*_choices_that_hold(run_dir, config, resolved.chosen), *resolved.chosen))
    spec = train_spec(subject, resolved, served.data, task, ready.table)
    fit = resolved.fit
    if fit.start_from is not None or fit.freeze or fit.rates:  # refused before anything starts
        model = resolved.build_model()
        freeze(model, fit.freeze)
        with_rates(model, (), fit)
        if fit.start_from is not None and config.run.resume is None:
            load_start(model, fit.start_from, fresh_head=fit.fresh_head, options=flat(to_tree(config.model.options)))
            but = " and a fresh head" if fit.fresh_head else ""
            print(f"beginning with the weights of {fit.start_from}{but}", flush=True)
    if not resolved.is_full_graph:
        each = ", one for each" if resolved.micro_batches == resolved.workers.most else ""
        print(f"micro-batches a step: {resolved.micro_batches}, workers: {resolved.workers.most}{each}", flush=True)
    with open_run(run_dir, config.run, resolved.tree()) as run:
        data = {"snapshot": subject.manifest.snapshot, "content": subject.manifest.content_hash}
        run.receipt.data = {"url": absolute_url(subject.url), **data}
        with progress("training") as bar:
            try:
                result = train(
                    spec,
                    ready.launcher,
                    run,
                    follow(bar, config.fit.epochs, task.metric, unit, on_hosts=bool(served.where)),
                )
            except (OSError, StageError) as error:
                full = run_disk_full(run_dir)
                if full is None:
                    raise
                raise StageError(f"{full}; free some; {' '.join(str(error).split())}") from error
        fitted = baselines()
        if served.traffic is not None:
            run.take({"kind": "traffic", "epoch": None, "of": "baselines", **served.traffic.columns()})
        scores = {split: values[task.metric] for split, values in result["scores"].items()}
        summary = {
            "job": job,
            entry: subject.url,
            f"{entry}_hash": subject.manifest.content_hash,
            "snapshot": subject.manifest.snapshot,
            **({"lacks": list(lacks)} if lacks else {}),
            **({"audit": list(audited)} if audited else {}),
            **({"predicted": unit} if unit != config.kind else {}),
            **subject.described(resolved, task),
            **judge(
                task.metric,
                scores,
                fitted,
                higher_is_better=task.higher_is_better,
                estimate=config.evaluation.estimate,
            ),
            "all_scores" if config.evaluation.estimate is None else "all_estimates": result["scores"],
            **_run_summary(result, run, of_nodes=unit == "nodes"),
            **_told_in_full(read_run(run_dir)),
            "wall_s": time.monotonic() - started_s,
        }
        record, share = read_run(run_dir), summary["epochs"] / fit.epochs
        summary |= kept_promise(config.run.promise, share, record, summary["workers"])
        summary |= cost_of(config.run.price_per_hour, summary["wall_s"], record)
        run.write_summary(summary)
    return summary | {"has_report": run.has_report}


def _choices_that_hold(run_dir: RunStore, config: RunConfig, newer: Collection[str]) -> tuple[str, ...]:
    """The choices from the beginning of the run, without options that were set or chosen again since then."""
    values = config.options()
    chosen = (
        saved_tree(run_dir.url, "start one without --run.resume", allow_import=True)
        .get("resolved", {})
        .get("chosen", ())
    )
    again = {line.partition(" ")[0] for line in newer}
    return tuple(
        line
        for line in chosen
        if (flag := line.partition(" ")[0]) not in again
        and flag[2:] in values
        and line.startswith(f"{flag} {shown(values[flag[2:]])}: ")
    )


def _run_summary(result: Mapping[str, Any], run: RunDirectory, *, of_nodes: bool) -> dict[str, Any]:
    """The summary's entries about the training. Rates are weighted by each epoch's training time. `of_nodes`: the run predicts nodes."""
    epochs = run.metrics()
    train_s = sum(epoch["train_s"] for epoch in epochs)
    rates = ("nodes_per_s", "edges_per_s") if of_nodes else ("roots_per_s", "nodes_per_s", "edges_per_s")
    return {
        "counts": {split: values["count"] for split, values in result["scores"].items()},
        **{name: result[name] for name in (*KEPT_EPOCH, "stopped_early") if name in result},
        "epochs": len(epochs),
        "num_parameters": result["num_parameters"],
        "workers": result["world_size"],
        "micro_batches": result["micro_batches"],
        "device": result["device"],
        "train_s": train_s,
        "wait_share": sum(epoch["wait_s"] for epoch in epochs) / max(train_s, 1e-9),
        **{rate: sum(epoch[rate] * epoch["train_s"] for epoch in epochs) / max(train_s, 1e-9) for rate in rates},
        "run_dir": run.place.absolute,
        "started_in": os.getcwd(),  # relative data paths count from this folder
    }


def _told_in_full(record: Run) -> dict[str, Any]:
    """Totals of the whole run: the largest memory of a rank, the cost of interruptions, the seconds of each rank, and all requests to partitions, by purpose.
    The records of epochs cannot give these totals, because they have the seconds of one rank only."""
    traffic: dict[str, dict[str, int]] = {}
    for event in record.told("traffic"):
        of_purpose = traffic.setdefault(str(event["of"]), dict.fromkeys(COLUMNS, 0))
        for name in COLUMNS:
            of_purpose[name] += sum(event[name])
    ranks = [
        {"rank": rank.rank, "host": rank.host, **{name: round(s, 3) for name, s in rank.seconds.items()}}
        for rank in record.ranks
    ]
    totals: dict[str, Any] = {} if record.peak_bytes is None else {"peak_bytes": record.peak_bytes}
    totals |= interruptions(record)
    return {**totals, **({"traffic": traffic} if traffic else {}), **({"ranks": ranks} if ranks else {})}


def interruptions(record: Run) -> dict[str, Any]:
    """The summary's entry about interruptions, with the sums of their costs. Empty if there were none."""
    costs = record.told("interruption")
    if not costs:
        return {}
    announced = sum(bool(cost["announced"]) for cost in costs)
    sums = {
        "announced": announced,
        "unannounced": len(costs) - announced,
        "steps_lost": sum(cost["steps"] for cost in costs),
        "stood_s": round(sum(cost["stood_s"] for cost in costs), 1),
    }
    return {"interruptions": sums}


@results()
def print_end(summary: Mapping[str, Any], run_dir: RunStore) -> None:
    """Prints the scores and the cost of a finished run, and the commands that use it."""
    print_scores(summary)
    speed = f"{summary['nodes_per_s']:,.0f} nodes/s, {summary['edges_per_s']:,.0f} edges/s"
    if "roots_per_s" in summary:
        speed = f"{summary['roots_per_s']:,.0f} {summary.get('predicted', 'graphs')}/s"
    job = program_name() if program_name() in TRAINERS else f"train_{'graphs' if 'graphs' in summary else 'nodes'}"
    memory = (
        f", peak memory {summary['peak_bytes'] / 1e9:.2f} GB{' each' * (summary['workers'] > 1)}"
        if "peak_bytes" in summary
        else ""
    )
    more = ["--fit.epochs", str(2 * summary["epochs"])]
    if "stopped_early" in summary:
        more += ["--fit.patience", "none"]
    more_lines = "".join(f"{line}\n" for line in promise_lines(summary))
    report = f"report     {run_dir.below('report.html')}\n" if summary["has_report"] else ""
    print(
        f"\n{kept_line(summary)}, {summary['num_parameters']:,} parameters, "
        f"{counted(summary['workers'], 'worker')} on {summary['device']}{memory}\n"
        f"{speed} while training; waited for batches {summary['wait_share']:.1%} of it; "
        f"trained for {summary['train_s']:.0f} s; this job took {summary['wall_s']:.0f} s\n{more_lines}\n"
        f"{report}predict    {command_line('predict', str(run_dir), run_dir.below('predictions'))}\n"
        f"continue   {command_line(job, '--run.resume', str(run_dir), *more)}"
    )


def kept_line(summary: Mapping[str, Any]) -> str:
    """The text about the epoch whose weights were kept, and the reason."""
    name = next(name for name in KEPT_EPOCH if name in summary)
    early = summary.get("stopped_early")
    stopped = "" if early is None else f", stopped early at epoch {early['epoch'] + 1}: {early['why']}"
    return f"{KEPT_EPOCH[name]} {summary[name] + 1} of {summary['epochs']}{stopped}"


def print_scores(summary: Mapping[str, Any]) -> None:
    """A table of the scores of the model and its baselines."""
    estimate, nan = summary.get("estimate"), float("nan")
    model = {"model": summary["scores"]} if estimate is None else {"model (estimate)": summary["estimates"]}
    baselines = {BASELINE_NAMES[name]: scores for name, scores in summary["baselines"].items() if scores is not None}
    metric, task = str(summary["metric"]), summary.get("task", {})
    rows = [[f"{metric} in deviations" if task.get("deviation") and metric != "r2" else metric, "valid", "test"]]
    one, targets = metric_of_one(metric), list(task.get("names", ()))
    by_split = summary.get("all_scores" if estimate is None else "all_estimates", {})
    one_by_one: dict[str, Mapping[str, float]] = {}
    for name in targets[:_MOST_PRINTED]:
        one_by_one[f"{one} of {name}"] = {
            split: by_name.get(f"{one}_{name}", nan) for split, by_name in by_split.items()
        }
        for baseline, by_name in baselines.items():
            own = {split: by_name.get(f"{split}_{one}_{name}", nan) for split in rows[0][1:]}
            one_by_one[f"{one} of {name}, {baseline}"] = own
    for name, scores in (model | baselines | one_by_one).items():
        figures = [scores.get(split, nan) for split in rows[0][1:]]
        rows.append([name, *map(rounded, figures)])
    first, *others = zip(*rows, strict=True)
    widths = [max(28, *map(len, first)), *(max(9, 2 + max(map(len, column))) for column in others)]
    print()
    for name, *cells in rows:
        print(f"{name:<{widths[0]}}" + "".join(f"{c:>{width}}" for c, width in zip(cells, widths[1:], strict=True)))
    if len(targets) > _MOST_PRINTED:
        print(f"{metric} of all {len(targets)}: summary.json, and the report")
    if estimate is not None:
        print(f"estimate: {estimate}")
