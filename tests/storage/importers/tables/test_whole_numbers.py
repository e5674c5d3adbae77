"""The fast parser of whole numbers gives what Arrow's parser gives, and Parquet's statistics give what a pass over the edges gives."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphmill.core.errors import DataError
from graphmill.storage.importers.columns.whole_number_kernels import count_lines, read_whole_numbers
from graphmill.storage.importers.tables import edge_file, text_table
from graphmill.storage.importers.tables.edge_list import EdgeListGraph
from graphmill.storage.importers.tables.edge_list_options import EdgeListOptions

NUMBERS = st.integers(0, 99).map(str) | st.integers(-(10**19), 10**19).map(str)
FIELDS = NUMBERS | st.sampled_from(
    [
        "",
        " 1",
        "1 ",
        "+1",
        "-",
        "--1",
        "-0",
        "007",
        "1.0",
        "1e3",
        "0x1F",
        '"1"',
        '"',
        "x",
        "NA",
        "#1",
        "\u00b2",
        "1\r",
        "1\0",
    ]
)
LINES = st.lists(st.lists(FIELDS, min_size=1, max_size=3), max_size=6)
PLAIN = st.lists(st.lists(st.integers(0, 10**18 - 1).map(str), min_size=2, max_size=2), min_size=1, max_size=6)


def _outcome(path, **options):
    try:
        chunks = list(EdgeListGraph(path, EdgeListOptions(num_nodes=10**6, **options))._file.raw_edges())
    except DataError as error:
        return str(error)
    columns = ("src", "dst", "time")
    rows = [
        [*zip(*(getattr(raw, name).tolist() for name in columns if getattr(raw, name) is not None), strict=True)]
        for raw in chunks
    ]
    return [(row, raw.where(index)) for raw, own in zip(chunks, rows, strict=True) for index, row in enumerate(own)]


@given(
    lines=LINES | PLAIN,
    mark=st.sampled_from([",", "\t", ";", " ", "|", "  ", "-", "7"]),
    end=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    is_closed=st.booleans(),
    header=st.sampled_from(["", "src,dst", "dst,src", "src,dst,t", "# a comment"]),
    block_bytes=st.sampled_from([3, 20, 1 << 20]),
)
@example([["1", "-2"], ["3", "4"]], ",", "\n", True, "src,dst", 1 << 20)
@example([["1", "2", "3"]], ",", "\r\n", False, "src,dst,t", 1 << 20)
@example([["1", "9" * 18], ["1", "9" * 19]], ",", "\n", True, "dst,src", 20)
def test_any_text_gives_the_edges_or_the_error_of_arrows_parser(
    tmp_path, lines, mark, end, is_closed, header, block_bytes
) -> None:
    path = tmp_path / "e.txt"
    text = [header.replace(",", mark[0])] * bool(header) + [mark.join(line) for line in lines]
    path.write_bytes((end.join(text) + end * is_closed).encode())
    options = {"time": "t"} if header.endswith("t") and "," in header else {}
    if mark in "-7|":
        options["delimiter"] = mark
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_table, "_READ_BYTES", block_bytes)
        outcome = _outcome(path, **options)
        patch.setattr(text_table, "_whole_numbers", lambda *_: None)
        assert outcome == _outcome(path, **options)


@pytest.mark.parametrize("text", [b"1,2\n-3,4\n", b"1,2\r\n-3,4", b"00,1\n999999999999999999,-999999999999999999\n"])
def test_plain_numbers_are_read_without_arrows_parser(tmp_path, monkeypatch, text) -> None:
    expected = [[int(field) for field in line.split(b",")] for line in text.split()]
    columns = np.empty((2, 2), np.int64)
    assert read_whole_numbers(np.frombuffer(text, np.uint8), ord(","), columns) == 2
    assert columns.T.tolist() == expected
    monkeypatch.delattr(text_table.TextTable, "_read")
    path = tmp_path / "e.csv"
    path.write_bytes(b"src,dst\n" + text)
    found = pa.concat_tables(block.table for block in EdgeListGraph(path)._file._blocks())
    assert found.to_pydict() == {"0": columns[0].tolist(), "1": columns[1].tolist()}


@pytest.mark.parametrize(
    "text",
    [
        b"1\n",
        b"1,2,3\n",
        b"1,2\n\n",
        b"1,\n",
        b",2\n",
        b"1,2 \n",
        b"1,2\r",
        b"1,2\r3,4\n",
        b"1," + b"1" * 19,
        b"1,-\n",
        b"1,2\n3",
    ],
)
def test_other_text_is_left_to_arrow(text) -> None:
    characters = np.frombuffer(text, np.uint8)
    num_lines = count_lines(characters) + (not text.endswith(b"\n"))
    assert read_whole_numbers(characters, ord(","), np.empty((2, num_lines), np.int64)) == -1


def _passes(monkeypatch) -> list[str]:
    passes: list[str] = []
    whole = edge_file.EdgeFile.raw_edges
    monkeypatch.setattr(edge_file.EdgeFile, "raw_edges", lambda self: passes.append(self.path) or whole(self))
    return passes


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint16(), pa.uint64()])
@pytest.mark.parametrize("num_parts", [1, 2])
def test_parquets_statistics_spare_the_first_pass(tmp_path, monkeypatch, kind, num_parts) -> None:
    rng = np.random.default_rng(0)
    for part in range(num_parts):
        src, dst = rng.integers(0, 100, (2, 50))
        table = pa.table({"x": [[1, 2]] * 50, "dst": pa.array(dst, kind), "src": pa.array(src + part, kind)})
        for folder, stated in (("with", True), ("without", False)):
            (tmp_path / folder).mkdir(exist_ok=True)
            name = tmp_path / folder / f"{part}.parquet"
            pa_parquet.write_table(table, name, row_group_size=20, write_statistics=stated)
    graphs = [EdgeListGraph(tmp_path / folder) for folder in ("with", "without")]
    passes = _passes(monkeypatch)
    assert graphs[0].info.num_nodes == graphs[1].info.num_nodes
    assert passes == [graphs[1].path]


@pytest.mark.parametrize("bad", [[0, -1], [0, None], [0, 1 << 40], [0.0, 2.0]])
def test_a_pass_over_the_edges_finds_the_row_of_a_bad_id(tmp_path, monkeypatch, bad) -> None:
    outcomes = []
    for stated in (True, False):
        pa_parquet.write_table(pa.table({"src": [0, 1], "dst": bad}), tmp_path / "e.parquet", write_statistics=stated)
        passes = _passes(monkeypatch)
        try:
            outcomes.append(EdgeListGraph(tmp_path / "e.parquet").info.num_nodes)
        except DataError as error:
            outcomes.append(str(error))
        assert passes
    assert outcomes[0] == outcomes[1]
