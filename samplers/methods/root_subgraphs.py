"""The common part of the samplers of one subgraph per root: the searched graph, the roots, and the construction of batches from sets of nodes.

A search sees the chosen relations as one graph (`graphmill.samplers.drawing.union_graph`). Afterwards its nodes are separated by type. The batch has the edges
of all relations within each root's subgraph.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphmill.samplers.access.router import Columns, Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.drawing.build_batch import Batch, build_batch
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn, with_rows
from graphmill.samplers.drawing.protocol import sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import RootBatches, plan_hash, plan_length
from graphmill.samplers.drawing.roots import find_roots
from graphmill.samplers.drawing.subgraph_batch import RootSets, by_hop, induced_edges, one_after_another
from graphmill.samplers.drawing.union_graph import NodeNumbers, searched_graph
from graphmill.samplers.vocabulary.messages import GivenRoots, NodeList, NodeRows, WalkDirection
from graphmill.samplers.vocabulary.requirements import (
    check_splits,
    edge_uses,
    encodings_by_type,
    known_relations,
    type_of_roots,
)
from graphmill.samplers.vocabulary.stage_clock import stage


class SubgraphSampler(ABC):
    """Minibatches of one subgraph per root. The roots are the nodes of one split, or given `roots` (distinct permanent ids). In a typed graph the roots are of
    one type."""

    __repr__, __len__ = sampler_repr, sampler_len
    router, content_hash, num_batches, sample = own_router, plan_hash, plan_length, sample_drawn

    def __init__(
        self, router: Router | TypedRouter, options: Any, num_ranks: int = 1, roots: np.ndarray | None = None
    ) -> None:
        """Raises ConfigError if a column, type or relation that the options name is missing in the graph."""
        self._router, self.options, self._num_hops = router, options, getattr(options, "max_hops", 1)
        self.root_type, relations = type_of_roots(router, options.root_type), known_relations(router, options.relations)
        check_splits(router, self.root_type, options.split_set)
        if options.by_weight:
            edge_uses(router, edge_columns=(*options.edge_columns, "weight"), induced=True)
        uses = edge_uses(router, edge_columns=options.edge_columns, induced=True)
        self._edge_columns = {relation: use.columns for relation, use in uses.items()}
        encodings = encodings_by_type(router, options.encodings)
        direction: WalkDirection = options.direction if self._num_hops else "in"
        self._graph, self._numbers = searched_graph(router, relations, direction), NodeNumbers(router.nodes)
        self._first = self._numbers.first(self.root_type)
        self._root_batches = RootBatches(router.nodes[self.root_type], options, num_ranks, roots)
        self._columns = [
            Columns.of(each, options.split_set, encodings[name], feature=options.features)
            for name, each in router.nodes.items()
        ]

    @abstractmethod
    def _sets(self, roots: NodeList, epoch: int) -> RootSets:
        """Runs the search."""

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        return self.draw_around([self._root_batches.roots(epoch, batch) for batch in batches], epoch, batches)

    def draw_around(self, roots: Sequence[GivenRoots], epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """Draws batches around these nodes; their rows are not fetched."""
        drawn = []
        for of_batch, batch in zip(roots, batches, strict=True):
            of_type = of_batch if isinstance(of_batch, Mapping) else {self.root_type: of_batch}
            with stage("sample"):
                sets = self._sets(self._numbered(of_type), epoch)
            drawn.append(self._pending(sets, epoch, batch, of_type))
        return drawn

    def _numbered(self, roots: Mapping[str, NodeList]) -> NodeList:
        """The roots by their numbers in the searched graph. They keep the permanent ids of their type, because the keys of draws are made from these ids."""
        firsts = [self._first if name == self.root_type else self._numbers.first(name) for name in roots]
        if firsts == [0]:
            return next(iter(roots.values()))
        node = [each.node.astype(np.int64) + first for first, each in zip(firsts, roots.values(), strict=True)]
        return NodeList(np.concatenate(node), np.concatenate([each.original_id for each in roots.values()]))

    def _pending(self, sets: RootSets, epoch: int, batch: int, roots: Mapping[str, NodeList]) -> PendingBatch:
        """The batch of these sets around roots, by type. One request per owner fetches the rows of distinct nodes of all types; one more fetches all edges."""
        router = self._router
        with stage("sample"):
            parts = sets.by_type(self._numbers)
        wanted = zip(router.nodes.values(), (part.distinct for part in parts.values()), self._columns, strict=True)

        def complete(*rows_of: NodeRows) -> Batch:
            rows = dict(zip(parts, rows_of, strict=True))
            with stage("sample"):
                ordered = {name: part.ordered(rows[name].original_id) for name, part in parts.items()}
                lists = induced_edges(router, ordered, self._edge_columns)
            with stage("fetch"):
                arrange = one_after_another if isinstance(router, Router) else by_hop
                nodes, edges, root_index = arrange(ordered, rows, lists)
                (root_type, own), *second = roots.items()  # in each type the roots come first
                others = [(name, np.arange(len(each.node))) for name, each in second]
                content = nodes, edges, root_index[: len(own.node)], root_type, self._num_hops, self.options.encodings
                return build_batch(router, epoch, batch, *content, *others)

        return PendingBatch(tuple(wanted), complete, sum(part.num_bytes for part in parts.values()))

    def sample_roots(self, node_id: np.ndarray, epoch: int = 0, batch: int = 0) -> Any:
        """The subgraphs around these permanent ids of any split. A repeated root gets the same subgraph again.

        `epoch` and `batch` are stored in the batch; Node2Subgraph also draws by the epoch. Finding the roots takes one more request per owner. Raises
        ConfigError for an id that no node has; in a typed graph, for an id that no node of the roots' type has.
        """
        roots = find_roots(self._router.nodes[self.root_type], node_id)
        return with_rows(*self.draw_around([roots], epoch, [batch]))

    def roots_of(self, epoch: int, batch: int) -> np.ndarray:
        """Permanent ids of a batch's roots, in the order of the batch. Raises ConfigError for a batch that does not exist."""
        return self._root_batches.roots(epoch, batch).original_id
