"""Node2Subgraph and PPR search several relations of a typed graph. They find the same nodes as the plain samplers in the union of these relations. A batch has
the edges of every relation among these nodes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.owners import LocalOwner
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import typed_router
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.batches.typed_batch import TypedBatch, typed_to_torch
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.methods.ppr import PprSampler
from graphmill.samplers.vocabulary.options import Node2SubgraphOptions, PprOptions, TypedNode2SubgraphOptions
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import Partition
from tests.memory_graph import EdgeTable, NodeTable, TypedMemoryGraph, random_typed_graph, typed_graphs
from tests.typed_reference import arrays_of

GRAPH = random_typed_graph()
WRITES, WRITTEN, CITES, EMPLOYS, NOTHING = GRAPH.relations
SEARCH = TypedNode2SubgraphOptions(max_hops=3, max_nodes=12, batch_size=8, seed=7)
WALK = PprOptions(epsilon=0.001, top_k=9, batch_size=8, seed=7)
Sampler = Node2SubgraphSampler | PprSampler


def sampler(options, graph: TypedMemoryGraph = GRAPH, num_ranks: int = 1, **changed) -> Sampler:
    kind = PprSampler if isinstance(options, PprOptions) else Node2SubgraphSampler
    return kind(typed_router(graph), replace(options, **changed), num_ranks)


def offsets(graph: TypedMemoryGraph) -> dict[str, int]:
    """A number for each type, which is added to its permanent ids to make the ids of all types distinct. It is 0 for the first type."""
    shifts, end = {}, 0
    for name, table in graph.tables.items():
        shifts[name] = end
        end += max(table.ids, default=0) + 1
    return shifts


def union(graph: TypedMemoryGraph, relations: tuple[Relation, ...]) -> Router:
    """These relations as one plain graph in one partition. A node's list has its lists in all relations, one after another."""
    shift = offsets(graph)
    ids = [one + shift[name] for name, table in graph.tables.items() for one in table.ids]
    row = {one: place for place, one in enumerate(ids)}
    lists: list[list[int]] = [[] for _ in ids]
    for relation in relations:
        for target, edges in graph.in_edges(relation).items():
            lists[row[target + shift[relation.target]]] += [row[source + shift[relation.source]] for source, _ in edges]
    partition = Partition(
        index=0,
        start=0,
        stop=len(ids),
        indptr=np.cumsum([0, *map(len, lists)]),
        indices=np.array([one for some in lists for one in some], np.int32),
        original_id=np.array(ids, np.int64),
    )
    manifest = Manifest(
        name="union", num_nodes=len(ids), num_edges=len(partition.indices), partition_offsets=(0, len(ids))
    )
    return Router(manifest, [LocalOwner(PartitionOwner(partition, len(ids)))])


def plain_sets(batch: MiniBatch) -> list[dict[int, float]]:
    """For each root's subgraph, a dict from each node to its hop or score."""
    value = batch.hop if batch.score is None else batch.score
    cuts = np.asarray(batch.graph_ptr[1:-1])
    both = zip(np.split(batch.node_id, cuts), np.split(value, cuts), strict=True)
    return [dict(zip(nodes.tolist(), told.tolist(), strict=True)) for nodes, told in both]


def typed_sets(batch: TypedBatch, shift: dict[str, int]) -> list[dict[int, float]]:
    found: list[dict[int, float]] = [{} for _ in range(batch.num_roots)]
    for name, nodes in batch.nodes.items():
        value = nodes.hop if nodes.score is None else nodes.score
        for one, number, told in zip(nodes.node_id, nodes.subgraph, value, strict=True):
            found[number][int(one) + shift[name]] = told.item()
    return found


def plain_edges(batch: MiniBatch) -> Counter:
    number = np.repeat(np.arange(batch.num_roots), np.diff(batch.graph_ptr))
    target = np.repeat(np.arange(batch.num_nodes), np.diff(batch.indptr))
    ends = batch.node_id[batch.indices], batch.node_id[target]
    return Counter(zip(number[target].tolist(), *(end.tolist() for end in ends), strict=True))


def typed_edges(batch: TypedBatch, shift: dict[str, int]) -> Counter:
    found = Counter()
    for relation, edges in batch.edges.items():
        sources, targets = batch.nodes[relation.source], batch.nodes[relation.target]
        target = np.repeat(np.arange(len(targets)), np.diff(edges.indptr))
        assert sources.subgraph[edges.indices].tolist() == targets.subgraph[target].tolist()
        ends = (
            sources.node_id[edges.indices] + shift[relation.source],
            targets.node_id[target] + shift[relation.target],
        )
        found.update(zip(targets.subgraph[target].tolist(), *(end.tolist() for end in ends), strict=True))
    return found


