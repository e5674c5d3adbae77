"""Tests the rows of jobs/bench/training.py: they run, cover the graph once, and refuse sizes that do not fit in memory."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmill.core.errors import ConfigError
from graphmill.jobs.bench import results
from graphmill.jobs.bench import training as bench_training
from graphmill.jobs.bench.training import TrainingConfig, bench, measure, molecules

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = TrainingConfig(nodes=600, degree=6, parts=3, width=16, layers=2, graphs=4, rounds=1)


@pytest.fixture(autouse=True)
def small_tokengt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces TokenGT by a small one, because the published size takes seconds and half a gigabyte."""
    published = results.recipe_options

    def small(path: str, **changes: Any) -> Any:
        if path.startswith("tokengt/"):
            changes |= {"width": 32, "num_heads": 4, "num_layers": 2}
        return published(path, **changes)

    monkeypatch.setattr(results, "recipe_options", small)


@pytest.mark.long
def test_all_rows_are_measured_and_kept(tmp_path: Path) -> None:
    said: list[str] = []
    rows, skipped = bench(replace(SMALL, out=tmp_path / "out", recompute=True), said.append)
    kept = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["name"] for row in kept["rows"]] == ["geco", "primphormer", "tokengt"]
    assert [line.partition(":")[0] for line in said[:-1]] == ["geco", "primphormer", "tokengt"]
    assert all(0 < row.fastest_s <= row.seconds for row in rows)
    assert skipped == kept["skipped"] == {}
    assert said[-1].strip() == (tmp_path / "out" / "results.md").read_text().strip()
    hours = 1024e6 / (4 / rows[2].seconds) / 3600
    assert f"{hours:,.5g} hours for the published steps" in rows[2].note


def test_parts_cover_the_graph_once_with_the_edges_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphmill.models.primphormer.network import Primphormer

    seen = []
    forward = Primphormer.forward_with_penalty
    monkeypatch.setattr(
        Primphormer, "forward_with_penalty", lambda self, graphs: seen.append(graphs) or forward(self, graphs)
    )
    work = bench_training._primphormer(SMALL)
    for loss in work.losses():
        loss()
    graph, x, _, _ = bench_training._large_graph(SMALL)
    row_of = {tuple(row[:3].tolist()): i for i, row in enumerate(x)}
    assert len(row_of) == 600
    nodes = [[row_of[tuple(row[:3].tolist())] for row in graphs.x] for graphs in seen]
    assert sorted(row for part in nodes for row in part) == list(range(600))
    pairs = {(int(s), d // 6) for d, s in enumerate(graph.indices)}
    inside = {(s, d) for s, d in pairs if any(s in part and d in part for part in map(set, nodes))}
    kept = {
        (part[s], part[d]) for part, graphs in zip(nodes, seen, strict=True) for s, d in graphs.edge_index.T.tolist()
    }
    assert kept == inside


def test_what_does_not_fit_is_skipped_with_the_estimate(tmp_path: Path) -> None:
    config = TrainingConfig(memory_gb=0.1, out=tmp_path / "out", rows=("geco", "tokengt"))
    said: list[str] = []
    bench(config, said.append)
    text = said[-1]
    assert "geco skipped: needs about" in text
    assert "--recompute" in text
    assert "smaller --graphs" in text
    assert json.loads((tmp_path / "out" / "results.json").read_text())["rows"] == []


@pytest.mark.long
def test_estimates_are_near_what_is_taken() -> None:
    config = replace(SMALL, nodes=40_000, degree=20, width=64, parts=4)
    for name in ("geco", "primphormer"):
        row = measure(name, config)
        assert row.peak_bytes is not None
        assert 0.5 < bench_training.needed_bytes(name, config) / row.peak_bytes < 4, name


def test_molecules_are_chains_with_a_ring() -> None:
    graphs = molecules(50)
    assert graphs.num_graphs == 50
    assert 12 < graphs.num_nodes / 50 < 16
    assert graphs.edge_index.shape[1] == 2 * graphs.num_nodes
    assert torch.equal(graphs.graph_of_node[graphs.edge_index[0]], graphs.graph_of_node[graphs.edge_index[1]])
    pairs = {tuple(pair) for pair in graphs.edge_index.T.tolist()}
    assert len(pairs) == graphs.edge_index.shape[1]
    assert all((b, a) in pairs and a != b for a, b in pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 0}, "parts: expected at least 1"),
        ({"degree": 5}, "degree: expected an even number"),
        ({"nodes": 4, "degree": 4}, "degree: expected an even number"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**options)


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--nodes", "x"], ["--no-such"], ["--rows", "grit"]])
def test_a_wrong_command_line_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "graphmill.jobs.bench", "training", *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode in (1, 2)
    assert len(result.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
