"""Compiled loops over one partition's lists for samplers of many small subgraphs. They release the GIL and keep no state.

Lists are in mapped files, which may change while they are read. Therefore a loop reads the bounds of a list once and checks them, and it checks every id before
it uses the id as an address. A value out of range raises `DamagedLists`.
"""

import numba
import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.prefetch import prefetch
from graphmill.samplers.kernels.random_streams import below, hash64

_FIBONACCI = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: Knuth's multiplicative hash

# A list of HUB_DEGREE or more entries, of a node in _HUB_SETS or more sets, is hashed once, not read for every set. This avoids a quadratic cost.
HUB_DEGREE = 4096
_HUB_SETS = 8
_AHEAD = 32  # lists between the prefetch of their bounds and the read
_FILTER_BITS = 14  # 16 KiB, within the first cache


class DamagedLists(Exception):
    """The bounds of lists, or ids, are out of range: the file has changed since it was opened and checked."""


@compiled
def list_bounds(indptr, row, num_entries):
    """(start [n], degree [n]) of the rows' lists, both int64. Raises DamagedLists if a list exceeds `num_entries` entries."""
    start, degree = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
    last = len(row) - 1
    for i in range(len(row)):
        prefetch(indptr, row[min(i + _AHEAD, last)])  # type: ignore[call-arg]  # the compiler passes the context
        first = indptr[row[i]]
        start[i], degree[i] = first, indptr[row[i] + 1] - first
    signs = np.int64(0)  # negative if any value is negative; a separate loop, so the reads above do not wait
    for i in range(len(row)):
        end = start[i] + degree[i]
        signs |= start[i] | degree[i] | end | (num_entries - end)
    if signs < 0:
        raise DamagedLists
    return start, degree


@numba.njit(inline="always")
def table_bits(num_entries):
    """Number of bits of a hash table that is at most half full with `num_entries` entries."""
    bits = 4
    while (1 << bits) < 2 * num_entries:
        bits += 1
    return bits


@numba.njit(inline="always")
def find_slot(table_id, offset, bits, node):
    """The slot of `node` in the open-addressing table of 2^bits slots that begins at `offset`. If `node` is not in the table: the empty slot (-1) for it."""
    mask = (1 << bits) - 1
    slot = np.int64((np.uint64(node) * _FIBONACCI) >> np.uint64(64 - bits))
    while table_id[offset + slot] != -1 and table_id[offset + slot] != node:
        slot = (slot + 1) & mask
    return offset + slot


@compiled
def list_neighbors(indptr, indices, other_indptr, other_indices, both, row, max_degree):
    """Whole lists of each row: (degree, count, neighbor). With `both`, the second pair's list follows the first pair's list.

    A list longer than `max_degree[i]` is left out. An empty `max_degree` sets no bound.
    """
    start, degree = list_bounds(indptr, row, len(indices))
    other_start, other_degree = start, np.zeros(len(row) if both else 0, np.int64)
    if both:
        other_start, other_degree = list_bounds(other_indptr, row, len(other_indices))
    count = np.empty(len(row), np.int64)
    total = 0
    for i in range(len(row)):
        whole = degree[i] + other_degree[i] if both else degree[i]
        count[i] = whole if len(max_degree) == 0 or whole <= max_degree[i] else 0
        total += count[i]
    neighbor = np.empty(total, indices.dtype)
    end = 0
    for i in range(len(row)):
        if count[i] == 0:
            continue
        for e in range(start[i], start[i] + degree[i]):
            neighbor[end] = indices[e]
            end += 1
        if both:
            for e in range(other_start[i], other_start[i] + other_degree[i]):
                neighbor[end] = other_indices[e]
                end += 1
    return degree + other_degree if both else degree, count, neighbor


