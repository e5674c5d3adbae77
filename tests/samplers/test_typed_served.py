"""Typed batches from owners elsewhere, over real connections, equal the batches of one process. Each hop takes one request per owner for all relations.
The rows of all types take one request per owner."""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.transport.message_server import MessageServer
from graphmill.cluster.transport.remote_owner import RemoteOwner
from graphmill.core.errors import ConfigError
from graphmill.samplers.access.partition_owner import open_parts
from graphmill.samplers.access.traffic import COLUMNS, Traffic, array_bytes
from graphmill.samplers.access.typed_router import TypedRouter, typed_router
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.loading.scheduled_rows import _dealt
from graphmill.samplers.methods.links import LinkSampler
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.methods.ppr import PprSampler
from graphmill.samplers.vocabulary.messages import FetchRows, ForParts, InducedSubgraphs, ListNeighbors, SampleNeighbors
from graphmill.samplers.vocabulary.options import (
    LinkOptions,
    LoaderOptions,
    NeighborOptions,
    PprOptions,
    TypedNeighborOptions,
    TypedNode2SubgraphOptions,
)
from graphmill.storage.format.source import SPLIT_TEST, Relation
from graphmill.storage.graph import TypedGraph, open_graph
from graphmill.storage.ingestion.ingest import ingest
from graphmill.storage.ingestion.ingest_options import IngestOptions, LinkSplitOptions
from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag
from tests.far_owner import FarOwner
from tests.typed_reference import arrays_of, assert_same

WRITES = Relation("author", "writes", "paper")
OPTIONS = TypedNeighborOptions(
    fanouts=(4, 3, 2), relation_fanouts={WRITES: (5, 0, 1)}, batch_size=40, edge_columns=("id",)
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> TypedGraph:
    url = str(tmp_path_factory.mktemp("graph") / "mag")
    source = synthetic_mag(SyntheticMagOptions(scale=0.0004, num_classes=3, feature_dim=8))
    held = LinkSplitOptions(valid=0.1, test=0.1, relation="author--affiliated_with--institution")
    ingest(source, url, IngestOptions(num_partitions=3, undirected=True, edge_ids=True, links=held))
    return open_graph(url)


@pytest.fixture(scope="module")
def far(graph: TypedGraph) -> Iterator[dict[int, FarOwner]]:
    """The owners of partitions 1 and 2. Each is behind a separate server."""
    with ExitStack() as stack:
        owners = {}
        for index in (1, 2):
            server = stack.enter_context(MessageServer(open_parts(graph, [index]).answer, "127.0.0.1", None, 2))
            owners[index] = FarOwner(RemoteOwner(lambda _, server=server: server.endpoint, f"server {index}", 60.0))
        yield owners


@pytest.fixture
def served(graph: TypedGraph, far: dict[int, FarOwner]) -> TypedRouter:
    for owner in far.values():
        owner.requests.clear()
    return typed_router(graph, far=far)


def test_batches_are_those_of_one_process(graph: TypedGraph, served: TypedRouter) -> None:
    here, there = (NeighborSampler(router, OPTIONS) for router in (typed_router(graph), served))
    assert served.content_hash == typed_router(graph).content_hash
    assert not served.is_near[1]
    assert served.is_near[0]
    for batch in range(here.num_batches):
        assert_same(there.sample(epoch=1, batch=batch), here.sample(epoch=1, batch=batch))


def test_one_request_per_owner_and_hop_and_one_for_rows(served: TypedRouter, far: dict[int, FarOwner]) -> None:
    sampler = NeighborSampler(served, OPTIONS)
    sampler.sample(0, 0)  # the first batch also lists the roots
    for owner in far.values():
        owner.requests.clear()
    sampler.sample(0, 1)
    for owner in far.values():
        *hops, rows = owner.requests
        assert len(hops) == 3
        for request in (*hops, rows):
            assert isinstance(request, ForParts)
            assert len(set(request.parts)) == len(request.parts)
        assert all(isinstance(one, SampleNeighbors) for hop in hops for one in hop.requests)
        assert len(hops[1].parts) > 1  # several relations in one request
        assert not any(part.endswith(f"/{WRITES}") for part in hops[1].parts)  # which is left out of this hop
        assert all(isinstance(one, FetchRows) for one in rows.requests)
        types = {part.partition("/")[2] for part in rows.parts}
        assert types == {"author", "field_of_study", "paper"} | ({"institution"} & types)


def test_links_are_those_of_one_process(graph: TypedGraph, served: TypedRouter) -> None:
    options = LinkOptions(NeighborOptions((3, 2)), splits=(SPLIT_TEST,), batch_size=20, shuffle=False)
    here, there = (LinkSampler(router, options) for router in (typed_router(graph), served))
    for batch in range(here.num_batches):
        far_one, near_one = (sampler.sample(epoch=0, batch=batch) for sampler in (there, here))
        assert_same(far_one, near_one)
        assert np.array_equal(far_one.negative, near_one.negative)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Node2SubgraphSampler, TypedNode2SubgraphOptions(max_hops=2, max_nodes=20, batch_size=40)),
        (PprSampler, PprOptions(top_k=9, epsilon=0.001, batch_size=40, edge_columns=("id",))),
    ],
)
def test_subgraphs_of_roots_are_those_of_one_process(kind, options, graph: TypedGraph, served, far) -> None:
    here, there = kind(typed_router(graph), options), kind(served, options)
    for batch in range(2):
        for owner in far.values():
            owner.requests.clear()
        assert arrays_of(there.sample(1, batch)) == arrays_of(here.sample(1, batch))
    for owner in far.values():  # these are requests of the second batch
        *searched, induced = (one for one in owner.requests if not isinstance(one.requests[0], FetchRows))
        assert {type(one) for one in induced.requests} == {InducedSubgraphs}
        assert {type(one) for request in searched for one in request.requests} == {ListNeighbors}
        if kind is Node2SubgraphSampler:
            assert len(searched) <= 2


