"""Defines the input of every model: one or several graphs packed one after another, and the padded view that dense models use.

Legend: B graphs, n nodes and E edges of all graphs together, N places per graph in the padded view, D channels.

Pairs: entry [b, i, j] of a padded pair tensor belongs to the edge i → j (the adjacency matrix's A_ij = 1). For an attention
model i is the query and j the key; for a random walk i is the start and j the end. Undirected graphs hold every edge in both directions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graphmill.models.options.features import EdgeQuery
from graphmill.models.primitives.propagation import Adjacency
from graphmill.models.primitives.segments import Grouping, at_least_float32, is_readable


@dataclass(frozen=True)
class Graphs:
    """Holds a batch of graphs; a single large graph is a batch of one. Graph b has the nodes [node_ptr[b], node_ptr[b + 1])."""

    node_ptr: Tensor  # int64 [B + 1]
    edge_index: Tensor  # int64 [2, E]: source over destination, positions in the batch; edges may come in any order
    x: Tensor | None = None  # [n, F]: int64 categories or floating-point features
    edge_attr: Tensor | None = None  # [E, F']: features of edges, int64 or floating-point
    node_id: Tensor | None = None  # int64 [n], permanent ids: GECO orders nodes by these ids
    root_index: Tensor | None = None  # int64 [r]: the nodes whose outputs are computed; None: all of them
    encodings: Mapping[str, Tensor] = field(default_factory=dict)  # precomputed rows per node, [n, k] each
    edge_coefficient: Tensor | None = None  # [E]: factor of each message in `adjacency`
    degree: Tensor | None = None  # int64 [n]: replaces the batch's degrees (`graphmill.samplers.batches.minibatch`)
    max_nodes: int | None = None  # N, if the caller knows it (avoids waiting for the device)
    max_edges: int | None = None  # largest edge count of a graph, if known (TokenGT's tokens)

    @cached_property
    def num_graphs(self) -> int:
        return self.node_ptr.numel() - 1

    @cached_property
    def num_nodes(self) -> int:
        """n; read from a tensor's rows if there is one, else from node_ptr."""
        for rows in (self.x, self.node_id):
            if rows is not None:
                return rows.shape[0]
        return int(self.node_ptr[-1])

    @cached_property
    def size_B(self) -> Tensor:
        """int64 [B]: nodes per graph."""
        return self.node_ptr.diff()

    @cached_property
    def graph_of_node(self) -> Tensor:
        """int64 [n]: the graph of each node."""
        graph = torch.arange(self.num_graphs, device=self.node_ptr.device)
        return torch.repeat_interleave(graph, self.size_B, output_size=self.num_nodes)

    @cached_property
    def padding(self) -> "Padding":
        return Padding(self)

    @cached_property
    def by_graph(self) -> Grouping:
        """The nodes, grouped by graph."""
        return Grouping(self.graph_of_node, self.num_graphs, self.node_ptr)

    @cached_property
    def by_source(self) -> Grouping:
        """The edges, grouped by source node."""
        return Grouping(self.edge_index[0], self.num_nodes)

    @cached_property
    def by_destination(self) -> Grouping:
        """The edges, grouped by destination node."""
        return Grouping(self.edge_index[1], self.num_nodes)

    @cached_property
    def adjacency(self) -> Adjacency:
        """The in-edges of every node and the transposed lists, for `propagate`."""
        (in_ptr, in_edge), (out_ptr, out_edge) = self.by_destination.lists, self.by_source.lists
        is_sorted = self.by_destination.is_sorted

        def by_destination(rows_E: Tensor | None) -> Tensor | None:
            return rows_E if rows_E is None or is_sorted else rows_E[in_edge]

        of_out = None if self.edge_coefficient is None else self.edge_coefficient[out_edge]
        return Adjacency(
            in_ptr,
            self.edge_index[0] if is_sorted else self.edge_index[0][in_edge],
            by_destination(self.edge_coefficient),
            transposed=(out_ptr, self.edge_index[1][out_edge], of_out),
            degree=self.degree,
            edge_feature=by_destination(self.edge_attr),
        )

    def ascending(self, in_ptr: Tensor) -> "Graphs":
        """Returns the same graphs, marked as sorted: the caller promises that edges ascend in destination. Node v's in-edges are
        [in_ptr[v], in_ptr[v + 1]), in_ptr int64 [n + 1]."""
        vars(self)["by_destination"] = Grouping(self.edge_index[1], self.num_nodes, in_ptr)
        return self

    def with_rows(self, **rows: Any) -> "Graphs":
        """Returns the same edges with other rows or roots; keeps the cached properties of the edges."""
        made = replace(self, **rows)
        known = {name: value for name, value in vars(self).items() if name not in self.__dataclass_fields__}
        vars(made).update(known)
        return made

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Graphs":
        def moved(value: Any) -> Any:
            return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value

        fields = {name: moved(getattr(self, name)) for name in self.__dataclass_fields__}
        return replace(self, **fields | {"encodings": {name: moved(rows) for name, rows in self.encodings.items()}})


