"""Options of SGFormer (arXiv:2306.10759); the network is in `graphmill.models.sgformer.network`."""

from dataclasses import dataclass, field
from typing import ClassVar

from graphmill.core.option_checks import Count, Share, check_fields
from graphmill.models.options.features import Features, Pool, Task, check_numeric


@dataclass(frozen=True)
class SGFormerConfig:
    """Every option of SGFormer; the defaults are the released ones for large graphs. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("node", "out_dim", "task")
    reads_weights: ClassVar = True
    node: Features = field(default_factory=Features)
    out_dim: Count = 1
    task: Task = "node"
    width: Count = 256
    """Channels of a node's state."""
    num_layers: Count = 3
    """Layers of GCN."""
    attention_layers: Count = 1
    """Layers of global attention; one in the paper."""
    num_heads: Count = 1
    """Attention heads; each has all channels, and the heads' mean is taken."""
    graph_weight: Share = 0.5
    """Share of the GCN in the sum of both."""
    initial: bool = False
    """Each layer of the GCN also reads the encoder's output."""
    dropout: Share = 0.5
    """Dropout after the layers of the GCN."""
    attention_dropout: Share = 0.2
    """Dropout after the layers of global attention."""
    pool: Pool = "mean"
    """Pooling of a graph's node states."""
    scale_rows: bool = False
    """Divide each node's numeric features by the sum of their absolute values, as usual for bags of words."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_numeric(self, "scale_rows")
