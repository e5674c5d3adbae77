"""GRIT: attention over all pairs of nodes that updates both nodes and pairs, with random-walk probabilities as the inductive bias.

    P_ij = [I, M, …, M^(K-1)]_ij,  M = D⁻¹A
    x_i = Emb(node) + W_abs P_ii;      e_ij = Emb(edge)·1[edge i → j] + W_rel P_ij
    layer (post-norm):  x̂, e ← attention(x, e)                       models/grit_attention.py
                        x ← BN(x + scaler(W_O x̂));  x ← BN(x + FFN(x)),  FFN = D → 2D → D with ReLU
                        scaler(h) = h ⊙ θ₁ + log(1 + deg) · h ⊙ θ₂

Source: arXiv:2305.17589 (ICML 2023). The defaults are the paper's; where the published code differs it is an option: the score's clamp
at ±5 (`score_clamp`), the scaler before W_O (`degree_scaler`), walks towards the query instead of from it (`transposed_rrwp`, as in all
published numbers), an edge's features at the query that it enters instead of the one that it leaves (`edge_query`; the same on undirected
graphs), GraphGym's head (`head="graphgym"`, whose hidden layers are scaled to length 1); `as_released` sets the five. Batch normalisation sees real nodes and real pairs, never padding; below two nodes
training uses the running statistics, since there is no variance.

Legend: n nodes, B graphs, N places per graph, E edges, D width, K walk channels.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.dropout import Dropout
from models.encodings.degree import log_degrees
from models.encodings.random_walk import random_walk_probabilities
from models.features import FeatureEncoder, Features, atoms, bonds
from models.graphs import EDGE_QUERIES, EdgeQuery, Graphs
from models.grit_attention import PAIR_MEMORY, ConditionalAttention, Pairs
from models.heads import POOLS, TASKS, GraphGymMLP, HalvingMLP, Pool, Task, pool_nodes

DegreeScaler = Literal["after", "before", "none"]
_ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}
# OGB's atom columns with four kinds of chirality, as OGB 1.3.3 and the peptides data sets have them (`atoms()` has five).
ATOMS_FOUR_CHIRALITIES = Features(categories=(119, 4, 12, 12, 10, 6, 6, 2, 2))


@dataclass(frozen=True)
class GRITConfig:
    """Every option of GRIT; the defaults are the paper's formulas and ZINC's sizes. Raises ValueError on values that cannot work."""

    node: Features = field(default_factory=Features)
    edge: Features = field(default_factory=Features)  # one category and no edge_attr: every edge is of that category
    out_dim: int = 1
    task: Task = "graph"
    width: int = 64
    num_layers: int = 10
    num_heads: int = 8
    rrwp_steps: int = 21  # K: I, M, …, M^(K-1)
    dropout: float = 0.0
    attention_dropout: float = 0.2
    pool: Pool = "sum"
    # "san_graph" of the code | Linears of the full width | the same as GraphGym has it, always with ReLU
    head: Literal["halving", "mlp", "graphgym"] = "halving"
    head_layers: int = 3
    activation: Literal["relu", "gelu"] = "relu"  # of the FFN and the head; attention's is ReLU
    degree_scaler: DegreeScaler = "after"  # of W_O (paper) | "before" it (code) | "none" (ablation)
    score_clamp: float | None = None  # the code bounds scores to ±5
    transposed_rrwp: bool = False  # the code before December 2024: e_ij from P_ji
    edge_query: EdgeQuery = (
        "source"  # the end of an edge that sees its features: e_ij of i → j (paper) or of j → i (code)
    )
    momentum: float = 0.1  # of the batch normalisations
    # Bytes each layer may keep of its pairs for the backward pass; with more to keep it computes them again, which is slower.
    pair_memory: int = PAIR_MEMORY
    sync_norm: bool = False  # pairs' statistics over all processes; for the nodes' see torch's convert_sync_batchnorm

    def __post_init__(self) -> None:
        for name in ("out_dim", "width", "num_layers", "num_heads", "rrwp_steps", "head_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}; set {name}")
        if self.pair_memory < 0:
            raise ValueError(f"pair_memory must be at least 0 bytes, got {self.pair_memory}; set pair_memory")
        if self.width % self.num_heads:
            raise ValueError(
                f"width must be a multiple of num_heads, got {self.width} and {self.num_heads}; set num_heads or width"
            )
        for name in ("dropout", "attention_dropout"):
            if not (0 <= getattr(self, name) < 1):
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}; set {name}")
        if self.score_clamp is not None and not self.score_clamp > 0:
            raise ValueError(f"score_clamp must be positive or None, got {self.score_clamp}; set score_clamp")
        choices = {
            "task": TASKS,
            "pool": POOLS,
            "head": ("halving", "mlp", "graphgym"),
            "activation": tuple(_ACTIVATIONS),
            "degree_scaler": ("after", "before", "none"),
            "edge_query": EDGE_QUERIES,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}; set {name}")
        if self.task != "link" and self.head == "halving" and self.width >> (self.head_layers - 1) < 1:
            raise ValueError(f"width {self.width} cannot be halved {self.head_layers - 1} times; set head_layers")


class GRIT(nn.Module):
    """GRIT over a batch of graphs; see the module's docstring. Time and memory O(Σ N²·D); for `pair_memory` see the config."""

    def __init__(self, config: GRITConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.node_encoder = None if config.node.empty else FeatureEncoder(config.node, width)
        self.edge_encoder = None if config.edge.empty else FeatureEncoder(config.edge, width)
        self.absolute = nn.Linear(config.rrwp_steps, width, bias=False)
        self.relative = nn.Linear(config.rrwp_steps, width, bias=False)
        nn.init.xavier_uniform_(self.absolute.weight)
        nn.init.xavier_uniform_(self.relative.weight)
        layers = [GRITLayer(config) for _ in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        # Nothing reads the last layer's pairs. Their parameters stay, for published counts and checkpoints, but take no gradient,
        # or data parallelism would wait for it.
        layers[-1].attention.edge_out.requires_grad_(False)
        layers[-1].attention.edge_norm.requires_grad_(False)
        self.head = None if config.task == "link" else _head(config)

    def forward(self, graphs: Graphs, *, epoch: int = 0) -> Tensor:
        """[B, out_dim] for task "graph"; [r, out_dim] (of the roots) for "node"; node states [n, D] for "link".

        `epoch` is not used. Raises ValueError when features do not fit the config.
        """
        padding = graphs.padding
        x_nD, pairs = self.embed(graphs)
        log_degree_n1 = log_degrees(graphs, dtype=x_nD.dtype)
        for i, layer in enumerate(self.layers):
            x_nD, pairs = layer(x_nD, pairs, padding, log_degree_n1, update_edges=i + 1 < len(self.layers))
        if self.head is None:
            return x_nD
        if self.config.task == "graph":
            return self.head(pool_nodes(x_nD, graphs, self.config.pool))
        return self.head(x_nD if graphs.root_index is None else x_nD[graphs.root_index])

    def embed(self, graphs: Graphs) -> tuple[Tensor, Pairs]:
        """The stem: node states [n, D] and pair states [B, N, N, D]."""
        config, weight = self.config, self.absolute.weight
        walks_BNNK = random_walk_probabilities(graphs, config.rrwp_steps, dtype=weight.dtype)
        x_nD = self.absolute(graphs.padding.unpad(walks_BNNK.diagonal(dim1=1, dim2=2).transpose(1, 2)))
        if self.node_encoder is not None:
            x_nD = x_nD + self.node_encoder(graphs.x)
        if config.transposed_rrwp:
            walks_BNNK = walks_BNNK.transpose(1, 2)
        y_BNND = self.relative(walks_BNNK).to(weight.dtype)
        if self.edge_encoder is not None:
            attributes = graphs.edge_attr
            if attributes is None and config.edge.categories == (1,):
                attributes = graphs.edge_index.new_zeros(graphs.edge_index.shape[1], 1)
            edge_ED = self.edge_encoder(attributes).to(weight.dtype)
            place_E = graphs.padding.pair_index(config.edge_query)
            y_BNND = y_BNND.flatten(0, 2).index_add(0, place_E, edge_ED).view_as(y_BNND)
        return x_nD, Pairs(y_BNND)


class GRITLayer(nn.Module):
    """One post-norm layer: attention with its edge update, degree scaler and feed-forward network."""

    def __init__(self, config: GRITConfig) -> None:
        super().__init__()
        width = config.width
        self.scaler_place = config.degree_scaler
        self.attention = ConditionalAttention(
            width,
            config.num_heads,
            clamp=config.score_clamp,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            momentum=config.momentum,
            sync=config.sync_norm,
            pair_memory=config.pair_memory,
        )
        self.out = nn.Linear(width, width)
        self.scaler_1D2: nn.Parameter | None = None
        if config.degree_scaler != "none":
            self.scaler_1D2 = nn.Parameter(nn.init.xavier_normal_(torch.empty(1, width, 2)))
        self.ffn = nn.Sequential(
            nn.Linear(width, 2 * width),
            _ACTIVATIONS[config.activation](),
            Dropout(config.dropout),
            nn.Linear(2 * width, width),
        )
        self.norm_1, self.norm_2 = (NodeNorm(width, momentum=config.momentum) for _ in range(2))
        self.dropout = Dropout(config.dropout)

    def forward(self, x_nD: Tensor, pairs: Pairs, padding, log_degree_n1: Tensor, *, update_edges: bool = True):
        """(x [n, D], pairs): the next states; pairs None without `update_edges`."""
        h_nD, pairs = self.attention(x_nD, pairs, padding, update_edges=update_edges)
        h_nD = self.dropout(h_nD)
        if self.scaler_place == "before":
            h_nD = self.scale(h_nD, log_degree_n1)
        h_nD = self.out(h_nD)
        if self.scaler_place == "after":
            h_nD = self.scale(h_nD, log_degree_n1)
        x_nD = self.norm_1(x_nD + h_nD)
        return self.norm_2(x_nD + self.ffn(x_nD)), pairs

    def scale(self, h_nD: Tensor, log_degree_n1: Tensor) -> Tensor:
        """h ⊙ θ₁ + log(1 + deg) · h ⊙ θ₂."""
        assert self.scaler_1D2 is not None
        return h_nD * (self.scaler_1D2[..., 0] + log_degree_n1 * self.scaler_1D2[..., 1])


class NodeNorm(nn.BatchNorm1d):
    """Batch normalisation over the rows [n, D]; with fewer than two rows there is no variance, and the running ones serve."""

    def forward(self, x_nD: Tensor) -> Tensor:
        if self.training and x_nD.shape[0] < 2:
            return nn.functional.batch_norm(
                x_nD, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        return super().forward(x_nD)


def _head(config: GRITConfig) -> nn.Module:
    if config.head == "halving":
        return HalvingMLP(config.width, config.out_dim, config.head_layers, _ACTIVATIONS[config.activation])
    if config.head == "graphgym":
        return GraphGymMLP(config.width, config.out_dim, config.head_layers)
    steps: list[nn.Module] = []
    for _ in range(config.head_layers - 1):
        steps += [nn.Linear(config.width, config.width), _ACTIVATIONS[config.activation]()]
    return nn.Sequential(*steps, nn.Linear(config.width, config.out_dim))


def num_parameters(config: GRITConfig) -> int:
    """The closed-form number of parameters of `GRIT(config)`, the last layer's idle edge path included."""
    d, c = config.width, config.width // config.num_heads
    linear = (d + 1) * d
    attention = linear + 2 * d * d + (d + 1) * 2 * d + d + d * c
    ffn = (d + 1) * 2 * d + (2 * d + 1) * d
    layer = attention + 2 * linear + ffn + 6 * d + (0 if config.degree_scaler == "none" else 2 * d)
    encoders = 2 * config.rrwp_steps * d
    for features in (config.node, config.edge):
        encoders += sum(features.categories) * d + ((features.dim + 1) * d if features.dim else 0)
    if config.task == "link":
        head = 0
    elif config.head != "halving":
        head = (config.head_layers - 1) * linear + (d + 1) * config.out_dim
    else:
        sizes = [d >> i for i in range(config.head_layers)]
        head = sum((a + 1) * b for a, b in pairwise(sizes)) + (sizes[-1] + 1) * config.out_dim
    return config.num_layers * layer + encoders + head


def as_released(config: GRITConfig) -> GRITConfig:
    """The config with the published code's five departures from the paper, as published checkpoints need."""
    head = "graphgym" if config.head == "mlp" else config.head
    return replace(
        config, score_clamp=5.0, degree_scaler="before", transposed_rrwp=True, edge_query="target", head=head
    )


def _preset(defaults: dict[str, Any], options: dict[str, Any]) -> GRITConfig:
    return GRITConfig(**{**defaults, **options})


# The published training of each preset: batch, learning rate, epochs, warm-up epochs, weight decay. AdamW, gradient norm 1, cosine
# (PCQM4Mv2: linear) after the warm-up, at least 1e-6 on ZINC; ZINC-full has batches of 256.
TRAINING: dict[str, tuple[int, float, int, int, float]] = {
    "zinc": (32, 1e-3, 2000, 50, 1e-5),
    "mnist": (16, 1e-3, 200, 5, 1e-5),
    "cifar10": (16, 1e-3, 200, 5, 1e-5),
    "pattern": (32, 5e-4, 100, 5, 1e-5),
    "cluster": (16, 5e-4, 100, 5, 1e-5),
    "peptides_func": (32, 3e-4, 200, 5, 0.0),
    "peptides_struct": (32, 3e-4, 200, 5, 0.0),
    "pcqm4mv2": (256, 2e-4, 150, 10, 0.0),
}


def zinc(**options: Any) -> GRITConfig:
    """ZINC and ZINC-full (473,473 parameters): 21 atom types, 4 bond types. MAE .059 (ZINC), .023 (full)."""
    return _preset({"node": Features(categories=(21,)), "edge": Features(categories=(4,))}, options)


def mnist(**options: Any) -> GRITConfig:
    """MNIST superpixels (102,138): intensity and position, edges with a distance."""
    return _preset(_superpixels(3) | {"head_layers": 3}, options)


def cifar10(**options: Any) -> GRITConfig:
    """CIFAR10 superpixels (99,486): colour and position, edges with a distance."""
    return _preset(_superpixels(5) | {"head_layers": 2}, options)


def _superpixels(node_dim: int) -> dict[str, Any]:
    sizes = {"width": 52, "num_layers": 3, "num_heads": 4, "rrwp_steps": 18, "attention_dropout": 0.5}
    return sizes | {
        "node": Features(dim=node_dim),
        "edge": Features(dim=1),
        "out_dim": 10,
        "pool": "mean",
        "head": "graphgym",
    }


def pattern(**options: Any) -> GRITConfig:
    """SBM PATTERN (477,953): three one-hot node features, edges without features, one logit per node."""
    defaults = {"node": Features(dim=3), "edge": Features(categories=(1,)), "task": "node", "head": "graphgym"}
    return _preset(defaults, options)


def cluster(**options: Any) -> GRITConfig:
    """SBM CLUSTER: seven one-hot node features, six classes. 431,670 parameters here; the paper says 432,206."""
    defaults = {
        "node": Features(dim=7),
        "edge": Features(categories=(1,)),
        "out_dim": 6,
        "task": "node",
        "head": "graphgym",
        "width": 48,
        "num_layers": 16,
        "rrwp_steps": 32,
        "dropout": 0.01,
        "attention_dropout": 0.5,
    }
    return _preset(defaults, options)


def _peptides(**own: Any) -> dict[str, Any]:
    shared = {"node": ATOMS_FOUR_CHIRALITIES, "edge": bonds(), "width": 96, "num_layers": 4, "attention_dropout": 0.5}
    return shared | {"pool": "mean", "head": "graphgym", "head_layers": 1} | own


def peptides_func(**options: Any) -> GRITConfig:
    """Peptides-func (443,338): ten labels. Pass `node=atoms()` for features of OGB 1.3.6."""
    return _preset(_peptides(num_heads=4, rrwp_steps=17, out_dim=10), options)


def peptides_struct(**options: Any) -> GRITConfig:
    """Peptides-struct: eleven targets. 440,171 parameters; the paper's 438,827 is exactly that of `rrwp_steps=17`."""
    return _preset(_peptides(num_heads=8, rrwp_steps=24, out_dim=11), options)


def pcqm4mv2(**options: Any) -> GRITConfig:
    """PCQM4Mv2: 11.8M parameters by these sizes, where the paper prints 15.3M and 16.6M."""
    defaults = {
        "node": atoms(),
        "edge": bonds(),
        "width": 256,
        "num_layers": 16,
        "rrwp_steps": 16,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "pool": "mean",
        "activation": "gelu",
    }
    return _preset(defaults, options)


def small(**options: Any) -> GRITConfig:
    """ZINC's sizes for molecules with OGB's features (483,841 parameters with one output): QM9, molhiv."""
    return _preset({"node": atoms(), "edge": bonds()}, options)


def brec(**options: Any) -> GRITConfig:
    """BREC, graphs without features: ZINC's sizes, 16 outputs that are compared, longer walks, no dropout.

    Published: 60 basic, 50 regular, 100 extension and 8 CFI pairs (in PPGT's paper, which does not state GRIT's sizes).
    """
    return _preset({"out_dim": 16, "rrwp_steps": 32, "attention_dropout": 0.0}, options)
