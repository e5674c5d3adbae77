"""Compiled draws of entries from each node's neighbor list. They release the GIL and keep no state.

Arguments of every kernel: `first[i]` is the position of list i's first entry, `degree[i]` is its length, and each list has a key made from the node's permanent
id. A kernel returns the number of drawn entries per list, and their positions, ascending within a list. Lists ascend in permanent id, or in time and permanent
id. Entry j of a list is therefore the same edge for every partitioning, and all draws are the same too. A list up to a time is a prefix of the list
(`graphmill.samplers.kernels.lists.degrees_until`), so every draw can be restricted to the past.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.random_streams import below, hash64
from graphmill.samplers.kernels.subgraphs import find_slot, table_bits

# Up to this degree, drawn positions are marked in a bitmap. Above it, they are kept in a sorted array or a hash set. The cost thus does not grow with
# a hub's degree, and it is not quadratic in large fanouts.
_BITMAP_DEGREE = 4096  # 64 words; one more word marks which of them are used
_SCAN_LIMIT = 48


@intrinsic
def _lowest_bit(typing_context: Any, word: Any) -> Any:
    """Position of the lowest set bit of a uint64 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64), ir.IntType(1)])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.cttz.i64")
        return builder.call(function, [arguments[0], ir.IntType(1)(1)])  # 1: the word is never 0

    return types.int64(types.uint64), generate


@numba.njit(inline="always")
def _unit(hashed):
    """float64 in (0, 1]: never 0, so that its logarithm is finite."""
    return (np.float64(hashed >> np.uint64(11)) + 1.0) * (1.0 / 9007199254740992.0)


@compiled
def waiting_time(hashed):
    """-log u for u = `_unit(hashed)`, within 4e-16, and the same to the last bit on every machine.

    A C library's logarithm differs between machines, and even between processes that have loaded different libraries. It cannot order draws that must be equal
    everywhere. With n = u 2^53 = x 2^b, x in [sqrt 1/2, sqrt 2], and s = (x - 1) / (x + 1): log x = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| < 0.172. The sum of
    the terms after the tenth is less than 1e-17.
    """
    number = (hashed >> np.uint64(11)) + np.uint64(1)
    bits, rest = 0, number
    for step in (32, 16, 8, 4, 2, 1):
        if rest >> np.uint64(step):
            bits += step
            rest >>= np.uint64(step)
    # 2^bits <= number < 2^(bits + 1); float64 holds both exactly.
    x = np.float64(number) / np.float64(np.uint64(1) << np.uint64(bits))
    if x > 1.4142135623730951:
        x *= 0.5
        bits += 1
    s = (x - 1.0) / (x + 1.0)
    square, total = s * s, 0.0
    for odd in range(21, 1, -2):
        total = (total + 1.0 / odd) * square
    return (53 - bits) * 0.6931471805599453 - 2.0 * (s + s * total)


@numba.njit(inline="always")
def _draw_word(key, degree, take, first, position, end):
    """Like `_draw_bitmap`, for a list of at most 64 entries, whose bitmap stays in a register."""
    one, bits = np.uint64(1), np.uint64(0)
    for j in range(take):
        value = np.uint64(below(hash64(key, np.uint64(j)), degree - take + j + 1))
        is_taken = (bits >> value) & one
        value = np.uint64(degree - take + j) if is_taken else value  # larger than all earlier values
        bits |= one << value
    for j in range(take):
        position[np.uint64(end + j)] = first + _lowest_bit(bits)  # type: ignore[call-arg]  # the compiler passes the context
        bits &= bits - one


@compiled
def _draw_bitmap(key, degree, take, bitmap, first, position, end):
    """Draws `take` distinct values below `degree` by Floyd's algorithm (CACM 30(9), 1987). Adds `first` to each value and writes them, ascending, into
    `position` from index `end` on.

    `bitmap` is all zero before and after. No branch depends on drawn values, because a mispredicted branch costs as much as a draw.
    """
    one, used = np.uint64(1), np.uint64(0)  # `used`: a bit for each word of the bitmap that is not zero
    for j in range(take):
        value = np.uint64(below(hash64(key, np.uint64(j)), degree - take + j + 1))
        is_taken = (bitmap[value >> np.uint64(6)] >> (value & np.uint64(63))) & one
        value = np.uint64(degree - take + j) if is_taken else value  # larger than all earlier values
        word = value >> np.uint64(6)
        bitmap[word] |= one << (value & np.uint64(63))
        used |= one << word
    for j in range(take):
        word = np.uint64(_lowest_bit(used))  # type: ignore[call-arg]  # the compiler passes the context
        bits = bitmap[word]
        position[np.uint64(end + j)] = first + np.int64(word << np.uint64(6)) + _lowest_bit(bits)
        bits &= bits - one
        bitmap[word] = bits
        used = used & (used - one) if bits == np.uint64(0) else used


