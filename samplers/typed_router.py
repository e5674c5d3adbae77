"""The client that a typed sampler uses: a router for each type's rows, and one for each relation's lists.

A type is served as a plain graph without edges. A relation is served as a plain graph whose nodes are those of the target type; its
neighbors are nodes of the source type.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

from samplers.router import Router, local_router
from storage.errors import ConfigError
from storage.graph import StoredGraph
from storage.source import Relation


class TypedTables(Protocol):
    """A stored typed graph, whose types and relations open as plain graphs (`storage.typed_graph.TypedGraph`)."""

    @property
    def node_types(self) -> Sequence[str]: ...

    @property
    def relations(self) -> Sequence[Relation]: ...

    def nodes(self, node_type: str) -> StoredGraph: ...

    def relation(self, relation: Relation) -> StoredGraph: ...


class TypedRouter:
    """A whole typed graph: routers by type and by relation, in the graph's order, which batches follow.

    Raises ConfigError where a relation joins types that are not there.
    """

    def __init__(self, nodes: Mapping[str, Router], edges: Mapping[Relation, Router]) -> None:
        for relation in edges:
            for node_type in (relation.source, relation.target):
                if node_type not in nodes:
                    raise ConfigError(
                        f"relation {relation}: expected types among {', '.join(nodes)}, got {node_type!r}"
                    )
        self.nodes, self.edges = dict(nodes), dict(edges)

    @cached_property
    def content_hash(self) -> str:
        """Of the whole graph, whatever its partitions and the order of its types and relations."""
        routers = {**self.nodes, **{str(name): router for name, router in self.edges.items()}}
        digests = sorted(f"{name} {router.manifest.measured.graph_digest}\n" for name, router in routers.items())
        return hashlib.sha256("".join(digests).encode()).hexdigest()


def typed_router(graph: TypedTables) -> TypedRouter:
    """Router over all partitions of a typed graph in this process."""
    return TypedRouter(
        {node_type: local_router(graph.nodes(node_type)) for node_type in graph.node_types},
        {relation: local_router(graph.relation(relation)) for relation in graph.relations},
    )
