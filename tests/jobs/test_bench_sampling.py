"""Tests the sampling benchmark on a tiny graph: every row exists and is plausible. Speeds are not checked."""

import json
import sys
from pathlib import Path

import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs.bench import sampling as bench_sampling
from graphmill.jobs.bench.peers import Row
from graphmill.jobs.bench.sampling import BenchConfig, best_rows, measure


@pytest.fixture
def config(tmp_path) -> BenchConfig:
    return BenchConfig(
        nodes=2000, fanouts=(4, 3), batch_size=32, batches=2, warmup=1, rounds=2, remote=False, sizes=(1000,), wait_steps=0,
        data_dir=Path(tmp_path / "data"), out=Path(tmp_path / "out"),
    )  # fmt: skip


@pytest.mark.long
def test_writes_its_table(config, monkeypatch, capsys, tmp_path):
    argv = ["bench_sampling.py", "--nodes=2000", "--fanouts", "4", "3", "--batch-size=32", "--batches=2", "--warmup=1"]
    argv += [
        "--rounds=2",
        "--remote",
        "no",
        "--sizes",
        "1000",
        "--wait-steps",
        "1",
        "--data-dir",
        str(config.data_dir),
        "--out",
        str(config.out),
    ]
    monkeypatch.setattr(sys, "argv", argv)
    bench_sampling.main()
    body = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = {row["what"]: row for row in body["rows"]}
    ours = rows["ours: sampling, edge ids, relabelling; 1 threads"]["value"]
    limit = rows["limit: the same reads alone; 1 threads"]["value"]
    assert ours > 0
    assert limit > 0
    assert rows["share of the limit; 1 threads"]["value"] > 0
    assert "ms CPU a batch" in rows["ours: the same and rows of ids, labels, splits; 1 threads"]["note"]
    assert rows["feature rows, float16: share of torch"]["value"] > 0
    assert "not measured" in rows["DGL 1.1.3 NeighborSampler"]["note"]
    assert "private memory" in rows["1,000 nodes, 1 thread"]["note"]
    assert rows["ours: Node2Subgraph K=10, M=100; 2 threads"]["value"] > 0
    waits = [row for what, row in rows.items() if what.startswith("compute wait")]
    assert [row["value"] <= 100 for row in waits] == [True, True]
    assert "not measured" in rows["PyG NeighborLoader"]["note"]
    table = (tmp_path / "out" / "results.md").read_text()
    assert all(f"| {what} |" in table for what in rows)
    assert "| PyG NeighborLoader |  |  | not measured" in table
    assert "results.md" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.ray
def test_counts_what_travels(config, tmp_path):
    from dataclasses import replace

    remote = replace(config, remote=True, partitions=2, sizes=())
    rows = [row for row in measure(remote) if "through an actor" in row.what]
    assert len(rows) == 2
    for row in rows:
        # One request for each owner and hop, and one more for each owner to fetch rows.
        assert "6 requests a batch" in row.note
        assert "MB in" in row.note


def test_rounds_give_the_best_rate_and_the_median_of_shares():
    rounds = [
        [Row("rate", 3.0, "M edges/s", "first"), Row("share", share, "%", ""), Row("peer", None, "", "not measured")]
        for share in (50.0, 90.0, 60.0)
    ]
    rounds[1][0] = Row("rate", 4.0, "M edges/s", "second")
    assert best_rows(rounds) == [
        Row("rate", 4.0, "M edges/s", "second"),
        Row("share", 60.0, "%", ""),
        Row("peer", None, "", "not measured"),
    ]


def test_refuses_nothing_to_do():
    with pytest.raises(ConfigError, match="rounds: expected at least 1"):
        BenchConfig(rounds=0)
