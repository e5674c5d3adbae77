"""The report of a scaling sweep: a CSV file, and a page with tables and plots."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphmill.cluster.runs.run_directory import write_atomic
from graphmill.jobs.records.run_record import is_number
from graphmill.jobs.reporting.page import render, write_csv
from graphmill.jobs.reporting.plot import Line, Plot

Point = Mapping[str, Any]

# Settings that the name of a row includes, in addition to the number of workers.
_GROUP = ("sampler", "model", "scaling", "partitions")

# Columns of a table: key of the value, scale, format. scaling.html.j2 explains the columns.
_COLUMNS = {
    "workers": ("workers", 1, ".0f"),
    "roots/s": ("roots_per_s", 1, ",.0f"),
    "edges/s": ("edges_per_s", 1, ",.0f"),
    "efficiency": ("efficiency", 1, ".2f"),
    "ceiling": ("ceiling", 1, ".2f"),
    "CPU efficiency": ("cpu_efficiency", 1, ".2f"),
    "wait": ("wait_share", 1, ".0%"),
    "ms/step": ("step_s", 1e3, ",.0f"),
    "steps": ("steps", 1, ",.0f"),
    "remote kB": ("remote_bytes", 1e-3, ",.0f"),
    "requests": ("remote_requests_per_batch", 1, ".1f"),
    "local kB": ("local_bytes_per_batch", 1e-3, ",.0f"),
    "all-reduce kB": ("gradient_bytes", 1e-3, ",.0f"),
    "peak MB": ("peak_bytes_per_worker", 1e-6, ",.0f"),
    "cores: servers": ("server_cores", 1, ".2f"),
    "cores: all of it": ("own_cores", 1, ".2f"),
    "cores: machine": ("machine_cores", 1, ".2f"),
    "cores: stolen": ("stolen_cores", 1, ".2f"),
}


@dataclass(frozen=True)
class Row:
    """One point of the sweep: medians of the measurements over its repeats, and values computed from the medians."""

    settings: Mapping[str, Any]  # all settings except `repeat`
    values: Mapping[str, float]
    repeats: int
    cause: str | None  # cause of a failure

    @property
    def cells(self) -> list[str]:
        """Text of the cells for _COLUMNS."""
        return [
            format(self.values[key] * scale, form) if key in self.values else "–"
            for key, scale, form in _COLUMNS.values()
        ]


def summarise(points: Iterable[Point]) -> list[Row]:
    """One row for each combination of settings, ordered by settings."""
    by_settings: dict[str, list[Point]] = {}
    for point in points:
        by_settings.setdefault(_without(point["settings"]), []).append(point)
    rows = [_row(same) for same in by_settings.values()]
    rows.sort(key=lambda row: [str(row.settings[name]).zfill(8) for name in (*_GROUP, "workers")])
    return [replace(row, values={**row.values, **_efficiency(row, rows)}) for row in rows]


def _row(repeats: Sequence[Point]) -> Row:
    good = [point for point in repeats if point["status"] == "ok"]
    names = dict.fromkeys(name for point in good for name, value in point.items() if is_number(value))
    values = {name: statistics.median(point[name] for point in good if is_number(point.get(name))) for name in names}
    settings = {name: value for name, value in repeats[0]["settings"].items() if name != "repeat"}
    values["workers"] = workers = settings["workers"]
    if "sent_bytes_per_batch" in values:
        values["remote_bytes"] = values["sent_bytes_per_batch"] + values.get("received_bytes_per_batch", 0.0)
    if "num_parameters" in values:  # bytes that a worker sends in a ring all-reduce
        values["gradient_bytes"] = 8 * values["num_parameters"] * (workers - 1) / workers
    if values.get("own_cores") and values.get("roots_per_s"):
        values["cpu_s_per_root"] = values["own_cores"] / values["roots_per_s"]
    return Row(settings, values, len(good), next((p["cause"] for p in repeats if p["status"] != "ok"), None))


def _efficiency(row: Row, rows: Sequence[Row]) -> dict[str, float]:
    """Efficiencies of the row, relative to the row with the fewest workers and otherwise the same settings."""
    kind = _without(row.settings, "workers")
    same = [one.values for one in rows if one.values.get("roots_per_s") and _without(one.settings, "workers") == kind]
    if not row.values.get("roots_per_s"):
        return {}
    base, own = min(same, key=lambda values: values["workers"]), row.values
    ratio = own["workers"] / base["workers"]
    known = {"efficiency": own["roots_per_s"] / (ratio * base["roots_per_s"])}
    if "cpu_s_per_root" in base and "cpu_s_per_root" in own:
        known["cpu_efficiency"] = base["cpu_s_per_root"] / own["cpu_s_per_root"]
    # On a cluster, the cores of the driver's host say nothing about the workers' hosts.
    if base.get("own_cores") and base.get("cores") and row.settings.get("address") is None:
        free = base["cores"] - base.get("stolen_cores", 0.0)
        known["ceiling"] = min(1.0, free / (base["own_cores"] * ratio))
    return known


def _without(settings: Mapping[str, Any], *names: str) -> str:
    return json.dumps({k: value for k, value in settings.items() if k not in (*names, "repeat")}, sort_keys=True)


def _name(row: Row, names: Sequence[str]) -> str:
    """Text of the settings `names` of a row."""
    settings = row.settings
    words = {name: f"{settings[name]} {name}" for name in ("partitions", "workers")}
    words |= {name: settings[name] for name in ("sampler", "model", "scaling")}
    return ", ".join(words.get(name, f"{name} {settings[name]}") for name in names)


def _varying(rows: Sequence[Row]) -> list[str]:
    """Names of the settings in which the rows differ, except the number of workers."""
    names = rows[0].settings if rows else {}
    return [name for name in names if name != "workers" and len({str(row.settings[name]) for row in rows}) > 1]


def _named(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """(name, row) for each row. Two rows have the same name only if they differ in nothing but the number of workers."""
    more = [name for name in _varying(rows) if name not in _GROUP]
    return [(_name(row, (*_GROUP, *more)), row) for row in rows]


def write_report(out: Path, points: Sequence[Point], machine: Mapping[str, Any]) -> None:
    """Writes points.csv (all points as measured) and report.html."""
    rest = [{name: value for name, value in point.items() if name not in ("settings", "degrees")} for point in points]
    write_csv(out / "points.csv", [{**point["settings"], **more} for point, more in zip(points, rest, strict=True)])
    write_atomic(out / "report.html", html(points, machine))


def html(points: Sequence[Point], machine: Mapping[str, Any]) -> str:
    """The page as HTML that is also well-formed XML."""
    rows = summarise(points)
    good = [point for point in points if point["status"] == "ok"]
    by_scaling = {s: [row for row in rows if row.settings["scaling"] == s and row.repeats] for s in ("weak", "strong")}
    return render(
        "scaling.html.j2",
        title="Scaling sweep",
        address=next((point["settings"].get("address") for point in good), None),
        cores=good[0]["cores"] if good else 0,
        columns=["kind", *_COLUMNS],
        parts=[
            (s, _plots(same), [[n, *row.cells] for n, row in _named(same)]) for s, same in by_scaling.items() if same
        ],
        failed=[[n, row.settings["workers"], row.cause] for n, row in _named([row for row in rows if row.cause])],
        machine=list(machine.items()),
    )


def _plots(rows: Sequence[Row]) -> list[Plot]:
    throughput = _plot("Throughput", "roots/s", "roots_per_s", rows)
    plots = [throughput]
    longest = max(throughput.lines, key=lambda line: len(line.points))
    if len(longest.points) > 1:
        first_workers, first_rate = longest.points[0]
        ideal = [(workers, first_rate * workers / first_workers) for workers, _ in longest.points]
        plots = [replace(throughput, lines=[*throughput.lines, Line("ideal", ideal, longest.colour, "dashed")])]
        plots.append(_plot("Efficiency", "efficiency", "efficiency", rows))
    if any(row.values.get("remote_bytes") for row in rows):
        plots.append(_plot("Remote bytes", "bytes a batch", "remote_bytes", rows))
    return plots


def _plot(title: str, y_label: str, y: str, rows: Sequence[Row]) -> Plot:
    """A plot with one line for each set of rows that differ only in the number of workers. A line's name lists the settings in which the lines differ."""
    names = _varying(rows) or ["sampler", "model"]
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        points = by_kind.setdefault(_name(row, names).replace("-partition", ""), [])
        points.append((row.settings["workers"], row.values.get(y, 0.0)))
    lines = [Line(kind, points, colour) for colour, (kind, points) in enumerate(by_kind.items())]
    return Plot(title, "workers", y_label, lines, x_scale="log2", y_scale="log")
