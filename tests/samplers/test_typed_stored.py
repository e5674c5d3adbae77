"""Stores a PyG `HeteroData` as a graph and converts batches back. With full fanout, a batch has the same edges and rows as the original, for any partitions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric")
from torch_geometric.data import HeteroData

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.typed_router import TypedRouter, typed_router
from graphmill.samplers.batches.to_pyg import to_pyg
from graphmill.samplers.batches.typed_batch import typed_to_torch
from graphmill.samplers.drawing.pending_batch import with_rows
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.vocabulary.options import NeighborOptions, Node2SubgraphOptions, TypedNeighborOptions
from graphmill.storage.format.source import Relation, TypedSource
from graphmill.storage.graph import TypedGraph, open_graph
from graphmill.storage.importers.memory.array_graph import array_edges, array_nodes
from graphmill.storage.importers.memory.from_pyg import typed_pyg_graph
from graphmill.storage.ingestion.ingest import ingest
from graphmill.storage.ingestion.ingest_options import IngestOptions
from tests.memory_graph import NodeTable, TypedMemoryGraph, random_typed_graph
from tests.typed_reference import assert_same


def hetero_data() -> HeteroData:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
    data["paper"].train_mask = torch.arange(30) < 20
    data["author"].num_nodes = 11
    ends = [torch.randint(0, count, (70,), generator=generator) for count in (11, 30, 30, 30)]
    data["author", "writes", "paper"].edge_index = torch.stack(ends[:2])
    data["paper", "cites", "paper"].edge_index = torch.stack(ends[2:])
    data["paper", "rev_writes", "author"].edge_index = torch.stack([ends[1], ends[0]])
    return data


def batch_of(data: HeteroData, url: str, num_partitions: int, fanout: int) -> HeteroData:
    ingest(typed_pyg_graph(data), url, IngestOptions(num_partitions=num_partitions))
    options = TypedNeighborOptions(fanouts=(fanout, fanout), batch_size=100, root_split=None, shuffle=False)
    sampler = NeighborSampler(typed_router(open_graph(url)), options)
    return to_pyg(typed_to_torch(sampler.sample(epoch=0, batch=0)))


def pairs(data: HeteroData, edge_type, of_batch: bool) -> list[tuple[int, int]]:
    ends = data[edge_type].edge_index
    if of_batch:
        ends = torch.stack([data[edge_type[0]].n_id[ends[0]], data[edge_type[2]].n_id[ends[1]]])
    return sorted(map(tuple, ends.T.tolist()))


def test_hetero_data_comes_back(tmp_path: Path) -> None:
    data = hetero_data()
    for count in (1, 3):
        back = batch_of(data, str(tmp_path / str(count)), count, -1)
        assert back["paper"].batch_size == 30
        assert torch.equal(back["paper"].x, data["paper"].x[back["paper"].n_id])
        assert torch.equal(back["paper"].y, data["paper"].y[back["paper"].n_id])
        for edge_type in data.edge_types:
            assert pairs(back, edge_type, True) == pairs(data, edge_type, False)


def numbered(graph: TypedMemoryGraph) -> TypedMemoryGraph:
    """The graph with ids for edges, and with row numbers as the permanent ids of nodes."""
    tables = {name: replace(table, ids=list(range(len(table.ids)))) for name, table in graph.tables.items()}
    return replace(graph, tables=tables, edges={name: replace(each, has_id=True) for name, each in graph.edges.items()})


def nodes_of(name: str, table: NodeTable, time: np.ndarray | None):
    label = np.asarray(table.ids) % 5 if table.labelled else None
    split = None if table.split is None else np.asarray(table.split, np.int8)[:, None]
    return array_nodes(name, len(table.ids), table.feature, label, split, time)


def store(
    graph: TypedMemoryGraph,
    url: Path,
    partitions: int,
    partitioner: str = "random",
    *,
    timed: bool = True,
    **options: Any,
) -> TypedGraph:
    """Ingests the graph. `timed`: papers have times, and so do the edges in `edge_times`. `options`: options of the ingestion."""
    times = {"paper": np.arange(len(graph.tables["paper"].ids)) % 20 + 20} if timed else {}
    nodes = {name: nodes_of(name, table, times.get(name)) for name, table in graph.tables.items()}
    edges = {
        relation: array_edges(
            str(relation),
            np.asarray(each.src, np.int64),
            np.asarray(each.dst, np.int64),
            each.weight and np.asarray(each.weight),
            edge_feature=each.feature and np.asarray(each.feature),
            edge_time=edge_times(graph).get(relation) if timed else None,
        )
        for relation, each in graph.edges.items()
    }
    ingest(
        TypedSource("random", nodes, edges),
        str(url),
        IngestOptions(num_partitions=partitions, partitioner=partitioner, edge_ids=True, **options),
    )
    return open_graph(str(url))


def edge_times(graph: TypedMemoryGraph) -> dict[Relation, np.ndarray]:
    timed = [relation for relation in graph.relations if relation.name != "employs"]
    return {relation: np.arange(len(graph.edges[relation].src)) % 37 for relation in timed}


DRAWS: dict[str, dict[str, Any]] = {
    "labor": {"scheme": "labor"},
    "dependent": {"scheme": "labor", "batch_dependency": 3, "layer_dependency": True},
    "degree": {"scheme": "degree"},
    "until": {"time": "until", "recency_dim": 2},
    "last before": {"time": "before", "scheme": "last"},
    "as of": {"time": "until", "as_of": 25, "scheme": "weight"},
    "induced": {"edges": "induced", "edge_columns": ("id", "weight")},
}


@pytest.fixture(scope="module")
def cuts(tmp_path_factory) -> dict[int, TypedRouter]:
    folder, graph = tmp_path_factory.mktemp("cuts"), numbered(random_typed_graph())
    return {cut: typed_router(store(graph, folder / str(cut), cut)) for cut in (1, 4)}


@pytest.mark.parametrize("name", DRAWS)
def test_partitions_change_no_draw(name: str, cuts: dict[int, TypedRouter]) -> None:
    options = NeighborOptions((4, 3), batch_size=10, **DRAWS[name])
    one, four = (NeighborSampler(cuts[cut], options, 2) for cut in (1, 4))
    for batch in range(one.num_batches):
        assert_same(four.sample(2, batch), one.sample(2, batch))
    together = [with_rows(drawn) for drawn in four.draw(2, range(4))]
    for batch, found in enumerate(together):
        assert_same(found, one.sample(2, batch))


@pytest.mark.parametrize("time", ["until", "before"])
def test_no_edge_is_later_than_its_root(time: str, cuts: dict[int, TypedRouter]) -> None:
    """All edges up to a root's time are drawn. A relation without times gives all its edges. A node's age is measured from its newest edge."""
    graph = numbered(random_typed_graph())
    options = NeighborOptions((-1, -1), batch_size=25, time=time, edge_columns=("id", "time"), recency_dim=1)
    batch, seen = NeighborSampler(cuts[4], options).sample(0, 0), 0
    expanded = {name: nodes.hop < 2 for name, nodes in batch.nodes.items()}
    newest = {name: np.full(len(nodes), -1) for name, nodes in batch.nodes.items()}
    for relation, edges in batch.edges.items():
        source, target, times = batch.nodes[relation.source], batch.nodes[relation.target], edge_times(graph)
        into = np.repeat(np.arange(len(target)), np.diff(edges.indptr))
        np.testing.assert_array_equal(source.root_time[edges.indices], target.root_time[into])
        dst = np.asarray(graph.edges[relation].dst, np.int64)
        late = times[relation] if relation in times else np.full(len(dst), -1)
        for row in np.flatnonzero(expanded[relation.target]):
            own = np.flatnonzero(dst == target.node_id[row])
            limit = target.root_time[row] - (time == "before")
            expected = own[late[own] <= limit]
            found = edges.edge_id[edges.indptr[row] : edges.indptr[row + 1]]
            assert sorted(found) == expected.tolist()
            seen += len(own) - len(expected)
        if relation in times:
            np.maximum.at(newest[relation.source], edges.indices, edges.edge_time)
    assert seen > 100  # many edges are left out as too late
    assert torch.equal(to_pyg(typed_to_torch(batch))["author"].root_time, torch.tensor(batch.nodes["author"].root_time))
    assert batch.edges[next(each for each in batch.edges if each.name == "employs")].edge_time is None
    for name, nodes in batch.nodes.items():
        age = np.where(newest[name] < 0, 0, nodes.root_time - newest[name])
        np.testing.assert_array_equal(nodes.x[:, -1], np.cos(age).astype(np.float32))


def test_relations_from_one_type_share_the_coins_of_labor(tmp_path: Path) -> None:
    """Two relations have the same edges. With LABOR they draw the same neighbors of a node; with uniform draws they differ."""
    graph = numbered(random_typed_graph())
    cites = next(relation for relation in graph.relations if relation.name == "cites")
    twin = Relation("paper", "mentions", "paper")
    router = typed_router(store(replace(graph, edges={**graph.edges, twin: graph.edges[cites]}), tmp_path / "twin", 3))
    for scheme, same in (("labor", True), ("uniform", False)):
        batch = NeighborSampler(router, NeighborOptions((2,), batch_size=30, scheme=scheme)).sample(0, 0)
        one, other = batch.edges[cites], batch.edges[twin]
        assert len(one) > 20
        assert np.array_equal(one.indices, other.indices) == same


def test_draws_by_degree_count_the_edges_of_all_relations(cuts: dict[int, TypedRouter]) -> None:
    graph = numbered(random_typed_graph())
    for router in cuts.values():
        for relation, each in router.edges.items():
            tables = each._owners[0]._owner._tables
            degree = np.zeros(len(graph.tables[relation.source].ids), np.int64)
            for ending, edges in graph.edges.items():
                if ending.target == relation.source:
                    degree += np.bincount(edges.dst, minlength=len(degree))
            np.testing.assert_array_equal(tables.in_degree, degree[tables.permanent_id])


@pytest.mark.parametrize("partitions", [1, 3])
def test_stored_out_edges_are_searched(partitions: int, tmp_path: Path) -> None:
    """A relation within one type stores its out-edges. A search along them equals a search against its reversed edges."""
    graph = numbered(random_typed_graph())
    cites = next(relation for relation in graph.relations if relation.name == "cites")
    turned = replace(graph.edges[cites], src=graph.edges[cites].dst, dst=graph.edges[cites].src)
    subgraphs = []
    for direction, edges in (("out", graph.edges[cites]), ("in", turned)):
        stored = replace(graph, edges={**graph.edges, cites: edges})
        router = typed_router(store(stored, tmp_path / direction, partitions, out_edges=direction == "out"))
        options = Node2SubgraphOptions(3, 6, direction, relations=(str(cites),), root_type="paper")
        papers = Node2SubgraphSampler(router, options).sample(0, 0).nodes["paper"]
        subgraphs.append(set(zip(papers.subgraph.tolist(), papers.node_id.tolist(), papers.hop.tolist(), strict=True)))
    assert subgraphs[0] == subgraphs[1]
    assert any(hop > 1 for _, _, hop in subgraphs[0])


def test_roots_by_groups_are_the_same_whatever_the_partitions(tmp_path: Path) -> None:
    options = TypedNeighborOptions(fanouts=(3,), batch_size=4, root_order="groups")
    batches = []
    for partitions in (1, 4):
        stored = store(numbered(random_typed_graph()), tmp_path / str(partitions), partitions, "ldg", groups=12)
        sampler = NeighborSampler(typed_router(stored), options, num_ranks=3)
        batches.append([sampler.sample(0, batch) for batch in range(sampler.num_batches)])
    assert len(batches[0]) == len(batches[1]) > 3
    for one, other in zip(*batches, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"direction": "out"}, "author--writes--paper: direction 'out' needs lists of out-edges"),
        ({"encodings": ("rwse-3",)}, "encodings: expected a type of nodes that stores rwse-3, got none"),
    ],
)
def test_what_no_relation_stores_is_said(changed, message, cuts: dict[int, TypedRouter]) -> None:
    with pytest.raises(ConfigError, match=message):
        NeighborSampler(cuts[1], NeighborOptions(**changed))


@pytest.mark.parametrize(("partitions", "partitioner"), [(1, "random"), (3, "random"), (4, "ldg")])
def test_batches_are_those_in_memory(partitions, partitioner, tmp_path) -> None:
    graph = numbered(random_typed_graph())
    stored = store(graph, tmp_path / "graph", partitions, partitioner, timed=False)
    assert (stored.node_types, stored.relations) == (graph.node_types, graph.relations)
    options = TypedNeighborOptions(fanouts=(3, 2), batch_size=8, edge_columns=("id", "weight", "feature"))
    expected, found = (NeighborSampler(typed_router(each), options) for each in (graph, stored))
    assert found.num_batches == expected.num_batches
    for batch in range(found.num_batches):
        assert_same(found.sample(1, batch), expected.sample(1, batch))
