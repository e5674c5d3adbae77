"""Implements models for graphs with several types of nodes and relations: R-SAGE, and relational layers before any model of a plain graph.

Each type has a linear map that brings the type's features to one width; a type without features starts with one learned vector. After this step
the rows of all types follow one after another. A layer (basis decomposition of arXiv:1703.06103, equation 3, with the means of its equation 2):

    L(H) = Drop(ReLU(Norm(H W + b + Σ_r mean_r(H) W_r))),      W_r = Σ_b a_rb V_b

For a node of the relation's target type, mean_r(H) is the mean of H over the node's in-neighbors by r (nodes of the source type), weighted if the
edges have weights. mean_r(H) is 0 without in-neighbors, and for nodes of other types. All types share W; each type has its own input layer. Features e
of a relation's edges are added to the message, as for GraphSAGE in arXiv:1905.12265: mean_r(H) is then the mean of H + e U_r. Each relation has one
linear map U_r, without a bias; all layers share it.

R-SAGE consists of these layers and a linear head. `OverTypes` puts these layers before another model. Only the relational layers then distinguish
relations: the other model, with its local and global part, gets all nodes and the edges of all relations as one plain graph, or as one graph for
each root if the batch has subgraphs of roots. There an edge's features are e U_r (0 for relations without features); encodings are the rows of all
types' nodes.

Shapes: n nodes of all types, D width, R relations, B bases.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from graphmill.models.operators.local_blocks import make_norm
from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel.global_terms import ShardedNodes
from graphmill.models.parallel.graph import ShardedGraph
from graphmill.models.parallel.halo import Halo, ShardedAdjacency
from graphmill.models.parallel.shards import Shards
from graphmill.models.primitives.batch_norm import normalise
from graphmill.models.primitives.dropout import Dropout, MaskRows
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.propagation import Adjacency
from graphmill.models.relational.options import Names, RelationalConfig, RSAGEConfig


class TypedShard:
    """Holds this worker's rows of a typed graph that is spread over workers, and exchanges rows for all relations. The constructor is collective.

    A worker has the same blocks of every type's nodes. The worker's rows are ordered block by block: each block has the first type's rows, then the
    next type's rows, and so on. So the order of the rows, and of sums over rows, is the same for every number of workers.
    """

    def __init__(
        self,
        block_starts: Mapping[str, Tensor],
        ends: Sequence[int],
        source_id: Mapping[Any, Tensor],
        peers: Peers,
    ) -> None:
        """`block_starts`: for each type the stored ids of the blocks' first nodes, then the number of nodes. Worker w has the blocks [ends[w], ends[w + 1]).
        `source_id` [E_r]: stored ids of the sources of this worker's in-edges."""
        self.peers, here = peers, slice(ends[peers.rank], ends[peers.rank + 1] + 1)
        size_BT = torch.stack([starts.diff() for starts in block_starts.values()], dim=1)
        row = nn.functional.pad(size_BT.flatten().cumsum(0), (1, 0))  # first rows of blocks and types, over all workers
        self._starts, self._first_BT = dict(block_starts), row[:-1].view_as(size_BT)
        block_bounds = tuple(row[:: size_BT.shape[1]].tolist())
        self.shards = Shards(tuple(block_bounds[end] for end in ends), block_bounds)
        first, _ = self.shards.range(peers.rank)
        self.first_id = {name: int(starts[here][0]) for name, starts in block_starts.items()}
        own = {
            name: torch.arange(int(starts[here][0]), int(starts[here][-1]), device=starts.device)
            for name, starts in block_starts.items()
        }
        self.row = {
            name: self._global_row(name, own_n) - first for name, own_n in own.items()
        }  # int64 [n_t]: indices in this worker's rows
        self.order_n = torch.cat(
            [*self.row.values()]
        ).argsort()  # from the order by type to the order of this worker's rows
        self.source_row = {name: self._global_row(name[0], id_E) for name, id_E in source_id.items()}
        self.halo = Halo(torch.cat([*self.source_row.values()]), self.shards, peers)
        counts = [len(id_E) for id_E in source_id.values()]
        self.row_E = dict(
            zip(source_id, self.halo.row_E.split(counts), strict=True)
        )  # index of each source in own rows and halo rows
        self.all_rows = ShardedNodes(self.shards, peers, row.device)
        # These are made once, because every step uses the same shard.
        self.lists: dict[Names, Adjacency] | None = None
        self.adjacency: ShardedAdjacency | None = None
        self.order_E: Tensor | None = None  # index of each adjacency edge in the edges by relation

    def _global_row(self, node_type: str, id_E: Tensor) -> Tensor:
        """Returns the row of each stored id, as an index in the rows of all workers."""
        starts, place = self._starts[node_type], list(self._starts).index(node_type)
        block_E = torch.searchsorted(starts, id_E.long(), right=True) - 1
        return self._first_BT[block_E, place] + id_E.long() - starts[block_E]

    def masks(self, seed: int, epoch: int, purpose: int, node_type: str | None = None) -> MaskRows:
        """Returns dropout's masks of this worker's rows: of all types, or of one type."""
        first = self.shards.range(self.peers.rank)[0] if node_type is None else self.first_id[node_type]
        return MaskRows(seed, first).of(epoch).of(purpose)