def test_rows_by_plan_are_those_of_one_process(
    graph: TypedGraph, served: TypedRouter, far: dict[int, FarOwner]
) -> None:
    """If there is room for all rows, each far row is fetched once, with one request per owner for all types. With less room, kept rows stay within the
    budget."""
    here = NeighborSampler(typed_router(graph), OPTIONS)
    for cache_bytes in (1 << 30, 6000):
        for owner in far.values():
            owner.requests.clear()
        options = LoaderOptions(cache_bytes=cache_bytes, threads=2)
        with Loader(NeighborSampler(served, OPTIONS), options, num_epochs=3, collate=lambda batch: batch) as loader:
            for epoch in range(3):
                for index, batch in enumerate(loader.epoch(epoch)):
                    assert_same(batch, here.sample(epoch, index))
            assert loader.planned is not None
            stats, kept = loader.planned.stats, loader.planned._kept
        assert 0 < stats.peak_bytes <= cache_bytes
        assert (
            0
            < sum(column.nbytes for one in kept for column in vars(one.rows).values() if column is not None)
            <= cache_bytes
        )
        assert stats.fetched < stats.needed
        for owner in far.values():
            asked = [one for one in owner.requests if isinstance(one.requests[0], FetchRows)]
            rows: dict[str, list[int]] = {}
            for one in asked:
                assert len(set(one.parts)) == len(one.parts)
                for part, request in zip(one.parts, one.requests, strict=True):
                    rows.setdefault(part, []).extend(request.node.tolist())
            assert len(asked) <= 3 * here.num_batches
            if cache_bytes > 6000:
                assert all(len(set(of_type)) == len(of_type) for of_type in rows.values())


@given(st.integers(0, 1000), st.lists(st.tuples(st.integers(1, 50), st.integers(0, 500)), min_size=1, max_size=4))
def test_room_is_dealt_by_need_and_none_is_left_that_one_can_use(room, types) -> None:
    needed, most = ([one[place] for one in types] for place in (0, 1))
    rooms = _dealt(room, needed, most)
    assert all(0 <= own <= full for own, full in zip(rooms, most, strict=True))
    assert 0 <= min(room, sum(most)) - sum(rooms) < len(types)
    shares = sorted((own / need, own < full) for own, need, full in zip(rooms, needed, most, strict=True))
    below = [share for share, is_short in shares if is_short]
    # All types that could use more room get the same fraction of what they need.
    assert not below or shares[-1][0] <= below[0] + 1


def test_what_is_asked_by_itself_is_answered(graph: TypedGraph, served: TypedRouter) -> None:
    ours, theirs = typed_router(graph).nodes["paper"], served.nodes["paper"]
    assert np.array_equal(theirs.list_split(0, 2).original_id, ours.list_split(0, 2).original_id)
    rows = [router.fetch(np.arange(0, 290, 7), split_set=0) for router in (ours, theirs)]
    for name in ("original_id", "feature", "label", "split"):
        assert np.array_equal(getattr(rows[0], name), getattr(rows[1], name))


def test_bytes_of_messages_within_are_counted(graph: TypedGraph, far: dict[int, FarOwner]) -> None:
    traffic = Traffic(3)
    sampler = NeighborSampler(
        typed_router(graph, watch=traffic.watch, far={i: traffic.watch(owner, i) for i, owner in far.items()}), OPTIONS
    )
    sampler.sample(0, 0)
    for owner in far.values():
        owner.requests.clear()
    before = traffic.by_partition()
    sampler.sample(0, 1)
    asked = traffic.by_partition() - before
    sent, received = (asked[:, COLUMNS.index(name)] for name in ("sent_bytes", "received_bytes"))
    assert sent[1] == sum(array_bytes(request) for request in far[1].requests) > 0
    assert received[1] > 8 * 4 * 10
    assert asked[1, 0] == asked[2, 0] == 4
    assert asked[0, 0] == 0


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            ForParts(("book",), (FetchRows(np.arange(1)),)),
            r"expected a part that this server has \(1/author, .* got 'book'",
        ),
        (ForParts(("paper", "author"), (FetchRows(np.arange(1)),)), "expected requests to parts"),
        (FetchRows(np.arange(1)), "expected requests to parts, one for each part, got FetchRows"),
        (ForParts(("1/paper",), (FetchRows(np.array([10**6])),)), "partition 1 owns the nodes"),
    ],
)
def test_an_owner_says_what_it_cannot_answer(request_, message: str, far: dict[int, FarOwner]) -> None:
    with pytest.raises(ConfigError, match=message):
        far[1].submit(request_).result()
