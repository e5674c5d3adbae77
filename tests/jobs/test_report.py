"""Tests the page of a run: its content for finished, running and killed runs, malicious text, and the page in a real browser."""

import functools
import json
import math
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphmill.cluster.runs.run_directory import RunDirectory, write_atomic
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import StageError
from graphmill.jobs import report
from graphmill.jobs.cli.exit_codes import run as exit_with
from graphmill.jobs.config.config import RunOptions
from graphmill.jobs.machine.environment import _commit, describe_command
from graphmill.jobs.records.run_record import PartitionTraffic, read_run, stored_partitions
from graphmill.jobs.reporting.page import render, value_text
from graphmill.jobs.reporting.plot import Line, Plot
from graphmill.jobs.reporting.run_report import run_page
from graphmill.jobs.reporting.scaling_report import html as scaling_page
from graphmill.jobs.run.training_run import interruptions, near_line, open_run
from graphmill.samplers.access.traffic import COLUMNS
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.browser import Browser, browser, find_chromium
from tests.stored_files import newest_manifest

EVIL = '<script>window.pwned = 1</script><img src="x" onerror="window.pwned = 1">\'"&'
SUMMARY = {
    "job": "products_geco",
    "metric": "accuracy",
    "scores": {"train": 0.9, "valid": 0.7, "test": 0.65},
    "baselines": {"majority": {"valid": 0.2, "test": 0.21}, "features_only": {"valid": 0.4, "test": 0.41}},
    "beats_baselines": True,
    "num_parameters": 12345,
    "workers": 2,
    "device": "cpu",
    "peak_bytes": 1_500_000_000,
    "wall_s": 100.0,
}


def epoch(number: int, **values: object) -> dict:
    return {
        "epoch": number,
        "train_loss": 3.0 / (number + 1),
        "learning_rate": 1e-3,
        "train_s": 4.0,
        "wait_s": 0.5,
        "batches": 10.0,
        "plan_s": 0.0,
        "sample_s": 1.25,
        "fetch_s": 0.75,
        "collate_s": 0.25,
        "pin_s": 0.0,
        "copy_s": 0.0,
        "blocked_s": 2.0,
        "roots_per_s": 400.0,
        "nodes_per_s": 4000.0,
        "edges_per_s": 40000.0,
        "valid_accuracy": 0.1 * number,
        "valid_loss": 3.5 / (number + 1),
        "best_epoch": number,
        "eval_s": 1.0,
        **values,
    }


def make_run(path: Path, num_epochs: int = 5, summary: dict | None = None, **config: object) -> Path:
    run = RunDirectory.create(path, {"fit": {"epochs": 5}, "task": {"metric": "accuracy"}, **config})
    with (path / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps(epoch(number)) + "\n" for number in range(num_epochs))
    if summary is not None:
        run.write_summary({"epochs": num_epochs, **summary})
    return path


def text_of(html: str) -> str:
    """The words of the page. Also checks that the page is well-formed."""
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    body = root.find("body")
    assert body is not None
    return re.sub(r"\s+", " ", " ".join(body.itertext()))


def figure(html: str, title: str) -> ElementTree.Element:
    """The plot with this title."""
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    return next(one for one in root.iter("figure") if one.findtext("figcaption") == title)


def paths(element: ElementTree.Element) -> list[str]:
    """Styles of the lines of a plot."""
    return [one.get("style", "") for one in element.iter("path") if "fill: none" in one.get("style", "")]


def test_a_finished_run_shows_scores_beside_baselines_and_every_curve(tmp_path: Path) -> None:
    html = run_page(read_run(make_run(tmp_path / "run", summary=SUMMARY)))
    text = text_of(html)
    assert "Finished, 5 of 5 epochs" in text
    assert "test accuracy 0.650 features only: 0.41" in text
    assert "majority class – 0.2 0.21" in text
    assert "The model beats the baselines." in text
    for title in ("Loss", "Validation accuracy", "Learning rate", "Nodes per second", "Seconds of an epoch"):
        assert [one for one in paths(figure(html, title)) if "var(--series-0)" in one], title
    assert "best: 0.4 at epoch 5" in text
    assert "Not recorded by the version that made this run." in text  # the run recorded no environment and no events


def test_an_early_stop_is_told_with_its_reason(tmp_path: Path) -> None:
    early = {"epoch": 2, "why": "no better valid accuracy in 2 validations (--fit.patience 2)"}
    html = run_page(read_run(make_run(tmp_path / "run", 3, SUMMARY | {"stopped_early": early})))
    assert f"Finished, 3 of 5 epochs. Stopped early at epoch 3: {early['why']}." in text_of(html)