@dataclass(frozen=True)
class TypedGraphs:
    """Holds a batch of a typed graph; types and relations have the graph's order."""

    node_id: Mapping[str, Tensor]  # int64 [n_t], permanent ids within the type
    x: Mapping[str, Tensor | None]  # [n_t, F_t]
    edges: Mapping[
        Names, tuple[Tensor, Tensor]
    ]  # (indptr [n_t + 1] over the target type, indices [E_r] in the source type)
    root_type: str
    root_index: Tensor  # int64, positions in the nodes of the root type
    subgraph: Mapping[str, Tensor] | None = None  # int64 [n_t]: the root of the node's subgraph
    weight: Mapping[Names, Tensor] = field(default_factory=dict)  # [E_r], only for relations whose edges have weights
    edge_attr: Mapping[Names, Tensor] = field(default_factory=dict)  # [E_r, F_r], only for relations with features
    encodings: Mapping[str, Tensor] = field(default_factory=dict)  # [n, k] each: stored rows of the nodes of all types
    degree: Mapping[Names, Tensor] = field(
        default_factory=dict
    )  # int64 [n_t]: degrees in the full graph, if weights of sampled edges estimate sums over all edges
    shard: TypedShard | None = None  # if set, indices are positions in own rows and halo rows
    second_type: str = ""  # a second type with roots; its roots follow the roots of `root_type`
    second_index: Tensor | None = None  # int64, positions of the roots of `second_type` in the nodes of this type

    @cached_property
    def num_nodes(self) -> dict[str, int]:
        return {name: len(ids) for name, ids in self.node_id.items()}

    @cached_property
    def first_row(self) -> dict[str, int]:
        """For each type, the index of its first row in the rows of all types."""
        return dict(zip(self.num_nodes, accumulate(self.num_nodes.values(), initial=0), strict=False))

    @cached_property
    def root_row(self) -> Tensor:
        """int64 [r]: positions of the roots in the rows of all types."""
        if self.shard is not None:
            return self.shard.row[self.root_type][self.root_index]
        own = self.root_index + self.first_row[self.root_type]
        if self.second_index is None:
            return own
        return torch.cat([own, self.second_index + self.first_row[self.second_type]])

    @cached_property
    def lists(self) -> dict[Names, Adjacency]:
        sizes, shard = self.num_nodes, self.shard
        if shard is not None and shard.lists is not None:
            return shard.lists
        lists = {}
        for name, csc in self.edges.items():
            num_sources = sizes[name[0]] if shard is None else shard.halo.num_rows
            weight, degree = self.weight.get(name), self.degree.get(name)
            lists[name] = Adjacency(*csc, weight, degree=degree, num_sources=num_sources)
        if shard is not None:
            shard.lists = lists
        return lists

    def _degree_of(self, node_type: str) -> Tensor:
        """int64 [n_t]: degrees over all relations."""
        zero_n = torch.zeros_like(self.node_id[node_type])
        return sum((degree for name, degree in self.degree.items() if name[2] == node_type), zero_n)

    def _as_sharded(self, x_nD: Tensor, shard: TypedShard, edge_attr_ED: Tensor | None) -> ShardedGraph:
        """Does the same as `as_plain`, for this worker's rows."""
        if shard.adjacency is None:
            row_E = torch.cat(
                [
                    shard.row[name[2]].repeat_interleave(indptr.diff().long(), output_size=len(indices))
                    for name, (indptr, indices) in self.edges.items()
                ]
            )
            shard.order_E = order_E = row_E.argsort(stable=True)
            weight_E = self._weights()
            degree_n = torch.bincount(row_E, minlength=len(x_nD))
            shard.adjacency = ShardedAdjacency(
                nn.functional.pad(degree_n.cumsum(0), (1, 0)),
                torch.cat([*shard.source_row.values()])[order_E],
                shard.shards,
                shard.peers,
                None if weight_E is None else weight_E[order_E],
            )
        shard.adjacency.edge_feature = None if edge_attr_ED is None else edge_attr_ED[shard.order_E]
        encodings = {name: rows_nk[shard.order_n] for name, rows_nk in self.encodings.items()}
        ids_n = self._unique_ids()[shard.order_n]
        return ShardedGraph(shard.shards, shard.peers, shard.adjacency, ids_n, x_nD, self.root_row, encodings)

    def _weights(self) -> Tensor | None:
        """[E]: weights of the edges of all relations, 1 for relations without weights; None if no relation has weights."""
        if not self.weight:
            return None
        ones = {name: torch.ones(len(ends), device=ends.device) for name, (_, ends) in self.edges.items()}
        return torch.cat([*{**ones, **self.weight}.values()])

    def _unique_ids(self) -> Tensor:
        """int64 [n]: an id for each node of all types, made of the type's index and the node's permanent id. It is the same in every batch."""
        count = len(self.node_id)
        return torch.cat([ids * count + place for place, ids in enumerate(self.node_id.values())])

    def as_plain(self, x_nD: Tensor, edge_attr_ED: Tensor | None = None) -> Graphs | ShardedGraph:
        """Returns all nodes and edges as plain graphs with the given rows as features: one graph, or one graph for each root's subgraph."""
        if self.shard is not None:
            return self._as_sharded(x_nD, self.shard, edge_attr_ED)
        first, device = self.first_row, x_nD.device
        ends = [torch.empty((2, 0), dtype=torch.int64, device=device)]
        for (source, _, target), (indptr, indices) in self.edges.items():
            row_E = torch.repeat_interleave(indptr.diff().long(), output_size=len(indices))
            ends.append(torch.stack([indices.long() + first[source], row_E + first[target]]))
        edge_index, node_id = torch.cat(ends, dim=1), self._unique_ids()
        graphs = partial(Graphs, edge_coefficient=self._weights(), edge_attr=edge_attr_ED)
        if self.subgraph is None:
            degree_n = torch.cat([self._degree_of(name) for name in self.node_id]) if self.degree else None
            node_ptr = torch.tensor([0, len(x_nD)], device=device)
            graphs = partial(graphs, encodings=self.encodings, degree=degree_n, max_nodes=len(x_nD))
            return graphs(node_ptr, edge_index, x_nD, node_id=node_id, root_index=self.root_row)
        subgraph_n = torch.cat(list(self.subgraph.values()))
        order_n = subgraph_n.argsort(stable=True)  # sorts nodes by subgraph, as `Graphs` requires
        place_n = torch.empty_like(order_n).scatter_(0, order_n, torch.arange(len(order_n), device=device))
        size = torch.bincount(subgraph_n, minlength=len(self.root_row))
        return graphs(
            node_ptr=torch.cat([size.new_zeros(1), size.cumsum(0)]),
            edge_index=place_n[edge_index],
            x=x_nD[order_n],
            node_id=node_id[order_n],
            root_index=place_n[self.root_row],
            encodings={name: rows_nk[order_n] for name, rows_nk in self.encodings.items()},
        )


