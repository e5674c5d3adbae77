"""What `jobs/bench/speed.py` times: one post-norm block around each mixer, stacks of them, and GECO once more in plain PyTorch.

    X' = LN(Mix(X) + X),  X'' = LN(FFN(X') + X')

GECO's layer has this form, so every other mixer gets it too, with the same feed-forward network. `PlainGECOLayer` is the paper's
formulas written down line by line with what PyTorch offers: torch.sparse, autograd through torch.fft, the filter's FFN over all
positions, everything kept for the backward pass. It uses the weights of a GECOLayer and computes the same (a test compares them).

Imports torch and models only: a GPU box may have nothing else. Shapes: N nodes, E edges, D width, K order, H heads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.favor import FavorAttention
from models.geco import GECO, FeedForward, GECOLayer
from models.graphs import Graphs
from models.grit_attention import ConditionalAttention, Pairs
from models.node_order import inverse_order, node_order
from models.options.geco import GECOConfig
from models.options.primphormer import PrimalOptions
from models.primal_attention import PrimalAttention
from models.propagation import Adjacency
from models.sl2_attention import Sl2Attention

IN_DIM, OUT_DIM = 100, 47  # of the whole models: ogbn-products'


@dataclass(frozen=True)
class Shape:
    """Of every subject."""

    width: int
    heads: int
    layers: int
    order: int


class SyntheticGraph:
    """N nodes of `degree` neighbours each, at random places: i and j are neighbours where σ(i) - σ(j) is one of a few random offsets.

    Symmetric, without self loops or parallel edges; made in O(E) on the device. `degree` must be even and at most N - 2.
    """

    def __init__(self, num_nodes: int, degree: int, device: str, seed: int = 0) -> None:
        if degree % 2 or not 0 < degree <= num_nodes - 2:
            raise ValueError(f"degree must be even, positive and at most {num_nodes - 2}, got {degree}; set degree")
        self.num_nodes, self.num_edges = num_nodes, num_nodes * degree
        generator = torch.Generator().manual_seed(seed)
        place_N = torch.randperm(num_nodes, generator=generator).to(device)
        node_N = inverse_order(place_N)
        offsets = distinct_offsets((num_nodes - 1) // 2, degree // 2, generator)
        dtype = torch.int32 if self.num_edges < 2**31 else torch.int64
        source_NE = torch.empty(num_nodes, degree, dtype=dtype, device=device)
        for column, offset in enumerate([*offsets, *(-o for o in offsets)]):
            source_NE[:, column] = node_N[(place_N + offset).remainder(num_nodes)]
        self.indptr = torch.arange(num_nodes + 1, dtype=dtype, device=device) * degree
        self.indices = source_NE.flatten()
        self.adjacency = Adjacency(self.indptr, self.indices, symmetric=True)
        self.node_id_N = torch.arange(num_nodes, device=device)
        self.order_N = node_order(self.node_id_N, 0)
        self.inverse_N = inverse_order(self.order_N)

    def mean_matrix(self) -> Tensor:
        """D⁻¹A as a sparse CSR tensor."""
        degree = self.num_edges // self.num_nodes
        values = torch.full((self.num_edges,), 1 / degree, device=self.indices.device)
        size = (self.num_nodes, self.num_nodes)
        return torch.sparse_csr_tensor(self.indptr, self.indices, values, size=size, check_invariants=False)

    def packed(self) -> Graphs:
        """As a batch of one, without its edges, which no attention reads."""
        device = self.indices.device
        return Graphs(
            node_ptr=torch.tensor([0, self.num_nodes], device=device),
            edge_index=torch.empty(2, 0, dtype=torch.int64, device=device),
            node_id=self.node_id_N,
            max_nodes=self.num_nodes,
        )


def distinct_offsets(largest: int, count: int, generator: torch.Generator) -> list[int]:
    """`count` distinct numbers of 1 … largest."""
    found: set[int] = set()
    while len(found) < count:
        found.add(int(torch.randint(1, largest + 1, (1,), generator=generator)))
    return sorted(found)


class SoftmaxMixer(nn.Module):
    """Multi-head softmax attention through SDPA; on CUDA its flash kernel, which takes half precision only, so Q, K and V get it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv, self.out = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)

    def forward(self, x_ND: Tensor) -> Tensor:
        q, k, v = self.qkv(x_ND).view(1, x_ND.shape[0], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if x_ND.is_cuda:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                y = functional.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).to(x_ND.dtype)
        else:
            y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x_ND.shape))