ESTIMATED = {
    **{name: value for name, value in SUMMARY.items() if name != "scores"},
    "estimates": SUMMARY["scores"],
    "estimate": "each split is scored in 16 chunks",
    "beats_baselines": None,
    "warnings": ["test accuracy (estimate) 0.6500 does not beat the baseline 'features only' (0.7000)"],
}


def make_estimated_run(path: Path) -> Path:
    make_run(path, summary=ESTIMATED)
    renamed = {"valid_accuracy": "valid_estimate_accuracy", "valid_loss": "valid_estimate_loss"}
    lines = [{renamed.get(name, name): value for name, value in epoch(number).items()} for number in range(5)]
    with (path / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps({**line, "best_epoch_by_estimate": line.pop("best_epoch")}) + "\n" for line in lines)
    return path


def test_estimates_are_named_so_wherever_they_stand(tmp_path: Path) -> None:
    run, exact = make_estimated_run(tmp_path / "run"), make_run(tmp_path / "exact", summary=SUMMARY)
    text = text_of(run_page(read_run(run)))
    assert "test accuracy (estimate) 0.650" in text
    assert "best valid accuracy (estimate) of the epochs 0.400 epoch 5" in text
    assert "The run's scores are estimates: each split is scored in 16 chunks." in text
    assert "Warning: test accuracy (estimate) 0.6500 does not beat the baseline 'features only' (0.7000)." in text
    assert "this run (estimate) 0.9 0.7 0.65" in text
    assert "validation (estimate)" in text
    assert "they cannot be compared" in text_of(run_page(read_run(run), other=read_run(exact)))
    assert "they cannot be compared" not in text_of(run_page(read_run(exact), other=read_run(exact)))


def test_stages_are_shown_in_the_shares_that_were_measured(tmp_path: Path) -> None:
    text = text_of(run_page(read_run(make_run(tmp_path / "run"))))
    assert "compute 17.5 87.5% 350" in text  # 5 epochs of 3.5 s, 50 batches
    assert "wait 2.5 12.5% 50" in text
    assert "sample 6.25 29.4% 125" in text
    assert "blocked 10 47.1% 200" in text
    assert "copy" not in text.split("Faults")[0], "a stage that took no time is not shown"


def test_baselines_are_dashed_levels_in_the_score_plot(tmp_path: Path) -> None:
    html = run_page(read_run(make_run(tmp_path / "run", summary=SUMMARY)))
    scores = figure(html, "Validation accuracy")
    assert [one.text for one in scores.iter("text")][-1] == "0.4"
    assert "majority class: 0.2 features only: 0.4" in re.sub(r"\s+", " ", " ".join(scores.itertext()))
    assert sum("stroke-dasharray" in one for one in paths(scores)) == 2
    assert not [one for one in paths(figure(html, "Loss")) if "stroke-dasharray" in one]


def test_the_best_epoch_is_counted_from_1_wherever_it_stands(tmp_path: Path) -> None:
    html = run_page(read_run(make_run(tmp_path / "run", summary=SUMMARY)))
    table = html[html.index("All recorded values") :]
    columns = re.findall(r'<th scope="col">(.*?)</th>', table)
    rows = [re.findall(r">([^<]*)</t[hd]>", row) for row in re.findall(r"<tr><th scope=.row.*?</tr>", table, re.DOTALL)]
    assert (
        [row[columns.index("best_epoch")] for row in rows]
        == [row[columns.index("epoch")] for row in rows]
        == [*"12345"]
    )


def test_the_command_and_the_commit_of_every_part_are_told(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    run.note("begin", resumed=False, command="python jobs/a.py --data s3://me:secret@host/g", commit="c0ffee")
    run.note("begin", resumed=True, command="python jobs/a.py --run.resume run")
    text = text_of(run_page(read_run(run.path)))
    assert re.search(r"Started \S+ \S+ UTC by python jobs/a.py --data s3://…@host/g , commit c0ffee \.", text)
    assert re.search(r"Continued \S+ \S+ UTC by python jobs/a.py --run.resume run \.", text)


def test_a_commit_is_that_of_our_own_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "packages").mkdir(parents=True)
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert _commit(checkout) == head
    assert _commit(checkout / "packages") is None  # a package that is installed inside another repository
    (checkout / "file").write_text("")
    subprocess.run([*git, "add", "file"], check=True)
    assert _commit(checkout) == f"{head}-dirty"
    assert shlex.split(describe_command()["command"]) == sys.orig_argv


