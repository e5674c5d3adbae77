"""The compiled inner loops of the external sort (`graphmill.storage.external_sort.edge_buckets`): edges to buckets, sort keys, and lists from sorted keys.

Ids may exceed 2^31 in int64 arrays.
"""

import numpy as np

from graphmill.core.compile_cache import compiled


@compiled
def group_by_bucket(dst, src, bounds, bucket_of, grouped_dst, grouped_src, order):
    """Writes the edges by bucket to grouped_dst and grouped_src, in the given order within a bucket, and their former positions to
    `order` (int32; empty: not written). Returns the end of each bucket, int64 [num_buckets].

    dst: fewer than 2^31 new ids of any integer dtype. bounds: int64 [num_buckets + 1], ascending; bucket b has the ids
    [bounds[b], bounds[b + 1]), and every id lies in a bucket. bucket_of: uint32 [k], scratch. This is a counting sort with one table look-up per id instead
    of a search. The caller allocates the arrays because numpy's arrays lie on large pages: writes go to one place per bucket.
    """
    num_buckets = len(bounds) - 1
    # first[block]: the bucket of the block's first id. Most buckets are larger than a block, so few steps remain.
    shift = 0
    while (bounds[-1] >> shift) >= 64 * num_buckets:
        shift += 1
    first = np.empty((bounds[-1] >> shift) + 1, np.uint32)
    reached = 0
    for block in range(len(first)):
        while reached + 1 < num_buckets and bounds[reached + 1] <= (np.int64(block) << shift):
            reached += 1
        first[block] = reached
    fill = np.zeros(num_buckets + 1, np.int64)
    for i in range(len(dst)):
        new_id = np.int64(dst[i])
        bucket = np.int64(first[new_id >> shift])
        while bounds[bucket + 1] <= new_id:
            bucket += 1
        bucket_of[i] = bucket
        fill[bucket + 1] += 1
    for b in range(num_buckets):
        fill[b + 1] += fill[b]
    with_order = len(order) > 0
    for i in range(len(dst)):
        bucket = np.int64(bucket_of[i])
        place = fill[bucket]
        grouped_dst[place], grouped_src[place] = dst[i], src[i]
        if with_order:
            order[place] = i
        fill[bucket] += 1
    return fill[:-1].copy()


@compiled
def pack_keys(dst, src, low, row_bits, key):
    """Writes (dst - low) · 2^row_bits + src to `key` (int64), which sorts as (dst, src)."""
    for i in range(len(dst)):
        key[i] = (np.int64(dst[i]) - low) << row_bits | np.int64(src[i])


@compiled
def unpack_lists(key, row_bits, id_of_row, degree, neighbor):
    """Adds the edges of sorted keys to `degree` (int64, by destination - low), and writes the new ids of their sources to `neighbor`."""
    row_mask = (np.int64(1) << row_bits) - 1
    for i in range(len(key)):
        degree[key[i] >> row_bits] += 1
        neighbor[i] = id_of_row[key[i] & row_mask]


@compiled
def renumber(part_of_row, next_id, id_of_row, row_of_id):
    """Numbers the rows of each partition in order, from next_id[partition] on (int64, updated), and writes the new id of each row and the row of each id."""
    for row in range(len(part_of_row)):
        part = part_of_row[row]
        new_id = next_id[part]
        next_id[part] = new_id + 1
        id_of_row[row] = new_id
        row_of_id[new_id] = row
