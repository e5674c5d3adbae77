"""Compiled counts of how often edges were in pre-sampled subgraphs. They release the GIL and keep no state."""

import numpy as np

from graphmill.core.compile_cache import compiled


@compiled
def count_edges(indptr, indices, first, last, first_of_source, last_of_source, sample):
    """int64 [e]: in how many samples both ends of each edge are; node i is in sample[first[i]:last[i]], which ascend, and a source accordingly."""
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
