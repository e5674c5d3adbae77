"""The table of scores over runs that succeed, lose to a baseline, or fail; the job itself is a stand-in."""

import pytest

from jobs.bench import node_scores
from jobs.bench.node_scores import RECIPES, Config, run_recipe
from storage.errors import StageError
from storage.ingest import ingest
from tests.job_in_process import run_job
from tests.marked_graph import MarkedGraph


@pytest.fixture
def config(tmp_path, monkeypatch) -> Config:
    """A prepared graph, and a job that leaves what its `outcome` file says: "<exit status> <whether there is a summary>"."""
    job = tmp_path / "job.py"
    job.write_text(
        "import pathlib, sys\n"
        "run = pathlib.Path(sys.argv[sys.argv.index('--run.dir') + 1])\n"
        "code, has_summary = (pathlib.Path(__file__).parent / 'outcome').read_text().split()\n"
        "run.mkdir()\n"
        "if has_summary == 'True':\n    (run / 'summary.json').write_text('{\"beats_baselines\": false}')\n"
        "print('error: the reason', file=sys.stderr)\n"
        "sys.exit(int(code))\n"
    )
    monkeypatch.setattr(node_scores, "JOB", job)
    ingest(MarkedGraph(1), str(tmp_path / "runs" / "graphs" / RECIPES[0].dataset))
    return Config(data_dir=str(tmp_path / "absent"), out_dir=str(tmp_path / "runs"))


def test_a_run_that_loses_to_a_baseline_is_a_result(config, tmp_path):
    (tmp_path / "outcome").write_text("0 True")
    assert run_recipe(RECIPES[0], 0, config) == {"beats_baselines": False}


@pytest.mark.parametrize(("code", "has_summary"), [(0, False), (1, False), (1, True), (2, True), (130, False)])
def test_a_run_that_fails_is_one_line(config, tmp_path, code, has_summary):
    (tmp_path / "outcome").write_text(f"{code} {has_summary}")
    with pytest.raises(StageError, match=rf"got {code}; see .*\.log: error: the reason$"):
        run_recipe(RECIPES[0], 0, config)


def test_a_failed_ingestion_is_one_line(config, tmp_path):
    (tmp_path / "data").mkdir()
    dataset = RECIPES[-1].dataset
    (tmp_path / "data" / f"{dataset}.npz").write_text("no arrays")
    (tmp_path / "ingest.py").write_text("import sys\nsys.exit(1)\n")
    with pytest.raises(StageError, match="ingestion failed with exit status 1"):
        run_recipe(RECIPES[-1], 0, Config(data_dir=str(tmp_path / "data"), out_dir=config.out_dir))


def test_the_command_without_its_data(tmp_path):
    done = run_job(node_scores.main, ["--data-dir", "absent", "--out-dir", "runs"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "no such file; set --data-dir" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs" / "scores.json").exists()
