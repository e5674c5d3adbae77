"""Tests the names in error messages: a call from Python gets the names of Python arguments, a command gets flags."""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

import graphmill as gm
from graphmill.core.errors import ConfigError, GraphmillError, UsageError
from graphmill.jobs.compare import differing_options
from graphmill.jobs.run import training_run
from graphmill.jobs.run.python_words import spoken_here
from graphmill.jobs.run.train import train
from graphmill.jobs.runs import run_facts

Y = torch.arange(30) % 2


def data() -> Data:
    made = Data(
        x=torch.arange(90.0).view(30, 3) % 7, y=Y, edge_index=torch.stack([torch.arange(30), torch.arange(30).flip(0)])
    )
    made.train_mask, made.val_mask, made.test_mask = (torch.arange(30) % 3 == part for part in range(3))
    return made


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("message", "spoken"),
    [
        ("set --fit.epochs 3, or more", 'set fit={"epochs": 3}, or more'),
        ("more --fit.epochs go on with it", 'more fit={"epochs": …} go on with it'),
        ("start one without --run.resume", "start one without resume=…"),
        ("beside --run.resume auto", 'beside run={"resume": "auto"}'),
        ("set --sampler.fanouts 15 10 5", 'set sampler={"fanouts": (15, 10, 5)}'),
        ("set --evaluation full or --task.ranking sampled", 'set evaluation="full" or task={"ranking": "sampled"}'),
        ("set --sampler neighbor or saint", 'set sampler="neighbor" or saint'),
        ("set --fit.patience none", 'set fit={"patience": None}'),
        ("set --sampler.corrected no", 'set sampler={"corrected": False}'),
        ("leave out --data.edge_features", 'leave out data={"edge_features": True}'),
        ("set --run.dir to a folder", 'set run={"dir": …} to a folder'),
        ("set --model.local.block geco", 'set model={"local": {"block": …}} geco'),
        ("set --model.my_width 3", 'set model={"my_width": 3}'),
        ("pass --allow_import to import", "pass allow_import=True to import"),
        ("ingest it with --reverse-edges add", "ingest it with options=gm.IngestOptions(undirected=True)"),
        ("lower --partitions", "lower options=gm.IngestOptions(num_partitions=…)"),
        ("set --split.by random", 'set split=gm.SplitOptions(by="random")'),
        ("graphmill encode a rwse --dim 20; set --dim", "graphmill encode a rwse --dim 20; set --dim"),
        ("author--cites--paper", "author--cites--paper"),
        ("label '--task links' of the run's", "label '--task links' of the run's"),
        ("lower --memory-mib 2", "lower options=gm.IngestOptions(memory_budget_bytes=2097152)"),
    ],
)
def test_flags_are_said_as_python_says_them(message, spoken, monkeypatch):
    assert spoken_here(message) == spoken
    monkeypatch.setattr(sys, "argv", ["graphmill train"])
    assert spoken_here(message) == message


def of_tables(**tables: Any) -> Any:
    return lambda: gm.ingest(url="tables", **{name: pd.DataFrame(table) for name, table in tables.items()})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: gm.ingest(data(), "graph"), r"pass options=gm\.IngestOptions\(overwrite=True\) to publish"),
        (lambda: gm.ingest_graphs([data()], "graph"), r"pass overwrite=True to publish"),
        (of_tables(edges={"a": [0]}), r"^edges: expected one column each of src, dst, found a; set src=…, dst=…"),
        (
            of_tables(edges={"src": ["a"], "dst": ["b"]}, nodes={"id": ["a", "c"], "x": [1, 2]}),
            r"^edges: row 1: expected one of the ids of nodes, got 'b'$",
        ),
        (lambda: gm.train(data="graph", fit={"epochs": "x"}), r"^fit=\{\"epochs\": …\}: expected an integer, got 'x'$"),
        (lambda: gm.train(data="graph", epochs=1), r"^unknown option epochs=1; perhaps fit=\{\"epochs\": 1\}$"),
        (lambda: gm.train(data(), epochs=1), r"got epochs; perhaps fit=\{\"epochs\": 1\}$"),
        (
            lambda: gm.train(data="graph", model="geco", sampler={"fanouts": [3]}),
            r"^unknown option sampler=\{\"fanouts\": …\} of sampler=\"random-partition\"; it belongs to sampler=\"neighbor\"",
        ),
        (
            lambda: gm.train(data="graph", model="gcn", sampler="neighbor", task={"fanout": 3}),
            r"^unknown option task=\{\"fanout\": …\} of task=\"classification\"; perhaps sampler=\{\"fanouts\": …\}",
        ),
        (lambda: gm.train(resume="graph"), r"found none; start one without resume=…$"),
        (lambda: gm.train("graph"), r"^graph: expected a recipe file, got a folder; name a stored graph with data=…"),
        (lambda: gm.evaluate("run", splits="test"), r"^unknown option splits=\"test\"; perhaps split=…$"),
        (lambda: gm.predict("run", split="x", workers="y"), r"^workers=…: expected an integer, got 'y'$"),
        (lambda: gm.ingest(pd.DataFrame({"id": [0]}), pd.DataFrame({"src": [0]}), "out"), r"edges=…, nodes=…, url=…"),
    ],
)
def test_a_call_is_refused_in_words_of_python(call, says):
    gm.ingest(data(), "graph")
    with pytest.raises(GraphmillError, match=says) as refused:
        call()
    assert "--" not in str(refused.value)
    assert "/tmp" not in str(refused.value)


