"""Compiled loops over many packed graphs. They copy graphs out of shards and check the ends of edges. All loops release the GIL.

Rows are copied as bytes, so that one compiled loop serves every dtype. Callers must check graph indices and pointers.
"""

from graphmill.core.compile_cache import compiled


@compiled
def copy_rows(ptr, graph, row_bytes, source, place, out_ptr, out):
    """Copies the rows [ptr[g], ptr[g + 1]) of each requested graph g to the rows of `out` from out_ptr[place] on. Stops and returns False if `ptr` no longer
    matches `out_ptr` and `source`. `source`, `out`: flat uint8 arrays."""
    for i in range(len(graph)):
        start, to = ptr[graph[i]] * row_bytes, out_ptr[place[i]] * row_bytes
        length = out_ptr[place[i] + 1] * row_bytes - to
        if start < 0 or start > len(source) - length:
            return False
        for k in range(length):
            out[to + k] = source[start + k]
    return True


@compiled
def copy_ends(ptr, graph, source, place, out_ptr, out):
    """Like `copy_rows`, but copies one end of every edge, from any integer dtype to int32."""
    for i in range(len(graph)):
        start, to = ptr[graph[i]], out_ptr[place[i]]
        length = out_ptr[place[i] + 1] - to
        if start < 0 or start > len(source) - length:
            return False
        for k in range(length):
            out[to + k] = source[start + k]
    return True


@compiled
def first_edge_outside(node_ptr, edge_ptr, source, destination):
    """Returns the first edge with an end outside the edge's graph; -1 if there is none."""
    for g in range(len(node_ptr) - 1):
        size = node_ptr[g + 1] - node_ptr[g]
        for e in range(edge_ptr[g], edge_ptr[g + 1]):
            if source[e] < 0 or source[e] >= size or destination[e] < 0 or destination[e] >= size:
                return e
    return -1
