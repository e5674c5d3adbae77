"""Tests --servers.tls without certificates: a run and a prediction are refused before Ray starts. A run without servers needs no certificates."""

import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs import predict, train_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.job_in_process import run_job

REFUSED = "tls: expected RAY_TLS_SERVER_CERT to name a PEM file on"


@pytest.fixture
def words(tmp_path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"):
        monkeypatch.delenv(name, raising=False)

    def started(*_: object) -> None:
        raise ConfigError("Ray was started")

    monkeypatch.setattr("graphmill.jobs.run.subject_run.ray_session", started)
    monkeypatch.setattr("graphmill.cluster.ray.session.ray_session", started)
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=300)), str(tmp_path / "graph"), IngestOptions(num_partitions=1))
    return ["--data", "graph", "--model.width", "8", "--model.num_layers", "1", "--fit.epochs", "1", "--servers.tls"]


def test_missing_certificates_are_one_line_before_ray_starts(tmp_path, words: list[str]) -> None:
    refused = run_job(train_nodes.main, [*words, "--workers.launcher", "ray", "--run.dir", "no"], tmp_path)
    assert refused.returncode != 0
    assert REFUSED in refused.stderr
    assert "starting Ray" not in refused.stdout


@pytest.mark.long
def test_so_they_are_by_a_prediction_of_a_run_that_needed_none(tmp_path, words: list[str]) -> None:
    alone = run_job(train_nodes.main, [*words, "--workers.launcher", "process", "--run.dir", "run"], tmp_path)
    assert alone.returncode == 0, alone.stderr
    refused = run_job(predict.main, ["run", "--out", "out", "--launcher", "ray"], tmp_path)
    assert refused.returncode != 0
    assert REFUSED in refused.stderr