def test_the_function_itself_and_a_command_speak_of_flags(monkeypatch):
    with pytest.raises(UsageError, match=r"^--fit\.epochs: expected"):
        train(fit={"epochs": "x"})
    monkeypatch.setattr(sys, "argv", ["graphmill train"])
    with pytest.raises(UsageError, match=r"^--fit\.epochs: expected"):
        gm.train(fit={"epochs": "x"})


def test_data_in_memory_without_a_split_is_told_which_argument_draws_one():
    without = data()
    del without.train_mask, without.val_mask, without.test_mask
    with pytest.raises(
        ConfigError,
        match=r"the graph has none; call gm\.train with split=gm\.SplitOptions\(shares=\(0\.8, 0\.1, 0\.1\)\)$",
    ):
        gm.train(without, **SMALL)


def test_words_in_sequence_are_separated_by_commas():
    text = spoken_here("set --fit.epochs 3 --fit.learning_rate 0.1, or --fit.patience 4 or --workers 2")
    assert text == 'set fit={"epochs": 3}, fit={"learning_rate": 0.1}, or fit={"patience": 4} or workers=2'


def test_a_module_of_another_width_is_refused_at_once(capsys):
    with pytest.raises(ConfigError, match="with the outputs of the task, got") as refused:
        gm.train(data(), model=Wide(), workers=1, fit={"epochs": 1})
    assert "given up" not in str(refused.value)
    assert "start again" not in capsys.readouterr().err


class Wide(torch.nn.Module):
    def forward(self, x, edge_index):
        return torch.zeros(len(x), 77) + x.sum()


class Misspelt:
    def on_epoch_ends(self, epoch, record):
        return None


SMALL: dict[str, Any] = {"workers": 1, "sampler": {"num_chunks": 1}, "model": {"width": 8, "num_layers": 1}}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fit": {"epochs": 1, "callbacks": [Misspelt()]}}, "got on_epoch_ends; perhaps on_epoch_end$"),
        (
            {"fit": {"epochs": 1}, "task": {"metric": lambda prediction, target: "good"}},
            "expected a number, got 'good'",
        ),
    ],
)
def test_parts_of_one_s_own_are_refused_in_one_line(options, says):
    with pytest.raises(ConfigError, match=says):
        gm.train(data(), **SMALL, **options)


def test_an_interrupted_run_is_stopped(tmp_path):
    run = gm.train(data(), **SMALL, fit={"epochs": 1}, run={"dir": "run"}, quiet=True)
    assert run.status == "finished"
    for error, status in (("interrupted (Ctrl-C)", "stopped"), ("DataError: interrupted reading", "failed")):
        with Path("run/events.jsonl").open("a") as stream:
            stream.writelines(
                json.dumps(event) + "\n" for event in ({"kind": "start"}, {"kind": "fail", "error": error})
            )
        assert gm.read_run("run").status == status


def test_runs_on_data_in_memory_are_compared_by_its_content():
    runs = [gm.train(data(), **SMALL, fit={"epochs": 1}, run={"dir": name}, quiet=True) for name in ("a", "b", "c")]
    config = json.loads(Path("c/config.json").read_text())
    config["data"]["path"] = "graphs/mine"
    summary = json.loads(Path("c/summary.json").read_text()) | {"graph_hash": "other"}
    Path("c/config.json").write_text(json.dumps(config))
    Path("c/summary.json").write_text(json.dumps(summary))
    assert run_facts(runs[0])["data"] == f"in memory, {runs[0].data_hash[:8]}"
    assert run_facts(gm.read_run("c"))["data"] == "mine"
    assert differing_options(runs[0], runs[1]) == []
    assert [name for name, *_ in differing_options(runs[0], gm.read_run("c"))] == ["data.path"]


def test_a_resume_that_only_another_version_could_go_on_with_says_so(monkeypatch):
    def refuse(*_: object) -> None:
        raise ConfigError("of another run (cut: None there, 1 here); resume with its options, or start another run")

    gm.train(data(), **SMALL, fit={"epochs": 1}, run={"dir": "run"}, quiet=True)
    monkeypatch.setattr(training_run, "check_continues", refuse)
    with pytest.raises(
        ConfigError, match=r"; another version began it: resume with that version, or start another run$"
    ):
        gm.train(resume="run")
    with pytest.raises(ConfigError, match=r"; resume with its options, or start another run$"):
        gm.train(resume="run", fit={"learning_rate": 0.5})


def test_a_run_is_silent_where_it_is_asked_for_and_its_saved_model_knows_its_epochs(capfd):
    run = gm.train(data(), **SMALL, fit={"epochs": 2}, quiet=True)
    gm.predict(run, quiet=True)
    assert capfd.readouterr().out == ""
    run.save_model("saved")
    assert "; 2 epochs)" in repr(gm.load_model("saved"))


def test_a_run_on_links_is_not_scored_again():
    Path("links").mkdir()
    Path("links/config.json").write_text(json.dumps({"format": 2, "task": {"name": "links"}}))
    Path("links/summary.json").write_text(json.dumps({"metric": "mrr", "scores": {"test": 0.25}}))
    with pytest.raises(ConfigError, match=r"^links: .*got one on links, .* when it is trained: test mrr 0\.25$"):
        gm.evaluate("links")
