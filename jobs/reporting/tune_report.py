"""The report of a hyper-parameter sweep: a CSV file, and a page with plots and a table, best trial first."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphmill.cluster.runs.run_directory import write_atomic
from graphmill.jobs.reporting.page import render, write_csv
from graphmill.jobs.reporting.plot import NUM_COLOURS, Line, Plot, Scale

Record = Mapping[str, Any]

_WIDE = 8.0  # an option's axis is logarithmic if its largest / smallest value is at least this ratio


@dataclass(frozen=True)
class Sweep:
    """Values for the page of a sweep."""

    job: str
    metric: str
    lower: bool  # whether a lower score is better
    planned: int  # number of planned trials
    records: Sequence[Record]
    curves: Mapping[int, Sequence[Mapping[str, Any]]]  # trial -> {"epoch", "score"}
    commands: Mapping[int, str]  # trial -> command that runs only this trial
    about: Mapping[str, str]
    baselines: Mapping[str, float] = field(default_factory=dict)  # name of a baseline -> validation score


def ranked(records: Sequence[Record], lower: bool) -> list[Record]:
    """All trials, best first. Trials with equal scores keep their order; failed trials come last."""

    def place(record: Record) -> tuple[bool, float, int]:
        score = record["score"]
        return score is None, 0.0 if score is None else score if lower else -score, record["number"]

    return sorted(records, key=place)


def _options(records: Sequence[Record]) -> list[str]:
    """Names of the options that the sweep varies, in the order of the search space."""
    return list(dict.fromkeys(name for record in records for name in record["options"]))


def _table(records: Sequence[Record], metric: str, lower: bool) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table, best trial first. tune.html.j2 explains the columns."""
    options = _options(records)
    rows = []
    for one in ranked(records, lower):
        scores, epoch, seconds = one["scores"], one["best_epoch"], one["train_s"]
        test = _figure(scores.get("test", scores.get("test_estimate"))) + " (estimate)" * ("test_estimate" in scores)
        values = [one["options"].get(name, "") for name in options]
        when = ["–" if epoch is None else str(epoch), str(one["epochs"])]
        end = ["–" if seconds is None else f"{seconds:.1f}", one["status"]]
        rows.append([str(one["number"]), *values, _figure(one["score"]), *when, test, *end])
    return ["trial", *options, metric, "best epoch", "epochs", "test", "train s", "end"], rows


def _figure(score: float | None) -> str:
    return "–" if score is None else f"{score:.4f}"


def write_report(out: Path, sweep: Sweep) -> None:
    """Writes trials.csv (with all digits) and sweep.html."""
    kept = ("best_epoch", "epochs", "status", "cause", "train_s", "num_parameters", "peak_bytes")
    rows = [
        {
            "trial": record["number"],
            **record["options"],
            sweep.metric: record["score"],
            **{name: record.get(name) for name in kept},
            **{f"{split}_score": value for split, value in record["scores"].items()},
            "command": sweep.commands[record["number"]],
        }
        for record in ranked(sweep.records, sweep.lower)
    ]
    write_csv(out / "trials.csv", rows)
    write_atomic(out / "sweep.html", html(sweep))


def html(sweep: Sweep) -> str:
    """The page as HTML that is also well-formed XML."""
    order = ranked(sweep.records, sweep.lower)
    good = [record for record in order if record["score"] is not None]
    columns, rows = _table(sweep.records, sweep.metric, sweep.lower)
    plots = [_curves(sweep, good), *_over_options(sweep, good)] if good else []
    title = f"Sweep of {sweep.job}"
    return render(
        "tune.html.j2", title=title, sweep=sweep, order=order, good=good, columns=columns, rows=rows, plots=plots
    )


def _curves(sweep: Sweep, good: Sequence[Record]) -> Plot:
    """A plot of the scores of the best trials over the epochs, one trial for each colour. The line of a stopped trial is dashed."""
    lines = []
    for colour, record in enumerate(good[:NUM_COLOURS]):
        points = [(one["epoch"], one["score"]) for one in sweep.curves[record["number"]]]
        line = Line(f"trial {record['number']}", points, colour, "line" if record["status"] == "finished" else "dashed")
        lines.append(line)
    title = f"{sweep.metric} by epoch" + (f", the best {len(lines)}" if len(good) > len(lines) else "")
    if lines and lines[0].points:
        start = lines[0].points[0][0]
        for colour, (name, score) in enumerate(sweep.baselines.items(), len(lines)):
            lines.append(Line(f"{name}: {_figure(score)}", [(start, score)], colour % NUM_COLOURS, "level"))
    best = (good[0]["best_epoch"], good[0]["score"])
    return Plot(title, "epoch", sweep.metric, lines, whole_x=True, best=best)


def _over_options(sweep: Sweep, good: Sequence[Record]) -> list[Plot]:
    """A plot of the score over the value, for each option with numeric values."""
    plots = []
    for name in _options(good):
        try:
            points = sorted((float(record["options"][name]), record["score"]) for record in good)
        except ValueError:
            continue
        xs = [x for x, _ in points]
        if len(set(xs)) < 2 or not all(map(math.isfinite, xs)):
            continue
        scale: Scale = "log" if xs[0] > 0 and xs[-1] / xs[0] >= _WIDE else "linear"
        whole = scale == "linear" and all(x.is_integer() for x in xs)
        lines, title = [Line(sweep.metric, points, style="dot")], f"Best {sweep.metric} over {name}"
        plots.append(Plot(title, name, sweep.metric, lines, x_scale=scale, whole_x=whole))
    return plots
