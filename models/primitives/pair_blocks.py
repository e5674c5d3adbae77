"""Blocks for attention over all pairs of a graph's nodes, so that values per pair exist for one block at a time."""

from collections.abc import Iterator


def pair_blocks(num_graphs: int, places: int, per_pair: int, room: int) -> Iterator[tuple[slice, slice]]:
    """Graphs and queries of each block of about `room` numbers, `per_pair` a pair: several whole graphs, or some queries of one."""
    graphs = room // max(places * places * per_pair, 1)
    queries = max(places, 1) if graphs else max(room // (places * per_pair), 1)
    for b in range(0, num_graphs, max(graphs, 1)):
        for i in range(0, places, queries):
            yield slice(b, min(b + max(graphs, 1), num_graphs)), slice(i, min(i + queries, places))
