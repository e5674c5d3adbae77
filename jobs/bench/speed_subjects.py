"""Subjects of `jobs/bench/speed.py`: attentions alone, a post-norm block around each attention, stacks of blocks, and forms in plain PyTorch.

    X' = LN(Mix(X) + X),  X'' = LN(FFN(X') + X')

GECO's layer has this form. All other mixers therefore get the same block with the same feed-forward network. The plain forms compute the same outputs
with the same weights (tests compare them). `PlainGECOLayer` follows the paper's formulas in PyTorch operators: torch.sparse, autograd through
torch.fft, the filter's FFN over all positions, and every intermediate array kept for the backward pass. `PlainGrit` and `PlainPpgt` list all pairs,
then gather and scatter, like GRIT's released code.

Imports only torch and models: a GPU machine may have no other package. Shapes: N nodes, E edges, P pairs, D width, K order, H heads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphmill.models.geco.network import GECO, FeedForward, GECOLayer
from graphmill.models.geco.options import GECOConfig
from graphmill.models.grit.attention import ConditionalAttention, Pairs
from graphmill.models.grit.options import GRITConfig
from graphmill.models.operators.favor import FavorAttention
from graphmill.models.ppgt.attention import Sl2Attention
from graphmill.models.ppgt.options import PPGTConfig
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.node_order import Order, node_order
from graphmill.models.primitives.propagation import Adjacency
from graphmill.models.primphormer.attention import PrimalAttention
from graphmill.models.primphormer.options import PrimalOptions

IN_DIM, OUT_DIM = 100, 47  # input and output width of the whole models, as for ogbn-products
DROPOUT = 0.2  # dropout rate of GRIT's and PPGT's attention


@dataclass(frozen=True)
class Shape:
    """Sizes of every subject."""

    width: int
    heads: int
    layers: int
    order: int
    graphs: int = 1
    """Number of graphs of equal size into which the nodes are divided; GECO takes all nodes as one graph."""


class RegularGraph:
    """N nodes with `degree` random neighbours each: i and j are neighbours if σ(i) - σ(j) is one of a few random offsets.

    The graph is symmetric and has no self loops or parallel edges. It is built in O(E) on the device. `degree` must be even and at most N - 2.
    """

    def __init__(self, num_nodes: int, degree: int, device: str, seed: int = 0) -> None:
        if degree % 2 or not 0 < degree <= num_nodes - 2:
            raise ValueError(f"degree must be even, positive and at most {num_nodes - 2}, got {degree}; set degree")
        self.num_nodes, self.num_edges = num_nodes, num_nodes * degree
        generator = torch.Generator().manual_seed(seed)
        place_N = torch.randperm(num_nodes, generator=generator).to(device)
        node_N = Order.of(place_N).inverse_N
        offsets = (1 + torch.randperm((num_nodes - 1) // 2, generator=generator)[: degree // 2]).tolist()
        dtype = torch.int32 if self.num_edges < 2**31 else torch.int64
        source_NE = torch.empty(num_nodes, degree, dtype=dtype, device=device)
        for column, offset in enumerate([*offsets, *(-o for o in offsets)]):
            source_NE[:, column] = node_N[(place_N + offset).remainder(num_nodes)]
        self.indptr = torch.arange(num_nodes + 1, dtype=dtype, device=device) * degree
        self.indices = source_NE.flatten()
        self.adjacency = Adjacency(self.indptr, self.indices, symmetric=True)
        self.node_id_N = torch.arange(num_nodes, device=device)
        self.order = Order.of(node_order(self.node_id_N, 0))

    def mean_matrix(self) -> Tensor:
        """D⁻¹A as a sparse CSR tensor."""
        degree = self.num_edges // self.num_nodes
        values = torch.full((self.num_edges,), 1 / degree, device=self.indices.device)
        size = (self.num_nodes, self.num_nodes)
        return torch.sparse_csr_tensor(self.indptr, self.indices, values, size=size, check_invariants=False)

    def packed(self, graphs: int = 1) -> Graphs:
        """The nodes as a batch of `graphs` graphs, without edges: no attention reads edges."""
        device, size = self.indices.device, self.num_nodes // graphs
        return Graphs(
            node_ptr=torch.arange(graphs + 1, device=device) * size,
            edge_index=torch.empty(2, 0, dtype=torch.int64, device=device),
            node_id=self.node_id_N,
            max_nodes=size,
        )


# A mixer takes x [N, D] and the state that the mixer before it returned (for example states of pairs). It returns its output and the next state.


class ProjectedMixer(nn.Module):
    """Attention over q, k, v [G, H, n, d], with linear projections before and after."""

    def __init__(self, shape: Shape, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.shape, self.attend = shape, attend
        self.qkv, self.out = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)

    def forward(self, x_ND: Tensor, handed: Any) -> tuple[Tensor, Any]:
        q, k, v = (
            self.qkv(x_ND)
            .view(self.shape.graphs, -1, 3, self.shape.heads, self.shape.width // self.shape.heads)
            .permute(2, 0, 3, 1, 4)
        )
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(x_ND.shape)), handed


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention by SDPA. CUDA uses the flash kernel, which takes only half precision: Q, K and V are converted."""
    if not q.is_cuda:
        return functional.scaled_dot_product_attention(q, k, v)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return functional.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).to(q.dtype)


