"""PPGT's options and presets (arXiv:2504.12588); the network is in `models.ppgt`."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from models.options.checks import check_choices, check_heads, check_least, check_shares
from models.options.choices import EdgeQuery, Pool, Task, Urpe
from models.options.features import Features, atoms, bonds

PAIR_MEMORY = 1 << 26  # bytes


@dataclass(frozen=True)
class PPGTConfig:
    """Every option of PPGT; the defaults are the paper's formulas. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("out_dim", "node", "edge", "task")
    out_dim: int = 1
    node: Features = field(default_factory=Features)
    edge: Features = field(default_factory=Features)
    task: Task = "graph"
    # Backbone
    num_layers: int = 12
    width: int = 64
    num_heads: int = 8
    ffn_ratio: int = 2
    drop_path: float = 0.0
    """Per graph, the same in every layer."""
    attention_dropout: float = 0.0
    dropout: float = 0.0
    """After attention and inside the FFN; 0 in the paper."""
    layer_scale: float | None = None
    """Initial value of a learned factor per channel on each residual branch."""
    urpe: Urpe = "phi"
    unscaled_qk: bool = False
    """q·k without 1/√d_h: the same functions from another start."""
    # Stems
    walk_steps: int = 24
    """K: powers of M beside the identity."""
    dual_walks: bool = False
    """Also over reversed edges, for directed graphs."""
    undirected_walks: bool = False
    """Walks and degrees that take an edge either way (code), not as it points."""
    edge_query: EdgeQuery = "source"
    """The end of an edge that sees its features: p_ij of i → j, or of j → i (code)."""
    walk_normalisation: Literal["walk", "sym"] = "walk"
    """D⁻¹A, or D^-½ A D^-½."""
    spe_scales: int = 3
    """S: 1 + 2S channels for each."""
    degree_channels: bool = True
    """1/deg_i and 1/deg_j among the pair channels."""
    node_sizes: bool = True
    """FC(log(1 + deg)) and FC(log(1 + n)) in the node stem."""
    stem_hidden: int = 128
    edge_width: int = 64
    stem_layers: int = 2
    """F."""
    stem_init: Literal["kaiming", "normal"] = "kaiming"
    """Of the stem's FFNs."""
    stem_memory: int = 1 << 29
    """Bytes the pair stem may keep for the backward pass; with more to keep it computes it again."""
    pair_memory: int = PAIR_MEMORY
    """Bytes each layer's attention may keep likewise."""
    # Head
    pool: Pool = "sum"
    pool_norm: bool = False
    """BatchNorm on the pooled state."""
    head_layers: int = 3
    head_shape: Literal["halving", "constant"] = "halving"
    head_dropout: float = 0.0
    readout: Literal["direct", "class_attention"] = "direct"
    """Class attention: one output per graph, of its root if task is "node"."""
    class_layers: int = 2
    root_embedding: bool = False
    """a learned vector added to root_index's nodes."""
    node_masking: float = 0.0
    """Share of the nodes whose features are zeroed, in training."""
    input_dropout: float = 0.0
    """On numeric node features; 0 in the paper."""

    def __post_init__(self) -> None:
        check_least(self, 0, "num_layers", "pair_memory", "walk_steps", "spe_scales", "stem_layers", "class_layers")
        check_least(self, 1, "out_dim", "width", "num_heads", "ffn_ratio", "stem_hidden", "edge_width", "head_layers")
        check_heads(self)
        check_shares(self, "drop_path", "attention_dropout", "dropout", "head_dropout", "node_masking", "input_dropout")
        check_choices(self)
        if self.dual_walks and self.undirected_walks:
            raise ValueError("undirected walks are the same both ways; set dual_walks or undirected_walks to False")
        if self.task == "link" and self.readout != "direct":
            raise ValueError("class attention has no states of nodes to score links with; set readout to direct")
        if self.head_shape == "halving" and self.width >> (self.head_layers - 1) < 1:
            raise ValueError(
                f"width {self.width} cannot be halved {self.head_layers - 1} times; set head_layers or head_shape"
            )

    @property
    def walk_channels(self) -> int:
        """C: channels of P_ij."""
        return 1 + self.walk_steps * (1 + self.dual_walks)

    @property
    def pair_channels(self) -> int:
        """Channels of a pair before SPE: those of P_ij, 1/n and, if any, 1/deg_i and 1/deg_j."""
        return self.walk_channels + (3 if self.degree_channels else 1)


def as_released(config: PPGTConfig) -> PPGTConfig:
    """Returns the config with the released code's formulas in place of the paper's."""
    return replace(
        config,
        urpe="one_plus_phi",
        unscaled_qk=True,
        stem_init="normal",
        head_shape="constant",
        undirected_walks=not config.dual_walks,
        edge_query="target",
    )


def _row(
    shape: tuple[int, int, int],
    stem: tuple[int, int, int],
    walk_steps: int,
    drops: tuple[float, float],
    **options: Any,
) -> partial[PPGTConfig]:
    """A row of the paper's table: (L, D, H), (stem_hidden, edge_width, stem_layers), K, (drop_path, attention_dropout)."""
    names = ("num_layers", "width", "num_heads", "stem_hidden", "edge_width", "stem_layers")
    sizes: dict[str, Any] = dict(zip(names, (*shape, *stem), strict=True))
    drop_path, attention_dropout = drops
    return partial(
        PPGTConfig,
        **sizes,
        walk_steps=walk_steps,
        drop_path=drop_path,
        attention_dropout=attention_dropout,
        **options,
    )


