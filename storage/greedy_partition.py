"""The compiled inner loops of the LDG partitioner (`storage.partitioners.assign_ldg`)."""

import numpy as np

from storage.compiled import compiled

# Further sweeps over the nodes of one window, each seeing where all their neighbours stand (Nishimura and Ugander,
# "Restreaming graph partitioning", KDD 2013): the edges are at hand, so it costs no further pass over the source.
NUM_RESTREAMS = 8


def place_window(src: np.ndarray, dst: np.ndarray, partition: np.ndarray, size: np.ndarray, capacity: int) -> None:
    """Places, in order of first appearance, the window's nodes that have no partition yet; edges count both ways.

    src, dst: int64 [k]. Updates partition (int32 [num_nodes], -1: not placed) and size (int64 [num_partitions]).
    """
    new_id, degree = _number_new(src, dst, partition)
    if not len(new_id):
        return
    indptr = np.concatenate([[0], np.cumsum(degree)])
    neighbour = _neighbours(src, dst, partition, indptr)
    place = np.full(len(new_id), -1, np.int32)
    for _ in range(1 + NUM_RESTREAMS):
        _sweep(indptr, neighbour, place, size, capacity)
    partition[new_id] = place


@compiled
def _number_new(src, dst, partition):
    """Ids (in order of first appearance) and degrees of the nodes without a partition; number k of them is left in
    `partition` as -2 - k, so that no table of all nodes is needed."""
    room = 1024
    new_id, degree = np.empty(room, np.int64), np.empty(room, np.int64)
    count = 0
    for i in range(len(src)):
        for end in range(2):
            node = src[i] if end == 0 else dst[i]
            found = partition[node]
            if found == -1:
                if count == room:
                    room *= 2
                    new_id = np.concatenate((new_id, np.empty(count, np.int64)))
                    degree = np.concatenate((degree, np.empty(count, np.int64)))
                partition[node] = -2 - count
                new_id[count], degree[count] = node, 1
                count += 1
            elif found < -1:
                degree[-2 - found] += 1
    return new_id[:count].copy(), degree[:count].copy()


@compiled
def _neighbours(src, dst, partition, indptr):
    """int32: the new nodes' neighbours in the window: a new one as its number, one that has a partition p as -1 - p."""
    neighbour = np.empty(indptr[-1], np.int32)
    fill = indptr[:-1].copy()
    for i in range(len(src)):
        one, other = partition[src[i]], partition[dst[i]]
        if one < -1:
            neighbour[fill[-2 - one]] = -2 - other if other < -1 else -1 - other
            fill[-2 - one] += 1
        if other < -1:
            neighbour[fill[-2 - other]] = -2 - one if one < -1 else -1 - one
            fill[-2 - other] += 1
    return neighbour


@compiled
def _sweep(indptr, neighbour, place, size, capacity):
    """One greedy sweep over the new nodes; one that has a partition (`place`) leaves it first and may come back."""
    num_partitions = len(size)
    count = np.zeros(num_partitions, dtype=np.int64)
    space = np.empty(num_partitions)
    for p in range(num_partitions):
        space[p] = 1.0 - size[p] / capacity
    for row in range(len(place)):
        left = place[row]
        if left >= 0:
            size[left] -= 1
            space[left] = 1.0 - size[left] / capacity
        count[:] = 0
        for position in range(indptr[row], indptr[row + 1]):
            other = neighbour[position]
            owner = place[other] if other >= 0 else -1 - other
            if owner >= 0:
                count[owner] += 1
        best, best_score = -1, -1.0
        for p in range(num_partitions):
            if size[p] >= capacity:
                continue
            score = count[p] * space[p]
            if score > best_score or (score == best_score and size[p] < size[best]):
                best, best_score = p, score
        place[row] = best
        size[best] += 1
        space[best] = 1.0 - size[best] / capacity


@compiled
def fill_up(partition, size):
    """Gives every node that is still without a partition to the emptiest one, in order of rows."""
    for row in range(len(partition)):
        if partition[row] < 0:
            smallest = np.argmin(size)
            partition[row] = smallest
            size[smallest] += 1
