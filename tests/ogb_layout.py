"""Common parts of the raw file layouts of OGB's single-graph data sets: gzipped tables of edges, features and counts."""

import gzip
from pathlib import Path

import numpy as np

NUM_NODES = 30


def write_csv(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, np.asarray(rows).reshape(len(rows), -1), fmt="%.6g", delimiter=",")


def write_graph(folder: Path) -> dict[str, np.ndarray]:
    """Writes a path graph in the layout of a downloaded data set. It has NUM_NODES nodes with five features. Returns its edges and features."""
    edge = np.stack([np.arange(NUM_NODES - 1), np.arange(1, NUM_NODES)], axis=1)
    feature = np.random.default_rng(7).normal(size=(NUM_NODES, 5)).astype(np.float32).round(3)
    (folder / "processed").mkdir(parents=True)
    (folder / "RELEASE_v1.txt").touch()
    write_csv(folder / "raw/edge.csv.gz", edge)
    write_csv(folder / "raw/node-feat.csv.gz", feature)
    write_csv(folder / "raw/num-node-list.csv.gz", np.array([NUM_NODES]))
    write_csv(folder / "raw/num-edge-list.csv.gz", np.array([len(edge)]))
    return {"edge": edge, "feature": feature}


def check_graph(source, truth: dict[str, np.ndarray], *, directed: bool) -> None:
    """Checks that a source has these edges. If it is not directed, it must also have their reverses."""
    edges = set(map(tuple, truth["edge"].tolist()))
    found = set(zip(source.src.tolist(), source.dst.tolist(), strict=True))
    assert found == (edges if directed else edges | {(b, a) for a, b in edges})
