"""From PyG's `HeteroData` to a stored graph and back: a batch at full fan-out has the very edges and rows, and is the same from any partitions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric")
from torch_geometric.data import HeteroData

from graphmill.samplers.access.typed_router import typed_router
from graphmill.samplers.batches.to_pyg import to_pyg
from graphmill.samplers.batches.typed_batch import typed_to_torch
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import TypedNeighborOptions
from graphmill.storage.format.source import TypedSource
from graphmill.storage.importers.memory.array_graph import array_edges, array_nodes
from graphmill.storage.importers.memory.from_pyg import typed_pyg_graph
from graphmill.storage.ingestion.ingest_options import IngestOptions
from graphmill.storage.ingestion.typed_ingestion import ingest_typed
from graphmill.storage.typed_graph import open_typed_graph
from tests.typed_memory_graph import NodeTable, TypedMemoryGraph, random_typed_graph
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
    ingest_typed(typed_pyg_graph(data), url, IngestOptions(num_partitions=num_partitions))
    options = TypedNeighborOptions(fanouts=(fanout, fanout), batch_size=100, root_split=None, shuffle=False)
    sampler = NeighborSampler(typed_router(open_typed_graph(url)), options)
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


def test_batches_do_not_depend_on_partitions(tmp_path: Path) -> None:
    one, *others = (batch_of(hetero_data(), str(tmp_path / str(count)), count, 2) for count in (1, 2, 5))
    for other in others:
        for node_type in one.node_types:
            assert torch.equal(other[node_type].n_id, one[node_type].n_id)
        for edge_type in one.edge_types:
            assert torch.equal(other[edge_type].edge_index, one[edge_type].edge_index)


def numbered(graph: TypedMemoryGraph) -> TypedMemoryGraph:
    """The same with the rows' numbers as permanent ids, and every edge with one."""
    tables = {name: replace(table, ids=list(range(len(table.ids)))) for name, table in graph.tables.items()}
    return replace(graph, tables=tables, edges={name: replace(each, has_id=True) for name, each in graph.edges.items()})


def nodes_of(name: str, table: NodeTable):
    label = np.asarray(table.ids) % 5 if table.labelled else None
    split = None if table.split is None else np.asarray(table.split, np.int8)[:, None]
    return array_nodes(name, len(table.ids), table.feature, label, split)


@pytest.mark.parametrize(("partitions", "partitioner"), [(1, "random"), (3, "random"), (4, "ldg")])
def test_batches_are_those_in_memory(partitions, partitioner, tmp_path) -> None:
    graph = numbered(random_typed_graph())
    nodes = {name: nodes_of(name, table) for name, table in graph.tables.items()}
    edges = {
        relation: array_edges(
            str(relation),
            np.asarray(each.src, np.int64),
            np.asarray(each.dst, np.int64),
            each.weight and np.asarray(each.weight),
            edge_feature=each.feature and np.asarray(each.feature),
        )
        for relation, each in graph.edges.items()
    }
    ingest_typed(
        TypedSource("random", nodes, edges),
        str(tmp_path / "graph"),
        IngestOptions(num_partitions=partitions, partitioner=partitioner, edge_ids=True),
    )
    stored = open_typed_graph(str(tmp_path / "graph"))
    assert (stored.node_types, stored.relations) == (graph.node_types, graph.relations)
    options = TypedNeighborOptions(fanouts=(3, 2), batch_size=8, edge_columns=("id", "weight", "feature"))
    expected, found = (NeighborSampler(typed_router(each), options) for each in (graph, stored))
    assert found.num_batches == expected.num_batches
    for batch in range(found.num_batches):
        assert_same(found.sample(1, batch), expected.sample(1, batch))
