"""The client that a typed sampler uses: a router for each type's rows, and one for each relation's lists.

A type is served as a plain graph without edges. A relation is served as a plain graph whose nodes are those of the target type; its
neighbors are nodes of the source type.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.link_tables import LinkTables
from graphmill.samplers.access.node_tables import NodeTables, TypedTables, tables_of_relations
from graphmill.samplers.access.owners import Owner, PartOfOwner
from graphmill.samplers.access.router import Router, local_router
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph, TypedGraph


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
        self._link_tables = dict[Relation, LinkTables]()

    @property
    def partition_sizes(self) -> np.ndarray:
        """int64 [owners]: nodes of all types of each."""
        return np.sum([router.partition_sizes for router in self.nodes.values()], axis=0)

    @property
    def is_near(self) -> np.ndarray:
        """bool [owners]: as of each type's router."""
        return np.all([router.is_near for router in self.nodes.values()], axis=0)

    def link_tables(self, named: str | None) -> LinkTables:
        """As of `Router`, of this relation; None: of the one of which links are held out. Raises ConfigError where it is not there."""
        relation = Relation.of(named) if named else None
        for each, router in self.edges.items():
            if each == relation or (relation is None and router.manifest.links is not None):
                sources = None if each.source == each.target else self.nodes[each.source]
                return self._link_tables.setdefault(each, LinkTables(router, sources, each))
        raise ConfigError(
            f"links: expected {relation or 'held-out ones'} of the relations {', '.join(map(str, self.edges))}, got none; set --task.relation"
        )

    @cached_property
    def content_hash(self) -> str:
        """Of the whole graph, whatever its partitions and the order of its types and relations."""
        routers = {**self.nodes, **{str(name): router for name, router in self.edges.items()}}
        digests = sorted(f"{name} {router.manifest.measured.graph_digest}\n" for name, router in routers.items())
        return hashlib.sha256("".join(digests).encode()).hexdigest()


def typed_router(
    graph: TypedTables,
    *,
    verify: bool = False,
    watch: Callable[[Owner, int], Owner] = lambda owner, _: owner,
    far: Mapping[int, Owner] | None = None,
) -> TypedRouter:
    """Router over all partitions of a typed graph, those of `far` with all their parts elsewhere; options as of `graphmill.samplers.access.router.local_router`."""

    def of(part: StoredGraph, name: str, tables: NodeTables | None = None) -> Router:
        own = {index: PartOfOwner(owner, name) for index, owner in (far or {}).items()}
        return local_router(part, verify=verify, watch=watch, far=own, tables=tables)

    tables = tables_of_relations(graph)

    return TypedRouter(
        {node_type: of(graph.nodes(node_type), node_type) for node_type in graph.node_types},
        {relation: of(graph.relation(relation), str(relation), tables[relation]) for relation in graph.relations},
    )


def whole_router(
    graph: StoredGraph | TypedGraph,
    *,
    verify: bool = False,
    watch: Callable[[Owner, int], Owner] = lambda owner, _: owner,
    far: Mapping[int, Owner] | None = None,
) -> Router | TypedRouter:
    """Router over all partitions of a plain or typed graph; options as of `graphmill.samplers.access.router.local_router`."""
    if isinstance(graph, TypedGraph):
        return typed_router(graph, verify=verify, watch=watch, far=far)
    return local_router(graph, verify=verify, watch=watch, far=far)
