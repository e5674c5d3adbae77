"""GRIT's options (arXiv:2305.17589); the network is in `graphmill.models.grit.network`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from graphmill.core.option_checks import Count, Positive, Share, Size, check_fields
from graphmill.models.options.features import EdgeQuery, Features, Pool, Task
from graphmill.models.options.local import check_heads

PAIR_MEMORY = 1 << 28  # bytes


@dataclass(frozen=True)
class GRITConfig:
    """Every option of GRIT; the defaults are the paper's formulas and ZINC's sizes. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("node", "edge", "out_dim", "task")
    sharding: ClassVar = "roots"
    node: Features = field(default_factory=Features)
    edge: Features = field(default_factory=Features)
    """Features of an edge. With one category and no edge_attr every edge has that category."""
    out_dim: Count = 1
    task: Task = "graph"
    width: Count = 64
    """Channels of a node's state."""
    num_layers: Count = 10
    """Layers."""
    num_heads: Count = 8
    """Attention heads; each has width / num_heads channels."""
    rrwp_steps: Count = 21
    """K: I, M, …, M^(K-1)."""
    dropout: Share = 0.0
    """Dropout after attention and inside the FFN."""
    attention_dropout: Share = 0.2
    """Dropout on the attention weights."""
    pool: Pool = "sum"
    """Pooling of a graph's node states."""
    head: Literal["halving", "mlp", "graphgym"] = "halving"
    """Kind of the head. halving: the code's "san_graph"; mlp: Linears of the full width; graphgym: GraphGym's MLP, always with ReLU."""
    head_layers: Count = 3
    """Linear layers of the head."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation of the FFN and the head; attention always uses ReLU."""
    degree_scaler: Literal["after", "before", "none", "encoding"] = "after"
    """Position of the degree scaler: after W_O (paper), before W_O (code), none (ablation), or replaced by an embedding of each degree, as in Graphormer (ablation)."""
    score_clamp: Positive | None = None
    """Bound of the scores; the code uses ±5."""
    transposed_rrwp: bool = False
    """Compute e_ij from P_ji, as the code did before December 2024."""
    edge_query: EdgeQuery = "source"
    """Which end of an edge i → j is the query of the pair that gets the edge's features. source: pair e_ij (paper); target: pair e_ji (code)."""
    encoding: Literal["rrwp", "rwse", "shortest_path"] = "rrwp"
    """rrwp: P_ij (paper); rwse (ablation): only P_ii, for nodes; shortest_path (ablation): an embedding of the path's length, below rrwp_steps, for pairs."""
    attention: Literal["conditional", "graphormer"] = "conditional"
    """conditional: the paper's attention; graphormer: dot products plus a bias from the pair's state (ablation)."""
    sparse: bool = False
    """Attend only to neighbors and to the node itself (ablation)."""
    update_pairs: bool = True
    """Update pair states in each layer; no: every layer reads the stem's pair states (ablation)."""
    momentum: float = 0.1
    """Momentum of the batch normalisations."""
    pair_memory: Size = PAIR_MEMORY
    """Bytes that each layer may keep for its pairs until the backward pass. A layer that needs more computes them again, which is slower."""

    @property
    def reads_weights(self) -> bool:
        """Whether weights of edges change the output."""
        return self.encoding != "shortest_path"

    def __post_init__(self) -> None:
        check_fields(self)
        check_heads(self)
        if self.task != "link" and self.head == "halving" and self.width >> (self.head_layers - 1) < 1:
            raise ValueError(f"width {self.width} cannot be halved {self.head_layers - 1} times; set head_layers")
