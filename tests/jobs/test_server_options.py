"""Tests that a run sends fewer bytes between processes if rows are kept by plan, or if features are stored in a smaller type."""

import pytest

from graphmill.jobs import products_geco
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests import job_in_process
from tests.disturbed_job import epochs, events

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("shared_ray")]
SMALL = (
    *("--model.width", "16", "--model.num_layers", "2", "--sampler", "neighbor", "--sampler.fanouts", "4", "3"),
    *("--evaluation", "sampled", "--fit.epochs", "3", "--workers", "2", "--servers.local_reads", "no"),
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("graph") / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=1000)), url, IngestOptions(num_partitions=2))
    return url


@pytest.fixture(scope="module")
def trained(graph, tmp_path_factory):
    def train(name, *options):
        run = tmp_path_factory.mktemp("runs") / name
        done = job_in_process.run_job(
            products_geco.main,
            ["--run.dir", str(run), *SMALL, *(() if "--data" in options else ("--data", graph)), *options],
        )
        assert done.returncode == 0, done.stderr
        received = sum(sum(event["received_bytes"]) for event in events(run) if event["kind"] == "traffic")
        return [epoch["train_loss"] for epoch in epochs(run)], received

    return train


@pytest.fixture(scope="module")
def plain(trained):
    return trained("plain")


def test_rows_by_plan_change_no_loss_and_save_rows(plain, trained):
    losses, received = trained("planned", "--loader.cache_bytes", "10000000")
    assert losses == plain[0]
    # The plan saves only training rows: validation and final scores fetch their rows without a plan.
    assert received < 0.9 * plain[1]


def test_a_graph_of_float16_sends_half_the_features(plain, trained, tmp_path):
    url = str(tmp_path / "graph")
    ingest(
        SyntheticGraph(SyntheticOptions(num_nodes=1000)), url, IngestOptions(num_partitions=2, feature_dtype="float16")
    )
    losses, received = trained("half", "--data", url)
    assert losses == pytest.approx(plain[0], rel=0.02)
    assert received < 0.6 * plain[1]
