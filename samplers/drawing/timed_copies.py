"""Nodes of a batch by the time of the root that they were reached from: a node has a copy for each of these times.

A copy is expanded by edges up to its own time alone. So no edge between copies is later than the root that they belong to, by however many hops
it reaches it.
"""

from dataclasses import dataclass

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.vocabulary.messages import NeighborLists, NodeList
from graphmill.samplers.vocabulary.requirements import NO_ROOT_TIMES


@dataclass(frozen=True)
class NodeCopies:
    """Node v as of the k-th root time is the number k · num_nodes + v."""

    num_nodes: int  # of the type
    root_time: np.ndarray  # int64 [k], ascending, distinct
    until: np.ndarray  # int64 [k]: the latest time of an edge of each

    @classmethod
    def of(cls, num_nodes: int, roots: NodeList, *, before: bool) -> "NodeCopies":
        """`before`: edges of a root's own time are not its past. Raises ConfigError where roots have no times."""
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
        """int64: stored ids."""
        return copy % self.num_nodes

    def until_of(self, copy: np.ndarray) -> np.ndarray:
        return self.until[copy // self.num_nodes]

    def root_time_of(self, copy: np.ndarray) -> np.ndarray:
        return self.root_time[copy // self.num_nodes]

    def neighbors(self, copy: np.ndarray, lists: NeighborLists, source: "NodeCopies") -> np.ndarray:
        """int64: the neighbors that were drawn of each copy, as of its time, by their numbers among the copies of their type."""
        return np.repeat(copy // self.num_nodes * source.num_nodes, lists.count) + lists.neighbor
