"""The compiled loops that measure the statistics of a graph. Each loop is one pass over its data.

Fingerprints are sums of hashes modulo 2^64, so they do not depend on the order of partitions, buckets, threads or chunks. Real numbers are added in the order
of permanent ids, and the rounding errors are added up, too. Loops over edges have no branches, so that the compiler can vectorise them.
"""

import numba
import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.core.counter_kernels import GOLDEN, mix64

_MIX_3 = np.uint64(0xD6E8FEB86659FD93)
_SIZE = 0x7FFFFFFF  # mask of a float32's bits without the sign
_ONE = 0x3F800000
_INFINITY = 0x7F800000


@numba.njit(inline="always")
def _mix_again(x):
    """Returns a second 64-bit hash, from a value that is already mixed."""
    x = (x ^ (x >> np.uint64(32))) * _MIX_3
    return x ^ (x >> np.uint64(32))


@numba.njit(inline="always")
def _pair_hash(source, row, wide):
    """Returns a hash of an unordered pair. For rows below 2^32 (`wide` is false), different pairs have different hashes."""
    low, high = np.uint64(min(source, row)), np.uint64(max(source, row))
    if wide:
        return mix64(mix64(low + GOLDEN) + high)
    return mix64((low << np.uint64(32) | high) + GOLDEN)


@compiled
def measure_edges(key, low, row_bits, row_of_id, sums, counts):
    """Adds the sorted edges of consecutive nodes (`graphmill.storage.external_sort.edge_buckets.Bucket`) to `sums` and `counts`.

    row_of_id: the source row of every new id. sums: uint64 [3, 2], the sums of two hashes of {u, v}, over all edges, over edges with u < v, and
    over self-loops. counts: int64 [2], numbers of self-loops, and of edges that are equal to the edge before.
    """
    wide = len(row_of_id) > 2**32
    row_mask = (np.int64(1) << row_bits) - 1
    all_x = all_y = up_x = up_y = loop_x = loop_y = np.uint64(0)
    num_loops = num_duplicates = np.int64(0)
    for i in range(len(key)):
        row, source = np.int64(row_of_id[low + (key[i] >> row_bits)]), key[i] & row_mask
        x = _pair_hash(source, row, wide)
        y = _mix_again(x)
        up, loop = np.uint64(-np.int64(source < row)), np.uint64(-np.int64(source == row))
        all_x += x
        all_y += y
        up_x += x & up
        up_y += y & up
        loop_x += x & loop
        loop_y += y & loop
        num_loops += np.int64(source == row)
    for i in range(1, len(key)):
        num_duplicates += np.int64(key[i] == key[i - 1])
    sums[0, 0] += all_x
    sums[0, 1] += all_y
    sums[1, 0] += up_x
    sums[1, 1] += up_y
    sums[2, 0] += loop_x
    sums[2, 1] += loop_y
    counts[0] += num_loops
    counts[1] += num_duplicates


@compiled
def measure_edge_columns(key, low, row_bits, row_of_id, column, factor, sums):
    """Adds hashes of the ends and the columns of each edge to `sums`. `sums` has the form that it has in `measure_edges`.

    column: uint32 [num_edges, c], the bits of weights and features; factor: odd uint64 [c].
    """
    wide = len(row_of_id) > 2**32
    row_mask = (np.int64(1) << row_bits) - 1
    for i in range(len(key)):
        row, source = np.int64(row_of_id[low + (key[i] >> row_bits)]), key[i] & row_mask
        x = _pair_hash(source, row, wide)
        for c in range(column.shape[1]):
            x += mix64((np.uint64(column[i, c]) + np.uint64(1)) * factor[c])
        x = mix64(x)
        y = _mix_again(x)
        up, loop = np.uint64(-np.int64(source < row)), np.uint64(-np.int64(source == row))
        sums[0, 0] += x
        sums[0, 1] += y
        sums[1, 0] += x & up
        sums[1, 1] += y & up
        sums[2, 0] += x & loop
        sums[2, 1] += y & loop


@compiled
def count_agreement(key, low, row_bits, row_of_id, trains, num_sets, weight, counts, weights):
    """Counts edges between labelled training nodes, and those of them whose two ends have the same label. Self-loops do not count.

    trains: for each row, label · 256 + bits; bit s is set for a labelled training node of split set s. counts: int64 [num_sets, 2], edges and
    agreeing edges. weights: float64 [num_sets, 2], the sums of these edges' weights, unless `weight` is empty.
    """
    row_mask = (np.int64(1) << row_bits) - 1
    start = 0
    while start < len(key):
        place = key[start] >> row_bits
        stop = start + 1
        while stop < len(key) and key[stop] >> row_bits == place:
            stop += 1
        row = np.int64(row_of_id[low + place])
        own = np.int64(trains[row])
        for s in range(num_sets):
            if not (own >> s) & 1:  # in most lists this saves the look-ups of all sources
                continue
            both = agree = np.int64(0)
            both_weigh = agree_weigh = 0.0
            for i in range(start, stop):
                source = key[i] & row_mask
                other = np.int64(trains[source])
                counted = (other >> s) & 1 & np.int64(source != row)
                agreeing = counted & np.int64(other >> 8 == own >> 8)
                both += counted
                agree += agreeing
                if len(weight):
                    both_weigh += counted * weight[i]
                    agree_weigh += agreeing * weight[i]
            counts[s, 0] += both
            counts[s, 1] += agree
            weights[s, 0] += both_weigh
            weights[s, 1] += agree_weigh
        start = stop


