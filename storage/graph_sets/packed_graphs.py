"""Defines packed graphs: arrays that hold several small graphs one after another. A store of many graphs takes and returns packed graphs."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PackedGraphs:
    """Arrays that hold several graphs one after another. The ends of an edge are positions of nodes within the edge's graph."""

    num_nodes: np.ndarray  # int64 [g]
    num_edges: np.ndarray  # int64 [g]
    edge_index: np.ndarray  # int32 [2, sum(num_edges)]
    node_feature: np.ndarray | None  # [sum(num_nodes), …]
    edge_feature: np.ndarray | None  # [sum(num_edges), …]
    target: np.ndarray | None  # [g, …]
    node_label: np.ndarray | None = None  # int16 [sum(num_nodes)], -1: none
    num_pairs: np.ndarray | None = None  # int64 [g]
    # int32 [sum(num_pairs), 3]: two nodes of a graph, and the pair's label: 1 if the two nodes belong together, else 0
    pairs: np.ndarray | None = None
