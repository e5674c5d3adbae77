"""Makes small batches that cost in proportion to a large one, so that `--plan` takes a bounded time for batches of any size.

A part of a random chunk has too few edges: half of the nodes have a quarter of the edges among them. A part made here has the whole batch's ratio of edges to
nodes instead. Its edges begin at arbitrary nodes of the part, so only its cost means something.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from graphmill.cluster.data.training_data import OpenData
from graphmill.samplers.batches.minibatch import TorchBatch
from graphmill.samplers.batches.typed_batch import TypedBatch, TypedEdges
from graphmill.samplers.drawing.protocol import Sampler

_SPREAD = 2654435761  # multiplier that scatters edge numbers over the nodes (Knuth)


@dataclass(frozen=True)
class BatchSize:
    """Numbers of nodes and edges of a batch that may be too large to try."""

    nodes: int
    edges: Mapping[Any, int]  # by relation; a plain batch has one entry

    @classmethod
    def of(cls, batch: Any) -> "BatchSize":
        if isinstance(batch, TypedBatch):
            return cls(batch.num_nodes, {relation: len(edges) for relation, edges in batch.edges.items()})
        return cls(batch.num_nodes, {None: batch.num_edges})


def can_cut(batch: Any) -> bool:
    """Whether parts of the batch can be made: its nodes form one graph and have no order by hops or roots."""
    if getattr(batch, "shard", None) is not None:
        return False
    if type(batch) is TypedBatch:
        return all(not nodes.hop.any() and nodes.subgraph is None for nodes in batch.nodes.values())
    return type(batch) is TorchBatch and batch.graph_ptr is None and batch.hop is None


def with_fewer_roots(sampler: Sampler, data: OpenData) -> Iterator[tuple[int, Callable[[], Any]]]:
    """Yields (share, a function that draws the batch) for batches with a sixteenth and a quarter of the roots. Yields nothing if the sampler's options do not set
    a number of roots."""
    roots = getattr(sampler.options, "batch_size", 0)
    for share in (16, 4):
        if isinstance(roots, int) and roots >= 4 * share:
            fewer = data.sampler(replace(sampler.options, batch_size=roots // share), 1)
            yield share, lambda fewer=fewer: data.collate(fewer.sample(0, 0))  # type: ignore[misc]


def part_of_size(batch: Any, nodes: int, size: BatchSize) -> Any:
    """A part with about this many nodes, and with the ratio of edges to nodes of a batch of `size`."""
    return part_of(batch, nodes, {relation: count * nodes // size.nodes for relation, count in size.edges.items()})


def part_of(batch: Any, nodes: int, edges: Mapping[Any, int]) -> Any:
    """A part with the first `nodes` nodes of the batch (in a typed batch: the same share of each type) and these numbers of edges. Some of its nodes are
    roots, in the batch's ratio."""
    share = nodes / batch.num_nodes

    def first(count: int) -> int:
        return min(count, max(1, round(share * count)))

    roots = torch.arange(first(len(batch.root_index)))
    if isinstance(batch, TypedBatch):
        tables = {name: _first(table, first(len(table))) for name, table in batch.nodes.items()}
        roots = roots[: len(tables[batch.root_type])]
        lists = {
            relation: _edges(table, len(tables[relation.target]), len(tables[relation.source]), edges[relation])
            for relation, table in batch.edges.items()
        }
        return replace(batch, nodes=tables, edges=lists, root_index=roots)
    of_edges = _edges(batch, nodes, nodes, edges[None])
    return replace(
        _first(batch, nodes, but=("root_index", *_EDGE_COLUMNS)),
        root_index=roots[:nodes],
        **{name: getattr(of_edges, name) for name in _EDGE_COLUMNS},
    )


_EDGE_COLUMNS = tuple(field.name for field in fields(TypedEdges))


def _first(table: Any, count: int, but: tuple[str, ...] = ()) -> Any:
    """The table with its first `count` rows. `but`: columns that stay."""
    columns = {name: value for name, value in vars(table).items() if isinstance(value, Tensor) and name not in but}
    return replace(table, **{name: value[:count] for name, value in columns.items()})


def _edges(table: Any, targets: int, sources: int, count: int) -> TypedEdges[Tensor]:
    """`count` edges, spread evenly over the targets and scattered over the sources; other columns repeat those of `table`."""
    if not (targets and sources):
        count = 0
    number = torch.arange(count)
    columns: dict[str, Any] = {
        "indptr": torch.arange(targets + 1) * count // max(targets, 1),
        "indices": (number * _SPREAD % max(sources, 1)).to(table.indices.dtype),
    }
    for name in _EDGE_COLUMNS:
        value = getattr(table, name)
        if name not in columns and value is not None:
            if name == "degree":
                columns[name] = value[:targets]
            else:
                columns[name] = value[number % len(value)] if len(value) else value.new_zeros(count, *value.shape[1:])
    return TypedEdges(**columns)
