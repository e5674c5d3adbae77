"""Makes packed batches from networkx graphs, for the tests of models."""

import networkx
import torch
from torch import Tensor

from graphmill.models.primitives.graphs import Graphs

# A batch with all special cases: isolated nodes, one node, no nodes, a directed graph, a disconnected graph.
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
    """Packs the graphs into one batch. Undirected edges get both directions. The nodes of each graph must be 0 … n - 1."""
    edges, start, node_ptr = [], 0, [0]
    for graph in graphs:
        directed = graph if graph.is_directed() else graph.to_directed()
        edges += [(start + u, start + v) for u, v in directed.edges]
        start += graph.number_of_nodes()
        node_ptr.append(start)
    return Graphs(torch.tensor(node_ptr), torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T.contiguous())


def ring(n: int) -> Tensor:
    """The edges of a ring with a chord, in both directions. For fewer than two nodes there are no edges."""
    pairs = [(i, (i + 1) % n) for i in range(n)] + [(0, n // 2)] if n > 3 else [(i, i + 1) for i in range(n - 1)]
    edges = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    return torch.cat([edges, edges.flip(0)], dim=1)


def rings(sizes: tuple[int, ...], seed: int = 0) -> Graphs:
    """Rings of these sizes. Nodes have two categories, edges have one. Six random columns are the encoding "lap"."""
    generator = torch.Generator().manual_seed(seed)
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    n = int(ptr[-1])
    edges = torch.cat([ring(size) + start for size, start in zip(sizes, ptr, strict=False)] or [ring(0)], dim=1)
    x = torch.randint(0, 4, (n, 2), generator=generator)
    code = (x[edges[0], :1] + x[edges[1], :1]) % 3
    return Graphs(ptr, edges, x=x, edge_attr=code, encodings={"lap": torch.randn(n, 6, generator=generator)})


def alone(graphs: Graphs, b: int) -> Graphs:
    """Graph b of a batch, as a batch of one graph."""
    start, stop = graphs.node_ptr[b : b + 2].tolist()
    inside = (graphs.edge_index[0] >= start) & (graphs.edge_index[0] < stop)

    def rows(values: Tensor | None, kept: Tensor | slice) -> Tensor | None:
        return None if values is None else values[kept]

    nodes = slice(start, stop)
    return Graphs(
        torch.tensor([0, stop - start]),
        graphs.edge_index[:, inside] - start,
        x=rows(graphs.x, nodes),
        edge_attr=rows(graphs.edge_attr, inside),
        node_id=rows(graphs.node_id, nodes),
        encodings={name: values[nodes] for name, values in graphs.encodings.items()},
    )
