"""Converts the batches of loaders to the inputs of models. Converts models, which take such inputs, to the modules that the trainer takes.

A minibatch lists the sources of the in-edges of each node. `graphmill.models.primitives.graphs.Graphs` holds edges in two rows, source over destination.
A shard of the whole graph becomes a `graphmill.models.parallel.graph.ShardedGraph`. The forward pass is then a collective call of all ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from graphmill.cluster.tasks import StepOutput
from graphmill.jobs.config.registry import OF_EDGES, Inputs
from graphmill.models.ends.features import FeatureEncoder
from graphmill.models.ends.pair_head import PairHead
from graphmill.models.geco.network import GECO, param_groups
from graphmill.models.geco.options import GECOConfig
from graphmill.models.options.features import Features
from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel.graph import ShardedGraph
from graphmill.models.parallel.halo import ShardedAdjacency
from graphmill.models.parallel.shards import Shards
from graphmill.models.primitives.graphs import Graphs
from graphmill.models.primitives.propagation import Adjacency
from graphmill.models.relational.network import TypedGraphs, TypedShard
from graphmill.samplers.batches.device_copy import tensor_bytes
from graphmill.samplers.batches.minibatch import TorchBatch
from graphmill.samplers.batches.typed_batch import TypedBatch, TypedEdges, node_tables, with_node_tables
from graphmill.storage.format.encoding_names import split_encodings

if TYPE_CHECKING:
    from graphmill.samplers.methods.graph_batches import TorchGraphBatch

Made = TypeVar("Made")


@dataclass(frozen=True, repr=False)
class PlannedShard(TorchBatch):
    """A shard that is used for all steps. The exchange of its rows is planned once."""

    graph: ShardedGraph | None = None

    @property
    def num_bytes(self) -> int:
        return tensor_bytes(self)


@dataclass(frozen=True, repr=False)
class PlannedTypedShard(TypedBatch[Tensor]):
    """A `PlannedShard` for typed graphs."""

    graph: TypedGraphs | None = None


def plan_shard(batch: Any, peers: Peers) -> Any:
    """The ShardedGraph (or TypedGraphs) of this rank's part, without roots. All ranks must call this function together."""
    assert batch.shard is not None
    if isinstance(batch, TypedBatch):
        starts = {
            name: torch.from_numpy(batch.shard.block_starts(name)).to(nodes.node_id.device)
            for name, nodes in batch.nodes.items()
        }
        indices = {relation: edges.indices for relation, edges in batch.edges.items()}
        return _typed_graphs(batch, TypedShard(starts, batch.shard.ends, indices, peers))
    shards = Shards(batch.shard.bounds)
    adjacency = ShardedAdjacency(
        batch.indptr,
        batch.indices,
        shards,
        peers,
        edge_weight=coefficients(batch),
        symmetric=batch.shard.symmetric,
        edge_feature=batch.edge_feature,
    )
    return ShardedGraph(shards, peers, adjacency, batch.node_id, x=batch.x, encodings=batch.encodings)


def shard_graph(batch: Any) -> Any:
    """The batch's planned graph. If the graph is not planned yet, plans it (a collective call)."""
    planned = batch.graph if isinstance(batch, PlannedShard | PlannedTypedShard) else None
    return plan_shard(batch, Peers.of_group()) if planned is None else planned


def node_batch_graphs(batch: TorchBatch) -> Graphs | ShardedGraph:
    """Converts a minibatch to graphs: its subgraphs, or the minibatch as one graph. A shard becomes a ShardedGraph. `root_index` holds the nodes to predict."""
    if batch.shard is not None:
        return replace(shard_graph(batch), x=batch.x, root_index=batch.root_index)
    num_nodes = len(batch.node_id)
    destination = torch.repeat_interleave(
        torch.arange(num_nodes, device=batch.node_id.device), batch.indptr.diff(), output_size=len(batch.indices)
    )
    whole = batch.graph_ptr is None
    graphs = Graphs(
        node_ptr=batch.node_id.new_tensor([0, num_nodes]) if batch.graph_ptr is None else batch.graph_ptr,
        edge_index=torch.stack([batch.indices.long(), destination]),
        edge_attr=batch.edge_feature,
        edge_coefficient=coefficients(batch),
        degree=batch.degree,
        max_nodes=num_nodes if whole else None,
        **_rows(batch),
    )
    return graphs.ascending(batch.indptr)


