"""GRIT: attention over all pairs of nodes that updates both nodes and pairs, with random-walk probabilities as the inductive bias.

    P_ij = [I, M, …, M^(K-1)]_ij,  M = D⁻¹A
    x_i = Emb(node) + W_abs P_ii;      e_ij = Emb(edge)·1[edge i → j] + W_rel P_ij
    layer (post-norm):  x̂, e ← attention(x, e)                       models/grit_attention.py
                        x ← BN(x + scaler(W_O x̂));  x ← BN(x + FFN(x)),  FFN = D → 2D → D with ReLU
                        scaler(h) = h ⊙ θ₁ + log(1 + deg) · h ⊙ θ₂

Source: arXiv:2305.17589 (ICML 2023). The defaults are the paper's; where the published code differs it is an option: the score's clamp
at ±5 (`score_clamp`), the scaler before W_O (`degree_scaler`), walks towards the query instead of from it (`transposed_rrwp`, as in all
published numbers), an edge's features at the query that it enters instead of the one that it leaves (`edge_query`; the same on undirected
graphs), GraphGym's head (`head="graphgym"`, whose hidden layers are scaled to length 1); `as_released` sets the five. Batch normalisation sees real nodes and real pairs, never padding; below two nodes
training uses the running statistics, since there is no variance.

Legend: n nodes, B graphs, N places per graph, E edges, D width, K walk channels.
"""

import torch
from torch import Tensor, nn

from models.batch_norm import RowBatchNorm
from models.dropout import Dropout
from models.encodings.degree import log_degrees
from models.encodings.random_walk import random_walk_probabilities
from models.features import FeatureEncoder
from models.graphs import Graphs
from models.grit_attention import ConditionalAttention, Pairs
from models.heads import ACTIVATIONS, FullWidthMLP, HalvingMLP, UnitReLU, read_out
from models.options.grit import GRITConfig


class GRIT(nn.Module):
    """GRIT over a batch of graphs; see the module's docstring. Time and memory O(Σ N²·D); for `pair_memory` see the config."""

    def __init__(self, config: GRITConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.node_encoder = None if config.node.empty else FeatureEncoder(config.node, width)
        self.edge_encoder = None if config.edge.empty else FeatureEncoder(config.edge, width)
        self.absolute = nn.Linear(config.rrwp_steps, width, bias=False)
        self.relative = nn.Linear(config.rrwp_steps, width, bias=False)
        nn.init.xavier_uniform_(self.absolute.weight)
        nn.init.xavier_uniform_(self.relative.weight)
        layers = [GRITLayer(config) for _ in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        # The last layer's pairs are not read. Their parameters exist for published counts and checkpoints, but take no gradient:
        # data parallelism would wait for it.
        layers[-1].attention.edge_out.requires_grad_(False)
        layers[-1].attention.edge_norm.requires_grad_(False)
        self.head = None if config.task == "link" else _head(config)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """[B, out_dim] for task "graph"; [r, out_dim] (of the roots) for "node"; node states [n, D] for "link".

        `epoch` is not used. Raises ValueError when features do not fit the config.
        """
        padding = graphs.padding
        x_nD, pairs = self.embed(graphs)
        log_degree_n1 = log_degrees(graphs, dtype=x_nD.dtype)
        for i, layer in enumerate(self.layers):
            x_nD, pairs = layer(x_nD, pairs, padding, log_degree_n1, update_edges=i + 1 < len(self.layers))
        return read_out(x_nD, graphs, self.head, self.config.task, self.config.pool)

    def embed(self, graphs: Graphs) -> tuple[Tensor, Pairs]:
        """The stem: node states [n, D] and pair states [B, N, N, D]."""
        config, weight = self.config, self.absolute.weight
        walks_BNNK = random_walk_probabilities(graphs, config.rrwp_steps, dtype=weight.dtype)
        x_nD = self.absolute(graphs.padding.unpad(walks_BNNK.diagonal(dim1=1, dim2=2).transpose(1, 2)))
        if self.node_encoder is not None:
            x_nD = x_nD + self.node_encoder(graphs.x)
        if config.transposed_rrwp:
            walks_BNNK = walks_BNNK.transpose(1, 2)
        y_BNND = self.relative(walks_BNNK).to(weight.dtype)
        if self.edge_encoder is not None:
            attributes = graphs.edge_attr
            if attributes is None and config.edge.categories == (1,):
                attributes = graphs.edge_index.new_zeros(graphs.edge_index.shape[1], 1)
            edge_ED = self.edge_encoder(attributes).to(weight.dtype)
            place_E = graphs.padding.pair_index(config.edge_query)
            y_BNND = y_BNND.flatten(0, 2).index_add(0, place_E, edge_ED).view_as(y_BNND)
        return x_nD, Pairs(y_BNND)


class GRITLayer(nn.Module):
    """One post-norm layer: attention with its edge update, degree scaler and feed-forward network."""

    def __init__(self, config: GRITConfig) -> None:
        super().__init__()
        width = config.width
        self.scaler_place = config.degree_scaler
        self.attention = ConditionalAttention(config)
        self.out = nn.Linear(width, width)
        self.scaler_1D2: nn.Parameter | None = None
        if config.degree_scaler != "none":
            self.scaler_1D2 = nn.Parameter(nn.init.xavier_normal_(torch.empty(1, width, 2)))
        self.ffn = nn.Sequential(
            nn.Linear(width, 2 * width),
            ACTIVATIONS[config.activation](),
            Dropout(config.dropout),
            nn.Linear(2 * width, width),
        )
        self.norm_1, self.norm_2 = (RowBatchNorm(width, momentum=config.momentum) for _ in range(2))
        self.dropout = Dropout(config.dropout)

    def forward(self, x_nD: Tensor, pairs: Pairs, padding, log_degree_n1: Tensor, *, update_edges: bool = True):
        """(x [n, D], pairs): the next states; pairs None without `update_edges`."""
        h_nD, pairs = self.attention(x_nD, pairs, padding, update_edges=update_edges)
        h_nD = self.dropout(h_nD)
        if self.scaler_place == "before":
            h_nD = self.scale(h_nD, log_degree_n1)
        h_nD = self.out(h_nD)
        if self.scaler_place == "after":
            h_nD = self.scale(h_nD, log_degree_n1)
        x_nD = self.norm_1(x_nD + h_nD)
        return self.norm_2(x_nD + self.ffn(x_nD)), pairs

    def scale(self, h_nD: Tensor, log_degree_n1: Tensor) -> Tensor:
        """h ⊙ θ₁ + log(1 + deg) · h ⊙ θ₂."""
        assert self.scaler_1D2 is not None
        return h_nD * (self.scaler_1D2[..., 0] + log_degree_n1 * self.scaler_1D2[..., 1])


def _head(config: GRITConfig) -> nn.Module:
    sizes, activation = (config.width, config.out_dim, config.head_layers), ACTIVATIONS[config.activation]
    if config.head == "halving":
        return HalvingMLP(*sizes, activation)
    return FullWidthMLP(*sizes, UnitReLU if config.head == "graphgym" else activation)