@settings(max_examples=60)
@given(
    graph=typed_graphs(),
    max_hops=st.integers(0, 4),
    max_nodes=st.integers(1, 12),
    top_k=st.integers(0, 8),
    epoch=st.integers(0, 2),
    data=st.data(),
)
def test_sets_are_those_of_the_plain_samplers_on_the_union(graph, max_hops, max_nodes, top_k, epoch, data) -> None:
    relations = tuple(r for r in graph.relations if data.draw(st.booleans())) or graph.relations
    names, shift = tuple(map(str, relations)), offsets(graph)
    roots = np.array(graph.tables["a"].ids)
    one, every = union(graph, relations), union(graph, graph.relations)
    search = TypedNode2SubgraphOptions(max_hops, max_nodes, relations=names, root_type="a", seed=5)
    typed = sampler(search, graph).sample_roots(roots, epoch)
    plain = Node2SubgraphOptions(max_hops, max_nodes, "in", seed=5)
    expected = Node2SubgraphSampler(one, plain, roots=roots).sample_roots(roots, epoch)
    assert typed_sets(typed, shift) == plain_sets(expected)
    if relations == graph.relations:
        assert typed_edges(typed, shift) == plain_edges(expected)
    walk = PprOptions(epsilon=0.01, top_k=top_k, relations=names, root_type="a")
    typed = sampler(walk, graph).sample_roots(roots, epoch)
    expected = PprSampler(one, PprOptions(epsilon=0.01, top_k=top_k), roots=roots).sample_roots(roots, epoch)
    assert typed_sets(typed, shift) == plain_sets(expected)
    if relations == graph.relations:
        assert typed_edges(typed, shift) == plain_edges(expected)
    assert every.manifest.num_edges >= one.manifest.num_edges


@pytest.mark.parametrize("options", [SEARCH, WALK], ids=["node2subgraph", "ppr"])
def test_lists_are_all_edges_of_every_relation_within_a_subgraph(options) -> None:
    """A batch also has the edges of relations that were not searched. Lists have the stored order and their columns, and nodes have their rows."""
    drawn = sampler(options, GRAPH.parted(3), relations=(str(CITES), str(WRITES)), edge_columns=("weight", "feature"))
    batch = drawn.sample(1, 1)
    assert batch.root_index.tolist() == list(range(batch.num_roots))
    assert batch.predicted_id.tolist() == drawn.roots_of(1, 1).tolist()
    for name, nodes in batch.nodes.items():
        if nodes.score is None:
            order = np.lexsort((nodes.node_id, nodes.subgraph, nodes.hop))
        else:
            order = np.lexsort((nodes.node_id, -nodes.score, nodes.subgraph, nodes.hop))
        assert name == "paper" or order.tolist() == list(range(len(nodes)))
        assert (np.diff(nodes.hop) >= 0).all()  # roots are papers, in the order of the batch
        table = GRAPH.tables[name]
        if table.feature is not None:
            np.testing.assert_array_equal(nodes.x, table.feature[np.searchsorted(table.ids, nodes.node_id)])
    assert sum(len(edges) for relation, edges in batch.edges.items() if relation == WRITTEN) > 0
    for relation, edges in batch.edges.items():
        sources, targets, stored = batch.nodes[relation.source], batch.nodes[relation.target], GRAPH.in_edges(relation)
        place = {key: i for i, key in enumerate(zip(sources.subgraph, sources.node_id, strict=True))}
        expected = [
            [(place[number, source], row) for source, row in stored[int(node)] if (number, source) in place]
            for number, node in zip(targets.subgraph, targets.node_id, strict=True)
        ]
        assert edges.indptr.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
        assert edges.indices.tolist() == [source for one in expected for source, _ in one]
        rows = [row for one in expected for _, row in one]
        table = GRAPH.edges[relation]
        if table.weight is not None:
            assert edges.edge_weight.tolist() == np.asarray(table.weight, np.float32)[rows].tolist()
        if table.feature is not None:
            np.testing.assert_array_equal(edges.edge_feature, np.asarray(table.feature, np.float32)[rows])


