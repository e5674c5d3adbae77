"""A minibatch, as numpy arrays (a sampler's result) or as torch tensors over the same memory (the last stage)."""

from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from graphmill.core.summaries import describe
from graphmill.samplers.batches.device_copy import map_tensors
from graphmill.storage.format.encoding_names import split_encodings

Array = TypeVar("Array", np.ndarray, torch.Tensor)


@dataclass(frozen=True)
class ShardOf:
    """Sizes of the whole graph, for a batch that is one rank's shard of the graph."""

    bounds: tuple[int, ...]  # rank r has the stored nodes [bounds[r], bounds[r + 1])
    symmetric: bool  # the graph has the reverse of every edge


@dataclass(frozen=True, repr=False)
class Subgraph(Generic[Array]):
    """The columns of a minibatch that have the same names as numpy arrays and as tensors.

    Row i of (indptr, indices) lists the nodes that send messages to node i: the sources of its in-edges, or its neighbors in the direction of the sampler.
    In a shard `indices` are stored ids of the whole graph, in the graph's integer type.
    """

    epoch: int
    index: int  # index of the batch in its epoch, counted over all ranks
    node_id: Array  # int64 [n], permanent ids
    indptr: Array  # int64 [n + 1]: in-edges of node i are indices[indptr[i]:indptr[i + 1]]
    indices: Array  # int32 [e], positions of the sources in node_id
    root_index: Array  # int64 [r], positions of the roots in node_id
    split: Array | None = None  # int8 [n]
    graph_ptr: Array | None = None  # int64 [g + 1]: subgraph i is the nodes [graph_ptr[i], graph_ptr[i + 1])
    hop: Array | None = None  # int16 [n]: distance to the subgraph's root, or number of the hop that found the node
    score: Array | None = None  # float32 [n]: closeness to the subgraph's root
    loss_weight: Array | None = None  # float32 [n]: weight of the node's loss, if it is a root
    edge_coefficient: Array | None = None  # float32 [e], weight of a message
    degree: Array | None = None  # int64 [n]: in-degree in the whole graph; weighted sums estimate sums over these edges
    edge_id: Array | None = None  # int64 [e], permanent ids
    edge_weight: Array | None = None  # float32 [e]
    edge_time: Array | None = None  # int64 [e]
    root_time: Array | None = None  # int64 [n]: time of the root whose search found the node
    edge_feature: Array | None = None  # float32 [e, edge_feature_dim]
    encoding: Array | None = None  # float32 [n, sum of dims]: the requested encodings, concatenated
    encoding_names: tuple[str, ...] = ()
    shard: ShardOf | None = None

    def __repr__(self) -> str:
        return describe(self)

    @property
    def encodings(self) -> dict[str, Array]:
        """For each requested encoding by name, its columns: float32 [n, dim], a view of `encoding`."""
        return {} if self.encoding is None else split_encodings(self.encoding, self.encoding_names)

    @property
    def num_nodes(self) -> int:
        return len(self.node_id)

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def num_roots(self) -> int:
        return len(self.root_index)


@dataclass(frozen=True, repr=False)
class MiniBatch(Subgraph[np.ndarray]):
    """A subgraph with its roots and rows of nodes. Its bytes are the same for every partitioning and on every sampling host."""

    feature: np.ndarray | None = None  # float32 [n, feature_dim]
    # int64 or float32 [n], or int8 [n, num_classes] with answers 1, 0 and -1 (not known). A loss may use only the labels of roots.
    label: np.ndarray | None = None

    @property
    def num_bytes(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


@dataclass(frozen=True, repr=False)
class TorchBatch(Subgraph[torch.Tensor]):
    """A minibatch as tensors, for a training step. `x` has the features (float32) and `y` the labels."""

    x: torch.Tensor | None = None
    y: torch.Tensor | None = None

    @property
    def target(self) -> torch.Tensor:
        """The labels of the roots, with which predictions are compared."""
        assert self.y is not None
        return self.y[self.root_index]

    @property
    def predicted_id(self) -> torch.Tensor:
        """int64 [r]: permanent ids of the predicted nodes, the roots."""
        return self.node_id[self.root_index]

    @property
    def predicted_split(self) -> torch.Tensor | None:
        """int8 [r]: split codes of the predicted nodes."""
        return None if self.split is None else self.split[self.root_index]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TorchBatch":
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a tensor over the array's memory. A read-only array is copied first."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def to_torch(batch: MiniBatch) -> TorchBatch:
    """Returns tensors over the batch's arrays. Read-only arrays are copied once; features of another type become float32."""
    renamed = {"feature": "x", "label": "y"}
    values: dict[str, Any] = {
        renamed.get(field.name, field.name): getattr(batch, field.name) for field in fields(MiniBatch)
    }
    if batch.feature is not None:
        values["x"] = np.asarray(batch.feature, np.float32)
    tensors: dict[str, Any] = {
        name: as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in values.items()
    }
    return TorchBatch(**tensors)
