"""Compiles the loops that owners run to reply, before the first request.

In a fresh environment the compiler takes seconds per loop. Therefore one process of a host compiles for all. Loading the loops from the cache takes tenths
of a second.
"""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from graphmill.core.compile_cache import one_compiles_for_all
from graphmill.samplers.access.partition_owner import PartsOwner
from graphmill.samplers.vocabulary.messages import (
    FetchRows,
    ForParts,
    InducedEdges,
    InducedSubgraphs,
    ListNeighbors,
    PartRequest,
    SampleNeighbors,
    WalkDirection,
    part_name,
)
from graphmill.storage.graph import StoredGraph, TypedGraph

# The requests that samplers send beside those for rows, by the class of a sampler's options.
_SUBGRAPHS = ("ListNeighbors", "InducedSubgraphs")
_ASKED = {
    "FullGraphOptions": ("InducedEdges", "SampleNeighbors"),
    "NeighborOptions": ("SampleNeighbors",),
    "Node2SubgraphOptions": _SUBGRAPHS,
    "PprOptions": _SUBGRAPHS,
    "RandomPartitionOptions": ("InducedEdges", *_SUBGRAPHS),
    "SaintOptions": ("InducedEdges", "InducedSubgraphs", "StepWalks"),
    "TypedNeighborOptions": ("SampleNeighbors",),
    "TypedNode2SubgraphOptions": _SUBGRAPHS,
}


def asked_by(samplers: Iterable[Any]) -> tuple[str, ...] | None:
    """Returns the names of the requests that samplers with these options send. None if one of them is a user's own."""
    asked: set[str] = {FetchRows.__name__}
    for options in samplers:
        requests = _ASKED.get(type(getattr(options, "around", options)).__name__)
        if requests is None:
            return None
        asked.update(requests)
    return tuple(sorted(asked))


@one_compiles_for_all()
def warm_up(
    owner: PartsOwner, graph: StoredGraph | TypedGraph, partition: int, asked: Collection[str] | None = None
) -> None:
    """Makes the parts of one partition answer the usual requests, each with an empty list of nodes. `asked`: names of the requests; None: all."""
    requests = _typed_requests(graph) if isinstance(graph, TypedGraph) else [("", each) for each in _requests(graph)]
    for name, request in requests:
        if asked is None or type(request).__name__ in asked:
            owner.answer(ForParts((part_name(partition, name),), (request,)))


def _requests(graph: StoredGraph) -> list[PartRequest]:
    manifest = graph.manifest
    node, index = np.empty(0, np.int64), np.empty(0, manifest.index_dtype)
    direction: WalkDirection = "both" if manifest.symmetric or manifest.has_out_edges else "in"
    return [
        SampleNeighbors(node, fanout=1, key=0),
        InducedEdges(node),
        ListNeighbors(node, direction),
        ListNeighbors(node, direction, max_degree=node),
        InducedSubgraphs(index, np.zeros(1, np.int64)),
        FetchRows(node, split_set=0 if manifest.num_split_sets else None),
    ]


def _typed_requests(graph: TypedGraph) -> list[tuple[str, PartRequest]]:
    node, requests = np.empty(0, np.int64), list[tuple[str, PartRequest]]()
    for relation in graph.relations:
        none = (node.astype(graph.relation(relation).manifest.index_dtype), np.zeros(1, np.int64))
        requests += [
            (str(relation), SampleNeighbors(node, fanout=1, key=0)),
            (str(relation), ListNeighbors(node)),
            (str(relation), InducedSubgraphs(*none, (), *none)),
        ]
    return requests + [(name, FetchRows(node)) for name in graph.node_types]
