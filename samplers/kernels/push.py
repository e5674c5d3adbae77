"""Compiled rounds of forward push for many roots at once. They release the GIL and keep no state.

Root g's touched nodes are the entries [offset[g], offset[g] + size[g]) of flat arrays, in order of discovery. The root has room for 2^bits[g] entries. A hash
table of twice that size, which begins at 2 · offset[g], finds them. When a root's room is full, the root moves to twice the room at the end of the arrays.
Lists ascend in permanent id, so floating-point sums run in the same order for any number of partitions.
"""

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.subgraphs import find_slot, grown

FIRST_BITS = 6  # initial room of a root: 2^6 entries


@compiled
def _clear_room(at, bits, number, score, residual, table_id):
    """Clears the room of 2^bits entries that begins at `at`, and its hash table."""
    number[at : at + (1 << bits)] = -1
    score[at : at + (1 << bits)] = 0.0
    residual[at : at + (1 << bits)] = 0.0
    table_id[2 * at : 2 * at + (2 << bits)] = -1


@compiled
def start_roots(root, offset, node, number, score, residual, table_id, table_entry):
    """Gives every root its initial room. The root is entry 0 and has residual 1."""
    for g in range(len(root)):
        at = offset[g]
        _clear_room(at, FIRST_BITS, number, score, residual, table_id)
        slot = find_slot(table_id, 2 * at, FIRST_BITS + 1, root[g])
        table_id[slot], table_entry[slot] = root[g], 0
        node[at], residual[at] = root[g], 1.0


@compiled
def push_known(
    offset, bits, size, end, start, degree, neighbor, weight, alpha, epsilon, is_first,
    node, number, score, residual, table_id, table_entry,
):  # fmt: skip
    """Runs rounds of pushes for each root until the root is done, or until a degree or list that it needs is missing.

    In a round every entry whose residual is at least epsilon · max(degree, 1) pushes the residual that it had when the round began. The share alpha goes to its
    score and the rest to the neighbors' residuals. The neighbors get equal parts or, if `weight` is not empty, parts in proportion to `weight`. If an entry has
    no neighbors, or no weights above 0, its whole residual goes to its score (the walk stays). With `is_first`, the root first pushes regardless of its degree.
    Returns the entries whose degree or list is missing, the new end, and the six arrays over entries and slots. These arrays may be new and longer.

    Each root has its own rounds. It may run ahead while its memory is in the cache, or wait for lists that another root already has; the result is the same.
    """
    wanted, num_wanted = np.empty(64, np.int64), 0
    queue, amount = np.empty(64, np.int64), np.empty(64, np.float64)
    for g in range(len(size)):
        first, whatever_degree = offset[g], is_first
        while True:
            num_queued, before = 0, num_wanted
            for i in range(size[g]):
                if residual[first + i] < epsilon:
                    continue
                listed = number[first + i]
                if listed >= 0 and not (whatever_degree or residual[first + i] >= epsilon * max(degree[listed], 1)):
                    continue
                if listed < 0 or start[listed] < 0:
                    if num_wanted == len(wanted):
                        wanted = grown(wanted, 0)
                    wanted[num_wanted] = first + i
                    num_wanted += 1
                    continue
                if num_queued == len(queue):
                    queue, amount = grown(queue, 0), grown(amount, 0)
                queue[num_queued], amount[num_queued] = i, residual[first + i]
                num_queued += 1
            if num_wanted > before or num_queued == 0:
                break
            whatever_degree = False
            for q in range(num_queued):
                residual[first + queue[q]] = 0.0
            for q in range(num_queued):
                listed = number[first + queue[q]]
                stop, total = start[listed] + degree[listed], float(degree[listed])
                if len(weight):
                    total = 0.0
                    for e in range(start[listed], stop):
                        total += weight[e]
                if total == 0:
                    score[first + queue[q]] += amount[q]
                    continue
                score[first + queue[q]] += alpha * amount[q]
                part = share = (1.0 - alpha) * amount[q] / total
                for e in range(start[listed], stop):
                    if len(weight):
                        part = share * weight[e]
                        if part == 0:
                            continue
                    slot = find_slot(table_id, 2 * first, bits[g] + 1, neighbor[e])
                    if table_id[slot] != -1:
                        residual[first + table_entry[slot]] += part
                        continue
                    if size[g] == 1 << bits[g]:
                        room = 2 << bits[g]
                        if end + room > len(node):
                            least = end + room
                            node, number = grown(node, least), grown(number, least)
                            score, residual = grown(score, least), grown(residual, least)
                            table_id, table_entry = grown(table_id, 2 * least), grown(table_entry, 2 * least)
                        _clear_room(end, bits[g] + 1, number, score, residual, table_id)
                        for i in range(size[g]):
                            node[end + i], number[end + i] = node[first + i], number[first + i]
                            score[end + i], residual[end + i] = score[first + i], residual[first + i]
                            moved = find_slot(table_id, 2 * end, bits[g] + 2, node[first + i])
                            table_id[moved], table_entry[moved] = node[first + i], i
                        first, offset[g], bits[g] = end, end, bits[g] + 1
                        end += room
                        slot = find_slot(table_id, 2 * first, bits[g] + 1, neighbor[e])
                    table_id[slot], table_entry[slot] = neighbor[e], size[g]
                    node[first + size[g]] = neighbor[e]
                    residual[first + size[g]] = part
                    size[g] += 1
    return wanted[:num_wanted].copy(), end, node, number, score, residual, table_id, table_entry


@compiled
def best_candidates(offset, size, score, top_k):
    """The entries of each root among its `top_k` by score, and all entries that tie with the last of these. The root itself is left out.

    Returns (entry, graph, tied). tied[i] is true if entry i has the last score and not all entries with that score fit.
    """
    entry, graph, tied = np.empty(16, np.int64), np.empty(16, np.int64), np.empty(16, np.bool_)
    end = 0
    for g in range(len(size)):
        scores = score[offset[g] + 1 : offset[g] + size[g]]
        positive = np.sum(scores > 0)
        least, overflow = 0.0, False
        if positive > top_k:
            least = np.partition(scores, len(scores) - top_k)[len(scores) - top_k] if top_k else np.inf
            overflow = np.sum(scores >= least) > top_k
        if end + positive > len(entry):
            least_room = end + positive
            entry, graph, tied = grown(entry, least_room), grown(graph, least_room), grown(tied, least_room)
        for i in range(len(scores)):
            if scores[i] > 0 and scores[i] >= least:
                entry[end] = offset[g] + 1 + i
                graph[end] = g
                tied[end] = overflow and scores[i] == least
                end += 1
    return entry[:end].copy(), graph[:end].copy(), tied[:end].copy()
