"""Implements TokenGT: nodes and edges are the tokens of a plain transformer (arXiv:2207.02505, NeurIPS 2022).

Tokens are a graph's n nodes v, as pairs (v, v), and m directed edges (u, v). Before them come [graph], for graph tasks, and,
with `null_token`, the code's [null].

    z_(u,v) = feature embedding + W_id [P_u ; P_v] + E_type        the paper's linear map of [feature, P_u, P_v, E_type]
    x ← x + MHA(LN x);  x ← x + FFN(LN x)                          pre-norm, both with stochastic depth p·(l+1)/L
    x_(i,i) ← x_(i,i) + Σ_{j≠i} x_(i,j)                            with `sparse_equivariant_basis` (SEB), after each layer
    y = W LN(x_[graph]);  y_v = W LN(x_(v,v)) for node tasks

P has orthonormal node identifiers, so that [P_u, P_v]·[P_k, P_k] gives the incidence. P is made of Laplacian eigenvectors, rows of a random
orthogonal matrix (ORF), or random signs for large graphs (near-ORF).

With `config.local` a trained local block L (models/operators/local_blocks.py) maps node tokens x to L(x). Join "gate" applies L before each
layer, and the layer then adds g ⊙ (MHA + FFN). Join "top" applies L `num_layers` times between the encoded features and the tokens;
`local.top_layers` layers follow.

The following options are not in the paper. They are for large graphs; the defaults are the paper's formulas.
`basis_reduction="mean"`: a sum of about fifty edge tokens outweighs a node's own features; the mean does not.
`init_std`: the paper initialises weights at 0.02 at a width of 768; at width 96, 0.1 learns faster (`recipes/defaults/graphs-tokengt.yaml`).
`unit_identifiers`: the entries of an eigenvector of length 1 are about n^-½, which is negligible against features on a large graph.
Each node's row of entries is therefore scaled to length 1, like the rows of truncated ORF.

Options of the released code that the paper does not have: `embedding_norm`, `null_token`, `head="code"`, `feature_table="slots"`,
`type_by_index`, `resample_in_eval`, `dead_modules`, `performer_as_released`. The feed-forward width (ratio 1) is from the code; the paper gives none.
Attention "performer" (models/operators/favor.py) is linear in n + m. A Performer model can load the weights of a trained softmax model, because the state
dicts differ only in Performer's projections.

A self-loop has the type of edges; the code infers the type from u = v (`type_by_index`).

Legend: B graphs, n nodes, E edges, T places for tokens per graph, D width, H heads, P identifier width.
"""

from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from graphmill.models.encodings.identifiers import node_identifiers, orthogonal_identifiers
from graphmill.models.encodings.laplacian import drop_entries, flip_signs, laplacian_eigenvectors
from graphmill.models.ends.features import FeatureEncoder, NodeInput
from graphmill.models.operators.favor import FavorAttention, KeyLayout
from graphmill.models.operators.local_blocks import LocalLayers
from graphmill.models.options.features import Features
from graphmill.models.parallel.graph import ShardedGraph
from graphmill.models.parallel.tokens import ShardedTokens
from graphmill.models.primitives.batch_norm import LayerNorm
from graphmill.models.primitives.dropout import Dropout, DropPath
from graphmill.models.primitives.graphs import Graphs, unit_values
from graphmill.models.primitives.segments import is_readable, reduce_runs
from graphmill.models.tokengt.options import SLOT, TokenGTConfig

MAX_DENSE_NODES = 4096  # largest graph whose eigenvectors a model computes, in O(n³)
MIN_LENGTH = 1e-6  # least length of an eigenvector row to scale; below is noise
EDGE_TYPE, NODE_TYPE = 0, 1  # rows of the type table, as in the code: int(u == v)