@compiled
def count_values(values, histogram):
    """Counts `values` (>= 0) in histogram (int64 [64]), whose bins are for 0, for 1, for 2 and 3, for 4 to 7, …. Returns (sum, smallest, largest)."""
    total = largest = np.int64(0)
    least = np.int64(2**62)
    for i in range(len(values)):
        value = np.int64(values[i])
        total += value
        least, largest = min(least, value), max(largest, value)
        width = 0
        while value > 0:
            value >>= 1
            width += 1
        histogram[width] += 1
    return total, least, largest


@compiled
def count_neighbors(neighbor, counts):
    """Adds 1 to counts[id] for each id in `neighbor`."""
    for i in range(len(neighbor)):
        counts[neighbor[i]] += 1


@compiled
def count_parts(code, label, missing, num_nodes, num_labelled, class_counts):
    """Counts, for each split code, nodes, labelled nodes and nodes of each class.

    code: int8 [n]. label: int64 [n]; `missing` stands for no label. num_nodes, num_labelled: int64 [codes]. class_counts: int64 [codes,
    classes], or [codes, 0] if classes are not counted.
    """
    with_classes = class_counts.shape[1] > 0
    for i in range(len(code)):
        num_nodes[code[i]] += 1
        if label[i] != missing:
            num_labelled[code[i]] += 1
            if with_classes:
                class_counts[code[i], label[i]] += 1


@numba.njit(inline="always")
def _added(high, low, value):
    """Returns (high, low) + value. low is the sum of the rounding errors of high (Knuth's TwoSum)."""
    total = high + value
    part = total - high
    return total, low + ((high - (total - part)) + (value - part))


@compiled
def add_values(values, chosen, sums):
    """Adds values[chosen] except NaN, and their squares, to sums (float64 [2, 2]: a sum and its rounding error, of values and of squares).
    Returns the number of added values. values: float32 [n]. chosen: bool [n]."""
    count = 0
    high, low, square_high, square_low = sums[0, 0], sums[0, 1], sums[1, 0], sums[1, 1]
    for i in range(len(values)):
        value = np.float64(values[i])
        if chosen[i] and not np.isnan(value):
            count += 1
            high, low = _added(high, low, value)
            # the square is exact, because it has 48 bits
            square_high, square_low = _added(square_high, square_low, value * value)
    sums[0, 0], sums[0, 1], sums[1, 0], sums[1, 1] = high, low, square_high, square_low
    return count


@numba.njit(fastmath={"reassoc"})
def _sum_of_squares(row):
    """Returns the sum of squares. Its order depends on the CPU's vectors, so the last bits may differ on another kind of CPU."""
    total = 0.0
    for j in range(len(row)):
        total += np.float64(row[j]) * np.float64(row[j])
    return total


@compiled
def measure_rows(bits, first_row, factor, counts, ordered, norms, fingerprint):
    """Adds rows of features to the statistics of earlier rows.

    bits: int32 [k, f], the bits of float32. factor: odd uint64 [f]. counts: int64 [4], numbers of nonzero values, of values other than 0 and 1, of
    non-finite values, and of finite rows. ordered: int64 [2], smallest and largest finite value, as integers that have the order of the floats.
    norms: float64 [3], sum of the finite rows' L2 norms, its rounding error, the largest norm. fingerprint: uint64 [2].
    """
    floats = bits.view(np.float32)
    for i in range(bits.shape[0]):
        nonzero = other = nonfinite = np.int64(0)
        least, largest = np.int64(_SIZE), np.int64(-_SIZE - 1)
        x = np.uint64(0)
        for j in range(bits.shape[1]):
            value = np.int64(bits[i, j])
            size = value & _SIZE
            nonzero += size != 0
            other += (size != 0) & (value != _ONE)
            nonfinite += size >= _INFINITY
            order = value ^ ((value >> 31) & _SIZE)
            least, largest = min(least, order), max(largest, order)
        for j in range(bits.shape[1]):
            x += np.uint64(np.uint32(bits[i, j])) * factor[j]
        x = mix64(x + mix64(np.uint64(first_row + i) + GOLDEN))
        fingerprint[0] += x
        fingerprint[1] += _mix_again(x)
        counts[0] += nonzero
        counts[1] += other
        counts[2] += nonfinite
        if nonfinite:
            for j in range(bits.shape[1]):
                value = np.int64(bits[i, j])
                if value & _SIZE < _INFINITY:
                    order = value ^ ((value >> 31) & _SIZE)
                    ordered[0], ordered[1] = min(ordered[0], order), max(ordered[1], order)
            continue
        counts[3] += 1
        ordered[0], ordered[1] = min(ordered[0], least), max(ordered[1], largest)
        norm = np.sqrt(_sum_of_squares(floats[i]))
        norms[0], norms[1] = _added(norms[0], norms[1], norm)
        norms[2] = max(norms[2], norm)
