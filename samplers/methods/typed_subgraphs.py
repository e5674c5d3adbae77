"""One subgraph per root of a typed graph, found by a search or by PageRank over chosen relations.

The search knows no types: it sees the nodes of all types as one graph, whose ids are the stored ids of a type after those of the types before it, and whose
lists are those of the chosen relations, relation after relation in the graph's order. What it finds is then put apart by type, and the batch has the edges
of all relations within each root's subgraph. So Node2Subgraph and PPR are `graphmill.samplers.methods.node2subgraph` and `graphmill.samplers.methods.ppr` on that graph.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import EDGE_COLUMNS, Columns, ask, fetch_rows
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.batches.typed_batch import TypedBatch, TypedEdges, TypedNodes
from graphmill.samplers.drawing.protocol import sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import RootBatches, plan_length
from graphmill.samplers.drawing.roots import find_roots
from graphmill.samplers.kernels.lists import all_positions
from graphmill.samplers.methods.node2subgraph import grow_subgraphs
from graphmill.samplers.methods.ppr import PushMemory, best_nodes, push_roots
from graphmill.samplers.vocabulary.messages import DegreeLists, NeighborLists, NodeList, WalkDirection
from graphmill.samplers.vocabulary.options import TypedNode2SubgraphOptions, TypedPprOptions
from graphmill.samplers.vocabulary.requirements import (
    check_edge_columns,
    check_splits,
    edge_columns_of,
    known_relations,
    needed_columns,
    type_of_roots,
)
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.source import Relation


@dataclass(frozen=True)
class Sizes:
    """Of the graph that a search sees."""

    num_nodes: int

    @property
    def index_dtype(self) -> str:
        return "int32" if self.num_nodes < 2**31 else "int64"


class UnionRouter:
    """The chosen relations of a typed graph as one graph: a `graphmill.samplers.access.list_pool.ListsNeighbors`."""

    def __init__(self, router: TypedRouter, relations: tuple[Relation, ...]) -> None:
        self._router, self._relations = router, relations
        counts = [each.manifest.num_nodes for each in router.nodes.values()]
        self._offsets = np.cumsum([0, *counts])
        self._number = {name: number for number, name in enumerate(router.nodes)}
        self.manifest = Sizes(int(self._offsets[-1]))

    def first(self, node_type: str) -> int:
        """The id of a type's first node."""
        return int(self._offsets[self._number[node_type]])

    def type_of(self, node: np.ndarray) -> np.ndarray:
        """int64: the number of each node's type."""
        return np.searchsorted(self._offsets, node, side="right") - 1

    def list_neighbors(
        self, node: np.ndarray, direction: WalkDirection, max_degree: np.ndarray | None, by_weight: bool
    ) -> DegreeLists:
        """As `Router.list_neighbors`: a node's list has those of its relations one after another. One request per owner for all relations."""
        assert direction == "in"
        type_of = self.type_of(node)
        at_of = {name: np.flatnonzero(type_of == number) for name, number in self._number.items()}
        asked = [relation for relation in self._relations if len(at_of[relation.target])]
        questions = [
            self._router.edges[relation].list_question(
                node[at_of[relation.target]] - self.first(relation.target),
                direction,
                None if max_degree is None else max_degree[at_of[relation.target]],
                by_weight and self._router.edges[relation].manifest.has_edge_weight,
            )
            for relation in asked
        ]
        answers = ask(questions)
        degree = np.zeros(len(node), np.int64)
        for relation, lists in zip(asked, answers, strict=True):
            degree[at_of[relation.target]] += lists.degree
        is_whole = np.ones(len(node), bool) if max_degree is None else degree <= max_degree
        count = np.where(is_whole, degree, 0)
        start, neighbor = pointers(count)[:-1].copy(), np.empty(int(count.sum()), self.manifest.index_dtype)
        weight = np.ones(len(neighbor), np.float32) if by_weight else None
        for relation, lists in zip(asked, answers, strict=True):
            at = at_of[relation.target]
            whole = is_whole[at]
            own = lists.neighbor[np.repeat(whole, lists.count)]
            some = np.where(whole, lists.count, 0)
            place = all_positions(start[at], some)
            neighbor[place] = own + self.first(relation.source)
            if weight is not None and lists.weight is not None:
                weight[place] = lists.weight[np.repeat(whole, lists.count)]
            start[at] += some
        return DegreeLists(degree, count, neighbor, weight)


@dataclass(frozen=True)
class _Sets:
    """Nodes of all types, root after root: entry i is `node[i]`, a root first in its set, and `level` ascends within a set."""

    node: np.ndarray  # int64 [k], ids of the union
    graph_ptr: np.ndarray  # int64 [roots + 1]
    level: np.ndarray  # int [k]; equal ones are put into the order of permanent ids
    hop: np.ndarray  # int16 [k], 0 of roots alone
    score: np.ndarray | None = None  # float32 [k]


