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
    ids = np.stack([src, dst], axis=1).ravel()
    new = ids[partition[ids] < 0]
    if not len(new):
        return
    new_id, first = np.unique(new, return_index=True)
    # Adjacency of the new nodes only, grouped by node: a stable sort keeps it a function of the stream.
    owner = np.concatenate([src, dst])
    other = np.concatenate([dst, src])
    mine = partition[owner] < 0
    owner, other = np.searchsorted(new_id, owner[mine]), other[mine]
    order = np.argsort(owner, kind="stable")
    indptr = np.zeros(len(new_id) + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=len(new_id)), out=indptr[1:])
    neighbour, appearance = other[order], np.argsort(first)
    for _ in range(1 + NUM_RESTREAMS):
        _place(appearance, new_id, indptr, neighbour, partition, size, capacity)


@compiled
def _place(order, new_id, indptr, neighbour, partition, size, capacity):
    """One greedy sweep; a node that has a partition leaves it first and may come back."""
    num_partitions = len(size)
    count = np.zeros(num_partitions, dtype=np.int64)
    for row in order:
        if partition[new_id[row]] >= 0:
            size[partition[new_id[row]]] -= 1
        count[:] = 0
        for position in range(indptr[row], indptr[row + 1]):
            owner = partition[neighbour[position]]
            if owner >= 0:
                count[owner] += 1
        best, best_score = -1, -1.0
        for p in range(num_partitions):
            if size[p] >= capacity:
                continue
            score = count[p] * (1.0 - size[p] / capacity)
            if score > best_score or (score == best_score and size[p] < size[best]):
                best, best_score = p, score
        partition[new_id[row]] = best
        size[best] += 1


@compiled
def fill_up(partition, size):
    """Gives every node that is still without a partition to the emptiest one, in order of rows."""
    for row in range(len(partition)):
        if partition[row] < 0:
            smallest = np.argmin(size)
            partition[row] = smallest
            size[smallest] += 1
