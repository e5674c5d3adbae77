"""Implements the GPS hybrid layer (arXiv:2205.12454): message passing and a global block in parallel, then a perceptron.

    X_M = Norm(Drop(MPNN(X, E)) + X)
    X_P = Norm(Drop(Global(X)) + X)
    X'  = MLP(X_M + X_P)

The global block is Primphormer's attention or GECO's convolution. MLP = Linear(D, 2D), ReLU, Drop, Linear(2D, D), Drop.
`mlp="plain"` is the printed formula; `mlp="residual"` is the formula of GraphGPS's code: H = X_M + X_P, X' = Norm(MLP(H) + H).
With `activated` MPNN = ReLU(Norm(GCN)) or ReLU(GINE), which with mlp="residual" and no global block is the layer of GNN+ (arXiv:2502.09263);
GatedGCN has its norm and ReLU inside. Without a local block the layer omits X_M (pure model). Without a global block it omits X_P (message passing only).

Shapes: n nodes, E edges, D width.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from graphmill.models.ends.heads import ACTIVATIONS
from graphmill.models.gps.gated_gcn import GatedGCN
from graphmill.models.gps.options import GPSOptions
from graphmill.models.operators.edge_convolutions import GCNE, GINE
from graphmill.models.operators.local_blocks import EdgeStates, GCNConvolution, make_norm
from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs


class GPSLayer(nn.Module):
    """Is one hybrid layer; the caller owns the global block and passes the block's output."""

    def __init__(
        self,
        width: int,
        options: GPSOptions,
        distance_gate: bool = False,
        update_edges: bool = True,
        has_global: bool = True,
    ) -> None:
        """`update_edges`: False in the last layer, because nothing reads its edge states. `has_global`: False omits X_P."""
        super().__init__()
        self.residual_mlp = options.mlp == "residual"
        self.local: GatedGCN | GINE | GCNE | GCNConvolution | None = None
        if options.local == "gated_gcn":
            self.local = GatedGCN(width, options.dropout, distance_gate, update_edges)
        elif options.local == "gcn":
            self.local = GCNConvolution(width, width)
        elif options.local != "none":
            self.local = GINE(width) if options.local == "gine" else GCNE(width)
        self.activation = ACTIVATIONS[options.activation]() if options.activated else None
        self.norm_inner = make_norm(options.norm, width) if options.activated and options.local != "gine" else None
        self.norm_local = make_norm(options.norm, width) if self.local is not None else None
        self.norm_global = make_norm(options.norm, width) if has_global else None
        self.norm_mlp = make_norm(options.norm, width) if self.residual_mlp else None
        inner = options.mlp_ratio * width
        self.mlp = nn.Sequential(
            nn.Linear(width, inner),
            ACTIVATIONS[options.activation](),
            Dropout(options.dropout),
            nn.Linear(inner, width),
            Dropout(options.dropout),
        )
        self.dropout = Dropout(options.dropout)

    def forward(
        self,
        x_nD: Tensor,
        e_ED: Tensor | None,
        graphs: Graphs,
        mixed_nD: Tensor | None,
        position_nP: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the next x and e; `mixed_nD` is the global block's output for x, if there is one."""
        parts: list[Tensor] = []
        if self.norm_global is not None and mixed_nD is not None:
            parts.append(self.norm_global(self.dropout(mixed_nD) + x_nD))
        if self.local is not None and self.norm_local is not None:
            if isinstance(self.local, GatedGCN):
                local_nD, e_ED = self.local(x_nD, e_ED, graphs, position_nP)
            elif isinstance(self.local, GCNConvolution):
                local_nD = self.local(x_nD, graphs.adjacency)
            else:
                assert e_ED is not None
                local_nD = self.local(x_nD, e_ED, graphs)
            if self.norm_inner is not None:
                local_nD = self.norm_inner(local_nD)
            if self.activation is not None:
                local_nD = self.activation(local_nD)
            parts.append(self.norm_local(self.dropout(local_nD) + x_nD))
        h_nD = sum(parts[1:], parts[0])
        if self.norm_mlp is None:
            return self.mlp(h_nD), e_ED
        return self.norm_mlp(self.mlp(h_nD) + h_nD), e_ED


def hybrid_states(model: Any, graphs: Graphs, mix: Callable[[int, Tensor, Tensor | None], Tensor | None]) -> Tensor:
    """Returns node states [n, D] after a model's stem, local layers and hybrid layers; `mix(index, x, e)` computes the global block of layer `index`, with the
    stem's edge states e."""
    x_nD, e_ED, position_nP = model.stem(graphs)
    first_ED = e_ED
    local = model.local
    edges = graphs.adjacency if model.stem.edge is None else EdgeStates(graphs, e_ED)
    x_nD = local.in_front(x_nD, edges) if model.virtual is None else model.virtual(x_nD, local, edges, graphs)
    for index in range(model.config.local.num_global(model.config.num_layers)):
        if local.gates:
            x_nD = local.layers[index](x_nD, edges)
            x_nD = x_nD + local.gates[index](model.dropout(mix(index, x_nD, first_ED)))
        else:
            x_nD, e_ED = model.layers[index](x_nD, e_ED, graphs, mix(index, x_nD, first_ED), position_nP)
    return x_nD
