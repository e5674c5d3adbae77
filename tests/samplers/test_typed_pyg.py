"""Tests typed batches as PyG's `HeteroData`. With full fanout they equal PyG's own result, hop by hop, and PyG's models accept them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric", reason="needs torch-geometric")
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, HGTConv, SAGEConv, to_hetero
from torch_geometric.utils import k_hop_subgraph, trim_to_layer

from graphmill.samplers.access.typed_router import typed_router
from graphmill.samplers.batches.to_pyg import to_pyg
from graphmill.samplers.batches.typed_batch import typed_to_torch
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.vocabulary.options import TypedNeighborOptions
from tests.memory_graph import NodeTable, TypedMemoryGraph, random_typed_graph

HOPS = 3
GRAPH = random_typed_graph(seed=3)
ROOTS = np.array(GRAPH.tables["paper"].ids[4:10])


def whole(graph: TypedMemoryGraph) -> HeteroData:
    """The graph as a PyG object. Nodes are numbered by rows; `n_id` has the permanent ids."""
    data = HeteroData()
    for name, table in graph.tables.items():
        data[name].n_id, data[name].num_nodes = torch.tensor(table.ids), len(table.ids)
        if table.feature is not None:
            data[name].x = torch.from_numpy(table.feature)
    for relation, edges in graph.edges.items():
        data[tuple(relation)].edge_index = torch.tensor([edges.src, edges.dst], dtype=torch.int64).reshape(2, -1)
    return data


def drawn(graph: TypedMemoryGraph = GRAPH, hops: int = HOPS, fanout: int = -1, **options) -> HeteroData:
    chosen = TypedNeighborOptions(fanouts=(fanout,) * hops, root_type="paper", **options)
    return to_pyg(typed_to_torch(NeighborSampler(typed_router(graph), chosen).sample_roots(ROOTS)))


def edges_of(data: HeteroData, edge_type) -> list[tuple[int, int]]:
    """The edges as (source, target), by permanent ids, in ascending order."""
    source, _, target = edge_type
    ends = data[edge_type].edge_index
    return sorted(zip(data[source].n_id[ends[0]].tolist(), data[target].n_id[ends[1]].tolist(), strict=True))


@pytest.mark.parametrize("partitions", [1, 3])
def test_full_fanout_finds_what_pyg_finds_hop_by_hop(partitions) -> None:
    """Compared with PyG's `k_hop_subgraph` on the graph of all types. Every hop has the same nodes, and expanded nodes have the same in-edges."""
    data = whole(GRAPH)
    plain = data.to_homogeneous(node_attrs=["n_id"], edge_attrs=[])
    types, relations = data.node_types, data.edge_types
    (papers,) = (plain.node_type == types.index("paper")).nonzero(as_tuple=True)
    roots = papers[torch.isin(plain.n_id[papers], torch.from_numpy(ROOTS))]
    within = [k_hop_subgraph(roots, hop, plain.edge_index, num_nodes=plain.num_nodes)[0] for hop in range(HOPS + 1)]
    for hops in range(1, HOPS + 1):
        batch = drawn(GRAPH.parted(partitions), hops)
        for number, name in enumerate(types):
            for hop in range(hops + 1):
                expected = plain.n_id[within[hop][plain.node_type[within[hop]] == number]]
                found = batch[name].n_id[: sum(batch[name].num_sampled_nodes[: hop + 1])]
                assert found.sort().values.tolist() == expected.tolist()
        source, target = plain.edge_index
        for number, edge_type in enumerate(relations):
            for hop in range(1, hops + 1):
                into = torch.isin(target, within[hop - 1]) & (plain.edge_type == number)
                expected = sorted(
                    zip(plain.n_id[source[into]].tolist(), plain.n_id[target[into]].tolist(), strict=True)
                )
                so_far = sum(batch[edge_type].num_sampled_edges[:hop])
                assert edges_of(_first(batch, edge_type, so_far), edge_type) == expected


def _first(batch: HeteroData, edge_type, count: int) -> HeteroData:
    cut = batch.clone()
    cut[edge_type].edge_index = batch[edge_type].edge_index[:, :count]
    return cut


def test_full_fanout_is_the_batch_of_neighbor_loader() -> None:
    typing = pytest.importorskip("torch_geometric.typing")
    if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        pytest.skip("PyG's NeighborLoader needs pyg-lib or torch-sparse, which are compiled and not installed here")
    from torch_geometric.loader import NeighborLoader

    data, rows = whole(GRAPH), [GRAPH.tables["paper"].ids.index(one) for one in ROOTS]
    for hops in range(1, HOPS + 1):
        roots = ("paper", torch.tensor(rows))
        (theirs,), ours = (
            list(NeighborLoader(data, [-1] * hops, input_nodes=roots, batch_size=len(rows))),
            drawn(hops=hops),
        )
        assert ours["paper"].batch_size == theirs["paper"].batch_size
        for name in data.node_types:
            assert ours[name].n_id.sort().values.tolist() == theirs[name].n_id.sort().values.tolist()
            if "num_sampled_nodes" in theirs[name]:  # torch-sparse has no counts
                assert ours[name].num_sampled_nodes == list(theirs[name].num_sampled_nodes)
        for edge_type in data.edge_types:
            assert edges_of(ours, edge_type) == edges_of(theirs, edge_type)