class PrimalMixer(nn.Module):
    """Primphormer's attention. Its next state is the KSVD loss."""

    def __init__(self, shape: Shape, batch: Graphs) -> None:
        super().__init__()
        self.batch, self.attend = batch, PrimalAttention(shape.width, shape.heads, PrimalOptions())

    def forward(self, x_ND: Tensor, handed: Any) -> tuple[Tensor, Tensor]:
        return self.attend(x_ND, self.batch)[:2]


class GritMixer(nn.Module):
    """GRIT's attention over all pairs."""

    def __init__(self, shape: Shape, batch: Graphs) -> None:
        super().__init__()
        self.padding = batch.padding
        options = GRITConfig(width=shape.width, num_heads=shape.heads, score_clamp=5.0, attention_dropout=DROPOUT)
        self.attend = ConditionalAttention(options)

    def forward(self, x_ND: Tensor, pairs: Tensor | Pairs) -> tuple[Tensor, Pairs]:
        return self.attend(x_ND, Pairs(pairs) if isinstance(pairs, Tensor) else pairs, self.padding)


class PlainGrit(nn.Module):
    """GRIT's attention as in GRIT's released code, over rows of pairs, with the weights of a layer."""

    def __init__(self, layer: ConditionalAttention, width: int, batch: Graphs) -> None:
        super().__init__()
        self.layer, self.norm, self.index = layer, nn.BatchNorm1d(width), complete_index(batch)

    def forward(self, x_ND: Tensor, e_PD: Tensor) -> tuple[Tensor, Tensor]:
        layer, index, size, heads = self.layer, self.index, x_ND.shape[0], self.layer.num_heads
        q, k, v = (part(x_ND).view(size, heads, -1) for part in (layer.query, layer.key, layer.value))
        w, b = layer.edge(e_PD).view(e_PD.shape[0], heads, -1).chunk(2, dim=-1)
        score = (k[index[0]] + q[index[1]]) * w
        score = torch.sqrt(torch.relu(score)) - torch.sqrt(torch.relu(-score))
        hat = torch.relu(score + b)
        score = torch.einsum("ehd,dhc->ehc", hat, layer.score)
        if layer.clamp is not None:
            score = score.clamp(-layer.clamp, layer.clamp)
        alpha = functional.dropout(scatter_softmax(score, index[1], size), layer.attention_dropout, layer.training)
        row = scatter_sum(hat * alpha, index[1], size)
        out = scatter_sum(v[index[0]] * alpha, index[1], size) + torch.einsum("nhd,dhc->nhc", row, layer.edge_value)
        fresh = functional.dropout(hat.flatten(1), layer.dropout, layer.training)
        return out.flatten(1), self.norm(layer.edge_out(fresh) + e_PD)


