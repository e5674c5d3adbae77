"""Implements GRIT: attention over all pairs of nodes that updates both nodes and pairs, with random-walk probabilities as the inductive bias.

    P_ij = [I, M, …, M^(K-1)]_ij,  M = D⁻¹A
    x_i = Emb(node) + W_abs P_ii;      e_ij = Emb(edge)·1[edge i → j] + W_rel P_ij
    layer (post-norm):  x̂, e ← attention(x, e)                       models/grit/attention.py
                        x ← BN(x + scaler(W_O x̂));  x ← BN(x + FFN(x)),  FFN = D → 2D → D with ReLU
                        scaler(h) = h ⊙ θ₁ + log(1 + deg) · h ⊙ θ₂

Source: arXiv:2305.17589 (ICML 2023). The defaults are the paper's. The published code differs in five options: the score's clamp
at ±5 (`score_clamp`), the scaler before W_O (`degree_scaler`), walks that end at the query instead of walks that start there
(`transposed_rrwp`, used for all published results), an edge's features, which go to the pair with the edge's target as query instead of the pair with its
source as query (`edge_query`; no difference on undirected graphs), and GraphGym's head (`head="graphgym"`: hidden layers are scaled to length 1).
`graphmill.models.grit.published.as_released` sets the five. The paper's ablations are options too: `degree_scaler`, `encoding`, `attention`, `sparse`,
`update_pairs`. Batch normalisation covers real nodes and real pairs, never padding. With fewer than two nodes there is no variance, so training uses the
running statistics.

Legend: n nodes, B graphs, N places per graph, E edges, D width, K walk channels.
"""

import torch
from torch import Tensor, nn

from graphmill.models.encodings.degree import log_degrees
from graphmill.models.encodings.random_walk import random_walk_probabilities
from graphmill.models.ends.features import FeatureEncoder
from graphmill.models.ends.heads import ACTIVATIONS, FullWidthMLP, HalvingMLP, UnitReLU, read_out
from graphmill.models.grit.attention import BiasAttention, ConditionalAttention, Pairs
from graphmill.models.grit.options import GRITConfig
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs, Padding

_DEGREES = 64  # degrees with their own embedding; larger degrees share the last one


