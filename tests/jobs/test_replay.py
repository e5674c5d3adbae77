"""Tests that a batch of a run can be rebuilt: it has the same arrays, and the loss that the run recorded."""

import json

import numpy as np
import pytest

from graphmill.jobs import replay, train_graphs, train_nodes
from tests.job_in_process import output_of, run_job

NODES = "--run.defaults recipe --data.nodes 1500 --model.num_layers 2 --model"
WALKS = "--sampler saint --sampler.num_walks 60 --sampler.num_presamples 20 --sampler.batches_per_epoch 1"
ONE_STEP = [
    (train_nodes.main, f"{NODES}.width 16 --sampler.num_chunks 1"),
    (train_nodes.main, f"{NODES} sage {WALKS}"),  # batches of GraphSAINT weight the losses
    pytest.param(
        train_graphs.main,
        "--model grit --model.width 16 --data.molecules 60 --sampler.max_graphs 100 --sampler.bucket_ratio inf",
        marks=pytest.mark.long,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("train", "options"), ONE_STEP)
def test_the_loss_of_a_replayed_batch_is_the_recorded_one(tmp_path, train, options):
    words = [*options.split(), "--fit.micro_batches", "1", "--workers.launcher", "process"]
    done = run_job(train, [*words, "--fit.epochs", "3", "--fit.checkpoint_every", "1", "--run.dir", "run"], tmp_path)
    assert done.returncode == 0, done.stderr
    recorded = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert recorded[2]["batches"] == 1
    said = output_of(replay.main, "run", "--epoch", "2", "--batch", "0", "--loss", "--out", "batch.npz", cwd=tmp_path)
    lines = dict(line.split(None, 1) for line in said.splitlines())
    assert lines["weights"] == "of epoch-000002"
    assert float(lines["loss"].split()[0]) == recorded[2]["train_loss"]
    again = run_job(replay.main, ["run", "--epoch", "2"], tmp_path)
    assert f"digest  {lines['digest']}\n" in again.stdout
    other = run_job(replay.main, ["run", "--epoch", "1", "--loss"], tmp_path)
    assert "those that training began with" in other.stdout or "of epoch-000001" in other.stdout
    with np.load(tmp_path / "batch.npz", allow_pickle=False) as arrays:
        rows = len(arrays["node_id"]) if "node_id" in arrays else int(arrays["node_ptr"][-1])
    assert f"{rows:,} nodes" in lines["holds"]


def test_bad_requests_are_one_line(tmp_path):
    (tmp_path / "taken.npz").touch()
    for words, status, said in [
        (["nothing"], 1, "expected a run directory"),
        (["nothing", "--epoch", "-1"], 1, "epoch"),
        (["nothing", "--out", "taken.npz"], 1, "taken.npz: expected a batch or nothing there, found another file"),
        (["nothing", "--out", "new.txt"], 1, "expected a new file ending in .npz, got new.txt; set --out"),
    ]:
        done = run_job(replay.main, words, tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (status, 1)
        assert said in done.stderr
