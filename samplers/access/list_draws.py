"""Answers `SampleNeighbors` from one partition: finds the bounds of the lists, draws entries, and reads the columns of each drawn entry.

A node's list has its in-edges, its out-edges, or its in-edges followed by its out-edges. In a symmetric graph in-edges and out-edges are the same, so "both"
gives the list only once. If edges have times, lists are sorted by time, so the edges up to a time are a prefix of the list. Entry j of a list is the same edge
for every partitioning. Therefore every draw is the same for every partitioning.
"""

from dataclasses import dataclass

import numpy as np

from graphmill.core.errors import ConfigError, DataError
from graphmill.samplers.access.node_tables import NodeTables
from graphmill.samplers.kernels import draws
from graphmill.samplers.kernels.lists import (
    all_positions,
    degrees_until,
    entries,
    joined_entries,
    joined_positions,
)
from graphmill.samplers.kernels.random_streams import hash_again, hash_ids
from graphmill.samplers.kernels.subgraphs import DamagedLists, list_bounds
from graphmill.samplers.vocabulary.messages import EdgeColumn, NeighborLists, SampleNeighbors, WalkDirection
from graphmill.samplers.vocabulary.requirements import (
    LAST_OF_BOTH,
    NO_EDGE_FEATURES,
    NO_EDGE_IDS,
    NO_EDGE_TIMES,
    NO_EDGE_WEIGHTS,
    no_out_edges,
)
from graphmill.storage.partition import Partition, are_below


@dataclass(frozen=True)
class EdgeLists:
    """One direction of a partition's edges, with the edges' columns."""

    indptr: np.ndarray
    indices: np.ndarray
    num_sources: int  # upper bound of `indices`, exclusive
    edge_id: np.ndarray | None
    weight: np.ndarray | None
    time: np.ndarray | None
    feature: np.ndarray | None


def edge_lists(partition: Partition, direction: WalkDirection) -> tuple[EdgeLists, EdgeLists | None]:
    """Returns (lists, second lists or None). The second lists follow the first. Raises ConfigError if out-edges are requested but not stored.

    A symmetric graph stores no out-edges: its in-edges serve as out-edges, with the columns of the reverse edge.
    """
    in_columns = (partition.edge_id, partition.edge_weight, partition.edge_time, partition.edge_feature)
    inward = EdgeLists(partition.indptr, partition.indices, partition.num_sources, *in_columns)
    if direction == "in" or partition.out_indptr is partition.indptr:
        return inward, None
    if partition.out_indptr is None or partition.out_indices is None:
        raise no_out_edges(direction)
    out_columns = (partition.out_edge_id, partition.out_edge_weight, partition.out_edge_time, None)
    outward = EdgeLists(partition.out_indptr, partition.out_indices, partition.num_sources, *out_columns)
    return (outward, None) if direction == "out" else (inward, outward)


def _take(lists: EdgeLists, more: EdgeLists | None, name: str, place: np.ndarray) -> np.ndarray:
    """Returns the values of a column for these entries."""
    values = getattr(lists, name)
    return entries(values, place) if more is None else joined_entries(values, getattr(more, name), place)