class GRIT(nn.Module):
    """Applies GRIT to a batch of graphs; see the module's docstring. Time and memory are O(Σ N²·D); for `pair_memory` see the config."""

    def __init__(self, config: GRITConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.node_encoder = None if config.node.empty else FeatureEncoder(config.node, width)
        self.edge_encoder = None if config.edge.empty else FeatureEncoder(config.edge, width)
        paths = config.encoding == "shortest_path"
        self.absolute = None if paths else nn.Linear(config.rrwp_steps, width, bias=False)
        self.relative = nn.Linear(config.rrwp_steps, width, bias=False) if config.encoding == "rrwp" else None
        for linear in (self.absolute, self.relative):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
        # Rows for the distances 0 to K - 1; the last row is for pairs that are further apart.
        self.distance = nn.Embedding(config.rrwp_steps + 1, width) if paths else None
        self.degree = nn.Embedding(_DEGREES, width) if config.degree_scaler == "encoding" else None
        layers = [GRITLayer(config) for _ in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        # Nothing reads the last layer's pairs. Their parameters exist to match published parameter counts and checkpoints. The parameters
        # take no gradient, because data parallelism would wait for the gradient.
        for layer in layers[-1:] if config.update_pairs else layers:
            if isinstance(layer.attention, ConditionalAttention):
                layer.attention.edge_out.requires_grad_(False)
                layer.attention.edge_norm.requires_grad_(False)
        self.head = None if config.task == "link" else _head(config)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """Returns [B, out_dim] for task "graph", [r, out_dim] (of the roots) for "node", node states [n, D] for "link".

        `epoch` is not used. Raises ValueError if features do not fit the config.
        """
        padding = graphs.padding
        x_nD, pairs = self.embed(graphs)
        log_degree_n1 = log_degrees(graphs, dtype=x_nD.dtype)
        allowed_BNN = self._neighbors(graphs) if self.config.sparse else None
        for i, layer in enumerate(self.layers):
            update = self.config.update_pairs and i + 1 < len(self.layers)
            x_nD, fresh = layer(x_nD, pairs, padding, log_degree_n1, update_edges=update, allowed_BNN=allowed_BNN)
            pairs = fresh if update else pairs
        return read_out(x_nD, graphs, self.head, self.config.task, self.config.pool)

    def embed(self, graphs: Graphs) -> tuple[Tensor, Pairs]:
        """Computes the stem: node states [n, D] and pair states [B, N, N, D]."""
        config, padding = self.config, graphs.padding
        dtype = next(self.layers.parameters()).dtype
        walks_BNNK = random_walk_probabilities(graphs, config.rrwp_steps, dtype=dtype)
        if self.absolute is None:
            x_nD = walks_BNNK.new_zeros(graphs.num_nodes, config.width)
        else:
            x_nD = self.absolute(padding.unpad(walks_BNNK.diagonal(dim1=1, dim2=2).transpose(1, 2)))
        if self.node_encoder is not None:
            x_nD = x_nD + self.node_encoder(graphs.x)
        if self.degree is not None:
            x_nD = x_nD + self.degree(graphs.by_source.size_S.clamp_max(_DEGREES - 1))
        if config.transposed_rrwp:
            walks_BNNK = walks_BNNK.transpose(1, 2)
        if self.relative is not None:
            y_BNND = self.relative(walks_BNNK).to(dtype)
        elif self.distance is not None:
            # The shortest walk with a probability above 0 is a shortest path.
            has_walk_BNNK = walks_BNNK > 0
            length_BNN = has_walk_BNNK.int().argmax(dim=3).where(has_walk_BNNK.any(dim=3), config.rrwp_steps)
            y_BNND = self.distance(length_BNN).to(dtype) * padding.pair_mask_BNN.unsqueeze(3)
        else:
            y_BNND = walks_BNNK.new_zeros(*walks_BNNK.shape[:3], config.width)
        if self.edge_encoder is not None:
            attributes = graphs.edge_attr
            if attributes is None and config.edge.categories == (1,):
                attributes = graphs.edge_index.new_zeros(graphs.edge_index.shape[1], 1)
            edge_ED = self.edge_encoder(attributes).to(dtype)
            place_E = graphs.padding.pair_index(config.edge_query)
            y_BNND = y_BNND.flatten(0, 2).index_add(0, place_E, edge_ED).view_as(y_BNND)
        return x_nD, Pairs(y_BNND)

    def _neighbors(self, graphs: Graphs) -> Tensor:
        """bool [B, N, N]: the pairs of sparse attention."""
        padding, query = graphs.padding, self.config.edge_query
        adjacency_BNN = padding.adjacency().bool()
        own_NN = torch.eye(padding.num_places, dtype=torch.bool, device=adjacency_BNN.device)
        seen_BNN = adjacency_BNN if query == "source" else adjacency_BNN.transpose(1, 2)
        return (seen_BNN | own_NN) & padding.pair_mask_BNN


class GRITLayer(nn.Module):
    """Is one post-norm layer: attention with its edge update, degree scaler and feed-forward network."""

    def __init__(self, config: GRITConfig) -> None:
        super().__init__()
        width = config.width
        self.scaler_place = config.degree_scaler
        kind = ConditionalAttention if config.attention == "conditional" else BiasAttention
        self.attention = kind(config)
        self.out = nn.Linear(width, width)
        self.scaler_1D2: nn.Parameter | None = None
        if config.degree_scaler in ("after", "before"):
            self.scaler_1D2 = nn.Parameter(nn.init.xavier_normal_(torch.empty(1, width, 2)))
        self.ffn = nn.Sequential(
            nn.Linear(width, 2 * width),
            ACTIVATIONS[config.activation](),
            Dropout(config.dropout),
            nn.Linear(2 * width, width),
        )
        self.norm_1, self.norm_2 = (RowBatchNorm(width, momentum=config.momentum) for _ in range(2))
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x_nD: Tensor,
        pairs: Pairs,
        padding: Padding,
        log_degree_n1: Tensor,
        *,
        update_edges: bool = True,
        allowed_BNN: Tensor | None = None,
    ) -> tuple[Tensor, Pairs | None]:
        """Returns the next states (x [n, D], pairs). For conditional attention without `update_edges` the pairs are None."""
        h_nD, fresh = self.attention(x_nD, pairs, padding, update_edges=update_edges, allowed_BNN=allowed_BNN)
        h_nD = self.dropout(h_nD)
        if self.scaler_place == "before":
            h_nD = self.scale(h_nD, log_degree_n1)
        h_nD = self.out(h_nD)
        if self.scaler_place == "after":
            h_nD = self.scale(h_nD, log_degree_n1)
        x_nD = self.norm_1(x_nD + h_nD)
        return self.norm_2(x_nD + self.ffn(x_nD)), fresh

    def scale(self, h_nD: Tensor, log_degree_n1: Tensor) -> Tensor:
        """h ⊙ θ₁ + log(1 + deg) · h ⊙ θ₂."""
        assert self.scaler_1D2 is not None
        return h_nD * (self.scaler_1D2[..., 0] + log_degree_n1 * self.scaler_1D2[..., 1])


def _head(config: GRITConfig) -> nn.Module:
    sizes, activation = (config.width, config.out_dim, config.head_layers), ACTIVATIONS[config.activation]
    if config.head == "halving":
        return HalvingMLP(*sizes, activation)
    return FullWidthMLP(*sizes, UnitReLU if config.head == "graphgym" else activation)
