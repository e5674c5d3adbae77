"""Compiled loops over one partition's lists: they find entries and induced edges. They release the GIL and keep no state.

Loops that wait for memory do no other work, so that many reads run at the same time.
"""

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.prefetch import prefetch
from graphmill.samplers.kernels.subgraphs import DamagedLists, list_bounds

_AHEAD = 48  # entries between a prefetch and its read


@compiled
def degrees_until(start, degree, time, until):
    """int64 [n]: number of entries of list i with a time of at most `until[i]`. The list begins at `start[i]` and ascends in time."""
    kept = np.empty(len(start), np.int64)
    for i in range(len(start)):
        low, high = start[i], start[i] + degree[i]
        while low < high:
            middle = (low + high) // 2
            if time[middle] <= until[i]:
                low = middle + 1
            else:
                high = middle
        kept[i] = low - start[i]
    return kept


@compiled
def entries(values, position):
    """values[position] of a one-dimensional array."""
    taken = np.empty(len(position), values.dtype)
    last = len(position) - 1
    for e in range(len(position)):
        prefetch(values, position[min(e + _AHEAD, last)])  # type: ignore[call-arg]  # the compiler passes the context
        taken[e] = values[position[e]]
    return taken


@compiled
def all_positions(start, degree):
    """int64 [sum(degree)]: positions of all entries of the lists."""
    total = 0
    for i in range(len(degree)):
        total += degree[i]
    position = np.empty(total, np.int64)
    end = 0
    for i in range(len(degree)):
        for j in range(degree[i]):
            position[end + j] = start[i] + j
        end += degree[i]
    return position


@compiled
def joined_positions(count, entry, in_start, in_degree, out_start):
    """Positions of entries of joined lists (a node's in-edges, then its out-edges). An out-edge at position p is encoded as -1 - p."""
    position = np.empty(len(entry), np.int64)
    end = 0
    for i in range(len(count)):
        for _ in range(count[i]):
            j = entry[end]
            position[end] = in_start[i] + j if j < in_degree[i] else -1 - (out_start[i] + j - in_degree[i])
            end += 1
    return position


@compiled
def joined_entries(in_values, out_values, position):
    """Values at the positions that `joined_positions` returns."""
    taken = np.empty(len(position), in_values.dtype)
    for e in range(len(position)):
        p = position[e]
        taken[e] = in_values[p] if p >= 0 else out_values[-1 - p]
    return taken


@compiled
def induced_edges_by_map(indptr, indices, row, position_of_id):
    """In-neighbors of each row whose position in the dense map is >= 0: (count [n], positions int32, entries int64).

    Raises DamagedLists for lists or ids out of range, or if a file changes between the two passes.
    """
    start, degree = list_bounds(indptr, row, len(indices))
    count = np.zeros(len(row), np.int64)
    total, largest, last = 0, np.uint64(0), np.uint64(len(position_of_id) - 1)
    for i in range(len(row)):
        for e in range(start[i], start[i] + degree[i]):
            node = np.uint64(indices[e])
            largest = max(largest, node)
            count[i] += position_of_id[min(node, last)] >= 0
        total += count[i]
    if largest > last:
        raise DamagedLists
    neighbor, entry = np.empty(total, np.int32), np.empty(total, np.int64)
    end = 0
    for i in range(len(row)):
        for e in range(start[i], start[i] + degree[i]):
            position = position_of_id[min(np.uint64(indices[e]), last)]
            if position >= 0:
                if end == total:
                    raise DamagedLists
                neighbor[end], entry[end] = position, e
                end += 1
    if end < total:
        raise DamagedLists
    return count, neighbor, entry
