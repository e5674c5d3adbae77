"""Compiles the loops behind an owner's answers before anybody waits for one.

In a fresh environment the compiler takes seconds for each, several times that when every partition's server compiles at once; loaded
from its cache they take tenths of a second.
"""

import numpy as np

from samplers.messages import (
    FetchRows,
    InducedEdges,
    InducedSubgraphs,
    ListNeighbors,
    Request,
    SampleNeighbors,
    WalkDirection,
)
from samplers.partition_owner import PartitionOwner
from storage.manifest import Manifest


def warm_up(owner: PartitionOwner, manifest: Manifest) -> None:
    """Answers questions about no node, of the kinds that samplers ask most."""
    node, index = np.empty(0, np.int64), np.empty(0, manifest.index_dtype)
    direction: WalkDirection = "both" if manifest.symmetric or manifest.has_out_edges else "in"
    requests: list[Request] = [
        SampleNeighbors(node, fanout=1, key=0),
        InducedEdges(node, node),
        ListNeighbors(node, direction),
        ListNeighbors(node, direction, max_degree=node),
        InducedSubgraphs(np.empty(0, np.int32), index, np.zeros(1, np.int64)),
        FetchRows(node, split_set=0 if manifest.num_split_sets else None),
    ]
    for request in requests:
        owner.answer(request)
