"""A compiled loop that counts, for each edge, the pre-sampled subgraphs that contain it. It releases the GIL and keeps no state."""

import numpy as np

from graphmill.core.compile_cache import compiled


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
