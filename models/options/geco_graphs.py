"""Options of GECO over many graphs; the network is in `graphmill.models.geco_graphs`."""

from dataclasses import dataclass, field
from typing import ClassVar

from graphmill.core.option_checks import Count, Share, Size
from graphmill.models.options.choices import Head, Normalisation, Permutation, Pool, Task
from graphmill.models.options.features import Features
from graphmill.models.options.geco import FilterConfig
from graphmill.models.options.gps import GPSOptions, PositionOptions, check_hybrid
from graphmill.models.options.local import LocalOptions


@dataclass(frozen=True)
class GECOGraphsConfig:
    """Every option of GECO over many graphs; raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("node", "edge", "out_dim", "task", "seed")
    node: Features = field(default_factory=Features)
    edge: Features = field(default_factory=Features)
    """Read by GatedGCN, or a trained local block that reads them."""
    out_dim: Count = 1
    task: Task = "graph"
    width: Count = 64
    """Channels of a node's state."""
    num_layers: Count = 4
    """Layers."""
    order: Count = 2
    """K: filters and gates per layer."""
    propagation: Normalisation = "mean"
    """Â of the local block; never with added self loops."""
    short_convolution: Size = 0
    """k: in place of the local block, as in the paper's ablation (Conv-k), a causal convolution of each channel with k taps over the nodes in their order; 0: the local block."""
    permutation: Permutation = "static"
    """One order | one per epoch and layer | as given."""
    seed: int = 0
    """Of the order."""
    skip: bool = False
    """Hyena's F_i ⊛ V + s ⊙ V; not in GECO's equations."""
    filter: FilterConfig = field(default_factory=FilterConfig)
    local: LocalOptions = field(default_factory=LocalOptions)
    """gate: every layer is L(H) + g ⊙ GECO(L(H), A); top: local layers between the encoders and `local.top_layers` layers."""
    layer: GPSOptions = field(default_factory=GPSOptions)
    """The hybrid layer. With local="none" the layer is GECO's own, and only dropout and activation are read."""
    position: PositionOptions = field(default_factory=PositionOptions)
    pool: Pool = "mean"
    """How the states of a graph's nodes become one."""
    head: Head = "halving"
    """"graphgym": as GraphGPS's `default` head."""
    head_layers: Count = 3
    """Linear layers of the head."""
    head_dropout: Share = 0.0
    """Dropout between the head's layers."""
    input_dropout: Share = 0.0
    """On numeric features."""
    scale_rows: bool = False
    """Each node's numeric features divided by the sum of their absolute values, as for bags of words."""

    def __post_init__(self) -> None:
        check_hybrid(self)
