"""What a sampler makes: one minibatch, as numpy arrays and, at the last step, as torch tensors over the same memory."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class MiniBatch:
    """A subgraph with rows and roots. Byte-identical however the graph is partitioned and wherever it was sampled."""

    epoch: int
    index: int  # number of the batch in its epoch, over all ranks
    node_id: np.ndarray  # int64 [n], permanent ids
    indptr: np.ndarray  # int64 [n + 1]: in-edges of node i are indices[indptr[i]:indptr[i + 1]]
    indices: np.ndarray  # int32 [e], positions of the sources in node_id
    root_index: np.ndarray  # int64 [r], positions of the roots in node_id
    feature: np.ndarray | None = None  # float16/float32 [n, feature_dim]
    label: np.ndarray | None = None  # int64 or float32 [n]; read only the roots' labels for a loss
    split: np.ndarray | None = None  # int8 [n]
    graph_ptr: np.ndarray | None = (
        None  # int64 [g + 1]: subgraph i is the nodes [graph_ptr[i], graph_ptr[i + 1]); no edges between
    )
    hop: np.ndarray | None = None  # int16 [n], distance to the root of its subgraph
    score: np.ndarray | None = None  # float32 [n], closeness to the root of its subgraph
    loss_weight: np.ndarray | None = None  # float32 [n], by which a root's loss enters the sum
    edge_coefficient: np.ndarray | None = None  # float32 [e], by which a message counts

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
        arrays = (self.node_id, self.indptr, self.indices, self.root_index, self.feature, self.label, self.split)
        more = (self.graph_ptr, self.hop, self.score, self.loss_weight, self.edge_coefficient)
        return sum(array.nbytes for array in (*arrays, *more) if array is not None)


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

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TorchBatch":
        def move(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        return TorchBatch(
            epoch=self.epoch,
            index=self.index,
            node_id=self.node_id.to(device, non_blocking=non_blocking),
            indptr=self.indptr.to(device, non_blocking=non_blocking),
            indices=self.indices.to(device, non_blocking=non_blocking),
            root_index=self.root_index.to(device, non_blocking=non_blocking),
            x=move(self.x),
            y=move(self.y),
            split=move(self.split),
            graph_ptr=move(self.graph_ptr),
            hop=move(self.hop),
            score=move(self.score),
            loss_weight=move(self.loss_weight),
            edge_coefficient=move(self.edge_coefficient),
        )


def to_torch(batch: MiniBatch) -> TorchBatch:
    """Tensors over the batch's own arrays; read-only or non-float32 feature arrays are copied once."""

    def tensor(array: np.ndarray | None) -> torch.Tensor | None:
        if array is None:
            return None
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    feature = None if batch.feature is None else np.asarray(batch.feature, np.float32)
    node_id, indptr, indices, root_index = (
        torch.from_numpy(array if array.flags.writeable else array.copy())
        for array in (batch.node_id, batch.indptr, batch.indices, batch.root_index)
    )
    return TorchBatch(
        epoch=batch.epoch,
        index=batch.index,
        node_id=node_id,
        indptr=indptr,
        indices=indices,
        root_index=root_index,
        x=tensor(feature),
        y=tensor(batch.label),
        split=tensor(batch.split),
        graph_ptr=tensor(batch.graph_ptr),
        hop=tensor(batch.hop),
        score=tensor(batch.score),
        loss_weight=tensor(batch.loss_weight),
        edge_coefficient=tensor(batch.edge_coefficient),
    )
