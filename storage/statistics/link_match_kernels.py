"""The compiled loop that looks for given pairs of nodes among the edges of a partition."""

import numpy as np

from graphmill.core.compile_cache import compiled

AMONG_EDGES, ONLY_EARLIER = np.uint8(1), np.uint8(2)  # what `match_links` finds for a pair


@compiled
def match_links(indptr, indices, pair_ptr, source, time, relation, edge_time, edge_relation, place, state, relations):
    """Looks for pairs (source, destination) among the in-edges of a partition's nodes. Returns the number of edges that equal a pair.

    indptr int64 [n + 1], indices [m]: the partition's lists. pair_ptr int64 [n + 1]: the pairs of each destination. source int64 [p]: the pairs' sources, stored
    ids, ascending in each list; time, relation int64 [p] and edge_time, edge_relation int64 [m], or empty. place: int64 [num_sources], all zeros before and after.
    state: uint8 [p], set to AMONG_EDGES if an edge is as late as the pair or no times are known, else to ONLY_EARLIER if there are earlier edges alone.
    relations: int64 [r, r], for each relation of a pair the number of pairs that an edge of another relation repeats. With relations, an edge of the pair's own
    relation sets the state. Reads each list of a destination with pairs once.
    """
    found = 0
    for node in range(len(indptr) - 1):
        first, last = pair_ptr[node], pair_ptr[node + 1]
        if first == last:
            continue
        for pair in range(last - 1, first - 1, -1):
            place[source[pair]] = pair + 1
        for edge in range(indptr[node], indptr[node + 1]):
            pair = place[indices[edge]] - 1
            if pair < 0:
                continue
            while pair < last and source[pair] == indices[edge]:
                if len(relation):
                    relations[relation[pair], edge_relation[edge]] += 1
                if not len(relation) or relation[pair] == edge_relation[edge]:
                    found += 1
                    if len(time) and edge_time[edge] < time[pair]:
                        state[pair] = np.uint8(1) if state[pair] == 1 else np.uint8(2)
                    else:
                        state[pair] = np.uint8(1)
                pair += 1
        for pair in range(first, last):
            place[source[pair]] = 0
    return found
