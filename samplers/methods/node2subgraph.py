"""Node2Subgraph (PPGT, appendix B.4): around each root a breadth-first search, cut at a number of nodes; one subgraph per root.

Whole layers are taken while they fit; of the first that does not, a uniform random part fills the subgraph, or one drawn by the weights of edges. The search also ends after
`max_hops` layers and where no new node is found. The subgraph is induced: all stored edges among its nodes, whichever way the search went.
A root's subgraph is a function of (seed, epoch, its permanent id) and the graph, not of its batch. The random part is drawn by place in
the order of discovery, since the owner of a list does not know the permanent ids of its entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.list_pool import ListPool, ListsNeighbors
from graphmill.samplers.access.router import Router
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn, with_rows
from graphmill.samplers.drawing.protocol import sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import RootBatches, plan_hash, plan_length
from graphmill.samplers.drawing.roots import find_roots
from graphmill.samplers.drawing.subgraph_batch import draw_subgraph_batch
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.kernels.search import HUB_DEGREE, advance, frontier, pack_members
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import Node2SubgraphOptions
from graphmill.samplers.vocabulary.requirements import check_graph, needed_columns
from graphmill.samplers.vocabulary.stage_clock import stage


@dataclass(frozen=True)
class GrownSubgraphs:
    """Sets of nodes, packed: set g is node[graph_ptr[g]:graph_ptr[g + 1]], its root first, then layer by layer."""

    node: np.ndarray  # int64 [k], stored ids
    hop: np.ndarray  # int16 [k], ascending within a set
    graph_ptr: np.ndarray  # int64 [num_roots + 1]


class Node2SubgraphSampler:
    """Minibatches of one subgraph per root: of one split's, or of given `roots` (permanent ids, distinct)."""

    __repr__, __len__ = sampler_repr, sampler_len
    router, sample = own_router, sample_drawn
    content_hash, num_batches = plan_hash, plan_length

    def __init__(
        self, router: Router, options: Node2SubgraphOptions, num_ranks: int = 1, roots: np.ndarray | None = None
    ) -> None:
        self._router, self.options = router, options
        direction = "in" if options.max_hops == 0 else options.direction
        columns = needed_columns(options.edge_columns, options.by_weight)
        check_graph(router.manifest, options.split_set, direction, edge_columns=columns, induced=True)
        self._root_batches = RootBatches(router, options, num_ranks, roots)

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        return [self._draw(self._root_batches.roots(epoch, batch), epoch, batch) for batch in batches]

    def sample_roots(self, node_id: np.ndarray, epoch: int = 0, batch: int = 0) -> MiniBatch:
        """The subgraphs around these permanent ids, whatever their split; a repeated root gets the same subgraph again.

        `epoch` chooses the draws; one more request per owner finds the roots. Raises ConfigError where a root is no node of the graph.
        """
        return with_rows(self._draw(find_roots(self._router, node_id), epoch, batch))

    def draw_around(self, roots: Sequence[NodeList], epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """Batches around these nodes, before their rows are fetched."""
        return [self._draw(one, epoch, batch) for one, batch in zip(roots, batches, strict=True)]

    def _draw(self, roots: NodeList, epoch: int, batch: int) -> PendingBatch:
        options = self.options
        with stage("sample"):
            grown = grow_subgraphs(self._router, roots, options, epoch)
        return draw_subgraph_batch(
            self._router,
            epoch,
            batch,
            member=grown.node,
            graph_ptr=grown.graph_ptr,
            level=grown.hop,
            split_set=options.split_set,
            hop=grown.hop,
            encodings=options.encodings,
            edge_columns=options.edge_columns,
        )


def grow_subgraphs(
    router: ListsNeighbors, roots: NodeList, options: Node2SubgraphOptions, epoch: int, hub_degree: int = HUB_DEGREE
) -> GrownSubgraphs:
    """All searches, hop by hop; with one request per owner and hop for the lists that no earlier hop has fetched."""
    num_roots = len(roots.node)
    draw_epoch = epoch if options.shuffle and not options.fixed else 0
    root_key = hash_ids(stream_key(options.seed, Purpose.SUBGRAPHS, draw_epoch), roots.original_id)
    member = np.empty((num_roots, min(options.max_nodes, router.manifest.num_nodes)), np.int64)
    member[:, 0] = roots.node
    size, layer_start = np.ones(num_roots, np.int64), np.zeros(num_roots, np.int64)
    layer_sizes = [size.copy()]
    pool = ListPool(router, options.direction, options.by_weight)
    if options.by_weight:
        hub_degree = np.iinfo(np.int64).max  # a draw by weight reads every entry
    for hop in range(1, options.max_hops + 1):
        node = frontier(member, size, layer_start)
        if not len(node):
            break
        number = pool.number(node)
        unfetched = np.flatnonzero(pool.start < 0)
        if len(unfetched):
            pool.fetch(unfetched)
        before = size.copy()
        lists = (pool.start, pool.degree, pool.neighbor, pool.weight)
        advance(member, size, layer_start, number, *lists, root_key, hop, hub_degree)
        layer_sizes.append(size - before)
    packed, packed_hop = pack_members(member, np.stack(layer_sizes))
    return GrownSubgraphs(node=packed, hop=packed_hop, graph_ptr=pointers(size))
