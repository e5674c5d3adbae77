"""The compiled inner loops of the LDG partitioner (`storage.partitioners.assign_ldg`)."""

import numpy as np

from storage.compiled import compiled

# Further sweeps over the nodes of one window, each seeing where all their neighbours stand (Nishimura and Ugander,
# "Restreaming graph partitioning", KDD 2013): the edges are at hand, so it costs no further pass over the source.
NUM_RESTREAMS = 8

_BLOCK_EDGES = 512  # looked up ahead


def place_window(src: np.ndarray, dst: np.ndarray, partition: np.ndarray, size: np.ndarray, capacity: int) -> None:
    """Places, in order of first appearance, the window's nodes that have no partition yet; edges count both ways.

    src, dst: int64 [k]. Updates partition (int32 [num_nodes], -1: not placed) and size (int64 [num_partitions]).
    """
    new_id, degree, ends, _ = _number_new(src, dst, partition)
    if not len(new_id):
        return
    indptr = np.concatenate([[0], np.cumsum(degree)])
    neighbour = _neighbours(ends, indptr)
    place = np.full(len(new_id), -1, np.int32)
    for _ in range(1 + NUM_RESTREAMS):
        if not _sweep(indptr, neighbour, place, size, capacity):
            break  # from the same state, the next sweep would move none either
    partition[new_id] = place


@compiled
def _number_new(src, dst, partition):
    """(ids, degrees, ends, a value to ignore): the nodes without a partition in order of first appearance, and int32 [k, 2], each edge's ends.

    An end is a new node's number, or -1 - p where it has partition p. Number k is left in `partition` as -2 - k, so that no table of
    all nodes is needed; a node is looked up there once per edge, for tables of all nodes do not stay in cache.
    """
    room = 1024
    new_id, degree = np.empty(room, np.int64), np.empty(room, np.int64)
    ends = np.empty((len(src), 2), np.int32)
    count = touched = 0
    for i in range(len(src)):
        if i % _BLOCK_EDGES == 0:
            # These reads do not depend on each other, so the processor overlaps them; below, a branch would wait for each.
            for k in range(i, min(i + _BLOCK_EDGES, len(src))):
                touched += partition[src[k]] + partition[dst[k]]
        for end in range(2):
            node = src[i] if end == 0 else dst[i]
            part = partition[node]
            if part >= 0:
                ends[i, end] = -1 - part
                continue
            if part == -1:
                if count == room:
                    room *= 2
                    new_id = np.concatenate((new_id, np.empty(count, np.int64)))
                    degree = np.concatenate((degree, np.empty(count, np.int64)))
                part = -2 - count
                partition[node] = part
                new_id[count], degree[count] = node, 0
                count += 1
            ends[i, end] = -2 - part
            degree[-2 - part] += 1
    return new_id[:count].copy(), degree[:count].copy(), ends, touched


@compiled
def _neighbours(ends, indptr):
    """int32: the new nodes' neighbours in the window, as ends."""
    neighbour = np.empty(indptr[-1], np.int32)
    fill = indptr[:-1].copy()
    for i in range(len(ends)):
        one, other = ends[i, 0], ends[i, 1]
        if one >= 0:
            neighbour[fill[one]] = other
            fill[one] += 1
        if other >= 0:
            neighbour[fill[other]] = one
            fill[other] += 1
    return neighbour


@compiled
def _sweep(indptr, neighbour, place, size, capacity):
    """One greedy sweep over the new nodes; one that has a partition (`place`) leaves it first and may come back.

    Returns how many have moved.
    """
    num_moved = 0
    num_partitions = len(size)
    count = np.zeros(num_partitions, dtype=np.int64)
    touched = np.empty(num_partitions, dtype=np.int64)
    space = np.empty(num_partitions)
    for p in range(num_partitions):
        space[p] = 1.0 - size[p] / capacity
    for row in range(len(place)):
        left = place[row]
        if left >= 0:
            size[left] -= 1
            space[left] = 1.0 - size[left] / capacity
        num_touched = 0
        for position in range(indptr[row], indptr[row + 1]):
            other = neighbour[position]
            owner = place[other] if other >= 0 else -1 - other
            if owner >= 0:
                if count[owner] == 0:
                    touched[num_touched] = owner
                    num_touched += 1
                count[owner] += 1
        # An open partition with a neighbour scores above 0, one without exactly 0: few need a look.
        best, best_score = -1, 0.0
        for i in range(num_touched):
            p = touched[i]
            score = count[p] * space[p]
            count[p] = 0
            if size[p] >= capacity:
                continue
            if score > best_score or (score == best_score and (size[p], p) < (size[best], best)):
                best, best_score = p, score
        if best < 0:
            best = int(np.argmin(size))
        num_moved += best != left
        place[row] = best
        size[best] += 1
        space[best] = 1.0 - size[best] / capacity
    return num_moved


@compiled
def fill_up(partition, size):
    """Gives every node that is still without a partition to the emptiest one, in order of rows."""
    for row in range(len(partition)):
        if partition[row] < 0:
            smallest = np.argmin(size)
            partition[row] = smallest
            size[smallest] += 1
