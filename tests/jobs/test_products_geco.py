"""Tests the main job on real processes: it trains, repeats to the last digit, resumes and predicts exactly, and refuses bad input early."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill.cluster.prediction import prediction, prediction_actors
from graphmill.cluster.prediction.prediction_actors import ActorCrew
from graphmill.core.errors import ConfigError, StageError
from graphmill.jobs import predict, products_geco
from graphmill.jobs.records.run_record import read_run
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.predictions import PIECES, SETTINGS, SUMMARY
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests import job_in_process
from tests.predictions import call, predictions_of, scores_of
from tests.runs import curve

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = [
    "--data.nodes",
    "1500",
    "--model.width",
    "16",
    "--model.num_layers",
    "2",
    "--sampler.num_chunks",
    "2",
    "--fit.checkpoint_every",
    "1",
    "--fit.eval_every",
    "1",
    "--fit.schedule",
    "constant",
]


def start_job(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the job in a separate process, as a user does."""
    command = [sys.executable, str(REPOSITORY / "jobs" / "products_geco.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, env=dict(os.environ))


def run_job(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return job_in_process.run_job(products_geco.main, arguments, cwd)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def first_run(workplace, compiled_loops) -> subprocess.CompletedProcess[str]:
    return start_job([*SMALL, "--fit.epochs", "4", "--run.dir", "one"], workplace)


@pytest.mark.core
@pytest.mark.ray
@pytest.mark.slow
def test_a_run_leaves_everything_it_promises(first_run, workplace):
    assert "Traceback" not in first_run.stderr
    run = workplace / "one"
    assert run.is_dir(), first_run.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert sum(summary["counts"].values()) == 1500
    assert abs(summary["counts"]["train"] - 120) < 40
    assert first_run.returncode == 0
    assert summary["beats_baselines"] is False  # four epochs do not beat the baselines, so the last line is a warning
    assert first_run.stderr.splitlines()[-1].startswith("warning: test accuracy ")
    assert "Warning: test accuracy " in (run / "report.html").read_text()
    assert summary["workers"] == 2
    assert summary["baselines"]["features_only"]["test"] > summary["baselines"]["majority"]["test"]
    assert json.loads((run / "config.json").read_text())["fit"]["epochs"] == 4
    assert list((run / "tensorboard").glob("events.*"))
    assert {path.name for path in (run / "best").iterdir()} == {"model.safetensors", "config.json", "state.json"}
    assert "features only" in first_run.stdout
    last = dict(line.split(None, 1) for line in first_run.stdout.strip().splitlines()[-3:])
    assert last["report"] == "one/report.html"
    assert last["predict"].endswith("jobs/predict.py one one/predictions")
    assert last["continue"].endswith("jobs/products_geco.py --run.resume one --fit.epochs 8")
    assert "0/4 epochs; starting the workers" in first_run.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_the_same_seed_gives_the_same_curve_in_process_and_through_actors(shared_ray, first_run, workplace):
    # The results must not change with another directory, with another number of partitions, or if all requests go through an actor.
    second = run_job(
        [
            *[*SMALL, "--fit.epochs", "4", "--run.dir", "two", "--data.partitions", "3", "--servers.local_reads", "no"],
            *["--loader.threads", "3", "--run.require_baselines"],
        ],
        workplace,
    )
    assert "Traceback" not in second.stderr
    assert second.returncode == 1  # the scores are the same, but now the run must beat the baselines
    assert re.fullmatch(r"error: test accuracy .* \(--run.require_baselines\)", second.stderr.splitlines()[-1])
    assert curve(workplace / "two") == curve(workplace / "one")
    scores = [json.loads((workplace / run / "summary.json").read_text())["scores"] for run in ("one", "two")]
    assert scores[0] == scores[1]
    near, far = (read_run(workplace / run).traffic for run in ("one", "two"))
    assert (len(near), len(far)) == (2, 3)
    assert all(part.local_requests and not part.remote_requests for part in near)
    assert all(part.remote_bytes and not part.local_requests for part in far)
    assert any(part.remote_requests for part in far)  # a request to several partitions counts at the first of these
    assert 0.9 < sum(part.remote_bytes for part in far) / sum(part.local_bytes for part in near) < 1.2


@pytest.mark.ray
@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(shared_ray, first_run, workplace):
    # The run begins in one process. Its scores equal the scores of two workers up to rounding.
    alone = ["--workers", "1", "--workers.launcher", "process", "--fit.micro_batches", "2"]
    with job_in_process.one_thread():
        run_job([*SMALL, "--fit.epochs", "2", "--run.dir", "three", "--data.folder", "elsewhere", *alone], workplace)
    assert len(curve(workplace / "three")) == 2
    # A resume opens the snapshot with which the run began, even if newer ones were published since.
    (target,) = (path.parent for path in (workplace / "elsewhere").glob("*/manifests"))
    another = SyntheticGraph(SyntheticOptions(num_nodes=1500, seed=9))
    assert ingest(another, str(target), IngestOptions(num_partitions=2, overwrite=True)).snapshot == 2
    together = ["--workers", "2", "--workers.launcher", "ray"]
    resumed = run_job(["--run.resume", "three", "--fit.epochs", "4", *together], workplace)
    assert "Traceback" not in resumed.stderr
    for ours, theirs in zip(curve(workplace / "three"), curve(workplace / "one"), strict=True):
        assert (ours[0], ours[2]) == (theirs[0], theirs[2])
        assert ours[1] == pytest.approx(theirs[1], rel=1e-6)
    files = {path: path.read_bytes() for path in (workplace / "three").rglob("*") if path.is_file()}
    other = run_job(["--run.resume", "three", "--fit.epochs", "6", "--model.width", "24"], workplace)
    assert other.returncode == 1
    assert "another architecture (width: 16 there, 24 here)" in other.stderr
    assert len(other.stderr.strip().splitlines()) == 1
    chunks = run_job(["--run.resume", "three", "--fit.epochs", "6", "--evaluation.chunks", "3"], workplace)
    assert (
        "another run (evaluation: 'full, 1 chunks' there, 'full, 3 chunks, the last epoch kept' here)" in chunks.stderr
    )
    assert {path: path.read_bytes() for path in (workplace / "three").rglob("*") if path.is_file()} == files


@pytest.mark.ray
@pytest.mark.slow
def test_scores_in_chunks_are_estimates_which_warn_and_prove_nothing(shared_ray, workplace):
    more = ["--fit.epochs", "3", "--fit.eval_every", "2", "--evaluation.chunks", "3", "--run.dir", "estimated"]
    done = run_job([*SMALL, *more, "--workers", "1", "--workers.launcher", "process"], workplace)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    assert re.fullmatch(r"warning: test accuracy \(estimate\) .*", done.stderr.splitlines()[-1])
    assert "scores are estimates: each split is scored in 3 chunks" in done.stdout
    assert "the last epoch is kept" in done.stdout
    assert "(estimate)  " in done.stdout  # in the line of progress
    assert "kept the last epoch, 3 of 3" in done.stdout
    run = workplace / "estimated"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert "valid_estimate_accuracy" in lines[-1]
    assert not [name for line in lines for name in line if name in ("valid_accuracy", "valid_loss", "best_epoch")]
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["estimates"]) == {"train", "valid", "test"}
    assert "scores" not in summary
    assert "best_epoch" not in summary
    assert summary["beats_baselines"] is None
    assert summary["last_epoch"] == 2
    # The estimate belongs to the weights that were kept.
    assert summary["estimates"]["valid"] == lines[-1]["valid_estimate_accuracy"]
    report = (run / "report.html").read_text()
    assert "scores are estimates: each split is scored in 3 chunks" in report
    assert "Warning: test accuracy (estimate)" in report
    assert "Validation accuracy (estimate)" in report
    # `predict` scores this run in the same way, and its output says so.
    predicted = job_in_process.run_job(predict.main, ["estimated", "predicted", "--split", "test"], workplace)
    assert predicted.returncode == 0, predicted.stderr
    assert re.search(r"test accuracy \(estimate\) .*, as in the run's summary", predicted.stdout)
    assert "estimate: each split is scored in 3 chunks" in predicted.stdout


WHOLE = ["--run.parallel", "graph", *SMALL[:6], *SMALL[8:]]  # SMALL without --sampler.num_chunks


@pytest.fixture(scope="module")
def whole_run(shared_ray, workplace) -> Path:
    done = run_job([*WHOLE, "--fit.epochs", "3", "--run.dir", "whole"], workplace)
    assert "Traceback" not in done.stderr, done.stderr
    return workplace / "whole"


@pytest.mark.ray
@pytest.mark.slow
def test_the_whole_graph_over_workers_trains(whole_run, workplace):
    summary = json.loads((whole_run / "summary.json").read_text())
    assert summary["workers"] == 2
    assert sum(summary["counts"].values()) == 1500
    losses = [loss for loss, _, _ in curve(whole_run)]
    assert losses[-1] < losses[0]
    other = run_job(["--run.resume", "whole", "--fit.epochs", "4", "--run.parallel", "data"], workplace)
    assert other.returncode == 1
    assert "another run (parallel: 'graph' there, None here)" in other.stderr


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_a_resumed_run_on_the_whole_graph_is_the_uninterrupted_one(whole_run, workplace):
    run_job([*WHOLE, "--fit.epochs", "2", "--run.dir", "parted"], workplace)
    resumed = run_job(["--run.resume", "parted", "--fit.epochs", "3"], workplace)
    assert "Traceback" not in resumed.stderr
    assert curve(workplace / "parted") == curve(whole_run)


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_predicts_its_own_scores(shared_ray, first_run, workplace, monkeypatch, capfd):
    monkeypatch.chdir(workplace)
    assert call(predict.main, monkeypatch, "one", "one-out", "--shard-rows", "600", "--embeddings") == 0
    summary = json.loads((workplace / "one-out" / SUMMARY).read_text())
    scores = scores_of(workplace / "one")
    assert {split: summary["scores"][split]["accuracy"] for split in ("train", "valid", "test")} == scores
    printed = capfd.readouterr()
    assert printed.out.count(", as in the run's summary") == 3
    assert "constructor arguments" not in printed.err  # Ray's warning about actors that may be restarted
    table = predictions_of(workplace / "one-out")
    assert table["id"].to_pylist() == list(range(1500))
    test = table.filter(pa.compute.equal(table["split"], "test"))
    assert pa.compute.mean(pa.compute.equal(test["prediction"], test["target"])).as_py() == scores["test"]
    assert table["embedding"].type.list_size == 16
    names = sorted(path.name for path in (workplace / "one-out").iterdir())
    assert names == [SETTINGS, SUMMARY, *(f"part-0000{index}.parquet" for index in range(3))]
    assert pq.read_table(workplace / "one-out").num_rows == 1500  # any Parquet reader can read the folder as one table


@pytest.mark.ray
@pytest.mark.slow
def test_workers_that_trained_on_the_whole_graph_predict_it_together(whole_run, workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    command = ["whole", "together", "--embeddings"]
    wait = prediction_actors._wait

    def strike(references, method, pool):
        wait(references, method, pool)
        if method == "meet":
            victims = [process for process in psutil.Process().children(recursive=True) if is_predictor(process)]
            assert len(victims) == 2
            victims[1].kill()

    with monkeypatch.context() as patch:
        patch.setattr(prediction_actors, "_wait", strike)
        with pytest.raises(StageError, match=r"a worker died .*run again"):
            call(predict.main, patch, *command)
    with monkeypatch.context() as patch:
        patch.setattr(prediction, "split_scores", interrupt)
        with pytest.raises(KeyboardInterrupt):
            call(predict.main, patch, *command)
    pieces = sorted((workplace / "together" / PIECES).iterdir())
    assert len(pieces) == 6  # one piece for each worker and split
    pieces[3].unlink()
    made, together = [], ActorCrew._predict_together

    def watch(crew, pieces, splits, progress):
        made.extend(splits)
        together(crew, pieces, splits, progress)

    monkeypatch.setattr(ActorCrew, "_predict_together", watch)
    assert call(predict.main, monkeypatch, *command) == 0
    assert made == [1]
    assert capsys.readouterr().out.count(", as in the run's summary") == 3
    alone = ["whole", "alone", "--embeddings", "--parallel", "data", "--launcher", "process"]
    assert call(predict.main, monkeypatch, *alone) == 0
    tables = [predictions_of(workplace / name) for name in ("together", "alone")]
    for name in ("id", "split", "target"):
        assert tables[0][name].equals(tables[1][name]), name
    for name in ("logits", "embedding"):
        found, expected = (np.stack(table[name].to_numpy()) for table in tables)
        assert np.allclose(found, expected, atol=1e-5)
        assert np.ptp(expected) > 0.1
    with pytest.raises(ConfigError, match="other settings"):
        call(predict.main, monkeypatch, *command, "--workers", "1")
    with pytest.raises(ConfigError, match="device: 'cpu' there, 'gpu' here"):
        call(predict.main, monkeypatch, *command, "--device", "gpu")
    call(predict.main, monkeypatch, *command, "--plan")
    assert "the whole graph over 2 workers, once for all splits" in capsys.readouterr().out


def is_predictor(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "Predictor" in " ".join(process.cmdline())
    return False


def interrupt(*_):
    raise KeyboardInterrupt