class PerformerMixer(nn.Module):
    """Performer's linear attention (FAVOR+) with the usual projections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv, self.out = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.attend = FavorAttention(shape.width // shape.heads)

    def forward(self, x_ND: Tensor) -> Tensor:
        q, k, v = self.qkv(x_ND).view(1, x_ND.shape[0], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(x_ND.shape))


class PrimalMixer(nn.Module):
    """Primphormer's attention; its KSVD loss is computed but not differentiated."""

    def __init__(self, shape: Shape, batch: Graphs) -> None:
        super().__init__()
        self.batch, self.attend = batch, PrimalAttention(shape.width, shape.heads, PrimalOptions())

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.attend(x_ND, self.batch)[0]


class Block(nn.Module):
    """The post-norm block around a mixer; with `pairs`, the mixer reads and may renew pair states."""

    def __init__(self, mixer: Callable[..., Any], width: int, renews_pairs: bool = False) -> None:
        super().__init__()
        self.mixer, self.renews_pairs = mixer, renews_pairs
        self.ffn = FeedForward(width, "gelu", 0.0)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x_ND: Tensor, pairs: Any = None) -> tuple[Tensor, Any]:
        mixed = self.mixer(x_ND) if pairs is None else self.mixer(x_ND, pairs)
        if self.renews_pairs:
            mixed, pairs = mixed
        x_ND = self.norm_1(mixed + x_ND)
        return self.norm_2(self.ffn(x_ND) + x_ND), pairs


class GritMixer(nn.Module):
    """GRIT's attention over all pairs."""

    def __init__(self, shape: Shape, batch: Graphs) -> None:
        super().__init__()
        self.padding, self.attend = batch.padding, ConditionalAttention(shape.width, shape.heads, clamp=5.0)

    def forward(self, x_ND: Tensor, pairs: Pairs) -> tuple[Tensor, Pairs]:
        return self.attend(x_ND, pairs, self.padding)


class PpgtMixer(nn.Module):
    """PPGT's sL2 attention with URPE over all pairs."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attend = Sl2Attention(shape.width, shape.heads, shape.width)

    def forward(self, x_ND: Tensor, pairs: Tensor) -> Tensor:
        return self.attend(x_ND.unsqueeze(0), pairs, None).squeeze(0)


class Stack(nn.Module):
    """Encoder, blocks, head."""

    def __init__(self, shape: Shape, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(IN_DIM, shape.width), nn.Linear(shape.width, OUT_DIM)
        self.blocks = nn.ModuleList(make() for _ in range(shape.layers))

    def forward(self, x_NF: Tensor, pairs: Any = None) -> Tensor:
        x_ND = functional.gelu(self.encoder(x_NF))
        for block in self.blocks:
            x_ND, pairs = block(x_ND, pairs)
        return self.head(x_ND)


class PlainGECOLayer(nn.Module):
    """The paper's layer in plain operators, on a GECOLayer's weights, filters and projections; mean propagation, no dropout, no skip."""

    def __init__(self, layer: GECOLayer, graph: SyntheticGraph) -> None:
        super().__init__()
        self.layer, self.matrix = layer, graph.mean_matrix()
        self.order_N, self.inverse_N = graph.order_N, graph.inverse_N

    def forward(self, x_ND: Tensor) -> Tensor:
        layer, num_nodes = self.layer, x_ND.shape[0]
        with torch.autocast(x_ND.device.type, enabled=False):  # sparse products know no bfloat16 everywhere
            h_NC = torch.cat([x_ND, torch.sparse.mm(self.matrix, x_ND)], dim=1)
        p_NE = layer.glob.projection(h_NC).index_select(0, self.order_N)
        p_GDN = p_NE.float().t().contiguous().view(layer.glob.order + 1, -1, num_nodes)
        filters_KDN = layer.glob.filter(num_nodes)
        v_DN = p_GDN[-1]
        for i in range(layer.glob.order):
            spectrum_DM = torch.fft.rfft(filters_KDN[i]) * torch.fft.rfft(v_DN)
            v_DN = p_GDN[i] * torch.fft.irfft(spectrum_DM, n=num_nodes)
        x_ND = layer.norm_1(v_DN.t().index_select(0, self.inverse_N) + x_ND)
        return layer.norm_2(layer.ffn(x_ND) + x_ND)


class PlainGECO(nn.Module):
    """The whole model in plain PyTorch, on a GECO's weights."""

    def __init__(self, model: GECO, graph: SyntheticGraph) -> None:
        super().__init__()
        self.model = model
        self.plain = nn.ModuleList(PlainGECOLayer(layer, graph) for layer in model.layers)  # type: ignore[arg-type]

    def forward(self, x_NF: Tensor) -> Tensor:
        x_ND = self.model.activation(self.model.encoder(x_NF))
        for layer in self.plain:
            x_ND = layer(x_ND)
        return self.model.head(x_ND)


