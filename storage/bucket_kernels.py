"""The compiled inner loop of the external sort (`storage.edge_buckets`): which edge goes to which bucket."""

import numpy as np

from storage.compiled import compiled


@compiled
def group_by_bucket(dst, bounds):
    """(order int32 [k], ends int64 [num_buckets]): positions in `dst` by bucket, in their order within each; where each bucket ends.

    dst: new ids, of any integer dtype, fewer than 2^31 of them. bounds: int64 [num_buckets + 1], ascending, bucket b holds the ids
    [bounds[b], bounds[b + 1]); every id lies in one. A counting sort: one look at a table per id, not a search.
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
    for i in range(len(dst)):
        bucket = np.int64(buckets[i])
        order[fill[bucket]] = i
        fill[bucket] += 1
    return order, fill[:-1].copy()