@compiled
def step_walks(indptr, indices, other_indptr, other_indices, both, node, row, walk, key):
    """The next node of each walk: uniform among the entries of its node's list; if the list is empty, the node itself."""
    reached = np.empty(len(row), indices.dtype)
    for i in range(len(row)):
        first, end = indptr[row[i]], indptr[row[i] + 1]
        other_first, other_end = np.int64(0), np.int64(0)
        if both:
            other_first, other_end = other_indptr[row[i]], other_indptr[row[i] + 1]
        if not (0 <= first <= end <= len(indices) and 0 <= other_first <= other_end <= len(other_indices)):
            raise DamagedLists
        degree, other_degree = end - first, other_end - other_first
        if degree + other_degree == 0:
            reached[i] = node[i]
            continue
        drawn = below(hash64(key, np.uint64(walk[i])), degree + other_degree)
        reached[i] = indices[first + drawn] if drawn < degree else other_indices[other_first + drawn - degree]
    return reached


@compiled
def grown(array, length):
    """A copy of at least `length` entries and at least twice the array's length; the new entries are uninitialised."""
    longer = np.empty(max(length, 2 * len(array)), array.dtype)
    longer[: len(array)] = array
    return longer


@compiled
def _hub_edges(begin, degree, indices, row, position, row_ptr, member, graph_ptr, hub_degree):
    """Edges into those requested entries whose node has a long list and is in many sets.

    Returns (start [n], count [n], source, edge). Entry i has the sources source[start[i] : start[i] + count[i]], and `edge` has their edges at the same
    positions. start is -1 for all other entries. Each such node has one hash table from a neighbor to its first position in the list; each position points to
    the neighbor's next position.
    """
    start = np.full(len(row), -1, np.int64)
    count = np.zeros(len(row), np.int64)
    num_long = 0
    for i in range(len(row)):
        num_long += degree[i] >= hub_degree
    entry = np.empty(num_long, np.int64)
    num_long = 0
    for i in range(len(row)):
        if degree[i] >= hub_degree:
            entry[num_long] = i
            num_long += 1
    entry = entry[np.argsort(row[entry], kind="mergesort")]
    source, edge = np.empty(16, np.int32), np.empty(16, np.int64)
    table_id, table_place = np.empty(0, indices.dtype), np.empty(0, np.int64)
    place, members = np.empty(16, np.int64), np.empty(16, np.int32)
    end, low = 0, 0
    while low < num_long:
        high = low + 1
        while high < num_long and row[entry[high]] == row[entry[low]]:
            high += 1
        if high - low >= _HUB_SETS:
            first = begin[entry[low]]
            last = first + degree[entry[low]]
            bits = table_bits(last - first)
            if len(table_id) < 1 << bits:
                table_id, table_place = np.empty(1 << bits, indices.dtype), np.empty(1 << bits, np.int64)
            table_id[: 1 << bits] = -1
            following = np.empty(last - first, np.int64)  # the next position of the same neighbor, or -1
            for e in range(last - 1, first - 1, -1):
                node = indices[e]
                slot = find_slot(table_id, 0, bits, node)
                following[e - first] = table_place[slot] if table_id[slot] != -1 else -1
                table_id[slot] = node
                table_place[slot] = e
            for i in entry[low:high]:
                g = np.searchsorted(row_ptr, position[i], side="right") - 1
                for p in range(graph_ptr[g], graph_ptr[g + 1]):
                    slot = find_slot(table_id, 0, bits, member[p])
                    at = table_place[slot] if table_id[slot] != -1 else np.int64(-1)
                    while at != -1:
                        if count[i] == len(place):
                            place, members = grown(place, 0), grown(members, 0)
                        place[count[i]], members[count[i]] = at, p
                        count[i] += 1
                        at = following[at - first]
                start[i] = end
                if end + count[i] > len(source):
                    source, edge = grown(source, end + count[i]), grown(edge, end + count[i])
                for j in np.argsort(place[: count[i]]):
                    source[end], edge[end] = members[j], place[j]
                    end += 1
        low = high
    return start, count, source, edge


