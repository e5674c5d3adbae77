"""Tests the commands that a user tries first: short help and help by topic, lists and comparisons of runs, quiet output, and completion in a shell."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphmill as gm
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.cli.progress import results
from graphmill.jobs.config.config import config_options, config_tree, read_config
from graphmill.jobs.config.reader import UsageError
from graphmill.jobs.config.short_help import MOST, short_help, take_topics, whole_help

OPTIONS = config_options(read_config(config_tree("nodes")))
WHOLE = whole_help(OPTIONS)


def called(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["graphmill", *words])
    with pytest.raises(SystemExit) as end:
        gm.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize("command", ["train", "train_graphs", "train_links", "ingest", "predict"])
def test_help_is_short_and_names_what_more_there_is(command, monkeypatch, capsys):
    assert called(monkeypatch, command, "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60
    options = [line for line in lines if line.startswith("  --")]
    assert 10 < len(options) <= MOST
    assert all(44 < len(line) <= 120 for line in options)
    assert "--help all" in " ".join(lines)


def test_help_of_a_command_is_a_command_too(monkeypatch, capsys):
    assert called(monkeypatch, "help", "train_links", "fit") == 0
    asked = capsys.readouterr().out
    assert called(monkeypatch, "train_links", "--help", "fit") == 0
    assert asked == capsys.readouterr().out
    assert "--fit.epochs" in asked


def test_topics():
    everything = short_help(OPTIONS, ["all"], "")
    assert everything == WHOLE
    fit = short_help(OPTIONS, ["fit"], "")
    assert fit[0].startswith("--fit: ")
    assert {line.split()[0] for line in fit if line.startswith("  --")} == {
        line.split()[0] for line in WHOLE if line.startswith("  --fit.")
    }
    seeds = [line.split()[0] for line in short_help(OPTIONS, ["seed"], "") if line.startswith("  --")]
    assert seeds == ["--data.graph_seed", "--data.links.seed", "--fit.seed"]
    assert short_help(OPTIONS, ["--fit.seed"], "") == short_help(OPTIONS, ["fit.seed"], "")
    with pytest.raises(UsageError, match=r"perhaps fit\.patience"):
        short_help(OPTIONS, ["patiense"], "")


def test_words_around_help():
    assert take_topics(["a", "--fit.epochs", "3"]) == (["a", "--fit.epochs", "3"], None)
    assert take_topics(["a", "--help", "fit", "seed", "--model", "gcn"]) == (["a", "--model", "gcn"], ["fit", "seed"])
    assert take_topics(["-h"]) == ([], [])


def made_run(folder: Path, name: str, seed: int, score: float, **model: object) -> None:
    place = folder / name
    place.mkdir(parents=True)
    config = {
        "format": 2,
        "model": {"name": "gcn", **model},
        "data": {"path": "graphs/mine"},
        "fit": {"seed": seed},
        "run": {"dir": name},
    }
    (place / "config.json").write_text(json.dumps(config))
    (place / "metrics.jsonl").write_text("")
    (place / "summary.json").write_text(
        json.dumps({"metric": "accuracy", "scores": {"valid": score, "test": score / 2}, "num_parameters": 7})
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made_run(tmp_path / "runs", "a", 0, 0.5)
    made_run(tmp_path / "runs", "b", 1, 0.75, width=8)
    made_run(tmp_path / "runs", "c", 0, 0.25)
    (tmp_path / "runs" / "c" / "summary.json").write_text("{")
    (tmp_path / "runs" / "other").mkdir()
    return tmp_path / "runs"


def test_a_list_of_runs(folder, monkeypatch, capsys):
    assert called(monkeypatch, "runs", str(folder), "--sort", "-valid") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["run", "began", "status"]
    assert [row.split()[0] for row in rows] == ["c", "b", "a"]
    assert "unreadable: " in rows[0]
    assert rows[1].split()[1:] == ["finished", "gcn", "mine", "accuracy", "0.7500", "0.3750", "0", "7"]
    assert called(monkeypatch, "runs", str(folder), "--where", "valid=0.5", "model=g*") == 0
    assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[1:]] == ["a"]
    assert called(monkeypatch, "runs", str(folder), "--sort", "valid", "--limit", "1") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("{}", "--sort", "score"), "expected a column, one of run, began"),
        (("{}", "--where", "valid"), "--where model=geco, got"),
        (("{}/a",), "expected runs in this folder, found none"),
        (("{}/none",), "expected a folder of runs, found none"),
    ],
)
def test_lists_that_cannot_be(words, says, folder, monkeypatch, capsys):
    assert called(monkeypatch, "runs", *(word.format(folder) for word in words)) == 1
    assert says in capsys.readouterr().err


def test_a_comparison(folder, monkeypatch, capsys):
    assert called(monkeypatch, "compare", str(folder / "a"), str(folder / "b")) == 0
    said = capsys.readouterr().out
    assert re.search(r"^valid +0\.5000 +0\.7500$", said, re.MULTILINE)
    assert re.search(r"^options that differ: 1\n.*\nfit\.seed +0 +1$", said, re.MULTILINE)
    assert "options of one of the two alone: 1: model.width" in said


@pytest.mark.parametrize(("command", "printed"), [("train", "done\n"), ("report", "working\ndone\n")])
def test_quiet_leaves_the_result(command, printed, monkeypatch, capsys):
    def main() -> None:
        assert "--quiet" not in sys.argv
        print("working")
        with results():
            print("done")
        print("warning", file=sys.stderr)

    monkeypatch.setattr(sys, "argv", [f"graphmill {command}", "--quiet"])
    with pytest.raises(SystemExit):
        run(main)
    assert tuple(capsys.readouterr()) == (printed, "warning\n")


def test_bash_completes_commands_options_and_values(tmp_path, monkeypatch, capsys):
    assert called(monkeypatch, "completion", "bash") == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    asks = """
        source ./script
        ask() { COMP_WORDS=(graphmill "$@"); COMP_CWORD=$#; COMPREPLY=(); _shtab_graphmill; echo "${COMPREPLY[@]}"; }
        ask tra; ask train --fit.ep; ask train --model pri; ask ingest --partitioner l
    """
    done = subprocess.run(["bash", "-c", asks], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "train train_nodes train_graphs train_links",
        "--fit.epochs",
        "primphormer",
        "ldg",
    ]
