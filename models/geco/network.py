"""Implements GECO: local propagation and global circular convolution in place of attention (arXiv 2406.12059, AAAI 2025).

One layer (equations of the paper; post-norm):

    X'  = LN(GECO(X, A) + X)
    X'' = LN(FFN(X') + X'),              FFN(X) = σ(X W₁) W₂
    GECO(X, A) = GCB(LCB(X, A))
    LCB(X, A) = [X, ÂX]                  parameter-free
    GCB(H): P₁, …, P_K, V = split(H W);  V ← P_i ⊙ (F_i ⊛ V) for i = 1 … K

⊛ is a channel-wise circular convolution over all N nodes in an order π; F_i is a learned function of the position. The
LCB does not depend on the order, so only P_i and V are permuted, never the graph. GECO as a whole is not
permutation-equivariant, because π is part of the model. Here π is a pure function of seed and node id.

The paper does not specify the following choices. Here Â is the mean D⁻¹A, σ is GELU, linear maps except W₁ and W₂ have biases, an encoder
Linear (with activation) maps the features to the width, and a Linear maps to the outputs.

A product of gates has no term that is linear in the input, and the residual adds only X. Therefore three departures from the paper
offer a trained local block L (models/operators/local_blocks.py):

    serial   C = [X, Conv(X)], with the LCB's ÂX or a convolution for Conv(X);  GECO(X, A) = GCB(C) + C W      `local.residual`: linear
    gate     X' = L(X) + g ⊙ Drop(GCB([X, L(X)]))             in place of the layer; g near zero at first
    top      X' = L(X), `num_layers` times, then `local.top_layers` of the paper's layers

Gate and top have no encoder Linear: the first L reads the features. If the features do not have the model's width, the first GCB reads only L(X).

Shapes: N nodes, E edges, D width, K order.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphmill.models.ends.features import NodeInput
from graphmill.models.ends.heads import ACTIVATIONS
from graphmill.models.geco.hyena import HyenaBlock
from graphmill.models.geco.options import GECOConfig
from graphmill.models.operators.filters import ImplicitFilter
from graphmill.models.operators.gated_convolution import gated_convolve
from graphmill.models.operators.local_blocks import LayerScale, LocalBlock, LocalLayer, make_convolution, make_norm
from graphmill.models.operators.node_layout import NodeLayout
from graphmill.models.options.filters import FilterConfig
from graphmill.models.options.local import LocalOptions
from graphmill.models.primitives.batch_norm import LayerNorm, computing_again, normalise
from graphmill.models.primitives.dropout import Dropout, MaskRows
from graphmill.models.primitives.node_order import Order, node_order
from graphmill.models.primitives.propagation import Propagation


class GlobalBlock(nn.Module):
    """Is the GCB: gated circular convolutions over all nodes in the order π, V ← P_i ⊙ (F_i ⊛ V) for i = 1 … K."""

    def __init__(self, in_dim: int, width: int, order: int, filter_config: FilterConfig, skip: bool = False) -> None:
        super().__init__()
        self.projection = nn.Linear(in_dim, (order + 1) * width)
        self.filter = ImplicitFilter(filter_config, order, width)
        self.skip_KD = nn.Parameter(torch.ones(order, width)) if skip else None

    def forward(self, h_NC: Tensor, order: Order | None, layout: NodeLayout | None = None) -> Tensor:
        """Returns [N, D] in the original order of the rows; `order` is π (None: the rows as given). O(D N log N).

        `layout` defines how rows are spread over processes; None: all rows are in this process.
        """
        if layout is not None:
            return layout.convolve(h_NC, self.projection, self.filter, self.skip_KD, order)
        # All rows are here, so H is permuted instead of P, which moves 2 D numbers per node instead of (K + 1) D.
        if order is not None:
            h_NC = order.sort(h_NC)
        filter_KDI, feature_IN = self.filter.factors(h_NC.shape[0])
        y_ND = gated_convolve(h_NC, self.projection.weight, self.projection.bias, filter_KDI, feature_IN, self.skip_KD)
        return y_ND if order is None else order.restore(y_ND)


class FeedForward(nn.Module):
    """FFN: σ(X W₁) W₂ with W₁, W₂ of D×D and dropout in between."""

    def __init__(self, width: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, width, bias=False)
        self.w2 = nn.Linear(width, width, bias=False)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = Dropout(dropout)

    def forward(self, x_ND: Tensor, rows: MaskRows | None = None) -> Tensor:
        return self.w2(self.dropout(self.activation(self.w1(x_ND)), rows))


class InputAndConvolution(nn.Module):
    """[X, Conv(X)] for a trained convolution, [n, 2 D]."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x_nD: Tensor, adjacency: Propagation) -> Tensor:
        return torch.cat([x_nD, self.convolution(x_nD, adjacency)], dim=1)


