"""Runs the benchmark of weak scaling with one and two workers on a small graph. Speeds are not checked."""

import pytest

from benchmarks.weak import WeakConfig, measure
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions


@pytest.mark.long
def test_workers_train_from_one_server_and_all_their_cpu_time_counts(tmp_path):
    graph = str(tmp_path / "graph")
    options = SyntheticOptions(400, 6.0, num_classes=3, feature_dim=4, train_share=0.5)
    ingest(SyntheticGraph(options), graph, IngestOptions(num_partitions=2))
    config = WeakConfig(graph, batch_size=25, fanouts=(3, 2), width=8, layers=1, epochs=1, rounds=1)
    alone, two = measure(config)
    assert (alone["workers"], two["workers"]) == (1, 2)
    assert alone["efficiency"] == 1
    for row in (alone, two):
        assert row["in workers"] > 0
        assert row["in the server"] >= 0
    spent = [row["in workers"] + row["in the server"] for row in (alone, two)]
    assert two["efficiency"] == pytest.approx(spent[0] / spent[1])
