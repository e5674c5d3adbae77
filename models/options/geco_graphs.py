"""Options of GECO over many graphs; the network is in `graphmill.models.geco_graphs`."""

from dataclasses import dataclass, field
from typing import ClassVar

from graphmill.core.option_checks import Count, Size
from graphmill.models.options.choices import Normalisation, Permutation
from graphmill.models.options.geco import FilterConfig
from graphmill.models.options.gps import HybridConfig


@dataclass(frozen=True)
class GECOGraphsConfig(HybridConfig):
    """Every option of GECO over many graphs; raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("node", "edge", "out_dim", "task", "seed")
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
