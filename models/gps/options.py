"""Defines options of the GPS hybrid layer (arXiv:2205.12454), of position encodings, and of models that consist of hybrid layers. The modules are
in `graphmill.models.gps.layer` and `graphmill.models.gps.ends`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from graphmill.core.option_checks import Count, Share, check_fields
from graphmill.models.options.features import Features, Head, Local, Pool, Task, check_numeric
from graphmill.models.options.local import READS_EDGES, LocalOptions, check_joins


@dataclass(frozen=True)
class GPSOptions:
    """Options of one hybrid layer; raises ValueError on values that cannot work."""

    local: Local = "gated_gcn"
    """Kind of message passing in parallel to the attention; gine and gcne read the edge states, which stay the encoder's; none: only attention."""
    activated: bool = False
    """Apply a norm (except after gine) and the activation to the message passing of gine, gcne or gcn, as GNN+ does. GatedGCN always has both."""
    mlp: Literal["plain", "residual"] = "plain"
    """plain: the paper's formula; residual: the formula of GraphGPS's code, which adds the MLP's input and normalises once more."""
    norm: Literal["batch", "layer", "none"] = "batch"
    """Norm after each of the two blocks, and after a residual MLP."""
    activation: Literal["relu", "gelu"] = "relu"
    """Activation of the MLP."""
    dropout: Share = 0.0
    """Dropout after both blocks, twice in the MLP, and on GatedGCN's edge states."""
    mlp_ratio: Count = 2
    """The MLP's inner width, in widths of the layer."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.activated and self.local in ("gated_gcn", "none"):
            raise ValueError(
                f"the activation follows gine, gcne or gcn, got {self.local}; set activated to False, or another local"
            )


_EDGE_STATES = ("gated_gcn", "gine", "gcne")  # message passing that reads edge states

EncodingKind = Literal["none", "laplacian", "laplacian_linear", "stable_laplacian", "stable_expressive", "random_walk"]


@dataclass(frozen=True)
class PositionOptions:
    """Kind and width of the position encoding; raises ValueError on values that cannot work."""

    GIVEN: ClassVar = ("stored",)
    kind: EncodingKind = "none"
    """Source of a node's position in the graph; none: no positions."""
    dim: Count = 16
    """P, channels of the encoding."""
    steps: Count | None = None
    """Number of eigenvectors, or of steps of the walk; None: as many as dim."""
    stored: str | None = None
    """Read the encoding from `graphs.encodings[stored]` (at least `steps` columns) instead of computing it."""
    normalisation: Literal["sym", "none"] = "sym"
    """Normalisation of the Laplacian. sym: I - D^-½ A D^-½; none: D - A, as in GraphGPS's configurations."""
    reverse: bool = False
    """random_walk: also compute return probabilities over reversed edges (for directed graphs)."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.reverse and (self.kind != "random_walk" or self.stored is not None):
            raise ValueError("reverse goes with the kind random_walk, computed; leave it out")
        if self.stored is not None and self.normalisation == "none" and self.kind != "random_walk":
            raise ValueError("stored eigenvectors are those of the normalised Laplacian; set normalisation to sym")
        if self.stored is not None and self.kind in ("laplacian", "stable_expressive"):
            raise ValueError(
                f"stored encodings have no eigenvalues, which {self.kind} needs; set kind to laplacian_linear"
            )

    @property
    def num_steps(self) -> int:
        return self.dim if self.steps is None else self.steps

    @property
    def channels(self) -> int:
        """Number of channels of the node states that the encoding fills."""
        return 0 if self.kind in ("none", "stable_laplacian") else self.dim

    @property
    def gates(self) -> bool:
        return self.kind == "stable_laplacian"


@dataclass(frozen=True)
class HybridConfig:
    """Options that Primphormer and GECO over many graphs share: encoders, hybrid layers, local blocks, a head. Raises ValueError on values that cannot work."""

    node: Features = field(default_factory=Features)
    edge: Features = field(default_factory=Features)
    """Features of an edge. Only gated_gcn, gine, gcne and some trained local blocks read them."""
    out_dim: Count = 1
    task: Task = "graph"
    width: Count = 64
    """Channels of a node's state."""
    num_layers: Count = 4
    """Layers."""
    layer: GPSOptions = field(default_factory=GPSOptions)
    """Options of the hybrid layer. With local none GECO uses its own layer, which reads only dropout and activation."""
    position: PositionOptions = field(default_factory=PositionOptions)
    pool: Pool = "mean"
    """Pooling of a graph's node states."""
    head: Head = "halving"
    """Kind of the head. "graphgym": GraphGPS's `default` head."""
    head_layers: Count = 3
    """Linear layers of the head."""
    head_dropout: Share = 0.0
    """Dropout between the head's layers."""
    input_dropout: Share = 0.0
    """Dropout on numeric features."""
    local: LocalOptions = field(default_factory=LocalOptions)
    """gate: every layer is L(H) + g ⊙ Global(L(H)); top: local layers between the encoders and `local.top_layers` layers."""
    virtual_node: bool = False
    """Join a virtual node to all nodes of a graph in the local layers of join top, as OGB's models do."""
    scale_rows: bool = False
    """Divide each node's numeric features by the sum of their absolute values, as usual for bags of words."""

    @property
    def reads_edges(self) -> bool:
        """Whether the model has edge states. Message passing that reads them always has them; a trained local block has them if edges have features."""
        if self.local.is_paper:
            return self.layer.local in _EDGE_STATES
        return self.local.block in READS_EDGES and not self.edge.empty

    def __post_init__(self) -> None:
        check_fields(self)
        if self.width <= self.position.channels:
            raise ValueError(
                f"the encoding leaves no channel for the features: width {self.width}, encoding {self.position.channels}; "
                "set a smaller position dim"
            )
        local = self.layer.local
        if not (self.edge.empty or self.reads_edges):
            raise ValueError(
                f"edge features need layer.local gated_gcn, gine or gcne, or a local block that reads them ({', '.join(READS_EDGES)}) with join gate or top, "
                f"got {local} and {self.local.block} with join {self.local.join}; set one of them, or edge to Features()"
            )
        if local != "gated_gcn" and self.position.gates:
            raise ValueError(
                "a stable_laplacian encoding gates GatedGCN's edges; set layer.local to gated_gcn, or another kind"
            )
        check_numeric(self, "input_dropout", "scale_rows")
        check_joins(self)
        if self.virtual_node and self.local.join != "top":
            raise ValueError(
                f"a virtual node needs local layers in front, got join {self.local.join}; set local.join to top"
            )
        if not self.local.is_paper and local != "none":
            raise ValueError(
                f"the local block is {self.local.block}, got another in the layer, {local}; set layer.local to none"
            )
