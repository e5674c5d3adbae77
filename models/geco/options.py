"""GECO's options (arXiv:2406.12059); the network is in `graphmill.models.geco.network`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from graphmill.core.option_checks import Count, Positive, Share, Size, check_fields
from graphmill.models.gps.options import HybridConfig
from graphmill.models.options.features import Normalisation, Permutation
from graphmill.models.options.filters import FilterConfig
from graphmill.models.options.local import READS_EDGES, LocalOptions, check_local


@dataclass(frozen=True)
class GECOConfig:
    """Every option of GECO; the defaults are the paper's formulas. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("in_dim", "out_dim", "edge_dim", "seed", "encoding_dim")
    in_dim: Size = 1
    out_dim: Count = 1
    edge_dim: Size = 0
    """Columns of an edge's features; only a trained local block reads them. 0: none."""
    width: Count = 128
    """Channels of a node's state."""
    num_layers: Count = 3
    """Layers, of one hop each."""
    order: Count = 2
    """K: filters and gates per layer."""
    propagation: Normalisation = "mean"
    """Â of the LCB. mean: D_in⁻¹A; sum: A; sym: D_in^-½ A D_out^-½; gcn, with self-loops added: (D_in + I)^-½ (A + I) (D_in + I)^-½."""
    permutation: Permutation = "static"
    """static: one order for the whole run; dynamic: a new order per epoch and layer; none: the rows as given."""
    seed: int = 0
    """Seed of the node order."""
    dropout: Share = 0.1
    """Dropout after the GCB, inside the FFN and after the FFN."""
    input_dropout: Share = 0.0
    """Dropout on the features."""
    activation: Literal["gelu", "relu"] = "gelu"
    """Activation of the FFN."""
    encoding_dim: Size = 0
    """Columns of positional encodings, which are concatenated to the features (in the paper for small graphs only)."""
    skip: bool = False
    """Add Hyena's skip per channel: F_i ⊛ V + s ⊙ V, with initial value s = 1 (random in Hyena). It is not in GECO's equations. With the skip, a node's output
    contains the product of its own gates. Without the skip, this product is hidden in a mean over thousands of nodes.
    """
    filter: FilterConfig = field(default_factory=FilterConfig)
    block: Literal["geco", "hyena"] = "geco"
    """geco: GECO's block; hyena: the paper's baseline, which is Hyena's operator over the nodes in their order, without edges (models/geco/hyena.py)."""
    # Departures from the paper, all off by default.
    local: LocalOptions = field(default_factory=LocalOptions)
    scale_rows: bool = False
    """Divide each node's features by the sum of their absolute values, as usual for bags of words."""
    norm: Literal["post", "pre"] = "post"
    """Position of the norms. pre: X + f(LN(X)), and one LN before the head."""
    hops: Count = 1
    """Hops of the LCB: [X, ÂX, …, Â^hops X]."""
    output_projection: bool = False
    """Add a Linear after the GCB, as in Hyena."""
    jump: Literal["last", "sum"] = "last"
    """Input of the head. sum: the sum of all layers' outputs (jumping knowledge)."""
    recompute: bool = False
    """Keep only the input of each layer, and compute the rest again in the backward pass. Results stay the same."""
    filter_learning_rate: Positive | None = None
    """Learning rate of the implicit filters; none: the common rate."""

    @property
    def reads_weights(self) -> bool:
        """Whether weights of edges change the output."""
        return self.block != "hyena"

    def __post_init__(self) -> None:
        check_fields(self)
        check_local(self)
        if self.edge_dim and (self.block == "hyena" or self.local.block not in READS_EDGES):
            block = "hyena" if self.block == "hyena" else self.local.block
            raise ValueError(
                f"features of edges need a local block that reads them ({', '.join(READS_EDGES)}), got {block}; set local.block"
            )
        if self.local.is_paper and self.local.residual == "identity":
            raise ValueError(
                "a serial layer adds its input already, got the residual identity; set local.residual to none or linear"
            )
        if self.local.join == "gate" and self.norm == "pre":
            raise ValueError("norm places LayerNorm in the paper's layer, which join gate has not; set norm to post")
        if not self.local.is_paper and self.jump == "sum":
            raise ValueError(f"jump sum goes with the paper's layers, got join {self.local.join}; set jump to last")
        if self.block == "hyena" and (
            self.local != LocalOptions() or self.hops > 1 or self.output_projection or self.skip
        ):
            raise ValueError(
                "hyena has no local block and a projection and skip of its own; set local, hops, output_projection and skip to their defaults"
            )
        if self.in_dim + self.encoding_dim == 0:
            raise ValueError("the model needs an input: in_dim and encoding_dim are both 0; give features or encodings")

    @property
    def sharding(self) -> Literal["rows"] | None:
        """How several workers evaluate the model on one graph: each worker evaluates a range of the nodes."""
        return None if self.block == "hyena" else "rows"


@dataclass(frozen=True)
class GECOGraphsConfig(HybridConfig):
    """Every option of GECO over many graphs; raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("node", "edge", "out_dim", "task", "seed")
    order: Count = 2
    """K: filters and gates per layer."""
    propagation: Normalisation = "mean"
    """Â of the local block; never with added self loops."""
    short_convolution: Size = 0
    """k taps of a causal convolution over the nodes in their order, in place of the local block (the paper's ablation Conv-k); 0: the local block."""
    permutation: Permutation = "static"
    """static: one order; dynamic: a new order per epoch and layer; none: the nodes as given."""
    seed: int = 0
    """Seed of the node order."""
    skip: bool = False
    """Add Hyena's skip: F_i ⊛ V + s ⊙ V. It is not in GECO's equations."""
    filter: FilterConfig = field(default_factory=FilterConfig)
