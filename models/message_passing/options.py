"""Options of GraphSAGE, GCN and GAT; the network is in `graphmill.models.message_passing.network`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from graphmill.core.option_checks import Count, Share, Size, check_fields
from graphmill.models.options.local import LocalOptions, check_heads


@dataclass(frozen=True)
class MessagePassingConfig:
    """Options that GraphSAGE, GCN and GAT share. Raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("in_dim", "out_dim", "edge_dim", "seed")
    sharding: ClassVar = "rows"
    reads_weights: ClassVar = True
    convolution: ClassVar[Literal["sage", "gcn", "gat"]]
    in_dim: Count = 1
    out_dim: Count = 1
    edge_dim: Size = 0
    """Columns of an edge's features; every layer reads them. 0: none."""
    width: Count = 128
    """Channels of a node's state."""
    num_layers: Count = 3
    """Layers, of one hop each."""
    residual: Literal["none", "identity", "linear"] = "linear"
    """Term added to each convolution: nothing, the layer's input (if the input has the layer's width), or a linear map of the input."""
    norm: Literal["none", "layer", "batch"] = "batch"
    """Norm after each convolution."""
    dropout: Share = 0.5
    """Dropout after each layer."""
    input_dropout: Share = 0.0
    """Dropout on the features."""
    scale_rows: bool = False
    """Divide each node's features by the sum of their absolute values, as usual for bags of words."""
    seed: int = 0
    """Seed of dropout's masks on a graph that is spread over workers."""

    @property
    def local(self) -> LocalOptions:
        """Options of each layer."""
        heads = getattr(self, "num_heads", 1)
        return LocalOptions(
            self.convolution, "top", self.residual, self.norm, self.dropout, num_heads=heads, top_layers=0
        )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class SAGEConfig(MessagePassingConfig):
    """GraphSAGE."""

    convolution: ClassVar[Literal["sage"]] = "sage"


@dataclass(frozen=True)
class GCNConfig(MessagePassingConfig):
    """GCN."""

    convolution: ClassVar[Literal["gcn"]] = "gcn"


@dataclass(frozen=True)
class GATConfig(MessagePassingConfig):
    """GAT."""

    convolution: ClassVar[Literal["gat"]] = "gat"
    num_heads: Count = 4
    """Attention heads; each has width / num_heads channels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self)