def test_importing_the_reports_costs_neither_plots_nor_templates() -> None:
    code = (
        "import sys; import graphmill.jobs.reporting.run_report, graphmill.jobs.reporting.tune_report, graphmill.jobs.reporting.scaling_report;"
        "print([name for name in ('matplotlib', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout == "[]\n"


def test_a_run_that_is_going_or_was_killed_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", num_epochs=3)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "train_lo')
    record = read_run(path)
    assert [one["epoch"] for one in record.epochs] == [0, 1, 2]
    text = text_of(run_page(record))
    assert "Not finished: 3 of 5 epochs" in text
    assert "No final scores" in text


def test_a_run_without_an_epoch_has_a_page(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", {})
    assert "No epoch is recorded yet." in text_of(run_page(read_run(tmp_path / "run")))


def test_a_summary_of_an_earlier_part_is_not_shown(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", num_epochs=4, summary={**SUMMARY, "epochs": 2})
    assert "No final scores" in text_of(run_page(read_run(path)))


def test_restarts_are_told_from_new_parts(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    run.note("begin")
    run.start(0)
    for number in range(3):
        run.record(epoch(number))
    run.start(2)  # a worker died, and the run continues from the checkpoint of epoch 2
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"time": "2026-01-0')  # the driver was killed while it wrote
    run.note("begin", resumed=True)
    run.start(2)
    run.note("finish")
    record = read_run(run.path)
    assert [(one.epoch, one.repeated) for one in record.restarts or ()] == [(2, 1)]
    assert record.parts == 2
    assert "continued with epoch epochs trained again" in text_of(run_page(record))


def test_traffic_damage_and_requested_ends_are_told(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    run.note("begin")
    run.start(0)
    for number in range(2):
        run.record(epoch(number))
        columns = ([3, 0], [2**20, 0], [2**20, 0], [0, 4], [0, 2**21])
        run.note("traffic", epoch=number, **dict(zip(COLUMNS, columns, strict=True)))
    run.note("memory", peak_bytes=[2**30, 2**31, None])
    run.note("saved", where="epoch 2, step 7")
    run.note("damage", what="epoch-000001-deadbeef: model.safetensors: expected its SHA-256")
    run.note("interruption", announced=True, steps=0, stood_s=8.3)
    run.note("interruption", announced=False, steps=5, stood_s=20.1)
    record = read_run(run.path)
    assert interruptions(record)["interruptions"] == {
        "announced": 1,
        "unannounced": 1,
        "steps_lost": 5,
        "stood_s": 28.4,
    }
    assert record.traffic == (PartitionTraffic(6, 2**22, 0, 0), PartitionTraffic(0, 0, 8, 2**22))
    assert record.peak_bytes == 2**31
    text = text_of(run_page(record))
    assert "0 6 4.0 0 0.0 50.0% 1 0 0.0 8 4.0 50.0%" in text
    assert "Saved and ended on request (Ctrl-C or SIGTERM) at epoch 2, step 7." in text
    assert "A damaged checkpoint was passed over: epoch-000001-deadbeef" in text
    assert "An announced interruption: steps lost 0, stood for 8.3 s." in text
    assert "An unannounced interruption: steps lost 5, stood for 20.1 s." in text


def test_the_line_about_near_rows_warns_of_workers_without_any() -> None:
    assert (
        near_line([0.621, 0.708], ["h1", "h2"]) == "near rows: a worker reads 62% to 71% of its bytes on its own host"
    )
    assert near_line([0.5, 0.5], ["h1", "h2"]) == "near rows: a worker reads 50% of its bytes on its own host"
    warning = near_line([0.5, 0.0, 0.0], ["h1", "h2", "h2"])
    assert warning.startswith("warning: near rows: a worker reads 0% to 50% of its bytes on its own host; none on h2, ")


def test_a_comparison_lists_what_differs_and_draws_both_runs(tmp_path: Path) -> None:
    one = read_run(make_run(tmp_path / "one", summary=SUMMARY, model={"width": 64, "layers": 3}))
    two = read_run(
        make_run(tmp_path / "two", summary={**SUMMARY, "metric": "rocauc"}, model={"width": 32, "layers": 3})
    )
    html = run_page(one, None, two)
    text = text_of(html)
    assert "Settings that differ setting this run two model.width 64 32" in text
    assert "model.layers" not in text
    assert "The runs have different metrics: their scores cannot be compared." in text
    dashed = [
        one for one in paths(ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))) if "stroke-dasharray" in one
    ]
    assert sum("var(--series-0)" in one for one in dashed) >= 6
    assert "Both runs have the same settings." in text_of(run_page(one, None, one))
    begun, continued = (
        read_run(make_run(tmp_path / name, summary=SUMMARY, run=where, resolved=words))
        for name, where, words in (
            (
                "begun",
                {"dir": "begun", "resume": None, "parallel": "data"},
                {"reasons": ["two nodes"], "chosen": ["--a 1: few"]},
            ),
            (
                "continued",
                {"dir": None, "resume": "continued", "parallel": "data"},
                {"reasons": ["one node"], "chosen": []},
            ),
        )
    )
    assert "Both runs have the same settings." in text_of(run_page(begun, None, continued))
    slower = read_run(make_run(tmp_path / "slower", summary={**SUMMARY, "wall_s": 112.0}))
    html = run_page(slower, None, one)
    marked = [
        row[0].text
        for row in ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>")).iter("tr")
        if row.get("class")
    ]
    assert marked == ["whole job"]
    assert "whole job 112 s 100 s +12.0 s" in text_of(html)
    assert "parameters 12,345 12,345 same" in text_of(html)


def test_tiles_have_three_digits_and_a_unit_and_the_test_score_leads(tmp_path: Path) -> None:
    summary = SUMMARY | {"scores": {"valid": 0.7, "test": 0.654321}, "num_parameters": 1_234_567, "wall_s": 107.44}
    root = ElementTree.fromstring(
        run_page(read_run(make_run(tmp_path / "run", summary=summary))).removeprefix("<!DOCTYPE html>")
    )
    tiles = {one[0].text: (one[1].text, one.get("class")) for one in root.find(".//dl") or ()}
    assert tiles.pop("test accuracy") == ("0.654", "card lead")
    assert {name: text for name, (text, _) in tiles.items()} == {
        "valid accuracy": "0.700",
        "best valid accuracy of the epochs": "0.400",
        "training loss": "0.600",
        "whole job": "107 s",
        "training time": "20.0 s",
        "waited for batches": "12.5%",
        "roots or graphs per second": "400/s",
        "nodes per second": "4.00 k/s",
        "edges per second": "40.0 k/s",
        "parameters": "1.23 M",
        "peak memory": "1.50 GB",
    }
    assert {kind for _, kind in tiles.values()} == {"card"}


def test_options_chosen_automatically_are_a_table_with_reasons(tmp_path: Path) -> None:
    chosen = ["--model.width 64: few labels: 320 training nodes", "--sampler.fanouts 15 10: two layers"]
    notes = ["the data fits this process: no Ray"]
    text = text_of(
        run_page(read_run(make_run(tmp_path / "run", resolved={"chosen": chosen, "reasons": notes, "seed": 7})))
    )
    assert (
        "option value reason model.width 64 few labels: 320 training nodes sampler.fanouts 15 10 two layers "
        "the run – the data fits this process: no Ray"
    ) in text
    assert text.count("few labels") == 1
    assert "Chosen automatically" not in text_of(
        run_page(read_run(make_run(tmp_path / "none", resolved={"chosen": 3})))
    )


def test_classes_have_their_names_and_many_of_them_their_largest_confusions(tmp_path: Path) -> None:
    def page(name: str, names: list[str], confusion: list[list[int]]) -> str:
        scores = {"precision": 0.5, "recall": 0.25, "f1": 1 / 3, "count": 8.0}
        judged = {"by_class": dict.fromkeys(names, scores), "confusion": confusion}
        return text_of(
            run_page(read_run(make_run(tmp_path / name, summary={**SUMMARY, "all_scores": {"test": judged}})))
        )

    few = page("few", ["blau", "rot"], [[7, 1], [2, 6]])
    assert (
        "precision recall f1 count predicted blau predicted rot blau 0.5 0.25 0.33333 8 7 1 rot 0.5 0.25 0.33333 8 2 6"
        in few
    )
    names = ["a", "b", "c", "d", "e", "grün"]
    many = page(
        "many",
        names,
        [[8 * (i == j) + 3 * (i == 0 and j == 5) + (i == 1 and j == 0) for j in range(6)] for i in range(6)],
    )
    assert "predicted grün" not in many
    assert "class predicted as count of the class a grün 3 27.3% b a 1 11.1% " in many


def test_a_run_that_is_continued_is_not_finished_yet(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {"fit": {"epochs": 3}})
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(epoch(number)) + "\n" for number in range(3)))
    run.write_summary({**SUMMARY, "epochs": 3})
    for kind in ("begin", "start", "finish"):
        run.note(kind)
    assert read_run(tmp_path / "run").status == "finished"
    run.note("begin")
    run.note("fail", error="refused")  # the second attempt ended before it trained anything
    assert read_run(tmp_path / "run").status == "finished"
    assert read_run(tmp_path / "run").parts == 1
    run.note("begin")
    run.note("start")
    continued = read_run(tmp_path / "run")
    assert continued.status == "not finished"
    assert continued.summary == {}


def test_a_page_takes_any_text_and_no_password(tmp_path: Path) -> None:
    url = "s3://name:secret@host/graph"
    RunDirectory.create(tmp_path / "run", {"graph": {"graph": url}, "a\x1b[1m": "\udce9"})
    page = run_page(read_run(tmp_path / "run"), None)
    write_atomic(tmp_path / "page.html", page)
    ElementTree.fromstring((tmp_path / "page.html").read_text(encoding="utf-8").removeprefix("<!DOCTYPE html>"))
    assert "secret" not in page
    assert "s3://…@host/graph" in page


def test_partitions_are_shown_where_the_graph_is_still_the_runs(tmp_path: Path) -> None:
    url = str(tmp_path / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=300)), url, IngestOptions(num_partitions=3))
    record = read_run(make_run(tmp_path / "run", summary={**SUMMARY, "graph": url}))
    parts = stored_partitions(record)
    assert parts is not None
    assert sum(part.nodes for part in parts) == 300
    assert all(part.num_bytes > 0 for part in parts)
    assert "Stored in each partition" in text_of(run_page(record, parts))
    other = read_run(make_run(tmp_path / "other", summary={**SUMMARY, "graph": url, "graph_hash": "of another"}))
    assert stored_partitions(other) is None
    pinned = read_run(make_run(tmp_path / "pinned", summary={**SUMMARY, "graph": url, "snapshot": 1}))
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=200)), url, IngestOptions(num_partitions=2, overwrite=True))
    assert stored_partitions(pinned) == parts  # the partitions of the run's own snapshot, not of the newest
    running = read_run(make_run(tmp_path / "running", summary=None, data={"path": url, "snapshot": 1}))
    assert stored_partitions(running) == parts
    for number, odd in enumerate(("1", 1.0, True, -1, 0, 2**70, [1])):
        crafted = make_run(tmp_path / f"odd{number}", summary={**SUMMARY, "graph": url, "snapshot": odd})
        assert stored_partitions(read_run(crafted)) is None
    newest_manifest(url).write_text("{")
    assert stored_partitions(pinned) == parts
    assert stored_partitions(record) is None


