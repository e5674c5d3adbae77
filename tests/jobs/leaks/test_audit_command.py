"""Tests the command `graphmill audit` on graphs and runs: text, page, exit status, and the three lines beside every run."""

import json
from pathlib import Path

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs import audit as audit_job
from graphmill.jobs import report, train_links
from graphmill.jobs.audit import audit
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions
from tests.job_in_process import output_of, run_job, trained
from tests.jobs.leaks.test_planted import found, honest, label_column, linked, unseen_class

SMALL = (
    "--fit.epochs",
    1,
    "--workers",
    1,
    "--workers.launcher",
    "process",
    "--sampler",
    "neighbor",
    "--sampler.fanouts",
    3,
)
SMALL = (*SMALL, "--model", "sage", "--model.num_layers", 1, "--model.width", 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    rng = np.random.default_rng(6)
    pairs = np.unique(rng.integers(0, 300, (2000, 2)), axis=0)
    timed = ArrayGraph("timed", 300, *pairs.T, edge_time=rng.integers(0, 1000, len(pairs)))
    links = LinkSplitOptions(valid=0.1, test=0.1)
    ingest(timed, str(folder / "timed"), IngestOptions(links=links, undirected=True))
    ingest(linked("same"), str(folder / "repeated"), IngestOptions(undirected=True))
    for name, graph in (("honest", honest()), ("telling", label_column()), ("unseen", unseen_class())):
        ingest(graph, str(folder / name), IngestOptions(num_partitions=2))
    return folder


@pytest.mark.parametrize(
    ("graph", "words", "status"),
    [
        ("honest", (), 0),
        ("telling", (), 1),
        ("telling", ("--fail-on", "links", "twins"), 0),
        ("telling", ("--fail-on",), 0),
        ("unseen", (), 0),  # a warning, no leak
        ("unseen", ("--fail-on", "classes"), 1),
    ],
)
def test_the_exit_status(graph: str, words: tuple[str, ...], status: int, folder: Path) -> None:
    done = run_job(audit_job.main, [str(folder / graph), *words])
    assert (done.returncode, done.stderr) == (status, "")
    assert ("fails on: " in done.stdout) == bool(status)


def test_the_page_has_the_findings_and_replaces_only_a_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    for _ in range(2):
        assert run_job(audit_job.main, [str(folder / "telling"), "--out", str(page)]).returncode == 1
    text = page.read_text()
    assert "1 of 7 columns alone tell the label" in text
    assert "leave the column out" in text
    page.write_text("mine")
    done = run_job(audit_job.main, [str(folder / "telling"), "--out", str(page)])
    assert (done.returncode, page.read_text()) == (1, "mine")
    assert "a report" in done.stderr


def test_three_lines_are_in_the_output_the_record_and_the_report_of_a_run(folder: Path, tmp_path: Path) -> None:
    summary, _, said = trained(str(folder / "telling"), tmp_path / "run", *SMALL)
    assert [line.split(":")[0] for line in summary["audit"]] == ["audit splits", "audit columns", "audit links"]
    assert "audit columns: leak: 1 of 7 columns alone tell the label" in said
    assert all(line in said for line in summary["audit"])
    output_of(report.main, tmp_path / "run")
    assert "audit columns: leak: 1 of 7 columns" in (tmp_path / "run/report.html").read_text()
    assert found(audit(tmp_path / "run")) == {"labels"}
    config = json.loads((tmp_path / "run/config.json").read_text())
    config["resolved"]["inputs"]["standard"] = [["", 0, 0.25, 1.0]]
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert found(audit(tmp_path / "run")) == {"labels", "statistics"}


def test_an_honest_run_says_what_was_read(folder: Path, tmp_path: Path) -> None:
    _, _, said = trained(str(folder / "honest"), tmp_path / "run", *SMALL)
    assert "leak" not in said
    assert "audit columns: 6 columns, learnt on 200 training nodes, checked on 100" in said


def test_a_run_with_all_times_leaks_and_one_with_past_edges_does_not(folder: Path, tmp_path: Path) -> None:
    words = (*SMALL, "--embeddings.width", 8, "--evaluation", "sampled")
    for time, expected in (("all", {"times"}), ("before", set())):
        output_of(
            train_links.main, "--data", folder / "timed", *words, "--sampler.time", time, "--run.dir", tmp_path / time
        )
        result = audit(tmp_path / time)
        assert found(result) == expected, result
        assert result.num_leaks == len(expected)
    result = run_job(audit_job.main, [str(tmp_path / "all"), "--snapshot", "1"])
    assert "which has its own" in result.stderr


def test_a_run_looks_some_links_up(folder: Path, tmp_path: Path) -> None:
    words = (*SMALL, "--embeddings.width", 8, "--task.exclude_own", "no", "--run.dir", tmp_path / "run")
    said = output_of(train_links.main, "--data", folder / "repeated", *words)
    assert "audit links: leak: 60 of 60 held-out links looked up: 7 among the message edges" in said
    assert "--task.exclude_own false" in str(audit(tmp_path / "run"))


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ConfigError, match="fail_on: expected checks of links, times"):
        audit("nowhere", fail_on=("lunch",))
