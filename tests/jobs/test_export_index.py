"""Tests that a nearest-neighbor index of predicted embeddings, read with its file of ids, finds the same neighbors as a comparison of all pairs."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill.jobs import export_index
from tests.job_in_process import output_of, run_job

faiss = pytest.importorskip("faiss")
NUM_ROWS, WIDTH = 900, 12


@pytest.fixture
def vectors(tmp_path: Path) -> np.ndarray:
    """Predicted embeddings in two files, with strings as ids."""
    vectors = np.random.default_rng(0).normal(size=(NUM_ROWS, WIDTH)).astype(np.float32)
    (tmp_path / "states").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(NUM_ROWS), 2)):
        column = pa.FixedSizeListArray.from_arrays(vectors[rows].ravel(), WIDTH) if number else vectors[rows].tolist()
        table = pa.table({"id": [f"n{row}" for row in rows], "embedding": column})
        pq.write_table(table, tmp_path / "states" / f"part-0000{number}.parquet")
    return vectors


def nearness(vectors: np.ndarray, metric: str) -> np.ndarray:
    if metric == "l2":
        return -np.square(vectors[:, None] - vectors).sum(-1)
    scaled = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if metric == "cosine" else vectors
    return scaled @ scaled.T


@pytest.mark.parametrize("metric", ["dot", "cosine", "l2"])
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_it_finds_what_all_pairs_say(vectors, tmp_path, metric, kind) -> None:
    said = output_of(export_index.main, "states", "index", "--metric", metric, "--kind", kind, cwd=tmp_path)
    assert f"{NUM_ROWS} vectors of {WIDTH}" in said
    index = faiss.read_index(str(tmp_path / "index" / "index.faiss"))
    ids = pq.read_table(tmp_path / "index" / "ids.parquet")["id"].to_pylist()
    assert ids == [f"n{row}" for row in range(NUM_ROWS)]
    _, found = index.search(np.stack([index.reconstruct(row) for row in range(60)]), 8)
    true = np.argsort(-nearness(vectors, metric)[:60], axis=1)[:, :8]
    share = np.mean([len(set(a) & set(b)) / 8 for a, b in zip(found.tolist(), true.tolist(), strict=True)])
    assert share == 1 if kind == "flat" else share > 0.9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "states"]


def test_what_cannot_be_is_one_line_and_writes_nothing(vectors, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "plain" / "part-00000.parquet")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "part-00000.parquet").write_bytes(b"no table")
    for name, parts in {
        "ragged": [{"id": [1, 2], "embedding": [[1.0, 2.0], [1.0]]}],
        "null": [{"id": [1, 2], "embedding": [[1.0, 2.0], None]}],
        "nan": [{"id": [1, 2], "embedding": [[1.0, 2.0], [1.0, float("nan")]]}],
        "wider": [{"id": [1], "embedding": [[1.0, 2.0]]}, {"id": [2], "embedding": [[1.0, 2.0, 3.0]]}],
        "mixed": [{"id": [1], "embedding": [[1.0, 2.0]]}, {"id": ["a"], "embedding": [[1.0, 2.0]]}],
    }.items():
        (tmp_path / name).mkdir()
        for number, part in enumerate(parts):
            pq.write_table(pa.table(part), tmp_path / name / f"part-0000{number}.parquet")
    before = sorted(tmp_path.rglob("*"))
    for words, message in (
        (["empty", "index"], "expected predictions, found none"),
        (["none", "index"], "expected predictions, found none"),
        (["plain", "index"], "predict with --embeddings"),
        (["damaged", "index"], "part-00000.parquet: cannot read it"),
        (["ragged", "index"], "as many finite numbers in each embedding"),
        (["null", "index"], "as many finite numbers in each embedding"),
        (["nan", "index"], "as many finite numbers in each embedding"),
        (["wider", "index"], "ids of one type and vectors of one width"),
        (["mixed", "index"], "ids of one type and vectors of one width"),
        (["states", "plain"], "expected an index or nothing there, found other files"),
        (["states", "index", "--links", "1"], "links"),
    ):
        done = run_job(export_index.main, words, tmp_path)
        assert done.returncode == 1
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert sorted(tmp_path.rglob("*")) == before
