"""Rows and ranges of a file, from a disk, from memory and from S3, equal to slices of its bytes."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from storage.arrow_files import split_url
from storage.errors import DeadlineError, FormatError
from storage.patience import patiently
from storage.ranges import RangeCost, join_ranges, read_ranges, read_rows, split_ranges
from tests.s3_server import s3_bucket

OFFSET, WIDTH, ROWS = 24, 40, 3_000


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture
def table() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (ROWS, WIDTH), np.uint8)


@pytest.fixture(params=["disk", "memory", "s3"])
def file(request, tmp_path: Path, table: np.ndarray) -> tuple[fsspec.AbstractFileSystem, str]:
    folder = {"disk": str(tmp_path), "memory": "memory://ranges"}.get(request.param) or request.getfixturevalue("s3")
    filesystem, path = split_url(f"{folder}/table")
    filesystem.pipe_file(path, b"h" * OFFSET + table.tobytes() + b"end")
    return filesystem, path


@pytest.mark.parametrize("cost", [None, RangeCost(0, 1), RangeCost(400, 2_000), RangeCost(1 << 30, 1 << 30)])
def test_rows_in_any_order_with_repeats(file, table, cost):
    rng = np.random.default_rng(1)
    for row in (rng.integers(0, ROWS, 100), np.arange(50, 900), np.array([ROWS - 1, 0, 0]), np.empty(0, np.int64)):
        assert np.array_equal(read_rows(*file, OFFSET, WIDTH, row, cost), table[row])


def test_near_ranges_are_joined_and_far_ones_are_not():
    start, stop = np.array([100, 0, 40, 5]), np.array([110, 10, 50, 8])
    assert [ends.tolist() for ends in join_ranges(start, stop, 30)] == [[0, 100], [50, 110]]
    assert [ends.tolist() for ends in join_ranges(start, stop, 29)] == [[0, 40, 100], [10, 50, 110]]
    assert [ends.tolist() for ends in split_ranges(np.array([0, 100]), np.array([50, 110]), 20)] == [
        [0, 20, 40, 100],
        [20, 40, 50, 110],
    ]


def test_a_file_that_ends_before_is_refused(file):
    with pytest.raises(FormatError, match=f"expected {WIDTH} bytes|cannot read parts"):
        read_rows(*file, OFFSET, WIDTH, np.array([ROWS]))
    with pytest.raises(FormatError, match="found none"):
        read_ranges(file[0], f"{file[1]}-missing", np.array([0]), np.array([1]), 1.0)


def test_a_request_is_tried_again_after_an_error_that_passes():
    tries = []

    def answer() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionResetError("reset")
        return 7

    assert patiently(answer, "s3://b/x", "read it", 10.0) == 7
    with pytest.raises(DeadlineError, match=r"^s3://b/x: cannot read it within 0.5 s: reset$"):
        patiently(lambda: (_ for _ in ()).throw(ConnectionResetError("reset")), "s3://b/x", "read it", 0.5)


def test_no_answer_ends_at_the_deadline():
    ended, began = threading.Event(), time.monotonic()
    with pytest.raises(DeadlineError, match="no answer"):
        patiently(lambda: ended.wait(30), "s3://b/x", "read it", 0.6, try_s=0.1)
    assert time.monotonic() - began < 5
    ended.set()


def test_what_is_not_there_is_not_asked_for_again():
    tries = []

    def missing() -> None:
        tries.append(1)
        raise FileNotFoundError("x")

    with pytest.raises(FileNotFoundError):
        patiently(missing, "s3://b/x", "read it", 10.0)
    assert len(tries) == 1
