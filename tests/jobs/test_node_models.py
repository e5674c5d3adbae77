"""Node jobs of Primphormer, TokenGT and PPGT: end to end on a tiny graph, and bad options in one line."""

import importlib
import json
import sys

import pytest

from storage.errors import GraphmillError
from tests.job_in_process import run_job

TINY = [
    "--data.nodes",
    "600",
    "--fit.epochs",
    "2",
    "--sampler.num_chunks",
    "2",
    "--fit.warmup_epochs",
    "0",
    "--fit.checkpoint_every",
    "1",
]
JOBS = {
    "products_primphormer": [
        "--model.width",
        "32",
        "--model.position.kind",
        "laplacian_linear",
        "--model.position.steps",
        "4",
    ],
    "products_tokengt": [
        "--model.width",
        "16",
        "--model.num_layers",
        "1",
        "--model.identifier",
        "laplacian",
        "--model.identifier_dim",
        "4",
    ],
    "arxiv_ppgt": ["--model.width", "16", "--model.num_layers", "1", "--sampler.max_nodes", "8"],
}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=[] if job == "arxiv_ppgt" else pytest.mark.long) for job in JOBS]
)
def test_the_job_trains_and_reports(job, shared_ray, tmp_path):
    done = run_job(importlib.import_module(f"jobs.{job}").main, [*TINY, *JOBS[job], "--run.dir", "run"], tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert done.returncode == 0
    assert sum(summary["counts"].values()) == 600
    assert summary["epochs"] == 2
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["train_loss"] < lines[0]["train_loss"]
    assert (tmp_path / "run" / "best" / "config.json").exists()


def test_tokengt_default_is_the_preset_of_node_classification():
    from jobs.products_tokengt import ModelOptions, build_model_config

    from models.options.features import Features
    from models.options.tokengt import node_classification

    want = node_classification(Features(dim=9), 5, encoding="laplacian", seed=3)
    assert build_model_config(ModelOptions(), 3, 9, 5, "laplacian") == want


BAD = [
    ("products_primphormer", ["--model.width", "15", "--model.num_heads", "2"], "num_heads"),
    ("products_primphormer", ["--model.eta", "-1"], "eta"),
    ("products_tokengt", ["--model.num_heads", "7"], "num_heads"),
    ("products_tokengt", ["--model.dropout", "1"], "dropout"),
    ("arxiv_ppgt", ["--sampler", "neighbor"], "--sampler node2subgraph"),
    ("arxiv_ppgt", ["--evaluation", "full"], "--evaluation sampled"),
    ("arxiv_ppgt", ["--sampler.max_nodes", "0"], "--sampler.max_nodes"),
    ("arxiv_ppgt", ["--model.num_layers", "-1"], "num_layers"),
]


@pytest.mark.parametrize(("job", "arguments", "message"), BAD)
def test_bad_options_are_one_line_before_anything_starts(job, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{job}.py", *arguments])
    with pytest.raises(GraphmillError, match=message) as caught:
        importlib.import_module(f"jobs.{job}").main()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
