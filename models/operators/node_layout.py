"""NodeLayout: how the nodes of a graph are spread over processes. Row-wise layers work on the rows of this process, a global convolution on all
N nodes. Without a layout all rows of one graph are here; `graphmill.models.parallel.sequences` has the layout of several workers,
`graphmill.models.geco.graphs` the layout of many graphs.

Shapes: n rows here, N nodes; K filters of D channels.
"""

from typing import Protocol

from torch import Tensor, nn

from graphmill.models.operators.filters import ImplicitFilter
from graphmill.models.primitives.node_order import Order


class NodeLayout(Protocol):
    """The rows that are here, and the global convolution over all rows."""

    @property
    def num_nodes(self) -> int:
        """N."""
        ...

    @property
    def first_row(self) -> int:
        """The number of the first row that is here; the others follow it."""
        ...

    def convolve(
        self,
        h_nC: Tensor,
        projection: nn.Linear,
        filters: ImplicitFilter,
        skip_KD: Tensor | None,
        order: Order | None,
    ) -> Tensor:
        """The chain of gated convolutions of the rows here, projected to (K + 1) D: [n, C] → [n, D]; a collective call.

        V ← P_i ⊙ (F_i ⊛ V + s_i ⊙ V) for i = 1 … K, over all nodes in the order π (None: as numbered); gates come first, V last.
        """
        ...
