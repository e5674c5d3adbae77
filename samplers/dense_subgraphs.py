"""Packed subgraphs as padded tensors with masks, for models over dense pairs. Runs on the batch's device, with no loop over graphs.

Legend: B subgraphs, N places in each (places beyond a subgraph's nodes are padding), F features.
"""

from dataclasses import dataclass

import torch

from samplers.minibatch import TorchBatch
from storage.errors import ConfigError


@dataclass(frozen=True)
class DenseSubgraphs:
    """Subgraph b's nodes in its places 0, 1, …: the root in place 0 where its sampler puts it first."""

    mask_BN: torch.Tensor  # bool: the place holds a node
    node_id_BN: torch.Tensor  # int64, permanent ids; -1: padding
    adjacency_BNN: torch.Tensor  # bool, [b, i, j]: an edge j → i; parallel edges count once
    root_B: torch.Tensor  # int64, place of the root
    x_BNF: torch.Tensor | None  # 0: padding
    y_B: torch.Tensor | None  # the root's label
    hop_BN: torch.Tensor | None  # -1: padding
    score_BN: torch.Tensor | None  # 0: padding


def dense_subgraphs(batch: TorchBatch, max_nodes: int | None = None) -> DenseSubgraphs:
    """The batch's subgraphs with `max_nodes` places each; None: as many as the largest has (which waits for the device).

    Raises ConfigError where the batch is not one of subgraphs with one root each, or one has more than `max_nodes` nodes.
    """
    graph_ptr = batch.graph_ptr
    if graph_ptr is None or len(batch.root_index) != len(graph_ptr) - 1:
        raise ConfigError(
            "expected a batch of subgraphs with one root each, got another; sample with Node2Subgraph or PPR"
        )
    size_B = graph_ptr.diff()
    largest = int(size_B.max())
    places = largest if max_nodes is None else max_nodes
    if largest > places:
        raise ConfigError(f"max_nodes: expected at least {largest}, the largest subgraph's size, got {places}")
    num_graphs, num_nodes, device = len(size_B), len(batch.node_id), graph_ptr.device
    graph = torch.repeat_interleave(torch.arange(num_graphs, device=device), size_B, output_size=num_nodes)
    place = torch.arange(num_nodes, device=device) - graph_ptr[graph]
    slot = graph * places + place

    def padded(values: torch.Tensor | None, fill: int) -> torch.Tensor | None:
        if values is None:
            return None
        flat = values.new_full((num_graphs * places, *values.shape[1:]), fill)
        return flat.index_copy_(0, slot, values).unflatten(0, (num_graphs, places))

    num_edges = len(batch.indices)
    end = torch.repeat_interleave(torch.arange(num_nodes, device=device), batch.indptr.diff(), output_size=num_edges)
    adjacency = torch.zeros(num_graphs * places * places, dtype=torch.bool, device=device)
    adjacency[slot[end] * places + place[batch.indices.long()]] = True
    mask, node_id = padded(torch.ones_like(batch.node_id, dtype=torch.bool), 0), padded(batch.node_id, -1)
    assert mask is not None
    assert node_id is not None
    return DenseSubgraphs(
        mask_BN=mask,
        node_id_BN=node_id,
        adjacency_BNN=adjacency.view(num_graphs, places, places),
        root_B=batch.root_index - graph_ptr[:-1],
        x_BNF=padded(batch.x, 0),
        y_B=None if batch.y is None else batch.y[batch.root_index],
        hop_BN=padded(batch.hop, -1),
        score_BN=padded(batch.score, 0),
    )


def subgraph_edges(batch: TorchBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """(edge_ptr int64 [B + 1], edge_index int64 [2, e]): per subgraph its edges, source over destination, as places in the subgraph."""
    graph_ptr = batch.graph_ptr
    if graph_ptr is None:
        raise ConfigError("expected a batch of subgraphs, got another; sample with Node2Subgraph or PPR")
    num_nodes, num_edges, device = len(batch.node_id), len(batch.indices), graph_ptr.device
    first = torch.repeat_interleave(graph_ptr[:-1], graph_ptr.diff(), output_size=num_nodes)
    end = torch.repeat_interleave(torch.arange(num_nodes, device=device), batch.indptr.diff(), output_size=num_edges)
    return batch.indptr[graph_ptr], torch.stack([batch.indices.long(), end]) - first[end]
