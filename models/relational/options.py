"""Options of R-SAGE and of the relational layers before another model; the networks are in `graphmill.models.relational.network`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from graphmill.core.option_checks import Count, Share, Size, check_fields

Names = tuple[str, str, str]  # names of a relation: source type, relation, target type


@dataclass(frozen=True)
class RelationalConfig:
    """Options of the input layer of each type and of the relational layers. A model that takes the typed graph as one plain graph can follow. Raises
    ValueError on values that cannot work."""

    GIVEN: ClassVar[tuple[str, ...]] = ("node_dims", "relations", "edge_dims", "seed")
    node_dims: Mapping[str, int] = field(default_factory=lambda: {"node": 1})
    """Columns of each type's features, in the graph's order; 0: the type has no features, and all nodes of the type start with one learned vector."""
    relations: tuple[Names, ...] = ()
    """(source type, name, target type) of each relation, in the graph's order."""
    edge_dims: tuple[int, ...] = ()
    """Columns of each relation's edge features; 0: the relation has no edge features; empty: no edge features are read."""
    width: Count = 128
    """Channels of a node's state."""
    num_layers: Size = 2
    """Relational layers, of one hop each."""
    num_bases: Size = 4
    """Number of basis matrices; each relation's weight matrix is a weighted sum of them. 0: each relation has its own weight matrix."""
    norm: Literal["none", "layer", "batch"] = "layer"
    """Norm of each layer."""
    dropout: Share = 0.5
    """Dropout after each layer."""
    input_dropout: Share = 0.0
    """Dropout on the features."""
    seed: int = 0
    """Seed of dropout's masks on a graph that is spread over workers."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in self.node_dims:
            if "." in name:
                raise ValueError(
                    f"node_dims: the name of a type is part of a parameter's, where a dot divides, got {name!r}; rename it"
                )
        for relation in self.relations:
            for name in (relation[0], relation[2]):
                if name not in self.node_dims:
                    raise ValueError(
                        f"relations must join types among {', '.join(self.node_dims)}, got {name!r}; set relations"
                    )
        if len(self.edge_dims) not in (0, len(self.relations)):
            raise ValueError(
                f"edge_dims must have one count for each of {len(self.relations)} relations, got {len(self.edge_dims)}; set edge_dims"
            )


@dataclass(frozen=True)
class RSAGEConfig(RelationalConfig):
    """R-SAGE."""

    GIVEN: ClassVar[tuple[str, ...]] = (*RelationalConfig.GIVEN, "out_dim")
    reads_weights: ClassVar = True
    out_dim: Count = 1
