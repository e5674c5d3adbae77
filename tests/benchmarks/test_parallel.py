"""Runs the graph-parallel benchmark on a tiny graph. All losses must be equal, and the number of sent bytes must equal the formula."""

import json

import pytest

from benchmarks import parallel
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.job_in_process import output_of


@pytest.mark.long
def test_two_workers_have_ones_loss_and_send_what_is_predicted(tmp_path):
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=500)), str(tmp_path / "graph"), IngestOptions(num_partitions=1))
    options = ["--graph", "graph", "--workers", "1", "2", "--width", "8", "--layers", "1", "--out", "out"]
    said = output_of(parallel.main, *options, cwd=tmp_path)
    results = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert [(rank["workers"], rank["rank"]) for rank in results] == [(1, 0), (2, 0), (2, 1)]
    for rank in results:
        assert rank["losses"] == pytest.approx(results[0]["losses"], rel=1e-6)
        assert sum(rank["sent"].values()) == sum(rank["predicted"].values())
    assert (tmp_path / "out" / "results.md").read_text() in said
