"""The compiled inner loops of the external sort (`storage.edge_buckets`): edges to buckets, sort keys, and lists from sorted keys.

Each reads its input once. Ids may exceed 2^31 wherever their arrays are int64.
"""

import numpy as np

from storage.compiled import compiled


@compiled
def group_by_bucket(dst, src, bounds):
    """The edges by bucket, in their order within each: (dst, src of dst's dtype, order int32 [k], ends int64 [num_buckets]).

    order: their positions before; ends: where each bucket ends. dst: new ids, of any integer dtype, fewer than 2^31 of them. bounds:
    int64 [num_buckets + 1], ascending, bucket b holds the ids [bounds[b], bounds[b + 1]); every id lies in one. A counting sort: one look
    at a table per id, not a search.
    """
    num_buckets = len(bounds) - 1
    # first[block]: the bucket of the block's first id. Blocks are small next to most buckets, so few steps are left.
    shift = 0
    while (bounds[-1] >> shift) >= 64 * num_buckets:
        shift += 1
    first = np.empty((bounds[-1] >> shift) + 1, np.uint32)
    reached = 0
    for block in range(len(first)):
        while reached + 1 < num_buckets and bounds[reached + 1] <= (np.int64(block) << shift):
            reached += 1
        first[block] = reached
    buckets = np.empty(len(dst), np.uint32)
    fill = np.zeros(num_buckets + 1, np.int64)
    for i in range(len(dst)):
        new_id = np.int64(dst[i])
        bucket = np.int64(first[new_id >> shift])
        while bounds[bucket + 1] <= new_id:
            bucket += 1
        buckets[i] = bucket
        fill[bucket + 1] += 1
    for b in range(num_buckets):
        fill[b + 1] += fill[b]
    order = np.empty(len(dst), np.int32)
    grouped_dst, grouped_src = np.empty_like(dst), np.empty_like(dst)
    for i in range(len(dst)):
        bucket = np.int64(buckets[i])
        place = fill[bucket]
        order[place], grouped_dst[place], grouped_src[place] = i, dst[i], src[i]
        fill[bucket] += 1
    return grouped_dst, grouped_src, order, fill[:-1].copy()


@compiled
def pack_keys(dst, src, low, row_bits, key):
    """Writes (dst - low) · 2^row_bits + src to `key` (int64): its order is that of (dst, src)."""
    for i in range(len(dst)):
        key[i] = (np.int64(dst[i]) - low) << row_bits | np.int64(src[i])


@compiled
def unpack_lists(key, low, row_bits, id_of_row, degree, neighbor):
    """Adds the edges of sorted keys to `degree` (int64, from node `low` on), and writes their sources' new ids to `neighbor`."""
    row_mask = (np.int64(1) << row_bits) - 1
    for i in range(len(key)):
        degree[key[i] >> row_bits] += 1
        neighbor[i] = id_of_row[key[i] & row_mask]
