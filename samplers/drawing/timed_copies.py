"""Copies of a batch's nodes. A node has one copy for each root time from which the search reached the node.

From a copy, the search follows only edges up to the copy's root time. So at every hop, no edge between copies is later than the time of their root.
"""

from dataclasses import dataclass

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.vocabulary.messages import NeighborLists, NodeList
from graphmill.samplers.vocabulary.requirements import NO_ROOT_TIMES


@dataclass(frozen=True)
class NodeCopies:
    """Ids of copies. For root time k (an index), the copy of node v has the id k · num_nodes + v."""

    num_nodes: int  # number of nodes of the type
    root_time: np.ndarray  # int64 [k], ascending, distinct
    until: np.ndarray  # int64 [k]: for each root time, the latest time of an edge that the search follows

    @classmethod
    def of(cls, num_nodes: int, roots: NodeList, *, before: bool) -> "NodeCopies":
        """Makes the ids for the times of these roots. `before`: exclude edges at exactly the root's time. Raises ConfigError if roots have no times."""
        if roots.time is None:
            raise ConfigError(NO_ROOT_TIMES)
        root_time = np.unique(roots.time)
        least = np.iinfo(np.int64).min  # no edge has this time (`graphmill.storage.ingestion.ingest`)
        until = np.maximum(root_time, least + 1) - 1 if before else root_time
        return cls(num_nodes, root_time, until)

    def number(self, roots: NodeList) -> np.ndarray:
        """int64: ids of the copies that are roots."""
        assert roots.time is not None
        return np.searchsorted(self.root_time, roots.time) * self.num_nodes + roots.node

    def node(self, copy: np.ndarray) -> np.ndarray:
        """int64: the stored id of each copy's node."""
        return copy % self.num_nodes

    def until_of(self, copy: np.ndarray) -> np.ndarray:
        return self.until[copy // self.num_nodes]

    def root_time_of(self, copy: np.ndarray) -> np.ndarray:
        return self.root_time[copy // self.num_nodes]

    def neighbors(self, copy: np.ndarray, lists: NeighborLists, source: "NodeCopies") -> np.ndarray:
        """int64: the drawn neighbors of each copy. They are ids of copies in `source`, with the same root time as the copy."""
        return np.repeat(copy // self.num_nodes * source.num_nodes, lists.count) + lists.neighbor
