"""A tree adds up the gradients of a step's micro-batches. The sum has the same bits for any number of ranks."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphmill.cluster.reduction.position_tree import Node, Seat, fold, leaf
from graphmill.samplers.vocabulary.rank_shares import own_positions

CPU = torch.device("cpu")


def serial_tree(values: list) -> object:
    """Adds the values in pairs of neighbors, level by level. If a level has an odd number of nodes, the last one moves up unchanged."""
    while len(values) > 1:
        pairs = [left + right for left, right in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def seats(num_ranks: int, num_positions: int) -> list[Seat]:
    return [Seat(rank, num_ranks, num_positions) for rank in range(num_ranks)]


sizes = st.integers(1, 40).flatmap(lambda v: st.tuples(st.integers(1, v), st.just(v)))


@given(sizes, st.integers(0, 2**32 - 1))
def test_any_deal_of_positions_adds_up_to_the_bits_of_the_serial_tree(size, seed):
    num_ranks, num_positions = size
    rng = np.random.default_rng(seed)
    leaves = (rng.normal(size=num_positions) * 10.0 ** rng.integers(-8, 8, num_positions)).astype(np.float32)
    add = lambda left, right: left + right  # noqa: E731
    nodes = []
    for seat in seats(num_ranks, num_positions):
        own = seat.fold([leaf(position, leaves[position]) for position in seat.positions], add)
        assert [(n.start, n.stop) for n in own] == [(n.start, n.stop) for n in seat.nodes_of_ranks[seat.rank]]
        assert len(own) <= max(1, 2 * num_positions.bit_length())
        nodes += own
    (total,) = fold(nodes, num_positions, add)
    assert (total.start, total.stop) == (0, num_positions)
    assert total.value == serial_tree(list(leaves))


@given(sizes, st.randoms(use_true_random=False))
def test_ranks_may_stand_in_any_order(size, random):
    num_ranks, num_positions = size
    places = list(range(num_ranks))
    random.shuffle(places)
    found = [Seat(rank, num_ranks, num_positions, tuple(places)) for rank in range(num_ranks)]
    for rank, seat in enumerate(found):
        assert seat.positions == seat.positions_of_ranks[rank] == seats(num_ranks, num_positions)[seat.place].positions
    assert sorted(position for seat in found for position in seat.positions) == list(range(num_positions))


@given(sizes)
def test_positions_are_dealt_in_order_and_evenly(size):
    num_ranks, num_positions = size
    dealt = [own_positions(rank, num_ranks, num_positions) for rank in range(num_ranks)]
    assert [position for own in dealt for position in own] == list(range(num_positions))
    assert {len(own) for own in dealt} <= {num_positions // num_ranks, -(-num_positions // num_ranks)}
    assert min(map(len, dealt)) >= 1


def test_every_addition_is_one_of_the_trees():
    added = []

    def add(left: str, right: str) -> str:
        added.append((left, right))
        return f"({left}+{right})"

    (total,) = fold([leaf(position, str(position)) for position in range(7)], 7, add)
    assert total == Node(0, 7, "(((0+1)+(2+3))+((4+5)+6))")
    assert len(added) == 6
    # Two neighbors are added to each other only if they are a pair of the tree.
    assert fold([leaf(1, "1"), leaf(2, "2")], 7, add) == [leaf(1, "1"), leaf(2, "2")]