class NoNeighbors(nn.Module):
    """Returns X itself, without neighbors."""

    def forward(self, x_nD: Tensor, adjacency: Propagation) -> Tensor:
        return x_nD


class GECOLayer(nn.Module):
    """Is one GECO layer: LCB and GCB, then the FFN. Both steps have a residual and a norm."""

    def __init__(self, config: GECOConfig) -> None:
        super().__init__()
        width = config.width
        self.pre_norm = config.norm == "pre"
        # On top of local layers this is always the paper's layer, for every kind of local block.
        local = config.local if config.local.is_paper else LocalOptions()
        self.local: nn.Module = LocalBlock(config.propagation, config.hops)
        local_dim = (config.hops + 1) * width
        if local.block != "lcb":
            convolution = make_convolution(local, width, width, edge_dim=config.edge_dim)
            self.local, local_dim = InputAndConvolution(convolution), 2 * width
        if config.block == "hyena":
            self.local, local_dim = NoNeighbors(), width
        self.local_dropout = Dropout(local.dropout)
        self.glob: GlobalBlock | HyenaBlock = (
            HyenaBlock(width, config.filter)
            if config.block == "hyena"
            else GlobalBlock(local_dim, width, config.order, config.filter, config.skip)
        )
        self.past_gates = nn.Linear(local_dim, width) if local.residual == "linear" else None
        self.out = nn.Linear(width, width) if config.output_projection else nn.Identity()
        self.ffn = FeedForward(width, config.activation, config.dropout)
        self.norm_1, self.norm_2 = make_norm(local.norm, width), make_norm(local.norm, width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x_ND: Tensor,
        adjacency: Propagation,
        order: Order | None,
        layout: NodeLayout | None = None,
        rows: MaskRows | None = None,
    ) -> Tensor:
        """`rows` determine dropout's masks; None: the masks come from the default generator."""
        mixed, inner, after, local = (None,) * 4 if rows is None else tuple(rows.of(purpose) for purpose in range(4))

        def mix(x_ND: Tensor) -> Tensor:
            h_NC = self.local_dropout(self.local(x_ND, adjacency), local)
            mixed_ND = self.out(self.glob(h_NC, order, layout))
            return mixed_ND if self.past_gates is None else mixed_ND + self.past_gates(h_NC)

        all_rows = adjacency.all_rows
        if self.pre_norm:
            x_ND = x_ND + self.dropout(mix(normalise(self.norm_1, x_ND, all_rows)), mixed)
            return x_ND + self.dropout(self.ffn(normalise(self.norm_2, x_ND, all_rows), inner), after)
        x_ND = normalise(self.norm_1, self.dropout(mix(x_ND), mixed) + x_ND, all_rows)
        return normalise(self.norm_2, self.dropout(self.ffn(x_ND, inner), after) + x_ND, all_rows)


