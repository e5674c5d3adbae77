"""Compiled loops over one partition's CSC: drawing neighbors, inducing edges. They release the GIL and keep no state."""

import numba
import numpy as np

from samplers.random_streams import below, hash64

# Below this, membership among the positions already drawn is a scan; above, a hash set: no quadratic cost at large fan-outs.
_SCAN_LIMIT = 48


@numba.njit(nogil=True, cache=True)
def count_sampled(indptr, row, fanout):
    """int64 [n]: how many neighbors a draw without replacement takes from each row."""
    count = np.empty(len(row), np.int64)
    for i in range(len(row)):
        degree = indptr[row[i] + 1] - indptr[row[i]]
        count[i] = degree if fanout < 0 else min(degree, fanout)
    return count


@numba.njit(nogil=True, cache=True)
def _draw_scan(key, degree, take, position):
    """`take` distinct positions below `degree` into `position`, ascending: Floyd's algorithm (CACM 30(9), 1987)."""
    for filled in range(take):
        upper = degree - take + filled
        drawn = below(hash64(key, np.uint64(filled)), upper + 1)
        for j in range(filled):
            if position[j] == drawn:
                drawn = upper  # larger than all before it
                break
        j = filled
        while j > 0 and position[j - 1] > drawn:
            position[j] = position[j - 1]
            j -= 1
        position[j] = drawn


@numba.njit(nogil=True, cache=True)
def _draw_hashed(key, degree, take, position):
    """As `_draw_scan`, with a hash set in place of the scan and one sort at the end."""
    size = 1
    while size < 2 * take:
        size *= 2
    mask = size - 1
    table = np.full(size, -1, np.int64)
    for filled in range(take):
        upper = degree - take + filled
        drawn = below(hash64(key, np.uint64(filled)), upper + 1)
        slot = np.int64(hash64(np.uint64(0), np.uint64(drawn)) & np.uint64(mask))
        while table[slot] != -1 and table[slot] != drawn:
            slot = (slot + 1) & mask
        if table[slot] == drawn:
            drawn = upper
            slot = np.int64(hash64(np.uint64(0), np.uint64(drawn)) & np.uint64(mask))
            while table[slot] != -1:
                slot = (slot + 1) & mask
        table[slot] = drawn
        position[filled] = drawn
    position[:take].sort()


@numba.njit(nogil=True, cache=True)
def sample_neighbors(indptr, indices, original_id, row, fanout, key):
    """Draws up to `fanout` distinct in-neighbors per row (-1: all): (count [n], neighbor [sum(count)]).

    The draw of a row is a function of `key` and the row's permanent id alone; with lists in ascending permanent id, so is its result.
    """
    count = count_sampled(indptr, row, fanout)
    total = 0
    for i in range(len(row)):
        total += count[i]
    neighbor = np.empty(total, indices.dtype)
    position = np.empty(max(fanout, 1), np.int64)
    end = 0
    for i in range(len(row)):
        first = indptr[row[i]]
        degree = indptr[row[i] + 1] - first
        take = count[i]
        if take == degree:
            for j in range(take):
                neighbor[end + j] = indices[first + j]
        else:
            node_key = hash64(key, np.uint64(original_id[row[i]]))
            if take <= _SCAN_LIMIT:
                _draw_scan(node_key, degree, take, position)
            else:
                _draw_hashed(node_key, degree, take, position)
            for j in range(take):
                neighbor[end + j] = indices[first + position[j]]
        end += take
    return count, neighbor


@numba.njit(nogil=True, cache=True)
def induced_edges_by_map(indptr, indices, row, position_of_id):
    """In-neighbors of each row that have a position >= 0 in the dense map: (count [n], positions int32)."""
    count = np.zeros(len(row), np.int64)
    total = 0
    for i in range(len(row)):
        for e in range(indptr[row[i]], indptr[row[i] + 1]):
            if position_of_id[indices[e]] >= 0:
                count[i] += 1
        total += count[i]
    neighbor = np.empty(total, np.int32)
    end = 0
    for i in range(len(row)):
        for e in range(indptr[row[i]], indptr[row[i] + 1]):
            position = position_of_id[indices[e]]
            if position >= 0:
                neighbor[end] = position
                end += 1
    return count, neighbor


@numba.njit(nogil=True, cache=True)
def induced_edges_by_hash(indptr, indices, row, table_id, table_position):
    """As `induced_edges_by_map`, with an open-addressing table in place of the dense map."""
    mask = len(table_id) - 1
    count = np.zeros(len(row), np.int64)
    capacity = 16
    neighbor = np.empty(capacity, np.int32)
    end = 0
    for i in range(len(row)):
        for e in range(indptr[row[i]], indptr[row[i] + 1]):
            node = np.int64(indices[e])
            slot = np.int64(hash64(np.uint64(0), np.uint64(node)) & np.uint64(mask))
            while table_id[slot] != -1 and table_id[slot] != node:
                slot = (slot + 1) & mask
            if table_id[slot] == node:
                if end == capacity:
                    capacity *= 2
                    grown = np.empty(capacity, np.int32)
                    grown[:end] = neighbor
                    neighbor = grown
                neighbor[end] = table_position[slot]
                end += 1
                count[i] += 1
    return count, neighbor[:end].copy()
