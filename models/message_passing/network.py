"""Implements GraphSAGE, GCN and GAT with the recipe of "Classic GNNs are Strong Baselines" (arXiv:2406.08993): only local layers.

    H ← L(H) = Drop(ReLU(Norm(Conv(H) + Res(H))))     L times, H = Drop(X) at first; models/operators/local_blocks.py
    Y = Linear(H) at the roots

Shapes: n nodes, D width.
"""

from torch import Tensor, nn

from graphmill.models.ends.features import NodeInput
from graphmill.models.message_passing.options import MessagePassingConfig
from graphmill.models.operators.local_blocks import LocalLayer
from graphmill.models.parallel.graph import ShardedGraph
from graphmill.models.primitives.dropout import MaskRows
from graphmill.models.primitives.graphs import Graphs


class MessagePassing(nn.Module):
    """Applies GraphSAGE, GCN or GAT to packed graphs; see the module's docstring."""

    def __init__(self, config: MessagePassingConfig) -> None:
        super().__init__()
        self.config = config
        in_dims = [config.in_dim, *[config.width] * (config.num_layers - 1)]
        self.layers = nn.ModuleList(
            LocalLayer(config.local, in_dim, config.width, edge_dim=config.edge_dim) for in_dim in in_dims
        )
        self.input = NodeInput(config.input_dropout, config.scale_rows, linear=config.in_dim != config.width)
        self.head = nn.Linear(config.width, config.out_dim)

    def forward(self, graphs: Graphs | ShardedGraph, *, epoch: int = 0) -> Tensor:
        """Returns [r, out_dim], the predictions of the roots (without roots: of all n nodes). Raises ValueError if features do not fit the config.

        On a graph that is spread over workers, dropout's masks are a function of the seed, the epoch and the row indices, as in GECO.
        """
        if graphs.x is None or graphs.x.shape[1] != self.config.in_dim:
            got = "none" if graphs.x is None else graphs.x.shape[1]
            raise ValueError(f"features must have {self.config.in_dim} columns, got {got}; set in_dim")
        masks = None
        if isinstance(graphs, ShardedGraph):
            masks = MaskRows(self.config.seed, graphs.layout.first_row).of(epoch)
        x_nD = self.input(graphs.x.to(self.head.weight.dtype), None if masks is None else masks.of(0))
        for index, layer in enumerate(self.layers):
            x_nD = layer(x_nD, graphs.adjacency, None if masks is None else masks.of(1 + index))
        return self.head(x_nD if graphs.root_index is None else x_nD[graphs.root_index])
