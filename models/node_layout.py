"""How the nodes of a graph lie over processes, as a global convolution has to know it: each works on rows and on sequences.

Row-wise layers see the n rows that a process holds; a convolution sees, for some channels, all N nodes in the order π. One process
has it all. `models.parallel.sequences` is the layout of several, each with a range of the rows and a range of the channels.

Shapes: n rows here, N nodes, G groups of D channels each, of which C are here; K filters.
"""

from typing import Protocol

from torch import Tensor

from models.filters import ImplicitFilter
from models.node_order import gather_rows


class NodeLayout(Protocol):
    """Which rows and channels are here, and how one becomes the other. Every call may be a collective one."""

    @property
    def num_nodes(self) -> int:
        """N."""
        ...

    def to_sequences(
        self, rows_nE: Tensor, num_groups: int, order_N: Tensor | None, inverse_N: Tensor | None
    ) -> Tensor:
        """[n, G·D] in the rows' own order → [G, C, N] in the order π (None: the rows as given), the node axis contiguous."""
        ...

    def to_rows(self, v_CN: Tensor, width: int, order_N: Tensor | None, inverse_N: Tensor | None) -> Tensor:
        """[C, N] in the order π → [n, D] in the rows' own order."""
        ...

    def filters(self, filters: ImplicitFilter) -> Tensor:
        """[K, C, N]: the filters of the channels here."""
        ...

    def channels(self, x_KD: Tensor) -> Tensor:
        """[K, D] → [K, C]: the channels here."""
        ...


class OneProcess:
    """All rows and all channels are here."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    @property
    def num_nodes(self) -> int:
        return self._num_nodes

    def to_sequences(
        self, rows_nE: Tensor, num_groups: int, order_N: Tensor | None, inverse_N: Tensor | None
    ) -> Tensor:
        if order_N is not None and inverse_N is not None:
            rows_nE = gather_rows(rows_nE, order_N, inverse_N)
        # One transposing copy; from here on the node axis, which the FFT runs over, is contiguous.
        return rows_nE.t().reshape(num_groups, rows_nE.shape[1] // num_groups, self._num_nodes)

    def to_rows(self, v_CN: Tensor, width: int, order_N: Tensor | None, inverse_N: Tensor | None) -> Tensor:
        y_ND = v_CN.t().contiguous()
        return y_ND if order_N is None or inverse_N is None else gather_rows(y_ND, inverse_N, order_N)

    def filters(self, filters: ImplicitFilter) -> Tensor:
        return filters(self._num_nodes)

    def channels(self, x_KD: Tensor) -> Tensor:
        return x_KD