class LocalFirstLayer(nn.Module):
    """[N, F] → [N, D]. With join "top" returns L(X). With join "gate" returns L(X) + g ⊙ Drop(GCB([X, L(X)])), where GCB reads only L(X) if F is not D."""

    def __init__(self, config: GECOConfig, in_dim: int) -> None:
        super().__init__()
        width = config.width
        self.local = LocalLayer(config.local, in_dim, width, config.propagation, config.hops, config.edge_dim)
        self.glob: GlobalBlock | None = None
        if config.local.join == "top":
            return
        self.reads_input = in_dim == width
        glob_dim = 2 * width if self.reads_input else width
        self.glob = GlobalBlock(glob_dim, width, config.order, config.filter, config.skip)
        self.out = nn.Linear(width, width) if config.output_projection else nn.Identity()
        self.gate = LayerScale(width, config.local.gate_start)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x_NF: Tensor,
        adjacency: Propagation,
        order: Order | None,
        layout: NodeLayout | None = None,
        rows: MaskRows | None = None,
    ) -> Tensor:
        """Has the call signature of a GECOLayer."""
        local, mixed = (None, None) if rows is None else (rows.of(0), rows.of(1))
        local_ND = self.local(x_NF, adjacency, local)
        if self.glob is None:
            return local_ND
        h_NC = torch.cat([x_NF, local_ND], dim=1) if self.reads_input else local_ND
        return local_ND + self.gate(self.dropout(self.out(self.glob(h_NC, order, layout)), mixed))


def _layers(config: GECOConfig) -> list[nn.Module]:
    if config.local.is_paper:
        return [GECOLayer(config) for _ in range(config.num_layers)]
    in_dims = [config.in_dim + config.encoding_dim, *[config.width] * (config.num_layers - 1)]
    layers: list[nn.Module] = [LocalFirstLayer(config, in_dim) for in_dim in in_dims]
    if config.local.join == "top":
        layers += [GECOLayer(config) for _ in range(config.local.top_layers)]
    return layers


class GECO(nn.Module):
    """Is GECO for node-level outputs on one graph or subgraph; see the module's docstring for the equations."""

    def __init__(self, config: GECOConfig) -> None:
        super().__init__()
        self.config = config
        # True if the first layer does more with the features than apply linear maps: it concatenates them (if the widths are equal) or propagates them (LCB).
        reads_rows = not config.local.is_paper and (config.local.block == "lcb" or config.in_dim == config.width)
        linear = not config.encoding_dim and not reads_rows
        self.input = NodeInput(config.input_dropout, config.scale_rows, linear=linear)
        self.encoder: nn.Module = nn.Identity()
        self.activation: nn.Module = nn.Identity()
        if config.local.is_paper:
            self.encoder = nn.Linear(config.in_dim + config.encoding_dim, config.width)
            self.activation = ACTIVATIONS[config.activation]()
        self.layers = nn.ModuleList(_layers(config))
        self.head_norm = LayerNorm(config.width) if config.norm == "pre" else nn.Identity()
        self.head = nn.Linear(config.width, config.out_dim)

    def forward(
        self,
        x_ND: Tensor,
        adjacency: Propagation,
        *,
        node_id_N: Tensor | None = None,
        epoch: int = 0,
        encoding_NE: Tensor | None = None,
        layout: NodeLayout | None = None,
    ) -> Tensor:
        """Returns [N, out_dim] for features [N, in_dim] and the adjacency of the same rows; N may be 0.

        `node_id_N` int64 [N]: permanent ids (default: the row indices), which give the same relative order in every batch. The dynamic permutation
        depends on `epoch` and, with a `layout`, dropout too. With a `layout` the rows are those of this process, but `node_id_N` has the ids
        of all nodes. Dropout's masks are then a function of the seed, the epoch and the row indices, so the number of processes does not
        change them. Raises ValueError if shapes disagree with each other or with the config.
        """
        num_nodes = adjacency.num_nodes if layout is None else layout.num_nodes
        self._check(x_ND, adjacency, num_nodes, node_id_N, encoding_NE)
        if node_id_N is None:
            node_id_N = torch.arange(num_nodes, device=x_ND.device)
        masks = None if layout is None else MaskRows(self.config.seed, layout.first_row).of(epoch)
        x_ND = self.input(x_ND, None if masks is None else masks.of(0))
        if encoding_NE is not None:
            x_ND = torch.cat([x_ND, encoding_NE.to(x_ND.dtype)], dim=1)
        x_ND = self.activation(self.encoder(x_ND))
        order = self._order(node_id_N, 0, 0) if self.config.permutation == "static" else None
        total_ND = x_ND if self.config.jump == "sum" else None
        for layer_index, layer in enumerate(self.layers):
            if self.config.permutation == "dynamic":
                # + 1, so that the first layer of the first epoch does not repeat the static order.
                order = self._order(node_id_N, epoch + 1, layer_index)
            rows = None if masks is None else masks.of(1 + layer_index)
            x_ND = self._run(layer, x_ND, adjacency, order, layout, rows)
            if total_ND is not None:
                total_ND = total_ND + x_ND
        if total_ND is not None:
            x_ND = total_ND
        return self.head(self.head_norm(x_ND))

    def _run(self, layer: nn.Module, x_ND: Tensor, *others: Any) -> Tensor:
        if not (self.config.recompute and torch.is_grad_enabled()):
            return layer(x_ND, *others)
        # The recomputation draws the same dropout masks.
        return checkpoint(
            layer, x_ND, *others, use_reentrant=False, context_fn=lambda: (nullcontext(), computing_again(layer))
        )

    def _order(self, node_id_N: Tensor, epoch: int, layer: int) -> Order:
        return Order.of(node_order(node_id_N, self.config.seed, epoch=epoch, layer=layer))

    def _check(
        self,
        x_ND: Tensor,
        adjacency: Propagation,
        total_nodes: int,
        node_id_N: Tensor | None,
        encoding_NE: Tensor | None,
    ) -> None:
        config, num_nodes = self.config, adjacency.num_nodes
        rows: list[tuple[str, Tensor | None, tuple[int, ...], str]] = [
            ("features", x_ND, (num_nodes, config.in_dim), "set in_dim to the graph's feature width"),
        ]
        if node_id_N is not None:
            rows.append(("node_id", node_id_N, (total_nodes,), "pass the ids of the same batch"))
        if encoding_NE is not None or config.encoding_dim:
            advice = "set encoding_dim to the width of the encodings that are passed (0: none)"
            rows.append(("encodings", encoding_NE, (num_nodes, config.encoding_dim), advice))
        for name, tensor, expected, advice in rows:
            shape = None if tensor is None else tuple(tensor.shape)
            if shape != expected:
                raise ValueError(f"{name} must be {list(expected)}, a row for each node, got {shape}; {advice}")


