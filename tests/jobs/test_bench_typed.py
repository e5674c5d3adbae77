"""The typed sampling benchmark on a tiny graph: every row is there and makes sense. No figure is judged: a test is never timed."""

import json
import sys

import numpy as np
import pytest

from jobs.bench import typed as bench_typed
from jobs.bench.typed import BenchConfig, MagShape
from storage.errors import ConfigError
from storage.source import Relation


def test_the_graph_has_the_shape_of_mag(tmp_path):
    shape = MagShape(tmp_path / "mag", 0.0005)
    assert shape.num_nodes == {"paper": 368, "author": 567, "institution": 4, "field_of_study": 29}
    assert len(shape.relations) == 7
    router = shape.router()
    edges = sum(each.manifest.num_edges for each in router.edges.values())
    assert 0.5 * 42e6 * 0.0005 < edges <= 42.3e6 * 0.0005  # repeated edges are dropped, more of a small graph
    for relation, reverse in (("writes", "rev_writes"), ("has_topic", "rev_has_topic"), ("cites", "cites")):
        forward, back = (
            {tuple(pair)[:: 1 if name == relation else -1] for pair in _pairs(shape, name)}
            for name in (relation, reverse)
        )
        assert forward == (back if relation != reverse else {pair[::-1] for pair in back})
    again = MagShape(tmp_path / "mag", 0.0005)  # is not made anew
    assert again.router().edges.keys() == router.edges.keys()


def _pairs(shape: MagShape, name: str) -> list[tuple[int, int]]:
    """(source, target) of the relation of this name."""
    (relation,) = (each for each in shape.relations if each.name == name)
    indptr, indices = (np.load(shape.folder / f"{relation}.{part}.npy") for part in ("indptr", "indices"))
    target = np.repeat(np.arange(shape.num_nodes[relation.target]), np.diff(indptr))
    return list(zip(indices.tolist(), target.tolist(), strict=True))


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


def test_peers_read_the_same_files(tmp_path):
    """What DGL and PyG are given: the relations' names make the files' names."""
    assert str(Relation("a", "to", "b")) == "--".join(["a", "to", "b"])
    shape = MagShape(tmp_path / "mag", 0.0005)
    assert all((shape.folder / f"{'--'.join(each)}.indptr.npy").exists() for each in shape.relations)


def test_refuses_nothing_to_do():
    with pytest.raises(ConfigError, match="batches: expected at least 2"):
        BenchConfig(batches=1)
    with pytest.raises(ConfigError, match="scale: expected more than 0"):
        BenchConfig(scale=0)
    with pytest.raises(ConfigError, match="fanouts: expected at least 1 per hop"):
        BenchConfig(fanouts=(3, 0))
    with pytest.raises(ConfigError, match="expected an interpreter"):
        BenchConfig(dgl_python="/nowhere/python")
