"""PPGT's options and presets (arXiv:2504.12588); the network is in `models.ppgt`."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from models.options.choices import EDGE_QUERIES, POOLS, TASKS, URPES, EdgeQuery, Pool, Task, Urpe
from models.options.features import Features, atoms, bonds

PAIR_MEMORY = 1 << 26  # bytes


def random_walk_channels(steps: int, *, identity: bool = True, reverse: bool = False) -> int:
    """The K of `random_walk_probabilities` with the same arguments."""
    return identity + (steps - identity) * (1 + reverse)


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
        leasts = {
            "num_layers": 0,
            "pair_memory": 0,
            "walk_steps": 0,
            "spe_scales": 0,
            "stem_layers": 0,
            "class_layers": 0,
        }
        positive = ("out_dim", "width", "num_heads", "ffn_ratio", "stem_hidden", "edge_width", "head_layers")
        for name, least in {**leasts, **dict.fromkeys(positive, 1)}.items():
            value = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}; set {name}")
        if self.width % self.num_heads:
            raise ValueError(
                f"width must be a multiple of num_heads, got {self.width} and {self.num_heads}; set num_heads"
            )
        for name in ("drop_path", "attention_dropout", "dropout", "head_dropout", "node_masking", "input_dropout"):
            value = getattr(self, name)
            if not (0 <= value < 1):
                raise ValueError(f"{name} must lie in [0, 1), got {value}; set {name}")
        choices = {
            "task": TASKS,
            "urpe": URPES,
            "walk_normalisation": ("walk", "sym"),
            "edge_query": EDGE_QUERIES,
            "stem_init": ("kaiming", "normal"),
            "pool": POOLS,
            "head_shape": ("halving", "constant"),
            "readout": ("direct", "class_attention"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}; set {name}")
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
        return random_walk_channels(self.walk_steps + 1, reverse=self.dual_walks)

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


def _preset(defaults: dict[str, Any], options: dict[str, Any]) -> PPGTConfig:
    return PPGTConfig(**{**defaults, **options})


def zinc(**options: Any) -> PPGTConfig:
    """ZINC: 487,425 parameters."""
    defaults: dict[str, Any] = {
        "out_dim": 1,
        "node": Features(categories=(21,)),
        "edge": Features(categories=(4,)),
        "drop_path": 0.1,
        "attention_dropout": 0.2,
    }
    return _preset(defaults, options)


def mnist(**options: Any) -> PPGTConfig:
    """MNIST superpixels (intensity and two coordinates).

    The released configuration adds both ends' coordinates to the pair channels, which this leaves out.
    """
    defaults: dict[str, Any] = {
        "out_dim": 10,
        "node": Features(dim=3),
        "edge": Features(dim=1),
        "num_layers": 4,
        "width": 48,
        "num_heads": 6,
        "stem_hidden": 64,
        "edge_width": 32,
        "stem_layers": 1,
        "walk_steps": 10,
        "drop_path": 0.2,
        "attention_dropout": 0.5,
        "pool": "mean",
        "head_layers": 2,
    }
    return _preset(defaults, options)


def cifar10(**options: Any) -> PPGTConfig:
    """CIFAR10 superpixels (colour and two coordinates)."""
    defaults: dict[str, Any] = {
        "out_dim": 10,
        "node": Features(dim=5),
        "edge": Features(dim=1),
        "num_layers": 10,
        "width": 32,
        "num_heads": 4,
        "stem_hidden": 64,
        "edge_width": 32,
        "walk_steps": 10,
        "drop_path": 0.2,
        "attention_dropout": 0.2,
        "pool": "mean",
        "head_layers": 2,
    }
    return _preset(defaults, options)


def pattern(**options: Any) -> PPGTConfig:
    """PATTERN."""
    defaults: dict[str, Any] = {
        "out_dim": 2,
        "node": Features(dim=3),
        "task": "node",
        "walk_steps": 32,
        "drop_path": 0.1,
        "attention_dropout": 0.1,
        "head_layers": 2,
    }
    return _preset(defaults, options)


def cluster(**options: Any) -> PPGTConfig:
    """CLUSTER."""
    defaults: dict[str, Any] = {
        "out_dim": 6,
        "node": Features(dim=7),
        "task": "node",
        "num_layers": 16,
        "width": 56,
        "num_heads": 7,
        "walk_steps": 32,
        "drop_path": 0.3,
        "attention_dropout": 0.3,
        "head_layers": 2,
    }
    return _preset(defaults, options)


def peptides_func(**options: Any) -> PPGTConfig:
    """Peptides-func."""
    defaults: dict[str, Any] = {
        "out_dim": 10,
        "node": atoms(),
        "edge": bonds(),
        "num_layers": 5,
        "width": 96,
        "num_heads": 16,
        "stem_layers": 1,
        "walk_steps": 32,
        "drop_path": 0.1,
        "attention_dropout": 0.2,
        "pool_norm": True,
    }
    return _preset(defaults, options)


def peptides_struct(**options: Any) -> PPGTConfig:
    """Peptides-struct."""
    defaults: dict[str, Any] = {
        "out_dim": 11,
        "node": atoms(),
        "edge": bonds(),
        "num_layers": 5,
        "width": 96,
        "num_heads": 8,
        "stem_layers": 1,
        "walk_steps": 24,
        "drop_path": 0.1,
        "attention_dropout": 0.1,
        "pool": "mean",
        "head_layers": 2,
    }
    return _preset(defaults, options)


def voc_superpixels(**options: Any) -> PPGTConfig:
    """PascalVOC-SP."""
    defaults: dict[str, Any] = {
        "out_dim": 21,
        "node": Features(dim=14),
        "edge": Features(dim=2),
        "task": "node",
        "stem_layers": 1,
        "walk_steps": 16,
        "drop_path": 0.2,
        "attention_dropout": 0.3,
        "head_layers": 2,
    }
    return _preset(defaults, options)


def pcqm4mv2(**options: Any) -> PPGTConfig:
    """PCQM4Mv2, "small". LayerScale as released.

    The published table's layers and widths make 34.9M parameters, not the 17.6M printed beside them.
    """
    defaults: dict[str, Any] = {
        "out_dim": 1,
        "node": atoms(),
        "edge": bonds(),
        "num_layers": 16,
        "width": 512,
        "num_heads": 16,
        "stem_hidden": 512,
        "edge_width": 128,
        "stem_layers": 8,
        "walk_steps": 24,
        "spe_scales": 10,
        "drop_path": 0.2,
        "attention_dropout": 0.2,
        "layer_scale": 1e-4,
    }
    return _preset(defaults, options)


def pcqm4mv2_base(**options: Any) -> PPGTConfig:
    """PCQM4Mv2, "base", as released."""
    defaults: dict[str, Any] = {
        "out_dim": 1,
        "node": atoms(),
        "edge": bonds(),
        "num_layers": 12,
        "width": 768,
        "num_heads": 12,
        "ffn_ratio": 4,
        "stem_hidden": 512,
        "edge_width": 128,
        "walk_steps": 8,
        "walk_normalisation": "sym",
        "spe_scales": 5,
        "drop_path": 0.2,
        "attention_dropout": 0.1,
        "layer_scale": 1e-4,
        "pool": "mean",
    }
    return _preset(defaults, options)


def arxiv(**options: Any) -> PPGTConfig:
    """ogbn-arxiv by Node2Subgraph, 10 hops (paper: 15) and 100 nodes; 3.75M parameters. Label smoothing 0.15.

    As released, degrees are no input, and n only to the CLS.
    """
    defaults: dict[str, Any] = {
        "out_dim": 40,
        "node": Features(dim=128),
        "task": "node",
        "readout": "class_attention",
        "num_layers": 10,
        "width": 192,
        "num_heads": 8,
        "stem_hidden": 192,
        "edge_width": 96,
        "walk_steps": 5,
        "dual_walks": True,
        "degree_channels": False,
        "node_sizes": False,
        "drop_path": 0.5,
        "attention_dropout": 0.5,
        "layer_scale": 1e-5,
        "root_embedding": True,
        "node_masking": 0.5,
        "head_layers": 1,
        "head_dropout": 0.5,
    }
    return _preset(defaults, options)


def brec(**options: Any) -> PPGTConfig:
    """BREC, graphs without features."""
    defaults: dict[str, Any] = {
        "out_dim": 16,
        "num_layers": 6,
        "width": 96,
        "num_heads": 16,
        "stem_hidden": 192,
        "edge_width": 96,
        "stem_layers": 4,
        "walk_steps": 32,
        "spe_scales": 15,
        "pool_norm": True,
    }
    return _preset(defaults, options)


# The published training of each preset: batch, learning rate, epochs, warm-up epochs, weight decay. AdamW, gradient norm 1, cosine after a
# warm-up from 1e-7; at least 7e-5 on ZINC and BREC, 1e-5 for the base model, 1e-6 on arXiv. arXiv has label smoothing 0.15. BREC as released
# has batches of 16.
TRAINING: dict[str, tuple[int, float, int, int, float]] = {
    "zinc": (32, 2e-3, 2500, 50, 1e-5),
    "mnist": (32, 1e-3, 400, 10, 1e-5),
    "cifar10": (16, 1e-3, 200, 10, 1e-5),
    "pattern": (32, 1e-3, 400, 10, 1e-5),
    "cluster": (16, 1e-3, 150, 10, 1e-5),
    "peptides_func": (32, 7e-4, 400, 10, 1e-5),
    "peptides_struct": (32, 7e-4, 250, 10, 1e-5),
    "voc_superpixels": (16, 1e-3, 200, 10, 1e-2),
    "pcqm4mv2": (2048, 1e-3, 500, 50, 1e-3),
    "pcqm4mv2_base": (512, 1e-3, 300, 30, 1e-5),
    "arxiv": (128, 2e-3, 300, 10, 5e-2),
    "brec": (32, 1e-3, 200, 10, 1e-5),
}


def small(**options: Any) -> PPGTConfig:
    """Molecules of QM9's size, 0.50M parameters: ZINC's model with wider layers, fewer of them, and shorter walks.

    URPE is 1 + φ, as in the released code; `urpe="phi"` is the paper's.
    """
    defaults: dict[str, Any] = {
        "out_dim": 1,
        "node": atoms(),
        "edge": bonds(),
        "num_layers": 7,
        "width": 88,
        "num_heads": 8,
        "stem_hidden": 96,
        "edge_width": 48,
        "walk_steps": 12,
        "urpe": "one_plus_phi",
        "drop_path": 0.05,
        "attention_dropout": 0.1,
        "pool": "mean",
    }
    return _preset(defaults, options)


def node2subgraph(in_dim: int, out_dim: int, **options: Any) -> PPGTConfig:
    """Node classification by small subgraphs (32 nodes, 2 hops) on a CPU: the root's own state is read, and pairs are narrow.

    Amazon-Photo and -Computers: AdamW, batch 64, lr 2e-3, one epoch of warm-up, cosine to 0 over 6 epochs, weight decay 1e-2,
    gradient norm 1, label smoothing 0.1. `dual_walks=True` on directed graphs. URPE is 1 + φ, as in the released code; `urpe="phi"`
    is the paper's.
    """
    defaults: dict[str, Any] = {
        "out_dim": out_dim,
        "node": Features(dim=in_dim),
        "task": "node",
        "num_layers": 2,
        "width": 96,
        "num_heads": 4,
        "stem_hidden": 32,
        "edge_width": 16,
        "stem_layers": 1,
        "walk_steps": 2,
        "urpe": "one_plus_phi",
        "drop_path": 0.1,
        "attention_dropout": 0.1,
        "root_embedding": True,
        "node_masking": 0.2,
        "input_dropout": 0.3,
        "head_layers": 1,
        "head_dropout": 0.3,
    }
    return _preset(defaults, options)