class KeptEdges(Generic[Made]):
    """Calls `make(batch)`, and keeps the result as long as the batches have the same edges, as all batches of a whole graph do.

    Also keeps the edge lists of the last batch, to compare. `again` puts the rows of another batch into the kept result.
    """

    def __init__(
        self, make: Callable[[TorchBatch], Made], again: Callable[[Made, TorchBatch], Made] | None = None
    ) -> None:
        self._make, self._again = make, again
        self._edges: tuple[Tensor | None, ...] = ()
        self._made: Made | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy of this object starts without a kept result."""
        return {**vars(self), "_edges": (), "_made": None}

    def __call__(self, batch: TorchBatch) -> Made:
        edges = (
            batch.indices,
            batch.indptr,
            batch.graph_ptr,
            coefficients(batch),
            batch.degree,
            batch.edge_feature,
        )
        if not _are_same(edges, self._edges):
            self._edges, self._made = edges, None
            return self._make(batch)
        made = self._made
        if made is None:
            made = self._make(batch)
        elif self._again is not None:
            made = self._again(made, batch)
        self._made = made
        return made


def _are_same(edges: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> bool:
    """Whether all tensors are equal. Compares shapes first, because comparing shapes does not wait for the device."""
    if list(map(_form, edges)) != list(map(_form, others)):
        return False
    return all(
        a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in zip(edges, others, strict=True)
    )


def _form(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


class NodeBatchGraphs:
    """Does the same as `node_batch_graphs`, but makes the edges of a whole graph only once."""

    def __init__(self) -> None:
        self._kept = KeptEdges(node_batch_graphs, _with_rows)

    def __call__(self, batch: TorchBatch) -> Graphs | ShardedGraph:
        return self._kept(batch) if batch.shard is None else node_batch_graphs(batch)


def _with_rows(graphs: Any, batch: TorchBatch) -> Any:
    return graphs.with_rows(**_rows(batch))


def _rows(batch: TorchBatch) -> dict[str, Any]:
    encodings = getattr(batch, "encodings", None) or {}
    return {"x": batch.x, "node_id": batch.node_id, "root_index": batch.root_index, "encodings": encodings}


def typed_batch_graphs(batch: TypedBatch[Tensor]) -> TypedGraphs:
    """Converts a minibatch or shard of a typed graph."""
    if batch.shard is None:
        return _typed_graphs(batch)
    rows = {name: nodes.x for name, nodes in batch.nodes.items()}
    return replace(shard_graph(batch), x=rows, root_index=batch.root_index)


def _typed_graphs(batch: TypedBatch[Tensor], shard: TypedShard | None = None) -> TypedGraphs:
    subgraph = {name: nodes.subgraph for name, nodes in batch.nodes.items() if nodes.subgraph is not None}
    encodings = [nodes.encoding for nodes in batch.nodes.values() if nodes.encoding is not None]
    return TypedGraphs(
        node_id={name: nodes.node_id for name, nodes in batch.nodes.items()},
        x={name: nodes.x for name, nodes in batch.nodes.items()},
        edges={
            relation: (edges.indptr, edges.indices if shard is None else shard.row_E[relation])
            for relation, edges in batch.edges.items()
        },
        shard=shard,
        root_type=batch.root_type,
        root_index=batch.root_index,
        subgraph=subgraph or None,
        edge_attr={name: edges.edge_feature for name, edges in batch.edges.items() if edges.edge_feature is not None},
        encodings=split_encodings(torch.cat(encodings), batch.encoding_names) if encodings else {},
        weight={name: weight for name, edges in batch.edges.items() if (weight := coefficients(edges)) is not None},
        degree={name: edges.degree for name, edges in batch.edges.items() if edges.degree is not None},
        second_type=batch.second_type,
        second_index=batch.second_index,
    )


class ReadColumns(nn.Module):
    """Converts stored feature columns to the columns that a model reads.

    Standardised columns: (x - mean) / deviation in float64, and 0 if the deviation is 0. Means and deviations are buffers and are saved with the weights.
    Embedded columns: each category has a trainable row. The column becomes 0, and the sum of the rows of all categories of a node or edge is appended to its
    features. Row 0 is for empty and unknown categories and starts at 0.
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        for name in dict.fromkeys(name for name, *_ in inputs.standard):
            index, *numbers = zip(*(own[1:] for own in inputs.standard if own[0] == name), strict=True)
            self.register_buffer(_named("columns", name), torch.tensor(index))
            self.register_buffer(_named("numbers", name), torch.tensor(numbers, dtype=torch.float64))
        for name in dict.fromkeys(name for name, *_ in inputs.embedded):
            index, sizes = zip(*((own[1], own[3]) for own in inputs.embedded if own[0] == name), strict=True)
            encoder = FeatureEncoder(Features(categories=sizes), inputs.category_width)
            with torch.no_grad():
                next(encoder.parameters())[encoder.offset] = 0.0
            self.add_module(f"encoder {name}", encoder)
            self.register_buffer(f"categories {name}", torch.tensor(index), persistent=False)

    def rows(self, x_nF: Any, name: str = "") -> Any:
        """`x_nF` as the model reads it. `name`: a type of nodes, "" for nodes without types, a relation, or OF_EDGES for edges without types."""
        if (index := getattr(self, _named("columns", name), None)) is not None:
            x_nF = x_nF.to(torch.promote_types(x_nF.dtype, torch.float32))
            mean_k, deviation_k = getattr(self, _named("numbers", name))
            z_nk = (x_nF[:, index] - mean_k) / deviation_k.where(deviation_k > 0, torch.inf)
            x_nF = x_nF.index_copy(1, index, z_nk.to(x_nF.dtype))
        if (index := getattr(self, f"categories {name}", None)) is not None:
            summed_nW = getattr(self, f"encoder {name}")(x_nF[:, index])
            x_nF = torch.cat([x_nF.index_fill(1, index, 0.0), summed_nW.to(x_nF.dtype)], dim=1)
        return x_nF

    def forward(self, batch: Any) -> Any:
        if hasattr(batch, "node_feature"):  # a TorchGraphBatch; a run on nodes does not load its module
            edge = self.rows(batch.edge_feature, OF_EDGES)
            return replace(batch, node_feature=self.rows(batch.node_feature), edge_feature=edge)
        nodes = {name: replace(own, x=self.rows(own.x, name)) for name, own in node_tables(batch).items()}
        read = with_node_tables(batch, nodes)
        if not isinstance(read, TypedBatch):
            return self._edges(read, OF_EDGES)
        return replace(read, edges={each: self._edges(own, str(each)) for each, own in read.edges.items()})

    def _edges(self, read: Any, name: str) -> Any:
        return read if read.edge_feature is None else replace(read, edge_feature=self.rows(read.edge_feature, name))


