"""Applies GECO to many graphs in a batch, either alone or in place of attention in the GPS hybrid (arXiv 2406.12059; models/geco/network.py).

Every graph is convolved at exactly its own length N_b, with the filter of length N_b, so a graph's
result does not depend on the other graphs of the batch. In the padded batch the filter of graph b covers positive and negative lags,
g_b[τ] = f_b[τ mod N_b] for |τ| < N, and one transform of length L ≥ 2N - 1 convolves the filter with the zero-padded signal:

    y_t = Σ_{s < N_b} g_b[t - s] u_s = Σ_s f_b[(t - s) mod N_b] u_s        for t < N_b

No term wraps around L. A single graph needs no padding and is transformed at its own length N.

The order π of a graph's nodes is a pure function of the seed and the permanent ids. If the batch has no ids, π is a function of the seed,
the position in the graph and the graph's size: one random order for each size. The model is not permutation-equivariant.

Hybrid model (the paper's choice for small graphs): X_P = Norm(Drop(GECO(X, A)) + X) in the layer of models/gps/layer.py.
Pure model (`layer.local="none"`): the paper's own layer, X' = LN(GECO(X, A) + X), X'' = LN(FFN(X') + X').

With `config.local` a trained local block L (models/operators/local_blocks.py) replaces the layer's message passing, as in
models/primphormer/network.py. Join "gate" replaces the layer by X' = L(X) + g ⊙ Drop(GECO(L(X), A)); join "top" applies only L before the layers.

Shapes: B graphs, n nodes, N places, L length of the transform, D width, K order, T filter rows.
"""

import torch
from scipy.fft import next_fast_len
from torch import Tensor, nn

from graphmill.models.geco.hyena import ShortConvolution
from graphmill.models.geco.network import FeedForward, GlobalBlock
from graphmill.models.geco.options import GECOGraphsConfig
from graphmill.models.gps.ends import Readout, Stem
from graphmill.models.gps.graph_node import GraphNode
from graphmill.models.gps.layer import GPSLayer, hybrid_states
from graphmill.models.operators.filters import ImplicitFilter, chain_gates, circular_convolve
from graphmill.models.operators.local_blocks import LocalBlock, LocalLayers
from graphmill.models.primitives.batch_norm import LayerNorm
from graphmill.models.primitives.dropout import Dropout
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.node_order import Order, node_order
from graphmill.models.primitives.segments import Grouping


