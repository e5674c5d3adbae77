"""Implements Primphormer (ICML 2025): linear-time attention in its primal form, alone or with message passing in the GPS hybrid.

    X, E = encoders of features and positions
    X_M = BN(Drop(MPNN(X, E)) + X),  X_P = BN(Drop(Prim(X)) + X),  X' = MLP(X_M + X_P)     L times; models/gps/layer.py
    Y = head(pool(X))
    training objective = task loss + η Σ_l J_l²       J_l the KSVD loss of layer l; models/primphormer/attention.py

With `config.local` a trained local block L (models/operators/local_blocks.py) replaces the message passing. Join "gate" replaces the layer by
X' = L(X) + g ⊙ Drop(Prim(L(X))). Join "top" applies only L, `num_layers` times, between the encoders and `local.top_layers` layers.

`model(graphs)` returns predictions; `model.forward_with_penalty(graphs)` also returns η Σ_l J_l², to be added to the loss.

With `config.attention` another global block replaces Prim, as in the paper's table 4. Only primal attention of sequences then has a penalty.

The paper specifies neither encoders nor heads, and has no public code; recipes/primphormer lists the published parameter counts that are met.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from graphmill.models.gps.ends import Readout, Stem
from graphmill.models.gps.graph_node import GraphNode
from graphmill.models.gps.layer import GPSLayer, hybrid_states
from graphmill.models.operators.local_blocks import LocalLayers
from graphmill.models.operators.sparse_attention import ExpanderPairs, Pairs, SparseAttention, block_pairs
from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primphormer.attention import PrimalAttention, VirtualNode
from graphmill.models.primphormer.options import PrimphormerConfig
from graphmill.models.primphormer.sequence import SequenceAttention
from graphmill.models.tokengt.network import Attention
from graphmill.models.tokengt.options import TokenGTConfig


class PairAttention(nn.Module):
    """Replaces primal attention by softmax attention over a graph's nodes, or by FAVOR+."""

    def __init__(self, config: PrimphormerConfig, layer: int) -> None:
        super().__init__()
        kind: Literal["softmax", "performer"] = "performer" if config.attention == "performer" else "softmax"
        options = TokenGTConfig(
            width=config.width, num_heads=config.num_heads, attention=kind, attention_dropout=config.primal.dropout
        )
        self.attention = Attention(options, layer)

    def forward(self, x_nD: Tensor, graphs: Graphs) -> Tensor:
        """[n, D] → [n, D]. Softmax costs O(n²) for each graph, FAVOR+ O(n)."""
        padding = graphs.padding
        mask_BN = None if padding.mask_BN.numel() == graphs.num_nodes else padding.mask_BN
        return padding.unpad(self.attention(padding.pad(x_nD), mask_BN))


class NoAttention(nn.Module):
    """Replaces primal attention by nothing, so that only message passing remains."""

    def forward(self, x_nD: Tensor, graphs: Graphs) -> None:
        return None


def _attention(config: PrimphormerConfig, layer: int) -> nn.Module:
    if config.attention == "primal":
        return PrimalAttention(config.width, config.num_heads, config.primal, first=layer == 0)
    if config.attention == "primal_sequence":
        return SequenceAttention(config.width, config.num_heads, config.primal)
    if config.attention in ("exphormer", "bigbird"):
        return SparseAttention(config.width, config.num_heads, reads_states=config.attention == "exphormer")
    return NoAttention() if config.attention == "none" else PairAttention(config, layer)


class Primphormer(nn.Module):
    """Applies Primphormer to packed graphs; see the module's docstring."""

    def __init__(self, config: PrimphormerConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        count = config.local.num_global(config.num_layers)
        self.attentions = nn.ModuleList(_attention(config, index) for index in range(count))
        self.expander = ExpanderPairs(config.sparse, config.width) if config.attention == "exphormer" else None
        self.virtual = GraphNode(config.width, config.num_layers) if config.virtual_node else None
        self.local = LocalLayers(
            config.local, config.width, config.num_layers, edge_dim=0 if self.stem.edge is None else config.width
        )
        self.layers = nn.ModuleList(
            GPSLayer(
                config.width,
                config.layer,
                config.position.gates,
                update_edges=index + 1 < count,
                has_global=config.attention != "none",
            )
            for index in range(0 if self.local.gates else count)
        )
        self.dropout = Dropout(config.layer.dropout)
        self.readout = Readout(config)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """Returns [B, out_dim] (graph), [r, out_dim] (node; without roots all n nodes) or states [n, width] (link)."""
        return self.forward_with_penalty(graphs, epoch=epoch)[0]

    def forward_with_penalty(self, graphs: Graphs, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Returns the predictions and η Σ_l J_l², a scalar of at least 0."""
        virtual: VirtualNode | None = None
        losses: list[Tensor] = []
        pairs: Pairs | None = None
        virtual_VD: Tensor | None = None

        def mix(index: int, x_nD: Tensor, e_ED: Tensor | None) -> Tensor | None:
            nonlocal virtual, pairs, virtual_VD
            attention = self.attentions[index]
            if isinstance(attention, SparseAttention):
                if pairs is None:
                    pairs = (
                        block_pairs(graphs, self.config.sparse)
                        if self.expander is None
                        else self.expander(graphs, e_ED)
                    )
                mixed_nD, virtual_VD = attention(x_nD, pairs, virtual_VD)
                return mixed_nD
            if isinstance(attention, SequenceAttention):
                mixed_nD, loss = attention(x_nD, graphs)
            elif isinstance(attention, PrimalAttention):
                mixed_nD, loss, virtual = attention(x_nD, graphs, virtual)
            else:
                return attention(x_nD, graphs)
            losses.append(loss)
            return mixed_nD

        x_nD = hybrid_states(self, graphs, mix)
        penalty = sum((loss.square() for loss in losses), torch.zeros((), device=x_nD.device))
        return self.readout(x_nD, graphs), self.config.eta * penalty
