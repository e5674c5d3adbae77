"""Batches as PyG `Data` or `HeteroData`, and a stored graph behind PyG's `FeatureStore` and `GraphStore`. Needs torch-geometric (extra: pyg).

PyG's node indices are the stored ids of the graph; `original_id` is a column of the nodes. Written against torch-geometric 2.8.
"""

import warnings
from typing import Any, overload

import numpy as np
import torch

from graphmill.core.errors import ConfigError, MissingDependencyError
from graphmill.samplers.access.router import Router
from graphmill.samplers.batches.minibatch import TorchBatch, as_tensor
from graphmill.samplers.batches.typed_batch import TypedBatch
from graphmill.storage.format.encoding_names import split_encodings
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph import StoredGraph

try:
    from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr
    from torch_geometric.data.graph_store import EdgeLayout
except ImportError as error:
    raise MissingDependencyError(
        f"graphmill.samplers.batches.to_pyg needs torch-geometric ({error}); pip install -e '.[pyg]'"
    ) from error

NODE_TYPE = "node"
EDGE_TYPE = (NODE_TYPE, "to", NODE_TYPE)
MASKS = {"train_mask": SPLIT_TRAIN, "val_mask": SPLIT_VALID, "test_mask": SPLIT_TEST}


@overload
def to_pyg(batch: TorchBatch) -> Data: ...


@overload
def to_pyg(batch: TypedBatch[torch.Tensor]) -> HeteroData: ...


def to_pyg(batch: TorchBatch | TypedBatch[torch.Tensor]) -> Data | HeteroData:
    """Converts a batch into the form that PyG's loaders return: a TorchBatch into `Data`, a typed batch into `HeteroData`."""
    return _hetero_data(batch) if isinstance(batch, TypedBatch) else _data(batch)


def _data(batch: TorchBatch) -> Data:
    """A batch of a plain graph. It has x, edge_index, y, n_id (permanent ids), and the batch's other columns under their own names.

    Tensors are shared with the batch, except `edge_index` (int64 [2, e], sources and destinations). `root_index` has the positions of the roots. `batch_size`
    is the number of roots; it is set if the roots come first, as in the neighbor sampler's batches. A batch of packed subgraphs also has `batch` and `ptr`.
    Columns of edges are `e_id` and `edge_attr`. Stored encodings have their own names (`data["rwse-20"]`).
    """
    destination = torch.repeat_interleave(batch.indptr.diff(), output_size=len(batch.indices))
    data = Data(
        x=batch.x,
        edge_index=torch.stack([batch.indices.long(), destination]),
        y=batch.y,
        n_id=batch.node_id,
        root_index=batch.root_index,
    )
    data.num_nodes = len(batch.node_id)
    if torch.equal(batch.root_index, torch.arange(len(batch.root_index), device=batch.root_index.device)):
        data.batch_size = len(batch.root_index)
    if batch.graph_ptr is not None:
        data.ptr = batch.graph_ptr
        data.batch = torch.repeat_interleave(batch.graph_ptr.diff(), output_size=len(batch.node_id))
    _put(data, e_id=batch.edge_id, edge_weight=batch.edge_weight, edge_time=batch.edge_time, root_time=batch.root_time)
    _put(data, edge_attr=batch.edge_feature, split=batch.split, hop=batch.hop, score=batch.score)
    _put(data, loss_weight=batch.loss_weight, edge_coefficient=batch.edge_coefficient, degree=batch.degree)
    _put(data, **batch.encodings)
    return data


def _put(store: Any, **columns: torch.Tensor | None) -> None:
    """Sets the columns that a batch has."""
    for name, column in columns.items():
        if column is not None:
            store[name] = column


def _hetero_data(batch: TypedBatch[torch.Tensor]) -> HeteroData:
    """A typed batch, for heterogeneous models and `trim_to_layer`. It has all types and relations of the graph. Tensors other than edge_index are shared.

    `data[type]` has x, y, n_id (permanent ids), hop, split, root_time, loss_weight, stored encodings by their names, and `num_sampled_nodes` by hop.
    `data[source, relation, target]` has edge_index [2, e], e_id, edge_weight, edge_attr, edge_time, edge_coefficient, degree (of target nodes) and
    `num_sampled_edges` by hop. The type of the roots has `root_index` and, if the roots come first (not in a chunk), `batch_size`. A batch of one subgraph per
    root has `batch`, like PyG's `disjoint=True`, and no counts by hop; for PPR it also has `score`.
    """
    data = HeteroData()
    # In subgraphs and chunks an edge may join nodes of any two hops.
    by_hop = batch.roots.subgraph is None and batch.num_hops > 0
    for name, nodes in batch.nodes.items():
        _put(data[name], x=nodes.x, y=nodes.y, n_id=nodes.node_id, split=nodes.split, hop=nodes.hop)
        _put(data[name], batch=nodes.subgraph, score=nodes.score, root_time=nodes.root_time)
        _put(data[name], loss_weight=nodes.loss_weight)
        if nodes.encoding is not None:
            _put(data[name], **split_encodings(nodes.encoding, batch.encoding_names))
        data[name].num_nodes = len(nodes)
        if by_hop:
            data[name].num_sampled_nodes = batch.layer_sizes(name)
    if torch.equal(batch.root_index.cpu(), torch.arange(batch.num_roots)):  # false in a chunk
        data[batch.root_type].batch_size = batch.num_roots
    data[batch.root_type].root_index = batch.root_index
    for relation, edges in batch.edges.items():
        target = torch.repeat_interleave(edges.indptr.diff(), output_size=len(edges))
        store = data[tuple(relation)]
        store.edge_index = torch.stack([edges.indices.long(), target])
        _put(store, e_id=edges.edge_id, edge_weight=edges.edge_weight, edge_attr=edges.edge_feature)
        _put(store, edge_time=edges.edge_time, edge_coefficient=edges.edge_coefficient, degree=edges.degree)
        if not by_hop:
            continue
        within = torch.tensor([0, *batch.layer_sizes(relation.target)[:-1]]).cumsum(0)  # nodes that are expanded
        store.num_sampled_edges = edges.indptr.cpu()[within].diff().tolist()
    return data


