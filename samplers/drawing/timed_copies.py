"""Copies of a batch's nodes: a node has a copy for each time of a root from which it was reached.

A copy is expanded only along edges up to its root's time. So no edge between copies is later than their root, at any number of hops.
"""

from dataclasses import dataclass

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.vocabulary.messages import NeighborLists, NodeList
from graphmill.samplers.vocabulary.requirements import NO_ROOT_TIMES


@dataclass(frozen=True)
class NodeCopies:
    """Numbers of copies: node v as of root time k is k · num_nodes + v."""

    num_nodes: int  # of the type
    root_time: np.ndarray  # int64 [k], ascending, distinct
    until: np.ndarray  # int64 [k]: latest time of an edge from which a copy is expanded

    @classmethod
    def of(cls, num_nodes: int, roots: NodeList, *, before: bool) -> "NodeCopies":
        """`before`: edges of the root's own time are excluded. Raises ConfigError if roots have no times."""
        if roots.time is None:
            raise ConfigError(NO_ROOT_TIMES)
        root_time = np.unique(roots.time)
        least = np.iinfo(np.int64).min  # no edge has this time (`graphmill.storage.ingestion.ingest`)
        until = np.maximum(root_time, least + 1) - 1 if before else root_time
        return cls(num_nodes, root_time, until)

    def number(self, roots: NodeList) -> np.ndarray:
        """int64: the copies that are roots."""
        assert roots.time is not None
        return np.searchsorted(self.root_time, roots.time) * self.num_nodes + roots.node

    def node(self, copy: np.ndarray) -> np.ndarray:
        """int64: stored ids of copies."""
        return copy % self.num_nodes

    def until_of(self, copy: np.ndarray) -> np.ndarray:
        return self.until[copy // self.num_nodes]

    def root_time_of(self, copy: np.ndarray) -> np.ndarray:
        return self.root_time[copy // self.num_nodes]

    def neighbors(self, copy: np.ndarray, lists: NeighborLists, source: "NodeCopies") -> np.ndarray:
        """int64: the drawn neighbors of each copy, as copies of the same root time among `source`."""
        return np.repeat(copy // self.num_nodes * source.num_nodes, lists.count) + lists.neighbor
