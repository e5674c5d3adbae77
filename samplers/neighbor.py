"""Neighbor sampling: batches of roots, each with up to fanouts[h] neighbors per node at hop h (GraphSAGE, arXiv:1706.02216).

Each node is expanded once, at the hop where it first appears. Positions follow discovery: roots, then hop after hop in frontier
order, lists in ascending permanent id; so the lists of position i come before those of i + 1 and no sort is needed, and the
batch's layers are slices of it (`samplers.layers`).
"""

from typing import Any

import numpy as np

from samplers.graph_checks import check_graph
from samplers.messages import NeighborLists, join_columns
from samplers.minibatch import MiniBatch
from samplers.options import NeighborOptions
from samplers.protocol import sampler_len, sampler_repr
from samplers.random_streams import Purpose, stream_key
from samplers.relabel import PositionMaps, Relabeler
from samplers.root_batches import RootBatches, plan_hash, plan_length
from samplers.roots import find_roots
from samplers.router import EDGE_COLUMNS, Router
from samplers.stage_clock import stage
from storage.packed_graphs import pointers


class NeighborSampler:
    """Minibatches around the roots of one split, or around given `roots` (permanent ids, distinct)."""

    __repr__, __len__ = sampler_repr, sampler_len
    content_hash, num_batches = plan_hash, plan_length

    def __init__(
        self, router: Router, options: NeighborOptions, num_ranks: int = 1, roots: np.ndarray | None = None
    ) -> None:
        self._router, self.options = router, options
        self._maps = PositionMaps(router.manifest.num_nodes)
        check_graph(
            router.manifest,
            options.split_set,
            options.direction,
            scheme=options.scheme,
            edge_columns=options.edge_columns,
            induced=options.edges == "induced",
        )
        self._root_batches = RootBatches(router, options, num_ranks, roots)

    def roots_of(self, epoch: int, batch: int) -> np.ndarray:
        """Permanent ids of a batch's roots, in its order. Raises ConfigError where there is no such batch."""
        return self._root_batches.roots(epoch, batch).original_id

    def sample(self, epoch: int, batch: int) -> MiniBatch:
        return self._sample(self._root_batches.roots(epoch, batch).node, epoch, batch)

    def sample_roots(self, node_id: np.ndarray, epoch: int = 0, batch: int = 0) -> MiniBatch:
        """The minibatch around these roots, whatever their split: distinct permanent ids, which keep their order.

        `epoch` and `batch` choose the draws, and are the batch's own numbers. One more request per owner finds the roots. Raises
        ConfigError where a root is repeated, or is no node of the graph.
        """
        return self._sample(find_roots(self._router, node_id, distinct=True).node, epoch, batch)

    def _sample(self, roots: np.ndarray, epoch: int, batch: int) -> MiniBatch:
        """The minibatch around these stored ids."""
        options = self.options
        with stage("sample"):
            relabeler = Relabeler(roots, self._maps)
            num_roots = relabeler.num_nodes
            lists, sources, layer_sizes = self._expand(relabeler, epoch if options.shuffle else 0, batch)
            node = relabeler.node.copy()
            relabeler.close()
            hop = np.repeat(np.arange(len(layer_sizes), dtype=np.int16), layer_sizes)
            if options.edges == "induced":
                lists = [self._router.induced_edges(node, options.edge_columns)]
                sources = [lists[0].neighbor]
            count = np.zeros(len(node), np.int64)  # nodes of the last hop have no sampled edges
            counts = np.concatenate([one.count for one in lists])
            count[: len(counts)] = counts
            columns = {name: join_columns([getattr(one, name) for one in lists]) for name in EDGE_COLUMNS}
        return build_minibatch(
            self._router,
            epoch,
            batch,
            node,
            count,
            np.concatenate(sources),
            np.arange(num_roots),
            options.split_set,
            feature=options.features,
            encodings=options.encodings,
            hop=hop,
            **columns,
        )

    def _expand(
        self, relabeler: Relabeler, draw_epoch: int, batch: int
    ) -> tuple[list[NeighborLists], list[np.ndarray], list[int]]:
        """Draws hop after hop: (lists, positions of their neighbors, number of nodes found) of each."""
        options, frontier_start = self.options, 0
        lists, sources, layer_sizes = [], [], [relabeler.num_nodes]
        for hop, fanout in enumerate(options.fanouts):
            frontier = relabeler.node[frontier_start:]
            frontier_start = relabeler.num_nodes
            key = stream_key(options.seed, Purpose.NEIGHBORS, draw_epoch, batch, hop)
            drawn = self._router.sample_neighbors(
                frontier,
                fanout,
                int(key),
                options.direction,
                scheme=options.scheme,
                replace=options.replace,
                columns=() if options.edges == "induced" else options.edge_columns,
            )
            lists.append(drawn)
            sources.append(relabeler.add(drawn.neighbor))
            layer_sizes.append(relabeler.num_nodes - frontier_start)
        return lists, sources, layer_sizes


def induced_minibatch(router: Router, epoch: int, batch: int, node: np.ndarray, options: Any) -> MiniBatch:
    """The minibatch of these nodes and of all edges among them, without roots; `options` name the split set and encodings."""
    edges, no_roots = router.induced_edges(node), np.empty(0, np.int64)
    return build_minibatch(
        router,
        epoch,
        batch,
        node,
        edges.count,
        edges.neighbor,
        no_roots,
        options.split_set,
        encodings=options.encodings,
    )


def build_minibatch(
    router: Router,
    epoch: int,
    batch: int,
    node: np.ndarray,
    count: np.ndarray,
    source: np.ndarray,
    root_index: np.ndarray,
    split_set: int,
    *,
    feature: bool = True,
    encodings: tuple[str, ...] = (),
    **columns: Any,
) -> MiniBatch:
    """The minibatch of these nodes and in-edge lists, with its rows fetched in one question; `columns` are further fields."""
    split = split_set if router.manifest.num_split_sets else None
    with stage("fetch"):
        rows = router.fetch(node, feature=feature, split_set=split, encodings=encodings)
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
