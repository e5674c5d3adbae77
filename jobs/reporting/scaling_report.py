"""A scaling sweep's report: one table as text, as CSV, and as a self-contained HTML page with plots (no scripts, nothing from a network)."""

import csv
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.reporting.html_page import card, cards, heading, page, paragraph, table
from jobs.reporting.line_plot import Line, line_plot
from jobs.reporting.ratio_plot import Series

Point = Mapping[str, Any]

_GROUP = (
    "sampler",
    "model",
    "scaling",
    "partitions",
    "nodes",
    "placement",
)  # what a row is called by, besides its workers


@dataclass(frozen=True)
class Row:
    """The repeats of one point, as medians; None where nothing could be measured."""

    settings: Mapping[str, Any]  # without `repeat`
    values: Mapping[str, float | None]
    repeats: int
    efficiency: float | None  # roots/s per worker, against the row of the fewest workers that is otherwise the same
    cpu_efficiency: float | None  # the same of CPU time per root: what more workers cost where they do not share cores
    ceiling: (
        float | None
    )  # of the efficiency, where the baseline's busy cores grow with the workers and the machine's, less those stolen, do not
    cause: str | None


_MEDIANS = (
    "roots_per_s", "edges_per_s", "nodes_per_s", "step_s", "steps", "seconds", "wait_share", "wait_s", "roots_per_batch", "nodes_per_batch",
    "edges_per_batch", "remote_requests_per_batch", "sent_bytes_per_batch", "received_bytes_per_batch", "local_bytes_per_batch",
    "peak_bytes_per_worker", "own_bytes_per_worker", "worker_cpu_s_per_step", "train_cpu_s_per_batch", "own_cores", "server_cores", "machine_cores", "stolen_cores", "num_parameters",
    "cores",
    "torch_threads",
)  # fmt: skip


def summarise(points: Iterable[Point]) -> list[Row]:
    """Rows in the order of their settings."""
    by_settings: dict[str, list[Point]] = {}
    for point in points:
        by_settings.setdefault(_without(point["settings"], "repeat"), []).append(point)
    rows = []
    for same in by_settings.values():
        good = [point for point in same if point["status"] == "ok"]
        values = {name: _median([point.get(name) for point in good]) for name in _MEDIANS}
        settings = {name: value for name, value in same[0]["settings"].items() if name != "repeat"}
        cause = next((point["cause"] for point in same if point["status"] != "ok"), None)
        rows.append(Row(settings, values, len(good), None, None, None, cause))
    rows.sort(key=lambda row: [str(row.settings[name]).zfill(8) for name in (*_GROUP, "workers")])
    return [_with_efficiency(row, rows) for row in rows]


def _with_efficiency(row: Row, rows: Sequence[Row]) -> Row:
    others = [
        other
        for other in rows
        if other.values["roots_per_s"] and _without(other.settings, "workers") == _without(row.settings, "workers")
    ]
    if not others or not row.values["roots_per_s"]:
        return row
    base = min(others, key=lambda other: other.settings["workers"])
    ratio = row.settings["workers"] / base.settings["workers"]
    base_cpu, own_cpu = cpu_s_per_root(base), cpu_s_per_root(row)
    ceiling = None
    # Of a cluster, the driver's cores say nothing.
    if base.values["own_cores"] and base.values["cores"] and row.settings.get("address") is None:
        there = base.values["cores"] - (row.values["stolen_cores"] or 0.0)
        ceiling = min(1.0, there / (base.values["own_cores"] * ratio))
    return Row(
        row.settings,
        row.values,
        row.repeats,
        row.values["roots_per_s"] / (ratio * (base.values["roots_per_s"] or 1.0)),
        base_cpu / own_cpu if base_cpu and own_cpu else None,
        ceiling,
        row.cause,
    )


def cpu_s_per_root(row: Row) -> float | None:
    """CPU seconds of all processes of the point (workers, servers, Ray) for each root."""
    cores, rate = row.values["own_cores"], row.values["roots_per_s"]
    return cores / rate if cores and rate else None


def _without(settings: Mapping[str, Any], name: str) -> str:
    return json.dumps({key: value for key, value in settings.items() if key not in (name, "repeat")}, sort_keys=True)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


