"""GRIT's options and presets (arXiv:2305.17589); the network is in `models.grit`."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

from models.options.checks import check_choices, check_heads, check_least, check_shares
from models.options.choices import EdgeQuery, Pool, Task
from models.options.features import Features, atoms, bonds

PAIR_MEMORY = 1 << 28  # bytes

# OGB's atom columns with four kinds of chirality, as OGB 1.3.3 and the peptides data sets have them (`atoms()` has five).
ATOMS_FOUR_CHIRALITIES = Features(categories=(119, 4, 12, 12, 10, 6, 6, 2, 2))


@dataclass(frozen=True)
class GRITConfig:
    """Every option of GRIT; the defaults are the paper's formulas and ZINC's sizes. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("node", "edge", "out_dim", "task")
    node: Features = field(default_factory=Features)
    edge: Features = field(default_factory=Features)
    """One category and no edge_attr: every edge is of that category."""
    out_dim: int = 1
    task: Task = "graph"
    width: int = 64
    num_layers: int = 10
    num_heads: int = 8
    rrwp_steps: int = 21
    """K: I, M, …, M^(K-1)."""
    dropout: float = 0.0
    attention_dropout: float = 0.2
    pool: Pool = "sum"
    head: Literal["halving", "mlp", "graphgym"] = "halving"
    """"san_graph" of the code | Linears of the full width | the same as GraphGym has it, always with ReLU."""
    head_layers: int = 3
    activation: Literal["relu", "gelu"] = "relu"
    """Of the FFN and the head; attention's is ReLU."""
    degree_scaler: Literal["after", "before", "none"] = "after"
    """Of W_O (paper) | "before" it (code) | "none" (ablation)."""
    score_clamp: float | None = None
    """The code bounds scores to ±5."""
    transposed_rrwp: bool = False
    """The code before December 2024: e_ij from P_ji."""
    edge_query: EdgeQuery = "source"
    """The end of an edge that sees its features: e_ij of i → j (paper) or of j → i (code)."""
    momentum: float = 0.1
    """Of the batch normalisations."""
    pair_memory: int = PAIR_MEMORY
    """Bytes each layer may keep of its pairs for the backward pass; with more to keep it computes them again, which is slower."""
    sync_norm: bool = False
    """Pairs' statistics over all processes; for the nodes' see torch's convert_sync_batchnorm."""

    def __post_init__(self) -> None:
        check_least(self, 1, "out_dim", "width", "num_layers", "num_heads", "rrwp_steps", "head_layers")
        check_least(self, 0, "pair_memory")
        check_heads(self)
        check_shares(self, "dropout", "attention_dropout")
        check_choices(self)
        if self.score_clamp is not None and not self.score_clamp > 0:
            raise ValueError(f"score_clamp must be positive or None, got {self.score_clamp}; set score_clamp")
        if self.task != "link" and self.head == "halving" and self.width >> (self.head_layers - 1) < 1:
            raise ValueError(f"width {self.width} cannot be halved {self.head_layers - 1} times; set head_layers")


def as_released(config: GRITConfig) -> GRITConfig:
    """The config with the published code's five departures from the paper, as published checkpoints need."""
    head = "graphgym" if config.head == "mlp" else config.head
    return replace(
        config, score_clamp=5.0, degree_scaler="before", transposed_rrwp=True, edge_query="target", head=head
    )


# Below, "32, 1e-3, 2000 + 50, 1e-5" is the published training: batch, learning rate, epochs and those of warm-up, weight decay. AdamW,
# gradient norm 1, cosine (PCQM4Mv2: linear) after the warm-up, at least 1e-6 on ZINC.

zinc = partial(GRITConfig, node=Features(categories=(21,)), edge=Features(categories=(4,)))
"""ZINC and ZINC-full (473,473 parameters): 21 atom types, 4 bond types. MAE .059 (ZINC), .023 (full). 32 (full: 256), 1e-3, 2000 + 50, 1e-5."""

_superpixels = partial(
    GRITConfig,
    edge=Features(dim=1),
    out_dim=10,
    width=52,
    num_layers=3,
    num_heads=4,
    rrwp_steps=18,
    attention_dropout=0.5,
    pool="mean",
    head="graphgym",
)

mnist = partial(_superpixels, node=Features(dim=3), head_layers=3)
"""MNIST superpixels (102,138): intensity and position, edges with a distance. 16, 1e-3, 200 + 5, 1e-5."""

cifar10 = partial(_superpixels, node=Features(dim=5), head_layers=2)
"""CIFAR10 superpixels (99,486): colour and position, edges with a distance. 16, 1e-3, 200 + 5, 1e-5."""

_blocks = partial(GRITConfig, edge=Features(categories=(1,)), task="node", head="graphgym")

pattern = partial(_blocks, node=Features(dim=3))
"""SBM PATTERN (477,953): three one-hot node features, edges without features, one logit per node. 32, 5e-4, 100 + 5, 1e-5."""

cluster = partial(
    _blocks,
    node=Features(dim=7),
    out_dim=6,
    width=48,
    num_layers=16,
    rrwp_steps=32,
    dropout=0.01,
    attention_dropout=0.5,
)
"""SBM CLUSTER: seven one-hot node features, six classes. 431,670 parameters here; the paper says 432,206. 16, 5e-4, 100 + 5, 1e-5."""

_peptides = partial(
    GRITConfig,
    node=ATOMS_FOUR_CHIRALITIES,
    edge=bonds(),
    width=96,
    num_layers=4,
    attention_dropout=0.5,
    pool="mean",
    head="graphgym",
    head_layers=1,
)

peptides_func = partial(_peptides, num_heads=4, rrwp_steps=17, out_dim=10)
"""Peptides-func (443,338): ten labels. Pass `node=atoms()` for features of OGB 1.3.6. 32, 3e-4, 200 + 5, 0."""

peptides_struct = partial(_peptides, num_heads=8, rrwp_steps=24, out_dim=11)
"""Peptides-struct: eleven targets. 440,171 parameters; the paper's 438,827 is exactly that of `rrwp_steps=17`. 32, 3e-4, 200 + 5, 0."""

small = partial(GRITConfig, node=atoms(), edge=bonds())
"""ZINC's sizes for molecules with OGB's features (483,841 parameters with one output): QM9, molhiv."""

pcqm4mv2 = partial(
    small,
    width=256,
    num_layers=16,
    rrwp_steps=16,
    dropout=0.1,
    attention_dropout=0.1,
    pool="mean",
    activation="gelu",
)
"""PCQM4Mv2: 11.8M parameters by these sizes, where the paper prints 15.3M and 16.6M. 256, 2e-4, 150 + 10, 0."""

brec = partial(GRITConfig, out_dim=16, rrwp_steps=32, attention_dropout=0.0)
"""BREC, graphs without features: ZINC's sizes, 16 outputs that are compared, longer walks, no dropout.
Published: 60 basic, 50 regular, 100 extension and 8 CFI pairs (in PPGT's paper, which does not state GRIT's sizes)."""
