"""Defines NodeLayout: how the nodes of a graph are spread over processes. Row-wise layers work on the rows of this process; a global convolution
works on all N nodes. Without a layout all rows of one graph are in this process. `graphmill.models.parallel.sequences` has the layout of several
workers; `graphmill.models.geco.graphs` has the layout of many graphs.

Shapes: n rows here, N nodes; K filters of D channels.
"""

from typing import Protocol

from torch import Tensor, nn

from graphmill.models.operators.filters import ImplicitFilter
from graphmill.models.primitives.node_order import Order


class NodeLayout(Protocol):
    """Describes the rows of this process, and runs the global convolution over all rows."""

    @property
    def num_nodes(self) -> int:
        """N."""
        ...

    @property
    def first_row(self) -> int:
        """Index of the first row in this process; the other rows follow it."""
        ...

    def convolve(
        self,
        h_nC: Tensor,
        projection: nn.Linear,
        filters: ImplicitFilter,
        skip_KD: Tensor | None,
        order: Order | None,
    ) -> Tensor:
        """Projects this process's rows to (K + 1) D and runs the chain of gated convolutions: [n, C] → [n, D]; a collective call.

        V ← P_i ⊙ (F_i ⊛ V + s_i ⊙ V) for i = 1 … K, over all nodes in the order π (None: in the order of the rows); gates come first, V last.
        """
        ...