@pytest.mark.parametrize("failed", [True, False])
def test_a_job_writes_its_report_when_it_ends_and_when_it_fails(tmp_path: Path, failed: bool) -> None:
    path = tmp_path / "run"

    def body() -> None:
        with open_run(RunStore(str(path)), RunOptions(dir=str(path)), {"fit": {"epochs": 2}}) as run:
            run.start(0)
            run.record(epoch(0))
            if failed:
                raise StageError(f"partition server 1: {EVIL}")
            run.write_summary({"epochs": 1, **SUMMARY})

    if failed:
        with pytest.raises(StageError):
            body()
    else:
        body()
    text = text_of((path / "report.html").read_text())
    assert ("Cause: StageError: partition server 1: <script>" in text) == failed
    assert ("Finished, 1 of 2 epochs" in text) != failed
    assert "torch" in text.split("Environment")[1]
    assert "None: the workers started once." in text
    assert f"by {shlex.join(sys.orig_argv)}" in re.sub(r"\s+", " ", text)


def test_text_from_a_run_is_never_markup(tmp_path: Path) -> None:
    hostile(tmp_path)
    html = run_page(read_run(tmp_path / "<b>evil"), None, read_run(tmp_path / "<b>evil"))
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    assert {one.tag for one in root.iter()}.isdisjoint({"script", "img", "b"})
    assert not any(name.startswith("on") for one in root.iter() for name in one.attrib)
    assert "default-src 'none'" in html