class RelationalConvolution(nn.Module):
    """Computes H W + b + Σ_r mean_r(H) W_r, [n, F] → [n, D]."""

    def __init__(self, in_dim: int, width: int, num_relations: int, num_bases: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_dim, width)
        count = num_bases if 0 < num_bases < num_relations else num_relations
        self.basis_BFD = nn.Parameter(torch.empty(count, in_dim, width).uniform_(-1, 1) / sqrt(in_dim))
        self.share_RB: nn.Parameter | None = None  # None: each relation has its own matrix
        if count < num_relations:
            self.share_RB = nn.Parameter(torch.empty(num_relations, count))
            nn.init.xavier_uniform_(self.share_RB)

    def weights(self) -> Tensor:
        """Returns W_r of every relation, [R, F, D]."""
        return self.basis_BFD if self.share_RB is None else torch.einsum("rb,bfd->rfd", self.share_RB, self.basis_BFD)

    def forward(self, x_nF: Tensor, graphs: TypedGraphs, edge_of: Mapping[Names, Tensor]) -> Tensor:
        """`edge_of`: for each relation whose edges have features, the mean of e U_r at each node of the target type, [n_t, F]."""
        if graphs.shard is not None:
            return self._sharded(x_nF, graphs, graphs.shard, edge_of)
        sizes = list(graphs.num_nodes.values())
        x_of = dict(zip(graphs.num_nodes, x_nF.split(sizes), strict=True))
        y_of = dict(zip(graphs.num_nodes, self.own(x_nF).split(sizes), strict=True))
        for weight_FD, (name, lists) in zip(self.weights(), graphs.lists.items(), strict=True):
            source, _, target = name
            mean_tF = lists.propagate(x_of[source])
            y_of[target] = y_of[target] + (mean_tF + edge_of[name] if name in edge_of else mean_tF) @ weight_FD
        return torch.cat(list(y_of.values()))

    def _sharded(self, x_nF: Tensor, graphs: TypedGraphs, shard: TypedShard, edge_of: Mapping[Names, Tensor]) -> Tensor:
        """Computes this worker's rows after one exchange of rows for all relations; a collective call."""
        x_XF, y_nD = shard.halo.extend(x_nF), self.own(x_nF)
        for weight_FD, (name, lists) in zip(self.weights(), graphs.lists.items(), strict=True):
            mean_tF = lists.propagate(x_XF)
            y_tD = (mean_tF + edge_of[name] if name in edge_of else mean_tF) @ weight_FD
            y_nD = y_nD.index_add(0, shard.row[name[2]], y_tD.to(y_nD.dtype))
        return y_nD


