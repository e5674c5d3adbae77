"""PPGT's options (arXiv:2504.12588); the network is in `graphmill.models.ppgt.network`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from graphmill.core.option_checks import Count, Share, Size, check_fields
from graphmill.models.options.features import EdgeQuery, Features, Pool, Task, Urpe, check_numeric
from graphmill.models.options.local import LocalOptions, check_global, check_heads, check_joins

PAIR_MEMORY = 1 << 26  # bytes


@dataclass(frozen=True)
class PPGTConfig:
    """Every option of PPGT; the defaults are the paper's formulas. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("out_dim", "node", "edge", "task")
    reads_weights: ClassVar = True
    sharding: ClassVar = "roots"
    out_dim: Count = 1
    node: Features = field(default_factory=Features)
    edge: Features = field(default_factory=Features)
    task: Task = "graph"
    # Backbone
    num_layers: Size = 12
    """Layers."""
    width: Count = 64
    """Channels of a node's state."""
    num_heads: Count = 8
    """Attention heads; each has width / num_heads channels."""
    ffn_ratio: Count = 2
    """The FFN's inner width, in widths of the layer."""
    drop_path: Share = 0.0
    """Probability to drop a residual branch, drawn per graph; every layer has the same probability."""
    attention_dropout: Share = 0.0
    """Dropout on the attention weights."""
    dropout: Share = 0.0
    """Dropout after attention and inside the FFN; 0 in the paper."""
    layer_scale: float | None = None
    """Initial value of a learned factor per channel on each residual branch."""
    urpe: Urpe = "phi"
    """Factor of a pair's attention weight after the softmax: φ, 1 + φ, or none."""
    attention: Literal["sl2", "dot", "conditional"] = "sl2"
    """Scores of a pair. sl2: the paper's, from squared distances; dot: q·k alone (ablation); conditional: GRIT's perceptron, without φ (ablation)."""
    degree_scaler: bool = False
    """Scale the attention's output by GRIT's θ₁ + log(1 + deg)·θ₂ (ablation)."""
    unscaled_qk: bool = False
    """Compute q·k without 1/√d_h. The model can express the same functions, but its initial values differ."""
    # Stems
    walk_steps: Size = 24
    """K: powers of M in addition to the identity."""
    dual_walks: bool = False
    """Also compute walks over reversed edges, for directed graphs."""
    undirected_walks: bool = False
    """Walks and degrees use each edge in both directions, as in the released code, not only from source to target."""
    edge_query: EdgeQuery = "source"
    """Which end of an edge i → j is the query of the pair that gets the edge's features. source: pair p_ij; target: pair p_ji (code)."""
    walk_normalisation: Literal["walk", "sym"] = "walk"
    """Matrix of the walks: D⁻¹A, or D^-½ A D^-½."""
    spe_scales: Size = 3
    """S: SPE turns each channel into 1 + 2S channels."""
    degree_channels: bool = True
    """Add 1/deg_i and 1/deg_j to the pair channels."""
    node_sizes: bool = True
    """Add FC(log(1 + deg)) and FC(log(1 + n)) in the node stem."""
    node_degrees: bool = True
    """no: the node stem has only FC(log(1 + n)) (released base model)."""
    positions: Size = 0
    """Number of the last columns of numeric node features that hold a position (superpixels). Pair channels then contain the difference of two positions, and a Linear of the position replaces FC(log(1 + n))."""
    stem_hidden: Count = 128
    """Inner width of the pair stem's first MLP."""
    edge_width: Count = 64
    """Channels of a pair's state."""
    stem_layers: Size = 2
    """F: FFNs of the pair stem."""
    stem_ratio: Count = 2
    """Inner width of the stem's FFNs, in widths of a pair's state."""
    stem_branch: bool = False
    """Also apply layer_scale and drop_path to the stem's FFNs (released ogbn-arxiv model)."""
    input_norms: bool = False
    """Add a norm of x⁰ before the layers and a norm of p before the stem's FFNs (released base model)."""
    norm: Literal["ada", "ada_identity", "rms", "batch"] = "ada"
    """AdaRMSN (paper) | AdaRMSN that starts as the identity (α = 1, β = 0) | RMSNorm with a factor per channel (for studies) | BatchNorm of the node states, while the pairs keep AdaRMSN (ablation)."""
    stem_init: Literal["kaiming", "normal"] = "kaiming"
    """Initial values of the stem's FFNs."""
    stem_memory: Size = 1 << 29
    """Bytes that the pair stem may keep for the backward pass. A stem that needs more is computed again."""
    pair_memory: Size = PAIR_MEMORY
    """Bytes that each layer's attention may keep for the backward pass. Attention that needs more is computed again."""
    # Head
    pool: Pool = "sum"
    """Pooling of a graph's node states."""
    pool_norm: bool = False
    """Apply BatchNorm to the pooled state."""
    head_layers: Count = 3
    """Linear layers of the head."""
    head_shape: Literal["halving", "constant"] = "halving"
    """Each layer of the head is half as wide as the layer before, or all layers have one width."""
    head_dropout: Share = 0.0
    """Dropout between the head's layers."""
    readout: Literal["direct", "class_attention"] = "direct"
    """class_attention: one output per graph; with task "node" this is the output of the graph's root."""
    class_layers: Size = 2
    """Layers of class attention."""
    class_norm: Literal["each", "before"] = "each"
    """each: class attention normalises the nodes in each of its layers; before: it normalises them once, before its layers (released ogbn-arxiv model)."""
    root_embedding: bool = False
    """Add a learned vector to the roots."""
    node_masking: Share = 0.0
    """Share of the nodes whose features are set to zero in training."""
    input_dropout: Share = 0.0
    """Dropout on numeric node features; 0 in the paper."""
    # Departures from the paper, all off by default.
    local: LocalOptions = field(default_factory=LocalOptions)
    scale_rows: bool = False
    """Divide each node's numeric features by the sum of their absolute values, as usual for bags of words."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_heads(self)
        check_joins(self)
        check_global(self, "pairs of nodes are read in global layers alone")
        check_numeric(self, "scale_rows")
        if 0 < self.node.dim < self.positions:
            raise ValueError(
                f"positions must be at most the {self.node.dim} features, got {self.positions}; set positions"
            )
        if self.dual_walks and self.undirected_walks:
            raise ValueError("undirected walks are the same both ways; set dual_walks or undirected_walks to False")
        if self.attention == "conditional" and (self.urpe != "none" or self.unscaled_qk):
            raise ValueError(
                f"conditional attention has neither φ nor q·k, got urpe {self.urpe} and unscaled_qk {self.unscaled_qk}; set urpe to none, unscaled_qk to False"
            )
        if self.attention == "conditional" and self.edge_width != self.width:
            raise ValueError(
                f"conditional attention needs pairs as wide as the nodes, got {self.edge_width} and {self.width}; set edge_width"
            )
        if self.norm == "batch" and self.readout == "class_attention":
            raise ValueError(
                "class attention has no batch of tokens to normalise; set norm to ada or rms, or readout to direct"
            )
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
        """Channels of a pair before SPE: P_ij, differences of positions, 1/n and, with `degree_channels`, 1/deg_i and 1/deg_j."""
        return self.walk_channels + self.positions + (3 if self.degree_channels else 1)
