"""A router splits requests by owner and merges the replies. The result equals the reply of a single owner."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError, FormatError
from graphmill.samplers.access.owners import LocalOwner, Pending
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.vocabulary.messages import FindNodes, Request, SampleNeighbors
from graphmill.storage.format.source import SPLIT_TRAIN
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph
from tests.memory_graph import CountingOwner, MemoryGraph, counting_owners


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    url = str(tmp_path_factory.mktemp("routed") / "graph")
    ingest(random_listed_graph(100, 800), url, IngestOptions(num_partitions=4))
    return open_graph(url)


def counting(graph: StoredGraph) -> tuple[Router, list[CountingOwner]]:
    owners = [CountingOwner(LocalOwner(PartitionOwner(partition, 100))) for partition in graph.partitions()]
    return Router(graph.manifest, owners), owners


@given(node=st.lists(st.integers(0, 99), max_size=60))
def test_rows_and_lists_come_in_the_order_asked_for(graph: StoredGraph, node: list[int]) -> None:
    router = local_router(graph)
    ids = np.asarray(node, np.int64)
    rows, lists = router.fetch(ids, split_set=1), router.sample_neighbors(ids, -1, 0)
    assert lists.count.sum() == len(lists.neighbor)
    ends = np.cumsum(lists.count)
    for i, one in enumerate(node):
        part = graph.partition(one // 25)
        row = one - part.start
        assert rows.original_id[i] == part.original_id[row]
        assert part.feature is not None
        assert part.label is not None
        assert part.split is not None
        assert rows.feature is not None
        assert rows.label is not None
        assert rows.split is not None
        assert rows.feature[i].tolist() == part.feature[row].tolist()
        assert rows.label[i] == part.label[row]
        assert rows.split[i] == part.split[1, row]
        expected = part.indices[part.indptr[row] : part.indptr[row + 1]]
        assert lists.neighbor[ends[i] - lists.count[i] : ends[i]].tolist() == expected.tolist()


@given(
    gaps=st.lists(st.integers(1, 5), min_size=1, max_size=14),
    parts=st.lists(st.integers(0, 3), min_size=14, max_size=14),
    asked=st.lists(st.integers(-3, 80), max_size=30),
)
def test_stored_ids_of_permanent_ones(gaps: list[int], parts: list[int], asked: list[int]) -> None:
    """`find_nodes` is compared with a dict, for any partitions. Every owner gets one request with all ids."""
    permanent = (np.cumsum(gaps) - 2).tolist()
    assignment = np.unique(parts[: len(gaps)], return_inverse=True)[1].tolist()  # no empty partition
    manifest, owners = counting_owners(MemoryGraph(len(gaps), [], permanent_id=permanent), assignment)
    router = Router(manifest, owners)
    everything = router.list_chunk(0, 0, 1)
    stored = dict(zip(everything.original_id.tolist(), everything.node.tolist(), strict=True))
    assert sorted(stored) == permanent
    assert sorted(stored.values()) == list(range(len(gaps)))
    known = [one for one in asked if one in stored]
    for owner in owners:
        owner.requests.clear()
    assert router.find_nodes(np.asarray(known, np.int64)).tolist() == [stored[one] for one in known]
    assert [[type(request) for request in owner.requests] for owner in owners] == [[FindNodes]] * len(owners)
    unknown = [one for one in asked if one not in stored]
    if unknown:
        with pytest.raises(ConfigError, match=f"got {unknown[0]}, which it does not have"):
            router.find_nodes(np.asarray(asked, np.int64))


def test_ids_that_are_none(graph: StoredGraph) -> None:
    router = local_router(graph)
    for wrong, message in (
        (np.array([0.5]), "expected integer node ids, got dtype float64"),
        (np.array([[1]]), "one-dimensional"),
        (np.array([2**63], np.uint64), "below 2\\^63"),
        (np.array([100]), "got 100, which it does not have"),
    ):
        with pytest.raises(ConfigError, match=message):
            router.find_nodes(wrong)
    assert router.find_nodes(np.array([99, 0, 99], ">u2")).dtype == np.int64


def test_one_request_per_owner_that_has_a_node(graph: StoredGraph) -> None:
    router, owners = counting(graph)
    router.sample_neighbors(np.array([99, 3, 80, 4, 3]), 2, 0)
    asked = [[request.node.tolist() for request in owner.requests] for owner in owners]  # type: ignore[union-attr]
    assert asked == [[[3, 4, 3]], [], [], [[99, 80]]]
    assert all(isinstance(request, SampleNeighbors) for owner in owners for request in owner.requests)
    router.list_split(0, SPLIT_TRAIN)
    assert [len(owner.requests) for owner in owners] == [2, 1, 1, 2]


def test_all_owners_are_asked_before_any_answer_is_waited_for(graph: StoredGraph) -> None:
    router, owners = counting(graph)
    order: list[str] = []

    class Slow:
        def __init__(self, index: int) -> None:
            self.index = index

        def submit(self, request: Request) -> Pending:
            order.append(f"ask {self.index}")
            answered = owners[self.index].submit(request)
            index = self.index

            class Waiting:
                def result(self):
                    order.append(f"wait {index}")
                    return answered.result()

            return Waiting()

    router = Router(graph.manifest, [Slow(index) for index in range(4)])
    router.fetch(np.arange(100))
    assert order == [f"{act} {index}" for act in ("ask", "wait") for index in range(4)]


def test_no_node_still_has_an_answer_of_the_right_types(graph: StoredGraph) -> None:
    router, none = local_router(graph), np.empty(0, np.int64)
    assert router.sample_neighbors(none, 3, 0).neighbor.dtype == np.int32
    rows = router.fetch(none, split_set=0)
    assert rows.feature is not None
    assert rows.feature.shape == (0, 4)
    assert router.induced_edges(none).count.shape == (0,)


@pytest.mark.parametrize("node", [[-1], [5, 100], [2**40]])
def test_nodes_that_do_not_exist(node: list[int], graph: StoredGraph) -> None:
    with pytest.raises(ConfigError, match=rf"expected node ids in \[0, 100\), got .*{node[-1]}") as refused:
        local_router(graph).fetch(np.asarray(node))
    assert "\n" not in str(refused.value)


def test_an_error_of_one_owner_is_the_answer(graph: StoredGraph, tmp_path: Path) -> None:
    class Broken:
        def submit(self, request: Request) -> Pending:
            class Failing:
                def result(self):
                    raise FormatError("part-00002/features.arrow: gone")

            return Failing()

    _, owners = counting(graph)
    router = Router(graph.manifest, [owners[0], owners[1], Broken(), owners[3]])
    router.fetch(np.array([3, 30]))
    with pytest.raises(FormatError, match="part-00002"):
        router.fetch(np.arange(100))


@pytest.mark.parametrize("dtype", ["float64", "bool", "O"])
def test_ids_that_are_no_integers(dtype: str, graph: StoredGraph) -> None:
    wrong = np.array([0, 1]).astype(dtype)
    for router in (local_router(graph), counting(graph)[0]):
        for refused in (
            lambda router=router: router.fetch(wrong),
            lambda router=router: router.sample_neighbors(wrong, 2, 0),
            lambda router=router: router.list_neighbors(wrong),
            lambda router=router: router.induced_edges(wrong),
            lambda router=router: router.step_walks(wrong, np.arange(2), 0),
            lambda router=router: router.induced_question(wrong, np.array([0, 2])),
        ):
            with pytest.raises(ConfigError, match=f"expected integer node ids, got dtype {wrong.dtype}"):
                refused()
    with pytest.raises(ConfigError, match=r"one-dimensional array of node ids, got shape \(1, 2\)"):
        local_router(graph).fetch(np.array([[0, 1]]))


@pytest.mark.parametrize("dtype", [">i8", ">i4", "<i4", "u8", "i1", "u2"])
def test_integers_of_any_width_and_byte_order(dtype: str, graph: StoredGraph) -> None:
    router, node = local_router(graph), np.array([70, 3, 45])
    given = node.astype(dtype)
    assert router.fetch(given).original_id.tolist() == router.fetch(node).original_id.tolist()
    assert router.list_neighbors(given).neighbor.tolist() == router.list_neighbors(node).neighbor.tolist()
    assert (
        router.sample_neighbors(given, 2, 0).neighbor.tolist() == router.sample_neighbors(node, 2, 0).neighbor.tolist()
    )
    with pytest.raises(ConfigError, match="expected node ids below 2"):
        router.fetch(np.array([2**63], np.uint64))
