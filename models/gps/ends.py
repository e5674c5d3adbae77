"""The modules before and after the layers of a GPS-like model: node, edge and position encoders, and the head.

A position encoding fills P of a node's D channels, and the embedded features fill the other D − P (GraphGPS).

    laplacian         Σ_k MLP([v_ik, λ_k]) over the k smallest modes (GraphGPS's LapPE; a graph with n < k nodes has only n modes)
    laplacian_linear  a Linear of the eigenvectors (for a large graph: only its eigenvectors are stored, no eigenvalues)
    stable_laplacian  a Linear of the eigenvectors to D, which only GatedGCN's distance gate reads (GraphGPS's ESLapPE)
    stable_expressive a function of the eigenspaces, independent of the solver's basis (models/ends/stable_expressive.py)
    random_walk       BatchNorm and Linear of the return probabilities (RWSE)

The first two encodings get random signs in training. On a graph with a repeated eigenvalue their values may differ, in the last digits or
more, between paddings or devices, because the solver chooses the basis (models/encodings/laplacian.py).

Shapes: n nodes of B graphs, E edges, D width, P channels of the encoding, k modes or steps.
"""

import torch
from torch import Tensor, nn

from graphmill.models.encodings.laplacian import flip_signs, laplacian_eigenvectors
from graphmill.models.encodings.random_walk import random_walk_diagonal
from graphmill.models.ends.features import FeatureEncoder, NodeInput
from graphmill.models.ends.heads import FullWidthMLP, HalvingMLP, UnitReLU, read_out
from graphmill.models.ends.stable_expressive import StableExpressive
from graphmill.models.gps.options import HybridConfig, PositionOptions
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.graphs import Graphs


class PositionEncoder(nn.Module):
    """Computes the position encoding of every node, [n, P] ([n, D] for the gate)."""

    def __init__(self, options: PositionOptions, width: int) -> None:
        super().__init__()
        self.options = options
        out = width if options.gates else options.dim
        columns = options.num_steps * (1 + options.reverse)
        self.norm = RowBatchNorm(columns) if options.kind == "random_walk" else None
        self.linear: nn.Module
        if options.kind == "laplacian":
            self.linear = nn.Sequential(nn.Linear(2, 2 * out), nn.ReLU(), nn.Linear(2 * out, out), nn.ReLU())
        elif options.kind == "stable_expressive":
            self.linear = StableExpressive(options.num_steps, out)
        else:
            self.linear = nn.Linear(columns, out)

    def forward(self, graphs: Graphs) -> Tensor:
        dtype = next(self.linear.parameters()).dtype
        options = self.options
        if options.kind == "laplacian":
            vectors_nk, values_Bk = self._eigenvectors(graphs, dtype)
            if self.training:
                vectors_nk = flip_signs(vectors_nk, graphs)
            return self._deep_set(vectors_nk, values_Bk, graphs)
        if options.kind == "stable_expressive":
            return self.linear(graphs)
        rows_nk = self._stored(graphs, dtype) if options.stored else self._computed(graphs, dtype)
        if self.norm is not None:
            rows_nk = self.norm(rows_nk)
        elif self.training and not options.gates:  # GraphGPS flips no signs before the gate
            rows_nk = flip_signs(rows_nk, graphs)
        return self.linear(rows_nk)

    def _computed(self, graphs: Graphs, dtype: torch.dtype) -> Tensor:
        if self.options.kind == "random_walk":
            options = self.options
            return random_walk_diagonal(graphs, options.num_steps, reverse=options.reverse, dtype=dtype)
        return self._eigenvectors(graphs, dtype)[0]

    def _eigenvectors(self, graphs: Graphs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        normalised = self.options.normalisation == "sym"
        return laplacian_eigenvectors(graphs, self.options.num_steps, dtype=dtype, normalised=normalised)

    def _stored(self, graphs: Graphs, dtype: torch.dtype) -> Tensor:
        name, steps = self.options.stored, self.options.num_steps
        assert name is not None
        if name not in graphs.encodings or graphs.encodings[name].shape[1] < steps:
            got = {key: rows.shape[1] for key, rows in graphs.encodings.items()}
            raise ValueError(
                f"the batch needs the encoding {name!r} of at least {steps} columns, got {got}; store it first"
            )
        return graphs.encodings[name][:, :steps].to(dtype)

    def _deep_set(self, vectors_nk: Tensor, values_Bk: Tensor, graphs: Graphs) -> Tensor:
        values_nk = values_Bk[graphs.graph_of_node]
        code_nkP = self.linear(torch.stack([vectors_nk, values_nk], dim=2))
        exists_nk = torch.arange(vectors_nk.shape[1], device=vectors_nk.device) < graphs.size_B[
            graphs.graph_of_node
        ].unsqueeze(1)
        return (code_nkP * exists_nk.unsqueeze(2)).sum(1)


class Stem(nn.Module):
    """Maps features and encodings to node states [n, D], edge states [E, D] (if the model reads edges) and positions for the gate."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        width, own = config.width, config.width - config.position.channels
        edges = config.reads_edges
        self.input = NodeInput(config.input_dropout, config.scale_rows, linear=True)
        self.node = None if config.node.empty else FeatureEncoder(config.node, own)
        self.node_constant = nn.Parameter(torch.randn(own)) if config.node.empty else None
        self.edge = FeatureEncoder(config.edge, width) if edges and not config.edge.empty else None
        self.edge_constant = nn.Parameter(torch.randn(width)) if edges and config.edge.empty else None
        self.position = None if config.position.kind == "none" else PositionEncoder(config.position, width)
        self.gates = config.position.gates

    def forward(self, graphs: Graphs) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self.node is not None:
            x_nD = self.node(None if graphs.x is None else self.input(graphs.x))
        else:
            assert self.node_constant is not None
            x_nD = self.node_constant.expand(graphs.num_nodes, -1)
        e_ED = None
        if self.edge is not None:
            e_ED = self.edge(graphs.edge_attr)
        elif self.edge_constant is not None:
            e_ED = self.edge_constant.expand(graphs.edge_index.shape[1], -1)
        if self.position is None:
            return x_nD, e_ED, None
        position_nP = self.position(graphs)
        if self.gates:
            return x_nD, e_ED, position_nP
        return torch.cat([x_nD, position_nP.to(x_nD.dtype)], dim=1), e_ED, None


class Readout(nn.Module):
    """Maps node states to [B, out] (graph) or [r, out] at the roots (node), or returns the states themselves (link)."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.task, self.pool = config.task, config.pool
        sizes = (config.width, config.out_dim, config.head_layers)
        self.head: nn.Module | None = None
        if config.task != "link" and config.head == "graphgym":
            self.head = FullWidthMLP(*sizes, UnitReLU, config.head_dropout or None)
        elif config.task != "link":
            self.head = HalvingMLP(*sizes, dropout=config.head_dropout)

    def forward(self, x_nD: Tensor, graphs: Graphs) -> Tensor:
        return read_out(x_nD, graphs, self.head, self.task, self.pool)
