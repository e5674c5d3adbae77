"""Tests splits by time, of nodes and of held-out links."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError, DataError
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.ingestion.ingest_options import LinkSplitOptions, SplitOptions
from graphmill.storage.splits.drawn_split import split_of_times, times_at

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    pieces=st.lists(st.lists(INT64 | st.integers(-3, 3), max_size=8), max_size=5),
    percent=st.tuples(st.integers(1, 99), st.integers(1, 99)),
)
def test_ends_are_those_of_the_sorted_times(pieces: list[list[int]], percent: tuple[int, int]) -> None:
    ordered = sorted(time for piece in pieces for time in piece)
    ranks = [-(-each * len(ordered) // 100) for each in percent]
    found = times_at(lambda: (np.array(piece, np.int64) for piece in pieces), tuple(each / 100 for each in percent))
    assert found == (tuple(ordered[rank - 1] for rank in ranks) if ordered else ())


def test_all_of_one_time_are_in_one_split() -> None:
    time = np.array([5, 1, 5, 5, 9, 7, 8])
    ends = times_at(lambda: iter([time]), (0.3, 0.7))
    assert ends == (5, 7)
    assert split_of_times(time, ends).tolist() == [SPLIT_TRAIN] * 4 + [SPLIT_TEST, SPLIT_VALID, SPLIT_TEST]


@pytest.mark.parametrize("partitions", [1, 3])
def test_nodes_with_a_label_are_split(partitions: int, tmp_path: Path) -> None:
    """The split replaces the source's split. All nodes with the same time are in one part."""
    label = np.array([0, 1, -1, 1, 0, 1, 0, 1, 0, -1])
    own = np.ones((10, 2), np.int8)
    node_time = np.array([3, 9, 1, 4, 8, 2, 2, 7, 6, 5])
    ends = np.arange(10), (np.arange(10) + 1) % 10
    source = ArrayGraph("nodes", 10, *ends, label=label, node_time=node_time, split=own)
    options = IngestOptions(num_partitions=partitions, split=SplitOptions((0.5, 0.75)))
    ingest(source, str(tmp_path / "graph"), options)
    graph = open_graph(str(tmp_path / "graph"))
    assert graph.manifest.num_split_sets == 1
    codes = {}
    for part in graph.partitions(verify=True):
        assert part.split is not None
        codes |= dict(zip(part.original_id.tolist(), part.split[0].tolist(), strict=True))
    # The labelled nodes in order of time, with | between the parts: 5, 6, 0, 3 | 8, 7 | 4, 1.
    expected = {5: 1, 6: 1, 0: 1, 3: 1, 8: 2, 7: 2, 4: 3, 1: 3, 2: 0, 9: 0}
    assert codes == expected
    graph.verify()


@pytest.mark.parametrize("undirected", [False, True])
def test_late_edges_are_held_out(undirected: bool, tmp_path: Path) -> None:
    """Links keep their times, which distinguish links between the same two nodes. A self-loop stays an edge."""
    rng = np.random.default_rng(1)
    src, dst, time = rng.integers(0, 8, 120), rng.integers(0, 8, 120), rng.integers(0, 30, 120)
    options = IngestOptions(num_partitions=2, undirected=undirected, links=LinkSplitOptions(by_time=(0.8, 0.9)))
    ingest(ArrayGraph("late", 8, src, dst, edge_time=time), str(tmp_path / "graph"), options)
    graph = open_graph(str(tmp_path / "graph"))
    graph.verify()
    ordered = np.sort(time)
    train_end, valid_end = ordered[95], ordered[107]
    assert graph.manifest.provenance["held_out"] == f"edges later than {train_end}, {valid_end}"
    held = (time > train_end) & (src != dst)
    expected = set()
    for u, v, when in zip(src[held].tolist(), dst[held].tolist(), time[held].tolist(), strict=True):
        ends = (min(u, v), max(u, v)) if undirected else (u, v)
        expected.add((*ends, when, SPLIT_VALID if when <= valid_end else SPLIT_TEST))
    found = []
    for part in graph.partitions():
        assert part.links is not None
        assert part.links.time is not None
        assert part.edge_time is not None
        links = part.links
        found += zip(*(c.tolist() for c in (links.source, links.destination, links.time, links.split)), strict=True)
        owner = part.start + np.repeat(np.arange(part.num_nodes), np.diff(part.indptr))
        assert np.all((part.edge_time <= train_end) | (owner == part.indices))
    assert sorted(found) == sorted(expected)


def test_what_cannot_be(tmp_path: Path) -> None:
    for wrong in ((0.8,), (0.9, 0.8), (0.5, 1.0), (0.0, 0.5)):
        with pytest.raises(ConfigError, match="by_time: expected two shares between 0 and 1"):
            SplitOptions(wrong)
        with pytest.raises(ConfigError, match="by_time: expected two shares between 0 and 1"):
            LinkSplitOptions(by_time=wrong)
    with pytest.raises(ConfigError, match="without valid and test"):
        LinkSplitOptions(valid=0.1, by_time=(0.8, 0.9))
    plain = ArrayGraph("plain", 2, np.array([0]), np.array([1]))
    for options, message in (
        (IngestOptions(split=SplitOptions((0.8, 0.9))), "split by_time: expected nodes with times"),
        (IngestOptions(links=LinkSplitOptions(by_time=(0.8, 0.9))), "links by_time: expected edges with times"),
    ):
        with pytest.raises(DataError, match=message):
            ingest(plain, str(tmp_path / "graph"), options)