class Convolutions:
    """Is the `graphmill.models.operators.node_layout.NodeLayout` of many graphs: convolves every graph circularly at its own length.

    It is made once per batch and holds everything that depends only on the sizes in the batch.
    """

    def __init__(self, graphs: Graphs) -> None:
        self.graphs, self.single = graphs, graphs.num_graphs == 1
        self.num_nodes, self.first_row = graphs.num_nodes, 0
        if self.single:
            return
        padding, size_B, device = graphs.padding, graphs.size_B, graphs.node_ptr.device
        places = padding.num_places
        # Transforms of lengths that are not 2^a·3^b·5^c are several times slower.
        self.length = next_fast_len(max(2 * places - 1, 1), real=True)
        # Filters are computed for each possible size if this needs fewer rows than there are nodes; else for each graph.
        if places * (places + 1) // 2 <= graphs.num_nodes:
            sizes = torch.arange(1, places + 1, device=device)
            count = places * (places + 1) // 2
            self.length_T = torch.repeat_interleave(sizes, sizes, output_size=count)
            self.position_T = torch.arange(count, device=device) - self.length_T * (self.length_T - 1) // 2
            start_B = (size_B * (size_B - 1) // 2).clamp_min(0)
        else:
            self.position_T, self.length_T = padding.place_n, size_B[padding.graph_n]
            start_B = graphs.node_ptr[:-1]
        # Position j of the transform holds lag τ = j; the last positions hold the negative lags τ = j - L.
        lag_L = torch.arange(self.length, device=device)
        lag_L = torch.where(lag_L < places, lag_L, lag_L - self.length)
        row_BL = start_B.unsqueeze(1) + lag_L % size_B.clamp_min(1).unsqueeze(1)
        num_rows = self.position_T.numel()
        # An empty last graph would start behind the last row. The graph has no signal, so it may read any row.
        self.rows = Grouping(row_BL.flatten().clamp_max(num_rows - 1), num_rows) if num_rows else None

    def filters(self, filters: ImplicitFilter) -> Tensor:
        """[K, D, N] for a single graph, [K, B, D, L] otherwise."""
        if self.single:
            return filters(self.graphs.num_nodes)
        shape = (self.graphs.num_graphs, self.length, filters.num_filters, filters.width)
        if self.rows is None:
            return filters.out.weight.new_zeros(shape).permute(2, 0, 3, 1)
        rows_BLKD = self.rows.spread(filters.at(self.position_T, self.length_T)).view(shape)
        return rows_BLKD.permute(2, 0, 3, 1).contiguous()

    def convolve(
        self,
        h_nC: Tensor,
        projection: nn.Linear,
        filters: ImplicitFilter,
        skip_KD: Tensor | None,
        order: Order | None,
    ) -> Tensor:
        """Returns [n, D] in the filters' precision. O(D N log N) per graph."""
        rows_nE = projection(h_nC)
        if order is not None:
            rows_nE = order.sort(rows_nE)
        # Half-precision gates would round every product; the transform runs in single precision anyway.
        p = self.spread(rows_nE.to(filters.out.weight.dtype), (filters.num_filters + 1, filters.width))
        y_nD = self.collect(chain_gates(p, self.filters(filters), skip_KD, self.convolve_one))
        return y_nD if order is None else order.restore(y_nD)

    def convolve_one(self, filter_DL: Tensor, signal_DN: Tensor) -> Tensor:
        """Convolves one filter of `filters` with signals [D, N] (single) or [B, D, N], which must be zero behind a graph's end.

        Behind a graph's end the result is finite but meaningless; the gates are zero there, so the result has no effect.
        """
        if self.single:
            return circular_convolve(filter_DL, signal_DN)
        places = signal_DN.shape[-1]
        wide_DL = nn.functional.pad(signal_DN, (0, self.length - places))
        return circular_convolve(filter_DL, wide_DL)[..., :places]

    def spread(self, rows_nC: Tensor, channels: tuple[int, ...]) -> Tensor:
        """Packed rows [n, C] → [*channels, N] (single) or [B, *channels, N], with a contiguous node axis."""
        if self.single:
            return rows_nC.t().reshape(*channels, -1)
        padded_BCN = self.graphs.padding.pad(rows_nC).transpose(1, 2)
        return padded_BCN.reshape(padded_BCN.shape[0], *channels, padded_BCN.shape[2])

    def collect(self, signal_DN: Tensor) -> Tensor:
        """[D, N] or [B, D, N] → packed rows [n, D]."""
        if self.single:
            return signal_DN.t().contiguous()
        return self.graphs.padding.unpad(signal_DN.transpose(1, 2))


def graph_order(graphs: Graphs, seed: int, *, epoch: int = 0, layer: int = 0) -> Order:
    """Returns π of all graphs as one permutation of the packed rows. Each graph's nodes are sorted by a hash of (seed, epoch, layer, id); without
    ids, position and graph size replace the id."""
    key_n = graphs.node_id
    if key_n is None:
        key_n = graphs.padding.place_n + (graphs.size_B[graphs.graph_of_node] << 32)
    order_n = node_order(key_n, seed, epoch=epoch, layer=layer)
    if graphs.num_graphs > 1:
        order_n = order_n[torch.argsort(graphs.graph_of_node[order_n], stable=True)]
    return Order.of(order_n)


class GECOOperator(nn.Module):
    """GECO(X, A) = GCB(LCB(X, A)), in place of attention."""

    def __init__(self, config: GECOGraphsConfig) -> None:
        super().__init__()
        size, width = config.short_convolution, config.width
        self.local = LocalBlock(config.propagation) if not size else None
        self.short = ShortConvolution(width, size) if size else None
        self.glob = GlobalBlock(width if size else 2 * width, width, config.order, config.filter, config.skip)

    def forward(self, x_nD: Tensor, graphs: Graphs, convolutions: Convolutions, order: Order | None) -> Tensor:
        if self.short is not None:
            return self.glob(self._in_order(self.short, x_nD, graphs, order), order, convolutions).to(x_nD.dtype)
        assert self.local is not None
        return self.glob(self.local(x_nD, graphs.adjacency), order, convolutions).to(x_nD.dtype)

    @staticmethod
    def _in_order(short: ShortConvolution, x_nD: Tensor, graphs: Graphs, order: Order | None) -> Tensor:
        """Applies the short convolution to each graph's nodes in the order π; returns rows in their original order."""
        if not x_nD.shape[0]:
            return x_nD
        rows_nD = x_nD if order is None else order.sort(x_nD)
        padding = graphs.padding
        y_nD = padding.unpad(short(padding.pad(rows_nD).transpose(1, 2)).transpose(1, 2))
        return y_nD if order is None else order.restore(y_nD)


class PureLayer(nn.Module):
    """X' = LN(Drop(GECO(X, A)) + X), X'' = LN(Drop(FFN(X')) + X'); has the call signature of a GPSLayer."""

    def __init__(self, config: GECOGraphsConfig) -> None:
        super().__init__()
        self.ffn = FeedForward(config.width, config.layer.activation, config.layer.dropout)
        self.norm_1, self.norm_2 = LayerNorm(config.width), LayerNorm(config.width)
        self.dropout = Dropout(config.layer.dropout)

    def forward(
        self, x_nD: Tensor, e_ED: Tensor | None, graphs: Graphs, mixed_nD: Tensor, position_nP: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        x_nD = self.norm_1(self.dropout(mixed_nD) + x_nD)
        return self.norm_2(self.dropout(self.ffn(x_nD)) + x_nD), e_ED


class GECOGraphs(nn.Module):
    """Applies GECO to packed graphs, hybrid or pure; see the module's docstring."""

    def __init__(self, config: GECOGraphsConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = Stem(config)
        count = config.local.num_global(config.num_layers)
        self.operators = nn.ModuleList(GECOOperator(config) for _ in range(count))
        self.virtual = GraphNode(config.width, config.num_layers) if config.virtual_node else None
        self.local = LocalLayers(
            config.local, config.width, config.num_layers, edge_dim=0 if self.stem.edge is None else config.width
        )
        self.layers = nn.ModuleList(
            PureLayer(config)
            if config.layer.local == "none"
            else GPSLayer(config.width, config.layer, config.position.gates, update_edges=index + 1 < count)
            for index in range(0 if self.local.gates else count)
        )
        self.dropout = Dropout(config.layer.dropout)
        self.readout = Readout(config)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """Returns [B, out_dim] (graph), [r, out_dim] (node; all n without roots) or states [n, width] (link).

        Only the dynamic permutation depends on `epoch`.
        """
        convolutions, permutation = Convolutions(graphs), self.config.permutation
        static = graph_order(graphs, self.config.seed) if permutation == "static" else None

        def mix(index: int, x_nD: Tensor, _: Tensor | None) -> Tensor:
            order = static
            if permutation == "dynamic":
                # + 1, so that the first layer of the first epoch does not repeat the static order.
                order = graph_order(graphs, self.config.seed, epoch=epoch + 1, layer=index)
            return self.operators[index](x_nD, graphs, convolutions, order)

        return self.readout(hybrid_states(self, graphs, mix), graphs)
