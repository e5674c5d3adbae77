"""Defines formulas for a training step over workers: bytes that a worker sends, and memory of a worker.

The formulas are GECO's. GCN, GraphSAGE and GAT count as a GECO with only local layers. Layers of a typed graph count as GraphSAGE's; all features
count with the width of the widest type. N nodes, E edges, W workers, D width, K order, L layers, h hops; n = N / W rows and D / W channels of a worker.
"""

from functools import cache

import torch

from graphmill.models.geco.network import GECO
from graphmill.models.geco.options import GECOConfig
from graphmill.models.message_passing.options import MessagePassingConfig, SAGEConfig
from graphmill.models.parallel.gated_sequences import CHUNK_BYTES, channel_bytes
from graphmill.models.parallel.shards import Shards
from graphmill.models.relational.options import RelationalConfig

ParallelConfig = GECOConfig | MessagePassingConfig | RelationalConfig
"""Configs of the models that can train while the graph is spread over workers."""


def as_geco(config: ParallelConfig) -> GECOConfig:
    """Returns the config of a GECO with the same layers."""
    if isinstance(config, GECOConfig):
        return config
    if isinstance(config, RelationalConfig):
        widest, out_dim = max(1, *config.node_dims.values()), getattr(config, "out_dim", config.width)
        config = SAGEConfig(in_dim=widest, out_dim=out_dim, width=config.width, num_layers=max(1, config.num_layers))
    return GECOConfig(
        in_dim=config.in_dim,
        out_dim=config.out_dim,
        edge_dim=config.edge_dim,
        width=config.width,
        num_layers=config.num_layers,
        local=config.local,
    )


def sent_bytes(
    config: ParallelConfig,
    rows: Shards,
    rank: int,
    halo_sent: int,
    halo_received: int,
    *,
    symmetric: bool = False,
    element_size: int = 4,
) -> dict[str, int]:
    """Returns the bytes that a worker sends to its peers in one forward and backward pass, by kind. The sum of gradients is one of the kinds.

    sequences: L · 2 · [(K + 1) n (D - D/W) + (N - n) D/W], about L · 2 (K + 2) N D (W - 1) / W², for L global layers.
    halo: for each halo row the channels that all layers propagate (the paper's layers: L · h · D), forward and backward. On a symmetric graph
    both passes send the same rows, except with GAT. sums: the moments of batch norms. With `recompute` the forward exchanges happen twice.
    """
    config = as_geco(config)
    channels = Shards.even(config.width, rows.num_workers).sizes[rank]
    num_global = config.local.num_global(config.num_layers)
    num_rows = rows.sizes[rank]
    others = (rows.total - num_rows) * channels  # numbers to receive: the peers' rows, in this worker's channels
    own = num_rows * (config.width - channels)  # numbers to send: this worker's rows, in the peers' channels
    gates = config.order + 1
    forwards = 2 if config.recompute else 1
    ring = 2 * (rows.num_workers - 1) * num_parameters(config) * element_size // rows.num_workers
    summed, attended = _halo_channels(config)
    back = summed * (halo_sent if symmetric else halo_received) + attended * halo_received
    return {
        "sequences": element_size * num_global * (forwards * (gates * own + others) + gates * others + own),
        "halo": element_size * ((summed + attended) * forwards * halo_sent + back),
        "gradients": ring,
        "sums": _norm_bytes(config, rows, rank, element_size),
    }


