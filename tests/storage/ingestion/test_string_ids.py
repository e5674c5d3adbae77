"""Compares the numbers of string ids, which are in the order of the strings, with a Python dictionary."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from graphmill.storage.ingestion import string_ids
from graphmill.storage.ingestion.string_ids import StringFile, StringIds, large_strings, string_buffers

CHUNKS = st.lists(st.lists(st.text(max_size=20), max_size=40), max_size=5)


@given(chunks=CHUNKS, asked=st.lists(st.text(max_size=20), max_size=10))
def test_numbers_are_those_of_a_dictionary(chunks: list[list[str]], asked: list[str]) -> None:
    ids, expected = StringIds(), {}
    for chunk in chunks:
        for text in chunk:
            expected.setdefault(text, len(expected))
        # The offsets of a slice do not begin at 0.
        column = large_strings(pa.chunked_array([pa.array(["before", *chunk])], pa.string()))[1:]
        assert ids.add(column).tolist() == [expected[text] for text in chunk]
    assert ids.find(pa.array(asked, pa.large_string())).tolist() == [expected.get(text, -1) for text in asked]
    assert ids.strings.part(0, len(ids)).to_pylist() == list(expected)


def test_many_strings_and_a_table_that_grows(tmp_path) -> None:
    names = [f"user/{i:07d}" for i in range(30_000)]
    ids = StringIds(str(tmp_path))
    for start in range(0, len(names), 7_000):
        ids.add(pa.array(names[start : start + 7_000], pa.large_string()))
    assert ids.find(pa.array(names[::-1], pa.large_string())).tolist() == list(range(len(names)))[::-1]
    assert ids.find(pa.array(["user/", "", "user/0000000 "], pa.large_string())).tolist() == [-1, -1, -1]
    assert len(ids._cells) <= 3 * len(names)
    assert list(tmp_path.iterdir()) == []  # the files have no names


def test_equal_marks_are_told_apart_by_their_bytes(monkeypatch) -> None:
    """In a small table, a cell may have the first string's hash and another string's number."""
    monkeypatch.setattr(string_ids, "_LEAST_CELLS", 4)
    ids = StringIds()
    ids.add(pa.array(["a", "b"], pa.large_string()))
    ids._cells[:] = [(cell >> 40 << 40) | (3 - (cell & 3)) if cell else 0 for cell in ids._cells.tolist()]
    assert ids.find(pa.array(["a", "b"], pa.large_string())).tolist() == [-1, -1]


def test_strings_in_another_order(tmp_path) -> None:
    file = StringFile(str(tmp_path))
    file.append(pa.array(["bb", "", "accc"], pa.large_string()))
    file.append(pa.array(["ü", "e"], pa.large_string()))
    rows = np.array([3, 0, 1, 3])
    gathered = file.gather(rows, np.empty(5, np.int64), np.empty(file.num_bytes(rows), np.uint8))
    assert gathered.to_pylist() == ["ü", "bb", "", "ü"]
    assert string_buffers(gathered)[0].tolist() == [0, 2, 4, 4, 6]
