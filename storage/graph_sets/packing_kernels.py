"""Kernels over many packed graphs: copying some of them out, and checking the ends of their edges. All release the GIL.

Rows are copied as bytes, so that one compiled kernel serves every dtype. Callers have checked graph numbers and pointers.
"""

from graphmill.core.compile_cache import compiled


@compiled
def copy_rows(ptr, graph, row_bytes, source, place, out_ptr, out):
    """Copies the rows [ptr[g], ptr[g + 1]) of every graph to the rows from out_ptr[place] on; whether `ptr` still fits `out_ptr` and `source`, where the
    loop ends else. `source`, `out`: uint8, flat."""
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
    """The same for one end of every edge, of any integer dtype, to int32."""
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
    """The first edge with an end outside its graph, or -1."""
    for g in range(len(node_ptr) - 1):
        size = node_ptr[g + 1] - node_ptr[g]
        for e in range(edge_ptr[g], edge_ptr[g + 1]):
            if source[e] < 0 or source[e] >= size or destination[e] < 0 or destination[e] >= size:
                return e
    return -1
