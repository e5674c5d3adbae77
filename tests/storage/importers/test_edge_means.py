"""Tests features of nodes that are means of their edges' features."""

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs import ingest as ingest_job
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.importers.memory.edge_means import EdgeMeans
from tests.job_in_process import output_of, run_job

SRC, DST = np.array([0, 1, 2, 2]), np.array([1, 2, 1, 0])
FEATURE = np.array([[1.0, 2], [3, 4], [5, 6], [7, 8]], np.float32)


@pytest.mark.parametrize("both_ends", [False, True])
@pytest.mark.parametrize("label", [None, np.array([0, 1, 0, 1])])
def test_means_of_edges(both_ends, label) -> None:
    graph = EdgeMeans(ArrayGraph("a", 4, SRC, DST, edge_feature=FEATURE, label=label), both_ends)
    found = np.concatenate([chunk.feature for chunk in graph.nodes(2 if label is not None else 9)])
    ends = np.concatenate([DST, SRC]) if both_ends else DST
    rows = np.concatenate([FEATURE, FEATURE]) if both_ends else FEATURE
    expected = [rows[ends == node].mean(axis=0) if (ends == node).any() else [0, 0] for node in range(4)]
    np.testing.assert_allclose(found, expected)
    assert graph.info.feature_dim == 2


def test_refused_where_there_is_nothing_to_mean() -> None:
    for options, match in (({}, "edges without"), ({"edge_feature": FEATURE, "feature": np.eye(4)}, "nodes with some")):
        with pytest.raises(ConfigError, match=match):
            EdgeMeans(ArrayGraph("a", 4, SRC, DST, **options))


def test_the_option(tmp_path) -> None:
    lines = [f"{u},{v},{x[0]},{x[1]}" for u, v, x in zip(SRC, DST, FEATURE, strict=True)]
    (tmp_path / "e.csv").write_text("\n".join(["src,dst,a,b", *lines]) + "\n")
    words = [
        "e.csv",
        "graph",
        "--partitions",
        "1",
        "--edge-list.edge-features",
        "a",
        "b",
        "--node-features",
        "edge-means",
    ]
    output_of(ingest_job.main, *words, cwd=tmp_path)
    np.testing.assert_allclose(open_graph(str(tmp_path / "graph")).partition(0).feature, [[7, 8], [3, 4], [3, 4]])
    done = run_job(ingest_job.main, [*words, "--overwrite", "--links.valid", "0.3"], tmp_path)
    assert (done.returncode, "expected no links held out" in done.stderr) == (1, True)