# Below, "32, 2e-3, 2500 + 50, 1e-5" is the published training: batch, learning rate, epochs and those of warm-up, weight decay. AdamW,
# gradient norm 1, cosine after a warm-up from 1e-7; at least 7e-5 on ZINC and BREC, 1e-5 for the base model, 1e-6 on arXiv.
_SUPERPIXELS: dict[str, Any] = {"out_dim": 10, "edge": Features(dim=1), "pool": "mean", "head_layers": 2}
_BLOCKS: dict[str, Any] = {"task": "node", "head_layers": 2}
_MOLECULES: dict[str, Any] = {"node": atoms(), "edge": bonds()}

zinc = _row((12, 64, 8), (128, 64, 2), 24, (0.1, 0.2), node=Features(categories=(21,)), edge=Features(categories=(4,)))
"""ZINC: 487,425 parameters. 32, 2e-3, 2500 + 50, 1e-5."""

mnist = _row((4, 48, 6), (64, 32, 1), 10, (0.2, 0.5), node=Features(dim=3), **_SUPERPIXELS)
"""MNIST superpixels (intensity and two coordinates). 32, 1e-3, 400 + 10, 1e-5.
The released configuration adds both ends' coordinates to the pair channels, which this leaves out."""

cifar10 = _row((10, 32, 4), (64, 32, 2), 10, (0.2, 0.2), node=Features(dim=5), **_SUPERPIXELS)
"""CIFAR10 superpixels (colour and two coordinates). 16, 1e-3, 200 + 10, 1e-5."""

pattern = _row((12, 64, 8), (128, 64, 2), 32, (0.1, 0.1), out_dim=2, node=Features(dim=3), **_BLOCKS)
"""PATTERN. 32, 1e-3, 400 + 10, 1e-5."""

cluster = _row((16, 56, 7), (128, 64, 2), 32, (0.3, 0.3), out_dim=6, node=Features(dim=7), **_BLOCKS)
"""CLUSTER. 16, 1e-3, 150 + 10, 1e-5."""

peptides_func = _row((5, 96, 16), (128, 64, 1), 32, (0.1, 0.2), out_dim=10, pool_norm=True, **_MOLECULES)
"""Peptides-func. 32, 7e-4, 400 + 10, 1e-5."""

peptides_struct = _row((5, 96, 8), (128, 64, 1), 24, (0.1, 0.1), out_dim=11, pool="mean", head_layers=2, **_MOLECULES)
"""Peptides-struct. 32, 7e-4, 250 + 10, 1e-5."""

voc_superpixels = _row(
    (12, 64, 8), (128, 64, 1), 16, (0.2, 0.3), out_dim=21, node=Features(dim=14), edge=Features(dim=2), **_BLOCKS
)
"""PascalVOC-SP. 16, 1e-3, 200 + 10, 1e-2."""

pcqm4mv2 = _row((16, 512, 16), (512, 128, 8), 24, (0.2, 0.2), spe_scales=10, layer_scale=1e-4, **_MOLECULES)
"""PCQM4Mv2, "small". LayerScale as released. 2048, 1e-3, 500 + 50, 1e-3.
The published table's layers and widths make 34.9M parameters, not the 17.6M printed beside them."""

pcqm4mv2_base = _row(
    (12, 768, 12),
    (512, 128, 2),
    8,
    (0.2, 0.1),
    ffn_ratio=4,
    walk_normalisation="sym",
    spe_scales=5,
    layer_scale=1e-4,
    pool="mean",
    **_MOLECULES,
)
"""PCQM4Mv2, "base", as released. 512, 1e-3, 300 + 30, 1e-5."""

arxiv = _row(
    (10, 192, 8),
    (192, 96, 2),
    5,
    (0.5, 0.5),
    out_dim=40,
    node=Features(dim=128),
    task="node",
    readout="class_attention",
    dual_walks=True,
    degree_channels=False,
    node_sizes=False,
    layer_scale=1e-5,
    root_embedding=True,
    node_masking=0.5,
    head_layers=1,
    head_dropout=0.5,
)
"""ogbn-arxiv by Node2Subgraph, 10 hops (paper: 15) and 100 nodes; 3.75M parameters. 128, 2e-3, 300 + 10, 5e-2, label smoothing 0.15.
As released, degrees are no input, and n only to the CLS."""

brec = _row((6, 96, 16), (192, 96, 4), 32, (0.0, 0.0), out_dim=16, spe_scales=15, pool_norm=True)
"""BREC, graphs without features. 32 (released: 16), 1e-3, 200 + 10, 1e-5."""

small = _row((7, 88, 8), (96, 48, 2), 12, (0.05, 0.1), urpe="one_plus_phi", pool="mean", **_MOLECULES)
"""Molecules of QM9's size, 0.50M parameters: ZINC's model with wider layers, fewer of them, and shorter walks.
URPE is 1 + φ, as in the released code; `urpe="phi"` is the paper's."""


def node2subgraph(in_dim: int, out_dim: int, **options: Any) -> PPGTConfig:
    """Node classification by small subgraphs (32 nodes, 2 hops) on a CPU: the root's own state is read, and pairs are narrow.

    Amazon-Photo and -Computers: AdamW, batch 64, lr 2e-3, one epoch of warm-up, cosine to 0 over 6 epochs, weight decay 1e-2,
    gradient norm 1, label smoothing 0.1. `dual_walks=True` on directed graphs. URPE is 1 + φ, as in the released code; `urpe="phi"`
    is the paper's.
    """
    preset = _row(
        (2, 96, 4),
        (32, 16, 1),
        2,
        (0.1, 0.1),
        task="node",
        urpe="one_plus_phi",
        root_embedding=True,
        node_masking=0.2,
        input_dropout=0.3,
        head_layers=1,
        head_dropout=0.3,
    )
    return preset(out_dim=out_dim, node=Features(dim=in_dim), **options)