class _Subgraphs:
    """What the two samplers share: roots, and from sets of nodes to a batch."""

    def __init__(
        self,
        router: TypedRouter,
        options: TypedNode2SubgraphOptions | TypedPprOptions,
        num_ranks: int,
        roots: np.ndarray | None,
        num_hops: int,
    ) -> None:
        self.router, self._options, self._num_hops = router, options, num_hops
        self.root_type = type_of_roots(router, options.root_type)
        self.union = UnionRouter(router, known_relations(router, options.relations))
        check_edge_columns(router, needed_columns(options.edge_columns, options.by_weight))
        check_splits(router, self.root_type, options.split_set)
        self.root_batches = RootBatches(router.nodes[self.root_type], options, num_ranks, roots)

    @cached_property
    def content_hash(self) -> str:
        return hashlib.sha256(f"{self.router.content_hash} {self.root_batches.content_hash}".encode()).hexdigest()

    def given(self, node_id: np.ndarray) -> NodeList:
        return find_roots(self.router.nodes[self.root_type], node_id)

    def in_union(self, roots: NodeList) -> NodeList:
        """The roots by their ids in the union; draws are keyed by their permanent ids within their type."""
        return NodeList(roots.node.astype(np.int64) + self.union.first(self.root_type), roots.original_id)

    def rank(self, node: np.ndarray) -> np.ndarray:
        """int64: numbers in whose order these distinct nodes of the union stand: type after type, ascending in permanent id."""
        type_of, permanent = self.union.type_of(node), np.empty(len(node), np.int64)
        at_of = {name: np.flatnonzero(type_of == number) for number, name in enumerate(self.router.nodes)}
        routers, only_ids = self.router.nodes, Columns(feature=False)
        wanted = [(routers[name], node[at] - self.union.first(name), only_ids) for name, at in at_of.items()]
        for at, rows in zip(at_of.values(), fetch_rows(wanted), strict=True):
            permanent[at] = rows.original_id
        rank = np.empty(len(node), np.int64)
        rank[np.lexsort((permanent, type_of))] = np.arange(len(node))
        return rank

    def batch(self, sets: _Sets, epoch: int, batch: int) -> TypedBatch[np.ndarray]:
        router, union, options = self.router, self.union, self._options
        with stage("sample"):
            set_of = np.repeat(np.arange(len(sets.graph_ptr) - 1), np.diff(sets.graph_ptr))
            type_of = union.type_of(sets.node)
            entry_of = {name: np.flatnonzero(type_of == number) for number, name in enumerate(router.nodes)}
            found = {
                name: np.unique(sets.node[entry] - union.first(name), return_inverse=True)
                for name, entry in entry_of.items()
            }
        with stage("fetch"):
            columns = {
                name: Columns.of(each, options.split_set, feature=options.features)
                for name, each in router.nodes.items()
            }
            rows_of = fetch_rows([(router.nodes[name], found[name][0], columns[name]) for name in found])
        nodes, asked = {}, {}
        with stage("sample"):
            for name, rows in zip(found, rows_of, strict=True):
                entry, (distinct, row) = entry_of[name], found[name]
                by_set = np.lexsort((rows.original_id[row], sets.level[entry], set_of[entry]))
                entry, row = entry[by_set], row[by_set]
                by_hop = np.argsort(sets.hop[entry], kind="stable")  # so that the roots come first
                asked[name] = _Asked(
                    distinct[row], pointers(np.bincount(set_of[entry], minlength=len(sets.graph_ptr) - 1)), by_hop
                )
                entry, row = entry[by_hop], row[by_hop]
                nodes[name] = TypedNodes(
                    node_id=rows.original_id[row],
                    hop=sets.hop[entry],
                    split=None if rows.split is None else rows.split[row],
                    x=None if rows.feature is None else np.take(rows.feature, row, axis=0),
                    y=None if rows.label is None else rows.label[row],
                    subgraph=set_of[entry],
                    score=None if sets.score is None else sets.score[entry],
                )
            edges = self._edges(asked)
        return TypedBatch(
            epoch=epoch,
            index=batch,
            num_hops=self._num_hops,
            root_type=self.root_type,
            root_index=np.arange(len(sets.graph_ptr) - 1),
            nodes=nodes,
            edges=edges,
        )

    def _edges(self, asked: "dict[str, _Asked]") -> dict[Relation, TypedEdges[np.ndarray]]:
        """Of all relations, with one request per owner for all of them."""
        routers = self.router.edges
        questions = []
        for relation, router in routers.items():
            source, target = asked[relation.source], asked[relation.target]
            columns = edge_columns_of(router.manifest, self._options.edge_columns)
            questions.append(router.induced_question(target.node, target.ptr, source.node, source.ptr, columns))
        edges = {}
        for relation, lists in zip(routers, ask(questions), strict=True):
            edges[relation] = _reordered(lists, asked[relation.target].by_hop, asked[relation.source].place)
        return edges


