"""Neighbor sampling: batches of roots, each with up to fanouts[h] neighbors per node at hop h (GraphSAGE, arXiv:1706.02216).

Each node is expanded once, at the hop where it first appears. Positions follow discovery: roots, then hop after hop in frontier
order, lists in ascending permanent id; so the lists of position i come before those of i + 1 and no sort is needed, and the
batch's layers are slices of it (`graphmill.samplers.batches.layers`). Where only the past of a root may be drawn, all this holds of copies of nodes
(`graphmill.samplers.drawing.timed_copies`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from graphmill.core.offsets import pointers
from graphmill.samplers.access.router import EDGE_COLUMNS, Columns, Router, ask
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.batches.recency import ages_of_copies, encode_ages
from graphmill.samplers.drawing.pending_batch import PendingBatch, own_router, sample_drawn, with_rows
from graphmill.samplers.drawing.protocol import sampler_len, sampler_repr
from graphmill.samplers.drawing.root_batches import RootBatches, plan_hash, plan_length
from graphmill.samplers.drawing.roots import find_roots
from graphmill.samplers.drawing.timed_copies import NodeCopies
from graphmill.samplers.kernels.random_streams import Purpose, stream_key
from graphmill.samplers.kernels.relabel import PositionMaps, Relabeler
from graphmill.samplers.vocabulary.messages import EdgeColumn, NeighborLists, NodeList, NodeRows, join_columns
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.samplers.vocabulary.requirements import check_graph
from graphmill.samplers.vocabulary.stage_clock import stage


class NeighborSampler:
    """Minibatches around the roots of one split, or around given `roots` (permanent ids, distinct), as of `root_time` (int64, one for each)."""

    __repr__, __len__ = sampler_repr, sampler_len
    router, sample = own_router, sample_drawn
    content_hash, num_batches = plan_hash, plan_length

    def __init__(
        self,
        router: Router,
        options: NeighborOptions,
        num_ranks: int = 1,
        roots: np.ndarray | None = None,
        root_time: np.ndarray | None = None,
    ) -> None:
        self._router, self.options, self._num_ranks = router, options, num_ranks
        self._maps = PositionMaps(router.manifest.num_nodes)
        check_graph(
            router.manifest,
            options.split_set,
            options.direction,
            scheme=options.scheme,
            edge_columns=options.edge_columns,
            induced=options.edges == "induced",
            timed=options.time != "all",
        )
        self._root_batches = RootBatches(router, options, num_ranks, roots, root_time)

    def roots_of(self, epoch: int, batch: int) -> np.ndarray:
        """Permanent ids of a batch's roots, in its order. Raises ConfigError where there is no such batch."""
        return self._root_batches.roots(epoch, batch).original_id

    def draw(self, epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """Several batches take one request per owner and hop, as one does."""
        return self.draw_around([self._root_batches.roots(epoch, batch) for batch in batches], epoch, batches)

    def sample_roots(
        self, node_id: np.ndarray, epoch: int = 0, batch: int = 0, time: np.ndarray | None = None
    ) -> MiniBatch:
        """The minibatch around these roots, whatever their split: distinct permanent ids, which keep their order.

        `epoch` and `batch` choose the draws, and are the batch's own numbers. `time`: int64, one for each in place of its own; a node may then be
        there at several times. One more request per owner finds the roots. Raises ConfigError where a root is repeated, or is no node of the
        graph.
        """
        return with_rows(*self.draw_roots(node_id, epoch, batch, time))

    def draw_roots(
        self, node_id: np.ndarray, epoch: int = 0, batch: int = 0, time: np.ndarray | None = None
    ) -> list[PendingBatch]:
        """The same before its rows are fetched."""
        time = None if self.options.time == "all" else time
        return self.draw_around([find_roots(self._router, node_id, time, distinct=True)], epoch, [batch])

    def draw_around(self, roots: Sequence[NodeList], epoch: int, batches: Sequence[int]) -> list[PendingBatch]:
        """Batches around these distinct nodes (with times: distinct pairs of both), before their rows are fetched."""
        options = self.options
        columns = Columns.of(self._router, options.split_set, options.encodings, feature=options.features)
        with stage("sample"):
            grown = self._expand(roots, epoch if options.shuffle else 0, batches)
            drawn = []
            for batch, (relabeler, copies, lists, sources, layer_sizes) in zip(batches, grown, strict=True):
                node = relabeler.node.copy()
                place = root_time = None
                if copies is not None:
                    root_time = copies.root_time_of(node)
                    distinct = Relabeler(np.empty(0, np.int64))
                    place, node = distinct.add(copies.node(node)), distinct.node.copy()
                if options.edges == "induced":
                    lists = [self._router.induced_edges(node, options.edge_columns)]
                    sources = [lists[0].neighbor]
                edge_columns = {name: join_columns([getattr(one, name) for one in lists]) for name in EDGE_COLUMNS}
                edges = _Edges(
                    layer_sizes,
                    np.concatenate([one.count for one in lists]).astype(np.int32),
                    np.concatenate(sources),
                    edge_columns,
                    place,
                    root_time,
                )
                complete = partial(edges.minibatch, epoch, batch, options)
                drawn.append(PendingBatch(((self._router, node, columns),), complete, node.nbytes + edges.num_bytes))
        return drawn

    def _expand(
        self, roots: Sequence[NodeList], draw_epoch: int, batches: Sequence[int]
    ) -> list[tuple[Relabeler, NodeCopies | None, list[NeighborLists], list[np.ndarray], list[int]]]:
        """Draws hop after hop, for all batches at once: of each (nodes, their copies, lists, positions of their neighbors, number of nodes found)."""
        options = self.options
        if options.as_of is not None:
            roots = [replace(some, time=np.full(len(some.node), options.as_of)) for some in roots]
        of_all = [self._copies(some) for some in roots]
        relabelers = [
            Relabeler(some.node, self._maps) if copies is None else Relabeler(copies.number(some))
            for some, copies in zip(roots, of_all, strict=True)
        ]
        grown: list[tuple[Relabeler, NodeCopies | None, list[NeighborLists], list[np.ndarray], list[int]]] = [
            (relabeler, copies, [], [], [relabeler.num_nodes])
            for relabeler, copies in zip(relabelers, of_all, strict=True)
        ]
        columns = options.edge_columns
        if options.recency_dim and "time" not in columns:
            columns = (*columns, "time")
        shares_map = len(batches) > 1  # which serves them in turn
        if shares_map:
            for relabeler in relabelers:
                relabeler.close()
        for hop, fanout in enumerate(options.fanouts):
            frontiers = [one.node[one.num_nodes - sizes[-1] :] for one, *_, sizes in grown]
            nodes, untils = _as_of(frontiers, of_all)
            keys = [self._key(draw_epoch, batch, hop) for batch in batches]
            question = self._router.sample_question(
                nodes,
                fanout,
                keys,
                options.direction,
                untils=untils,
                scheme=options.scheme,
                replace=options.replace,
                columns=() if options.edges == "induced" else columns,
            )
            (drawn,) = ask([question])
            for (relabeler, copies, lists, sources, layer_sizes), frontier, found in zip(
                grown, frontiers, drawn, strict=True
            ):
                if shares_map:
                    relabeler.open()
                known = relabeler.num_nodes
                lists.append(found)
                neighbor = found.neighbor if copies is None else copies.neighbors(frontier, found)
                sources.append(relabeler.add(neighbor))
                layer_sizes.append(relabeler.num_nodes - known)
                if shares_map or hop + 1 == len(options.fanouts):
                    relabeler.close()
        return grown

    def _copies(self, roots: NodeList) -> NodeCopies | None:
        """None: edges of all times are drawn, so a node is there once."""
        if self.options.time == "all":
            return None
        return NodeCopies.of(self._router.manifest.num_nodes, roots, before=self.options.time == "before")

    def _key(self, epoch: int, batch: int, hop: int) -> int:
        """The stream of a batch's draws at a hop."""
        options = self.options
        if options.batch_dependency > 1:  # one stream for all ranks and steps of a window
            batch = batch // self._num_ranks // options.batch_dependency
        return int(stream_key(options.seed, Purpose.NEIGHBORS, epoch, batch, 0 if options.layer_dependency else hop))


def _as_of(
    frontiers: list[np.ndarray], of_all: Sequence[NodeCopies | None]
) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """Stored ids of each batch's frontier, and until when their edges may be; None: whenever."""
    timed = [(each, copies) for each, copies in zip(frontiers, of_all, strict=True) if copies is not None]
    if not timed:
        return frontiers, None
    return [copies.node(each) for each, copies in timed], [copies.until_of(each) for each, copies in timed]


@dataclass(frozen=True)
class _Edges:
    """What a batch has before its rows, as small as it is drawn."""

    layer_sizes: list[int]
    count: (
        np.ndarray
    )  # of the nodes of all hops but the last, which have no sampled edges; of all nodes where edges are induced
    source: np.ndarray
    columns: dict[str, np.ndarray | None]
    place: np.ndarray | None = None  # int32: of each copy its node's place among the rows; None: nodes are there once
    root_time: np.ndarray | None = None  # int64, of each copy

    @property
    def num_bytes(self) -> int:
        arrays = (self.count, self.source, self.place, self.root_time, *self.columns.values())
        return sum(array.nbytes for array in arrays if array is not None)

    def minibatch(self, epoch: int, batch: int, options: NeighborOptions, rows: NodeRows) -> MiniBatch:
        if self.place is not None:
            columns = {name: None if rows_of is None else rows_of[self.place] for name, rows_of in vars(rows).items()}
            rows = NodeRows(**columns)  # type: ignore[arg-type]  # permanent ids are always there
        edge_columns = dict(self.columns)
        if options.recency_dim and options.features:
            root_time, edge_time = self.root_time, edge_columns["edge_time"]
            assert root_time is not None
            assert edge_time is not None
            ages = ages_of_copies(root_time, self.source, edge_time)
            beside = encode_ages(ages, options.recency_dim, options.recency_unit)
            feature = beside if rows.feature is None else np.concatenate([rows.feature, beside], axis=1)
            rows = replace(rows, feature=feature)
        if "time" not in options.edge_columns:
            edge_columns["edge_time"] = None
        count = np.zeros(len(rows.original_id), np.int64)
        count[: len(self.count)] = self.count
        hop = np.repeat(np.arange(len(self.layer_sizes), dtype=np.int16), self.layer_sizes)
        roots = np.arange(self.layer_sizes[0])
        columns = {"hop": hop, "root_time": self.root_time, **edge_columns}
        return build_minibatch(epoch, batch, rows, count, self.source, roots, options.encodings, **columns)


def draw_induced(
    router: Router, epoch: int, batch: int, node: np.ndarray, options: Any, edge_columns: tuple[EdgeColumn, ...] = ()
) -> PendingBatch:
    """The minibatch of these nodes and of all edges among them, without roots; `options` name the split set and encodings."""
    edges, no_roots = router.induced_edges(node, edge_columns), np.empty(0, np.int64)
    told = {name: column for name in EDGE_COLUMNS if (column := getattr(edges, name)) is not None}
    columns = Columns.of(router, options.split_set, options.encodings)

    def complete(rows: NodeRows) -> MiniBatch:
        return build_minibatch(epoch, batch, rows, edges.count, edges.neighbor, no_roots, options.encodings, **told)

    kept = (node, edges.count, edges.neighbor, *told.values())
    return PendingBatch(((router, node, columns),), complete, sum(array.nbytes for array in kept))


def build_minibatch(
    epoch: int,
    batch: int,
    rows: NodeRows,
    count: np.ndarray,
    source: np.ndarray,
    root_index: np.ndarray,
    encodings: tuple[str, ...] = (),
    **columns: Any,
) -> MiniBatch:
    """The minibatch of these rows and in-edge lists; `columns` are further fields."""
    return MiniBatch(
        epoch=epoch,
        index=batch,
        node_id=rows.original_id,
        indptr=pointers(count),
        indices=source.astype(np.int32, copy=False),
        root_index=root_index,
        feature=rows.feature,
        label=rows.label,
        split=rows.split,
        encoding=rows.encoding,
        encoding_names=encodings,
        **columns,
    )
