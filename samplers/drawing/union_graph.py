"""The graph that a search sees, which knows no types: some relations of a typed graph as one graph.

Its nodes are those of all types, numbered one type after another: the stored ids of a type follow those of the types before it. A node's list has the
lists of its relations, one after another in the graph's order. One relation over the only type, and so a plain graph, is this graph itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.list_pool import ListsNeighbors
from graphmill.samplers.access.router import Columns, Router, ask, fetch_rows
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.kernels.lists import all_positions
from graphmill.samplers.vocabulary.messages import DegreeLists, WalkDirection
from graphmill.samplers.vocabulary.requirements import edge_uses, no_out_edges
from graphmill.storage.format.source import Relation

OfType = dict[str, tuple[np.ndarray | slice, np.ndarray]]  # a type's places among some nodes, and their stored ids


@dataclass(frozen=True)
class Sizes:
    """Of the graph that a search sees."""

    num_nodes: int
    num_partitions: int = 1

    @property
    def index_dtype(self) -> str:
        return "int32" if self.num_nodes < 2**31 else "int64"


class NodeNumbers:
    """Numbers of the nodes of all types; a plain graph's are its stored ids."""

    def __init__(self, routers: Mapping[str, Router]) -> None:
        self._routers = dict(routers)
        self._offsets = np.cumsum([0, *(each.manifest.num_nodes for each in self._routers.values())])

    @property
    def count(self) -> int:
        return int(self._offsets[-1])

    def first(self, node_type: str) -> int:
        """The number of a type's first node."""
        return int(self._offsets[list(self._routers).index(node_type)])

    def by_type(self, node: np.ndarray) -> OfType:
        """The nodes of each type: their places in `node`, ascending, and their stored ids."""
        if len(self._routers) == 1:
            return dict.fromkeys(self._routers, (slice(None), node))
        type_of = np.searchsorted(self._offsets, node, side="right") - 1
        places = {name: np.flatnonzero(type_of == number) for number, name in enumerate(self._routers)}
        return {name: (at, node[at] - self.first(name)) for name, at in places.items()}

    def ranks(self, node: np.ndarray) -> np.ndarray:
        """int64: numbers by which these distinct nodes are ordered: type after type, ascending in permanent id."""
        parts = self.by_type(node)
        rows = fetch_rows([(self._routers[name], own, Columns(feature=False)) for name, (_, own) in parts.items()])
        if len(parts) == 1:
            return rows[0].original_id
        rank, first = np.empty(len(node), np.int64), 0
        for (at, own), of_type in zip(parts.values(), rows, strict=True):
            rank[at] = first + np.argsort(np.argsort(of_type.original_id))
            first += len(own)
        return rank


class UnionGraph:
    """Relations of a typed graph as one graph: a `graphmill.samplers.access.list_pool.ListsNeighbors`."""

    def __init__(self, router: TypedRouter, relations: Sequence[Relation]) -> None:
        self._router, self._relations = router, relations
        self.numbers = NodeNumbers(router.nodes)
        self.manifest = Sizes(self.numbers.count)

    def list_neighbors(
        self, node: np.ndarray, direction: WalkDirection, max_degree: np.ndarray | None, by_weight: bool
    ) -> DegreeLists:
        """As `Router.list_neighbors`: a node's list has those of its relations one after another. One request per owner for all relations."""
        of_type, numbers = self.numbers.by_type(node), self.numbers
        asked = [relation for relation in self._relations if len(of_type[relation.target][1])]
        questions = []
        for relation in asked:
            (at, own), router = of_type[relation.target], self._router.edges[relation]
            most = None if max_degree is None else max_degree[at]
            questions.append(router.list_question(own, direction, most, by_weight and router.manifest.has_edge_weight))
        answers = ask(questions)
        degree = np.zeros(len(node), np.int64)
        for relation, lists in zip(asked, answers, strict=True):
            degree[of_type[relation.target][0]] += lists.degree
        is_whole = np.ones(len(node), bool) if max_degree is None else degree <= max_degree
        count = np.where(is_whole, degree, 0)
        start, neighbor = pointers(count)[:-1].copy(), np.empty(int(count.sum()), self.manifest.index_dtype)
        weight = np.ones(len(neighbor), np.float32) if by_weight else None
        for relation, lists in zip(asked, answers, strict=True):
            at, _ = of_type[relation.target]
            whole = is_whole[at]
            entries, some = np.repeat(whole, lists.count), np.where(whole, lists.count, 0)
            place = all_positions(start[at], some)
            neighbor[place] = lists.neighbor[entries] + numbers.first(relation.source)
            if weight is not None and lists.weight is not None:
                weight[place] = lists.weight[entries]
            start[at] += some
        return DegreeLists(degree, count, neighbor, weight)


def searched_graph(
    router: Router | TypedRouter, relations: Sequence[Relation], direction: WalkDirection
) -> ListsNeighbors:
    """These relations as one graph. Raises ConfigError where they have no lists of the direction."""
    if isinstance(router, Router):
        edge_uses(router, direction, induced=True)
        return router
    for each in relations:
        manifest = router.edges[each].manifest
        # Lists of both directions are of one relation's nodes: between two types the reverse relation has the other.
        if direction != "in" and not (each.source == each.target and (manifest.symmetric or manifest.has_out_edges)):
            raise no_out_edges(direction, each)
    is_one = len(router.nodes) == len(relations) == 1
    return router.edges[relations[0]] if is_one else UnionGraph(router, relations)