@compiled
def induced_subgraphs(indptr, indices, row, position, row_ptr, member, graph_ptr, hub_degree, with_entry):
    """In-neighbors of each requested entry within its own set: (count [n], positions in `member` int32, positions of edges in `indices` or empty).

    The requested entries have the positions `position`, and those of set g are in [row_ptr[g], row_ptr[g + 1]). The members of set g are in
    [graph_ptr[g], graph_ptr[g + 1]). Both are the same sets unless the sources are of another type.

    The cost is linear in the lists of the requested entries. A node that is in many sets and has `hub_degree` in-edges or more costs one pass over its list,
    and one look-up per member of its sets.
    """
    begin, degree = list_bounds(indptr, row, len(indices))
    hub_start, count, hub_source, hub_edge = _hub_edges(
        begin, degree, indices, row, position, row_ptr, member, graph_ptr, hub_degree
    )
    largest = 1
    for g in range(len(graph_ptr) - 1):
        largest = max(largest, graph_ptr[g + 1] - graph_ptr[g])
    table_id = np.empty(1 << table_bits(largest), member.dtype)
    table_position = np.empty(len(table_id), np.int32)
    # Most entries are not members. One byte per hash, nearly always 0, detects them with a branch that the processor predicts well.
    maybe = np.zeros(1 << _FILTER_BITS, np.uint8)
    filter_shift = np.uint64(64 - _FILTER_BITS)
    neighbor = np.empty(max(16, 4 * len(row)), np.int32)
    entry = np.empty(len(neighbor) if with_entry else 0, np.int64)
    end, g, bits = 0, -1, 4
    for i in range(len(row)):
        if g < 0 or position[i] >= row_ptr[g + 1]:
            g = max(g, 0)
            while position[i] >= row_ptr[g + 1]:
                g += 1
            bits = table_bits(graph_ptr[g + 1] - graph_ptr[g])
            table_id[: 1 << bits] = -1
            filter_shift = np.uint64(64 - min(_FILTER_BITS, bits + 4))  # 32 bytes or more per member
            maybe[: 1 << min(_FILTER_BITS, bits + 4)] = 0
            for p in range(graph_ptr[g], graph_ptr[g + 1]):
                slot = find_slot(table_id, 0, bits, member[p])
                table_id[slot] = member[p]
                table_position[slot] = p
                maybe[(np.uint64(member[p]) * _FIBONACCI) >> filter_shift] = 1
        if hub_start[i] >= 0:
            if end + count[i] > len(neighbor):
                neighbor = grown(neighbor, end + count[i])
                if with_entry:
                    entry = grown(entry, end + count[i])
            neighbor[end : end + count[i]] = hub_source[hub_start[i] : hub_start[i] + count[i]]
            if with_entry:
                entry[end : end + count[i]] = hub_edge[hub_start[i] : hub_start[i] + count[i]]
            end += count[i]
            continue
        before = end
        for e in range(begin[i], begin[i] + degree[i]):
            if maybe[(np.uint64(indices[e]) * _FIBONACCI) >> filter_shift] == 0:
                continue
            slot = find_slot(table_id, 0, bits, indices[e])
            if table_id[slot] != -1:
                if end == len(neighbor):
                    neighbor = grown(neighbor, 0)
                    if with_entry:
                        entry = grown(entry, 0)
                neighbor[end] = table_position[slot]
                if with_entry:
                    entry[end] = e
                end += 1
        count[i] = end - before
    return count, neighbor[:end].copy(), entry[: end if with_entry else 0].copy()


@compiled
def count_edges(indptr, indices, first, last, first_of_source, last_of_source, sample):
    """int64 [e]: number of samples that contain both ends of an edge. Node i is in the samples sample[first[i]:last[i]], ascending; the same holds for the
    sources."""
    count = np.zeros(len(indices), np.int64)
    for node in range(len(indptr) - 1):
        for e in range(indptr[node], indptr[node + 1]):
            a, b = first[node], first_of_source[indices[e]]
            a_end, b_end = last[node], last_of_source[indices[e]]
            while a < a_end and b < b_end:
                if sample[a] == sample[b]:
                    count[e] += 1
                    a += 1
                    b += 1
                elif sample[a] < sample[b]:
                    a += 1
                else:
                    b += 1
    return count