class RelationalLayers(nn.Module):
    """Applies one input layer per type and `num_layers` layers to `TypedGraphs`; see the module's docstring."""

    def __init__(self, config: RelationalConfig) -> None:
        super().__init__()
        self.config = config
        self.input = nn.ModuleDict(
            {f"type {name}": nn.Linear(dim, config.width) for name, dim in config.node_dims.items() if dim}
        )
        bare = [name for name, dim in config.node_dims.items() if not dim]
        self.vector = nn.ParameterDict(
            {f"type {name}": torch.randn(config.width) / sqrt(config.width) for name in bare}
        )
        self.input_dropout, self.dropout = Dropout(config.input_dropout), Dropout(config.dropout)
        self.convolutions = nn.ModuleList(
            RelationalConvolution(config.width, config.width, len(config.relations), config.num_bases)
            for _ in range(config.num_layers)
        )
        self.norms = nn.ModuleList(make_norm(config.norm, config.width) for _ in range(config.num_layers))
        self.edges = nn.ModuleDict(
            {str(place): nn.Linear(dim, config.width, bias=False) for place, dim in enumerate(config.edge_dims) if dim}
        )

    def forward(self, graphs: TypedGraphs, epoch: int = 0) -> Tensor:
        """Returns the states of the nodes of all types, [n, width], one type after another, or in a shard's row order. Raises ValueError if the graph has
        other types. On a graph that is spread over workers, dropout's masks are a function of the seed, the epoch and the row indices."""
        self._check(graphs)
        shard, seed = graphs.shard, self.config.seed
        x_nD = torch.cat([self._input(name, graphs, epoch) for name in self.config.node_dims])
        if shard is not None:
            x_nD = x_nD[shard.order_n]
        means = {name: linear(graphs.lists[name].edge_mean(e_EF)) for name, linear, e_EF in self._edges(graphs)}
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            masks = None if shard is None else shard.masks(seed, epoch, number)
            all_rows = None if shard is None else shard.all_rows
            x_nD = self.dropout(torch.relu(normalise(norm, convolution(x_nD, graphs, means), all_rows)), masks)
        return x_nD

    def edge_rows(self, graphs: TypedGraphs) -> Tensor | None:
        """Returns e U_r of the edges of all relations, [E, width], 0 for relations without features; None if no features are read."""
        if not self.edges:
            return None
        rows_of = {name: linear(e_EF) for name, linear, e_EF in self._edges(graphs)}
        like = next(iter(rows_of.values()))
        missing = {name: like.new_zeros(len(indices), like.shape[1]) for name, (_, indices) in graphs.edges.items()}
        return torch.cat([*{**missing, **rows_of}.values()])

    def _edges(self, graphs: TypedGraphs) -> Iterator[tuple[Names, nn.Linear, Tensor]]:
        """Yields (name, U_r, features) of each relation whose edges have features."""
        for place, linear in self.edges.items():
            assert isinstance(linear, nn.Linear)
            name = self.config.relations[int(place)]
            yield name, linear, graphs.edge_attr[name].to(linear.weight.dtype)

    def _input(self, name: str, graphs: TypedGraphs, epoch: int) -> Tensor:
        key, x = f"type {name}", graphs.x[name]
        if key in self.vector:
            return self.vector[key].expand(graphs.num_nodes[name], -1)
        linear = self.input[key]
        assert isinstance(linear, nn.Linear)
        assert x is not None
        shard, place = graphs.shard, list(self.config.node_dims).index(name)
        masks = None if shard is None else shard.masks(self.config.seed, epoch, len(self.norms) + place, name)
        return linear(self.input_dropout(x.to(linear.weight.dtype), masks))

    def _check(self, graphs: TypedGraphs) -> None:
        dims, edges = self.config.node_dims, tuple(tuple(name) for name in graphs.edges)
        if list(graphs.node_id) != list(dims) or edges != tuple(tuple(name) for name in self.config.relations):
            raise ValueError(
                f"the batch must have the types {', '.join(dims)} and {len(self.config.relations)} relations of the config in their order, got "
                f"{', '.join(graphs.node_id)} and {len(edges)} relations; set node_dims and relations"
            )
        for name, dim in dims.items():
            x = graphs.x[name]
            if dim != (0 if x is None else x.shape[1]):
                got = "none" if x is None else x.shape[1]
                raise ValueError(f"features of {name} must have {dim} columns, got {got}; set node_dims")
        for relation, dim in zip(self.config.relations, self.config.edge_dims, strict=bool(self.config.edge_dims)):
            e_EF = graphs.edge_attr.get(relation)
            if dim and (e_EF is None or e_EF.shape[1] != dim):
                got = "none" if e_EF is None else e_EF.shape[1]
                raise ValueError(
                    f"features of edges of {'--'.join(relation)} must have {dim} columns, got {got}; set edge_dims"
                )


