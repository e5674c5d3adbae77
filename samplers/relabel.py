"""Node ids to batch positions by a compiled open-addressing hash table, in order of first appearance."""

import numba
import numpy as np

from samplers.random_streams import hash64

_EMPTY = -1


@numba.njit(nogil=True, cache=True)
def _insert_all(table_id, table_position, node, num_nodes):
    """Fills an empty table with the distinct nodes [0, num_nodes); returns the index of a repeated one, or -1."""
    mask = len(table_id) - 1
    for i in range(num_nodes):
        slot = np.int64(hash64(np.uint64(0), np.uint64(node[i])) & np.uint64(mask))
        while table_id[slot] != -1:
            if table_id[slot] == node[i]:
                return i
            slot = (slot + 1) & mask
        table_id[slot] = node[i]
        table_position[slot] = i
    return -1


@numba.njit(nogil=True, cache=True)
def _locate(table_id, table_position, node, num_nodes, query, position):
    """Positions of `query` into `position`, appending unseen ids to `node`; returns the new number of nodes."""
    mask = len(table_id) - 1
    for i in range(len(query)):
        wanted = np.int64(query[i])
        slot = np.int64(hash64(np.uint64(0), np.uint64(wanted)) & np.uint64(mask))
        while table_id[slot] != -1 and table_id[slot] != wanted:
            slot = (slot + 1) & mask
        if table_id[slot] == -1:
            table_id[slot] = wanted
            table_position[slot] = num_nodes
            node[num_nodes] = wanted
            num_nodes += 1
        position[i] = table_position[slot]
    return num_nodes


def hash_table(node: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids int64, positions int32): a table of `node`'s positions with room for `capacity` ids at half load.

    Raises ValueError where a node is repeated.
    """
    size = 1 << max(4, (2 * max(capacity, 1) - 1).bit_length())
    table_id = np.full(size, _EMPTY, np.int64)
    table_position = np.empty(size, np.int32)
    repeated = _insert_all(table_id, table_position, node, len(node))
    if repeated >= 0:
        raise ValueError(f"expected distinct nodes, got node {int(node[repeated])} twice")
    return table_id, table_position


class Relabeler:
    """Positions of nodes in a batch: the given ones first, then others in order of first appearance."""

    def __init__(self, node: np.ndarray) -> None:
        self._node = node.astype(np.int64)
        self._num_nodes = len(node)
        self._table = hash_table(self._node, max(4 * len(node), 1024))

    @property
    def num_nodes(self) -> int:
        return self._num_nodes

    @property
    def node(self) -> np.ndarray:
        """int64 [num_nodes]: node ids by position."""
        return self._node[: self._num_nodes]

    def add(self, query: np.ndarray) -> np.ndarray:
        """int32 [len(query)]: positions, new ids appended."""
        most = self._num_nodes + len(query)
        if 2 * most > len(self._table[0]):
            self._table = hash_table(self.node, 2 * most)
        if most > len(self._node):
            grown = np.empty(max(most, 2 * len(self._node)), np.int64)
            grown[: self._num_nodes] = self.node
            self._node = grown
        position = np.empty(len(query), np.int32)
        self._num_nodes = _locate(*self._table, self._node, self._num_nodes, query, position)
        return position
