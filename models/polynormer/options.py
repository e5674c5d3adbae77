"""Options of Polynormer (arXiv:2403.01232); the network is in `graphmill.models.polynormer.network`."""

from dataclasses import dataclass, field
from typing import ClassVar

from graphmill.core.option_checks import Count, Share, Size, check_fields
from graphmill.models.options.features import Features, Pool, Task, check_numeric
from graphmill.models.options.local import check_heads


@dataclass(frozen=True)
class PolynormerConfig:
    """Every option of Polynormer; the defaults are the released ones. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("node", "out_dim", "task")
    reads_weights: ClassVar = True
    node: Features = field(default_factory=Features)
    out_dim: Count = 1
    task: Task = "node"
    width: Count = 512
    """Channels of a node's state."""
    num_heads: Count = 8
    """Attention heads of both attentions; each has width / num_heads channels."""
    num_layers: Count = 7
    """Local layers."""
    global_layers: Size = 2
    """Layers of global attention after the local ones; 0: none."""
    local_epochs: Size = 100
    """Epochs in which the prediction comes from the local layers alone; later it comes from global attention."""
    beta: Share | None = None
    """β of all layers, constant; None: learned."""
    dropout: Share = 0.5
    """Dropout after the encoder and after each local layer."""
    global_dropout: Share = 0.5
    """Dropout after each layer of global attention."""
    input_dropout: Share = 0.15
    """Dropout on the features."""
    pool: Pool = "mean"
    """Pooling of a graph's node states."""
    scale_rows: bool = False
    """Divide each node's numeric features by the sum of their absolute values, as usual for bags of words."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_heads(self)
        check_numeric(self, "scale_rows")