def _named(what: str, name: str) -> str:
    """Name of a buffer, with each dot of a relation's name replaced: PyTorch splits names at dots."""
    return f"{what} {name}".replace(".", " ")


def read_columns(model: nn.Module, inputs: Inputs) -> None:
    """Makes every call of the model (training, scores, predictions, shards) read columns through `ReadColumns`."""
    if inputs.standard or inputs.embedded:
        model.standard = ReadColumns(inputs)
        model.register_forward_pre_hook(lambda called, batch: called.standard(*batch))


def baselines_see(inputs: Inputs, choice: str, name: str = "") -> Callable[[Tensor], Tensor] | None:
    """Returns a function that maps rows of features to the rows that baselines read: standardised, and without embedded categories. None: baselines read the
    rows as stored."""
    columns = ReadColumns(inputs).requires_grad_(False)
    see_raw = choice == "no" and not inputs.embedded
    return None if see_raw else lambda x_nF: columns.rows(x_nF, name)[:, : x_nF.shape[1]]


def coefficients(batch: TorchBatch | TypedEdges[Tensor]) -> Tensor | None:
    """Factors of the messages: the sampler's coefficients if it also gives the degrees that divide sums (GraphSAINT does not), otherwise edge weights."""
    return batch.edge_coefficient if batch.degree is not None else batch.edge_weight


def graph_batch_graphs(batch: "TorchGraphBatch") -> Graphs:
    """Converts a batch of whole graphs."""
    return Graphs(
        node_ptr=batch.node_ptr,
        edge_index=batch.edge_index.long(),
        x=batch.node_feature,
        edge_attr=batch.edge_feature,
        encodings=getattr(batch, "encodings", None) or {},
        max_nodes=batch.max_nodes,
        max_edges=batch.max_edges,
    )


