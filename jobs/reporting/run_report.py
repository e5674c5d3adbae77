"""One run's page: scores beside baselines, curves, where time went, faults survived, settings; beside another run where one is given."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from jobs.reporting.html_page import Figure, card, cards, folded, heading, headline, page, paragraph, stacked_bar, table
from jobs.reporting.line_plot import Line, line_plot, number
from jobs.reporting.ratio_plot import Series
from jobs.run.run_record import Partition, PartitionTraffic, RunRecord, flat, is_number, shown
from jobs.run.verdict import BASELINE_NAMES

_LOWER_IS_BETTER = ("mae", "rmse", "mse", "loss")
_LONGEST_NAME = 24
_NOT_COMPARED = ("run.run_dir", "run.resume")

# Stages of the sampling threads' work, as `samplers.loader` names them.
_STAGES = (
    ("plan_s", "plan", "choosing the roots"),
    ("sample_s", "sample", "drawing neighbours, making the batch"),
    ("fetch_s", "fetch", "rows of features and labels, from files or partition servers"),
    ("collate_s", "collate", "arrays to tensors"),
    ("pin_s", "pin", "into page-locked memory"),
    ("copy_s", "copy", "to the GPU"),
    ("blocked_s", "blocked", "finished batches waited for the model: not work, and no loss"),
)
_RATES = (("roots_per_s", "Roots or graphs per second"), ("nodes_per_s", "Nodes per second"), ("edges_per_s", "Edges per second"))  # fmt: skip


def run_page(run: RunRecord, partitions: Sequence[Partition] | None = None, other: RunRecord | None = None) -> str:
    """The page. `partitions`: of the run's graph, where they are known; `other`: a run to compare with."""
    job = (run.summary or {}).get("job")
    title = f"{job}: {run.name}" if isinstance(job, str) else run.name
    parts = [f"<h1>{escape(title)}</h1>", *_state(run)]
    if other is not None:
        parts.append(paragraph(f"Compared with {other.name} (dashed lines).", "note"))
    parts += [headline(_figures(run)), *_scores(run)]
    if other is not None:
        parts += _comparison(run, other)
    parts += [
        *_curves(run, other),
        *_times(run),
        *_partitions(partitions, run.traffic),
        *_faults(run),
        *_settings(run),
        *_environment(run),
        *_epoch_table(run),
        paragraph(f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from the run's own files.", "note"),
    ]
    return page(title, parts)


def _state(run: RunRecord) -> list[str]:
    done, planned = len(run.epochs), run.planned_epochs
    epochs = f"{done} of {planned} epochs" if planned else f"{done} epochs"
    data = (run.summary or {}).get("graph") or (run.summary or {}).get("graphs")
    on = f" on {data}" if isinstance(data, str) else ""
    if run.state == "failed":
        return [
            paragraph(f"Failed after {epochs}{on}.", "bad"),
            paragraph(f"Cause: {run.failure}", "bad"),
            paragraph("What is below is what the run had recorded by then."),
        ]
    if run.state == "finished":
        return [paragraph(f"Finished, {epochs}{on}.", "note")]
    return [
        paragraph(f"Not finished: {epochs} recorded so far. Its files do not tell whether it is still going.", "note")
    ]


def _figures(run: RunRecord) -> list[Figure]:
    summary, metric = run.summary or {}, run.metric
    found = []
    if metric is not None:
        told = _told(run, metric)
        for split in ("test", "valid"):
            if is_number(run.scores.get(split)):
                found.append(Figure(f"{split} {told}", number(run.scores[split]), _rival(summary, metric, split)))
        best = _best(run)
        if best is not None:
            found.append(Figure(f"best valid {told} of the epochs", number(best[1]), f"epoch {best[0]:.0f}"))
    loss = run.series("train_loss")
    if loss:
        found.append(
            Figure("training loss", number(loss[-1][1]), f"epoch {loss[-1][0]:.0f}; first {number(loss[0][1])}")
        )
    rate = next((name for name, _ in _RATES if run.mean_rate(name)), None)
    if rate is not None:
        words = {"roots_per_s": "roots/s", "nodes_per_s": "nodes/s", "edges_per_s": "edges/s"}
        found.append(
            Figure("throughput", f"{number(run.mean_rate(rate) or 0)} {words[rate]}", "mean over the training time")
        )
    train_s, wait_s = run.total("train_s"), run.total("wait_s")
    if train_s:
        found.append(Figure("training time", _duration(train_s), f"{number(train_s / len(run.epochs))} s an epoch"))
        if wait_s is not None:
            found.append(Figure("waited for batches", f"{wait_s / train_s:.1%}", "of rank 0's training time"))
    if is_number(summary.get("wall_s")):
        found.append(Figure("whole job", _duration(summary["wall_s"]), "preparing, baselines and scoring too"))
    if is_number(summary.get("num_parameters")):
        found.append(Figure("parameters", f"{summary['num_parameters']:,}", f"{shown(summary.get('workers'))} workers, {shown(summary.get('device'))}"))  # fmt: skip
    if run.restarts is not None:
        found.append(Figure("faults survived", str(len(run.restarts)), "starts of the workers after a fault"))
    return found


def _rival(summary: Mapping[str, Any], metric: str, split: str) -> str:
    rivals = {name: scores[split] for name, scores in _baselines(summary).items() if is_number(scores.get(split))}
    if not rivals:
        return ""
    name = (min if metric in _LOWER_IS_BETTER else max)(rivals, key=lambda one: rivals[one])
    return f"{name}: {number(rivals[name])}"


def _told(run: RunRecord, name: str) -> str:
    """A score's name for people."""
    return f"{name} (estimate)" if run.is_estimate else name


def _best(run: RunRecord) -> tuple[float, float] | None:
    """(epoch from 1, score) of the epoch whose weights were kept for its score."""
    kept = run.series("best_epoch_by_estimate" if run.is_estimate else "best_epoch")
    scores = dict(run.series(run.valid(run.metric or "")))
    if not kept or kept[-1][1] + 1 not in scores:
        return None
    epoch = kept[-1][1] + 1
    return epoch, scores[epoch]


def _baselines(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    given = _mapping(summary.get("baselines"))
    return {BASELINE_NAMES.get(name, name): scores for name, scores in given.items() if isinstance(scores, Mapping)}


def _scores(run: RunRecord) -> list[str]:
    summary = run.summary
    if summary is None:
        return [paragraph("No final scores: they and the baselines' are written when the job ends.", "note")]
    rows = {_told(run, "this run"): run.scores, **_baselines(summary)}
    splits = [s for s in ("train", "valid", "test") if any(is_number(scores.get(s)) for scores in rows.values())]
    if not splits:
        return []
    cells = [[name, *(_value(scores.get(split)) for split in splits)] for name, scores in rows.items()]
    metric = run.metric or "score"
    better = "lower is better" if metric in _LOWER_IS_BETTER else "higher is better"
    found = [
        heading("Scores beside the baselines"),
        table(f"{metric} ({better})", ["", *splits], cells, figures=True),
    ]
    if run.estimate is not None:
        found.append(paragraph(f"The run's scores are estimates: {run.estimate}.", "bad"))
    verdict, warnings = summary.get("beats_baselines"), summary.get("warnings")
    if verdict is True:
        found.append(paragraph("The model beats the baselines.", "good"))
    else:  # None: of estimates, which warn too
        said = [str(text) for text in warnings] if isinstance(warnings, list) else []
        if verdict is False and not said:
            said = ["the model does not beat all baselines"]
        found += [paragraph(f"Warning: {text}.", "bad") for text in said]
    return [found[0], cards([card("".join(found[1:]))])]


def _curves(run: RunRecord, other: RunRecord | None) -> list[str]:
    if not run.epochs:
        return [heading("Curves"), paragraph("No epoch is recorded yet.", "note")]
    metric = run.metric
    validation = (run.valid("loss"), _told(run, "validation"))
    plots = [_plot("Loss", "loss", run, other, [("train_loss", "training"), validation])]
    if metric is not None and metric != "loss":
        title = f"Validation {_told(run, metric)}"
        plots.append(_plot(title, metric, run, other, [(run.valid(metric), metric)], ring=_best(run)))
    plots.append(_plot("Learning rate", "rate", run, other, [("learning_rate", "learning rate")], from_zero=True))
    known = {run.valid(name) for name in (metric, "loss") if name is not None}
    prefix = run.valid("")
    more = sorted(name.removeprefix(prefix) for name in {*run.epoch_names} - known if name.startswith(prefix))
    plots += [_plot(f"Validation {_told(run, name)}", name, run, other, [(run.valid(name), name)]) for name in more]
    speed = [_plot(title, "per second", run, other, [(name, title)], from_zero=True) for name, title in _RATES]
    times = [("train_s", "training"), ("wait_s", "of it waiting"), ("eval_s", "validation")]
    speed.append(_plot("Seconds of an epoch", "seconds", run, other, times, from_zero=True))
    return [
        heading("Curves"),
        cards([plot for plot in plots if plot]),
        heading("Throughput by epoch"),
        cards([plot for plot in speed if plot]),
    ]


def _plot(
    title: str,
    y_label: str,
    run: RunRecord,
    other: RunRecord | None,
    names: Sequence[tuple[str, str]],
    *,
    from_zero: bool = False,
    ring: tuple[float, float] | None = None,
) -> str:
    """One card, or nothing where this run has none of the values."""
    lines = []
    for colour, (name, told) in enumerate(names):
        points = run.series(name)
        if points:
            lines.append(Line(Series(told, points), colour))
        others = [] if other is None else other.series(name)
        if points and others:
            assert other is not None
            lines.append(Line(Series(f"{told}, {_other_name(run, other)}", others, "dashed"), colour))
    if not lines:
        return ""
    return line_plot(title, "epoch", y_label, lines, whole_x=True, from_zero=from_zero, ring=ring)


def _times(run: RunRecord) -> list[str]:
    train_s, wait_s = run.total("train_s"), run.total("wait_s")
    if not train_s or wait_s is None:
        return []
    batches = run.total("batches")
    compute_s = max(train_s - wait_s, 0.0)
    found = [
        heading("Where a step's time goes"),
        _breakdown(
            "The training loop of rank 0",
            [
                ("compute", compute_s, "forward, backward, the workers' common gradient, the optimizer"),
                ("wait", wait_s, "the next batch was not ready: sampling is slower than the model"),
            ],
            batches,
        ),
    ]
    stages = [(name, run.total(key), meaning) for key, name, meaning in _STAGES]
    known = [(name, seconds, meaning) for name, seconds, meaning in stages if seconds]
    missing = []
    if known:
        found.append(_breakdown("Its sampling threads, beside that loop (summed over threads)", known, batches))
    else:
        text = "The sampling threads' stages were not recorded by the version that made this run."
        missing.append(paragraph(text, "note"))
    eval_s = run.total("eval_s")
    summary = run.summary or {}
    if eval_s is not None:
        whole = [("training", train_s, "steps"), ("validation", eval_s, "after epochs")]
        rest = summary["wall_s"] - train_s - eval_s if is_number(summary.get("wall_s")) else 0.0
        if rest > 0 and (run.parts or 1) == 1:
            whole.append(("the rest", rest, "preparing, baselines, starting workers, checkpoints, final scores"))
        found.append(_breakdown("The job", whole, None))
    return [found[0], cards(found[1:]), *missing]


def _breakdown(title: str, parts: Sequence[tuple[str, float, str]], batches: float | None) -> str:
    """A bar, and the numbers that it shows."""
    whole = sum(seconds for _, seconds, _ in parts) or 1.0
    columns = ["", "seconds", "share", *(["ms a batch"] if batches else [])]
    rows = [
        [name, number(round(seconds, 3)), f"{seconds / whole:.1%}", *([number(1e3 * seconds / batches)] if batches else [])]
        for name, seconds, _ in parts
    ]  # fmt: skip
    bar = stacked_bar(title, [(name, seconds, colour) for colour, (name, seconds, _) in enumerate(parts)])
    notes = "; ".join(f"{name}: {meaning}" for name, _, meaning in parts)
    body = table(title, columns, rows, figures=True, swatches=list(range(len(parts))))
    return card(body + bar + paragraph(notes, "note"))


def _partitions(partitions: Sequence[Partition] | None, traffic: Sequence[PartitionTraffic]) -> list[str]:
    tables = [*_stored(partitions), *_asked(traffic)]
    return [heading("Load by partition"), cards(tables)] if tables else []


def _stored(partitions: Sequence[Partition] | None) -> list[str]:
    if not partitions:
        return []
    nodes, size = sum(p.nodes for p in partitions) or 1, sum(p.num_bytes for p in partitions) or 1
    rows = [
        [str(k), f"{p.nodes:,}", f"{p.nodes / nodes:.1%}", f"{p.num_bytes / 2**20:,.1f}", f"{p.num_bytes / size:.1%}"]
        for k, p in enumerate(partitions)
    ]
    columns = ["partition", "nodes", "share", "MiB", "share"]
    return [card(table("What each partition holds, as stored", columns, rows, figures=True))]


def _asked(traffic: Sequence[PartitionTraffic]) -> list[str]:
    if not traffic:
        return []
    total = sum(t.remote_bytes + t.local_bytes for t in traffic) or 1
    rows = [
        [
            str(k),
            f"{t.remote_requests:,}",
            f"{t.remote_bytes / 2**20:,.1f}",
            f"{t.local_requests:,}",
            f"{t.local_bytes / 2**20:,.1f}",
            f"{(t.remote_bytes + t.local_bytes) / total:.1%}",
        ]
        for k, t in enumerate(traffic)
    ]
    columns = ["partition", "requests to servers", "MiB", "read in process", "MiB", "share of bytes"]
    note = (
        "Training and validation of all workers, epochs that were trained again included; what workers asked in an epoch that a fault "
        "cut off is missing. Bytes of requests and replies; of what is read in process, as many as they would have been."
    )
    return [
        card(table("What the workers asked of each partition", columns, rows, figures=True) + paragraph(note, "note"))
    ]


def _faults(run: RunRecord) -> list[str]:
    found = [heading("Faults")]
    if run.restarts is None:
        return [*found, paragraph("Not recorded by the version that made this run.", "note")]
    found += [paragraph(f"A damaged checkpoint was passed over: {what}", "bad") for what in run.damages]
    found += [paragraph(f"Saved and ended on request (Ctrl-C or SIGTERM) at {where}.", "note") for where in run.stops]
    if not run.restarts:
        text = "None: the workers started once"
        text += f" in each of the run's {run.parts} parts." if (run.parts or 1) > 1 else "."
        return [*found, paragraph(text)]
    rows = [
        [one.time.removesuffix("+00:00").replace("T", " "), str(one.epoch + 1), str(one.repeated)]
        for one in run.restarts
    ]
    columns = ["time (UTC)", "continued with epoch", "epochs trained again"]
    return [*found, card(table("Starts of the workers after a fault", columns, rows))]


def _comparison(run: RunRecord, other: RunRecord) -> list[str]:
    name = _other_name(run, other)
    found = [heading(f"Beside {name}")]
    for key, what in (("metric", "metrics"), ("graph_hash", "graphs"), ("graphs_hash", "graphs")):
        values = {str(one.summary[key]) for one in (run, other) if one.summary and key in one.summary}
        if len(values) > 1:
            found.append(paragraph(f"The runs have different {what}: their scores cannot be compared.", "bad"))
    if run.is_estimate != other.is_estimate:
        found.append(
            paragraph("One run's scores are estimates, the other's are exact: they cannot be compared.", "bad")
        )
    rows = []
    for label, here, there in _compared(run, other):
        if here is None and there is None:
            continue
        difference = "–"
        if here is not None and there is not None:
            difference = f"{'-' if here < there else '+'}{number(abs(here - there))}"
        rows.append([label, _value(here), _value(there), difference])
    tables = [card(table("Figures of both runs", ["", "this run", name, "difference"], rows, figures=True))]
    mine, theirs = flat(run.config), flat(other.config)
    names = [n for n in dict.fromkeys([*mine, *theirs]) if n not in _NOT_COMPARED and mine.get(n) != theirs.get(n)]
    if names:
        cells = [[n, mine.get(n, "–"), theirs.get(n, "–")] for n in names]
        tables.append(card(table("Settings that differ", ["setting", "this run", name], cells)))
    else:
        found.append(paragraph("Both runs have the same settings."))
    return [*found, cards(tables)]


def _compared(run: RunRecord, other: RunRecord) -> list[tuple[str, float | None, float | None]]:
    def of(one: RunRecord) -> dict[str, float | None]:
        summary, metric = one.summary or {}, one.metric or "score"
        best = _best(one)
        loss = one.series("train_loss")
        train_s, wait_s = one.total("train_s"), one.total("wait_s")
        return {
            f"test {_told(one, metric)}": one.scores.get("test"),
            f"valid {_told(one, metric)}": one.scores.get("valid"),
            f"best valid {_told(one, metric)} of the epochs": None if best is None else best[1],
            "kept epoch": None if best is None else best[0],
            "last training loss": loss[-1][1] if loss else None,
            "epochs": float(len(one.epochs)),
            "training seconds": train_s,
            "seconds an epoch": train_s / len(one.epochs) if train_s else None,
            "waited, share": wait_s / train_s if train_s and wait_s is not None else None,
            **{title.lower(): one.mean_rate(name) for name, title in _RATES},
            "parameters": summary.get("num_parameters"),
            "workers": summary.get("workers"),
        }

    mine, theirs = of(run), of(other)
    rows = [(name, mine.get(name), theirs.get(name)) for name in dict.fromkeys([*mine, *theirs])]
    return [(name, a if is_number(a) else None, b if is_number(b) else None) for name, a, b in rows]


def _settings(run: RunRecord) -> list[str]:
    loose = {name: value for name, value in run.config.items() if not isinstance(value, Mapping)}
    sections = {name: value for name, value in run.config.items() if isinstance(value, Mapping)}
    if loose:
        sections = {"other": loose, **sections}
    tables = [
        card(table(name, ["", ""], [[key, value] for key, value in flat(section).items()]))
        for name, section in sections.items()
    ]
    return [heading("Settings"), cards(tables)]


def _environment(run: RunRecord) -> list[str]:
    found = [heading("Environment")]
    if run.environment is None:
        return [*found, paragraph("Not recorded by the version that made this run.", "note")]
    rows = [[name.removeprefix("packages."), value] for name, value in flat(run.environment).items()]
    return [*found, card(table("Versions and machine of the latest part of the run", ["", ""], rows))]


def _epoch_table(run: RunRecord) -> list[str]:
    if not run.epochs:
        return []
    names = list(dict.fromkeys(name for epoch in run.epochs for name in epoch if name != "epoch"))
    rows = [[str(int(epoch["epoch"]) + 1), *(_value(epoch.get(name)) for name in names)] for epoch in run.epochs]
    body = table("All that was recorded, by epoch", ["epoch", *names], rows, figures=True)
    return [heading("Numbers"), card(folded("Every epoch as a table", body))]


def _other_name(run: RunRecord, other: RunRecord) -> str:
    """A name for legends and columns."""
    name = other.name if len(other.name) <= _LONGEST_NAME else other.name[: _LONGEST_NAME - 1] + "…"
    return name if other.name != run.name else f"{name} (the other)"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _value(value: Any) -> str:
    return number(value) if is_number(value) else "–"


def _duration(seconds: float) -> str:
    if not is_number(seconds):
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