def test_columns_without_copies() -> None:
    graph = GRAPH.parted(2)
    options = TypedNeighborOptions(fanouts=(4, 3), edge_columns=("id", "weight", "feature"))
    batch = typed_to_torch(NeighborSampler(typed_router(graph), options).sample(0, 0))
    data = to_pyg(batch)
    assert data.validate()
    for name, nodes in batch.nodes.items():
        for column, value in {
            "x": nodes.x,
            "y": nodes.y,
            "n_id": nodes.node_id,
            "split": nodes.split,
            "hop": nodes.hop,
        }.items():
            assert (column in data[name]) == (value is not None)
            assert value is None or data[name][column] is value
        assert data[name].num_nodes == len(nodes) == sum(data[name].num_sampled_nodes)
    for relation, edges in batch.edges.items():
        own = {"e_id": edges.edge_id, "edge_weight": edges.edge_weight, "edge_attr": edges.edge_feature}
        for column, value in own.items():
            assert (column in data[tuple(relation)]) == (value is not None)
            assert value is None or data[tuple(relation)][column] is value
        assert data[tuple(relation)].edge_index.shape == (2, len(edges))
        assert sum(data[tuple(relation)].num_sampled_edges) == len(edges)
    assert data["paper"].batch_size == batch.num_roots
    assert data["paper"].root_index is batch.root_index
    assert set(data.metadata()[1]) == set(map(tuple, GRAPH.relations))


class Sage(torch.nn.Module):
    """A model with two layers, as in PyG's example for ogbn-mag."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 5)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def dense(graph: TypedMemoryGraph) -> TypedMemoryGraph:
    """The graph without the type that has no edges. All types get features."""
    tables = {name: replace(table, feature_dim=3) for name, table in graph.tables.items() if name != "alone"}
    edges = {relation: table for relation, table in graph.edges.items() if relation.source != "alone"}
    place = {tuple(relation)[1]: relation for relation in edges}["employs"]
    back = type(place)("author", "employed_by", "place")  # gives every type in-edges
    edges[back] = replace(edges[place], src=edges[place].dst, dst=edges[place].src)
    return replace(graph, tables=tables, edges=edges)


def test_a_model_made_by_to_hetero_takes_it() -> None:
    """With full fanout, the outputs for roots equal the outputs on the whole graph."""
    graph = dense(GRAPH)
    everything, batch = whole(graph), drawn(graph, 2)
    model = to_hetero(Sage(), everything.metadata())
    with torch.no_grad():
        expected = model(everything.x_dict, everything.edge_index_dict)["paper"]
        found = model(batch.x_dict, batch.edge_index_dict)["paper"][: batch["paper"].batch_size]
    rows = [graph.tables["paper"].ids.index(one) for one in ROOTS]
    torch.testing.assert_close(found, expected[rows])


def test_trim_to_layer_takes_it() -> None:
    graph = dense(GRAPH)
    batch = drawn(graph, 2, fanout=3)
    nodes, edges = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
    layers = [HeteroConv({one: SAGEConv(3, 3) for one in batch.edge_types}) for _ in range(2)]
    x_dict, all_x, edge_index = batch.x_dict, batch.x_dict, batch.edge_index_dict
    with torch.no_grad():
        for number, layer in enumerate(layers):
            x_dict, edge_index, _ = trim_to_layer(number, nodes, edges, x_dict, edge_index)
            x_dict, all_x = layer(x_dict, edge_index), layer(all_x, batch.edge_index_dict)
    num_roots = batch["paper"].batch_size
    torch.testing.assert_close(x_dict["paper"][:num_roots], all_x["paper"][:num_roots])


def test_attention_over_types_takes_it() -> None:
    batch = drawn(dense(GRAPH), 2, fanout=3)
    found = HGTConv(3, 8, batch.metadata(), heads=2)(batch.x_dict, batch.edge_index_dict)
    assert found["paper"].shape == (batch["paper"].num_nodes, 8)


def test_a_type_without_features() -> None:
    graph = replace(GRAPH, tables={**GRAPH.tables, "author": NodeTable(GRAPH.tables["author"].ids)})
    batch = drawn(graph, 2)
    assert "x" not in batch["author"]
    assert batch["author"].num_nodes == len(batch["author"].n_id) > 0
