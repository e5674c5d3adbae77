"""Slow reference samplers. They use Python integers, dicts and lists, and read `tests.listed_graph.NodeRow`s.

This module defines the random numbers of every draw. If a change makes a test against it fail, the change alters all runs
of all users. So it must be intended.
"""

from dataclasses import dataclass

import numpy as np

from graphmill.samplers.batches.minibatch import MiniBatch
from tests.listed_graph import ListedEdge, NodeRow

MASK = (1 << 64) - 1
ROOT_ORDER, NEIGHBORS, CHUNKS = 1, 2, 3


def hash64(key: int, counter: int) -> int:
    """Output number `counter` of SplitMix64 with the seed `key`."""
    x = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stream_key(seed: int, *path: int) -> int:
    key = seed & MASK
    for step in (0, *path):
        key = hash64(key, step & MASK)
    return key


def below(hashed: int, bound: int) -> int:
    return int(float(hashed >> 11) * 2.0**-53 * bound)


def floyd(key: int, degree: int, take: int) -> list[int]:
    """Draws `take` distinct numbers below `degree`. Returns them in ascending order."""
    chosen: set[int] = set()
    for filled in range(take):
        upper = degree - take + filled
        drawn = below(hash64(key, filled), upper + 1)
        chosen.add(upper if drawn in chosen else drawn)
    return sorted(chosen)


def draw(
    rows: dict[int, NodeRow], node: int, fanout: int, key: int, until: int | None = None, scheme: str = "uniform"
) -> list[ListedEdge]:
    """Draws up to `fanout` of a node's in-edges (-1: all). With `until`, draws only from in-edges whose time is at most `until`."""
    edges = [edge for edge in rows[node].in_edges if until is None or edge.time is None or edge.time <= until]
    if fanout < 0 or len(edges) <= fanout:
        return edges
    if scheme == "last":
        return edges[len(edges) - fanout :]
    own = hash64(key, node)
    if until is not None:
        own = hash64(own, until & MASK)
    return [edges[position] for position in floyd(own, len(edges), fanout)]


def share(count: int, parts: int, part: int) -> slice:
    return slice(count * part // parts, count * (part + 1) // parts)


@dataclass(frozen=True)
class Expected:
    """The expected minibatch, as lists."""

    node: list[int]
    in_lists: list[list[int]]  # for each node, the positions of its sources
    roots: list[int]  # positions of the roots


def neighbor_batch(
    rows: dict[int, NodeRow], roots: list[int], fanouts: tuple[int, ...], seed: int, epoch: int, batch: int, edges: str
) -> Expected:
    position: dict[int, int] = {root: i for i, root in enumerate(roots)}
    in_lists: list[list[int]] = []
    frontier = list(roots)
    for hop, fanout in enumerate(fanouts):
        key = stream_key(seed, NEIGHBORS, epoch, batch, hop)
        found = []
        for node in frontier:
            drawn = [edge.other_end for edge in draw(rows, node, fanout, key)]
            for source in drawn:
                if source not in position:
                    position[source] = len(position)
                    found.append(source)
            in_lists.append([position[source] for source in drawn])
        frontier = found
    node = list(position)
    in_lists += [[]] * (len(node) - len(in_lists))
    if edges == "induced":
        in_lists = induced(rows, node)
    return Expected(node, in_lists, list(range(len(roots))))


@dataclass(frozen=True)
class ExpectedPast(Expected):
    root_time: list[int]  # for each node, the time of its root
    edge_time: list[int]


def past_batch(
    rows: dict[int, NodeRow],
    roots: list[tuple[int, int]],
    fanouts: tuple[int, ...],
    seed: int,
    epoch: int,
    batch: int,
    time: str,
    scheme: str,
) -> ExpectedPast:
    """The batch around roots (node, time). A node has a separate copy for each time. A copy is expanded only by edges up to (or before) its time."""
    position: dict[tuple[int, int], int] = {root: i for i, root in enumerate(roots)}
    in_lists: list[list[int]] = []
    edge_time: list[int] = []
    frontier = list(roots)
    for hop, fanout in enumerate(fanouts):
        key = stream_key(seed, NEIGHBORS, epoch, batch, hop)
        found = []
        for node, when in frontier:
            until = when if time == "until" else max(when, 1 - 2**63) - 1
            drawn = [(edge.other_end, edge.time) for edge in draw(rows, node, fanout, key, until, scheme)]
            for source, of_edge in drawn:
                edge_time.append(of_edge or 0)
                if (source, when) not in position:
                    position[source, when] = len(position)
                    found.append((source, when))
            in_lists.append([position[source, when] for source, _ in drawn])
        frontier = found
    copies = list(position)
    in_lists += [[]] * (len(copies) - len(in_lists))
    node, when = [one for one, _ in copies], [one for _, one in copies]
    return ExpectedPast(node, in_lists, list(range(len(roots))), when, edge_time)


def induced(rows: dict[int, NodeRow], node: list[int]) -> list[list[int]]:
    position = {one: i for i, one in enumerate(node)}
    return [[position[e.other_end] for e in rows[one].in_edges if e.other_end in position] for one in node]


def root_order(roots: list[int], seed: int, epoch: int) -> list[int]:
    key = stream_key(seed, ROOT_ORDER, epoch)
    return sorted(roots, key=lambda root: (hash64(key, root), root))


def chunk_nodes(rows: dict[int, NodeRow], seed: int, epoch: int, chunk: int, num_chunks: int) -> list[int]:
    key = stream_key(seed, CHUNKS, epoch)
    return [node for node in sorted(rows) if hash64(key, node) * num_chunks >> 64 == chunk]


def assert_is(batch: MiniBatch, expected: Expected, rows: dict[int, NodeRow], split_set: int = 0) -> None:
    """Checks that the minibatch equals the reference, including the rows of its nodes."""
    assert batch.node_id.tolist() == expected.node
    lists = [batch.indices[batch.indptr[i] : batch.indptr[i + 1]].tolist() for i in range(batch.num_nodes)]
    assert lists == expected.in_lists
    assert batch.indptr[0] == 0
    assert batch.indptr[-1] == batch.num_edges
    assert batch.root_index.tolist() == expected.roots
    for name in ("feature", "label", "split"):
        values = [getattr(rows[node], name) for node in expected.node]
        found = getattr(batch, name)
        if not rows or next(iter(rows.values())).__getattribute__(name) is None:
            assert found is None
        elif name == "split":
            assert found.tolist() == [codes[split_set] for codes in values]
        elif expected.node:
            np.testing.assert_array_equal(found, np.asarray(values))
    assert (batch.node_id.dtype, batch.indptr.dtype, batch.indices.dtype) == (np.int64, np.int64, np.int32)


def same_bytes(one: MiniBatch, other: MiniBatch) -> None:
    """True if all arrays of the two batches have the same type, shape and bytes."""
    for name, value in vars(one).items():
        against = getattr(other, name)
        if isinstance(value, np.ndarray):
            assert value.dtype == against.dtype, name
            assert value.shape == against.shape, name
            assert value.tobytes() == against.tobytes(), name
        else:
            assert value == against, name


def assert_same_batch(a: MiniBatch, b: MiniBatch) -> None:
    """Checks that two batches are equal bit for bit."""
    for name, value in vars(a).items():
        other = getattr(b, name)
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.tobytes()) == (other.dtype, other.tobytes()), name
        else:
            assert value == other, name
