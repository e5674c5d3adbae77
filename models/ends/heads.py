"""Maps node states to outputs: pooling over graphs, and the perceptrons that GRIT, GPS and PPGT share.

Legend: n nodes, B graphs, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphmill.models.options.features import Pool, Task
from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.segments import at_least_float32, reduce_runs

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


def pool_nodes(x_nD: Tensor, graphs: Graphs, pool: Pool) -> Tensor:
    """[n, D] → [B, D]; a graph without nodes pools to 0."""
    out = reduce_runs(x_nD, graphs.node_ptr, pool)
    return torch.where((graphs.size_B > 0).unsqueeze(1), out, torch.zeros_like(out))


class HalvingMLP(nn.Module):
    """Linear(D, D/2), act, Linear(D/2, D/4), act, …, Linear(·, out): `num_layers` linear maps ("san_graph" at 3)."""

    def __init__(
        self,
        width: int,
        out_dim: int,
        num_layers: int = 3,
        activation: Callable[[], nn.Module] = nn.ReLU,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = [width // 2**i for i in range(num_layers)]
        if sizes[-1] < 1:
            raise ValueError(f"width {width} cannot be halved {num_layers - 1} times; set the head's num_layers")
        steps: list[nn.Module] = []
        for i in range(num_layers - 1):
            steps += [nn.Linear(sizes[i], sizes[i + 1]), activation()]
        steps += [Dropout(dropout), nn.Linear(sizes[-1], out_dim)]
        self.layers = nn.Sequential(*steps)

    def forward(self, x_nD: Tensor) -> Tensor:
        return self.layers(x_nD)


class UnitReLU(nn.Module):
    """Applies ReLU, then scales each row to length 1 (a row of zeros stays)."""

    def forward(self, x_nD: Tensor) -> Tensor:
        return nn.functional.normalize(torch.relu(x_nD), dim=1)


class FullWidthMLP(nn.Sequential):
    """Applies `num_layers` linear maps. All but the last keep the width. Dropout comes before the last map (`dropout` None: no dropout).

    With `UnitReLU` it is GraphGym's MLP, the head "default" or "inductive_node" of GRIT's and GraphGPS's code. The hidden layers of this MLP
    always use a default configuration with `has_l2norm` on, even if the experiment's file turns it off.
    """

    def __init__(
        self,
        width: int,
        out_dim: int,
        num_layers: int,
        activation: Callable[[], nn.Module],
        dropout: float | None = None,
    ) -> None:
        steps: list[nn.Module] = []
        for _ in range(num_layers - 1):
            steps += [nn.Linear(width, width), activation()]
        super().__init__(*steps, *([] if dropout is None else [Dropout(dropout)]), nn.Linear(width, out_dim))


def read_out(x_nD: Tensor, graphs: Graphs, head: nn.Module | None, task: Task, pool: Pool) -> Tensor:
    """Returns the head's output [B, out] (graph) or [r, out] at the roots (node); without a head the states themselves (link)."""
    if head is None:
        return x_nD
    if task == "graph":
        return head(pool_nodes(x_nD, graphs, pool))
    return head(x_nD if graphs.root_index is None else x_nD[graphs.root_index])


def link_scores(x_nD: Tensor, pair_2P: Tensor) -> Tensor:
    """[P]: the dot product of the states of each pair's two nodes (positions in the batch, int64 [2, P])."""
    wide_nD = at_least_float32(x_nD)  # the gradient of a node's state is a sum over the node's pairs
    return (wide_nD[pair_2P[0]] * wide_nD[pair_2P[1]]).sum(-1).to(x_nD.dtype)
