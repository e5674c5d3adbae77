"""Implements PPGT: a plain transformer over all pairs of a graph's nodes, with random walks as relative positions (arXiv:2504.12588).

    P_ij   = [I, M, …, M^K]_ij, M = D⁻¹A;  directed graphs: the walks over reversed edges too, sharing one I
    x⁰_i   = features_i + FC(P_ii) + FC(log(1 + deg_i)) + FC(log(1 + n))                        node stem
    p_ij   = MLP(SPE[P_ij, 1/n, 1/deg_i, 1/deg_j]) + 1[(i,j) ∈ E]·edge features_ij,             pair stem, shared by all layers:
             then F times p += FFN(AdaRMSN(p)), and AdaRMSN
             superpixels (`positions`): also SPE of place_j - place_i, and FC(place_i) in place of FC(log(1 + n))
    layer:   x += DropPath(sL2(AdaRMSN(x), p));  x += DropPath(FFN(AdaRMSN(x)))                 AdaRMSN after the last
    sL2:     graphmill.models.ppgt.attention, A_ij = φ(p_ij) · softmax_j(q_i·k_j/√d_h - |k_j|²/(2√d_h) + θ(p_ij))

Every FFN is Linear, GELU, Linear. Heads are for pooled graphs, nodes, links, or class attention. In class attention a CLS token (learned +
MLP(n)) queries the node states through blocks without pair terms, and CLS is not a key. The root gets a learned embedding, and in training
the features of half of the nodes are masked. On Graphs with one root each this is the paper's Node2Subgraph model.

The default is the paper's formulas. recipes/ppgt/arxiv_released.yaml has the released code's formulas: 1 + φ for φ, q·k without 1/√d_h,
normal initial values in the stem's FFNs, a head whose hidden layers keep the width. For directed graphs the released code differs in two more
points. Walks and degrees use edges in both directions, unless walks are dual. An edge's features belong to the pair with the edge's target
as query and the edge's source as key. Degrees are out-degrees.

With `config.local` a trained local block L (models/operators/local_blocks.py) maps node states x to L(x). Join "gate" applies L before each
layer and scales the layer's branches by g. Join "top" applies L `num_layers` times between the encoded features and the stem's sum;
`local.top_layers` layers follow.

Cost: O(n²) pairs. If the stem exceeds `stem_memory` bytes, only P and p are kept at this size, and the backward pass computes the stem again,
block by block. If a layer's attention exceeds `pair_memory` bytes, the backward pass computes its scores again.

Legend: B graphs, n nodes, N places per graph, D width, E edge_width, C walk channels, r roots.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphmill.models.encodings.degree import inverse_degrees, inverse_orders, log_degrees, log_orders
from graphmill.models.encodings.random_walk import random_walk_probabilities, spe
from graphmill.models.ends.features import FeatureEncoder, NodeInput
from graphmill.models.ends.heads import FullWidthMLP, HalvingMLP, read_out
from graphmill.models.operators.local_blocks import LayerScale, LocalLayers
from graphmill.models.ppgt.ablations import DegreeScaler, NodeBatchNorm, PerceptronAttention, normalise_places
from graphmill.models.ppgt.attention import Sl2Attention, sl2_attention
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.ada_rms_norm import AdaRMSNorm
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.models.primitives.dropout import Dropout, DropPath
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.random_numbers import uniform
from graphmill.models.primitives.segments import is_readable

# Number of pairs per block of the stem: on a CPU the number that fits its caches, on other devices enough to fill the device.
_BLOCK_PAIRS_CPU = 1 << 13
_BLOCK_PAIRS = 1 << 19


class FeedForward(nn.Module):
    """Linear, GELU, Linear."""

    def __init__(self, width: int, ratio: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(nn.functional.gelu(self.hidden(x))))


class PairStem(nn.Module):
    """Computes p_ij of all pairs, [B, N, N, E], in blocks of graphs that fit a CPU's caches (on a GPU: that fill the GPU)."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        self.config = config
        codes = 1 + 2 * config.spe_scales
        self.num_own = config.walk_channels + config.positions  # channels of the pair itself, not of one node
        self.hidden = nn.Linear(codes * config.pair_channels, config.stem_hidden)
        self.out = nn.Linear(config.stem_hidden, config.edge_width)
        self.edge = None if config.edge.empty else FeatureEncoder(config.edge, config.edge_width)
        self.input_norm = _norm(config, config.edge_width) if config.input_norms else None
        self.ffn_norms = nn.ModuleList(_norm(config, config.edge_width) for _ in range(config.stem_layers))
        self.ffns = nn.ModuleList(FeedForward(config.edge_width, config.stem_ratio) for _ in range(config.stem_layers))
        self.branches = nn.ModuleList(
            _branch(config, config.edge_width) if config.stem_branch else nn.Identity()
            for _ in range(config.stem_layers)
        )
        self.norm = _norm(config, config.edge_width)

    def forward(self, walks_BNNC: Tensor, graphs: Graphs) -> Tensor:
        """`walks_BNNC`: P and, with `positions`, differences of positions. If the stem exceeds `stem_memory`, the backward pass computes the stem again."""
        start_BNH, end_BNH = self._ends(graphs, walks_BNNC.dtype)
        edges_BNNE = (
            None if self.edge is None else graphs.padding.pad_pairs(self.edge(graphs.edge_attr), self.config.edge_query)
        )
        size, places = walks_BNNC.shape[:2]
        most = _BLOCK_PAIRS_CPU if walks_BNNC.device.type == "cpu" else _BLOCK_PAIRS
        count = max(most // max(places * places, 1), 1)
        again = torch.is_grad_enabled() and size * places * places * self._kept_bytes > self.config.stem_memory
        blocks = []
        for first in range(0, size, count):
            b = slice(first, first + count)
            block = (walks_BNNC[b], start_BNH[b], end_BNH[b], None if edges_BNNE is None else edges_BNNE[b])
            if again:
                # The recomputation drops the same graphs.
                draws = self.config.stem_branch
                blocks.append(checkpoint(self._pairs, *block, use_reentrant=False, preserve_rng_state=draws))
            else:
                blocks.append(self._pairs(*block))
        if not blocks:
            return walks_BNNC.new_zeros(size, places, places, self.config.edge_width)
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    @property
    def _kept_bytes(self) -> int:
        """Bytes that autograd keeps for a pair: SPE, input and output of each GELU and of each norm, and each branch's two inputs."""
        config = self.config
        codes = (1 + 2 * config.spe_scales) * self.num_own
        of_ffn = 2 + 2 * config.stem_ratio + 2 * config.stem_branch
        numbers = codes + 2 * config.stem_hidden + (config.stem_layers * of_ffn + 1) * config.edge_width
        return numbers * self.hidden.weight.element_size()

    def _ends(self, graphs: Graphs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns two terms [B, N, H] of the hidden layer of (i, j): one from 1/n, 1/deg_i and the bias, one from 1/deg_j.

        Each term depends on one node of the pair only, so the first linear map is applied to nodes, not to pairs.
        """
        config, padding = self.config, graphs.padding
        codes = 1 + 2 * config.spe_scales
        weight_n, weight_i, weight_j = (
            self.hidden.weight[:, codes * (self.num_own + c) : codes * (self.num_own + c + 1)] for c in range(3)
        )
        order_B1 = inverse_orders(graphs, dtype).unsqueeze(1)
        start_BNH = nn.functional.linear(spe(order_B1, config.spe_scales), weight_n, self.hidden.bias).unsqueeze(1)
        if not config.degree_channels:
            start_BNH = start_BNH.expand(-1, padding.num_places, -1)
            return start_BNH, torch.zeros_like(start_BNH)
        inverse_n = inverse_degrees(graphs, undirected=config.undirected_walks, dtype=dtype)
        degree_BN1 = padding.pad(inverse_n).unsqueeze(2)
        code_BNS = spe(degree_BN1, config.spe_scales)
        return start_BNH + nn.functional.linear(code_BNS, weight_i), nn.functional.linear(code_BNS, weight_j)

    def _pairs(self, walks_bNNC: Tensor, start_bNH: Tensor, end_bNH: Tensor, edges_bNNE: Tensor | None) -> Tensor:
        codes = 1 + 2 * self.config.spe_scales
        weight = self.hidden.weight[:, : codes * self.num_own]
        hidden = nn.functional.linear(spe(walks_bNNC, self.config.spe_scales), weight)
        hidden += start_bNH.unsqueeze(2)
        hidden += end_bNH.unsqueeze(1)
        p_bNNE = self.out(nn.functional.gelu(hidden))
        if edges_bNNE is not None:
            p_bNNE = p_bNNE + edges_bNNE
        if self.input_norm is not None:
            p_bNNE = self.input_norm(p_bNNE)
        for norm, ffn, branch in zip(self.ffn_norms, self.ffns, self.branches, strict=True):
            p_bNNE = p_bNNE + branch(ffn(norm(p_bNNE)))
        return self.norm(p_bNNE)


class NodeStem(nn.Module):
    """x⁰, [B, N, D]."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        self.config = config
        self.features = None if config.node.empty else FeatureEncoder(config.node, config.width)
        self.input = NodeInput(config.input_dropout, config.scale_rows, linear=True)
        self.walks = nn.Linear(config.walk_channels, config.width)
        self.degree = nn.Linear(1, config.width) if config.node_sizes and config.node_degrees else None
        self.order = nn.Linear(1, config.width) if config.node_sizes and not config.positions else None
        self.position = nn.Linear(config.positions, config.width) if config.positions else None
        self.root_D = nn.Parameter(torch.empty(config.width)) if config.root_embedding else None

    def forward(self, walks_BNNC: Tensor, graphs: Graphs, local: LocalLayers | None = None) -> Tensor:
        """`local`: the local layers between the encoded features and the sum."""
        padding, dtype = graphs.padding, walks_BNNC.dtype
        x_BND = self.walks(walks_BNNC.diagonal(dim1=1, dim2=2).transpose(1, 2))
        if self.features is not None:
            rows = None if graphs.x is None else self.input(graphs.x)
            x_nD = self.features(rows)
            if local is not None:
                x_nD = local.in_front(x_nD, graphs.adjacency)
            if self.training and self.config.node_masking:
                seen = uniform((x_nD.shape[0], 1), x_nD.device) >= self.config.node_masking
                x_nD = x_nD * seen
            x_BND = x_BND + padding.pad(x_nD)
        sizes: list[Tensor] = []
        if self.degree is not None:
            sizes.append(self.degree(log_degrees(graphs, undirected=self.config.undirected_walks, dtype=dtype)))
        if self.order is not None:
            sizes.append(self.order(log_orders(graphs, dtype)))
        if self.position is not None:
            sizes.append(self.position(_places(graphs, self.config, dtype)))
        if sizes:
            x_BND = x_BND + padding.pad(sum(sizes[1:], sizes[0]))
        if self.root_D is not None and graphs.root_index is not None:
            marked_BN1 = torch.zeros(padding.mask_BN.numel(), 1, dtype=x_BND.dtype, device=x_BND.device)
            marked_BN1 = marked_BN1.index_fill(0, padding.slot_n[graphs.root_index], 1.0).view(*x_BND.shape[:2], 1)
            x_BND = x_BND + marked_BN1 * self.root_D.to(x_BND.dtype)
        return x_BND


class PPGTLayer(nn.Module):
    """Applies sL2 attention over all pairs, then the FFN; pre-norm."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        self.attention = PerceptronAttention(config) if config.attention == "conditional" else Sl2Attention(config)
        self.scaler = DegreeScaler(config) if config.degree_scaler else None
        self.ffn = FeedForward(config.width, config.ffn_ratio, config.dropout)
        self.norm_1, self.norm_2 = _node_norm(config), _node_norm(config)
        self.branch_1, self.branch_2 = _branch(config, config.width), _branch(config, config.width)

    def forward(self, x_BND: Tensor, p_BNNE: Tensor, graphs: Graphs) -> Tensor:
        h_BND = normalise_places(self.norm_1, x_BND, graphs)
        if isinstance(self.attention, PerceptronAttention):
            h_BND = self.attention(h_BND, p_BNNE, graphs)
        else:
            h_BND = self.attention(h_BND, p_BNNE, graphs.padding.mask_BN)
        if self.scaler is not None:
            h_BND = self.scaler(h_BND, graphs)
        x_BND = x_BND + self.branch_1(h_BND)
        return x_BND + self.branch_2(self.ffn(normalise_places(self.norm_2, x_BND, graphs)))


class ClassLayer(nn.Module):
    """Updates one token per graph: the token queries the graph's nodes by sL2 attention without pair terms, then passes the FFN. The token is not a key."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        width = config.width
        self.num_heads, self.attention_dropout = config.num_heads, config.attention_dropout
        self.qk_scale = 1.0 if config.unscaled_qk else None
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.ffn = FeedForward(width, config.ffn_ratio, config.dropout)
        self.norm_1, self.norm_2 = _norm(config, width), _norm(config, width)
        self.branch_1, self.branch_2 = _branch(config, width), _branch(config, width)
        self.normalises_nodes = config.class_norm == "each"

    def forward(self, token_B1D: Tensor, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        nodes_BND = self.norm_1(x_BND) if self.normalises_nodes else x_BND
        token_B1D = token_B1D + self.branch_1(self._attend(self.norm_1(token_B1D), nodes_BND, mask_BN))
        return token_B1D + self.branch_2(self.ffn(self.norm_2(token_B1D)))

    def _attend(self, token_B1D: Tensor, x_BND: Tensor, mask_BN: Tensor) -> Tensor:
        size, places, width = x_BND.shape
        heads, channels = self.num_heads, width // self.num_heads
        q_BH1d = self.q(token_B1D).view(size, 1, heads, channels).transpose(1, 2)
        kv = self.kv(x_BND).view(size, places, 2, heads, channels).permute(2, 0, 3, 1, 4)
        # A graph without nodes gets zeros as values, not the values of its padding.
        v_BHNd = kv[1] * mask_BN.view(size, 1, places, 1)
        dropout = self.attention_dropout if self.training else 0.0
        y_BH1d = sl2_attention(q_BH1d, kv[0], v_BHNd, None, mask_BN, qk_scale=self.qk_scale, dropout=dropout)
        return self.out(y_BH1d.transpose(1, 2).reshape(size, 1, width))


class ClassAttention(nn.Module):
    """Returns [B, D]: the CLS token (learned + MLP(n)) after the class layers and AdaRMSN."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        width = config.width
        self.token_D = nn.Parameter(torch.empty(width))
        self.order = nn.Sequential(nn.Linear(1, max(width // 2, 1)), nn.GELU(), nn.Linear(max(width // 2, 1), width))
        self.node_norm = _norm(config, width) if config.class_norm == "before" else None
        self.layers = nn.ModuleList(ClassLayer(config) for _ in range(config.class_layers))
        self.norm = _norm(config, width)

    def forward(self, x_BND: Tensor, graphs: Graphs) -> Tensor:
        token_B1D = self.token_D + self.order(graphs.size_B.to(x_BND.dtype).unsqueeze(1)).unsqueeze(1)
        if self.node_norm is not None:
            x_BND = self.node_norm(x_BND)
        for layer in self.layers:
            token_B1D = layer(token_B1D, x_BND, graphs.padding.mask_BN)
        return self.norm(token_B1D.squeeze(1))


class PPGT(nn.Module):
    """Is PPGT for graphs, nodes or links; see the module's docstring for the equations."""

    def __init__(self, config: PPGTConfig) -> None:
        super().__init__()
        self.config = config
        self.node_stem, self.pair_stem = NodeStem(config), PairStem(config)
        self.input_norm = _node_norm(config) if config.input_norms else None
        count = config.local.num_global(config.num_layers)
        self.layers = nn.ModuleList(PPGTLayer(config) for _ in range(count))
        class_attention = config.readout == "class_attention"
        self.class_attention = ClassAttention(config) if class_attention else None
        self.norm = None if class_attention else _node_norm(config)
        self.pool_norm = RowBatchNorm(config.width) if config.pool_norm and config.task == "graph" else None
        self.head = None if config.task == "link" else _head(config)
        self._initialise()
        self.local = LocalLayers(config.local, config.width, config.num_layers)  # keeps its own initial values

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """Returns [B, out_dim] for graphs, [r, out_dim] for the nodes of root_index (None: all nodes), node states [n, D] for links.

        With class attention and task "node" each graph has one root, and root b is in graph b. Raises ValueError if features do not
        fit the config, or if roots do not fit class attention (checked on the CPU only).
        """
        self._check(graphs)
        dtype = self.node_stem.walks.weight.dtype
        walks_BNNC = random_walk_probabilities(
            graphs,
            self.config.walk_steps + 1,
            reverse=self.config.dual_walks,
            undirected=self.config.undirected_walks,
            normalisation=self.config.walk_normalisation,
            dtype=dtype,
        )
        x_BND = self.node_stem(walks_BNNC, graphs, self.local)
        if self.input_norm is not None:
            x_BND = normalise_places(self.input_norm, x_BND, graphs)
        if self.config.positions:
            walks_BNNC = torch.cat([walks_BNNC, self._differences(graphs, dtype)], dim=3)
        p_BNNE = self.pair_stem(walks_BNNC, graphs)
        del walks_BNNC
        device = x_BND.device.type
        if torch.is_autocast_enabled(device):  # once, not in every layer
            p_BNNE = p_BNNE.to(torch.get_autocast_dtype(device))
        for index in range(len(self.layers)):
            x_BND = self._layer(index, x_BND, p_BNNE, graphs)
        return self._read(x_BND, graphs)

    def _differences(self, graphs: Graphs, dtype: torch.dtype) -> Tensor:
        """[B, N, N, positions]: the position of j minus the position of i; 0 on padding."""
        places_BNP = graphs.padding.pad(_places(graphs, self.config, dtype))
        return (places_BNP.unsqueeze(1) - places_BNP.unsqueeze(2)) * graphs.padding.pair_mask_BNN.unsqueeze(3)

    def _layer(self, index: int, x_BND: Tensor, p_BNNE: Tensor, graphs: Graphs) -> Tensor:
        layer, local, padding = self.layers[index], self.local, graphs.padding
        if not local.gates:
            return layer(x_BND, p_BNNE, graphs)
        x_BND = padding.pad(local.layers[index](padding.unpad(x_BND), graphs.adjacency))
        return x_BND + local.gates[index](layer(x_BND, p_BNNE, graphs) - x_BND)

    def _read(self, x_BND: Tensor, graphs: Graphs) -> Tensor:
        if self.class_attention is not None:
            assert self.head is not None
            return self.head(self.class_attention(x_BND, graphs))
        assert self.norm is not None
        x_nD = self.norm(graphs.padding.unpad(x_BND))
        head = self.head if self.head is None or self.pool_norm is None else nn.Sequential(self.pool_norm, self.head)
        return read_out(x_nD, graphs, head, self.config.task, self.config.pool)

    def _check(self, graphs: Graphs) -> None:
        config = self.config
        if not config.edge.empty and graphs.edge_attr is None:
            raise ValueError(
                f"the model expects edge features ({config.edge}), the batch has none; set edge to Features()"
            )
        if config.positions and (graphs.x is None or not graphs.x.is_floating_point()):
            raise ValueError(
                f"the model expects a place in the last {config.positions} of numeric node features, the batch has none; set positions to 0"
            )
        if config.readout != "class_attention" or config.task != "node":
            return
        roots = graphs.root_index
        fits = roots is not None and roots.numel() == graphs.num_graphs
        if fits and roots is not None and is_readable(roots):
            fits = bool((graphs.graph_of_node[roots] == torch.arange(graphs.num_graphs)).all())
        if not fits:
            got = "none" if roots is None else f"{roots.numel()}"
            raise ValueError(
                f"class attention needs one root per graph, root b in graph b: {graphs.num_graphs} graphs, "
                f"got {got} roots; sample one subgraph per root, or set readout to direct"
            )

    @torch.no_grad()
    def _initialise(self) -> None:
        """Initialises linear maps with N(0, 0.02²), truncated at ±2, and biases with 0. The stems' linear maps are Kaiming-uniform: hidden maps with the gain
        for ReLU, last maps with the gain for the identity. GRIT's attention keeps its own initial values.
        """
        of_grit = {
            inner for own in self.modules() if isinstance(own, PerceptronAttention) for inner in own.attention.modules()
        }
        for module in self.modules():
            if isinstance(module, nn.Linear) and module not in of_grit:
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        stem = self.pair_stem
        hidden, last = [stem.hidden], [stem.out, self.node_stem.walks]
        if self.config.stem_init == "kaiming":
            for ffn in stem.ffns:
                assert isinstance(ffn, FeedForward)
                hidden.append(ffn.hidden)
                last.append(ffn.out)
        node = self.node_stem
        last += [linear for linear in (node.degree, node.order, node.position) if linear is not None]
        for encoder in (self.node_stem.features, stem.edge):
            if encoder is not None and encoder.linear is not None:
                last.append(encoder.linear)
            if encoder is not None and encoder.embedding is not None:
                # The sum of the columns' embeddings then has variance 1.
                nn.init.normal_(encoder.embedding.weight, std=len(encoder.features.categories) ** -0.5)
        for linear in hidden:
            nn.init.kaiming_uniform_(linear.weight, a=0)
        for linear in last:
            nn.init.kaiming_uniform_(linear.weight, a=1)
        for token_D in (self.node_stem.root_D, None if self.class_attention is None else self.class_attention.token_D):
            if token_D is not None:
                nn.init.trunc_normal_(token_D, std=0.02)


def _norm(config: PPGTConfig, width: int) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=1e-6)
    return AdaRMSNorm(width, identity=config.norm == "ada_identity")


def _node_norm(config: PPGTConfig) -> nn.Module:
    return NodeBatchNorm(config.width) if config.norm == "batch" else _norm(config, config.width)


def _places(graphs: Graphs, config: PPGTConfig, dtype: torch.dtype) -> Tensor:
    """[n, positions]."""
    assert graphs.x is not None
    return graphs.x[:, -config.positions :].to(dtype)


def _branch(config: PPGTConfig, width: int) -> nn.Module:
    """Makes the modules between a block and its residual sum."""
    steps: list[nn.Module] = [Dropout(config.dropout)] if config.dropout else []
    if config.layer_scale is not None:
        steps.append(LayerScale(width, config.layer_scale))
    steps.append(DropPath(config.drop_path))
    return nn.Sequential(*steps)


def _head(config: PPGTConfig) -> nn.Module:
    kind = HalvingMLP if config.head_shape == "halving" else FullWidthMLP
    return kind(config.width, config.out_dim, config.head_layers, nn.GELU, config.head_dropout)
