"""A hyper-parameter sweep's report: one table, best first, as text, as CSV, and as a self-contained page with plots beside it."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.run_directory import write_atomic
from jobs.reporting.html_page import Figure, card, cards, escape, heading, headline, page, paragraph, table
from jobs.reporting.line_plot import NUM_COLOURS, Line, line_plot
from jobs.reporting.ratio_plot import Series

Record = Mapping[str, Any]

_COLUMNS = (
    ("score", "the best of the trial's epochs"),
    ("best epoch", "the epoch that had it, counted from 1"),
    ("epochs", "epochs that the trial has trained, or had when it was stopped"),
    ("test", "test score of the weights of the best epoch; choose by it and it is no test any more"),
    ("train s", "seconds in training steps, beside the other trials"),
    ("end", "finished; stopped by the scheduler; failed"),
)


@dataclass(frozen=True)
class Sweep:
    """What a page shows."""

    job: str
    metric: str
    lower: bool  # is better
    planned: int  # trials
    records: Sequence[Record]
    curves: Mapping[int, Sequence[Mapping[str, Any]]]  # {"epoch", "score"} by trial
    commands: Mapping[int, str]  # that run a trial alone
    about: Mapping[str, str]


def ranked(records: Sequence[Record], lower: bool) -> list[Record]:
    """Best first; equal scores in the order of their numbers, failed trials last."""

    def place(record: Record) -> tuple[bool, float, int]:
        score = record["score"]
        return score is None, 0.0 if score is None else score if lower else -score, record["number"]

    return sorted(records, key=place)


def option_names(records: Sequence[Record]) -> list[str]:
    """The options that were tried, in the order of the search space."""
    return list(dict.fromkeys(name for record in records for name in record["options"]))


def cells(record: Record, names: Sequence[str]) -> list[str]:
    """One row: the trial, its options, the columns above."""
    return [
        str(record["number"]),
        *(record["options"].get(name, "") for name in names),
        _figure(record["score"], ".4f"),
        _figure(record["best_epoch"], "d"),
        str(record["epochs"]),
        _test_score(record["scores"]),
        _figure(record["train_s"], ".1f"),
        record["status"],
    ]


def _test_score(scores: Mapping[str, float]) -> str:
    if "test_estimate" in scores:
        return f"{scores['test_estimate']:.4f} (estimate)"
    return _figure(scores.get("test"), ".4f")


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def print_table(records: Sequence[Record], metric: str, lower: bool) -> None:
    """To standard output, as Markdown."""
    names = option_names(records)
    columns = ["trial", *names, metric, *(name for name, _ in _COLUMNS[1:])]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for record in ranked(records, lower):
        print(f"| {' | '.join(cells(record, names))} |")
    for record in records:
        if record["cause"]:
            print(f"failed: trial {record['number']}: {record['cause']}")


def write_report(out: Path, sweep: Sweep) -> None:
    """Writes trials.csv and sweep.html."""
    _write_csv(out / "trials.csv", sweep)
    write_atomic(out / "sweep.html", html(sweep))


def _write_csv(path: Path, sweep: Sweep) -> None:
    """All trials, best first, every figure to its last digit."""
    flat = [
        {
            "trial": record["number"],
            **record["options"],
            sweep.metric: record["score"],
            **{name: record[name] for name in ("best_epoch", "epochs", "status", "cause", "train_s", "num_parameters")},
            **{f"{split}_score": value for split, value in record["scores"].items()},
            "command": sweep.commands[record["number"]],
        }
        for record in ranked(sweep.records, sweep.lower)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in flat for name in row)), restval="")
        writer.writeheader()
        writer.writerows(flat)


def html(sweep: Sweep) -> str:
    """The page; well-formed as XML too."""
    title = f"Sweep of {sweep.job}"
    order = ranked(sweep.records, sweep.lower)
    good = [record for record in order if record["score"] is not None]
    failed = [record for record in order if record["cause"]]
    better = "lower" if sweep.lower else "higher"
    parts = [f"<h1>{escape(title)}</h1>", paragraph(f"Compared by {sweep.metric}; {better} is better.", "note")]
    if len(sweep.records) < sweep.planned:
        parts.append(
            paragraph(f"{sweep.planned - len(sweep.records)} of {sweep.planned} trials have not ended.", "bad")
        )
    parts.append(headline(_figures(sweep, good, failed)))
    if good:
        parts += [*_best(sweep, good[0]), heading("Trials"), _table(sweep, order)]
        parts += [heading("Scores"), cards([_curves(sweep, good), *_over_options(sweep, good)])]
    if failed:
        rows = [[str(one["number"]), _options(one), str(one["cause"])] for one in failed]
        parts += [
            heading("Failed trials"),
            card(table("What did not run to its end", ["trial", "options", "cause"], rows)),
        ]
    parts += [
        heading("Runs"),
        card(_links(order)),
        heading("Columns"),
        card(table("What the columns mean", ["", ""], _COLUMNS)),
        heading("Sweep"),
        card(table("What was tried, and where", ["", ""], [[name, value] for name, value in sweep.about.items()])),
    ]
    return page(title, parts)


def _figures(sweep: Sweep, good: Sequence[Record], failed: Sequence[Record]) -> list[Figure]:
    found = []
    if good:
        first, last = good[0], good[-1]
        found.append(Figure(f"best {sweep.metric}", _figure(first["score"], ".4f"), f"trial {first['number']}"))
        if len(good) > 1:
            found.append(Figure("worst", _figure(last["score"], ".4f"), f"trial {last['number']}"))
    stopped = sum(one["status"] == "stopped" for one in good)
    found.append(Figure("trials", str(len(sweep.records)), f"of {sweep.planned}"))
    found.append(Figure("stopped early", str(stopped)))
    found.append(Figure("failed", str(len(failed))))
    return found


def _best(sweep: Sweep, best: Record) -> list[str]:
    return [
        heading("The best trial"),
        card(
            paragraph(f"{_options(best)}: {sweep.metric} {best['score']!r} at epoch {best['best_epoch']}.")
            + paragraph("The same scores, to the last digit, come from the job alone:", "note")
            + paragraph(sweep.commands[best["number"]])
        ),
    ]


def _options(record: Record) -> str:
    return ", ".join(f"{name}={value}" for name, value in record["options"].items()) or "no options"


def _table(sweep: Sweep, order: Sequence[Record]) -> str:
    names = option_names(order)
    columns = ["trial", *names, sweep.metric, *(name for name, _ in _COLUMNS[1:])]
    meanings = ["", *("" for _ in names), *(meaning for _, meaning in _COLUMNS)]
    rows = [cells(record, names) for record in order]
    return card(table("All trials, best first", columns, rows, figures=True, meanings=meanings))


def _curves(sweep: Sweep, good: Sequence[Record]) -> str:
    """The score over epochs, of as many of the best as there are colours."""
    shown = good[:NUM_COLOURS]
    lines = [
        Line(
            Series(
                f"trial {record['number']}",
                [(one["epoch"], one["score"]) for one in sweep.curves[record["number"]]],
                "line" if record["status"] == "finished" else "dashed",
            ),
            colour,
        )
        for colour, record in enumerate(shown)
    ]
    some = f", the best {len(shown)}" if len(good) > len(shown) else ""
    ring = (shown[0]["best_epoch"], shown[0]["score"])
    return line_plot(f"{sweep.metric} by epoch{some}", "epoch", sweep.metric, lines, whole_x=True, ring=ring)


def _over_options(sweep: Sweep, good: Sequence[Record]) -> list[str]:
    """The score over each option whose values are numbers."""
    plots = []
    for name in option_names(good):
        points = []
        for record in good:
            try:
                x = float(record["options"][name])
            except ValueError:
                break
            if not math.isfinite(x):
                break
            points.append((x, record["score"]))
        values = {x for x, _ in points}
        if len(points) < len(good) or len(values) < 2:
            continue
        spread = min(values) > 0 and max(values) / min(values) >= 8
        lines = [Line(Series(sweep.metric, sorted(points), "dot"), 0)]
        plots.append(
            line_plot(
                f"Best {sweep.metric} over {name}",
                name,
                sweep.metric,
                lines,
                x_scale="log" if spread else "linear",
                whole_x=not spread and all(x.is_integer() for x in values),
            )
        )
    return plots


def _links(order: Sequence[Record]) -> str:
    items = [
        f'<li><a href="trial-{one["number"]:03d}/report.html">trial {one["number"]}</a>: {escape(_options(one))}</li>'
        for one in order
        if one["epochs"]
    ]
    return f"<ul>{''.join(items)}</ul>" if items else paragraph("No trial has left a report.", "note")