def _norm_bytes(config: GECOConfig, rows: Shards, rank: int, element_size: int) -> int:
    """Returns the bytes for batch norm's mean and variance over all rows. The forward pass sends the sums of this worker's blocks of rows. The backward pass
    sums the gradient of each moment by a ring all-reduce. The paper's layer has two norms, a local layer has one norm.
    """
    if config.local.norm != "batch":
        return 0
    num_norms = config.num_layers * (2 if config.local.is_paper else 1)
    others, width = rows.num_workers - 1, config.width * element_size
    forward = len(rows.blocks(rank)) * others * width
    return 2 * num_norms * ((2 if config.recompute else 1) * forward + 2 * others * width // rows.num_workers)


def _halo_channels(config: GECOConfig) -> tuple[int, int]:
    """Returns the channels of a row that one forward pass sends: (for sums ÂX, for attention over edges)."""
    local, width = config.local, config.width
    lcb = config.hops * width
    layer = {"lcb": lcb, "appnp": local.steps * width}.get(local.block, width)
    if local.is_paper and local.block != "gat":
        return config.num_layers * layer, 0
    top = local.top_layers * lcb if local.join == "top" else 0
    if local.block == "gat":  # a GAT layer sends the rows, and one logit term per head
        return top, config.num_layers * (layer + local.num_heads)
    first = config.hops * (config.in_dim + config.encoding_dim) if local.block == "lcb" else layer
    return first + (config.num_layers - 1) * layer + top, 0


def training_bytes(config: ParallelConfig, num_nodes: int, num_edges: int, num_workers: int) -> int:
    """Estimates the peak memory of one worker's shard during training in float32, in addition to the process itself."""
    config = as_geco(config)
    k, h = config.order, config.hops
    # Each layer keeps for the backward pass, per node: [X, ÂX, …], gates and V, five D-wide inputs of norms, FFN and activation, and
    # three masks of dropout.
    kept = (h + 1) + (k + 1) + 5 + (3 if config.dropout else 0)
    if (
        not config.local.is_paper or config.local.block != "lcb"
    ):  # also keeps the convolution's result, its residual, norm and dropout
        kept += 4
    # The peak of the backward pass adds the gates' gradient (in the order π, before and after the exchange) and a chunk's transforms.
    passing = 3 * (k + 1) + 3
    count = config.num_layers + (config.local.top_layers if config.local.join == "top" else 0)
    if _is_local(config):
        # A local layer keeps the inputs of the layer, of its norm and of its ReLU, and dropout's mask. GAT also keeps W h and the sums before and after the
        # division.
        kept, passing = 4 + (3 if config.local.block == "gat" else 0), 4
    layers = count + kept if config.recompute else count * kept
    at_once = 1 if config.recompute else config.num_layers
    attention = 2 * _attention_bytes(config, num_nodes, num_edges, num_workers) * at_once  # two copies at the peak
    # Six copies of the parameters: weights, gradients, two moments, best weights, the buffer of the exchange.
    return attention + _shard_bytes(config, num_nodes, num_edges, num_workers, config.width * (layers + passing), 6)


def _is_local(config: GECOConfig) -> bool:
    """Whether the model has no global layer."""
    return config.local.num_global(config.num_layers) == 0


def _attention_bytes(config: GECOConfig, num_nodes: int, num_edges: int, num_workers: int) -> int:
    """Returns the bytes of a GAT layer: each head's logit, LeakyReLU and weight for every edge, and, with several workers, the halo's rows."""
    if config.local.block != "gat":
        return 0
    halo = 4 * config.width * num_nodes * (num_workers > 1)
    return 4 * 3 * config.local.num_heads * -(-num_edges // num_workers) + halo


def inference_bytes(config: ParallelConfig, num_nodes: int, num_edges: int, num_workers: int) -> int:
    """Estimates the peak memory of one worker's shard during a forward pass without gradients. Such a pass keeps no tensors of finished layers."""
    config = as_geco(config)
    # At the peak a layer holds, per node: [X, ÂX, …]; gates and V as rows, in send and receive buffers, and as sequences; the layer's input and output; the
    # layers' sum.
    passing = (config.hops + 1) + (3 + (num_workers > 1)) * (config.order + 1) + 6
    if _is_local(config):  # input and output of the layer, the convolution's result, its residual; for GAT also W h
        passing = 6
    attention = _attention_bytes(config, num_nodes, num_edges, num_workers)
    return attention + _shard_bytes(config, num_nodes, num_edges, num_workers, config.width * passing, 2)


def _shard_bytes(
    config: GECOConfig, num_nodes: int, num_edges: int, num_workers: int, row_numbers: int, copies: int
) -> int:
    """Returns the memory of a shard. `row_numbers`: float32 numbers per row, in addition to the row's input; `copies`: number of copies of the parameters."""
    d, k = config.width, config.order
    rows = -(-num_nodes // num_workers)
    numbers = row_numbers + 4 * (config.in_dim + config.encoding_dim)
    # Every worker holds for all N nodes: the order and its inverse during the sort, ids, the filters' features and their gradient, and
    # the halo's rows, because the halo may be the whole graph.
    replicated = 96 + 8 * config.filter.inner_width + 4 * d * (num_workers > 1)
    parameters = copies * 4 * num_parameters(config)
    if _is_local(config):
        replicated = 24 + 4 * d * (num_workers > 1)  # the halo's plan and rows
    else:
        parameters += max(min(CHUNK_BYTES, 2 * rows * (k + 1) * d), channel_bytes(k + 1, num_nodes))
    return 4 * rows * numbers + 12 * -(-num_edges // num_workers) + replicated * num_nodes + parameters


@cache
def num_parameters(config: GECOConfig) -> int:
    """Returns the number of parameters of `GECO(config)`. The model is built on the meta device, which needs no memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in GECO(config).parameters())