def hostile(folder: Path) -> Path:
    path = folder / "<b>evil"
    run = RunDirectory.create(path, {EVIL: {EVIL: EVIL}, "fit": {"metric": EVIL, "epochs": 5}, "more": [EVIL]})
    lines = [{**epoch(number), f"valid_{EVIL}": 0.5} for number in range(3)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run.write_summary({**SUMMARY, "job": EVIL, "graph": EVIL, "metric": EVIL, "baselines": {EVIL: {"test": 1.0}}})
    (path / "environment.json").write_text(json.dumps({EVIL: EVIL}))
    run.note("begin")
    run.note("fail", error=EVIL)
    return path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
known_names = st.sampled_from(
    [*epoch(0), *SUMMARY, "fit", "data", "task", "graph", "epochs", "valid_x", "time", "kind", *COLUMNS]
)


@example(
    config={},
    lines=[{"train_loss": 1.7e308}, {"train_loss": -1.7e308, "train_s": 1e308}],
    summary={"wall_s": 10**400},
    events=[
        {"kind": "traffic", **{key: [10**400, 1] for key in COLUMNS}},
        {"kind": "traffic", **{key: [None] for key in COLUMNS}},
        {"kind": "traffic", **{key: [1, 2, 3] for key in COLUMNS}},
        {"kind": "memory", "peak_bytes": 5},
        {"kind": "memory", "peak_bytes": [[], 10**400]},
    ],
)
@given(
    config=st.dictionaries(known_names, json_values, max_size=5),
    lines=st.lists(st.dictionaries(known_names, json_values, max_size=6), max_size=4),
    summary=st.none() | st.dictionaries(known_names, json_values, max_size=6),
    events=st.lists(
        st.dictionaries(known_names, json_values | st.sampled_from(["start", "traffic", "memory"]), max_size=8),
        max_size=4,
    ),
)
def test_values_of_any_kind_make_a_page(tmp_path: Path, config, lines, summary, events) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    numbered = [{**line, "epoch": number} for number, line in enumerate(lines)]
    for name, values in (("metrics.jsonl", numbered), ("events.jsonl", events)):
        (tmp_path / name).write_text("".join(json.dumps(value) + "\n" for value in values))
    (tmp_path / "summary.json").unlink(missing_ok=True)
    if summary is not None:
        (tmp_path / "summary.json").write_text(json.dumps(summary))
    record = read_run(tmp_path)
    assert record.peak_bytes is None or math.isfinite(record.peak_bytes)
    assert "<h1>" in run_page(record, stored_partitions(record), record)


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("config.json", None, "expected a run directory"),
        ("metrics.jsonl", "{}\n", "metrics.jsonl, line 1: expected a number of an epoch"),
        ("metrics.jsonl", '{"epoch": 0}\nbroken\n{"epoch": 1}\n', "metrics.jsonl, line 2: expected JSON"),
        ("summary.json", "[]", "summary.json: expected an object, got list"),
        ("summary.json", "[" * 100_000, "summary.json: expected JSON"),
    ],
)
def test_a_damaged_run_is_refused_in_one_line(
    tmp_path: Path, capsys, monkeypatch, file: str, content: str | None, expected: str
) -> None:
    path = make_run(tmp_path / "run")
    if content is None:
        (path / file).unlink()
    else:
        (path / file).write_text(content)
    monkeypatch.setattr("sys.argv", ["report.py", str(path)])
    with pytest.raises(SystemExit) as ended:
        exit_with(report.main)
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert expected in error
    assert not (path / "report.html").exists()