class TokenView:
    """Defines the position of each token in the padded view [B, T]: special tokens, then the graph's nodes, then the graph's edges by source.

    In this order the edges of a graph are contiguous, and so are the out-edges of a node, over which SEB sums.
    """

    def __init__(self, graphs: Graphs, num_special: int) -> None:
        device, num_nodes = graphs.node_ptr.device, graphs.num_nodes
        self.graphs, self.num_special, self.num_graphs = graphs, num_special, graphs.num_graphs
        source_E, self.order_E = graphs.edge_index[0].sort(stable=True)
        self.source_E, self.destination_E = source_E, graphs.edge_index[1][self.order_E]
        self.num_edges = source_E.numel()
        # Edges [edge_ptr[i], edge_ptr[i + 1]) leave node i.
        self.edge_ptr = torch.searchsorted(source_E, torch.arange(num_nodes + 1, device=device))
        self.edge_ptr_B = self.edge_ptr[graphs.node_ptr]
        tokens_B = num_special + graphs.size_B + self.edge_ptr_B.diff()
        self.num_places = self._count_places(tokens_B)
        place_T = torch.arange(self.num_places, device=device)
        self.mask_BT = place_T < tokens_B.unsqueeze(1)  # bool: the position holds a token
        # A graph without any token attends to its first position, so that no row of attention is empty.
        self.key_mask_BT = self.mask_BT | ((tokens_B == 0).unsqueeze(1) & (place_T == 0))
        self.graph_E = graphs.graph_of_node[source_E]
        node_place = torch.arange(num_nodes, device=device) - graphs.node_ptr[graphs.graph_of_node]
        edge_place = torch.arange(self.num_edges, device=device) - self.edge_ptr_B[self.graph_E]
        self.slot_n = graphs.graph_of_node * self.num_places + num_special + node_place
        self.slot_E = self.graph_E * self.num_places + num_special + graphs.size_B[self.graph_E] + edge_place

    def _count_places(self, tokens_B: Tensor) -> int:
        graphs = self.graphs
        if self.num_graphs == 0:
            return self.num_special
        if self.num_graphs == 1:
            return self.num_special + graphs.num_nodes + self.num_edges
        if not is_readable(tokens_B) and graphs.max_nodes is not None and graphs.max_edges is not None:
            return self.num_special + graphs.max_nodes + graphs.max_edges  # an upper bound, read without a wait
        return int(tokens_B.max())

    keys: KeyLayout | None = None  # all keys are here

    @property
    def is_loop_E(self) -> Tensor:
        """bool [E]: True for self-loops."""
        return self.source_E == self.destination_E

    def at_ends(self, x_nP: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rows [E, P] of each edge's source and the rows [E, P] of each edge's destination."""
        return x_nP[self.source_E], x_nP[self.destination_E]

    def assemble(self, special_SD: Tensor, node_nD: Tensor, edge_ED: Tensor) -> Tensor:
        """[B, T, D]; padding is 0."""
        rows = torch.cat([node_nD, edge_ED])
        flat = rows.new_zeros(self.num_graphs * self.num_places, rows.shape[1])
        flat = flat.index_copy(0, torch.cat([self.slot_n, self.slot_E]), rows)
        x_BTD = flat.view(self.num_graphs, self.num_places, rows.shape[1])
        if not self.num_special:
            return x_BTD
        special_BSD = special_SD.to(rows.dtype).expand(self.num_graphs, -1, -1)
        return torch.cat([special_BSD, x_BTD[:, self.num_special :]], dim=1)

    def nodes(self, x_BTD: Tensor) -> Tensor:
        """[n, D]: the node tokens."""
        return x_BTD.flatten(0, 1).index_select(0, self.slot_n)

    def with_nodes(self, x_BTD: Tensor, node_nD: Tensor) -> Tensor:
        """Returns the same tokens with new node tokens."""
        return x_BTD.flatten(0, 1).index_copy(0, self.slot_n, node_nD.to(x_BTD.dtype)).view(x_BTD.shape)

    def add_edges_to_nodes(self, x_BTD: Tensor, reduction: str = "sum") -> Tensor:
        """Applies SEB: x_(i,i) + Σ_{j≠i} x_(i,j), summed per node in a fixed order; "mean" divides the sum by the number of edges j ≠ i."""
        flat = x_BTD.flatten(0, 1)
        edge_ED = flat.index_select(0, self.slot_E)
        edge_ED = edge_ED * (~self.is_loop_E).unsqueeze(1).to(edge_ED.dtype)
        sum_nD = reduce_runs(edge_ED, self.edge_ptr, "sum")
        if reduction == "mean":
            sum_nD = sum_nD / self.degree_n.clamp(min=1).unsqueeze(1).to(sum_nD.dtype)
        return self.with_nodes(x_BTD, flat.index_select(0, self.slot_n) + sum_nD)

    @cached_property
    def degree_n(self) -> Tensor:
        """int64 [n]: number of a node's out-edges without self-loops."""
        loops = self.is_loop_E.long()
        running = torch.cat([loops.new_zeros(1), loops.cumsum(0)])
        return self.edge_ptr.diff() - running[self.edge_ptr].diff()

    def token_graphs(self) -> tuple[Graphs, Tensor, Tensor]:
        """Returns an edgeless graph with one node per node token and edge token, and the positions in it of nodes [n] and edges [E]."""
        graphs = self.graphs
        token_graphs = Graphs(
            graphs.node_ptr + self.edge_ptr_B,
            graphs.edge_index.new_zeros(2, 0),
            max_nodes=self.num_places - self.num_special,
        )
        position_n = torch.arange(graphs.num_nodes, device=graphs.node_ptr.device)
        position_E = torch.arange(self.num_edges, device=graphs.node_ptr.device)
        return (
            token_graphs,
            position_n + self.edge_ptr_B[graphs.graph_of_node],
            position_E + graphs.node_ptr[self.graph_E + 1],
        )


class TokenEmbedding(nn.Module):
    """Computes z_(u,v): features, node identifiers and type of every token, laid out by a TokenView."""

    def __init__(self, config: TokenGTConfig) -> None:
        super().__init__()
        self.config = config
        self.input = NodeInput(config.input_dropout, config.scale_rows, linear=True)

        def encoder(features: Features) -> nn.Module | None:
            slot = SLOT if config.feature_table == "slots" else 0
            return None if features.empty else FeatureEncoder(features, config.width, slot)

        self.node, self.edge = encoder(config.node), encoder(config.edge)
        has_identifier = config.identifier != "none"
        self.identifier = nn.Linear(2 * config.identifier_dim, config.width, bias=False) if has_identifier else None
        self.token_type = nn.Embedding(2, config.width) if config.type_identifier else None
        self.graph_token = nn.Embedding(1, config.width) if config.task == "graph" else None
        self.null_token = nn.Embedding(1, config.width) if config.null_token else None
        self.anchor: Tensor  # gives dtype and device even if there is no parameter
        self.register_buffer("anchor", torch.zeros(1, config.width), persistent=False)

    def forward(self, view: TokenView | ShardedTokens, local: LocalLayers | None = None) -> Tensor:
        """Returns [B, T, D]; `local`: the local layers between the encoded features and the tokens."""
        graphs, anchor = view.graphs, self.anchor
        node_nD = anchor.expand(graphs.num_nodes, -1)
        edge_ED = anchor.expand(view.num_edges, -1)
        if self.node is not None:
            node_nD = node_nD + self.node(None if graphs.x is None else self.input(graphs.x))
        if local is not None:
            node_nD = local.in_front(node_nD, graphs.adjacency)
        if self.edge is not None and view.num_edges:
            # Edges are encoded before they are sorted, so that an error names the caller's row.
            edge_ED = edge_ED + self.edge(graphs.edge_attr).index_select(0, view.order_E)
        if self.identifier is not None:
            pair_n, pair_E = self._identifiers(view)
            # The pairs are constants, so the gradient ends at W_id and needs no scatter over nodes.
            node_nD = node_nD + self.identifier(pair_n)
            edge_ED = edge_ED + self.identifier(pair_E)
        if self.token_type is not None:
            node_nD = node_nD + self.token_type.weight[NODE_TYPE]
            if self.config.type_by_index:
                edge_ED = edge_ED + self.token_type(view.is_loop_E.long())
            else:
                edge_ED = edge_ED + self.token_type.weight[EDGE_TYPE]
        special = [token.weight for token in (self.graph_token, self.null_token) if token is not None]
        return view.assemble(torch.cat(special) if special else anchor[:0], node_nD, edge_ED)

    @torch.no_grad()
    def _identifiers(self, view: TokenView | ShardedTokens) -> tuple[Tensor, Tensor]:
        """Returns [P_v ; P_v] for the nodes [n, 2P] and [P_u ; P_v] for the edges [E, 2P]."""
        kind, dim = self.config.identifier, self.config.identifier_dim
        if kind in ("orf_first_order", "random_first_order"):
            # The ablations of the paper's table 1: every token has its own identifier, which has no information about the token's nodes.
            assert isinstance(view, TokenView), "config.shards"
            tokens, position_n, position_E = view.token_graphs()
            rows = self._drawn_identifiers(tokens, kind.removesuffix("_first_order"), 2 * dim)
            return rows[position_n], rows[position_E]
        p_nP = self._node_identifiers(view.graphs)
        return torch.cat([p_nP, p_nP], dim=1), torch.cat(view.at_ends(p_nP), dim=1)

    def _seed(self) -> int | None:
        return None if self.training or self.config.resample_in_eval else self.config.seed

    def _drawn_identifiers(self, graphs: Any, kind: Any, dim: int) -> Tensor:
        seed, device, dtype = self._seed(), self.anchor.device, self.anchor.dtype
        if kind == "orf":
            return orthogonal_identifiers(graphs, dim, seed=seed, dtype=dtype)
        # Without permanent ids the key is the position in the graph, because in evaluation the batch must not change a graph's prediction.
        key_n = graphs.node_id
        if key_n is None:
            key_n = torch.arange(graphs.num_nodes, device=device) - graphs.node_ptr[graphs.graph_of_node]
        return node_identifiers(kind, graphs.num_nodes, dim, seed=seed, key_n=key_n, device=device, dtype=dtype)

    def _node_identifiers(self, graphs: Any) -> Tensor:
        config = self.config
        if config.identifier != "laplacian":
            return self._drawn_identifiers(graphs, config.identifier, config.identifier_dim)
        vectors_nP = self._eigenvectors(graphs)
        if config.unit_identifiers:
            vectors_nP = nn.functional.normalize(vectors_nP, dim=1, eps=MIN_LENGTH)
        if self.training:
            vectors_nP = drop_entries(vectors_nP, config.eigenvector_dropout)
            if config.sign_flip:
                vectors_nP = flip_signs(vectors_nP, graphs)
        return vectors_nP

    def _eigenvectors(self, graphs: Any) -> Tensor:
        config, dtype = self.config, self.anchor.dtype
        if config.encoding is None:
            if graphs.padding.num_places > MAX_DENSE_NODES:
                raise ValueError(
                    f"eigenvectors are computed on the fly up to {MAX_DENSE_NODES} nodes, got a graph of "
                    f"{graphs.padding.num_places}; store them with the graph and set encoding to their name"
                )
            return laplacian_eigenvectors(graphs, config.identifier_dim, config.laplacian_ends, dtype=dtype)[0]
        if config.encoding not in graphs.encodings:
            raise ValueError(
                f"the model expects the encoding {config.encoding!r}, the batch has {sorted(graphs.encodings) or 'none'}; "
                "store it with the graph, or set encoding to None"
            )
        rows = graphs.encodings[config.encoding]
        if rows.shape != (graphs.num_nodes, config.identifier_dim):
            raise ValueError(
                f"the encoding {config.encoding!r} must be [{graphs.num_nodes}, {config.identifier_dim}], "
                f"got {tuple(rows.shape)}; set identifier_dim to its width"
            )
        return rows.to(dtype)


class Attention(nn.Module):
    """Is multi-head self-attention over a graph's tokens: softmax through SDPA, or FAVOR+."""

    kept_weights: list[Tensor] | None = None  # each call appends its weights [B, H, T, T]; None: they are not kept

    def __init__(self, config: TokenGTConfig, layer: int) -> None:
        super().__init__()
        self.num_heads, self.dropout = config.num_heads, config.attention_dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.favor = None
        if config.attention == "performer":
            self.favor = FavorAttention(
                config.width // config.num_heads,
                config.performer_features,
                epsilon=config.performer_epsilon,
                released=config.performer_as_released,
                redraw_interval=config.redraw_interval,
                seed=config.seed * 1000 + layer,
            )

    def forward(self, x_BTD: Tensor, key_mask_BT: Tensor | None, keys: KeyLayout | None = None) -> Tensor:
        shape = x_BTD.shape
        qkv = self.qkv(x_BTD).view(*shape[:2], 3, self.num_heads, -1)
        q_BHTd, k_BHTd, v_BHTd = qkv.permute(2, 0, 3, 1, 4)

        def attend(v_BHTe: Tensor) -> Tensor:
            if self.favor is not None:
                return self.favor(q_BHTd, k_BHTd, v_BHTe, key_mask_BT, keys)
            return nn.functional.scaled_dot_product_attention(
                q_BHTd,
                k_BHTd,
                v_BHTe,
                attn_mask=None if key_mask_BT is None else key_mask_BT[:, None, None, :],
                dropout_p=self.dropout if self.training else 0.0,
            )

        if self.kept_weights is not None:
            self.kept_weights.append(attend(unit_values(v_BHTd)))
        return self.out(attend(v_BHTd).transpose(1, 2).reshape(shape))


class Block(nn.Module):
    """Computes x + MHA(LN x), then x + FFN(LN x). Training drops each branch per graph with probability `drop_path`."""

    def __init__(self, config: TokenGTConfig, layer: int) -> None:
        super().__init__()
        width, ffn_width = config.width, config.ffn_width or config.width
        self.drop_path = DropPath(config.drop_path * (layer + 1) / config.num_layers)
        self.attention_norm, self.ffn_norm = LayerNorm(width), LayerNorm(width)
        self.attention = Attention(config, layer)
        self.fc1, self.fc2 = nn.Linear(width, ffn_width), nn.Linear(ffn_width, width)
        self.activation_dropout, self.dropout = Dropout(config.activation_dropout), Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, key_mask_BT: Tensor | None, keys: KeyLayout | None = None) -> Tensor:
        attended_BTD = self.attention(self.attention_norm(x_BTD), key_mask_BT, keys)
        x_BTD = x_BTD + self.drop_path(self.dropout(attended_BTD))
        hidden = self.activation_dropout(nn.functional.gelu(self.fc1(self.ffn_norm(x_BTD))))
        return x_BTD + self.drop_path(self.dropout(self.fc2(hidden)))


