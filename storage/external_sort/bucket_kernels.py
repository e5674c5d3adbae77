"""Compiled inner loops of the external sort (`graphmill.storage.external_sort.edge_buckets`). They group edges by bucket, pack sort keys, and turn sorted
keys into neighbor lists.

Ids in int64 arrays may exceed 2^31.
"""

import numpy as np

from graphmill.core.compile_cache import compiled


@compiled
def group_by_bucket(dst, src, bounds, bucket_of, grouped_dst, grouped_src, order):
    """Groups edges by bucket. Writes their ends to grouped_dst and grouped_src, and their former positions to `order` (int32; nothing is written to an
    empty `order`). Within a bucket edges keep their order. Returns the end of each bucket, int64 [num_buckets].

    dst: new ids, of any integer dtype; the array has fewer than 2^31 entries. bounds: int64 [num_buckets + 1], ascending; bucket b has the ids
    [bounds[b], bounds[b + 1]), and every id lies in a bucket. bucket_of: uint32 [k], scratch. This is a counting sort that finds the bucket of an id by a
    table look-up instead of a search. It writes to one place per bucket, which is faster on large memory pages. Therefore the caller allocates the arrays
    with numpy, which uses large pages.
    """
    num_buckets = len(bounds) - 1
    # first[block] is the bucket of the block's first id. Most buckets are larger than a block, so the loop below needs few steps to find an id's bucket.
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
    """Writes (dst - low) · 2^row_bits + src to `key` (int64). Sorting by key sorts the edges by (dst, src)."""
    for i in range(len(dst)):
        key[i] = (np.int64(dst[i]) - low) << row_bits | np.int64(src[i])


@compiled
def unpack_lists(key, row_bits, id_of_row, degree, neighbor):
    """Reads sorted keys. Adds the edges of each destination to `degree` (int64, index: destination - low), and writes the sources' new ids to `neighbor`."""
    row_mask = (np.int64(1) << row_bits) - 1
    for i in range(len(key)):
        degree[key[i] >> row_bits] += 1
        neighbor[i] = id_of_row[key[i] & row_mask]


@compiled
def renumber(part_of_row, next_id, id_of_row, row_of_id):
    """Gives new ids to rows, in order. A partition's rows get ids from next_id[partition] on (int64, updated). Writes each row's new id and each id's row."""
    for row in range(len(part_of_row)):
        part = part_of_row[row]
        new_id = next_id[part]
        next_id[part] = new_id + 1
        id_of_row[row] = new_id
        row_of_id[new_id] = row
