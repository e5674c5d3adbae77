"""Compiled steps of many breadth-first searches at once. They release the GIL and keep no state.

Subgraph g is the first size[g] entries of row g of `member` (stored ids), in order of discovery. Its newest layer begins at layer_start[g]. The search reads
the lists of a layer's nodes in the order of these nodes; each list ascends in permanent id. So the order, and every draw by position in this order, depends
only on the graph in permanent ids.
"""

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.draws import waiting_time
from graphmill.samplers.kernels.random_streams import below, hash64
from graphmill.samplers.kernels.subgraphs import find_slot, table_bits

# A list of at least this length is hashed once for all subgraphs and drawn from by rejection, instead of being read for each subgraph. The choice may
# depend only on the list, because a subgraph must not depend on the other subgraphs of its batch.
HUB_DEGREE = 8192


@compiled
def frontier(member, size, layer_start):
    """Nodes of the newest layers of all subgraphs that can still grow, subgraph by subgraph."""
    most = member.shape[1]
    total = 0
    for g in range(len(size)):
        if size[g] < most:
            total += size[g] - layer_start[g]
    node = np.empty(total, np.int64)
    end = 0
    for g in range(len(size)):
        if size[g] < most:
            for i in range(layer_start[g], size[g]):
                node[end] = member[g, i]
                end += 1
    return node


@compiled
def _hash_hubs(number, start, degree, neighbor, hub_degree, most):
    """For each long list among `number`, a hash table from a neighbor to its first position in the list.

    Returns (offset [lists], bits [lists], ids, places). offset is -1 for a list that is short or has fewer than 2 · most distinct nodes.
    """
    offset = np.full(len(start), -1, np.int64)
    bits = np.zeros(len(start), np.int64)
    total = 0
    for listed in number:
        if degree[listed] >= hub_degree and bits[listed] == 0:
            bits[listed] = table_bits(degree[listed])
            total += 1 << bits[listed]
    table_id = np.full(total, -1, neighbor.dtype)
    table_place = np.empty(total, np.int64)
    end = 0
    for listed in number:
        if bits[listed] == 0 or offset[listed] >= 0:
            continue
        distinct = 0
        for place in range(degree[listed]):
            slot = find_slot(table_id, end, bits[listed], neighbor[start[listed] + place])
            if table_id[slot] == -1:
                table_id[slot] = neighbor[start[listed] + place]
                table_place[slot] = place
                distinct += 1
        if distinct >= 2 * most:
            offset[listed] = end
        else:
            bits[listed] = 0
        end += 1 << table_bits(degree[listed])
    return offset, bits, table_id, table_place


@compiled
def _draw_from_hubs(
    key,
    room,
    candidate,
    num_candidates,
    numbers,
    start,
    degree,
    neighbor,
    offset,
    bits,
    hub_id,
    hub_place,
    table,
    table_size,
):
    """Writes `room` distinct nodes to candidate[:room], uniform among the candidates and the new nodes of hub lists.

    Draws positions among all of them; rejects known nodes, and every position of a node except its first. The loop ends, because a hub list has at least
    2 · most distinct nodes and fewer than most are known.
    """
    hubs = np.empty(len(numbers), np.int64)
    num_hubs, total = 0, num_candidates
    for listed in numbers:
        if offset[listed] >= 0:
            hubs[num_hubs] = listed
            num_hubs += 1
            total += degree[listed]
    chosen = np.empty(room, candidate.dtype)
    filled, counter = 0, np.uint64(0)
    while filled < room:
        place = below(hash64(key, counter), total)
        counter += np.uint64(1)
        if place < num_candidates:
            if candidate[place] != -1:
                chosen[filled] = candidate[place]
                candidate[place] = -1
                filled += 1
            continue
        place -= num_candidates
        h = 0
        while place >= degree[hubs[h]]:
            place -= degree[hubs[h]]
            h += 1
        node = neighbor[start[hubs[h]] + place]
        slot = find_slot(table, 0, table_size, node)
        if table[slot] != -1:
            continue
        first = hub_place[find_slot(hub_id, offset[hubs[h]], bits[hubs[h]], node)] == place
        for earlier in range(h):
            first = first and hub_id[find_slot(hub_id, offset[hubs[earlier]], bits[hubs[earlier]], node)] == -1
        if first:
            table[slot] = node
            chosen[filled] = node
            filled += 1
    candidate[:room] = chosen


