"""Which nodes are roots: those of a split, all, or given ones; and the translation from permanent ids to stored ones.

Callers name nodes by permanent ids, as batches do. Stored ids depend on the partitioning; only samplers and routers use them.
"""

import hashlib
from functools import cached_property

import numpy as np

from samplers.messages import NodeList
from samplers.minibatch import MiniBatch
from samplers.router import Router
from samplers.stage_clock import stage
from storage.errors import ConfigError
from storage.source import SPLIT_TRAIN


@stage("plan")
def find_roots(router: Router, permanent_id: np.ndarray, *, distinct: bool = False) -> NodeList:
    """The nodes that a caller names, in the order given; one request to every owner.

    Raises ConfigError for an id that is no node's and, where they must be `distinct`, for one that is there twice.
    """
    try:
        node = router.find_nodes(permanent_id)
    except ConfigError as error:
        raise ConfigError(f"roots: {error}") from None
    original_id = np.asarray(permanent_id).astype(np.int64)
    if distinct:
        in_order = np.sort(original_id)
        repeated = np.flatnonzero(in_order[1:] == in_order[:-1])
        if len(repeated):
            raise ConfigError(f"roots: expected distinct nodes, got node {int(in_order[repeated[0]])} twice")
    return NodeList(node=node, original_id=original_id)


class Roots:
    """The nodes with one of these split codes (None: all nodes), or those that are given, by permanent id.

    In a graph without splits every node is a training node.
    """

    def __init__(
        self,
        router: Router,
        split_set: int,
        codes: tuple[int, ...] | None,
        given: np.ndarray | None = None,
    ) -> None:
        """Looks given roots up at once. Raises ConfigError where the graph has no such splits or nodes."""
        has_splits = router.manifest.num_split_sets > 0
        if given is None and codes is not None and not has_splits and SPLIT_TRAIN not in codes:
            raise ConfigError(
                f"roots: expected training nodes, for the graph {router.manifest.name} has no splits and all of its nodes are these, "
                f"got the split {', '.join(map(str, codes))}; give the roots, or ingest the graph with splits"
            )
        self._router, self._split_set = router, split_set
        self._codes = codes if has_splits else None
        self._given = None if given is None else _ascending(find_roots(router, given, distinct=True))
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
        node, original_id = (np.concatenate([getattr(one, name) for one in lists]) for name in ("node", "original_id"))
        return NodeList(node, original_id) if len(lists) == 1 else _ascending(NodeList(node, original_id))

    def among(self, batch: MiniBatch) -> np.ndarray:
        """bool [n]: which of a batch's nodes are roots."""
        if self._given is not None:
            given = self._given.original_id
            return given[np.minimum(np.searchsorted(given, batch.node_id), len(given) - 1)] == batch.node_id
        if self._codes is None:
            return np.ones(batch.num_nodes, bool)
        assert batch.split is not None
        return np.isin(batch.split, self._codes)

    @cached_property
    def groups(self) -> np.ndarray:
        """int32 [roots]: the locality group of each of `nodes`."""
        return self._router.groups_of(self.nodes.node)

    @cached_property
    def content_hash(self) -> str:
        """Of the graph, whatever its partitions, and, where they are given, of the roots."""
        graph = self._router.manifest.measured.graph_digest
        if self._given is None:
            return graph
        return hashlib.sha256(graph.encode() + self._given.original_id.tobytes()).hexdigest()


def _ascending(nodes: NodeList) -> NodeList:
    order = np.argsort(nodes.original_id, kind="stable")
    return NodeList(node=nodes.node[order], original_id=nodes.original_id[order])
