"""A digest of what a run learns from, so that it is not continued on other data: the same for any partitioning of a graph.

It holds which nodes (graphs) are in which split, all their labels (targets), and the features of some; sizes and names are compared beside it.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from samplers.router import Router
from storage.graph_store import StoredGraphs
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

_SAMPLE = 256  # nodes or graphs of each split whose features are looked at


def digest_nodes(router: Router, split_set: int) -> str:
    """Of the labelled splits of a graph."""

    def pieces() -> Iterable[np.ndarray]:
        for code in (SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST):
            nodes = router.list_split(split_set, code)
            label = router.fetch(nodes.node, feature=False).label
            yield np.asarray(nodes.original_id)
            if label is not None:
                yield label
            feature = router.fetch(_spread(nodes.node)).feature if len(nodes.node) else None
            if feature is not None:
                yield feature

    return _digest(pieces())


def digest_graphs(store: StoredGraphs, columns: Sequence[int]) -> str:
    """Of the splits of a set of graphs."""

    def pieces() -> Iterable[np.ndarray]:
        for split in store.split_names:
            graphs = store.split(split)
            yield graphs
            yield store.target[graphs][:, list(columns)]
            if not len(graphs):
                continue
            packed = store.fetch(_spread(graphs))
            yield packed.num_nodes
            yield packed.num_edges
            if packed.node_feature is not None:
                yield packed.node_feature

    return _digest(pieces())


def _spread(items: np.ndarray) -> np.ndarray:
    """Some of them, evenly spaced."""
    return items[:: -(-len(items) // _SAMPLE)]


def _digest(arrays: Iterable[np.ndarray]) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.str} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()[:16]
