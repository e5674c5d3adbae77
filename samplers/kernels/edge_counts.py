"""A compiled count of the pre-sampled subgraphs that have an edge. It releases the GIL and keeps no state."""

import numpy as np

from graphmill.core.compile_cache import compiled


@compiled
def count_edges(indptr, indices, first, last, first_of_source, last_of_source, sample):
    """int64 [e]: number of samples with both ends of an edge; node i is in sample[first[i]:last[i]], ascending, and sources likewise."""
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
