"""Defines options of attention over a sparse set of pairs; the modules are in `graphmill.models.operators.sparse_attention`."""

from dataclasses import dataclass

from graphmill.core.option_checks import Count, Size, check_fields


@dataclass(frozen=True)
class SparseOptions:
    """Options of Exphormer's and BigBird's pairs; raises ValueError on values that cannot work."""

    cycles: Size = 5
    """exphormer: random Hamiltonian cycles of the expander graph; each adds two neighbors."""
    edges: bool = True
    """exphormer: also attend along the graph's edges."""
    virtual_nodes: Size = 1
    """exphormer: nodes that are joined to every node of a graph."""
    block: Count = 3
    """bigbird: consecutive nodes of a block."""
    random_blocks: Size = 3
    """bigbird: random blocks that a block attends to, besides its neighbors and the first and last block."""
    seed: Size = 0
    """Seed of the cycles and of the random blocks, which are the same in every epoch."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (self.cycles or self.edges or self.virtual_nodes):
            raise ValueError("attention needs pairs, got no cycles, no edges and no virtual nodes; set one of them")
