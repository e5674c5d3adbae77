"""Compares the typed neighbor sampler with its slow reference, for any partitions. Also tests that draws in a relation do not depend on other relations."""

import itertools
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter, typed_router
from graphmill.samplers.batches.typed_batch import TypedBatch, typed_to_torch
from graphmill.samplers.loading.loader import Loader
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import TypedNeighborOptions
from graphmill.storage.format.source import SPLIT_TRAIN, SPLIT_VALID, Relation
from tests import typed_reference as reference
from tests.memory_graph import (
    EdgeTable,
    MemoryGraph,
    NodeTable,
    TypedMemoryGraph,
    memory_router,
    random_graph,
    random_typed_graph,
    typed_graphs,
)
from tests.reference_sampler import root_order, share

GRAPH = random_typed_graph()
WRITES, WRITTEN, CITES, EMPLOYS, NOTHING = GRAPH.relations
SPLIT = dict(zip(GRAPH.tables["paper"].ids, GRAPH.tables["paper"].split, strict=True))
TRAINING = [one for one, code in SPLIT.items() if code == SPLIT_TRAIN]
OPTIONS = TypedNeighborOptions(fanouts=(3, 2), batch_size=8, seed=7)


def sampler(graph: TypedMemoryGraph = GRAPH, num_ranks: int = 1, roots=None, **changed) -> NeighborSampler:
    return NeighborSampler(typed_router(graph), replace(OPTIONS, **changed), num_ranks, roots)


def all_fanouts(graph: TypedMemoryGraph, options: TypedNeighborOptions) -> dict[Relation, tuple[int, ...]]:
    return {relation: options.relation_fanouts.get(relation, options.fanouts) for relation in graph.relations}


FANOUTS = [
    ((3, 2), {}),
    ((-1, -1, -1), {}),
    ((2,), {}),
    ((0, 2), {}),
    ((4, 3, 2), {CITES: (0, 2, 0), EMPLOYS: (0, 1, -1)}),
    ((0, 0), {WRITES: (2, 0), WRITTEN: (0, 5)}),
]


@pytest.mark.parametrize(("fanouts", "of_relations"), FANOUTS)
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_every_cut_yields_the_reference(fanouts, of_relations, partitions) -> None:
    options = {"fanouts": fanouts, "relation_fanouts": of_relations}
    cut = sampler(GRAPH.parted(partitions, seed=partitions), 2, **options)
    for epoch, batch in ((0, 0), (0, cut.num_batches - 1), (3, 1)):
        found = cut.sample(epoch, batch)
        roots = root_order(TRAINING, 7, epoch)[share(len(TRAINING), cut.num_batches, batch)]
        expected = reference.typed_batch(GRAPH, "paper", roots, all_fanouts(GRAPH, cut.options), 7, epoch, batch)
        reference.assert_is(found, expected, GRAPH, len(roots))
        assert (found.epoch, found.index, found.root_type) == (epoch, batch, "paper")


