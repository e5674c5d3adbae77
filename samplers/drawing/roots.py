"""Determines the roots: the nodes of a split, all nodes, or given nodes. Also translates permanent ids into stored ids.

Callers and batches name nodes by permanent ids. Stored ids depend on the partitioning; only samplers and routers use them.
"""

import hashlib
from dataclasses import replace
from functools import cached_property

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, ascending_nodes
from graphmill.samplers.batches.minibatch import MiniBatch
from graphmill.samplers.batches.typed_batch import TypedNodes
from graphmill.samplers.vocabulary.messages import NodeList
from graphmill.samplers.vocabulary.stage_clock import stage
from graphmill.storage.format.source import SPLIT_TRAIN


@stage("plan")
def find_roots(
    router: Router, permanent_id: np.ndarray, time: np.ndarray | None = None, *, distinct: bool = False
) -> NodeList:
    """Finds the nodes that a caller names, in the caller's order. Their times are the nodes' own times or, if given, `time`. Sends one request to every owner.

    Raises ConfigError if an id is not the id of a node, or if `time` has the wrong length or type. With `distinct`, also raises it for a repeated node or, if
    `time` is given, for a node that is repeated with the same time.
    """
    try:
        nodes = router.list_found(permanent_id)
    except ConfigError as error:
        raise ConfigError(f"roots: {error}") from None
    if time is not None:
        nodes = replace(nodes, time=_given_times(time, len(nodes.node)))
    if distinct:
        when = np.zeros(len(nodes.node), np.int64) if time is None or nodes.time is None else nodes.time
        pairs = np.stack([when, nodes.original_id])[:, np.lexsort((when, nodes.original_id))]
        repeated = np.flatnonzero((pairs[:, 1:] == pairs[:, :-1]).all(axis=0))
        if len(repeated):
            raise ConfigError(f"roots: expected distinct nodes, got node {int(pairs[1, repeated[0]])} twice")
    return nodes


def _given_times(time: np.ndarray, count: int) -> np.ndarray:
    """Returns the times as int64 [count]. Raises ConfigError unless `time` has one integer for each root."""
    time = np.asarray(time)
    if time.shape != (count,) or time.dtype.kind not in "iu":
        raise ConfigError(
            f"roots: expected a time for each of the {count} roots, whole numbers, got {time.dtype} of shape {list(time.shape)}"
        )
    return time.astype(np.int64)


class Roots:
    """The roots: nodes with one of these split codes (None: all nodes), or given nodes, by permanent id.

    In a graph without splits every node is a training node.
    """

    def __init__(
        self,
        router: Router,
        split_set: int,
        codes: tuple[int, ...] | None,
        given: np.ndarray | None = None,
        given_time: np.ndarray | None = None,
    ) -> None:
        """Finds given roots immediately. `given_time` replaces their times. Raises ConfigError if the graph does not have the splits or the nodes."""
        has_splits = router.manifest.num_split_sets > 0
        if given is None and codes is not None and not has_splits and SPLIT_TRAIN not in codes:
            raise ConfigError(
                f"roots: expected training nodes, for the graph {router.manifest.name} has no splits and all of its nodes are these, "
                f"got the split {', '.join(map(str, codes))}; give the roots, or ingest the graph with splits"
            )
        self._router, self._split_set = router, split_set
        self._codes = codes if has_splits else None
        self._given = None
        if given is not None:
            self._given = ascending_nodes([find_roots(router, given, distinct=True)])
            if given_time is not None:
                order = np.argsort(np.asarray(given), kind="stable")
                self._given = replace(self._given, time=_given_times(given_time, len(order))[order])
        self._has_given_times = given_time is not None
        if self._given is not None and not len(self._given.node):
            raise ConfigError("roots: expected at least one, got none")

    @cached_property
    def nodes(self) -> NodeList:
        """All roots, ascending in permanent id."""
        if self._given is not None:
            return self._given
        if self._codes is None:
            return self._router.list_chunk(key=0, chunk=0, num_chunks=1)
        lists = [self._router.list_split(self._split_set, code) for code in self._codes]
        return lists[0] if len(lists) == 1 else ascending_nodes(lists)

    def among(self, batch: MiniBatch | TypedNodes[np.ndarray]) -> np.ndarray:
        """bool [n]: whether each node of the batch is a root. In a typed batch, n counts only the nodes of the roots' type."""
        if self._given is not None:
            given = self._given.original_id
            return given[np.minimum(np.searchsorted(given, batch.node_id), len(given) - 1)] == batch.node_id
        if self._codes is None:
            return np.ones(len(batch.node_id), bool)
        assert batch.split is not None
        return np.isin(batch.split, self._codes)

    @cached_property
    def groups(self) -> np.ndarray:
        """int32 [roots]: the locality group of each of `nodes`."""
        return self._router.groups_of(self.nodes.node)

    @cached_property
    def content_hash(self) -> str:
        """Hash of the graph, independent of its partitions, and of the given roots, if any."""
        graph = self._router.manifest.measured.graph_digest
        if self._given is None:
            return graph
        digest = hashlib.sha256(graph.encode() + self._given.original_id.tobytes())
        if self._has_given_times and self._given.time is not None:
            digest.update(self._given.time.tobytes())
        return digest.hexdigest()