_COLUMNS = (
    ("workers", "DDP workers, one thread each"),
    ("roots/s", "training roots of all workers together"),
    ("edges/s", "edges in their batches"),
    ("efficiency", "roots/s per worker against the fewest workers of the same kind"),
    ("ceiling", "the efficiency that the machine's cores, less those stolen, allow if each further worker keeps as many busy as at the baseline; 1 without sharing"),
    ("CPU efficiency", "the same ratio of CPU time per root, all processes: the cost of more workers where they have cores of their own"),
    ("wait", "share of the training time in which rank 0's step waited for its batch"),
    ("ms/step", "wall time of a step, the start of each epoch with its empty loader included"),
    ("steps", "measured steps"),
    ("remote kB", "bytes in requests and replies of a batch to other processes"),
    ("requests", "requests of a batch to other processes"),
    ("local kB", "bytes of a batch that were read in process instead"),
    ("all-reduce kB", "bytes a worker sends for a step's gradients in a ring, computed: 2 (W - 1) / W of them"),
    ("peak MB", "most resident memory of a worker, pages of the graph's files included"),
    ("cores", "cores busy with the servers / with all of this point, Ray included / with anything / stolen by the machine's host, on average"),
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """One row under the columns above."""
    v = row.values

    def show(value: float | None, form: str = ",.0f", scale: float = 1.0) -> str:
        return "–" if value is None else format(value * scale, form)

    remote = (
        None if v["sent_bytes_per_batch"] is None else v["sent_bytes_per_batch"] + (v["received_bytes_per_batch"] or 0)
    )
    workers = row.settings["workers"]
    gradients = None if v["num_parameters"] is None else 8 * v["num_parameters"] * (workers - 1) / workers
    return [
        str(workers),
        show(v["roots_per_s"]),
        show(v["edges_per_s"]),
        show(row.efficiency, ".2f"),
        show(row.ceiling, ".2f"),
        show(row.cpu_efficiency, ".2f"),
        show(v["wait_share"], ".0%"),
        show(v["step_s"], ",.0f", 1e3),
        show(v["steps"]),
        show(remote, ",.0f", 1e-3),
        show(v["remote_requests_per_batch"], ".1f"),
        show(v["local_bytes_per_batch"], ",.0f", 1e-3),
        show(gradients, ",.0f", 1e-3),
        show(v["peak_bytes_per_worker"], ",.0f", 1e-6),
        " / ".join(show(v[name], ".2f") for name in ("server_cores", "own_cores", "machine_cores", "stolen_cores")),
    ]


def name_of(settings: Mapping[str, Any], names: Sequence[str] = _GROUP) -> str:
    """A row's kind in words."""
    plural = ("partitions", "nodes", "workers")
    words = {name: f"{settings[name]} {name}" for name in plural} | {
        "placement": "store apart" if settings["placement"] == "store" else "servers spread",
        "sampler": settings["sampler"],
        "model": settings["model"],
        "scaling": settings["scaling"],
    }
    return ", ".join(words.get(name, f"{name} {settings[name]}") for name in names)


def varying(rows: Sequence[Row], but: Sequence[str] = ("workers",)) -> list[str]:
    """Names of the settings in which rows differ, but for some."""
    names = rows[0].settings if rows else {}
    return [name for name in names if name not in but and len({str(row.settings[name]) for row in rows}) > 1]


def full_names(rows: Sequence[Row]) -> list[str]:
    """A name for each row that tells it from the others, their workers aside."""
    more = [name for name in varying(rows) if name not in _GROUP]
    return [name_of(row.settings, (*_GROUP, *more)) for row in rows]


def print_table(points: Iterable[Point]) -> None:
    """To standard output, as Markdown."""
    print("| kind | " + " | ".join(name for name, _ in _COLUMNS) + " |")
    print("|---" * (len(_COLUMNS) + 1) + "|")
    rows = summarise(points)
    for row, name in zip(rows, full_names(rows), strict=True):
        if row.repeats:
            print(f"| {name} | " + " | ".join(cells(row)) + " |")
    for row, name in zip(rows, full_names(rows), strict=True):
        if row.cause:
            print(f"failed: {name}, {row.settings['workers']} workers: {row.cause}")


def write_report(out: Path, points: Sequence[Point], machine: Mapping[str, Any]) -> None:
    """Writes points.csv and report.html."""
    _write_csv(out / "points.csv", points)
    (out / "report.html").write_text(html(points, machine))


def _write_csv(path: Path, points: Sequence[Point]) -> None:
    """All points, repeats and failures too, every value as measured."""
    flat = [
        {**point["settings"], **{k: v for k, v in point.items() if k not in ("settings", "degrees")}}
        for point in points
    ]
    names = list(dict.fromkeys(name for point in flat for name in point))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(flat)


def html(points: Sequence[Point], machine: Mapping[str, Any]) -> str:
    """The page; well-formed as XML too."""
    rows = summarise(points)
    parts = ["<h1>Scaling sweep</h1>", paragraph(where(points))]
    for scaling in ("weak", "strong"):
        some = [row for row in rows if row.settings["scaling"] == scaling and row.repeats]
        if some:
            parts += [heading(f"{scaling.capitalize()} scaling"), cards(_plots(some, scaling)), _table(some, scaling)]
    failed = [row for row in rows if row.cause]
    if failed:
        cells = [
            [name, str(row.settings["workers"]), str(row.cause)]
            for row, name in zip(failed, full_names(failed), strict=True)
        ]
        parts += [heading("Failed points"), card(table("What was not measured", ["kind", "workers", "cause"], cells))]
    parts += [
        heading("Columns"),
        card(table("What the columns mean", ["", ""], _COLUMNS)),
        heading("Machine"),
        card(table("On what the sweep ran", ["", ""], [[name, str(value)] for name, value in machine.items()])),
    ]
    return page("Scaling sweep", parts)


def where(points: Sequence[Point]) -> str:
    """On what the points ran, in words."""
    good = [point for point in points if point["status"] == "ok"]
    counts = sorted({point["ray_nodes"] for point in good})
    if not counts:
        return "No point was measured."
    listed = ", ".join(map(str, counts))
    if all(point["raylets_on_one_machine"] for point in good):
        return (
            f"{listed} raylets on one machine: no real network, and all share its {good[0]['cores']} cores. Requests between nodes pass "
            "through sockets and object stores, so bytes and requests are those of a cluster; times are not."
        )
    return f"A Ray cluster of {listed} nodes."


def _table(rows: Sequence[Row], scaling: str) -> str:
    cells_of = [[name, *cells(row)] for row, name in zip(rows, full_names(rows), strict=True)]
    names, meanings = ["kind", *(name for name, _ in _COLUMNS)], ["", *(meaning for _, meaning in _COLUMNS)]
    body = table(f"All points of {scaling} scaling", names, cells_of, figures=True, meanings=meanings)
    return card(body)


def _plots(rows: Sequence[Row], scaling: str) -> list[str]:
    kinds = _by_kind(rows, ("workers",))
    throughput, efficiency, traffic = [], [], []
    for colour, (kind, same) in enumerate(kinds.items()):
        rates = [(float(r.settings["workers"]), r.values["roots_per_s"] or 0.0) for r in same]
        throughput.append(Line(Series(kind, rates), colour))
        efficiency.append(Line(Series(kind, [(r.settings["workers"], r.efficiency or 0.0) for r in same]), colour))
        traffic.append(Line(Series(kind, [(r.settings["workers"], _remote(r)) for r in same]), colour))
    longest = max(throughput, key=lambda line: len(line.series.points))
    points = longest.series.points
    several = len(points) > 1
    if several:
        first_workers, first_rate = points[0]
        ideal = Series("ideal", [(w, first_rate * w / first_workers) for w, _ in points], "dashed")
        throughput.append(Line(ideal, longest.colour))
    plots = [_plot(f"Throughput, {scaling} scaling", "workers", "roots/s", throughput)]
    if several:
        plots.append(_plot(f"Efficiency, {scaling} scaling", "workers", "efficiency", efficiency))
    if any(y > 0 for line in traffic for _, y in line.series.points):
        plots.append(_plot("Remote bytes", "workers", "bytes a batch", traffic))
    over_nodes = [
        Line(Series(kind, [(r.settings["nodes"], _remote(r)) for r in same]), colour)
        for colour, (kind, same) in enumerate(_by_kind(rows, ("nodes",)).items())
        if len(same) > 1
    ]
    if over_nodes:
        plots.append(_plot("Remote bytes over nodes", "nodes", "bytes a batch", over_nodes))
    return plots


def _plot(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    return line_plot(title, x_label, y_label, lines, x_scale="log2", y_scale="log")


def _remote(row: Row) -> float:
    return (row.values["sent_bytes_per_batch"] or 0) + (row.values["received_bytes_per_batch"] or 0)


def _by_kind(rows: Sequence[Row], along: Sequence[str]) -> dict[str, list[Row]]:
    """Rows that differ in `along` alone, by the settings in which the kinds differ: short, for a plot's legend."""
    names = varying(rows, but=along) or ["sampler", "model"]
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(name_of(row.settings, names).replace("-partition", ""), []).append(row)
    return found
