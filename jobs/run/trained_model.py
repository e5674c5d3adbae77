"""Provides a trained model as an object. If it is called on tensors, PyG's `Data`, Graphmill's batches or a stored graph, it returns the same numbers as
`predict`."""

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from graphmill.cluster.embeddings.embeddings import embedded
from graphmill.cluster.embeddings.rows import SavedTable
from graphmill.cluster.prediction.prediction_columns import two_axes
from graphmill.cluster.prediction.predictor import load_trained
from graphmill.cluster.process.random_state import own_random_state
from graphmill.cluster.tasks import LinkPrediction, PairClassification, Regression, Task, step_output
from graphmill.cluster.training.evaluation import autocast
from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import saved_tree
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.config.registry import Inputs, give_model
from graphmill.jobs.records.run_record import Run, read_run
from graphmill.jobs.resolve.resolve import ResolvedRun, read_resolved
from graphmill.jobs.run.saved_model import at_hand
from graphmill.jobs.subjects.subject import trained_task
from graphmill.jobs.tasks.link_model import LinkModel
from graphmill.jobs.tasks.model_inputs import OverGraphs, OverPairs, graph_batch_graphs
from graphmill.models.primitives.segments import at_least_float32
from graphmill.samplers.access.typed_router import whole_router
from graphmill.samplers.batches.minibatch import MiniBatch, TorchBatch, to_torch
from graphmill.samplers.batches.typed_batch import TypedBatch, TypedEdges, TypedNodes
from graphmill.samplers.methods.graph_batches import PackedBatch, TorchGraphBatch, graphs_to_torch, pack_graphs
from graphmill.samplers.methods.random_partition import RandomPartitionOptions, RandomPartitionSampler
from graphmill.samplers.methods.registry import load
from graphmill.storage.encoding.spectral import laplacian_modes, symmetric_adjacency
from graphmill.storage.encoding.walk_returns import return_probabilities
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.format.source import Relation
from graphmill.storage.graph import StoredGraph, TypedGraph
from graphmill.storage.graph_sets.graph_set import StoredGraphs, open_graphs

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_READING_S = 30.0  # longest wait for another thread that reads a model at the same time
_COLUMNS = ("edge_attr", "edge_weight", "batch", "node_id", "encodings")


