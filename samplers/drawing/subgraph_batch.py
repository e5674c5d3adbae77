"""Makes a packed batch of induced subgraphs from one set of nodes per root. Works for plain and typed graphs."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import EDGE_COLUMNS, Router, ask
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.drawing.build_batch import EdgesOf, NodesOf, edges_of
from graphmill.samplers.drawing.union_graph import NodeNumbers
from graphmill.samplers.kernels.lists import all_positions
from graphmill.samplers.kernels.relabel import Relabeler
from graphmill.samplers.kernels.search import order_members
from graphmill.samplers.vocabulary.messages import EdgeColumn, NeighborLists, NodeRows
from graphmill.storage.format.source import Relation

Arranged = tuple[NodesOf, EdgesOf, np.ndarray]  # nodes, edges, positions of the roots: the arguments of `build_batch`


class RootSets(NamedTuple):  # a dataclass would take as long as a search step to make
    """A set of nodes for each root, packed. Set g is node[graph_ptr[g]:graph_ptr[g + 1]]; its first node is the root."""

    node: np.ndarray  # int64 [k], ids from `NodeNumbers`
    graph_ptr: np.ndarray  # int64 [num_roots + 1]
    level: np.ndarray  # int [k], ascending within a set; the nodes of a level are sorted by permanent id
    hop: np.ndarray  # int16 [k], constant within a level
    score: np.ndarray | None = None  # float32 [k], constant within a level

    def by_type(self, numbers: NodeNumbers) -> "dict[str, TypeSets]":
        """Splits the sets by type of node."""
        return {name: self._of_type(at, node) for name, (at, node) in numbers.by_type(self.node).items()}

    def _of_type(self, at: np.ndarray | slice, node: np.ndarray) -> "TypeSets":
        graph_ptr = self.graph_ptr if isinstance(at, slice) else np.searchsorted(at, self.graph_ptr)
        score, relabeler = None if self.score is None else self.score[at], Relabeler(np.empty(0, np.int64))
        row = relabeler.add(node)
        return TypeSets(RootSets(node, graph_ptr, self.level[at], self.hop[at], score), row, relabeler.node.copy())


class TypeSets(NamedTuple):
    """The nodes of one type in each set."""

    sets: RootSets  # by stored ids
    row: np.ndarray  # int32 [k], positions in `distinct`
    distinct: np.ndarray  # stored ids, in the order in which the rows are fetched

    @property
    def num_bytes(self) -> int:
        return sum([array.nbytes for array in (*self.sets, self.row, self.distinct) if array is not None])

    def ordered(self, original_id: np.ndarray) -> "TypeSets":
        """The sets with each level sorted by permanent id. `original_id` are the permanent ids of `distinct`."""
        sets = self.sets
        order = order_members(sets.graph_ptr, sets.level, original_id[self.row])
        ordered = RootSets(sets.node[order], sets.graph_ptr, sets.level, sets.hop, sets.score)
        return TypeSets(ordered, self.row[order], self.distinct)


def induced_edges(
    router: Router | TypedRouter, parts: Mapping[str, TypeSets], columns: Mapping[Relation, tuple[EdgeColumn, ...]]
) -> dict[Relation, NeighborLists]:
    """Returns all edges within the sets, for every relation. Each target node has a list of positions of source nodes. Sends one request per owner."""
    questions = []
    for relation, each in router.edges.items():
        source, target = parts[relation.source].sets, parts[relation.target].sets
        node, ptr = (None, None) if source is target else (source.node, source.graph_ptr)
        questions.append(each.induced_question(target.node, target.graph_ptr, node, ptr, columns[relation]))
    return dict(zip(router.edges, ask(questions), strict=True))


def one_after_another(
    parts: Mapping[str, TypeSets], rows: Mapping[str, NodeRows], lists: Mapping[Relation, NeighborLists]
) -> Arranged:
    """Orders the nodes of a graph with one type: subgraph by subgraph."""
    ((name, part),), sets = parts.items(), next(iter(parts.values())).sets
    # A batch with scores has no hops.
    columns = {"graph_ptr": sets.graph_ptr, "hop": sets.hop if sets.score is None else None, "score": sets.score}
    edges = {relation: edges_of(own) for relation, own in lists.items()}
    return {name: (rows[name].take(part.row), columns)}, edges, sets.graph_ptr[:-1].copy()


def by_hop(
    parts: Mapping[str, TypeSets], rows: Mapping[str, NodeRows], lists: Mapping[Relation, NeighborLists]
) -> Arranged:
    """Orders the nodes hop by hop, so that roots come first. Within a hop, the order is subgraph by subgraph."""
    order = {name: np.argsort(part.sets.hop, kind="stable") for name, part in parts.items()}
    nodes = {}
    for name, part in parts.items():
        sets, at = part.sets, order[name]
        subgraph = np.repeat(np.arange(len(sets.graph_ptr) - 1), np.diff(sets.graph_ptr))
        columns = {
            "hop": sets.hop[at],
            "subgraph": subgraph[at],
            "score": None if sets.score is None else sets.score[at],
        }
        nodes[name] = rows[name].take(part.row[at]), columns
    edges = {
        relation: edges_of(_reordered(own, order[relation.target], order[relation.source]))
        for relation, own in lists.items()
    }
    return nodes, edges, np.arange(len(sets.graph_ptr) - 1)


def _reordered(lists: NeighborLists, target: np.ndarray, source: np.ndarray) -> NeighborLists:
    """Returns the lists for a new order of the nodes. `target` is the new order of the target nodes, `source` the new order of the source nodes."""
    position, count = np.empty(len(source), np.int32), lists.count[target]
    position[source] = np.arange(len(source), dtype=np.int32)
    entry = all_positions(pointers(lists.count)[:-1][target], count)
    columns = {name: None if (column := getattr(lists, name)) is None else column[entry] for name in EDGE_COLUMNS}
    return NeighborLists(count, position[lists.neighbor[entry]], **columns)