class PpgtMixer(nn.Module):
    """PPGT's sL2 attention with URPE over all pairs. The states of pairs pass through unchanged."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, heads = shape.width, shape.heads
        options = PPGTConfig(width=width, num_heads=heads, edge_width=width, attention_dropout=DROPOUT)
        self.graphs, self.attend = shape.graphs, Sl2Attention(options)

    def forward(self, x_ND: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        return self.attend(x_ND.view(self.graphs, -1, x_ND.shape[1]), pairs, None).flatten(0, 1), pairs


class PlainPpgt(nn.Module):
    """PPGT's sL2 attention with URPE over rows of pairs, gathered and scattered, with the weights of a layer."""

    def __init__(self, layer: Sl2Attention, batch: Graphs) -> None:
        super().__init__()
        self.layer, self.index = layer, complete_index(batch)

    def forward(self, x_ND: Tensor, p_PD: Tensor) -> tuple[Tensor, Tensor]:
        layer, index, size = self.layer, self.index, x_ND.shape[0]
        q, k, v = layer.qkv(x_ND).view(size, 3, layer.num_heads, -1).unbind(1)
        theta, phi = layer.pair(p_PD).chunk(2, dim=-1)
        key = k[index[0]]
        score = (q[index[1]] * key).sum(-1) * layer.qk_scale
        score = score - key.square().sum(-1) / (2 * math.sqrt(q.shape[-1])) + theta
        alpha = functional.dropout(phi * scatter_softmax(score, index[1], size), layer.dropout, layer.training)
        return layer.out(scatter_sum(v[index[0]] * alpha.unsqueeze(-1), index[1], size).flatten(1)), p_PD


def complete_index(batch: Graphs) -> Tensor:
    """int64 [2, P]: row 0 the key, row 1 the query, for all pairs of every graph."""
    mask = batch.padding.pair_mask_BNN.nonzero()
    start = batch.node_ptr[mask[:, 0]]
    return torch.stack([start + mask[:, 2], start + mask[:, 1]])


