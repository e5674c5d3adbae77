"""Helpers for tests of predictions: run the command in this process, read its tables, and continue an interrupted prediction."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs import predict
from graphmill.storage.predictions import PIECES, PredictionFolder


def predictions_of(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))])


def call(main, monkeypatch, *arguments: str) -> int | None:
    monkeypatch.setattr(sys, "argv", ["job.py", *arguments])
    return main()


def scores_of(run: Path) -> dict[str, float]:
    return json.loads((run / "summary.json").read_text())["scores"]


def go_on_after_an_interruption(run: Path, out: Path, monkeypatch, capsys) -> pa.Table:
    """Interrupts a prediction just before its end, deletes a piece and a part, and predicts again. Returns the table."""

    def interrupted(self, summary):
        raise KeyboardInterrupt

    arguments = [str(run), str(out), "--shard-rows", "90", "--piece-batches", "2"]
    finish = PredictionFolder.finish
    monkeypatch.setattr(PredictionFolder, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(predict.main, monkeypatch, *arguments)
    monkeypatch.setattr(PredictionFolder, "finish", finish)
    pieces = sorted((out / PIECES).iterdir())
    assert len(pieces) > 4
    first = predictions_of(out)
    kept = {path.name: path.stat().st_mtime_ns for path in pieces[1:]}
    pieces[0].unlink()
    (out / "part-00001.parquet").unlink()
    # To continue with other settings is refused and changes no file.
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for other in (["--embeddings"], ["--shard-rows", "91"], ["--split", "test"]):
        with pytest.raises(ConfigError, match="made with other settings") as caught:
            call(predict.main, monkeypatch, *arguments, *other)
        assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    def watched(self, summary):
        assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in (out / PIECES).iterdir()}.items()
        finish(self, summary)

    monkeypatch.setattr(PredictionFolder, "finish", watched)
    call(predict.main, monkeypatch, *arguments, "--workers", "1")
    assert predictions_of(out).equals(first)
    assert not (out / PIECES).exists()
    capsys.readouterr()
    call(predict.main, monkeypatch, *arguments)
    assert "nothing to do" in capsys.readouterr().out
    return first