def test_the_command_writes_where_it_is_told(tmp_path: Path, capsys, monkeypatch) -> None:
    path = make_run(tmp_path / "run", summary=SUMMARY)
    other = make_run(tmp_path / "other", num_epochs=2)
    out = tmp_path / "page.html"
    monkeypatch.setattr("sys.argv", ["report.py", str(path), "--compare", str(other), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        exit_with(report.main)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert "Compared with other" in text_of(out.read_text())
    monkeypatch.setattr("sys.argv", ["report.py", str(path), "--out", str(tmp_path / "none" / "page.html")])
    with pytest.raises(SystemExit) as ended:
        exit_with(report.main)
    assert ended.value.code == 1
    assert "cannot write the report" in capsys.readouterr().err


@pytest.mark.parametrize(
    "values", [[0.0], [5.0, 5.0], [1e-9, 1e9], [-3.0, 4.0], [3.0, 150.0], [1e300, -1e300], [1e-320, 1.0], [2e-5, 3e-5]]
)
@pytest.mark.parametrize("scale", ["auto", "log", "linear"])
def test_lines_of_any_range_stay_inside_the_drawing(values: list[float], scale) -> None:
    drawing = Plot("title", "x", "y", [Line("one", list(enumerate(values, 1)))], y_scale=scale, whole_x=True).svg()
    logarithmic = scale == "log" or (scale == "auto" and min(values) > 0 and max(values) > 50 * min(values))
    shown = [value for value in values if not logarithmic or 1e-140 < value < 1e140]
    if not shown:
        assert drawing is None
        return
    root = ElementTree.fromstring(drawing)
    marks = [one for one in root.iter("use") if one.find("title") is not None]
    assert [one.findtext("title") for one in marks] == [
        f"one: {value_text(value)} at x {k}" for k, value in enumerate(values, 1) if value in shown
    ]
    height = float(root.get("viewBox", "").split()[3])
    assert all(0 <= float(one.get("y", "nan")) <= 0.91 * height for one in marks)
    assert all(40 <= float(one.get("x", "nan")) <= 353 for one in marks)
    # The text has 12 px and stands at the right end of a margin of 43 px. A digit is 7 px wide, so 6 digits fit.
    assert all(len(one.text or "") <= 6 for one in root.iter("text") if "text-anchor: end" in one.get("style", ""))


def test_points_lie_where_the_logarithms_of_their_values_say() -> None:
    line = Line("one", [(2, 1), (8, 10), (4, 3)], style="dot")
    root = ElementTree.fromstring(Plot("t", "x", "y", [line], x_scale="log2", y_scale="log").svg() or "")
    marks = [one for one in root.iter("use") if one.find("title") is not None]
    (x0, x1, x2), (y0, y1, y2) = ([float(one.get(name, "nan")) for one in marks] for name in ("x", "y"))
    assert x2 - x0 == pytest.approx((x1 - x0) / 2, abs=0.1)
    assert y2 - y0 == pytest.approx((y1 - y0) * math.log10(3), abs=0.1)
    assert y1 < y0
    assert not [one for one in paths(root) if "series" in one], "no line between the points"


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 6e-4], ["0", "2e-4", "4e-4", "6e-4"]),
        ([0.0, 15e-4], ["0", "5e-4", "1e-3", "1.5e-3"]),
        ([12e3, 41e3], ["20k", "30k", "40k"]),
        ([2e6, 9e6], ["2M", "4M", "6M", "8M"]),
        ([1e13, 3e13], ["1e13", "1.5e13", "2e13", "2.5e13", "3e13"]),
    ],
)
def test_ticks_are_round_numbers_short_enough_for_their_margin(values: list[float], ticks: list[str]) -> None:
    html = Plot("title", "x", "y", [Line("one", list(enumerate(values)))], y_scale="linear").svg()
    assert re.findall(r"text-anchor: end[^>]*>([^<]+)<", str(html)) == ticks


