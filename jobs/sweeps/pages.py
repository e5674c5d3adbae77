"""Writes the output of a sweep: the printed table, and the page and CSV file of all trials."""

import os
import platform
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphmill.jobs.records.verdict import BASELINE_NAMES
from graphmill.jobs.reporting.page import print_markdown
from graphmill.jobs.reporting.tune_report import Sweep, write_report
from graphmill.jobs.sweeps.design import SweepDesign, lower_is_better, say
from graphmill.jobs.sweeps.trials import scores
from graphmill.jobs.sweeps.tuned_baselines import Classic, spread

_REPEATS = ("fit.seed", "data.split_set")
_RATES = {
    "nodes/s": ("nodes_per_s", ",.0f"),
    "edges/s": ("edges_per_s", ",.0f"),
    "graphs/s": ("roots_per_s", ",.0f"),
    "waits": ("wait_share", ".1%"),
}


def print_table(records: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Prints a row for each combination, best first: mean ± standard deviation over the seeds, for all splits that have a score."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        options = {path: value for path, value in record["options"].items() if path not in _REPEATS}
        groups.setdefault(say(options) or "as it is", []).append(record)
    sign = 1 if lower_is_better(metric) else -1
    rows = []
    for name, same in groups.items():
        scored = [one for one in same if one["score"] is not None]
        if not scored:
            continue
        scores_of = [one["score"] for one in scored]
        tests = [one["scores"].get("test", one["scores"].get("test_estimate")) for one in scored]
        cells = [name, spread(scores_of), spread([score for score in tests if score is not None])]
        cells += [_mean([one[key] for one in scored if key in one], form) for key, form in _RATES.values()]
        cells += [_mean([one["train_s"] / max(one["epochs"], 1) for one in scored], ",.2f")]
        cells += [_mean([one["peak_bytes"] / 1e9 for one in scored if one.get("peak_bytes")], ",.2f")]
        rows.append((sign * statistics.fmean(scores_of), [*cells, " ".join(str(one["number"]) for one in scored)]))
    columns = ["options", metric, "test", *_RATES, "s per epoch", "peak GB", "trials"]
    table = [cells for _, cells in sorted(rows, key=lambda row: row[0])]
    filled = [i for i in range(len(columns)) if any(row[i] != "–" for row in table)]
    print_markdown([columns[i] for i in filled], [[row[i] for i in filled] for row in table])


def _mean(values: Sequence[float], form: str) -> str:
    return format(statistics.fmean(values), form) if values else "–"


def write_pages(
    plan: SweepDesign,
    words: Sequence[str],
    kind: str,
    records: Sequence[Mapping[str, Any]],
    metric: str,
    planned: int,
    out: Path,
    classic: Sequence[Classic] = (),
) -> None:
    """Writes trials.csv and sweep.html."""
    options = plan.options
    better = "lower" if lower_is_better(metric) else "higher"
    about = {
        "begins from": options.recipe or (f"the study {options.study}" if options.study else "the model's defaults"),
        "grid": "; ".join(f"{path}={','.join(values)}" for path, values in plan.axes.items()) or "none",
        "drawn": "; ".join(options.draw) or "nothing",
        "metric": f"{metric}, the best of each trial's epochs; {better} is better",
        **{f"baseline {one.name}": str(one) for one in classic},
        "every trial's options": shlex.join(words) or "none besides",
        "processor": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
    }
    runs = {one["number"]: out / f"trial-{one['number']:03d}" for one in records}
    curves = {
        one["number"]: [
            {"epoch": epoch, "score": score}
            for epoch, score in scores(runs[one["number"]], metric)
            if epoch <= one["epochs"]
        ]
        for one in records
    }
    commands = {number: f"graphmill train_{kind} {shlex.quote(f'{path}.yaml')}" for number, path in runs.items()}
    write_report(
        out,
        Sweep(
            f"train_{kind}",
            metric,
            lower_is_better(metric),
            planned,
            records,
            curves,
            commands,
            about,
            {BASELINE_NAMES[one.name]: one.mean("valid") for one in classic},
        ),
    )