@given(
    graph=typed_graphs(),
    fanouts=st.lists(st.integers(-1, 3), min_size=1, max_size=3).map(tuple),
    of_relations=st.booleans(),
    batch_size=st.integers(1, 5),
    num_ranks=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_any_typed_graph_yields_the_reference(
    graph: TypedMemoryGraph, fanouts, of_relations, batch_size, num_ranks, seed, shuffle, data
) -> None:
    root_type = data.draw(st.sampled_from(graph.node_types))
    own = st.lists(st.integers(-1, 3), min_size=len(fanouts), max_size=len(fanouts)).map(tuple)
    options = TypedNeighborOptions(
        fanouts=fanouts,
        relation_fanouts={relation: data.draw(own) for relation in graph.relations} if of_relations else {},
        root_type=root_type,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
    )
    drawn, roots = NeighborSampler(typed_router(graph), options, num_ranks), graph.tables[root_type].ids
    if len(roots) < num_ranks:
        with pytest.raises(ConfigError, match="at least one training root per rank"):
            assert drawn.num_batches
        return
    seen = []
    for batch in range(drawn.num_batches):
        found = drawn.sample(5, batch)
        order = root_order(roots, seed, 5) if shuffle else roots
        order = order[share(len(roots), drawn.num_batches, batch)]
        fan = all_fanouts(graph, options)
        expected = reference.typed_batch(graph, root_type, order, fan, seed, 5 if shuffle else 0, batch)
        reference.assert_is(found, expected, graph, len(order))
        seen += found.predicted_id.tolist()
    assert sorted(seen) == roots


@pytest.mark.parametrize("direction", ["out", "both"])
@given(graph=typed_graphs(), fanout=st.integers(-1, 3), epoch=st.integers(0, 2))
def test_directions_of_several_relations_yield_the_reference(direction, graph: TypedMemoryGraph, fanout, epoch) -> None:
    """A relation's out-edges are the in-edges of its reverse. If there is no reverse with the same number of edges, other directions are refused."""
    back = {each.reverse: EdgeTable(edges.dst, edges.src) for each, edges in graph.edges.items()}
    there, roots = replace(graph, edges={**graph.edges, **back}), graph.tables["a"].ids
    options = TypedNeighborOptions(fanouts=(fanout, 2), seed=7, direction=direction, root_type="a")
    found = NeighborSampler(typed_router(there), options).sample_roots(np.array(roots), epoch, 3)
    expected = reference.typed_batch(there, "a", roots, all_fanouts(there, options), 7, epoch, 3, direction)
    reference.assert_is(found, expected, there, len(roots))
    first, other = graph.relations[0], back[graph.relations[0].reverse]
    fewer = replace(there, edges=there.edges | {first.reverse: EdgeTable([*other.src, 0], [*other.dst, 0])})
    for lacking in (graph, fewer):
        with pytest.raises(
            ConfigError, match=f"{first}: direction '{direction}' needs lists of out-edges, a relation has in"
        ):
            NeighborSampler(typed_router(lacking), options)


@pytest.mark.parametrize("direction", ["out", "both"])
def test_a_relation_that_stores_out_edges_gives_its_own(direction) -> None:
    """The other relations of this graph have reverses. (The conformance suite tests the only relation of a plain graph.)"""
    plain = random_graph(40, 300)
    router, again = memory_router(plain), memory_router(MemoryGraph(40, [(dst, src) for src, dst in plain.edges]))
    bare = [Router(replace(one.manifest, has_out_edges=False), one._owners) for one in (router, again)]
    ends = [("a", "r", "a"), ("a", "to", "b"), ("b", "rev_to", "a")]
    relations = dict(zip(map(Relation.of, ends), (router, *bare), strict=True))
    table = NodeTable(plain.ids)
    edges = {each: EdgeTable(*map(list, zip(*plain.edges, strict=True))) for each in relations}
    edges[Relation.of(ends[2])] = EdgeTable(edges[Relation.of(ends[0])].dst, edges[Relation.of(ends[0])].src)
    graph, options = (
        TypedMemoryGraph({"a": table, "b": table}, edges),
        replace(OPTIONS, direction=direction, root_type="a"),
    )
    found = NeighborSampler(TypedRouter({"a": router, "b": router}, relations), options).sample_roots(np.arange(20))
    expected = reference.typed_batch(graph, "a", list(range(20)), all_fanouts(graph, options), 7, 0, 0, direction)
    for relation, lists in expected.in_lists.items():
        assert found.edges[relation].indices.tolist() == [source for one in lists for source in one]
        assert np.diff(found.edges[relation].indptr).tolist() == list(map(len, lists))


def drawn_edges(batch: TypedBatch, relation: Relation) -> set[tuple[int, int]]:
    """The in-edges of the roots as (source, target), by permanent ids."""
    edges, source = batch.edges[relation], batch.nodes[relation.source].node_id
    target = np.repeat(batch.nodes[relation.target].node_id, np.diff(edges.indptr))
    of_roots = slice(int(edges.indptr[batch.num_roots]))
    return set(zip(source[edges.indices].tolist()[of_roots], target.tolist()[of_roots], strict=True))


def test_other_relations_change_no_draw() -> None:
    """If relations are added, removed or reordered, draws in the other relations around the same nodes stay the same."""
    whole = sampler(fanouts=(2,)).sample(1, 0)
    for order in ((CITES,), (NOTHING, CITES, WRITES), (WRITES, EMPLOYS, CITES), tuple(reversed(GRAPH.relations))):
        fewer = replace(GRAPH, edges={relation: GRAPH.edges[relation] for relation in order})
        batch = sampler(fewer, fanouts=(2,)).sample(1, 0)
        for relation in order:
            if relation.target == "paper":
                assert drawn_edges(batch, relation) == drawn_edges(whole, relation)
    assert drawn_edges(whole, CITES)


def test_relations_with_the_same_edges_draw_otherwise() -> None:
    twin = Relation("paper", "mentions", "paper")
    batch = sampler(replace(GRAPH, edges={**GRAPH.edges, twin: GRAPH.edges[CITES]}), fanouts=(2,)).sample(0, 0)
    assert drawn_edges(batch, CITES) != drawn_edges(batch, twin)


def test_another_seed_epoch_batch_or_hop_draws_otherwise() -> None:
    base = sampler(shuffle=False)
    roots = np.array(TRAINING[:20])
    batches = [sampler().sample_roots(roots, *at) for at in ((0, 0), (1, 0), (0, 1))]
    batches.append(sampler(seed=8).sample_roots(roots))
    for one, other in itertools.combinations(batches, 2):
        assert drawn_edges(one, CITES) != drawn_edges(other, CITES)
    reference.assert_same(replace(base.sample(1, 0), epoch=0), base.sample(0, 0))


def test_columns_of_edges_where_a_relation_has_them() -> None:
    for partitions in (1, 3):
        cut = sampler(
            GRAPH.parted(partitions), edge_columns=("id", "weight", "feature"), relation_fanouts={CITES: (2, 1)}
        )
        batch = cut.sample(0, 0)
        roots = root_order(TRAINING, 7, 0)[share(len(TRAINING), cut.num_batches, 0)]
        expected = reference.typed_batch(GRAPH, "paper", roots, all_fanouts(GRAPH, cut.options), 7, 0, 0)
        rows, writes, cites = expected.edge_rows, batch.edges[WRITES], batch.edges[CITES]
        assert writes.edge_id.tolist() == rows[WRITES]
        np.testing.assert_array_equal(writes.edge_weight, np.float32(GRAPH.edges[WRITES].weight)[rows[WRITES]])
        np.testing.assert_array_equal(cites.edge_feature, np.float32(GRAPH.edges[CITES].feature)[rows[CITES]])
        assert len(cites) > 0
        assert writes.edge_feature is None
        assert cites.edge_id is None
        assert batch.edges[WRITTEN].edge_weight is None
    none = sampler(edge_columns=("weight",), relation_fanouts={WRITES: (0, 0)}).sample(0, 0)
    assert none.edges[WRITES].edge_weight.shape == (0,)


def test_weights_draw_in_the_relations_that_have_them() -> None:
    """An edge of weight 0 is never drawn. In relations without weights, draws are the same as with the uniform scheme."""
    weight = [0.0 if row % 2 else 1.0 for row in range(len(GRAPH.edges[WRITES].src))]
    graph = replace(GRAPH, edges={**GRAPH.edges, WRITES: replace(GRAPH.edges[WRITES], weight=weight)})
    options = {"scheme": "weight", "edge_columns": ("id",), "fanouts": (4,)}
    batch, plain = sampler(graph, **options).sample(0, 0), sampler(fanouts=(4,)).sample(0, 0)
    assert len(batch.edges[WRITES]) > 0
    assert (batch.edges[WRITES].edge_id % 2 == 0).all()
    assert drawn_edges(batch, CITES) == drawn_edges(plain, CITES)
    again = sampler(graph, replace=True, **options).sample(0, 0)
    assert set(np.diff(again.edges[CITES].indptr[: again.num_roots + 1]).tolist()) <= {0, 4}


def same_tensors(one: TypedBatch, other: TypedBatch) -> bool:
    numbers = zip(tensors_of(one), tensors_of(other), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in numbers)


def tensors_of(batch: TypedBatch) -> list[torch.Tensor]:
    tables = [*batch.nodes.values(), *batch.edges.values()]
    return [batch.root_index, *(value for table in tables for value in vars(table).values() if value is not None)]


def test_resumes_in_its_own_data_alone() -> None:
    with Loader(sampler(), collate=typed_to_torch) as loader:
        loader.reset(4)
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), list(batches)
    with Loader(sampler(GRAPH.parted(3)), collate=typed_to_torch) as loader:
        loader.load_state_dict(state)
        assert all(same_tensors(a, b) for a, b in zip(loader, rest, strict=True))
    other = replace(GRAPH, edges={**GRAPH.edges, NOTHING: EdgeTable([0], [0])})
    for foreign in (sampler(other), sampler(roots=np.array(TRAINING))):
        with (
            Loader(foreign, collate=typed_to_torch) as loader,
            pytest.raises(ConfigError, match="a position in the data"),
        ):
            loader.load_state_dict(state)