def test_equal_plots_are_equal_text_whatever_the_users_style_and_no_name_is_a_formula() -> None:
    import matplotlib

    before = "matplotlib.pyplot" in sys.modules  # another test in this process may have imported it
    plot = Plot("$", "$\\frac{$", "\udce9", [Line("$\\bad{$\x1b", [(1, 2), (2, 3)])], best=(2, 3))
    first = plot.svg()
    with matplotlib.rc_context({"lines.linewidth": 9, "text.usetex": True, "svg.fonttype": "path"}):
        assert plot.svg() == first
        assert matplotlib.rcParams["lines.linewidth"] == 9
    assert "$\\bad{$: 2 at $\\frac{$ 1" in ElementTree.fromstring(first or "").itertext()
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert not re.search(r"url\(|<style|<metadata|\bid=\"(?!m)|http", first or "")


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def colours() -> dict[str, tuple[str, str]]:
    """Colours of the page by name, for the light and the dark scheme."""
    page = render("scaling.html.j2", title="", cores=0, parts=[], failed=[], machine=[])
    return {name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+):light-dark\((#\w+),(#\w+)\)", page)}


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_that_accessibility_asks_for(scheme: int) -> None:
    def contrast(one: str, other: str) -> float:
        bright, dark = sorted((_luminance(colours()[name][scheme]) for name in (one, other)), reverse=True)
        return (bright + 0.05) / (dark + 0.05)

    for name in ("text", "muted", "good", "bad"):
        assert contrast(name, "card") >= 4.5, name
        assert contrast(name, "page") >= 4.5, name
    for name in (*(f"series-{k}" for k in range(7)), "axis"):
        assert contrast(name, "card") >= 3.0, name


# ---- in a browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no chromium on PATH: install Debian's chromium, or Chrome, to look at the pages")
    with browser(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the address that serves its files. The browser tests notice requests for missing icons or files."""
    folder = tmp_path_factory.mktemp("pages")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def everything(folder: Path) -> dict[str, str]:
    """Pages of all kinds, by name."""
    long = "anamewithoutanyplacetobreak" * 8
    full = make_run(folder / long, summary=SUMMARY, model={long: long}, more={"path": "/" + long})
    (full / "environment.json").write_text(json.dumps({"machine": {"cpu": long}}))
    run = RunDirectory(full)
    run.note("begin")
    run.note("start", epoch=0, repeated=0)
    run.note("start", epoch=2, repeated=1)
    stages = ("train_s", "wait_s", "peers_s", "eval_s", "sample_s", "fetch_s", "collate_s")
    run.note(
        "ranks", epoch=0, hosts=["host-1.cluster.example (10.77.0.2)"] * 2, **{name: [1234.5, 99.25] for name in stages}
    )
    record, evil = read_run(full), read_run(hostile(folder))
    settings = {"sampler": "neighbor", "model": "geco", "scaling": "weak", "partitions": 2, "repeat": 0}
    points = [
        {"settings": {**settings, "workers": w}, "status": status, "cause": cause, "roots_per_s": 100.0 * w,
         "cores": 2, "received_bytes_per_batch": 1e6, "sent_bytes_per_batch": 1e5}
        for w, status, cause in ((1, "ok", None), (2, "ok", None), (4, "failed", EVIL))
    ]  # fmt: skip
    return {
        "full": run_page(record, None, evil),
        "evil": run_page(evil, None, record),
        "empty": run_page(read_run(RunDirectory.create(folder / "empty", {}).path)),
        "scaling": scaling_page(points, {"command": long}),
    }


NO_SIDEWAYS = "document.documentElement.scrollWidth <= window.innerWidth"
UNNAMED = """
[...document.querySelectorAll('svg:not([aria-hidden])')].filter(e => !e.getAttribute('aria-label')).length
+ [...document.querySelectorAll('table')].filter(e => !e.caption || !e.caption.textContent.trim()).length
+ [...document.querySelectorAll('th')].filter(e => !e.scope).length + (document.title && document.documentElement.lang ? 0 : 1)
"""
CLIPPED = """
[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.getAttribute('aria-label'))
"""
SMALL_TEXT = """
Math.min(...[...document.querySelectorAll('svg text')].map(e => 12 * e.ownerSVGElement.getBoundingClientRect().width / 360), 99)
"""


@pytest.mark.long
@pytest.mark.slow
def test_pages_are_readable_in_a_browser_without_an_error(
    chromium: Browser, pages: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = pages
    for name, html in everything(tmp_path).items():
        (folder / f"{name}.html").write_text(html)
        url = f"{address}/{name}.html"
        for width, scheme in ((1280, "light"), (390, "dark")):
            chromium.open(url, width, 800, scheme)
            where = f"{name} at {width} px"
            assert chromium.errors == [], where
            assert [one for one in chromium.requests if not one.startswith("data:")] == [url], where
            assert chromium.evaluate("window.innerWidth") == width, where
            assert chromium.evaluate(NO_SIDEWAYS), where
            wide = {
                "All recorded values, by epoch",
                *(["All points of weak scaling"] if width > 1000 else []),
            }  # tables that may be wider than the screen, because they scroll
            assert set(chromium.evaluate(CLIPPED)) <= wide, where
            assert chromium.evaluate(UNNAMED) == 0, where
            assert chromium.evaluate(SMALL_TEXT) >= 10, where
            assert chromium.evaluate("typeof window.pwned") == "undefined", where
            shown = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
            colour = colours()["page"][scheme == "dark"]
            assert shown == f"rgb({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})", where


@pytest.mark.long
def test_what_the_browser_test_looks_for_would_be_seen(chromium: Browser, pages: tuple[Path, str]) -> None:
    folder, address = pages
    (folder / "bad.html").write_text(
        '<meta name="viewport" content="width=device-width"><p style="width:900px">wide</p><table><tr><th>x</th></tr></table>'
        '<script>console.error("bad"); window.pwned = 1</script><img src="missing.png">'
    )
    chromium.open(f"{address}/bad.html", 375, 800)
    assert any("bad" in error for error in chromium.errors)
    assert any("404" in error for error in chromium.errors)
    assert any(one.endswith("missing.png") for one in chromium.requests)
    assert not chromium.evaluate("document.documentElement.scrollWidth <= 375")
    assert chromium.evaluate(UNNAMED) == 3  # without a name: the table, its heading, and the page
    assert chromium.evaluate("window.pwned") == 1


def test_no_script_runs_even_where_markup_gets_in(chromium: Browser, pages: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = pages
    html = run_page(read_run(hostile(tmp_path))).replace("<main>", f"<main>{EVIL}")
    (folder / "policy.html").write_text(html)
    chromium.open(f"{address}/policy.html", 375, 800)
    assert chromium.evaluate("typeof window.pwned") == "undefined"
    assert any("Content Security Policy" in error for error in chromium.errors)
