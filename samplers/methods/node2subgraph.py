"""Node2Subgraph (PPGT, appendix B.4): one subgraph per root, found by a breadth-first search that stops at a given number of nodes.

Whole layers are taken while they fit. From the first layer that does not fit, the search takes a part that fills the subgraph. The part is uniformly random, or
drawn by the weights of edges. The search also ends after `max_hops` layers, or when it finds no new node. The subgraph is induced: it has all stored edges
among its nodes, regardless of the direction of the search. A root's subgraph depends on (seed, epoch, permanent id of the root) and the graph, but not on the
batch. The random part is drawn by position in the order of discovery, because the owner of a list does not know the permanent ids of its entries.
"""

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.list_pool import ListPool, ListsNeighbors
from graphmill.samplers.drawing.subgraph_batch import RootSets
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.kernels.search import HUB_DEGREE, advance, frontier, pack_members
from graphmill.samplers.methods.root_subgraphs import SubgraphSampler
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.options import Node2SubgraphOptions


class Node2SubgraphSampler(SubgraphSampler):
    """Minibatches of one subgraph per root, see `SubgraphSampler`. In a typed graph, layers and `max_nodes` count the nodes of all types."""

    options: Node2SubgraphOptions

    def _sets(self, roots: NodeList, epoch: int) -> RootSets:
        return grow_subgraphs(self._graph, roots, self.options, epoch)


def grow_subgraphs(
    router: ListsNeighbors, roots: NodeList, options: Node2SubgraphOptions, epoch: int, hub_degree: int = HUB_DEGREE
) -> RootSets:
    """Runs all searches, hop by hop. Each hop sends one request per owner for the lists that no earlier hop has fetched."""
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
    return RootSets(packed, pointers(size), packed_hop, packed_hop)
