"""Presents several relations of a typed graph to a search as one graph without types.

The nodes of this graph are the nodes of all types. They are numbered type by type, within a type by stored id. A node's list is the concatenation of its lists
in all relations, in the graph's order of relations. With one relation over one type, as in a plain graph, the search uses the relation itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphmill.core.counter_random import unit_interval
from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import Columns, Router, ask, fetch_rows
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.kernels.lists import all_positions
from graphmill.samplers.kernels.random_streams import hash_again, hash_ids
from graphmill.samplers.vocabulary.messages import DegreeLists, WalkDirection
from graphmill.samplers.vocabulary.requirements import directed_lists
from graphmill.storage.format.source import Relation

OfType = dict[str, tuple[np.ndarray | slice, np.ndarray]]  # for each type: positions of its nodes, and their stored ids


@dataclass(frozen=True)
class Sizes:
    """Sizes of the graph that is searched."""

    num_nodes: int
    num_partitions: int = 1

    @property
    def index_dtype(self) -> str:
        return "int32" if self.num_nodes < 2**31 else "int64"


class NodeNumbers:
    """Consecutive ids ("numbers") for the nodes of all types. In a plain graph the numbers are the stored ids."""

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
        """For each type: the positions in `node` of the nodes of this type, ascending, and the stored ids of these nodes."""
        if len(self._routers) == 1:
            return dict.fromkeys(self._routers, (slice(None), node))
        type_of = np.searchsorted(self._offsets, node, side="right") - 1
        places = {name: np.flatnonzero(type_of == number) for number, name in enumerate(self._routers)}
        return {name: (at, node[at] - self.first(name)) for name, at in places.items()}

    def ranks(self, node: np.ndarray) -> np.ndarray:
        """int64: the rank of each of these distinct nodes in the order by type and permanent id."""
        parts = self.by_type(node)
        rows = fetch_rows([(self._routers[name], own, Columns(feature=False)) for name, (_, own) in parts.items()])
        if len(parts) == 1:
            return rows[0].original_id
        rank, first = np.empty(len(node), np.int64), 0
        for (at, own), of_type in zip(parts.values(), rows, strict=True):
            rank[at] = first + np.argsort(np.argsort(of_type.original_id))
            first += len(own)
        return rank


Lists = tuple[Relation, WalkDirection]  # a relation, and the direction of its lists


class UnionGraph:
    """Relations of a typed graph as one graph: a `graphmill.samplers.access.list_pool.ListsNeighbors`.

    `lists` gives the direction for each relation, so the methods ignore their argument `direction`.
    """

    def __init__(self, router: TypedRouter, lists: Sequence[Lists]) -> None:
        self._router, self._lists = router, lists
        self.numbers = NodeNumbers(router.nodes)
        self.manifest = Sizes(self.numbers.count)

    def _asked(
        self, node: np.ndarray, max_degree: np.ndarray | None, by_weight: bool
    ) -> list[tuple[Lists, np.ndarray | slice, DegreeLists]]:
        """For each relation: the positions in `node` of the nodes of its target type, and their lists. Each owner gets one request for all relations."""
        of_type, asked, questions = self.numbers.by_type(node), [], []
        for relation, direction in self._lists:
            (at, own), router = of_type[relation.target], self._router.edges[relation]
            if len(own):
                most = None if max_degree is None else max_degree[at]
                weighed = by_weight and router.manifest.has_edge_weight
                questions.append(router.list_question(own, direction, most, weighed))
                asked.append(((relation, direction), at))
        return [(*each, lists) for each, lists in zip(asked, ask(questions), strict=True)]

    def list_neighbors(
        self, node: np.ndarray, direction: WalkDirection, max_degree: np.ndarray | None, by_weight: bool
    ) -> DegreeLists:
        """Like `Router.list_neighbors`. A node's list is the concatenation of its lists in all relations."""
        answers, numbers = self._asked(node, max_degree, by_weight), self.numbers
        degree = np.zeros(len(node), np.int64)
        for _, at, lists in answers:
            degree[at] += lists.degree
        is_whole = np.ones(len(node), bool) if max_degree is None else degree <= max_degree
        count = np.where(is_whole, degree, 0)
        start, neighbor = pointers(count)[:-1].copy(), np.empty(int(count.sum()), self.manifest.index_dtype)
        weight = np.ones(len(neighbor), np.float32) if by_weight else None
        for (relation, _), at, lists in answers:
            whole = is_whole[at]
            entries, kept = np.repeat(whole, lists.count), np.where(whole, lists.count, 0)
            place = all_positions(start[at], kept)
            neighbor[place] = lists.neighbor[entries] + numbers.first(relation.source)
            if weight is not None and lists.weight is not None:
                weight[place] = lists.weight[entries]
            start[at] += kept
        return DegreeLists(degree, count, neighbor, weight)

    def step_walks(self, node: np.ndarray, walk: np.ndarray, key: int, direction: WalkDirection) -> np.ndarray:
        """Like `Router.step_walks`. First draws a relation, with probability proportional to the node's number of neighbors in it. Then draws a neighbor in
        this relation. Sends two requests per owner."""
        answers, numbers = self._asked(node, np.zeros(len(node), np.int64), by_weight=False), self.numbers
        last = np.zeros((len(answers) + 1, len(node)), np.int64)
        for row, (_, at, lists) in zip(last[1:], answers, strict=True):
            row[at] = lists.degree
        last = last.cumsum(axis=0)
        # Hashed twice, because the relation's owner draws the neighbor from the first hash.
        drawn = (unit_interval(hash_again(hash_ids(np.uint64(key), walk), walk)) * last[-1]).astype(np.int64)
        chosen = (drawn >= last).sum(axis=0) - 1  # len(answers) for a node that has no neighbors
        walks = [np.flatnonzero(chosen == number) for number in range(len(answers))]
        questions = [
            self._router.edges[relation].step_question(node[at] - numbers.first(relation.target), walk[at], key, lists)
            for ((relation, lists), *_), at in zip(answers, walks, strict=True)
        ]
        reached = node.copy()
        for ((relation, _), *_), at, stepped in zip(answers, walks, ask(questions), strict=True):
            reached[at] = stepped.neighbor + numbers.first(relation.source)
        return reached


def searched_graph(
    router: Router | TypedRouter, relations: Sequence[Relation], direction: WalkDirection
) -> Router | UnionGraph:
    """Returns these relations as one graph. Raises ConfigError if a relation has no lists in this direction (`directed_lists`)."""
    lists = directed_lists(router, relations, direction)
    if isinstance(router, Router):
        return router
    if len(router.nodes) == len(relations) == 1 and lists == {relations[0]: direction}:
        return router.edges[relations[0]]
    return UnionGraph(router, list(lists.items()))
