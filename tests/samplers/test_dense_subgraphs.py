"""Padded subgraphs and per-subgraph edges against loops over the packed batch."""

from dataclasses import replace

import pytest
import torch

from samplers.dense_subgraphs import dense_subgraphs, subgraph_edges
from samplers.minibatch import to_torch
from samplers.node2subgraph import Node2SubgraphSampler
from samplers.options import Node2SubgraphOptions, PprOptions, RandomPartitionOptions
from samplers.ppr import PprSampler
from samplers.random_partition import RandomPartitionSampler
from storage.errors import ConfigError
from tests.memory_graph import memory_router, random_graph


@pytest.mark.parametrize("places", [None, 12])
def test_padded_equals_packed(places):
    router = memory_router(random_graph(80, 400))
    for sampler in (
        Node2SubgraphSampler(router, Node2SubgraphOptions(max_nodes=9, batch_size=20)),
        PprSampler(router, PprOptions(top_k=8, batch_size=20)),
    ):
        packed = sampler.sample(0, 1)
        batch = to_torch(packed)
        dense = dense_subgraphs(batch, places)
        edge_ptr, edge_index = subgraph_edges(batch)
        width = places or int(packed.graph_ptr[1:].max() and max(packed.graph_ptr[1:] - packed.graph_ptr[:-1]))
        assert dense.mask_BN.shape == (packed.num_roots, width)
        for b, (low, high) in enumerate(
            zip(packed.graph_ptr[:-1].tolist(), packed.graph_ptr[1:].tolist(), strict=True)
        ):
            size = high - low
            assert dense.mask_BN[b].tolist() == [True] * size + [False] * (width - size)
            assert dense.node_id_BN[b].tolist() == packed.node_id[low:high].tolist() + [-1] * (width - size)
            assert dense.x_BNF[b, :size].tolist() == packed.feature[low:high].tolist()
            assert not dense.x_BNF[b, size:].any()
            edges = [
                (int(packed.indices[e]) - low, i - low)
                for i in range(low, high)
                for e in range(packed.indptr[i], packed.indptr[i + 1])
            ]
            expected = torch.zeros(width, width, dtype=torch.bool)
            for source, end in edges:
                expected[end, source] = True
            assert torch.equal(dense.adjacency_BNN[b], expected)
            assert edge_index[:, edge_ptr[b] : edge_ptr[b + 1]].T.tolist() == [list(edge) for edge in edges]
            assert dense.y_B[b] == packed.label[low]
        assert not dense.root_B.any()
        assert (dense.hop_BN is None) == (packed.hop is None)


def test_refuses_what_is_not_subgraphs_or_does_not_fit():
    router = memory_router(random_graph(40, 200))
    whole = to_torch(RandomPartitionSampler(router, RandomPartitionOptions(num_chunks=1)).sample(0, 0))
    for convert in (dense_subgraphs, subgraph_edges):
        with pytest.raises(ConfigError, match="subgraphs"):
            convert(whole)
    batch = to_torch(Node2SubgraphSampler(router, Node2SubgraphOptions(max_nodes=9)).sample(0, 0))
    with pytest.raises(ConfigError, match="at least 9"):
        dense_subgraphs(batch, 8)
    with pytest.raises(ConfigError, match="one root each"):
        dense_subgraphs(replace(batch, root_index=batch.root_index[1:]))
