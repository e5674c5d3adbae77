"""The client that samplers use for a typed graph. It has one router per type, for rows, and one router per relation, for lists.

A type is served as a plain graph without edges. A relation is served as a plain graph whose nodes are of the target type and whose neighbors are of the source
type.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.link_tables import LinkTables
from graphmill.samplers.access.node_tables import NodeTables, TypedTables, tables_of_relations
from graphmill.samplers.access.owners import Owner
from graphmill.samplers.access.router import Router, local_router
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph, TypedGraph


class TypedRouter:
    """A whole typed graph: routers by type and by relation. Their order is the graph's order, which is also the order in batches.

    Raises ConfigError if a relation joins a type that the graph does not have.
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
        """int64 [owners]: number of each owner's nodes, over all types."""
        return np.sum([router.partition_sizes for router in self.nodes.values()], axis=0)

    @property
    def is_near(self) -> np.ndarray:
        """bool [owners]: `Router.is_near` of all types."""
        return np.all([router.is_near for router in self.nodes.values()], axis=0)

    def link_tables(self, named: str | None) -> LinkTables:
        """The link tables of a relation. None means the relation whose links are held out. Raises ConfigError if the graph does not have the relation."""
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
        """Hash of the whole graph, independent of its partitions and of the order of types and relations."""
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
    """Router over all partitions of a typed graph. The arguments are the same as for `local_router`."""

    def part_router(part: StoredGraph, name: str, tables: NodeTables | None = None) -> Router:
        return local_router(part, verify=verify, watch=watch, far=far, tables=tables, name=name)

    tables = tables_of_relations(graph)
    return TypedRouter(
        {name: part_router(graph.nodes(name), name) for name in graph.node_types},
        {each: part_router(graph.relation(each), str(each), tables[each]) for each in graph.relations},
    )


def whole_router(
    graph: StoredGraph | TypedGraph,
    *,
    verify: bool = False,
    watch: Callable[[Owner, int], Owner] = lambda owner, _: owner,
    far: Mapping[int, Owner] | None = None,
) -> Router | TypedRouter:
    """Router over all partitions of a plain or typed graph. The arguments are the same as for `local_router`."""
    if isinstance(graph, TypedGraph):
        return typed_router(graph, verify=verify, watch=watch, far=far)
    return local_router(graph, verify=verify, watch=watch, far=far)