class PaperHead(nn.Module):
    """W LN(x)."""

    def __init__(self, width: int, out_dim: int) -> None:
        super().__init__()
        self.norm, self.out = LayerNorm(width), nn.Linear(width, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


class CodeHead(nn.Module):
    """W₂ LN(GELU(W₁ x)) + b with one scalar b for all outputs."""

    def __init__(self, width: int, out_dim: int) -> None:
        super().__init__()
        self.transform, self.norm = nn.Linear(width, width), LayerNorm(width)
        self.out, self.bias = nn.Linear(width, out_dim, bias=False), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(nn.functional.gelu(self.transform(x)))) + self.bias


class TokenGT(nn.Module):
    """Applies TokenGT to a batch of graphs; see the module's docstring for the equations."""

    def __init__(self, config: TokenGTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config)
        self.embedding_norm = LayerNorm(config.width) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.local.num_global(config.num_layers)))
        if config.task == "link":
            self.head: nn.Module = LayerNorm(config.width)
        else:
            self.head = (PaperHead if config.head == "paper" else CodeHead)(config.width, config.out_dim)
        if config.dead_modules:
            self.dead_norm, self.dead_pooler = LayerNorm(config.width), nn.Linear(config.width, config.width)
            for parameter in (*self.dead_norm.parameters(), *self.dead_pooler.parameters()):
                parameter.requires_grad_(False)  # never used, so DDP would wait for their gradients
        self.apply(partial(_initialise, std=config.init_std))
        self.local = LocalLayers(config.local, config.width, config.num_layers)  # keeps its own initial values

    def forward(self, graphs: Graphs | ShardedGraph, *, epoch: int = 0) -> Tensor:
        """Returns [B, out_dim] for graph tasks; [r, out_dim] at the roots for node tasks; [n, width] for link tasks.

        Memory is O(B·T), where T = n + m is the number of tokens of the largest graph. The attention "performer" and SDPA's fused kernels
        build no T × T matrix. `epoch` is not used. Raises ValueError if features or encodings of the config are missing in the batch.
        """
        view = self._view(graphs)
        x_BTD = self.dropout(self.embedding_norm(self.embedding(view, self.local)))
        # One graph has no padding, and attention without a mask is faster.
        key_mask_BT = None if view.num_graphs == 1 else view.key_mask_BT
        if x_BTD.numel() or view.keys is not None:
            for index in range(len(self.layers)):
                x_BTD = self._layer(index, x_BTD, view, key_mask_BT)
                if self.config.sparse_equivariant_basis:
                    x_BTD = view.add_edges_to_nodes(x_BTD, self.config.basis_reduction)
        if self.config.task == "graph":
            return self.head(x_BTD[:, 0])
        x_nD = view.nodes(x_BTD)
        if self.config.task == "node" and graphs.root_index is not None:
            x_nD = x_nD[graphs.root_index]
        return self.head(x_nD)

    def _layer(self, index: int, x_BTD: Tensor, view: TokenView | ShardedTokens, key_mask_BT: Tensor | None) -> Tensor:
        layer, local = self.layers[index], self.local
        if not local.gates:
            return layer(x_BTD, key_mask_BT, view.keys)
        x_BTD = view.with_nodes(x_BTD, local.layers[index](view.nodes(x_BTD), view.graphs.adjacency))
        return x_BTD + local.gates[index](layer(x_BTD, key_mask_BT, view.keys) - x_BTD)

    def _view(self, graphs: Graphs | ShardedGraph) -> TokenView | ShardedTokens:
        if isinstance(graphs, ShardedGraph):
            return ShardedTokens(graphs)
        return TokenView(graphs, self.config.num_special)


def _initialise(module: nn.Module, std: float) -> None:
    """Initialises every Linear and Embedding with N(0, std²), and biases and the padding row with 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