@pytest.mark.parametrize("options", [SEARCH, WALK], ids=["node2subgraph", "ppr"])
def test_an_empty_type_and_a_relation_without_edges(options) -> None:
    """The empty type is between two other types, so that two types begin at the same id."""
    tables = {"author": GRAPH.tables["author"], "book": NodeTable([]), "paper": GRAPH.tables["paper"]}
    nothing = {Relation("book", "on", "paper"): EdgeTable([], []), Relation("paper", "in", "book"): EdgeTable([], [])}
    graph = TypedMemoryGraph(tables, {WRITES: GRAPH.edges[WRITES], **nothing, WRITTEN: GRAPH.edges[WRITTEN]})
    without = TypedMemoryGraph(
        {name: table for name, table in tables.items() if name != "book"},
        {relation: table for relation, table in graph.edges.items() if relation not in nothing},
    )
    found, expected = (sampler(options, one.parted(2)).sample(0, 0) for one in (graph, without))
    assert len(found.nodes["book"]) == 0
    assert all(len(found.edges[relation]) == 0 for relation in nothing)
    kept = arrays_of(found)
    assert {name: kept[name] for name in arrays_of(expected)} == arrays_of(expected)
    alone = sampler(options, relations=(str(NOTHING),)).sample(0, 0)
    assert alone.num_nodes == alone.num_roots


@pytest.mark.parametrize("options", [SEARCH, WALK], ids=["node2subgraph", "ppr"])
def test_what_is_not_there_is_refused(options) -> None:
    with pytest.raises(ConfigError, match=r"relations: expected relations among author--writes--paper, .* got a--b--c"):
        sampler(options, relations=("a--b--c",))
    with pytest.raises(ConfigError, match="expected SOURCE--NAME--TARGET"):
        replace(options, relations=("writes",))
    with pytest.raises(ConfigError, match="root_type: expected one of paper"):
        sampler(options, root_type="book")
    with pytest.raises(ConfigError, match="no relation has it"):
        sampler(options, edge_columns=("time",))
    with pytest.raises(
        ConfigError,
        match=r"author--writes--paper: direction 'both' needs lists of out-edges, a relation has in-edges alone",
    ):
        sampler(options, direction="both")


def test_pyg_s_heterogeneous_data_tells_subgraphs_apart() -> None:
    pytest.importorskip("torch_geometric")
    from graphmill.samplers.batches.to_pyg import to_pyg

    batch = typed_to_torch(sampler(WALK).sample(0, 0))
    data = to_pyg(batch)
    assert data["paper"].batch.tolist() == batch.nodes["paper"].subgraph.tolist()
    assert data["author"].score.tolist() == batch.nodes["author"].score.tolist()
    assert data["author", "writes", "paper"].edge_index.shape == (2, len(batch.edges[WRITES]))
    assert "num_sampled_nodes" not in data["paper"]
    assert data["paper"].batch_size == batch.num_roots


@settings(max_examples=40)
@given(graph=typed_graphs(), way=st.sampled_from(["out", "both"]), epoch=st.integers(0, 2))
def test_a_reverse_relation_has_the_out_edges(graph, way, epoch) -> None:
    """The search equals a search in a plain graph that has the edges of the reverses. For direction "both", it also has the edges of the relations."""
    back = {one.reverse: EdgeTable(edges.dst, edges.src) for one, edges in graph.edges.items()}
    assert all(one.reverse.reverse == one for one in graph.relations)
    there = replace(graph, edges={**graph.edges, **back})
    one_way, shift, roots = tuple(map(str, graph.relations)), offsets(graph), np.array(graph.tables["a"].ids)
    search = Node2SubgraphOptions(3, 6, way, relations=one_way, root_type="a", seed=5)
    found = sampler(search, there).sample_roots(roots, epoch)
    searched = union(there, (*(graph.relations if way == "both" else ()), *back))
    expected = Node2SubgraphSampler(searched, Node2SubgraphOptions(3, 6, "in", seed=5), roots=roots)
    assert typed_sets(found, shift) == plain_sets(expected.sample_roots(roots, epoch))
    fewer = replace(
        there,
        edges=there.edges
        | {
            graph.relations[0].reverse: EdgeTable(
                [*back[graph.relations[0].reverse].src, 0], [*back[graph.relations[0].reverse].dst, 0]
            )
        },
    )
    with pytest.raises(ConfigError, match="a relation has in-edges alone"):
        sampler(search, fewer)