class OverGraphs(nn.Module):
    """A model over `Graphs` or `TypedGraphs` as a module for the trainer. Input: a batch. Output: predictions and penalty."""

    def __init__(
        self,
        model: nn.Module,
        to_graphs: Callable[[Any], Graphs | ShardedGraph | TypedGraphs],
        predict: Callable[[nn.Module, Any, int], tuple[Tensor, Tensor | None]] | None = None,
    ) -> None:
        """`predict` calls the model and also returns the model's penalty; see `with_penalty`."""
        super().__init__()
        self.model = model
        self._to_graphs, self._predict = to_graphs, predict or plain

    def forward(self, batch: Any) -> StepOutput:
        return StepOutput(*self._predict(self.model, self._to_graphs(batch), batch.epoch))

    @property
    def head(self) -> nn.Module | None:
        """The layer whose inputs are the states of the predicted nodes or graphs; None: the model ends with states."""
        return getattr(getattr(self.model, "readout", self.model), "head", None)

    def predicted_rows(self, states: Tensor, batch: Any) -> Tensor:
        """Selects all states: the head of these models reads only the states of predicted nodes or graphs."""
        return states


class OverPairs(OverGraphs):
    """A model over `Graphs` that ends with states of nodes, followed by a head that scores the pairs of the batch (`graphmill.models.ends.pair_head`)."""

    def __init__(
        self, model: nn.Module, to_graphs: Callable[[Any], Any], predict: Callable[..., Any], width: int
    ) -> None:
        super().__init__(model, to_graphs, predict)
        self.pairs = PairHead(width)

    def forward(self, batch: Any) -> StepOutput:
        graphs = self._to_graphs(batch)
        states, penalty = self._predict(self.model, graphs, batch.epoch)
        return StepOutput(self.pairs(states, graphs, batch.pairs[:, :2].T), penalty)

    @property
    def head(self) -> None:
        return None


def plain(model: nn.Module, graphs: Graphs | ShardedGraph | TypedGraphs, epoch: int) -> tuple[Tensor, None]:
    """The predictions of a model that has no penalty."""
    return model(graphs, epoch=epoch), None


def with_penalty(model: Any, graphs: Graphs | ShardedGraph | TypedGraphs, epoch: int) -> tuple[Tensor, Tensor | None]:
    """The predictions and, in training, the penalty of the model (Primphormer's KSVD loss)."""
    if not model.training:
        return model(graphs, epoch=epoch), None
    return model.forward_with_penalty(graphs, epoch=epoch)


class GECOClassifier(nn.Module):
    """GECO over the subgraph of a minibatch or over a rank's shard of the whole graph. Permanent ids fix the order of the global convolution."""

    def __init__(self, config: GECOConfig) -> None:
        super().__init__()
        self.model = GECO(config)
        self._filter_learning_rate = config.filter_learning_rate
        self._adjacency = KeptEdges(_adjacency)

    def forward(self, batch: TorchBatch) -> Tensor:
        """Logits [num_roots, num_classes]. With a shard, all ranks must call this together."""
        if batch.shard is None:
            logits = self.model(batch.x, self._adjacency(batch), node_id_N=batch.node_id, epoch=batch.epoch)
        else:
            graph = shard_graph(batch)
            ids, layout = graph.all_node_ids, graph.layout
            logits = self.model(batch.x, graph.adjacency, node_id_N=ids, epoch=batch.epoch, layout=layout)
        return logits[batch.root_index]

    @property
    def head(self) -> nn.Module:
        """The layer whose inputs are the states of all nodes of the batch."""
        return self.model.head

    def predicted_rows(self, states: Tensor, batch: TorchBatch) -> Tensor:
        """The states of the roots [num_roots, width]."""
        return states[batch.root_index]

    def param_groups(self, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
        return param_groups(self, learning_rate, weight_decay, self._filter_learning_rate)


def _adjacency(batch: TorchBatch) -> Adjacency:
    return Adjacency(
        batch.indptr, batch.indices, coefficients(batch), degree=batch.degree, edge_feature=batch.edge_feature
    )
