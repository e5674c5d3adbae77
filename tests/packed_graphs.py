"""Packed batches of networkx graphs for the tests of models."""

import networkx
import torch

from graphmill.models.primitives.graphs import Graphs

# A batch of everything: isolated nodes, a single node, no node, a directed graph, a disconnected one.
MIXED = (
    networkx.gnp_random_graph(7, 0.4, seed=1),
    networkx.empty_graph(1),
    networkx.empty_graph(0),
    networkx.empty_graph(3),
    networkx.gnp_random_graph(5, 0.4, seed=2, directed=True),
    networkx.path_graph(2),
    networkx.disjoint_union(networkx.cycle_graph(4), networkx.path_graph(3)),
)


def packed(*graphs: networkx.Graph) -> Graphs:
    """The graphs one after another; undirected edges both ways. Nodes must be 0 … n - 1 in each."""
    edges, start, node_ptr = [], 0, [0]
    for graph in graphs:
        directed = graph if graph.is_directed() else graph.to_directed()
        edges += [(start + u, start + v) for u, v in directed.edges]
        start += graph.number_of_nodes()
        node_ptr.append(start)
    return Graphs(torch.tensor(node_ptr), torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous())
