"""Makes the page of a run: scores and baselines, curves, the time of each part, survived faults, settings. The page can also compare the run with another
run."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import nan
from typing import Any, NamedTuple, TypeVar

from graphmill.core.summaries import counted
from graphmill.jobs.records.run_record import (
    Partition,
    PartitionTraffic,
    RankSeconds,
    Run,
    flat_text,
    is_number,
    setting_text,
)
from graphmill.jobs.records.verdict import BASELINE_NAMES, metric_of_one
from graphmill.jobs.reporting.page import duration, number, render, short_number, value_text, when
from graphmill.jobs.reporting.plot import Line, Plot

_LOWER_IS_BETTER = ("mae", "rmse", "mse", "loss")
_LONGEST_NAME = 24
_MOST_CURVES = 30  # maximum number of plots of scores; the table of epochs has all scores
_MOST_ROWS = 200  # maximum number of rows in a table of partitions or ranks
_MOST_EPOCHS = 1000  # maximum number of rows in the table of epochs
_MOST_CLASSES = 5  # with more classes, a table of the largest confusions replaces a column for each class
_MOST_CONFUSIONS = 15
_NOT_COMPARED = ("run.dir", "run.resume")  # differ in any two runs
_TEXTS = ("reasons", "chosen")  # entries of "resolved" that the page shows as a table
_FROM_0 = ("epoch", "best_epoch", "best_epoch_by_estimate")  # records count from 0, a page counts from 1
Item = TypeVar("Item")
Form = Callable[[float], str]
_RATES = {
    "roots_per_s": "Roots or graphs per second",
    "nodes_per_s": "Nodes per second",
    "edges_per_s": "Edges per second",
}


class Figure(NamedTuple):
    """A figure of a run. A figure without a `note` appears only in comparisons."""

    value: float
    exact: Form
    short: Form  # with three significant digits and the unit
    note: str


def run_page(run: Run, partitions: Sequence[Partition] | None = None, other: Run | None = None) -> str:
    """The page of a run. `partitions`: partitions of the run's graph, if known. `other`: a run to compare with."""
    summary = run.summary
    job = summary.get("job")
    warnings, lacks, audited = (
        [str(text) for text in given] if isinstance(given := summary.get(name), list) else []
        for name in ("warnings", "lacks", "audit")
    )
    if summary.get("beats_baselines") is False and not warnings:
        warnings = ["the model does not beat all baselines"]
    warnings += lacks
    by_name = {_score_label(run, "this run"): run.scores, **_baselines(run)}
    splits = [s for s in ("train", "valid", "test") if any(is_number(scores.get(s)) for scores in by_name.values())]
    score_rows = [[name, *(value_text(scores.get(s)) for s in splits)] for name, scores in by_name.items()]
    config = _settings(run)
    loose = {name: value for name, value in config.items() if not isinstance(value, Mapping)}
    sections = {name: value for name, value in config.items() if isinstance(value, Mapping)}
    names = list(dict.fromkeys(["epoch", *run.epoch_names]))
    return render(
        "run.html.j2",
        title=f"{job}: {run.name}" if isinstance(job, str) else run.name,
        run=run,
        metric=_score_label(run, run.metric or "score"),
        lower=_is_lower(run),
        figures=_figures(run),
        score_columns=["", *splits],
        score_rows=score_rows if splits else [],
        **_by_class(run),
        chosen=_chosen(run),
        warnings=warnings,
        audited=audited,
        **_comparison(run, other),
        curves=_curves(run, other),
        throughput=_throughput(run, other),
        stored=_stored(partitions or ()),
        num_partitions=len(partitions or ()),
        asked=_asked(run.traffic),
        ranks=_ranks(run.ranks),
        restarts=[[when(one.time), str(one.epoch + 1), str(one.repeated)] for one in run.restarts or ()],
        sections={"other": loose, **sections} if loose else sections,
        environment=[[name.removeprefix("packages."), text] for name, text in flat_text(run.environment or {}).items()],
        epoch_columns=names,
        epoch_rows=[[_epoch_cell(epoch, name) for name in names] for epoch in _spaced(run.epochs)],
        written=datetime.now(UTC).isoformat(timespec="minutes"),
    )


def _is_lower(run: Run) -> bool:
    """Whether lower scores are better."""
    return run.metric in _LOWER_IS_BETTER or (run.summary or {}).get("higher_is_better") is False


