"""Tests the replies of one owner: ids, errors, and both algorithms for induced edges."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphmill.samplers.access.partition_owner
from graphmill.core.errors import ConfigError, FormatError
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.kernels.draws import draw_uniform
from graphmill.samplers.kernels.lists import induced_edges_by_map
from graphmill.samplers.kernels.random_streams import hash_ids
from graphmill.samplers.vocabulary.messages import (
    FetchRows,
    InducedEdges,
    InducedSubgraphs,
    ListChunk,
    ListNeighbors,
    ListSplit,
    NeighborLists,
    NodeRows,
    Request,
    SampleNeighbors,
    StepWalks,
)
from graphmill.storage.graph import Partition, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> list[PartitionOwner]:
    url = str(tmp_path_factory.mktemp("owner") / "graph")
    ingest(random_listed_graph(200, 1500), url, IngestOptions(num_partitions=2, edge_ids=True))
    return [PartitionOwner(partition, 200) for partition in open_graph(url).partitions()]


@pytest.mark.parametrize("node", [[0, 5, 100], [-1], [2**40], [199]])
@pytest.mark.parametrize("kind", ["sample", "fetch"])
def test_a_node_of_another_owner_is_refused_in_one_line(
    kind: str, node: list[int], owners: list[PartitionOwner]
) -> None:
    ids = np.asarray(node)
    request = {"sample": SampleNeighbors(ids, 3, 0), "fetch": FetchRows(ids)}[kind]
    with pytest.raises(ConfigError) as refused:
        owners[0].answer(request)
    assert str(refused.value) == f"partition 0 owns the nodes [0, 100), got {node[-1]}"


@pytest.mark.parametrize("bad", [-1, 200, 2**40])
def test_a_member_that_is_no_node_is_refused_in_one_line(bad: int, owners: list[PartitionOwner]) -> None:
    member = np.array([3, bad, 150])
    for request in (InducedEdges(member), InducedSubgraphs(member, np.array([0, 3]))):
        with pytest.raises(ConfigError) as refused:
            owners[0].answer(request)
        assert str(refused.value) == f"expected node ids in [0, 200), got {bad}"


def test_something_else_than_a_request(owners: list[PartitionOwner]) -> None:
    with pytest.raises(ConfigError, match=r"expected a request of graphmill\.samplers\.vocabulary\.messages, got dict"):
        owners[0].answer({"node": 3})  # type: ignore[arg-type]


def test_unknown_split_sets(owners: list[PartitionOwner]) -> None:
    node = np.array([1])
    for split_set in (-1, 2):
        for request in (FetchRows(node, split_set=split_set), ListSplit(split_set, 1)):
            with pytest.raises(ConfigError, match=f"expected one of the graph's 2, got {split_set}"):
                owners[0].answer(request)


def test_no_node_at_all(owners: list[PartitionOwner]) -> None:
    none = np.empty(0, np.int64)
    lists = owners[0].answer(SampleNeighbors(none, 3, 0))
    assert isinstance(lists, NeighborLists)
    assert (len(lists.count), len(lists.neighbor)) == (0, 0)
    lists = owners[0].answer(InducedEdges(none))
    assert isinstance(lists, NeighborLists)
    assert (len(lists.count), len(lists.neighbor)) == (0, 0)
    rows = owners[0].answer(FetchRows(none, split_set=0))
    assert isinstance(rows, NodeRows)
    assert rows.feature is not None
    assert rows.feature.shape == (0, 4)


def test_chunks_share_the_nodes_out(owners: list[PartitionOwner]) -> None:
    for num_chunks in (1, 2, 3, 7, 1000):
        found = [
            node
            for chunk in range(num_chunks)
            for owner in owners
            for node in owner.answer(ListChunk(key=2**64 - 1, chunk=chunk, num_chunks=num_chunks)).node  # type: ignore[union-attr]
        ]
        assert sorted(found) == list(range(200))


def test_the_map_and_the_hash_induce_the_same_edges(
    owners: list[PartitionOwner], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    member = rng.permutation(200)[:60]
    used = []
    monkeypatch.setattr(
        graphmill.samplers.access.partition_owner,
        "induced_edges_by_map",
        lambda *arguments: used.append("map") or induced_edges_by_map(*arguments),
    )
    answers = []
    for num_nodes in (200, 10**6):  # 10**6: few members among many nodes, so a hash table is used
        owner = PartitionOwner(owners[0]._partition, num_nodes)
        lists = owner.answer(InducedEdges(member, columns=("id",)))
        assert isinstance(lists, NeighborLists)
        answers.append(lists)
    assert used == ["map"]
    for name in ("count", "neighbor", "edge_id"):
        np.testing.assert_array_equal(getattr(answers[0], name), getattr(answers[1], name))
    assert len(answers[0].neighbor) > 30


def test_replies_hold_no_view_of_the_partition(owners: list[PartitionOwner]) -> None:
    """A user may write to the arrays of a batch. This must not change the mapped files."""
    node = np.arange(10)
    for request in (
        FetchRows(node, split_set=0),
        SampleNeighbors(node, -1, 0),
        ListSplit(0, 1),
        InducedEdges(node),
    ):
        reply = owners[0].answer(request)
        for array in vars(reply).values():
            assert array is None or array.flags.writeable


@pytest.mark.parametrize(("ids", "first_id"), [(range(7, 47), 7), (range(40), 0), ([*range(39), 40], None), ([], None)])
def test_permanent_ids_that_count_up_need_no_table(ids: list[int], first_id: int | None) -> None:
    original_id = np.array(ids, np.int64)
    num_nodes, rng = len(original_id), np.random.default_rng(0)
    indices = rng.integers(0, 40, 20 * num_nodes)
    partition = Partition(0, 0, num_nodes, np.arange(num_nodes + 1) * 20, indices, original_id)
    assert partition.first_id == first_id
    owner, node = PartitionOwner(partition, num_nodes), rng.permutation(num_nodes)[:30]
    lists = owner.answer(SampleNeighbors(node, 4, key=5))
    assert isinstance(lists, NeighborLists)
    keys = hash_ids(np.uint64(5), original_id[node])
    _, position = draw_uniform(node * 20, np.full(len(node), 20), keys, 4)
    assert lists.neighbor.tolist() == indices[position].tolist()
    for place in (slice(None), rng.permutation(len(node))):
        rows = NodeRows(np.empty(len(node), np.int64), None, None, None)
        owner.place_rows(FetchRows(node), rows, place)
        assert rows.original_id[place].tolist() == original_id[node].tolist()


def test_ids_beyond_two_to_the_31st() -> None:
    start = 2**33
    partition = Partition(
        index=1,
        start=start,
        stop=start + 3,
        indptr=np.array([0, 2, 2, 5]),
        indices=np.array([start, 2**40, 7, start + 1, start + 2]),
        original_id=np.array([2**50, 2**50 + 1, 2**60]),
        feature=np.arange(6, dtype=np.float16).reshape(3, 2),
    )
    owner = PartitionOwner(partition, 2**41)
    node = np.array([start + 2, start])
    lists = owner.answer(SampleNeighbors(node, -1, 0))
    assert isinstance(lists, NeighborLists)
    assert lists.neighbor.tolist() == [7, start + 1, start + 2, start, 2**40]
    member = np.array([2**40, start + 2, start, 7])
    lists = owner.answer(InducedEdges(member))
    assert isinstance(lists, NeighborLists)
    assert lists.count.tolist() == [2, 2]
    assert lists.neighbor.tolist() == [3, 1, 2, 0]
    rows = owner.answer(FetchRows(node))
    assert isinstance(rows, NodeRows)
    assert rows.original_id.tolist() == [2**60, 2**50]
    assert rows.feature is not None
    assert rows.feature.dtype == np.float16
    assert rows.feature.tolist() == [[4.0, 5.0], [0.0, 1.0]]


NUM_NODES = 30
_NODE = np.arange(NUM_NODES)
_PTR = np.array([0, 10, NUM_NODES])
REQUESTS: list[Request] = [
    *(SampleNeighbors(_NODE, 3, 7, direction) for direction in ("in", "out", "both")),
    *(SampleNeighbors(_NODE, 3, 7, scheme=scheme) for scheme in ("labor", "degree")),
    SampleNeighbors(_NODE, -1, 7, replace=False),
    SampleNeighbors(_NODE, 3, 7, replace=True),
    InducedEdges(_NODE),
    InducedEdges(_NODE[:0]),
    InducedSubgraphs(_NODE, _PTR),
    InducedSubgraphs(np.tile(_NODE, 10), np.arange(11) * NUM_NODES),
    ListNeighbors(_NODE, "both"),
    ListNeighbors(_NODE, "in", np.full(NUM_NODES, 9)),
    StepWalks(_NODE, _NODE, 3, "both"),
]
JUNK = st.one_of(
    st.sampled_from([-1, NUM_NODES, 2**31 - 1, -(2**31), 2**61, -(2**63), 2**63 - 1]), st.integers(-(2**63), 2**63 - 1)
)


@given(st.data())
def test_lists_that_change_after_they_were_opened_are_refused_or_harmless(data: st.DataObject) -> None:
    """If files change after they were opened, no loop reads or writes outside its arrays. Neighbor ids are checked, and lists have the lengths that were
    reported."""
    generator = np.random.default_rng(0)
    indptr = np.append(0, np.cumsum(generator.integers(0, 6, NUM_NODES)))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    columns = {
        "indptr": indptr,
        "indices": generator.integers(0, NUM_NODES, indptr[-1]).astype(dtype),
        "out_indptr": indptr.copy(),
        "out_indices": generator.integers(0, NUM_NODES, indptr[-1]).astype(dtype),
    }
    partition = Partition(0, 0, NUM_NODES, original_id=_NODE.copy(), num_sources=NUM_NODES, **columns)
    owner = PartitionOwner(partition, NUM_NODES)
    for name in data.draw(st.sets(st.sampled_from(sorted(columns)), min_size=1)):
        column = columns[name]
        for place in data.draw(st.sets(st.integers(0, len(column) - 1), min_size=1, max_size=4)):
            column[place : place + 1] = np.array([data.draw(JUNK)]).astype(column.dtype)
    for request in REQUESTS:
        with suppress(FormatError):
            reply = owner.answer(request)
            assert reply.count.sum() == len(reply.neighbor)  # type: ignore[union-attr]
            assert np.all((reply.neighbor >= 0) & (reply.neighbor < 10 * NUM_NODES))  # type: ignore[union-attr]


@pytest.mark.parametrize("request_of_all", REQUESTS)
@pytest.mark.parametrize("junk", [2**31 - 1, -5])
def test_ids_and_offsets_of_no_node_are_refused(request_of_all: Request, junk: int) -> None:
    everywhere = np.full(100, junk, np.int32)
    indptr = np.minimum(np.arange(NUM_NODES + 1) * 4, 100)
    ids = Partition(0, 0, NUM_NODES, indptr, everywhere, _NODE, indptr, everywhere, num_sources=NUM_NODES)
    offsets = Partition(0, 0, NUM_NODES, indptr + junk, everywhere, _NODE, indptr + junk, everywhere)
    if isinstance(request_of_all, InducedEdges) and not len(request_of_all.member):
        return
    if not isinstance(request_of_all, InducedSubgraphs):  # InducedSubgraphs ignores unknown ids
        with pytest.raises(FormatError, match="partition 0: expected the lists"):
            PartitionOwner(ids, NUM_NODES).answer(request_of_all)
    with pytest.raises(FormatError, match="partition 0: expected the lists"):
        PartitionOwner(offsets, NUM_NODES).answer(request_of_all)
