"""The client that a typed sampler uses: a router for each type's rows, and one for each relation's lists.

A type is served as a plain graph without edges. A relation is served as a plain graph whose nodes are those of the target type; its
neighbors are nodes of the source type.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import NeighborQuestion, Owner, PendingRows, Router, local_router
from graphmill.samplers.access.typed_owner import PartOfOwner, submit_together
from graphmill.samplers.vocabulary.messages import EdgeColumn, NeighborLists, NodeRows, Reply, Scheme
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph
from graphmill.storage.typed_graph import TypedGraph


class TypedTables(Protocol):
    """A stored typed graph, whose types and relations open as plain graphs (`graphmill.storage.typed_graph.TypedGraph`)."""

    @property
    def node_types(self) -> Sequence[str]: ...

    @property
    def relations(self) -> Sequence[Relation]: ...

    def nodes(self, node_type: str) -> StoredGraph: ...

    def relation(self, relation: Relation) -> StoredGraph: ...


@dataclass(frozen=True)
class Draw:
    """What one relation is to draw: arguments of `Router.sample_neighbors`."""

    node: np.ndarray
    fanout: int
    key: int
    scheme: Scheme = "uniform"
    replace: bool = False
    columns: tuple[EdgeColumn, ...] = ()


def _no_lists(manifest: Manifest, columns: tuple[EdgeColumn, ...]) -> NeighborLists:
    """Of no nodes, with the types of what some would have."""
    own: dict[str, np.ndarray] = {
        "id": np.empty(0, np.int64),
        "weight": np.empty(0, np.float32),
        "time": np.empty(0, np.int64),
        "feature": np.empty((0, manifest.edge_feature_dim), np.float32),
    }
    told: dict[str, Any] = {f"edge_{name}": own[name] for name in columns}
    return NeighborLists(np.empty(0, np.int64), np.empty(0, manifest.index_dtype), **told)


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

    @property
    def partition_sizes(self) -> np.ndarray:
        """int64 [owners]: nodes of all types of each."""
        return np.sum([router.partition_sizes for router in self.nodes.values()], axis=0)

    @property
    def is_near(self) -> np.ndarray:
        """bool [owners]: as of each type's router."""
        return np.all([router.is_near for router in self.nodes.values()], axis=0)

    def sample_neighbors(self, draws: Mapping[Relation, Draw]) -> dict[Relation, NeighborLists]:
        """What each relation draws for its nodes: `Router.sample_neighbors` of all of them, with one request per owner for all relations."""
        questions = {
            relation: self.edges[relation].neighbor_question(
                draw.node, draw.fanout, draw.key, scheme=draw.scheme, replace=draw.replace, columns=draw.columns
            )
            for relation, draw in draws.items()
            if len(draw.node)
        }
        replies_of = dict(zip(questions, self.ask(list(questions.values())), strict=True))
        return {
            relation: questions[relation].answer(replies_of[relation])
            if relation in questions
            else _no_lists(self.edges[relation].manifest, draw.columns)
            for relation, draw in draws.items()
        }

    def ask(self, questions: Sequence[NeighborQuestion]) -> list[list[Reply]]:
        """The replies to the requests of each question, with one request per owner for all of them."""
        requests = [request for question in questions for request in question.requests]
        replies = iter([one.result() for one in submit_together(requests)])
        return [[next(replies) for _ in question.requests] for question in questions]

    def fetch(
        self, node: Mapping[str, np.ndarray], *, feature: bool, split_sets: Mapping[str, int | None]
    ) -> dict[str, NodeRows]:
        """Rows of each type's nodes, in their order: `Router.fetch` of all of them, with one request per owner for all types."""
        rows, placed, asked = dict[str, NodeRows](), [], []
        for name, ids in node.items():
            router, split_set = self.nodes[name], split_sets[name]
            rows[name] = router.empty_rows(len(ids), feature=feature, split_set=split_set, encodings=())
            if len(ids):
                near, far = router.row_requests(ids, feature=feature, split_set=split_set)
                placed += [(place, rows[name], group) for place, group in near]
                asked += [(name, *one) for one in far]
        pending = submit_together([(self.nodes[name].owner(index), request) for name, index, request, _ in asked])
        for place, into, group in placed:  # while the others answer
            place(into, group)
        for (name, index, _, group), one in zip(asked, pending, strict=True):
            self.nodes[name].put_rows(PendingRows(one, index, len(group)).result(), None, rows[name], group)
        return rows

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

    def of(part: StoredGraph, name: str) -> Router:
        own = {index: PartOfOwner(owner, name) for index, owner in (far or {}).items()}
        return local_router(part, verify=verify, watch=watch, far=own)

    return TypedRouter(
        {node_type: of(graph.nodes(node_type), node_type) for node_type in graph.node_types},
        {relation: of(graph.relation(relation), str(relation)) for relation in graph.relations},
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