def test_every_root_once_an_epoch_and_given_roots() -> None:
    for num_ranks in (1, 2, 3):
        every = sampler(num_ranks=num_ranks, root_split=SPLIT_VALID)
        seen = [one for batch in range(every.num_batches) for one in every.sample(1, batch).predicted_id.tolist()]
        assert sorted(seen) == [one for one, code in SPLIT.items() if code == SPLIT_VALID]
    chosen = np.array(GRAPH.tables["author"].ids[::7])
    given_ = sampler(roots=chosen, root_type="author")
    seen = [one for batch in range(given_.num_batches) for one in given_.sample(1, batch).predicted_id.tolist()]
    assert sorted(seen) == chosen.tolist()
    batch = given_.sample(2, 1)
    reference.assert_same(given_.sample_roots(batch.predicted_id, 2, 1), batch)
    assert given_.roots_of(2, 1).tolist() == batch.predicted_id.tolist()


def test_a_batch_says_how_large_it_is() -> None:
    batch = sampler().sample(0, 0)
    assert batch.num_bytes == sum(
        tensor.numel() * tensor.element_size() for tensor in tensors_of(typed_to_torch(batch))
    )
    assert batch.num_nodes == sum(len(table.node_id) for table in batch.nodes.values())
    assert batch.num_edges == sum(len(table.indices) for table in batch.edges.values()) > 0
    for name in batch.nodes:
        assert batch.layer_sizes(name) == [int((batch.nodes[name].hop == hop).sum()) for hop in range(3)]
    assert "8 roots paper" in repr(batch) or f"{batch.num_roots} roots paper" in repr(batch)
    tensors = typed_to_torch(batch)
    assert torch.equal(tensors.target, torch.from_numpy(batch.target))
    moved = tensors.to("meta")
    assert {tensor.device.type for tensor in tensors_of(moved)} == {"meta"}


