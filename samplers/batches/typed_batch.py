"""A minibatch of a typed graph, as numpy arrays or as tensors: a table of nodes for each type, and a CSC for each relation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic

import numpy as np
import torch

from graphmill.core.summaries import describe
from graphmill.samplers.batches.device_copy import map_tensors
from graphmill.samplers.batches.minibatch import Array, as_tensor
from graphmill.storage.format.source import Relation


@dataclass(frozen=True, repr=False)
class TypedNodes(Generic[Array]):
    """A batch's nodes of one type, in order of discovery: hop by hop, and within a hop relation by relation (in subgraphs, root by root).

    A node that is in the subgraphs of several roots has a row for each root.
    """

    node_id: Array  # int64 [n], permanent ids
    hop: Array  # int16 [n]: number of the hop that found the node
    split: Array | None = None  # int8 [n]
    x: Array | None = None  # float32 [n, feature_dim]
    # int64 or float32 [n], or int8 [n, num_classes] with answers 1, 0 and -1 (not known). A loss may use only the labels of roots.
    y: Array | None = None
    subgraph: Array | None = None  # int64 [n]: position in `root_index` of the root whose subgraph has the node
    score: Array | None = None  # float32 [n]: closeness to the subgraph's root
    root_time: Array | None = None  # int64 [n]: time of the root whose search found the node
    encoding: Array | None = None  # float32 [n, sum of dims]: the requested encodings, if the type stores them
    loss_weight: Array | None = None  # float32 [n]: weight of the node's loss, if it is a root

    def __repr__(self) -> str:
        return describe(self)

    def __len__(self) -> int:
        return len(self.node_id)


@dataclass(frozen=True, repr=False)
class TypedEdges(Generic[Array]):
    """A batch's edges of one relation: row i lists the sources of the edges that end in node i of the relation's target type."""

    indptr: Array  # int64 [n + 1] for n target nodes: node i has the in-edges indices[indptr[i]:indptr[i + 1]]
    indices: Array  # int32 [e], positions of the sources among the nodes of the source type
    edge_id: Array | None = None  # int64 [e], permanent ids within the relation
    edge_weight: Array | None = None  # float32 [e]
    edge_time: Array | None = None  # int64 [e]
    edge_feature: Array | None = None  # float32 [e, edge_feature_dim]
    edge_coefficient: Array | None = None  # float32 [e], weight of a message
    degree: Array | None = None  # int64 [n]: in-degree in the whole graph; weighted sums estimate sums over these edges

    def __repr__(self) -> str:
        return describe(self)

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class TypedShardOf:
    """Sizes of the whole graph, for a batch that is one rank's shard of the graph. The stored nodes of each type are cut into blocks. A shard has a range of
    blocks, the same range for every type."""

    num_nodes: Mapping[str, int]  # by type
    num_blocks: int
    ends: tuple[int, ...]  # rank r has the blocks [ends[r], ends[r + 1])

    def block_starts(self, node_type: str) -> np.ndarray:
        """int64 [num_blocks + 1]: the stored id of each block's first node, followed by the number of nodes."""
        return self.num_nodes[node_type] * np.arange(self.num_blocks + 1) // self.num_blocks


@dataclass(frozen=True, repr=False)
class TypedBatch(Generic[Array]):
    """A batch around roots of one type or, for links between two types, of two types. Its arrays have the same bytes for every partitioning and on every host.

    It has all types and relations of the graph, in the graph's order, including empty ones. In a shard `indices` are stored ids of the source type.
    """

    epoch: int
    index: int  # index of the batch in its epoch, counted over all ranks
    num_hops: int
    root_type: str
    root_index: Array  # int64 [r], positions of the roots among the nodes of their type
    nodes: Mapping[str, TypedNodes[Array]]
    edges: Mapping[Relation, TypedEdges[Array]]
    encoding_names: tuple[str, ...] = ()
    shard: TypedShardOf | None = None
    second_type: str = ""  # type of the further roots, which come after the roots of `root_type`
    second_index: Array | None = None  # int64 [r2]: positions of the further roots among the nodes of `second_type`

    def __repr__(self) -> str:
        nodes = ", ".join(f"{len(table):,} {name}" for name, table in self.nodes.items())
        edges = ", ".join(f"{len(table):,} {name}" for name, table in self.edges.items())
        return f"TypedBatch({self.num_roots:,} roots {self.root_type};\n  nodes: {nodes};\n  edges: {edges})"

    @property
    def num_nodes(self) -> int:
        return sum(map(len, self.nodes.values()))

    @property
    def num_edges(self) -> int:
        return sum(map(len, self.edges.values()))

    @property
    def num_roots(self) -> int:
        """Number of roots of `root_type`."""
        return len(self.root_index)

    @property
    def num_bytes(self) -> int:
        arrays = [value for part in (self, *self._tables()) for value in vars(part).values()]
        return sum(getattr(value, "nbytes", 0) for value in arrays)

    def _tables(self) -> Iterator[TypedNodes[Array] | TypedEdges[Array]]:
        yield from self.nodes.values()
        yield from self.edges.values()

    @property
    def roots(self) -> TypedNodes[Array]:
        """The table of the roots' type; `root_index` holds rows of this table."""
        return self.nodes[self.root_type]

    @property
    def target(self) -> Array:
        """The labels of the roots, with which predictions are compared."""
        assert self.roots.y is not None
        target: Array = self.roots.y[self.root_index]
        return target

    @property
    def predicted_id(self) -> Array:
        """int64 [r]: permanent ids of the predicted nodes, the roots."""
        node_id: Array = self.roots.node_id[self.root_index]
        return node_id

    @property
    def predicted_split(self) -> Array | None:
        """int8 [r]: split codes of the predicted nodes."""
        split: Array | None = None if self.roots.split is None else self.roots.split[self.root_index]
        return split

    def layer_sizes(self, node_type: str) -> list[int]:
        """The number of the type's nodes at each hop: first the number of roots, then one number for each of `num_hops` hops."""
        hops = torch.as_tensor(self.nodes[node_type].hop).to(torch.int64)
        return torch.bincount(hops, minlength=self.num_hops + 1).tolist()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TypedBatch[Array]":
        """Moves the batch to the device, if it holds tensors."""
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def node_tables(batch: Any) -> dict[str, Any]:
    """Returns a batch's node tables by type. A minibatch is itself the table of its only type, which has the name ""."""
    return dict(batch.nodes) if isinstance(batch, TypedBatch) else {"": batch}


def with_node_tables(batch: Any, tables: Mapping[str, Any]) -> Any:
    """Returns the batch with `tables` in place of its node tables."""
    return replace(batch, nodes={**batch.nodes, **tables}) if isinstance(batch, TypedBatch) else tables[""]


def typed_to_torch(batch: TypedBatch[np.ndarray]) -> TypedBatch[torch.Tensor]:
    """Returns tensors over the batch's arrays. Read-only arrays are copied once."""

    def table(kind: Callable[..., Any], arrays: Any) -> Any:
        return kind(**{name: None if value is None else as_tensor(value) for name, value in vars(arrays).items()})

    own = {field.name: getattr(batch, field.name) for field in fields(TypedBatch)}
    tables: dict[str, Any] = {
        "root_index": torch.from_numpy(batch.root_index),
        "second_index": None if batch.second_index is None else as_tensor(batch.second_index),
        "nodes": {name: table(TypedNodes, each) for name, each in batch.nodes.items()},
        "edges": {name: table(TypedEdges, each) for name, each in batch.edges.items()},
    }
    return TypedBatch(**own | tables)