class _Bound(nn.Module):
    """A module and the arguments after x that it always gets."""

    def __init__(self, module: nn.Module, *arguments: Any) -> None:
        super().__init__()
        self.module, self.arguments = module, arguments

    def forward(self, x: Tensor) -> Tensor:
        y = self.module(x, *self.arguments)
        return y[0] if isinstance(y, tuple) else y


def geco_config(shape: Shape) -> GECOConfig:
    return GECOConfig(
        in_dim=IN_DIM, out_dim=OUT_DIM, width=shape.width, num_layers=shape.layers, order=shape.order, dropout=0.0
    )


def _geco(level: str, shape: Shape, graph: SyntheticGraph) -> nn.Module:
    if level == "layer":
        return _Bound(GECOLayer(geco_config(shape)), graph.adjacency, graph.order_N, graph.inverse_N)
    return _Bound(GECO(geco_config(shape)), graph.adjacency)


def _geco_plain(level: str, shape: Shape, graph: SyntheticGraph) -> nn.Module:
    if level == "layer":
        return PlainGECOLayer(GECOLayer(geco_config(shape)), graph)
    return PlainGECO(GECO(geco_config(shape)), graph)


def _blocks(level: str, shape: Shape, make: Callable[[], nn.Module], pairs: Any = None) -> nn.Module:
    return _Bound(make() if level == "layer" else Stack(shape, make), pairs)


def _softmax(level: str, shape: Shape, graph: SyntheticGraph) -> nn.Module:
    return _blocks(level, shape, lambda: Block(SoftmaxMixer(shape), shape.width))


def _performer(level: str, shape: Shape, graph: SyntheticGraph) -> nn.Module:
    return _blocks(level, shape, lambda: Block(PerformerMixer(shape), shape.width))


def _primphormer(level: str, shape: Shape, graph: SyntheticGraph) -> nn.Module:
    batch = graph.packed()
    return _blocks(level, shape, lambda: Block(PrimalMixer(shape, batch), shape.width))


def _pairs(shape: Shape, graph: SyntheticGraph) -> Tensor:
    size = (1, graph.num_nodes, graph.num_nodes, shape.width)
    return torch.randn(size, device=graph.indices.device, requires_grad=True)


def _grit(level: str, shape: Shape, graph: SyntheticGraph) -> nn.Module:
    batch, pairs = graph.packed(), Pairs(_pairs(shape, graph))
    return _blocks(level, shape, lambda: Block(GritMixer(shape, batch), shape.width, renews_pairs=True), pairs)


def _ppgt(level: str, shape: Shape, graph: SyntheticGraph) -> nn.Module:
    return _blocks(level, shape, lambda: Block(PpgtMixer(shape), shape.width), _pairs(shape, graph))


