"""Tests the ingestion benchmark: its table, the options that it refuses, and that a failed row does not stop the other rows."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import ingest as bench_ingest
from benchmarks.ingest import BareGraph, BenchIngestConfig
from benchmarks.ingest_cost import ingest_cost
from graphmill.core.errors import ConfigError
from graphmill.storage.ingestion.ingest import ingest

REPOSITORY = Path(__file__).resolve().parents[2]


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "ingest", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.long
def test_a_small_run_writes_its_table_and_nothing_else(tmp_path: Path) -> None:
    done = bench(
        "--nodes", 20000, "--edges", 160000, "--partitions", 4, "--partitioners", "random", "ldg", "--out", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.md"]
    result = json.loads((tmp_path / "results.json").read_text())
    random, ldg = result["rows"]
    assert random["partitioner"] == "random"
    assert random["cut"] == pytest.approx(0.75, abs=0.03)
    assert ldg["cut"] < 0.5
    assert ldg["node_balance"] < 1.13  # A partition is a range of 16 groups, so its size is only about even.
    assert random["edges"] == ldg["edges"] == pytest.approx(160000, rel=0.1)
    for row in result["rows"]:
        assert row["graph_bytes"] == pytest.approx(result["cost"]["graph"], rel=0.1)
        assert row["peak_bytes"] > 2**26
        assert {"assign", "edges", "write", "checksum", "sync"} <= row["stages"].keys()
        assert sum(row["stages"].values()) == pytest.approx(row["seconds"], abs=0.5)
    table = (tmp_path / "results.md").read_text()
    assert "| ldg | " in table
    assert table.strip() in done.stdout


@pytest.mark.long
def test_a_size_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    done = bench("--nodes", 1000, "--edges", 16_000, "--reserve-gib", 1e9, "--out", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "GiB of disk at once" in done.stderr
    assert "--edges" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_reserve_counts(tmp_path: Path) -> None:
    config = BenchIngestConfig(nodes=1000, edges=16_000)
    cost = ingest_cost(BareGraph(config).info, config.options("random"))
    bench_ingest.check_disk(cost, 2**30 + cost.peak_disk, 1.0, tmp_path)
    with pytest.raises(ConfigError, match=r"beyond the reserve of 1 GiB.*--work"):
        bench_ingest.check_disk(cost, 2**30 + cost.peak_disk - 1, 1.0, tmp_path)


def test_metis_counts_its_edges() -> None:
    config = BenchIngestConfig(nodes=1000, edges=16_000)
    cost = ingest_cost(BareGraph(config).info, config.options("ldg"))
    available = 2 * cost.memory
    bench_ingest.check_memory("ldg", cost, 10**9, available)
    with pytest.raises(ConfigError, match=r"metis needs about .* GiB of memory, .*choose ldg"):
        bench_ingest.check_memory("metis", cost, 10**9, available)


@pytest.mark.long
def test_a_row_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    config = BenchIngestConfig(nodes=1000, edges=16_000, partitions=2, out=tmp_path)
    late = bench_ingest.measure("random", replace(config, timeout_s=1e-3), 4096)
    assert "not done after 0.001 s; raise --timeout-s" in late["error"]
    too_many = bench_ingest.measure("range", replace(config, partitions=2000), 4096)
    assert "at most one partition per node" in too_many["error"]
    good = bench_ingest.measure("range", config, 4096)
    assert "error" not in good
    table = bench_ingest.describe([late, too_many, good], 1e6, config)
    assert "random failed: not done" in table
    assert "| range | " in table
    assert list(tmp_path.iterdir()) == []


def test_cut_and_balance_are_counted_from_the_stored_graph(tmp_path: Path) -> None:
    config = BenchIngestConfig(nodes=500, edges=8000, partitions=3)
    source, options = BareGraph(config), config.options("random")
    ingest(source, str(tmp_path / "graph"), options)
    from graphmill.storage.partitioning.partitioners import assign_partitions

    part = assign_partitions("random", source, 3, 0).partition
    src, dst = (np.concatenate([getattr(chunk, end) for chunk in source.edges(1000)]) for end in ("src", "dst"))
    counted = bench_ingest.quality(str(tmp_path / "graph"))
    assert counted["cut"] == pytest.approx((part[src] != part[dst]).mean())
    assert counted["node_balance"] == pytest.approx(np.bincount(part).max() * 3 / 500)
    assert counted["edge_balance"] == pytest.approx(np.bincount(part[dst]).max() * 3 / len(dst))