class TrainedModel(nn.Module):
    """A model with the best weights of a run, in evaluation mode. `network` is the trainer's module, which takes our batches.

        model = run.model()
        rows = model(x, edge_index)

    The arguments of a call:

        x               [n, F], features as the run's graph stores them (the model standardises and embeds columns itself). In place of x: a PyG `Data`, `Batch`
                        or `HeteroData`, one of our batches, a stored graph or set, or the path or URL of a stored graph or set
        edge_index      int64 [2, E], row 0 sources, row 1 destinations; every edge as the run's graph stores it (an undirected edge in both directions)
        edge_attr       [E, F'], if the run reads edge features
        edge_weight     [E], if the edges of the run have weights
        batch           int64 [n], ascending: graph index of each node, for a run on many graphs; none: one graph
        node_id         int64 [n], permanent ids, which determine GECO's order of nodes and the rows of trained embeddings; none: 0, 1, …
        encodings       rows [n, k] by the name of a stored encoding; none: computed from the edges

    For a typed graph each argument is a dictionary, as in PyG. The keys of node arguments are types; the keys of edge arguments are (source type, name, target
    type) or "source--name--target".

    A call returns a row for each node, or for each graph: logits of classes and labels; for numeric targets, values in the targets' own units, float64. For a
    run on links it returns the states that the decoder compares. With `pairs` int64 [2, m], two row indices for each pair, it returns the scores of these pairs
    (a knowledge graph also needs `relation` int64 [m]). For a stored graph the result equals the numbers of `predict`. For other arguments, it equals them up
    to rounding if the run is scored on the full graph in one chunk, like most runs. If the run is scored on sampled subgraphs (GRIT and PPGT on nodes), tensors
    count as one graph; call the model on a batch of its sampler to get the numbers of `predict`.
    """

    def __init__(
        self,
        network: nn.Module,
        inputs: Inputs,
        task: Task | None,
        run: Run | None = None,
        trained: ResolvedRun | None = None,
    ) -> None:
        super().__init__()
        self.network, self.inputs, self.task, self.run, self.trained = network.eval(), inputs, task, run, trained
        self._sizes: tuple[int, int, int] | None = (
            None  # for an export: number of graphs, and numbers of nodes and edges of the largest graph
        )
        self.eval()

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.parameters())
        return f"TrainedModel({type(self.network).__name__} of {self.run or 'a converted checkpoint'}: {count:,} parameters)"

    def forward(self, x: Any, edge_index: Any = None, *, pairs: Tensor | None = None, **columns: Any) -> Tensor:
        """The class docstring describes arguments and result. Raises ConfigError if an argument does not fit the run."""
        if is_stored(x):
            return self._in_units(self._predict_stored(x))
        batch = self.batch(x, edge_index, **columns)
        device = next((tensor.device for tensor in self.network.state_dict().values()), torch.device("cpu"))
        with autocast(device, "float32" if self.trained is None else self.trained.fit.precision):
            is_of_pairs = isinstance(self.network, OverPairs)
            if pairs is not None and is_of_pairs:
                batch = replace(batch, pairs=pairs.T)
            elif pairs is not None and not isinstance(self.network, LinkModel):
                raise ConfigError("pairs: expected a run on links or pairs, got another; leave them out")
            if is_of_pairs and batch.pairs is None:
                raise ConfigError("pairs: expected the pairs of nodes that are to be scored, got none; give them")
            if not isinstance(self.network, LinkModel):
                rows = step_output(self.network(batch)).prediction
                return rows[:, 0] if is_of_pairs else self._in_units(rows)
            states = self.network.head(at_least_float32(step_output(self.network.encoder(batch)).prediction))
            if pairs is None:
                return states
            return self.network.decoder(states[pairs[0]], states[pairs[1]], columns.get("relation"))

    def embeddings(self, x: Any, edge_index: Any = None, **columns: Any) -> Tensor:
        """The rows [n, D] that the model's head reads. Takes the arguments of a call."""
        if is_stored(x):
            return self._predict_stored(x, embeddings=True)
        head = getattr(self.network, "head", None)
        if head is None:
            raise ConfigError("embeddings: expected a model with a head, got one without; call it, it returns states")
        inputs_of_head: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, inputs: inputs_of_head.append(inputs[0]))
        try:
            self(x, edge_index, **columns)
        finally:
            handle.remove()
        return inputs_of_head[0]

    def attention(self, x: Any, edge_index: Any = None, **columns: Any) -> list[Tensor]:
        """The attention weights of each layer, [graphs, heads, queries, keys]. Takes the arguments of a call; a stored graph is computed as one batch.

        Queries and keys are a graph's nodes. In TokenGT they are its special tokens, its nodes, and its edges ordered by source. The weights of a row add up to
        1; in PPGT they are multiplied by φ. Memory grows with the square of the number of nodes: use small graphs. Raises ConfigError if the model has no
        attention.
        """
        layers: list[Any] = [module for module in self.network.modules() if hasattr(module, "kept_weights")]
        if not layers:
            raise ConfigError(
                'attention: expected a model with weights for pairs of nodes (tokengt, grit, ppgt, gat, primphormer with model={"attention": "softmax"}), got '
                f"{type(self.network).__name__ if self.trained is None else self.trained.config.model.name}"
            )
        for layer in layers:
            layer.kept_weights = []
        try:
            self(self._whole(x) if is_stored(x) else x, edge_index, **columns)
            return [weights for layer in layers for weights in layer.kept_weights]
        finally:
            for layer in layers:
                layer.kept_weights = None

    def export(self, x: Any, edge_index: Any = None, **columns: Any) -> "ExportedProgram":
        """`torch.export` of a call on these tensors. The exported program takes the same arguments, with tensors of the same sizes.

        The numbers of nodes, edges and graphs must be the same, and no graph may be larger than the largest graph here. In the program's arguments,
        dictionaries by relation have the keys "source--name--target", because saved programs allow no tuples as keys. If the run reads stored encodings, the
        program also takes `encodings`, in the form of `model.batch(x, edge_index).encodings`. Raises ConfigError for a run with trained embeddings.
        """
        x, edge_index, columns = self._tensors(x, edge_index, columns)
        if self._table_width:
            raise ConfigError(
                'export: expected a run without embeddings={"width": …}, got one with it; export another run'
            )
        batch = self.batch(x, edge_index, **columns)  # checks the values now, because a trace cannot read them
        fixed = copy.deepcopy(self)
        if isinstance(batch, PackedBatch):
            nodes, edges = batch.node_ptr.diff(), batch.edge_ptr.diff()
            fixed._sizes = batch.num_graphs, int(nodes.max()), int(edges.max())
        elif isinstance(batch, TypedBatch):
            edge_index = _by_name(edge_index)
            columns |= {name: _by_name(columns[name]) for name in ("edge_attr", "edge_weight") if columns.get(name)}
        else:
            fixed._sizes = 1, batch.num_nodes, batch.num_edges
            if batch.encoding is not None:
                columns["encodings"] = batch.encodings
        with torch.no_grad():
            return torch.export.export(fixed, (x, edge_index), columns, strict=False)

    @property
    def _table_width(self) -> int:
        return 0 if self.trained is None else self.trained.config.embeddings.width

    @property
    def _encoding(self) -> EncodingOptions | None:
        return None if self.trained is None else self.trained.encoding

    def _in_units(self, rows: Tensor) -> Tensor:
        if isinstance(self.task, Regression):
            scale, mean = (rows.new_tensor(values, dtype=torch.float64) for values in (self.task.scale, self.task.mean))
            return two_axes(rows).double() * scale + mean
        return rows

    def _predict_stored(self, data: Any, *, embeddings: bool = False) -> Tensor:
        if self.run is None:
            raise ConfigError(
                "a stored set: expected a run, got a converted checkpoint; `graphmill evaluate` scores it"
            )
        if isinstance(self.task, LinkPrediction | PairClassification) and not embeddings:
            raise ConfigError(
                "a stored graph: expected tensors and pairs of a run on links or pairs; or take `predict`"
            )
        url = str(getattr(data, "url", data))
        config = PredictConfig(self.run.path, "", graph=url, other_graph=True, embeddings=embeddings)
        rows: Tensor = load("graphmill.jobs.predict:rows")(config)[1]
        return rows

    def _whole(self, data: Any) -> Any:
        """The whole stored graph or set as one batch."""
        if isinstance(data, str | Path):
            data = (
                load("graphmill.storage.graph:open_graph")(str(data)) if self._is_one_graph else open_graphs(str(data))
            )
        if isinstance(data, StoredGraphs):
            return self.graphs(data, np.arange(len(data)))
        encodings = () if self._encoding is None else (self._encoding.name,)
        columns = () if self.trained is None else self.trained.edge_columns
        node_type = None if self.trained is None else self.trained.config.node_type
        options = RandomPartitionOptions(
            num_chunks=1, root_splits=None, encodings=encodings, edge_columns=columns, root_type=node_type
        )
        return RandomPartitionSampler(whole_router(data), options).sample(0, 0)

    @staticmethod
    def graphs(stored: StoredGraphs, numbers: np.ndarray) -> TorchGraphBatch:
        """The graphs of a stored set as one batch."""
        return graphs_to_torch(pack_graphs(0, 0, numbers, stored.fetch(numbers)))

    @property
    def _is_one_graph(self) -> bool:
        return self.trained is not None and self.trained.kind.is_one_graph

    @staticmethod
    def _tensors(x: Any, edge_index: Any, columns: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """The tensors and columns of a PyG object. Other arguments are returned unchanged."""
        if edge_index is not None or not (hasattr(x, "edge_index") or hasattr(x, "edge_index_dict")):
            return x, edge_index, columns
        ending = "_dict" if hasattr(x, "edge_index_dict") else ""
        held = {}
        for name in ("edge_attr", "edge_weight", "batch"):
            with suppress(KeyError):  # raised by a HeteroData that has no such attribute
                if (value := getattr(x, name + ending, None)) is not None:
                    held[name] = value
        return getattr(x, f"x{ending}"), getattr(x, f"edge_index{ending}"), held | columns

    def batch(self, x: Any, edge_index: Any = None, **columns: Any) -> Any:
        """Builds the input of `network` from the arguments of a call. Raises ConfigError if they do not fit the run; the model itself makes no such checks
        on a device."""
        if isinstance(x, TorchBatch | PackedBatch | TypedBatch | MiniBatch):
            if isinstance(x, MiniBatch):
                return to_torch(x)
            return graphs_to_torch(x) if isinstance(x, PackedBatch) and isinstance(x.node_ptr, np.ndarray) else x
        is_data = edge_index is None
        x, edge_index, columns = self._tensors(x, edge_index, columns)
        if not isinstance(x, Mapping) and not (isinstance(x, Tensor) and isinstance(edge_index, Tensor)):
            raise ConfigError(
                f"expected tensors x and edge_index, a PyG object, a batch or a stored graph, got {type(x).__name__} and "
                f"{type(edge_index).__name__}; write torch.tensor(x) and torch.tensor(edge_index)"
            )
        reads = {
            "edge_attr": not self.inputs.edge.empty,
            "edge_weight": self.inputs.edge_weight,
            "batch": not self._is_one_graph,
        }
        if is_data:  # a batch or a stored graph may hold columns that the model does not read
            columns = {name: value for name, value in columns.items() if reads.get(name, True)}
        if unknown := columns.keys() - {*_COLUMNS, "relation"}:
            raise ConfigError(f"{min(unknown)}: expected one of {', '.join(_COLUMNS)}, got another; leave it out")
        for name in ("edge_attr", "edge_weight"):
            if reads[name] != (columns.get(name) is not None):
                said = "none: give it" if reads[name] else "some: leave it out"
                raise ConfigError(
                    f"{name}: expected {'some' if reads[name] else 'none'}, as the run's data has, got {said}"
                )
        if columns.get("batch") is not None and not reads["batch"]:
            raise ConfigError("batch: expected a run on many graphs, got one on the nodes of one graph; leave it out")
        if isinstance(x, Mapping):
            return self._with_table(self._typed_batch(x, edge_index, columns), columns)
        if self._sizes is None:
            self._check(x, edge_index, columns)
        if not self._is_one_graph:
            return self._graph_batch(x, edge_index, columns)
        return self._with_table(self._node_batch(x, edge_index, columns), columns)

    def _with_table(self, batch: Any, columns: Mapping[str, Any]) -> Any:
        """The batch with the rows of the run's trained embeddings. Unchanged if the run has no trained embeddings."""
        if not self._table_width:
            return batch
        if columns.get("node_id") is None:
            raise ConfigError(
                "node_id: expected ids of the run's nodes, whose embeddings it has trained, got none; give them"
            )
        assert self.run is not None
        assert self.trained is not None
        types = self.trained.config.embeddings.node_types
        table = SavedTable(self.run.best_folder, self._table_width, self.trained.fit.seed, node_types=types)
        return next(embedded([batch], table.read, types))

    def _check(self, x: Tensor, edge_index: Tensor, columns: Mapping[str, Any]) -> None:
        node = self.inputs.node
        width = len(node.categories) or node.dim - self._table_width - self.inputs.category_width
        if x.dim() != 2 or x.shape[1] != width:
            raise ConfigError(
                f"x: expected [n, {width}], the features that the run was trained on, got {list(x.shape)}"
            )
        if edge_index.dim() != 2 or len(edge_index) != 2 or edge_index.is_floating_point():
            raise ConfigError(
                f"edge_index: expected whole numbers [2, E], got {edge_index.dtype} {list(edge_index.shape)}"
            )
        if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < len(x):
            raise ConfigError(f"edge_index: expected rows of x, 0 to {len(x) - 1}, got others")
        for name, value in columns.items():
            rows = edge_index.shape[1] if name in ("edge_attr", "edge_weight") else len(x)
            if name in _COLUMNS[:4] and value is not None and len(value) != rows:
                raise ConfigError(f"{name}: expected {rows} rows, got {len(value)}")
        graph = columns.get("batch")
        if graph is not None and len(graph) and (int(graph[0]) < 0 or bool((graph.diff() < 0).any())):
            raise ConfigError(
                "batch: expected the graphs of the nodes, ascending from 0, got others; sort the nodes by graph"
            )

    def _node_batch(self, x: Tensor, edge_index: Tensor, columns: Mapping[str, Any]) -> TorchBatch:
        num_nodes = len(x)
        source, destination = edge_index.long()
        order = torch.argsort(destination * num_nodes + source, stable=True)  # stored graphs have the same order

        def by_edge(rows: Tensor | None) -> Tensor | None:
            return None if rows is None else rows[order]

        node_id, encodings = columns.get("node_id"), columns.get("encodings")
        if self._encoding is not None and encodings is None:
            encodings = {self._encoding.name: _encode(self._encoding, source, destination, num_nodes)}
        nodes = torch.arange(num_nodes, device=x.device)
        return TorchBatch(
            epoch=0,
            index=0,
            node_id=nodes if node_id is None else node_id,
            indptr=_starts(destination[order], num_nodes),
            indices=source[order].int(),
            root_index=nodes,
            x=x.float(),
            edge_weight=by_edge(columns.get("edge_weight")),
            edge_feature=by_edge(columns.get("edge_attr")),
            encoding=None if not encodings else torch.cat([rows.to(x.device) for rows in encodings.values()], dim=1),
            encoding_names=tuple(encodings or ()),
        )

    def _graph_batch(self, x: Tensor, edge_index: Tensor, columns: Mapping[str, Any]) -> TorchGraphBatch:
        graph_n = columns.get("batch")
        graph_n = torch.zeros(len(x), dtype=torch.int64, device=x.device) if graph_n is None else graph_n
        num_graphs, most_nodes, most_edges = self._sizes or (int(graph_n[-1]) + 1 if len(graph_n) else 1, None, None)
        graph_E = graph_n[edge_index[0].long()]
        order = torch.argsort(graph_E, stable=True)
        edge_attr = columns.get("edge_attr")
        return TorchGraphBatch(
            epoch=0,
            index=0,
            graph_id=torch.arange(num_graphs, device=x.device),
            node_ptr=_starts(graph_n, num_graphs),
            edge_ptr=_starts(graph_E[order], num_graphs),
            edge_index=edge_index[:, order].int(),
            node_feature=x.float() if x.is_floating_point() else x,
            edge_feature=None if edge_attr is None else edge_attr[order],
            max_nodes=most_nodes,
            max_edges=most_edges,
        )

    def _typed_batch(
        self, x: Mapping[str, Tensor], edge_index: Mapping[Any, Tensor], columns: Mapping[str, Any]
    ) -> TypedBatch[Tensor]:
        if self.trained is None or not self.trained.is_typed:
            raise ConfigError("x: expected a tensor, got one for each type of nodes; the run is on a plain graph")
        if self._encoding is not None:
            raise ConfigError(
                f"x: expected a stored graph or a batch, which have the encoding {self._encoding.name}, got tensors"
            )
        dims, relations = dict(self.inputs.node_dims), list(map(Relation._make, self.inputs.relations))
        edge_index = _by_relation(edge_index)
        lacking = sorted(dims.keys() - x.keys()) or sorted(map(str, set(relations) - edge_index.keys()))
        if lacking:
            raise ConfigError(
                f"x, edge_index: expected every type and relation of the run's graph, got none of {lacking[0]}"
            )
        node_id = columns.get("node_id") or {}
        edge_attr, edge_weight = (_by_relation(columns.get(name) or {}) for name in ("edge_attr", "edge_weight"))
        nodes = {
            name: TypedNodes(
                node_id=node_id.get(name, torch.arange(len(rows), device=rows.device)),
                hop=torch.zeros(len(rows), dtype=torch.int16, device=rows.device),
                x=rows.float() if rows.dim() == 2 and rows.shape[1] else None,
            )
            for name, rows in ((name, x[name]) for name in dims)
        }
        edges: dict[Relation, TypedEdges[Tensor]] = {}
        for relation in relations:
            source, destination = edge_index[relation].long()
            order = torch.argsort(destination * max(len(nodes[relation.source]), 1) + source, stable=True)
            attr, weight = edge_attr.get(relation), edge_weight.get(relation)
            edges[relation] = TypedEdges(
                indptr=_starts(destination[order], len(nodes[relation.target])),
                indices=source[order].int(),
                edge_weight=None if weight is None else weight[order],
                edge_feature=None if attr is None else attr[order],
            )
        root_type = str(self.trained.config.node_type)
        roots = torch.arange(len(nodes[root_type]), device=x[root_type].device)
        return TypedBatch(0, 0, 1, root_type, roots, nodes, edges)


def _by_relation(tensors: Mapping[Any, Tensor]) -> dict[Relation, Tensor]:
    return {Relation.of(relation): tensor for relation, tensor in tensors.items()}


def _by_name(tensors: Mapping[Any, Tensor]) -> dict[str, Tensor]:
    return {str(relation): tensor for relation, tensor in _by_relation(tensors).items()}


def _starts(sorted_E: Tensor, count: int) -> Tensor:
    """int64 [count + 1]: for each number below `count`, the position of its first entry in `sorted_E`; the last element is the total length."""
    return torch.searchsorted(sorted_E.contiguous(), torch.arange(count + 1, device=sorted_E.device))


def _encode(options: EncodingOptions, source: Tensor, destination: Tensor, num_nodes: int) -> Tensor:
    """The rows that `graphmill encode` would store for such a graph."""
    ends = source.cpu().numpy(), destination.cpu().numpy()
    if options.kind == "laplacian":
        adjacency = symmetric_adjacency(*ends, num_nodes)
        return torch.from_numpy(laplacian_modes(adjacency, options.dim, options.which)[0].astype(np.float32))
    return torch.from_numpy(return_probabilities(*ends, num_nodes, options.dim))


def is_stored(data: Any) -> bool:
    """Whether the data is a stored graph or set, or its path or URL."""
    return isinstance(data, str | Path | StoredGraph | TypedGraph | StoredGraphs)


def trained_model(run: Run, *, allow_import: bool = False) -> TrainedModel:
    """The model of a finished run or of a saved model. Raises FormatError for damaged files, ConfigError if the run names code whose import is not allowed."""
    tree = saved_tree(str(run.path), "give a finished run's directory", allow_import=allow_import)
    trained = read_resolved(tree)
    with own_random_state("reading a model", wait_s=_READING_S):
        network = load_trained(trained.build_model, run.weights, trained.fit.seed)
    task = trained_task(run, trained) if trained.config.links is None else None
    return TrainedModel(network, trained.inputs, task, run, trained)


def load_model(path: str | Path, *, model: Any = None, allow_import: bool = False) -> TrainedModel:
    """Loads the model of a finished run, or a model that `Run.save_model` or `graphmill convert_checkpoint` wrote. The argument is a folder, a URL, or
    `hf://owner/name` of the Hugging Face Hub.

    `model`: an object of the model's class, if the run's model was given as an object in another process. Raises FormatError if the folder holds no model or a
    damaged model.
    """
    place = at_hand(path)
    give_model(place, model)
    run = read_run(place)
    if "from" not in run.config:
        return trained_model(read_run(place, finished=True), allow_import=allow_import)
    from graphmill.jobs.convert_checkpoint import load_converted

    network: Any = load_converted(Path(place))
    config = network.config
    inputs = Inputs(node=config.node, edge=config.edge, out_dim=config.out_dim, task=config.task)
    return TrainedModel(OverGraphs(network, graph_batch_graphs), inputs, None)
