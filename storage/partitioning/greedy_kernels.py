"""The compiled inner loops of the partitioners `ldg` and `metis` (`graphmill.storage.partitioning.partitioners`)."""

import numpy as np

from graphmill.core.compile_cache import compiled

# Number of additional sweeps over the nodes of one window. In these sweeps the partitions of all neighbours are known (Nishimura and Ugander,
# "Restreaming graph partitioning", KDD 2013). The edges of the window are in memory, so no further pass over the source is needed.
NUM_RESTREAMS = 8

_BLOCK_EDGES = 512  # number of edges whose entries are loaded into cache in advance


def place_window(
    src: np.ndarray,
    dst: np.ndarray,
    partition: np.ndarray,
    seen: np.ndarray,
    type_offsets: np.ndarray,
    size: np.ndarray,
    capacity: np.ndarray,
) -> None:
    """Assigns partitions to the window's nodes, in order of first appearance, except nodes that had more edges in an earlier window. Edges count both ways.

    src, dst: int64 [k]. type_offsets: int64 [num_types + 1]; type t has the nodes [type_offsets[t], type_offsets[t + 1]). capacity: int64
    [num_types]. Updates partition (int32 [num_nodes], -1: not placed), seen (int32 [num_nodes]: number of the node's edges in the window that placed the
    node) and size (int64 [num_types, num_partitions]).
    """
    node, degree, before, ends, _ = _number(src, dst, partition)
    kind = np.searchsorted(type_offsets, node, side="right") - 1
    is_placed = degree >= seen[node]
    seen[node] = np.maximum(seen[node], degree)
    indptr = np.concatenate([[0], np.cumsum(np.where(is_placed, degree, 0))])
    neighbour = _neighbours(ends, indptr, is_placed)
    left = is_placed & (before >= 0)
    size -= np.bincount(kind[left] * size.shape[1] + before[left], minlength=size.size).reshape(size.shape)
    place = np.where(is_placed, -1, before)
    for _ in range(1 + NUM_RESTREAMS):
        if not _sweep(indptr, neighbour, is_placed, kind, place, size, capacity):
            break  # another sweep would begin in the same state, and would also move no node
    partition[node] = place


@compiled
def _number(src, dst, partition):
    """Numbers the nodes of a window in order of first appearance. Returns the nodes' ids, degrees and partitions, `ends` (int32 [k, 2]: the numbers of the two
    ends of each edge), and a value that the caller ignores.

    During the loop, `partition` holds -2 - k for the node with number k, so no other table of all nodes is needed. The loop looks up each end of an edge only
    once, because a table of all nodes does not fit into cache.
    """
    room = 1024
    node, degree, before = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int32)
    ends = np.empty((len(src), 2), np.int32)
    count = touched = 0
    for i in range(len(src)):
        if i % _BLOCK_EDGES == 0:
            # This loop loads the entries into cache. Its reads are independent, so the processor overlaps them. In the loop below a branch waits for each read.
            for k in range(i, min(i + _BLOCK_EDGES, len(src))):
                touched += partition[src[k]] + partition[dst[k]]
        for end in range(2):
            one = src[i] if end == 0 else dst[i]
            part = partition[one]
            if part >= -1:
                if count == room:
                    room *= 2
                    node = np.concatenate((node, np.empty(count, np.int64)))
                    degree = np.concatenate((degree, np.empty(count, np.int64)))
                    before = np.concatenate((before, np.empty(count, np.int32)))
                node[count], degree[count], before[count] = one, 0, part
                part = -2 - count
                partition[one] = part
                count += 1
            ends[i, end] = -2 - part
            degree[-2 - part] += 1
    for number in range(count):
        partition[node[number]] = before[number]
    return node[:count].copy(), degree[:count].copy(), before[:count].copy(), ends, touched


@compiled
def _neighbours(ends, indptr, is_placed):
    """Returns the numbers (int32) of the neighbours in the window, for the nodes to be placed."""
    neighbour = np.empty(indptr[-1], np.int32)
    fill = indptr[:-1].copy()
    for i in range(len(ends)):
        one, other = ends[i, 0], ends[i, 1]
        if is_placed[one]:
            neighbour[fill[one]] = other
            fill[one] += 1
        if is_placed[other]:
            neighbour[fill[other]] = one
            fill[other] += 1
    return neighbour