def scatter_sum(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums rows by index, through scatter_add with a broadcast index, like torch_scatter."""
    wide = index.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return rows.new_zeros(size, *rows.shape[1:]).scatter_add_(0, wide, rows)


def scatter_softmax(score: Tensor, index: Tensor, size: int) -> Tensor:
    """Softmax over the rows that have the same index."""
    wide = index.view(-1, *[1] * (score.dim() - 1)).expand_as(score)
    most = score.new_full((size, *score.shape[1:]), -math.inf).scatter_reduce(0, wide, score.detach(), "amax")
    out = (score - most[index]).exp()
    return out / (scatter_sum(out, index, size)[index] + 1e-16)


class Block(nn.Module):
    """A post-norm block around a mixer."""

    def __init__(self, mixer: nn.Module, width: int) -> None:
        super().__init__()
        self.mixer, self.ffn = mixer, FeedForward(width, "gelu", 0.0)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x_ND: Tensor, pairs: Any) -> tuple[Tensor, Any]:
        mixed, pairs = self.mixer(x_ND, pairs)
        x_ND = self.norm_1(mixed + x_ND)
        return self.norm_2(self.ffn(x_ND) + x_ND), pairs


class Stack(nn.Module):
    """A whole model: encoder, blocks, head."""

    def __init__(self, shape: Shape, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(IN_DIM, shape.width), nn.Linear(shape.width, OUT_DIM)
        self.blocks = nn.ModuleList(make() for _ in range(shape.layers))

    def forward(self, x_NF: Tensor, pairs: Any) -> tuple[Tensor, Any]:
        x_ND = functional.gelu(self.encoder(x_NF))
        for block in self.blocks:
            x_ND, pairs = block(x_ND, pairs)
        return self.head(x_ND), pairs


class PlainGECOLayer(nn.Module):
    """The paper's GECO layer in plain operators, with the weights, filters and projections of a GECOLayer. Mean propagation, no dropout, no skip connection."""

    def __init__(self, layer: GECOLayer, graph: RegularGraph) -> None:
        super().__init__()
        self.layer, self.matrix = layer, graph.mean_matrix()
        self.order_N, self.inverse_N = graph.order

    def forward(self, x_ND: Tensor) -> Tensor:
        layer, num_nodes = self.layer, x_ND.shape[0]
        with torch.autocast(x_ND.device.type, enabled=False):  # some devices cannot multiply sparse bfloat16 matrices
            h_NC = torch.cat([x_ND, torch.sparse.mm(self.matrix, x_ND)], dim=1)
        p_NE = layer.glob.projection(h_NC).index_select(0, self.order_N)
        p_GDN = p_NE.float().t().contiguous().view(layer.glob.filter.num_filters + 1, -1, num_nodes)
        filters_KDN = layer.glob.filter(num_nodes)
        v_DN = p_GDN[-1]
        for i in range(layer.glob.filter.num_filters):
            spectrum_DM = torch.fft.rfft(filters_KDN[i]) * torch.fft.rfft(v_DN)
            v_DN = p_GDN[i] * torch.fft.irfft(spectrum_DM, n=num_nodes)
        x_ND = layer.norm_1(v_DN.t().index_select(0, self.inverse_N) + x_ND)
        return layer.norm_2(layer.ffn(x_ND) + x_ND)


class PlainGECO(nn.Module):
    """The whole GECO model in plain PyTorch, with the weights of a GECO."""

    def __init__(self, model: GECO, graph: RegularGraph) -> None:
        super().__init__()
        self.model = model
        self.plain = nn.ModuleList(PlainGECOLayer(layer, graph) for layer in model.layers)  # type: ignore[arg-type]

    def forward(self, x_NF: Tensor) -> Tensor:
        x_ND = self.model.activation(self.model.encoder(x_NF))
        for layer in self.plain:
            x_ND = layer(x_ND)
        return self.model.head(x_ND)


def geco_config(shape: Shape) -> GECOConfig:
    return GECOConfig(
        in_dim=IN_DIM, out_dim=OUT_DIM, width=shape.width, num_layers=shape.layers, order=shape.order, dropout=0.0
    )


MIXERS: dict[str, Callable[[Shape, Graphs], nn.Module]] = {
    "primphormer": PrimalMixer,
    "performer": lambda shape, batch: ProjectedMixer(shape, FavorAttention(shape.width // shape.heads)),
    "softmax": lambda shape, batch: ProjectedMixer(shape, softmax_attention),
    "grit": GritMixer,
    "grit, plain": lambda shape, batch: PlainGrit(GritMixer(shape, batch).attend, shape.width, batch),
    "ppgt": lambda shape, batch: PpgtMixer(shape),
    "ppgt, plain": lambda shape, batch: PlainPpgt(PpgtMixer(shape).attend, batch),
}
# Time and memory grow with N to the power of these exponents (1.1 stands for N log N). The exponents give the estimate for the next size.
TIME_POWER = {"softmax": 2.0, "grit": 2.0, "ppgt": 2.0}
MEMORY_POWER = {"grit": 2.0, "ppgt": 2.0}
# Upper bound on the number of float32 arrays of N·D numbers (N²·D for subjects over pairs) in a pass of a layer. It gives the estimate for the first size.
FIRST_ARRAYS = {"geco": 24, "geco, plain": 48, "primphormer": 40, "performer": 60, "softmax": 30}
FIRST_ARRAYS |= {"grit": 8, "grit, plain": 24, "ppgt": 8, "ppgt, plain": 24}


def _module(name: str, level: str, shape: Shape, graph: RegularGraph) -> tuple[nn.Module, tuple[Any, ...]]:
    """The module, and the arguments that follow x. GECO's attention cannot be separated from its layer."""
    subject, _, plain = name.partition(", ")
    if subject == "geco":
        if level == "model":
            model = GECO(geco_config(shape))
            return (PlainGECO(model, graph), ()) if plain else (model, (graph.adjacency,))
        layer = GECOLayer(geco_config(shape))
        return (PlainGECOLayer(layer, graph), ()) if plain else (layer, (graph.adjacency, graph.order))
    batch, pairs = graph.packed(shape.graphs), None
    if subject in ("grit", "ppgt"):
        size = graph.num_nodes // shape.graphs
        pairs = torch.randn(shape.graphs, size, size, shape.width, device=graph.indices.device)
        pairs = (pairs.flatten(0, 2) if plain else pairs).requires_grad_()

    def block() -> nn.Module:
        return Block(MIXERS[name](shape, batch), shape.width)

    if level == "attention":
        return MIXERS[name](shape, batch), (pairs,)
    return block() if level == "layer" else Stack(shape, block), (pairs,)


def build_subject(
    name: str, level: str, shape: Shape, graph: RegularGraph, *, bf16: bool = False, compiled: bool = False
) -> Callable[[], Tensor]:
    """Returns a function that runs an attention, a layer or a whole model forward on fixed inputs, and returns a scalar to differentiate."""
    torch.manual_seed(0)
    device = graph.indices.device
    module, arguments = _module(name, level, shape, graph)
    module.to(device)
    if compiled:
        module.compile()
    in_dim, out_dim = (IN_DIM, OUT_DIM) if level == "model" else (shape.width, shape.width)
    # A layer's input needs a gradient, as inside a model. Features need no gradient.
    x = torch.randn(graph.num_nodes, in_dim, device=device, requires_grad=level != "model")
    probe = torch.randn(out_dim, device=device)  # a plain sum would have a zero gradient behind a LayerNorm

    def step() -> Tensor:
        x.grad = None
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            y = module(x, *arguments)
        y, handed = y if isinstance(y, tuple) else (y, None)
        loss = (y.float() @ probe).mean()
        # The loss also reads the states of pairs (like a next layer) and the penalty (like training).
        if level != "attention" or handed is None or name.startswith("ppgt"):
            return loss
        return loss + (handed.states() if isinstance(handed, Pairs) else handed).sum()

    return step


def floor_bytes(num_nodes: int, num_edges: int, width: int, order: int, *, backward: bool, item: int = 4) -> int:
    """The fewest bytes that one GECO layer must move: each array once per pass over all nodes, everything else stays in registers.

    Three passes need all nodes and therefore split the layer: the propagation (it may read any row), the transforms (they read the whole sequence of a
    channel), and the gradient of the propagation. The work between these passes is by row or by channel and can be fused. Counted in arrays of N·D numbers:
    forward: read X (1), write P and V (K+1); read them (K+1), write Y (1); read Y and X (2), write X'' (1): 2 K + 7.
    Backward, from X, P and Y: read the output's gradient, Y and X (3), write grad(Y + X) (1); read grad(Y + X) and P (K+2), write grad(P) (K+1);
    read grad(P), X and the residual's gradient (K+3), write grad(ÂX) and the direct part of grad(X) (2); read both (2), write grad(X) (1): 3 K + 15.
    Each direction reads the 4-byte source of every edge, and the row starts once. Filters come from few parameters and need no bytes.
    Gathers count each row once, as if the cache held all of X. Without reuse, gathers would read `gather_bytes` more.
    """
    arrays = 2 * order + 7 + (3 * order + 15 if backward else 0)
    return num_nodes * width * item * arrays + (2 if backward else 1) * 4 * (num_edges + num_nodes)


def gather_bytes(num_nodes: int, num_edges: int, width: int, item: int = 4) -> int:
    """Bytes that both passes of the propagation read in addition to `floor_bytes`, if each edge fetches the row of its source from memory."""
    return 2 * (num_edges - num_nodes) * width * item


def layer_flops(num_nodes: int, num_edges: int, width: int, order: int, features: int) -> float:
    """Floating-point operations of both passes of one GECO layer in Graphmill's code, recomputation included.

    Products: the projection of 2 D to (K+1) D and the filters' spectra of I features (once in the forward pass; in the backward pass once again, and twice
    for gradients); the FFN's two D×D products (once in the forward pass, twice in the backward pass). Transforms: 2.5 L log₂ L operations each; 5 K transforms
    per channel and two per feature.
    """
    projection, ffn, spectra = 4 * width * width * (order + 1), 4 * width * width, 2 * order * width * features
    products = (4 * projection + 3 * ffn + 4 * spectra) * num_nodes
    transforms = (5 * order * width + 2 * features) * 2.5 * num_nodes * math.log2(max(num_nodes, 2))
    return products + transforms + 4.0 * num_edges * width