@compiled
def _draw_scan(key, degree, take, first, position):
    """Like `_draw_bitmap`, but with a sorted scan instead of the bitmap."""
    for filled in range(take):
        upper = degree - take + filled
        drawn = first + below(hash64(key, np.uint64(filled)), upper + 1)
        for j in range(filled):
            if position[j] == drawn:
                drawn = first + upper
                break
        j = filled
        while j > 0 and position[j - 1] > drawn:
            position[j] = position[j - 1]
            j -= 1
        position[j] = drawn


@compiled
def _draw_hashed(key, degree, take, first, position):
    """Like `_draw_bitmap`, but with a hash set instead of the bitmap, and one sort at the end."""
    bits = table_bits(take)
    table = np.full(1 << bits, -1, np.int64)
    for filled in range(take):
        upper = degree - take + filled
        drawn = below(hash64(key, np.uint64(filled)), upper + 1)
        slot = find_slot(table, 0, bits, drawn)
        if table[slot] != -1:
            drawn = upper  # larger than all earlier values
            slot = find_slot(table, 0, bits, drawn)
        table[slot] = drawn
        position[filled] = first + drawn
    position[:take].sort()


@compiled
def draw_uniform(first, degree, keys, fanout):
    """Up to `fanout` distinct entries of each list (-1: all). All sets of this size are equally likely. Returns (count [n], position [sum(count)])."""
    count = np.empty(len(degree), np.int64)
    total = 0
    for i in range(len(degree)):
        count[i] = degree[i] if fanout < 0 else min(degree[i], fanout)
        total += count[i]
    position = np.empty(total, np.int64)
    bitmap = np.zeros(_BITMAP_DEGREE // 64, np.uint64)
    end = 0
    for i in range(len(degree)):
        take = count[i]
        if take == degree[i]:
            for j in range(take):
                position[end + j] = first[i] + j
        elif degree[i] <= 64:
            _draw_word(keys[i], degree[i], take, first[i], position, end)
        elif degree[i] <= _BITMAP_DEGREE:
            _draw_bitmap(keys[i], degree[i], take, bitmap, first[i], position, end)
        elif take <= _SCAN_LIMIT:
            _draw_scan(keys[i], degree[i], take, first[i], position[end : end + take])
        else:
            _draw_hashed(keys[i], degree[i], take, first[i], position[end : end + take])
        end += take
    return count, position


@compiled
def draw_last(first, degree, fanout):
    """The last `fanout` entries of each list (-1: all): (count, position)."""
    count = np.empty(len(degree), np.int64)
    total = 0
    for i in range(len(degree)):
        count[i] = degree[i] if fanout < 0 else min(degree[i], fanout)
        total += count[i]
    position = np.empty(total, np.int64)
    end = 0
    for i in range(len(degree)):
        for j in range(degree[i] - count[i], degree[i]):
            position[end] = first[i] + j
            end += 1
    return count, position


@compiled
def draw_with_replacement(first, degree, keys, fanout):
    """`fanout` uniform, independent draws from each non-empty list: (count, position)."""
    count = np.empty(len(degree), np.int64)
    total = 0
    for i in range(len(degree)):
        count[i] = fanout if degree[i] > 0 else 0
        total += count[i]
    position = np.empty(total, np.int64)
    end = 0
    for i in range(len(degree)):
        if count[i] == 0:
            continue
        for j in range(fanout):
            position[end + j] = first[i] + below(hash64(keys[i], np.uint64(j)), degree[i])
        position[end : end + fanout].sort()
        end += fanout
    return count, position


@compiled
def _sift_down(heap_key, heap_entry, size, at):
    """Restores the order of a max-heap of (key, entry) from index `at` downwards."""
    key, entry = heap_key[at], heap_entry[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap_key[child + 1] > heap_key[child]:
            child += 1
        if heap_key[child] <= key:
            break
        heap_key[at], heap_entry[at] = heap_key[child], heap_entry[child]
        at = child
    heap_key[at], heap_entry[at] = key, entry


@compiled
def draw_weighted(first, degree, keys, fanout, weight_first, weight):
    """Up to `fanout` distinct entries of each list, drawn one after another by weight: (count, position).

    Uses exponential keys: entry j waits -log(u_j) / w_j, and the entries with the shortest waits are drawn (Efraimidis and Spirakis, IPL 97(5), 2006, in
    logarithms). List i's weights begin at weight[weight_first[i]]. Entries of weight 0 are never drawn. O(degree log fanout).
    """
    count = np.empty(len(degree), np.int64)
    total = 0
    for i in range(len(degree)):
        positive = 0
        for j in range(degree[i]):
            positive += weight[weight_first[i] + j] > 0
        count[i] = positive if fanout < 0 else min(positive, fanout)
        total += count[i]
    position = np.empty(total, np.int64)
    heap_key = np.empty(max(fanout, 1), np.float64)
    end = 0
    for i in range(len(degree)):
        take, size = count[i], 0
        chosen = position[end : end + take]
        end += take
        for j in range(degree[i]):
            if take == 0:
                break
            w = np.float64(weight[weight_first[i] + j])
            if not w > 0:
                continue
            if fanout < 0:  # all entries
                chosen[size] = first[i] + j
                size += 1
                continue
            wait = waiting_time(hash64(keys[i], np.uint64(j))) / w
            if size < take:
                heap_key[size], chosen[size] = wait, first[i] + j
                size += 1
                if size == take:
                    for at in range(take // 2 - 1, -1, -1):
                        _sift_down(heap_key, chosen, take, at)
            elif wait < heap_key[0]:
                heap_key[0], chosen[0] = wait, first[i] + j
                _sift_down(heap_key, chosen, take, 0)
        chosen.sort()
    return count, position


@compiled
def draw_weighted_with_replacement(first, degree, keys, fanout, weight_first, weight):
    """`fanout` independent draws by weight from each list that has a positive weight: (count, position). Inverts the CDF by bisection."""
    count = np.empty(len(degree), np.int64)
    total, widest = 0, 0
    for i in range(len(degree)):
        count[i] = 0
        widest = max(widest, degree[i])
        for j in range(degree[i]):
            if weight[weight_first[i] + j] > 0:
                count[i] = fanout
                break
        total += count[i]
    position = np.empty(total, np.int64)
    cumulative = np.empty(widest, np.float64)
    end = 0
    for i in range(len(degree)):
        if count[i] == 0:
            continue
        running, last = 0.0, 0
        for j in range(degree[i]):
            w = np.float64(weight[weight_first[i] + j])
            running += w
            cumulative[j] = running
            if w > 0:
                last = j
        for j in range(fanout):
            target = (1.0 - _unit(hash64(keys[i], np.uint64(j)))) * running  # in [0, running)
            entry = np.searchsorted(cumulative[: degree[i]], target, side="right")
            position[end + j] = first[i] + min(entry, last)  # rounding may make the threshold equal to `running`
        position[end : end + fanout].sort()
        end += fanout
    return count, position


@compiled
def draw_labor(first, degree, fanout, source_hash):
    """Draws entries of each list with one coin per source that all lists share: (count, position). LABOR-0, arXiv:2210.13339, sec. 3.

    `source_hash[e]` is the coin of the source of entry e, list by list. An entry is drawn if its coin, as a number in [0, 1), is below fanout / degree. The
    expected number of entries per list is min(fanout, degree); a draw never exceeds the list.
    """
    count = np.empty(len(degree), np.int64)
    total, read = 0, 0
    for i in range(len(degree)):
        below_this = np.inf if fanout < 0 or degree[i] <= fanout else np.float64(fanout) / degree[i]
        kept = 0
        for j in range(degree[i]):
            kept += (_unit(source_hash[read + j]) - 1.0 / 9007199254740992.0) < below_this
        read += degree[i]
        count[i] = kept
        total += kept
    position = np.empty(total, np.int64)
    end, read = 0, 0
    for i in range(len(degree)):
        below_this = np.inf if fanout < 0 or degree[i] <= fanout else np.float64(fanout) / degree[i]
        for j in range(degree[i]):
            if (_unit(source_hash[read + j]) - 1.0 / 9007199254740992.0) < below_this:
                position[end] = first[i] + j
                end += 1
        read += degree[i]
    return count, position
