"""Defines the binary tree of additions for all sums over the micro-batches of a step, and each rank's part of the tree.

A step has V positions, one micro-batch each. On each level the tree adds neighbors in pairs. If the number is odd, the last one moves up to the next level:

    V = 5:  ((0 + 1) + (2 + 3)) + 4

A rank has consecutive positions and makes the tree's additions among its positions. The remaining partial sums are called its nodes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from graphmill.samplers.vocabulary.rank_shares import own_positions

Value = TypeVar("Value")


@dataclass(frozen=True)
class Node(Generic[Value]):
    """A partial sum, over the positions [start, stop)."""

    start: int
    stop: int
    value: Value


def fold(nodes: Iterable[Node[Value]], num_positions: int, add: Callable[[Value, Value], Value]) -> list[Node[Value]]:
    """Makes all additions of the tree that are possible among these nodes, and returns the remaining nodes. Each given node must begin where the node before
    it ends.
    """
    folded: list[Node[Value]] = []
    for node in nodes:
        while folded and _are_added(folded[-1].start, node.start, node.stop, num_positions):
            left = folded.pop()
            node = Node(left.start, node.stop, add(left.value, node.value))
        folded.append(node)
    return folded


def _are_added(start: int, middle: int, stop: int, num_positions: int) -> bool:
    """Returns whether the tree adds the sums over [start, middle) and [middle, stop)."""
    size = middle - start
    return size & (size - 1) == 0 and start % (2 * size) == 0 and stop == min(start + 2 * size, num_positions)


@dataclass(frozen=True)
class Seat:
    """One rank's part in a step of `num_positions` micro-batches: its positions and nodes."""

    rank: int
    num_ranks: int
    num_positions: int
    places: tuple[int, ...] = ()  # by rank: its place in the order of positions; empty: rank r has place r

    @property
    def place(self) -> int:
        return self.places[self.rank] if self.places else self.rank

    @property
    def positions(self) -> range:
        return self.positions_of_ranks[self.rank]

    @cached_property
    def positions_of_ranks(self) -> tuple[range, ...]:
        places = self.places or range(self.num_ranks)
        return tuple(own_positions(place, self.num_ranks, self.num_positions) for place in places)

    @cached_property
    def nodes_of_ranks(self) -> tuple[tuple[Node[None], ...], ...]:
        """Each rank's nodes, which remain after the additions among its positions."""
        ranks = self.positions_of_ranks
        return tuple(tuple(self.fold((leaf(position, None) for position in own), _add_none)) for own in ranks)

    def fold(self, nodes: Iterable[Node[Value]], add: Callable[[Value, Value], Value]) -> list[Node[Value]]:
        return fold(nodes, self.num_positions, add)


def leaf(position: int, value: Value) -> Node[Value]:
    return Node(position, position + 1, value)


def _add_none(left: None, right: None) -> None:
    return None
