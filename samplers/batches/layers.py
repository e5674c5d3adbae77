"""A neighbor-sampled batch as directed layers, like DGL's blocks and PyG's `trim_to_layer`.

The layers are numbered l = 0 … L - 1 for L hops. Layer l carries messages from the nodes within L - l hops of the roots to the nodes within L - 1 - l hops.
Nodes keep their positions in the batch, so a layer's destinations are the first of its sources. The destinations of the last layer are the roots.
"""

from dataclasses import dataclass

import torch

from graphmill.core.errors import ConfigError
from graphmill.samplers.batches.minibatch import TorchBatch


@dataclass(frozen=True)
class Layer:
    """One bipartite step: messages from the first `num_sources` nodes of the batch to the first `num_destinations`."""

    source: torch.Tensor  # int32 [e], positions; a view of the batch's `indices`
    destination: torch.Tensor  # int64 [e], positions, ascending
    num_sources: int
    num_destinations: int


def build_layers(batch: TorchBatch, num_hops: int) -> tuple[Layer, ...]:
    """The layers of a batch that was drawn with `num_hops` fanouts, the layer with most nodes first.

    Raises ConfigError if the batch does not know its nodes' hops, or if its edges are induced instead of sampled.
    """
    if batch.hop is None or batch.graph_ptr is not None or num_hops < 1:
        raise ConfigError("layers: expected a batch of the neighbor sampler and its number of hops")
    # Number of nodes within 0, 1, … hops: hop numbers ascend in a batch.
    within = torch.searchsorted(batch.hop, torch.arange(num_hops + 1, dtype=batch.hop.dtype), right=True).tolist()
    if within[-1] != len(batch.node_id) or int(batch.indptr[within[-2]]) != len(batch.indices):
        raise ConfigError(
            f"layers: expected sampled edges over {num_hops} hops, got induced edges or another number of hops; "
            "sample with edges='sampled'"
        )
    every_destination = torch.repeat_interleave(batch.indptr.diff(), output_size=len(batch.indices))
    layers = []
    for layer in range(num_hops):
        num_destinations, num_sources = within[num_hops - 1 - layer], within[num_hops - layer]
        num_edges = int(batch.indptr[num_destinations])
        layers.append(
            Layer(
                source=batch.indices[:num_edges],
                destination=every_destination[:num_edges],
                num_sources=num_sources,
                num_destinations=num_destinations,
            )
        )
    return tuple(layers)