@dataclass(frozen=True)
class _Asked:
    """Nodes of one type as relations are asked about them, set after set, and their order in the batch."""

    node: np.ndarray  # stored ids of the type
    ptr: np.ndarray  # int64 [roots + 1]
    by_hop: np.ndarray  # int64: position in the batch → place here

    @property
    def place(self) -> np.ndarray:
        """int32: place here → position in the batch."""
        place = np.empty(len(self.by_hop), np.int32)
        place[self.by_hop] = np.arange(len(self.by_hop), dtype=np.int32)
        return place


def _reordered(lists: NeighborLists, order: np.ndarray, place: np.ndarray) -> TypedEdges[np.ndarray]:
    """The lists in this order, with the places of their sources."""
    count = lists.count[order]
    entry = all_positions(pointers(lists.count)[:-1][order], count)
    columns = {name: None if (column := getattr(lists, name)) is None else column[entry] for name in EDGE_COLUMNS}
    return TypedEdges(indptr=pointers(count), indices=place[lists.neighbor[entry]], **columns)


# What both samplers have of their `_subgraphs`; the hash is of the whole graph and, where they are given, of the roots.
_router, _content_hash = (property(attrgetter(f"_subgraphs.{name}")) for name in ("router", "content_hash"))


def _roots_of(sampler: Any, epoch: int, batch: int) -> np.ndarray:
    """Permanent ids of a batch's roots, in its order. Raises ConfigError where there is no such batch."""
    return sampler._root_batches.roots(epoch, batch).original_id


def _sample(sampler: Any, epoch: int, batch: int) -> TypedBatch[np.ndarray]:
    return sampler._around(sampler._root_batches.roots(epoch, batch), epoch, batch)


def _sample_roots(sampler: Any, node_id: np.ndarray, epoch: int = 0, batch: int = 0) -> TypedBatch[np.ndarray]:
    """The subgraphs around these permanent ids of the roots' type, whatever their split. Raises ConfigError where one is no node of it."""
    return sampler._around(sampler._subgraphs.given(node_id), epoch, batch)


class TypedNode2SubgraphSampler:
    """Minibatches of one subgraph per root, each found by a search over relations, against their edges; roots of one split of a type, or given `roots`."""

    __repr__, __len__ = sampler_repr, sampler_len
    router, content_hash, num_batches = _router, _content_hash, plan_length
    roots_of, sample, sample_roots = _roots_of, _sample, _sample_roots

    def __init__(
        self,
        router: TypedRouter,
        options: TypedNode2SubgraphOptions,
        num_ranks: int = 1,
        roots: np.ndarray | None = None,
    ) -> None:
        """Raises ConfigError where the graph lacks what the options name."""
        self.options = options
        self._subgraphs = _Subgraphs(router, options, num_ranks, roots, options.max_hops)
        self._root_batches, self.root_type = self._subgraphs.root_batches, self._subgraphs.root_type

    def _around(self, roots: NodeList, epoch: int, batch: int) -> TypedBatch[np.ndarray]:
        subgraphs = self._subgraphs
        with stage("sample"):
            grown = grow_subgraphs(subgraphs.union, subgraphs.in_union(roots), self.options.search, epoch)
        return subgraphs.batch(_Sets(grown.node, grown.graph_ptr, grown.hop, grown.hop), epoch, batch)


class TypedPprSampler:
    """Minibatches of one subgraph per root: the root and, of all types, its `top_k` nodes by PageRank over relations, against their edges.

    `hop` is 0 of roots and 1 of the others. Roots are those of one split of a type, or given `roots` (permanent ids of that type, distinct).
    """

    __repr__, __len__ = sampler_repr, sampler_len
    router, content_hash, num_batches = _router, _content_hash, plan_length
    roots_of, sample, sample_roots = _roots_of, _sample, _sample_roots

    def __init__(
        self, router: TypedRouter, options: TypedPprOptions, num_ranks: int = 1, roots: np.ndarray | None = None
    ) -> None:
        """Raises ConfigError where the graph lacks what the options name."""
        self.options = options
        self._subgraphs = _Subgraphs(router, options, num_ranks, roots, 1)
        self._root_batches, self.root_type = self._subgraphs.root_batches, self._subgraphs.root_type
        self._memory = PushMemory()

    def _around(self, roots: NodeList, epoch: int, batch: int) -> TypedBatch[np.ndarray]:
        subgraphs = self._subgraphs
        with stage("sample"):
            pushed = push_roots(subgraphs.union, subgraphs.in_union(roots).node, self.options.walk, self._memory)
            node, score, level, graph_ptr = best_nodes(pushed, self.options.top_k, subgraphs.rank)
            self._memory.give_back(pushed.memory)
        hop = np.ones(len(node), np.int16)
        hop[graph_ptr[:-1]] = 0
        return subgraphs.batch(_Sets(node, graph_ptr, level, hop, score.astype(np.float32)), epoch, batch)