class NodeGECO(nn.Module):
    """Applies GECO to `graphmill.models.primitives.graphs.Graphs`, or to a graph that is spread over workers; has the other models' call signature."""

    def __init__(self, config: GECOConfig) -> None:
        super().__init__()
        self.model = GECO(config)

    def forward(self, graphs: Any, *, epoch: int = 0) -> Tensor:
        """Returns [r, out_dim], the predictions of the roots (without roots: of all nodes)."""
        layout = getattr(graphs, "layout", None)
        ids_N = graphs.node_id if layout is None else graphs.all_node_ids
        y_ND = self.model(graphs.x, graphs.adjacency, node_id_N=ids_N, epoch=epoch, layout=layout)
        return y_ND if graphs.root_index is None else y_ND[graphs.root_index]


def param_groups(model: nn.Module, lr: float, weight_decay: float, filter_lr: float | None = None) -> list[dict]:
    """Returns three optimizer groups: weights (with decay), biases and norms (no decay), filters (own lr, no decay).

    The filters' group has every parameter of an `ImplicitFilter`, because Hyena uses another lr and no decay for them. `filter_lr` None
    means `lr`. Each trainable parameter is in exactly one group; empty groups are left out.
    """
    filters = {id(p) for m in model.modules() if isinstance(m, ImplicitFilter) for p in m.parameters()}
    decayed, plain, filtered = list[nn.Parameter](), list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in filters:
            filtered.append(parameter)
        elif parameter.dim() < 2 or name.endswith("skip_KD"):
            plain.append(parameter)
        else:
            decayed.append(parameter)
    groups = [
        {"name": "weights", "params": decayed, "lr": lr, "weight_decay": weight_decay},
        {"name": "biases_and_norms", "params": plain, "lr": lr, "weight_decay": 0.0},
        {"name": "filters", "params": filtered, "lr": lr if filter_lr is None else filter_lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
