"""Runs the typed sampling benchmark on a tiny graph. Its table must have every row, with plausible values. Speeds are not checked."""

import json
import sys

import numpy as np
import pytest

from benchmarks import typed as bench_typed
from benchmarks.typed import BenchConfig, our_samplers, peer_rows, prepare
from graphmill.core.errors import ConfigError
from graphmill.jobs.bench import peer_process
from graphmill.jobs.bench.peers import best_round, load_relations
from graphmill.storage.format.source import Relation


def test_writes_its_table(tmp_path, monkeypatch, capsys):
    argv = [
        "typed",
        "--scale",
        "0.0005",
        "--fanouts",
        "3",
        "2",
        "--batch-size",
        "32",
        "--batches",
        "2",
        "--warmup",
        "1",
        "--rounds",
        "1",
        "--threads",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", [*argv, "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "out")])
    bench_typed.main()
    rows = {row["what"]: row for row in json.loads((tmp_path / "out" / "results.json").read_text())["rows"]}
    ours = rows["ours: sampling, rows of ids, labels, splits, features; 1 threads"]
    assert ours["batches_per_s"] > 0
    assert ours["cpu_ms"] > 0
    assert "edges and" in ours["note"]
    assert "not measured; pass --dgl-python" in rows["DGL 1.1.3 NeighborSampler"]["note"]
    assert "not measured; pass --pyg-python" in rows["PyG NeighborLoader"]["note"]
    assert "| PyG NeighborLoader |  |  |  | not measured" in (tmp_path / "out" / "results.md").read_text()
    assert "results.md" in capsys.readouterr().out


def test_peers_are_given_the_graph_of_our_batches(tmp_path, monkeypatch):
    config = BenchConfig(scale=0.0005, fanouts=(-1,), batch_size=8, batches=2, warmup=1, data_dir=tmp_path)
    graph = prepare(config)
    assert len(graph.relations) == 7  # four relations and three reverses
    sampler = our_samplers(config, graph)[1]
    given = []

    def peer(config, size, write_inputs):
        given.append(write_inputs())
        return iter(())

    monkeypatch.setattr(peer_process, "peer_rows", peer)
    assert list(peer_rows(config, graph, sampler)) == []
    (work,) = given
    roots, batch = np.load(f"{work['folder']}/roots.npy")[0], sampler.sample(0, 0)
    np.testing.assert_array_equal(
        np.load(f"{work['folder']}/paper.npy")[batch.nodes["paper"].node_id], batch.nodes["paper"].x
    )
    for relation, indptr, indices in load_relations(work):
        edges, source = batch.edges[Relation(*relation)], batch.nodes[relation[0]].node_id
        if relation[2] == "paper":
            for root, position in zip(roots, batch.root_index, strict=True):
                ours = source[edges.indices[edges.indptr[position] : edges.indptr[position + 1]]]
                assert sorted(indices[indptr[root] : indptr[root + 1]].tolist()) == sorted(ours.tolist())


def test_rates_are_of_the_batches_after_the_warmup():
    work = {"rounds": 2, "warmup": 1}
    rates = best_round(work, lambda: iter([(1000, 1000), (3, 2), (5, 4)]))
    assert (rates.edges_per_batch, rates.nodes_per_batch) == (4, 3)
    assert rates.edges_per_s == pytest.approx(rates.batches_per_s * 4 / 1e6)


def test_refuses_nothing_to_do():
    with pytest.raises(ConfigError, match="batches: expected at least 2"):
        BenchConfig(batches=1)
    with pytest.raises(ConfigError, match="scale: expected more than 0"):
        BenchConfig(scale=0)
    with pytest.raises(ConfigError, match="fanouts: expected at least 1 per hop"):
        BenchConfig(fanouts=(3, 0))
    with pytest.raises(ConfigError, match="expected an interpreter"):
        BenchConfig(dgl_python="/nowhere/python")