@compiled
def _sweep(indptr, neighbour, is_placed, kind, place, size, capacity):
    """Makes one greedy sweep over the nodes to be placed. A node that already has a partition (`place`) is first removed from it, and may be put back.
    Returns the number of moved nodes."""
    num_moved = 0
    num_types, num_partitions = size.shape
    count = np.zeros(num_partitions, dtype=np.int64)
    touched = np.empty(num_partitions, dtype=np.int64)
    space = np.empty((num_types, num_partitions))
    for t in range(num_types):
        for p in range(num_partitions):
            space[t, p] = 1.0 - size[t, p] / capacity[t]
    for row in range(len(place)):
        if not is_placed[row]:
            continue
        t, left = kind[row], place[row]
        if left >= 0:
            size[t, left] -= 1
            space[t, left] = 1.0 - size[t, left] / capacity[t]
        num_touched = 0
        for position in range(indptr[row], indptr[row + 1]):
            owner = place[neighbour[position]]
            if owner >= 0:
                if count[owner] == 0:
                    touched[num_touched] = owner
                    num_touched += 1
                count[owner] += 1
        # The score of a partition is above 0 if it has room and holds a neighbour, and is exactly 0 without a neighbour. So only a few partitions are compared.
        best, best_score = -1, 0.0
        for i in range(num_touched):
            p = touched[i]
            score = count[p] * space[t, p]
            count[p] = 0
            if size[t, p] >= capacity[t]:
                continue
            if score > best_score or (score == best_score and (size[t, p], p) < (size[t, best], best)):
                best, best_score = p, score
        if best < 0:
            best = int(np.argmin(size[t]))
        num_moved += best != left
        place[row] = best
        size[t, best] += 1
        space[t, best] = 1.0 - size[t, best] / capacity[t]
    return num_moved


@compiled
def fill_up(partition, size):
    """Assigns every node without a partition to the emptiest partition, in order of rows."""
    for row in range(len(partition)):
        if partition[row] < 0:
            smallest = np.argmin(size)
            partition[row] = smallest
            size[smallest] += 1


@compiled
def count_links(src, dst, partition, links):
    """Adds 1 to links[partition of src, partition of dst] for each edge whose two ends have partitions."""
    for i in range(len(src)):
        one, other = partition[src[i]], partition[dst[i]]
        if one >= 0 and other >= 0:
            links[one, other] += 1


@compiled
def cost_of_leaving(indptr, neighbour, partition, num_partitions):
    """Returns for each node (int64 [num_nodes]) how many more edges are cut if the node moves to the best other partition."""
    cost = np.empty(len(partition), np.int64)
    count = np.empty(num_partitions, np.int64)
    for row in range(len(partition)):
        count[:] = 0
        for position in range(indptr[row], indptr[row + 1]):
            count[partition[neighbour[position]]] += 1
        inside = count[partition[row]]
        count[partition[row]] = -1
        cost[row] = inside - count.max()
    return cost


@compiled
def move_surplus(order, indptr, neighbour, kind, partition, size, capacity):
    """Moves nodes, in the given order, out of partitions that have more nodes of the node's type than `capacity`. Of the partitions with room, a node moves to
    the one with most of its neighbours, or else to the emptiest. Updates partition (int32 [num_nodes]) and size (int64 [num_types, num_partitions])."""
    count = np.zeros(size.shape[1], dtype=np.int64)
    for row in order:
        t, left = kind[row], partition[row]
        if size[t, left] <= capacity[t]:
            continue
        count[:] = 0
        for position in range(indptr[row], indptr[row + 1]):
            count[partition[neighbour[position]]] += 1
        best = int(np.argmin(size[t]))
        for p in range(size.shape[1]):
            if size[t, p] < capacity[t] and (count[p], -size[t, p]) > (count[best], -size[t, best]):
                best = p
        partition[row] = best
        size[t, left] -= 1
        size[t, best] += 1
