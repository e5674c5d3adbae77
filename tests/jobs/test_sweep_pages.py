"""Tests the pages and files of a sweep: the order of trials, malicious text, efficiency, and records that a kill cut short."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from graphmill.core.errors import FormatError
from graphmill.jobs.reporting.record_lines import load_records
from graphmill.jobs.reporting.scaling_report import html as scaling_html
from graphmill.jobs.reporting.scaling_report import summarise
from graphmill.jobs.reporting.tune_report import Sweep, html, ranked


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


def test_best_first_in_either_direction_and_failures_last() -> None:
    some = [record(0, 0.5), record(1, None, "failed"), record(2, 0.7), record(3, 0.5, "stopped")]
    assert [one["number"] for one in ranked(some, lower=False)] == [2, 0, 3, 1]
    assert [one["number"] for one in ranked(some, lower=True)] == [0, 3, 2, 1]


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
    # Plots over the epochs and over the learning rate. The option `sampler` has no numbers to plot.
    assert page.count("<svg ") == 2
    for some in ([], [record(1, None, "failed")]):
        ElementTree.fromstring(page_of(some).removeprefix("<!DOCTYPE html>"))


def measured(workers: int, rate: float, **others) -> dict:
    values = {
        "roots_per_s": rate,
        "edges_per_s": 10 * rate,
        "step_s": 0.1,
        "own_cores": 1.5,
        "cores": 2,
    }
    values |= {"wait_share": 0.1}
    settings = {
        "sampler": "neighbor", "model": "geco", "scaling": "weak", "workers": workers, "partitions": 2,
        "repeat": 0, **others,
    }  # fmt: skip
    return {"settings": settings, "status": "ok", "cause": None, **values}


def test_efficiency_is_per_worker_against_the_fewest_workers_of_the_same_kind() -> None:
    points = [
        measured(1, 100.0),
        measured(2, 150.0),
        measured(2, 190.0, repeat=1),
        measured(2, 170.0, repeat=2),
        measured(4, 200.0, scaling="strong"),
    ]
    rows = {(row.settings["scaling"], row.settings["workers"]): row for row in summarise(points)}
    assert rows["weak", 1].values["efficiency"] == 1.0
    assert rows["weak", 2].values["efficiency"] == pytest.approx(0.85)  # median / (2 · throughput of one worker)
    assert rows["weak", 2].values["ceiling"] == pytest.approx(2 / 3)  # a worker needs 1.5 cores, and the machine has 2
    assert rows["strong", 4].values["efficiency"] == 1.0  # no other row has strong scaling
    assert "One machine: all processes share its 2 cores" in scaling_html(points, {})
    away = scaling_html([measured(1, 100.0, address="head:6379")], {})
    assert "The Ray cluster at head:6379." in away


def test_an_unfinished_last_line_is_cut_off_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    line = json.dumps(measured(1, 100.0))
    path.write_text(line + "\n" + line[:40])
    assert len(load_records(path, lambda one: one["settings"]["workers"], "a point of this sweep")) == 1
    assert path.read_text() == line + "\n"
    path.write_text("{\n" + line + "\n")
    with pytest.raises(FormatError, match="line 1: expected a point"):
        load_records(path, lambda one: one["settings"]["workers"], "a point of this sweep")