class RSAGE(nn.Module):
    """Is R-SAGE: relational layers and a linear head."""

    def __init__(self, config: RSAGEConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = RelationalLayers(config)
        self.head = nn.Linear(config.width, config.out_dim)

    def forward(self, graphs: TypedGraphs, *, epoch: int = 0) -> Tensor:
        """Returns [r, out_dim], the predictions of the roots."""
        return self.head(self.layers(graphs, epoch)[graphs.root_row])


class OverTypes(nn.Module):
    """Applies relational layers, then a model over `graphmill.models.primitives.graphs.Graphs`, which reads the layers' output as features."""

    def __init__(self, config: RelationalConfig, model: nn.Module) -> None:
        super().__init__()
        self.layers, self.model = RelationalLayers(config), model

    def forward(self, graphs: TypedGraphs, *, epoch: int = 0) -> Tensor:
        """Returns [r, out_dim], the model's predictions of the roots."""
        return self.model(graphs.as_plain(self.layers(graphs, epoch), self.layers.edge_rows(graphs)), epoch=epoch)

    def forward_with_penalty(self, graphs: TypedGraphs, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Returns the predictions, and the penalty if the model has one."""
        model: Any = self.model
        plain = graphs.as_plain(self.layers(graphs, epoch), self.layers.edge_rows(graphs))
        return model.forward_with_penalty(plain, epoch=epoch)
