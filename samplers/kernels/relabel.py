"""Translates node ids into batch positions, in order of first appearance. Uses a dense map if it is small enough, otherwise an open-addressing hash table."""

from collections import deque

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.prefetch import prefetch
from graphmill.samplers.kernels.subgraphs import find_slot, table_bits


@compiled
def _insert_all(table_id, table_position, node, num_nodes):
    """Fills an empty table with the nodes [0, num_nodes). Returns the index of a repeated node, or -1."""
    bits = table_bits(len(table_id) // 2)
    for i in range(num_nodes):
        slot = find_slot(table_id, 0, bits, node[i])
        if table_id[slot] != -1:
            return i
        table_id[slot], table_position[slot] = node[i], i
    return -1


@compiled
def _locate(table_id, table_position, node, num_nodes, query, position):
    """Writes the positions of `query` to `position` and appends new ids to `node`. Returns the new number of nodes."""
    bits = table_bits(len(table_id) // 2)
    for i in range(len(query)):
        slot = find_slot(table_id, 0, bits, query[i])
        if table_id[slot] == -1:
            table_id[slot], table_position[slot] = query[i], num_nodes
            node[num_nodes] = query[i]
            num_nodes += 1
        position[i] = table_position[slot]
    return num_nodes


def hash_table(node: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids int64, positions int32): a hash table of positions in `node`. With `capacity` ids the table is half full.

    Raises ValueError if a node is repeated.
    """
    size = 1 << max(4, (2 * max(capacity, 1) - 1).bit_length())
    table_id = np.full(size, -1, np.int64)
    table_position = np.empty(size, np.int32)
    repeated = _insert_all(table_id, table_position, node, len(node))
    if repeated >= 0:
        raise ValueError(f"expected distinct nodes, got node {int(node[repeated])} twice")
    return table_id, table_position


_AHEAD = 24  # queries between an entry's prefetch and its use


@compiled
def _locate_in_map(position_of_id, zero, node, num_nodes, query, position):
    """Like `_locate`, but over a dense map in which the entry for position p is `zero` + p. No branch depends on the entries, because a mispredicted branch
    would stop the reads that follow."""
    last = len(query) - 1
    for i in range(len(query)):
        prefetch(position_of_id, query[min(i + _AHEAD, last)])  # type: ignore[call-arg]  # the compiler passes the context
        wanted = query[i]
        known = np.int64(position_of_id[wanted]) - zero
        is_new = known < 0
        place = num_nodes if is_new else known
        position_of_id[wanted] = zero + place
        node[num_nodes] = wanted  # overwritten unless the node is new
        position[i] = place
        num_nodes += is_new
    return num_nodes


@compiled
def _place_all(position_of_id, zero, node):
    """Writes the positions of distinct nodes to an empty map. Returns -1, or the index of a repeated node. After a repeated node the map must not be used."""
    for i in range(len(node)):
        if position_of_id[node[i]] >= zero:
            return i
        position_of_id[node[i]] = zero + i
    return -1


class PositionMaps:
    """Dense maps from node id to batch position, reused without clearing: the entries that a batch writes are larger than the entries of all earlier batches.

    There is one map per working thread, with 4 bytes per node of the graph. Above `max_bytes` a map is slower than a hash table and is not used.
    """

    def __init__(self, num_nodes: int, max_bytes: int = 1 << 28, last_entry: int = 2**31 - 1) -> None:
        self._num_nodes, self._last_entry = num_nodes, last_entry
        self.fits = 4 * num_nodes <= max_bytes
        self._free: deque[tuple[np.ndarray, int]] = deque()

    def borrow(self) -> tuple[np.ndarray, int]:
        """(int32 [num_nodes], zero): an entry >= `zero` is `zero` + a position; smaller entries are unused."""
        try:
            position_of_id, zero = self._free.pop()
        except IndexError:
            return np.zeros(self._num_nodes, np.int32), 1
        if zero + self._num_nodes > self._last_entry:
            position_of_id[:] = 0
            zero = 1
        return position_of_id, zero

    def give_back(self, position_of_id: np.ndarray, zero: int, num_nodes: int) -> None:
        """Takes back a map after a batch of `num_nodes` nodes."""
        self._free.append((position_of_id, zero + num_nodes))


class Relabeler:
    """Positions of nodes in a batch: first the nodes in `node`, then other nodes in order of first appearance.

    With `maps` it borrows a dense map, and `close` gives the map back. Without `maps`, or if the maps do not fit, it uses a hash table.
    """

    def __init__(self, node: np.ndarray, maps: PositionMaps | None = None) -> None:
        self._node = node.astype(np.int64)
        self._num_nodes = len(node)
        self._maps = maps if maps is not None and maps.fits else None
        if self._maps is not None:
            self._map, self._zero = self._maps.borrow()
            repeated = _place_all(self._map, self._zero, self._node)
            if repeated >= 0:
                raise ValueError(f"expected distinct nodes, got node {int(node[repeated])} twice")
        else:
            self._table = hash_table(self._node, max(4 * len(node), 1024))

    @property
    def num_nodes(self) -> int:
        return self._num_nodes

    @property
    def node(self) -> np.ndarray:
        """int64 [num_nodes]: node ids by position."""
        return self._node[: self._num_nodes]

    def add(self, query: np.ndarray) -> np.ndarray:
        """int32 [len(query)]: positions of ids; new ids are appended."""
        most = self._num_nodes + len(query)
        if self._maps is None and 2 * most > len(self._table[0]):
            self._table = hash_table(self.node, 2 * most)
        if most >= len(self._node):  # one entry more than needed, because the map's loop writes one entry ahead
            grown = np.empty(max(most + 1, 2 * len(self._node)), np.int64)
            grown[: self._num_nodes] = self.node
            self._node = grown
        position = np.empty(len(query), np.int32)
        if self._maps is None:
            self._num_nodes = _locate(*self._table, self._node, self._num_nodes, query, position)
        else:
            self._num_nodes = _locate_in_map(self._map, self._zero, self._node, self._num_nodes, query, position)
        return position

    def close(self) -> None:
        """Gives a borrowed map back. After an error `close` is not called, and the map is dropped."""
        if self._maps is not None:
            self._maps.give_back(self._map, self._zero, self._num_nodes)

    def open(self) -> None:
        """Borrows a map again, after `close`."""
        if self._maps is not None:
            self._map, self._zero = self._maps.borrow()
            _place_all(self._map, self._zero, self.node)
