"""What a sampler makes: one minibatch, as numpy arrays and, at the last step, as torch tensors over the same memory."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from samplers.device_copy import map_tensors
from storage.descriptions import describe
from storage.encoding_names import split_encodings


@dataclass(frozen=True)
class MiniBatch:
    """A subgraph with rows and roots. Byte-identical however the graph is partitioned and wherever it was sampled.

    Row i of (indptr, indices) lists the nodes that node i takes messages from: the sources of its in-edges, or whatever
    neighbors its sampler was told to draw.
    """

    epoch: int
    index: int  # number of the batch in its epoch, over all ranks
    node_id: np.ndarray  # int64 [n], permanent ids
    indptr: np.ndarray  # int64 [n + 1]: in-edges of node i are indices[indptr[i]:indptr[i + 1]]
    indices: np.ndarray  # int32 [e], positions of the sources in node_id
    root_index: np.ndarray  # int64 [r], positions of the roots in node_id
    feature: np.ndarray | None = None  # float16/float32 [n, feature_dim]
    label: np.ndarray | None = None  # int64 or float32 [n]; read only the roots' labels for a loss
    split: np.ndarray | None = None  # int8 [n]
    graph_ptr: np.ndarray | None = None  # int64 [g + 1]: subgraph i is the nodes [graph_ptr[i], graph_ptr[i + 1])
    hop: np.ndarray | None = None  # int16 [n], distance to the root of its subgraph, or the hop that found the node
    score: np.ndarray | None = None  # float32 [n], closeness to the root of its subgraph
    loss_weight: np.ndarray | None = None  # float32 [n], by which a root's loss enters the sum
    edge_coefficient: np.ndarray | None = None  # float32 [e], by which a message counts
    edge_id: np.ndarray | None = None  # int64 [e], permanent ids
    edge_weight: np.ndarray | None = None  # float32 [e]
    edge_feature: np.ndarray | None = None  # float32 [e, edge_feature_dim]
    encoding: np.ndarray | None = None  # float32 [n, sum of dims]: the stored encodings asked for, side by side
    encoding_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return describe(self)

    @property
    def encodings(self) -> dict[str, np.ndarray]:
        """float32 [n, dim] for each name: views of `encoding`."""
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

    @property
    def num_bytes(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


@dataclass(frozen=True)
class TorchBatch:
    """A minibatch as tensors: what a training step takes. Shapes as in `MiniBatch`."""

    epoch: int
    index: int
    node_id: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    root_index: torch.Tensor
    x: torch.Tensor | None
    y: torch.Tensor | None
    split: torch.Tensor | None
    graph_ptr: torch.Tensor | None = None
    hop: torch.Tensor | None = None
    score: torch.Tensor | None = None
    loss_weight: torch.Tensor | None = None
    edge_coefficient: torch.Tensor | None = None
    edge_id: torch.Tensor | None = None
    edge_weight: torch.Tensor | None = None
    edge_feature: torch.Tensor | None = None
    encoding: torch.Tensor | None = None
    encoding_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return describe(self)

    @property
    def encodings(self) -> dict[str, torch.Tensor]:
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

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TorchBatch":
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def to_torch(batch: MiniBatch) -> TorchBatch:
    """Tensors over the batch's own arrays; read-only arrays are copied once, float16 features become float32."""

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    renamed = {"feature": "x", "label": "y"}
    values: dict[str, Any] = {
        renamed.get(field.name, field.name): getattr(batch, field.name) for field in fields(batch)
    }
    if batch.feature is not None:
        values["x"] = np.asarray(batch.feature, np.float32)
    tensors: dict[str, Any] = {
        name: tensor(value) if isinstance(value, np.ndarray) else value for name, value in values.items()
    }
    return TorchBatch(**tensors)