def _settings(run: Run) -> dict[str, Any]:
    """The run's configuration, without the texts that explain its choices."""
    resolved = run.config.get("resolved")
    if not isinstance(resolved, Mapping):
        return dict(run.config)
    return {**run.config, "resolved": {name: value for name, value in resolved.items() if name not in _TEXTS}}


def _chosen(run: Run) -> list[list[str]]:
    """(option, value, reason) for each option that was chosen automatically. Notes that belong to no option have only a reason."""
    resolved = run.config.get("resolved")
    notes, chosen = ((resolved.get(name) if isinstance(resolved, Mapping) else None) or () for name in _TEXTS)
    rows = []
    for text in [*chosen, *notes] if isinstance(chosen, list | tuple) and isinstance(notes, list | tuple) else []:
        choice, colon, reason = str(text).partition(": ")
        option, _, value = choice.partition(" ")
        is_option = bool(colon) and option.startswith("--")
        rows.append([option.removeprefix("--"), value, reason] if is_option else ["the run", "–", str(text)])
    return rows


def _by_class(run: Run) -> dict[str, list[list[str]]]:
    """Tables of the judged split. "by_class": the scores of each class and, if there are few classes, the number of its nodes that got each predicted class.
    "confusions": if there are many classes, the largest confusions. Both are empty if the run has no scores by class.
    """
    scores = run.summary.get("all_scores", {}).get("test" if "test" in run.scores else "valid", {})
    classes, confusion = scores.get("by_class", {}), scores.get("confusion", ())
    if not classes:
        return {"by_class": [], "confusions": []}
    names, is_few = list(classes), len(classes) <= _MOST_CLASSES
    header = ["", *next(iter(classes.values())), *(f"predicted {name}" for name in names if is_few)]
    rows = [
        [name, *map(value_text, [*scores_of_class.values(), *(counts if is_few else ())])]
        for (name, scores_of_class), counts in zip(classes.items(), confusion, strict=False)
    ]
    wrong = [
        (count, row, column)
        for row, counts in enumerate(confusion)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    largest = [] if is_few else sorted(wrong, key=lambda cell: (-cell[0], *cell[1:]))[:_MOST_CONFUSIONS]
    confusions = [
        [names[row], names[column], f"{count:,}", f"{count / sum(confusion[row]):.1%}"]
        for count, row, column in largest
    ]
    return {"by_class": [header, *rows], "confusions": confusions}


def _spaced(epochs: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """At most _MOST_EPOCHS epochs at equal distances, including the last epoch."""
    stride = max(1, -(-len(epochs) // _MOST_EPOCHS))
    return list(epochs[::-1][::stride])[::-1]


def _epoch_cell(epoch: Mapping[str, float], name: str) -> str:
    if name in _FROM_0 and name in epoch:
        return f"{epoch[name] + 1:.0f}"
    return value_text(epoch.get(name))


def _score_label(run: Run, name: str) -> str:
    """The displayed name of a score."""
    return f"{name} (estimate)" if run.is_estimate else name


def _best(run: Run) -> tuple[float, float] | None:
    """(epoch counted from 1, score) of the epoch whose weights were kept."""
    kept = run.series("best_epoch_by_estimate" if run.is_estimate else "best_epoch")
    scores = dict(run.series(run.valid(run.metric or "")))
    return (kept[-1][1] + 1, scores[kept[-1][1] + 1]) if kept and kept[-1][1] + 1 in scores else None


def _baselines(run: Run) -> dict[str, Mapping[str, Any]]:
    """Displayed name of a baseline -> scores by split."""
    given = run.summary.get("baselines")
    pairs = given.items() if isinstance(given, Mapping) else ()
    return {str(BASELINE_NAMES.get(name, name)): scores for name, scores in pairs if isinstance(scores, Mapping)}


def _baseline_scores(run: Run, split: str) -> dict[str, float]:
    """The scores of all baselines on a split."""
    return {name: scores[split] for name, scores in _baselines(run).items() if is_number(scores.get(split))}


def _best_baseline(run: Run, split: str) -> str:
    """Name and score of the best baseline, as text; empty if the run has no baselines."""
    rivals = [(score, name) for name, score in _baseline_scores(run, split).items()]
    score, name = (min if _is_lower(run) else max)(rivals, default=(0.0, ""))
    return f"{name}: {number(score)}" if rivals else ""


def _curves(run: Run, other: Run | None) -> list[Plot]:
    prefix = run.valid("")
    loss = {"train_loss": "training", run.valid("loss"): _score_label(run, "validation")}
    plots = [_plot("Loss", "loss", run, other, loss)]
    scores = {name.removeprefix(prefix) for name in run.epoch_names if name.startswith(prefix)} - {"loss"}
    for name in sorted(scores, key=lambda score: (score != run.metric, score))[:_MOST_CURVES]:
        plots.append(_plot(f"Validation {_score_label(run, name)}", name, run, other, {run.valid(name): name}))
    plots.append(_plot("Learning rate", "rate", run, other, {"learning_rate": "learning rate"}, from_zero=True))
    return [plot for plot in plots if plot.lines]


def _throughput(run: Run, other: Run | None) -> list[Plot]:
    plots = [_plot(title, "per second", run, other, {name: title}, from_zero=True) for name, title in _RATES.items()]
    times = {"train_s": "training", "wait_s": "of it waiting", "eval_s": "validation"}
    plots.append(_plot("Seconds of an epoch", "seconds", run, other, times, from_zero=True))
    return [plot for plot in plots if plot.lines]


def _plot(
    title: str, y_label: str, run: Run, other: Run | None, names: Mapping[str, str], from_zero: bool = False
) -> Plot:
    """A plot of recorded values; without lines if none was recorded. `names`: recorded name -> legend. The plot of the metric also has baselines."""
    lines = []
    for colour, (name, legend) in enumerate(names.items()):
        points = run.series(name)
        lines += [Line(legend, points, colour)] if points else []
        if points and other is not None and other.series(name):
            lines.append(Line(f"{legend}, {_short_name(run, other)}", other.series(name), colour, "dashed"))
    best = None
    if run.metric is not None and run.valid(run.metric) in names:
        best, start = _best(run), lines[0].points[0][0] if lines else 0
        for colour, (name, score) in enumerate(_baseline_scores(run, "valid").items() if lines else (), 1):
            lines.append(Line(f"{name}: {number(score)}", [(start, score)], colour, "level"))
    return Plot(title, "epoch", y_label, lines, whole_x=True, from_zero=from_zero, best=best)


def _largest(items: Sequence[Item], size: Callable[[Item], float]) -> list[tuple[int, Item]]:
    """(position, item) of the _MOST_ROWS largest items, in order of position."""
    numbers = sorted(range(len(items)), key=lambda k: -size(items[k]))[:_MOST_ROWS]
    return [(k, items[k]) for k in sorted(numbers)]


def _stored(partitions: Sequence[Partition]) -> list[list[str]]:
    nodes, size = sum(p.nodes for p in partitions) or 1, sum(p.num_bytes for p in partitions) or 1
    return [
        [str(k), f"{p.nodes:,}", f"{p.nodes / nodes:.1%}", _mib(p.num_bytes), f"{p.num_bytes / size:.1%}"]
        for k, p in _largest(partitions, lambda one: one.num_bytes)
    ]


def _asked(traffic: Sequence[PartitionTraffic]) -> list[list[str]]:
    total = sum(t.remote_bytes + t.local_bytes for t in traffic) or 1
    rows = []
    for k, t in _largest(traffic, lambda one: one.remote_bytes + one.local_bytes):
        remote, local = [f"{t.remote_requests:,}", _mib(t.remote_bytes)], [f"{t.local_requests:,}", _mib(t.local_bytes)]
        rows.append([str(k), *remote, *local, f"{(t.remote_bytes + t.local_bytes) / total:.1%}"])
    return rows


def _ranks(ranks: Sequence[RankSeconds]) -> list[list[str]]:
    """A row for each rank. With more than _MOST_ROWS ranks: rows for the ranks with the longest training time, without waits for other ranks."""

    def computing(one: RankSeconds) -> float:
        return one.seconds.get("train_s", 0.0) - one.seconds.get("wait_s", 0.0) - one.seconds.get("peers_s", 0.0)

    names = ("wait_s", "peers_s", "eval_s", "sample_s", "fetch_s", "collate_s")
    return [
        [str(one.rank), one.host, number(computing(one)), *(value_text(one.seconds.get(name)) for name in names)]
        for _, one in _largest(ranks, lambda one: computing(one) + one.seconds.get("wait_s", 0.0))
    ]


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f}"


def _comparison(run: Run, other: Run | None) -> dict[str, Any]:
    """Values for the part of the page that compares two runs."""
    if other is None:
        return {"other": None}
    cautions = []
    for key, what in (("metric", "metrics"), ("graph_hash", "graphs"), ("graphs_hash", "graphs")):
        values = {str(one.summary[key]) for one in (run, other) if one.summary and key in one.summary}
        if len(values) > 1:
            cautions.append(f"The runs have different {what}: their scores cannot be compared.")
    if run.is_estimate != other.is_estimate:
        cautions.append("One run's scores are estimates, the other's are exact: they cannot be compared.")
    here, there = _figures(run), _figures(other)
    compared, differing = [], []
    for name in dict.fromkeys([*here, *there]):
        pair = here.get(name), there.get(name)
        texts = ["–" if figure is None else figure.exact(figure.value) for figure in pair]
        change = nan if None in pair else here[name].value - there[name].value
        if change == 0:
            compared.append([name, *texts, "same"])
            continue
        differing.append(name)
        sign = "-" if change < 0 else "+"
        compared.append([name, *texts, sign + here[name].short(abs(change)) if is_number(change) else "–"])
    ours, theirs = flat_text(_settings(run)), flat_text(_settings(other))
    names = [n for n in dict.fromkeys([*ours, *theirs]) if n not in _NOT_COMPARED and ours.get(n) != theirs.get(n)]
    return {
        "other": other,
        "other_name": _short_name(run, other),
        "cautions": cautions,
        "compared": compared,
        "differing": differing,
        "differences": [[name, ours.get(name, "–"), theirs.get(name, "–")] for name in names],
    }


def _figures(run: Run) -> dict[str, Figure]:
    """The run's figures by name, the most important first."""
    figures: dict[str, Figure] = {}

    def add(name: str, value: Any, note: str = "", exact: Form = number, short: Form | None = None) -> None:
        if is_number(value):
            figures[name] = Figure(value, exact, short or (short_number if exact is number else exact), note)

    summary, metric = run.summary, _score_label(run, run.metric or "score")
    loss, train_s, wait_s = run.series("train_loss"), run.total("train_s"), run.total("wait_s")
    for split in ("test", "valid"):
        add(f"{split} {metric}", run.scores.get(split), _best_baseline(run, split) or "no baseline to compare with")
        for name, value in summary.get("all_scores", {}).get(split, {}).items():
            if run.metric is not None and name.startswith(f"{metric_of_one(run.metric)}_"):
                add(f"{split} {name}", value, _best_baseline(run, f"{split}_{name}") or "of this target alone")
    for epoch, score in filter(None, [_best(run)]):
        add(f"best valid {metric} of the epochs", score, f"epoch {epoch:.0f}")
        add("kept epoch", epoch)
    if loss:
        add("training loss", loss[-1][1], f"epoch {loss[-1][0]:.0f}; first {number(loss[0][1])}")
    add("epochs", len(run.epochs))
    add("whole job", summary.get("wall_s"), "preparing, baselines and scoring too", duration)
    if train_s:
        add("training time", train_s, f"{duration(train_s / len(run.epochs))} an epoch", duration)
        add("time of an epoch", train_s / len(run.epochs), exact=duration)
        waited = None if wait_s is None else wait_s / train_s
        add("waited for batches", waited, "of rank 0's training time", "{:.1%}".format)
    for name, title in _RATES.items():
        rate = run.mean_rate(name)
        add(title.lower(), rate, "mean over the training time", short=lambda value: f"{short_number(value)}/s")
    workers = summary.get("workers")
    count = counted(workers, "worker") if isinstance(workers, int) else f"{setting_text(workers)} workers"
    where = f"{count}, {setting_text(summary.get('device'))}"
    add("parameters", summary.get("num_parameters"), where, "{:,}".format, short_number)
    add("workers", summary.get("workers"))
    peak = "of a worker at most: its GPU's, else its process's"
    add("peak memory", summary.get("peak_bytes"), peak, _gigabytes)
    add("faults survived", None if run.restarts is None else len(run.restarts), "starts of the workers after a fault")
    return figures


def _gigabytes(num_bytes: float) -> str:
    return f"{short_number(num_bytes / 1e9)} GB"


def _short_name(run: Run, other: Run) -> str:
    """Name of the other run in legends and columns."""
    name = other.name if len(other.name) <= _LONGEST_NAME else other.name[: _LONGEST_NAME - 1] + "…"
    return name if other.name != run.name else f"{name} (the other)"
