"""Tests that a folder of predictions on a store is read back as a table."""

import numpy as np
import pyarrow as pa

from graphmill.storage.filesystem.retry import RepeatingFileSystem
from graphmill.storage.filesystem.urls import split_url
from graphmill.storage.predictions import PredictionFolder
from tests.s3_server import s3_bucket


def _written(url: str) -> PredictionFolder:
    folder = PredictionFolder(url)
    folder.begin({"run": "run"})
    folder.write_piece("000-00000000.parquet", pa.table({"id": np.arange(4)}), np.array([0, 2]))
    folder.write_part(0, pa.table({"id": np.arange(2)}))
    folder.write_part(1, pa.table({"id": np.arange(2, 4)}))
    folder.write_json("_summary.json", {"rows": 4, "parts": 2})
    return folder


def test_predictions_are_read_back_from_a_disk_and_from_a_store(tmp_path):
    assert _written(str(tmp_path / "predictions")).table()["id"].to_pylist() == [0, 1, 2, 3]
    with s3_bucket() as bucket:
        url = f"{bucket}/run/predictions"
        assert isinstance(split_url(url)[0], RepeatingFileSystem)
        assert _written(url).table()["id"].to_pylist() == [0, 1, 2, 3]