class Padding:
    """Moves rows between the packed and the padded layout. Node k of graph b is in place k; later places are padding."""

    def __init__(self, graphs: Graphs) -> None:
        """Raises ValueError if `max_nodes` is below the size of the largest graph (checked on the CPU only)."""
        size_B = graphs.size_B
        if graphs.max_nodes is None:
            self.num_places = int(size_B.max()) if size_B.numel() else 0
        else:
            self.num_places = graphs.max_nodes
            if is_readable(size_B) and size_B.numel() and int(size_B.max()) > self.num_places:
                raise ValueError(
                    f"max_nodes must be at least the largest graph's {int(size_B.max())} nodes, got {self.num_places}; set max_nodes"
                )
        self.num_graphs, self.graph_n, self.edge_index = graphs.num_graphs, graphs.graph_of_node, graphs.edge_index
        self.place_n = torch.arange(graphs.num_nodes, device=size_B.device) - graphs.node_ptr[self.graph_n]
        self.slot_n = self.graph_n * self.num_places + self.place_n
        places = torch.arange(self.num_places, device=size_B.device)
        self.mask_BN = places < size_B.unsqueeze(1)  # bool: the place holds a node

    def pad(self, rows_nD: Tensor, fill: float = 0.0) -> Tensor:
        """[n, …] → [B, N, …]."""
        shape = (self.num_graphs, self.num_places, *rows_nD.shape[1:])
        flat = rows_nD.new_full((self.num_graphs * self.num_places, *rows_nD.shape[1:]), fill)
        return flat.index_copy(0, self.slot_n, rows_nD).view(shape)

    def unpad(self, padded_BND: Tensor) -> Tensor:
        """[B, N, …] → [n, …]."""
        return padded_BND.flatten(0, 1).index_select(0, self.slot_n)

    @cached_property
    def pair_E(self) -> Tensor:
        """int64 [E]: the flat index of each edge's entry in a [B, N, N] tensor."""
        return self.pair_index("source")

    def pair_index(self, query: EdgeQuery) -> Tensor:
        """int64 [E]: the flat index of [b, i, j] for the edge i → j. With `query` "target" it is the flat index of [b, j, i]: j is the query."""
        first, second = self.edge_index if query == "source" else self.edge_index.flip(0)
        return self.slot_n[first] * self.num_places + self.place_n[second]

    def pad_pairs(self, values_E: Tensor, query: EdgeQuery = "source") -> Tensor:
        """[E, …] → [B, N, N, …]: each edge's value is at the edge's entry (`pair_index`). Parallel edges are summed; entries without an edge are 0."""
        size = self.num_graphs * self.num_places * self.num_places
        wide_E = at_least_float32(values_E)
        flat = (
            wide_E.new_zeros((size, *values_E.shape[1:]))
            .index_add(0, self.pair_index(query), wide_E)
            .to(values_E.dtype)
        )
        return flat.view(self.num_graphs, self.num_places, self.num_places, *values_E.shape[1:])

    def adjacency(self, dtype: torch.dtype = torch.float32, *, undirected: bool = False) -> Tensor:
        """[B, N, N]: 1 if there is at least one edge i → j (`undirected`: or j → i), else 0. Self-loops count as given."""
        size = self.num_graphs * self.num_places * self.num_places
        flat = torch.zeros(size, dtype=dtype, device=self.mask_BN.device)
        flat[self.pair_E] = 1
        adjacency_BNN = flat.view(self.num_graphs, self.num_places, self.num_places)
        return torch.maximum(adjacency_BNN, adjacency_BNN.transpose(1, 2)) if undirected else adjacency_BNN

    @cached_property
    def pair_mask_BNN(self) -> Tensor:
        """bool [B, N, N]: both places hold nodes."""
        return self.mask_BN.unsqueeze(2) & self.mask_BN.unsqueeze(1)


def unit_values(v_BHNd: Tensor) -> Tensor:
    """[B, H, N, N]: the value of place j is unit vector j. Attention over these values returns the attention weights."""
    places = v_BHNd.shape[2]
    return torch.eye(places, dtype=v_BHNd.dtype, device=v_BHNd.device).expand(*v_BHNd.shape[:3], places)


def pair_blocks(num_graphs: int, places: int, per_pair: int, room: int) -> Iterator[tuple[slice, slice]]:
    """Yields the graphs and queries of each block. A block has about `room` numbers, `per_pair` for each pair, and covers several whole graphs or
    some queries of one graph. Attention over all pairs of a graph's nodes then holds its values for one block at a time."""
    graphs = room // max(places * places * per_pair, 1)
    queries = max(places, 1) if graphs else max(room // (places * per_pair), 1)
    for b in range(0, num_graphs, max(graphs, 1)):
        for i in range(0, places, queries):
            yield slice(b, min(b + max(graphs, 1), num_graphs)), slice(i, min(i + queries, places))