class _Lists:
    """The lists of the requested nodes; each list has one or two pieces. With `until`, list i has only edges whose time is at most until[i]."""

    def __init__(
        self, lists: EdgeLists, more: EdgeLists | None, row: np.ndarray, until: np.ndarray | None = None
    ) -> None:
        self._lists, self._more = lists, more
        self.start, self.degree = _bounds(lists, row, until)
        self.first = self.start
        if more is not None:
            self._in_degree = self.degree
            self._out_start, out_degree = _bounds(more, row, until)
            self.degree = self._in_degree + out_degree
            self.first = np.zeros(len(row), np.int64)  # drawn positions are relative to the start of their list

    @property
    def are_joined(self) -> bool:
        return self._more is not None

    def place(self, count: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Returns the positions of drawn entries in the stored columns."""
        if self._more is None:
            return position
        return joined_positions(count, position, self.start, self._in_degree, self._out_start)

    def take(self, name: str, place: np.ndarray) -> np.ndarray:
        return _take(self._lists, self._more, name, place)

    def sources(self, place: np.ndarray) -> np.ndarray:
        """Ids of the neighbors at these entries. Raises DamagedLists if an id is not the id of a node."""
        return checked(self.take("indices", place), self._lists.num_sources)

    def everything(self) -> np.ndarray:
        """Returns the positions of all entries of all lists in the stored columns."""
        position = all_positions(self.first, self.degree)
        return self.place(self.degree, position)


def checked(ids: np.ndarray, num_sources: int) -> np.ndarray:
    """Returns the same ids. Raises DamagedLists if an id is not in [0, num_sources)."""
    if not are_below(ids, num_sources):
        raise DamagedLists
    return ids


def _bounds(lists: EdgeLists, row: np.ndarray, until: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """(start, degree) of the rows' lists. Raises ConfigError if `until` is given and edges have no times."""
    start, degree = list_bounds(lists.indptr, row, len(lists.indices))
    if until is None:
        return start, degree
    if lists.time is None:
        raise ConfigError(NO_EDGE_TIMES)
    return start, degrees_until(start, degree, lists.time, until)


def sample_lists(
    partition: Partition, num_nodes: int, row: np.ndarray, request: SampleNeighbors, tables: NodeTables | None
) -> NeighborLists:
    """The reply to a request; `row` are the requested rows of the partition, `num_nodes` is the graph's number of nodes."""
    lists, more = edge_lists(partition, request.direction)
    row_lists = _Lists(lists, more, row, request.until)
    count, position = _draw(partition, row, row_lists, request, tables)
    place = row_lists.place(count, position)
    whole = partition.num_nodes == num_nodes
    return NeighborLists(
        count=count,
        neighbor=row_lists.sources(place),
        **edge_columns(lists, more, place, request.columns, has_ranks=whole and lists.indptr is partition.indptr),
    )


def _draw(
    partition: Partition, row: np.ndarray, lists: _Lists, request: SampleNeighbors, tables: NodeTables | None
) -> tuple[np.ndarray, np.ndarray]:
    """Draws entries of each list. Returns (number of drawn entries per list [n], position of each drawn entry)."""
    first, degree, fanout = lists.first, lists.degree, request.fanout
    key = np.uint64(request.key)
    if request.scheme == "labor":
        source = lists.sources(lists.everything())
        coin = hash_ids(key, entries(partition.original_id if tables is None else tables.permanent_id, source))
        return draws.draw_labor(first, degree, fanout, coin)
    if request.scheme == "last":
        if partition.edge_time is None:
            raise ConfigError(NO_EDGE_TIMES)
        if lists.are_joined:
            raise ConfigError(LAST_OF_BOTH)
        return draws.draw_last(first, degree, fanout)
    first_id = partition.first_id
    keys = hash_ids(key, entries(partition.original_id, row) if first_id is None else row + first_id)
    if request.until is not None:  # the key includes the time: draws of a node at two times are independent
        keys = hash_again(keys, request.until)
    if request.scheme == "uniform":
        if request.replace:
            return draws.draw_with_replacement(first, degree, keys, fanout)
        return draws.draw_uniform(first, degree, keys, fanout)
    weight = _weights(partition, row, lists, request, tables)
    weight_first = np.cumsum(degree) - degree
    if request.replace:
        return draws.draw_weighted_with_replacement(first, degree, keys, fanout, weight_first, weight)
    return draws.draw_weighted(first, degree, keys, fanout, weight_first, weight)


def _weights(
    partition: Partition, row: np.ndarray, lists: _Lists, request: SampleNeighbors, tables: NodeTables | None
) -> np.ndarray:
    """Weights of all entries, list by list. Raises DataError for a weight that is negative or not finite."""
    place = lists.everything()
    if request.scheme == "degree":
        in_degree = np.diff(partition.indptr) if tables is None else tables.in_degree
        return np.maximum(entries(in_degree, lists.sources(place)), 1).astype(np.float32)
    if partition.edge_weight is None:
        raise ConfigError(NO_EDGE_WEIGHTS)
    weight = lists.take("weight", place)
    check_weights(weight, lists.degree, partition.original_id, row)
    return weight


def check_weights(weight: np.ndarray, count: np.ndarray, permanent_id: np.ndarray, row: np.ndarray) -> None:
    """Raises DataError if one of row i's `count[i]` weights is negative or not finite."""
    bad = np.flatnonzero(~((weight >= 0) & (weight < np.inf)))
    if len(bad):
        owner = np.searchsorted(np.cumsum(count), bad[0], side="right")
        raise DataError(
            f"edge weights: expected finite numbers >= 0 to draw by, got {weight[bad[0]]} on an edge of node "
            f"{int(permanent_id[row[owner]])}; clean the source and ingest it again"
        )


def edge_columns(
    lists: EdgeLists, more: EdgeLists | None, place: np.ndarray, columns: tuple[EdgeColumn, ...], *, has_ranks: bool
) -> dict[str, np.ndarray]:
    """The requested columns of the entries at positions `place`, by their names in `NeighborLists`.

    An edge's id is its row in the source table, if the graph stores these rows. Otherwise the graph must have one partition (`has_ranks`); an in-edge's id is
    then its rank by the permanent ids of destination and source. If edges have times, it is the rank by destination, time and source. Raises ConfigError if a
    column is not stored.
    """
    taken = {}
    if "id" in columns:
        if lists.edge_id is not None:
            taken["edge_id"] = _take(lists, more, "edge_id", place)
        elif more is None and has_ranks:
            taken["edge_id"] = place
        else:
            raise ConfigError(NO_EDGE_IDS)
    if "weight" in columns:
        if lists.weight is None:
            raise ConfigError(NO_EDGE_WEIGHTS)
        taken["edge_weight"] = _take(lists, more, "weight", place)
    if "time" in columns:
        if lists.time is None:
            raise ConfigError(NO_EDGE_TIMES)
        taken["edge_time"] = _take(lists, more, "time", place)
    if "feature" in columns:
        if lists.feature is None or more is not None:
            raise ConfigError(NO_EDGE_FEATURES)
        taken["edge_feature"] = np.take(lists.feature, place, axis=0)
    return taken