def test_types_without_nodes_or_edges_in_a_batch_are_there() -> None:
    batch = sampler().sample(0, 0)
    assert list(batch.nodes) == ["paper", "author", "place", "alone"]
    assert len(batch.nodes["alone"]) == 0
    assert len(batch.edges[NOTHING]) == 0
    assert batch.edges[NOTHING].indptr.tolist() == [0] * (len(batch.nodes["paper"]) + 1)
    assert sampler(features=False).sample(0, 0).nodes["paper"].x is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"root_type": "book"}, "root_type: expected one of paper, author, place, alone, got 'book'"),
        ({"split_set": 1}, "split set: expected one of paper's 1, got 1"),
        ({"root_type": "author", "split_set": 1}, "split set: expected 0, author has none, got 1"),
        (
            {"relation_fanouts": {("paper", "likes", "paper"): (1, 1)}},
            "relation_fanouts: expected relations among .* got paper--likes",
        ),
        ({"root_type": "author", "root_split": SPLIT_VALID}, "has no splits"),
    ],
)
def test_what_the_graph_lacks_is_said(changed, message) -> None:
    with pytest.raises(ConfigError, match=message):
        sampler(**changed)


def test_what_no_relation_has_is_said() -> None:
    bare = replace(GRAPH, edges={WRITTEN: GRAPH.edges[WRITTEN]})
    for changed in ({"scheme": "weight"}, {"edge_columns": ("weight",)}):
        with pytest.raises(ConfigError, match="edge column 'weight': no relation has it"):
            sampler(bare, **changed)
    with pytest.raises(ConfigError, match="root_type: expected a type of nodes, for no type of author, b has labels"):
        sampler(TypedMemoryGraph({"author": NodeTable([0, 1]), "b": NodeTable([0])}, {}))
    with pytest.raises(ConfigError, match="relation author--writes--paper: expected types among author, got 'paper'"):
        typed_router(TypedMemoryGraph({"author": NodeTable([0])}, {})).__class__(
            typed_router(TypedMemoryGraph({"author": NodeTable([0])}, {})).nodes,
            {WRITES: typed_router(GRAPH).edges[WRITES]},
        )
    with pytest.raises(ConfigError, match=r"^batch: expected a number in \[0, "):
        sampler().sample(0, 10**6)
    with pytest.raises(ConfigError, match=r"roots: .* got 10000"):
        sampler().sample_roots(np.array([10_000]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"relation_fanouts": {CITES: (1,)}},
            "paper--cites--paper: expected a fan-out for each of the 2 hops of fanouts, got",
        ),
        ({"relation_fanouts": {CITES: (1, -2)}}, "paper--cites--paper: expected one count >= 0"),
        ({"replace": True, "fanouts": (-1, 2)}, "replace: .* and fanouts >= 0, got .*-1, 2"),
    ],
)
def test_options_that_cannot_be(wrong, message) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(OPTIONS, **wrong)


def test_options_are_frozen_and_plain() -> None:
    with pytest.raises(FrozenInstanceError):
        OPTIONS.seed = 5  # type: ignore[misc]
    two = {tuple(CITES): [1, 2], tuple(WRITES): [0, 1]}
    options = replace(OPTIONS, relation_fanouts=two)
    assert options == replace(OPTIONS, relation_fanouts=dict(reversed(two.items())))
    assert repr(options) == repr(replace(OPTIONS, relation_fanouts=dict(reversed(two.items()))))
    assert type(options)(**vars(options)) == options