@compiled
def _draw_by_weight(key, room, candidate, numbers, start, degree, neighbor, weight, table, table_size):
    """Writes at most `room` distinct new nodes of the lists to `candidate`, drawn one after another by the weights of entries. Returns the number of nodes
    written.

    An entry waits an exponential time with its weight as rate. A node waits for the first of its entries (Efraimidis and Spirakis, IPL 97(5), 2006). An entry
    of weight 0 is never drawn.
    """
    wait, entry = np.empty(len(candidate), np.float64), np.empty(len(candidate), np.int64)
    found = 0
    for listed in numbers:
        for e in range(start[listed], start[listed] + degree[listed]):
            if weight[e] > 0 and table[find_slot(table, 0, table_size, neighbor[e])] == -1:
                wait[found] = waiting_time(hash64(key, np.uint64(found))) / weight[e]
                entry[found] = e
                found += 1
    filled = 0
    for i in np.argsort(wait[:found], kind="mergesort"):
        slot = find_slot(table, 0, table_size, neighbor[entry[i]])
        if filled < room and table[slot] == -1:
            table[slot] = neighbor[entry[i]]
            candidate[filled] = neighbor[entry[i]]
            filled += 1
    return filled


@compiled
def advance(member, size, layer_start, number, start, degree, neighbor, weight, root_key, hop, hub_degree):
    """Adds the next layer, in place, to every subgraph that can still grow. `number` has the index of each frontier node's list.

    If a layer does not fit, a part of the layer fills the subgraph. The part is uniformly random or, if `weight` is not empty, drawn by weight. The cost is
    linear in the lists of the layer. Lists of `hub_degree` entries or more are read once for all subgraphs.
    """
    num_graphs, most = member.shape
    offset, bits, hub_id, hub_place = _hash_hubs(number, start, degree, neighbor, hub_degree, most)
    table = np.empty(0, neighbor.dtype)
    candidate = np.empty(most, neighbor.dtype)
    low = 0
    for g in range(num_graphs):
        known = size[g]
        if known == most or known == layer_start[g]:
            continue
        numbers = number[low : low + known - layer_start[g]]
        low += known - layer_start[g]
        short, has_hub = 0, False
        for listed in numbers:
            if offset[listed] >= 0:
                has_hub = True
            else:
                short += degree[listed]
        room = most - known
        table_size = table_bits(known + short + room)
        if len(table) < 1 << table_size:
            table = np.empty(1 << table_size, neighbor.dtype)
        table[: 1 << table_size] = -1
        if len(candidate) < short:
            candidate = np.empty(2 * short, neighbor.dtype)
        for i in range(known):
            table[find_slot(table, 0, table_size, member[g, i])] = member[g, i]
        num_candidates = 0
        for listed in numbers:
            if offset[listed] >= 0 or len(weight):
                continue
            for e in range(start[listed], start[listed] + degree[listed]):
                slot = find_slot(table, 0, table_size, neighbor[e])
                if table[slot] == -1:
                    table[slot] = neighbor[e]
                    candidate[num_candidates] = neighbor[e]
                    num_candidates += 1
        if len(weight):
            key, lists = hash64(root_key[g], np.uint64(hop)), (start, degree, neighbor, weight)
            num_candidates = _draw_by_weight(key, room, candidate, numbers, *lists, table, table_size)
        elif has_hub:
            key = hash64(root_key[g], np.uint64(hop))
            _draw_from_hubs(
                key, room, candidate, num_candidates, numbers, start, degree, neighbor, offset, bits, hub_id, hub_place,
                table, table_size,
            )  # fmt: skip
            num_candidates = room
        elif num_candidates > room:
            key = hash64(root_key[g], np.uint64(hop))
            for i in range(room):  # the first steps of a Fisher-Yates shuffle
                j = i + below(hash64(key, np.uint64(i)), num_candidates - i)
                candidate[i], candidate[j] = candidate[j], candidate[i]
            num_candidates = room
        for i in range(num_candidates):
            member[g, known + i] = candidate[i]
        layer_start[g] = known
        size[g] = known + num_candidates


@compiled
def pack_members(member, layer_size):
    """(node int64 [k], hop int16 [k]): the used entries of `member`. layer_size[h, g] is the number of subgraph g's nodes at hop h."""
    total = np.sum(layer_size)
    node = np.empty(total, np.int64)
    hop = np.empty(total, np.int16)
    end = 0
    for g in range(member.shape[0]):
        i = 0
        for h in range(layer_size.shape[0]):
            for _ in range(layer_size[h, g]):
                node[end] = member[g, i]
                hop[end] = h
                end += 1
                i += 1
    return node, hop


@compiled
def order_members(graph_ptr, level, original_id):
    """int64 [k]: a permutation of all entries that sorts each level within each subgraph by permanent id."""
    order = np.arange(len(level))
    for g in range(len(graph_ptr) - 1):
        low = graph_ptr[g]
        while low < graph_ptr[g + 1]:
            high = low + 1
            while high < graph_ptr[g + 1] and level[high] == level[low]:
                high += 1
            if high - low > 1:
                order[low:high] = low + np.argsort(original_id[low:high])
            low = high
    return order