SUBJECTS: dict[str, Callable[[str, Shape, SyntheticGraph], nn.Module]] = {
    "geco": _geco,
    "geco, plain": _geco_plain,
    "primphormer": _primphormer,
    "performer": _performer,
    "softmax": _softmax,
    "grit": _grit,
    "ppgt": _ppgt,
}
# Time and memory as powers of N, for the estimate of the next size (N log N counts as 1.1).
TIME_POWER = {"softmax": 2.0, "grit": 2.0, "ppgt": 2.0}
MEMORY_POWER = {"grit": 2.0, "ppgt": 2.0}
# Before anything is measured: arrays of N·D float32 (or of N²·D, for the ones over pairs) that a layer's pass takes at most.
FIRST_ARRAYS = {
    "geco": 24,
    "geco, plain": 48,
    "primphormer": 40,
    "performer": 60,
    "softmax": 30,
    "grit": 8,
    "ppgt": 8,
}


def build_subject(
    name: str, level: str, shape: Shape, graph: SyntheticGraph, *, bf16: bool = False, compiled: bool = False
) -> Callable[[], Tensor]:
    """A function that runs the layer or the whole model forward on fixed inputs and returns a number to differentiate."""
    torch.manual_seed(0)
    device = graph.indices.device
    module = SUBJECTS[name](level, shape, graph).to(device)
    if compiled:
        module = torch.compile(module)  # type: ignore[assignment]
    in_dim, out_dim = (shape.width, shape.width) if level == "layer" else (IN_DIM, OUT_DIM)
    # A layer's input takes a gradient, as it does inside a model; features do not.
    x = torch.randn(graph.num_nodes, in_dim, device=device, requires_grad=level == "layer")
    probe = torch.randn(out_dim, device=device)  # a plain sum would have no gradient behind a LayerNorm

    def step() -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            y = module(x)
        x.grad = None
        return (y.float() @ probe).mean()

    return step


def floor_bytes(num_nodes: int, num_edges: int, width: int, order: int, *, backward: bool, item: int = 4) -> int:
    """The fewest bytes that one GECO layer must move: each array once per pass that needs all nodes, everything else in registers.

    Three passes need all nodes and so split the layer: the propagation (any row may be asked for), the transforms (a channel's whole
    sequence), the propagation's gradient. What lies between them is by row or by channel and can be fused. In arrays of N·D numbers:
    forward: read X (1), write P and V (K+1); read them (K+1), write Y (1); read Y and X (2), write X'' (1): 2 K + 7.
    Backward, from X, P and Y: read the gradient, Y and X (3), write that of Y + X (1); read it and P (K+2), write P's (K+1);
    read that, X and the residual's (K+3), write ÂX's and X's own part (2); read both (2), write X's (1): 3 K + 15.
    Either way the edges' 4-byte sources and the row starts are read once. Filters are made from their few parameters: no bytes.
    Gathers count each row once, as if the cache held all of X: without any reuse they would read `gather_bytes` more.
    """
    arrays = 2 * order + 7 + (3 * order + 15 if backward else 0)
    return num_nodes * width * item * arrays + (2 if backward else 1) * 4 * (num_edges + num_nodes)


def gather_bytes(num_nodes: int, num_edges: int, width: int, *, backward: bool, item: int = 4) -> int:
    """What the propagation reads beyond `floor_bytes` where each edge fetches its source's row from memory."""
    return (2 if backward else 1) * (num_edges - num_nodes) * width * item


def layer_flops(
    num_nodes: int, num_edges: int, width: int, order: int, features: int, *, backward: bool
) -> dict[str, float]:
    """Floating-point operations of one GECO layer as it is computed here, recomputation included.

    Products: the projection of 2 D to (K+1) D (again in the backward pass, and twice for its gradients), the FFN's two D×D, the
    filters' spectra of I features (forward; again, and twice for gradients, in the backward pass). Transforms: 2.5 L log₂ L each, 2 K
    per channel and one per feature forward; 3 K per channel and one per feature more in the backward pass.
    """
    projection, ffn = 4 * width * width * (order + 1), 4 * width * width
    spectra = 2 * order * width * features
    transform = 2.5 * num_nodes * math.log2(max(num_nodes, 2))
    products = projection + ffn + spectra
    transforms = 2 * order * width + features
    if backward:
        products += 3 * projection + 2 * ffn + 3 * spectra
        transforms += 3 * order * width + features
    propagation = 2.0 * num_edges * width * (2 if backward else 1)
    return {"products": float(products) * num_nodes, "transforms": transforms * transform, "propagation": propagation}
