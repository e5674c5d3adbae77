"""Compiles the loops that owners run to reply, before the first request.

In a fresh environment the compiler takes seconds per loop. Therefore only one partition server on each host compiles; the others load the loops from the cache
within tenths of a second.
"""

import numpy as np

from graphmill.core.compile_cache import one_compiles_for_all
from graphmill.samplers.access.partition_owner import PartitionOwner, PartsOwner
from graphmill.samplers.vocabulary.messages import (
    FetchRows,
    ForParts,
    InducedEdges,
    InducedSubgraphs,
    ListNeighbors,
    Request,
    SampleNeighbors,
    WalkDirection,
)
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.graph import TypedGraph


@one_compiles_for_all()
def warm_up(owner: PartitionOwner, manifest: Manifest) -> None:
    """Makes the owner answer the most common kinds of requests, each with an empty list of nodes."""
    node, index = np.empty(0, np.int64), np.empty(0, manifest.index_dtype)
    direction: WalkDirection = "both" if manifest.symmetric or manifest.has_out_edges else "in"
    requests: list[Request] = [
        SampleNeighbors(node, fanout=1, key=0),
        InducedEdges(node),
        ListNeighbors(node, direction),
        ListNeighbors(node, direction, max_degree=node),
        InducedSubgraphs(index, np.zeros(1, np.int64)),
        FetchRows(node, split_set=0 if manifest.num_split_sets else None),
    ]
    for request in requests:
        owner.answer(request)


@one_compiles_for_all()
def warm_up_parts(owner: PartsOwner, graph: TypedGraph) -> None:
    """Runs `warm_up` for the parts of a typed graph."""
    node = np.empty(0, np.int64)
    for relation in graph.relations:
        part, dtype = str(relation), graph.relation(relation).manifest.index_dtype
        none = (node.astype(dtype), np.zeros(1, np.int64))
        for request in (
            SampleNeighbors(node, fanout=1, key=0),
            ListNeighbors(node),
            InducedSubgraphs(*none, (), *none),
        ):
            owner.answer(ForParts((part,), (request,)))
    for name in graph.node_types:
        owner.answer(ForParts((name,), (FetchRows(node),)))