class RouterFeatureStore(FeatureStore):
    """PyG's `FeatureStore` over a router. It has the node columns `x`, `y`, `original_id`, and the masks of one split set.

    Read-only. Rows are fetched when they are read, with one request per owner. The index None fetches all rows.
    """

    def __init__(self, router: Router, split_set: int = 0) -> None:
        super().__init__()
        manifest = router.manifest
        self.__dict__["_router"], self.__dict__["_split_set"] = router, split_set
        columns = ["original_id"]
        columns += ["x"] if manifest.feature_dim else []
        columns += ["y"] if manifest.label_kind else []
        columns += list(MASKS) if split_set < manifest.num_split_sets else []
        self.__dict__["_columns"] = columns

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(NODE_TYPE, name) for name in self._columns]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        if attr.group_name != NODE_TYPE or attr.attr_name not in self._columns:
            return None
        manifest = self._router.manifest
        widths = {"x": manifest.feature_dim}
        if manifest.label_kind in ("answers", "values"):
            widths["y"] = manifest.num_classes or 0
        return (manifest.num_nodes, *(widths[name] for name in [attr.attr_name] if name in widths))

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor | None:
        if attr.group_name != NODE_TYPE or attr.attr_name not in self._columns:
            return None
        name, node = attr.attr_name, _as_nodes(attr.index, self._router.manifest.num_nodes)
        split_set = self._split_set if name in MASKS else None
        rows = self._router.fetch(node, feature=name == "x", split_set=split_set)
        column = {"x": rows.feature, "y": rows.label, "original_id": rows.original_id}.get(name)
        if name in MASKS:
            assert rows.split is not None
            column = rows.split == MASKS[name]
        assert column is not None
        return as_tensor(column)

    def _put_tensor(self, tensor: object, attr: TensorAttr) -> bool:
        return False  # a stored graph is read-only

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return False


class StoredGraphStore(GraphStore):
    """PyG's `GraphStore` for its NeighborLoader. Holds the topology of the whole graph in this process, as one CSC.

    If the graph has one partition and int32 indices, and `index_dtype` is torch.int32, the tensors are views of the mapped files; do not write to them. PyG's
    own samplers require int64, which takes 8 bytes per edge.
    """

    def __init__(self, graph: StoredGraph, index_dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        self.__dict__["_graph"], self.__dict__["_index_dtype"] = graph, index_dtype

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        size = (self._graph.manifest.num_nodes,) * 2
        return [EdgeAttr(EDGE_TYPE, EdgeLayout.CSC, is_sorted=True, size=size)]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        if edge_attr.edge_type != EDGE_TYPE or edge_attr.layout != EdgeLayout.CSC:
            return None
        partitions = list(self._graph.partitions())
        if len(partitions) == 1:
            indices, indptr = partitions[0].indices, partitions[0].indptr
        else:
            indices = np.concatenate([partition.indices for partition in partitions])
            degrees = np.concatenate([np.diff(partition.indptr) for partition in partitions])
            indptr = np.concatenate([[0], np.cumsum(degrees)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(indices).to(self._index_dtype), torch.from_numpy(indptr)

    def _put_edge_index(self, edge_index: object, edge_attr: EdgeAttr) -> bool:
        return False

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        return False


def pyg_stores(graph: StoredGraph, router: Router, split_set: int = 0) -> tuple[RouterFeatureStore, StoredGraphStore]:
    """Returns the argument `data` for PyG's `NeighborLoader`. Its `input_nodes` must then be ("node", ids). PyG's loader needs torch-sparse or pyg-lib."""
    if graph.manifest.content_hash != router.manifest.content_hash:
        raise ConfigError("pyg_stores: expected a graph and a router of the same graph, got two graphs")
    return RouterFeatureStore(router, split_set), StoredGraphStore(graph)


def _as_nodes(index: object, num_nodes: int) -> np.ndarray:
    """Converts the index of a TensorAttr into node ids."""
    if isinstance(index, torch.Tensor | np.ndarray):
        node = np.asarray(index)
        return np.flatnonzero(node) if node.dtype == bool else node.astype(np.int64, copy=False)
    if isinstance(index, slice):
        return np.arange(num_nodes)[index]
    return np.arange(num_nodes) if index is None else np.array([int(index)])  # type: ignore[call-overload]
