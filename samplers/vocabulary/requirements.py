"""Checks, when a sampler is made, that the graph has what the sampler needs. They read only the manifest and ask no owner."""

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.samplers.vocabulary.messages import EdgeColumn, Scheme, WalkDirection
from graphmill.storage.format.manifest import Manifest

NO_EDGE_IDS = "edge ids: the graph keeps none; ingest it with --edge-ids"
NO_EDGE_WEIGHTS = "edge weights: the graph has none; ingest a source that has them"
NO_EDGE_TIMES = "times: the graph's edges have none; ingest a source with times (--edge-list.time of an edge list)"
LAST_OF_BOTH = "scheme 'last': expected in-edges or out-edges alone, whose lists ascend in time, got both of a directed graph; set direction"
NO_ROOT_TIMES = "time: expected roots with times, the graph's nodes have none; set --sampler.as_of, or ingest a source with times of nodes"
NO_GROUPS = (
    "root_order: expected a graph with locality groups, this one has none; ingest it with --partitioner ldg (or metis) and --groups, or leave out "
    "--sampler.root_order"
)
NO_EDGE_FEATURES = (
    "edge features: the graph has none of these edges (they lie beside in-edges only); use direction 'in'"
)


def no_out_edges(direction: WalkDirection) -> ConfigError:
    return ConfigError(
        f"direction {direction!r} needs lists of out-edges, the graph has none; ingest it with --out-edges"
    )


def check_graph(
    manifest: Manifest,
    split_set: int,
    direction: WalkDirection = "in",
    *,
    scheme: Scheme = "uniform",
    edge_columns: tuple[EdgeColumn, ...] = (),
    induced: bool = False,
    timed: bool = False,
) -> None:
    """Raises ConfigError where the graph lacks what these options need.

    `induced`: the edge columns are those of induced edges, which are in-edges whatever the direction.
    """
    if not 0 <= split_set < max(manifest.num_split_sets, 1):
        held = f"one of the graph's {manifest.num_split_sets}" if manifest.num_split_sets else "0, the graph has none"
        raise ConfigError(f"split set: expected {held}, got {split_set}; set --data.split_set")
    if direction != "in" and not (manifest.symmetric or manifest.has_out_edges):
        raise no_out_edges(direction)
    if "weight" in (scheme, *edge_columns) and not manifest.has_edge_weight:
        raise ConfigError(f"{manifest.name}: the graph has no edge weights; ingest a source that has them")
    if (timed or scheme == "last" or "time" in edge_columns) and not manifest.has_edge_time:
        raise ConfigError(NO_EDGE_TIMES)
    if scheme == "last" and direction == "both" and not manifest.symmetric:
        raise ConfigError(LAST_OF_BOTH)
    of_out_edges = direction != "in" and not manifest.symmetric and not induced
    if "id" in edge_columns and not manifest.has_edge_id and (of_out_edges or manifest.num_partitions > 1):
        # In one partition the place of an in-edge is its id; several do not know how many edges lie before theirs.
        raise ConfigError(NO_EDGE_IDS)
    if "feature" in edge_columns:
        if not manifest.edge_feature_dim:
            raise ConfigError(f"{manifest.name}: the graph has no edge features; ingest a source that has them")
        if of_out_edges:
            raise ConfigError(NO_EDGE_FEATURES)


def needed_columns(columns: tuple[EdgeColumn, ...], by_weight: bool) -> tuple[EdgeColumn, ...]:
    """Those of batches and, of a search by weight, the weights."""
    return (*columns, "weight") if by_weight else columns


def integer_ids(node: np.ndarray) -> np.ndarray:
    """Node ids as the owners take them: int32 or int64 in this machine's byte order, the same array where it is that already.

    Raises ConfigError for anything but a one-dimensional array of integers.
    """
    node = np.asarray(node)
    if node.dtype.kind not in "iu":
        raise ConfigError(f"expected integer node ids, got dtype {node.dtype}")
    if node.ndim != 1:
        raise ConfigError(f"expected a one-dimensional array of node ids, got shape {node.shape}")
    if node.dtype in (np.int64, np.int32):
        return node
    if node.dtype.kind == "u" and len(node) and node.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"expected node ids below 2^63, got {node.max()}")
    return node.astype(np.int64)
