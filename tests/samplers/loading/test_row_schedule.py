"""Tests the row plan. Every row is present when a batch needs it, the slots suffice, and no other plan fetches fewer rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.samplers.loading import row_schedule as row_plan
from graphmill.samplers.loading.row_schedule import RowSchedule
from tests.samplers.slow_row_plan import belady, least_fetched

NUM_NODES = 24
OFFSETS = np.array([0, 4, 14, 22, NUM_NODES])  # the first and the last partition are near
IS_NEAR = np.array([True, False, False, True])

sets_of_nodes = st.lists(st.sets(st.integers(0, NUM_NODES - 1), max_size=10), min_size=1, max_size=12)
few_sets = st.lists(st.sets(st.integers(4, 8), max_size=4), min_size=1, max_size=5)


def is_far(node):
    return (node >= OFFSETS[1]) & (node < OFFSETS[3])


class Rows:
    """Executes the steps of a plan. A slot stores the id of the node whose row it would have."""

    def __init__(self, num_slots: int) -> None:
        self.slots = np.full(num_slots, -1)
        self.fetched: list[int] = []

    def follow(self, node: np.ndarray, step: row_plan.Step) -> None:
        assert np.array_equal(self.slots[step.slot], node[step.hit])
        assert np.array_equal(step.near, np.flatnonzero(~is_far(node)))
        assert np.array_equal(np.sort(np.concatenate([step.near, step.hit, step.absent])), np.arange(len(node)))
        kept = step.keep >= 0
        written = np.concatenate([step.keep[kept], step.ahead_slot])
        assert len(set(written.tolist())) == len(written)
        assert (written < len(self.slots)).all()
        assert not set(node[step.absent].tolist()) & set(step.ahead.tolist())
        self.slots[step.keep[kept]] = node[step.absent[kept]]
        self.slots[step.ahead_slot] = step.ahead
        self.fetched.append(len(step.absent) + len(step.ahead))


def run(
    batches: list[set[int]], num_slots: int, window: int | None = None, most_ahead: int = 0, epochs: int = 1
) -> Rows:
    plan, rows = RowSchedule(OFFSETS, IS_NEAR, num_slots), Rows(num_slots)
    nodes = [np.array(sorted(batch, key=lambda v: -v % 7), np.int32) for batch in batches]
    for _ in range(epochs):
        plan.begin(0, len(nodes))
        known = 0
        for number, node in enumerate(nodes):
            ahead = len(nodes) if window is None else number + 1 + window
            while known < min(ahead, len(nodes)):
                plan.admit(nodes[known])
                known += 1
            rows.follow(node, plan.take(most_ahead))
            assert plan.num_used <= num_slots
    return rows


@given(sets_of_nodes, st.integers(0, NUM_NODES), st.none() | st.integers(0, 4), st.integers(0, 12), st.integers(1, 2))
def test_rows_are_there_and_fit(batches, num_slots, window, most_ahead, epochs):
    rows = run(batches, num_slots, window, most_ahead, epochs)
    assert sum(rows.fetched) >= len(set().union(*batches) - {*range(4), 22, 23})


@given(sets_of_nodes, st.integers(0, NUM_NODES))
def test_fetches_as_few_rows_as_the_slow_plan(batches, num_slots):
    far = [{node for node in batch if is_far(node)} for batch in batches]
    assert sum(run(batches, num_slots).fetched) == sum(len(fetched) for fetched, _ in belady(far, num_slots))


@given(few_sets, st.integers(0, 3))
def test_no_plan_fetches_fewer(batches, num_slots):
    assert sum(run(batches, num_slots).fetched) == least_fetched(batches, num_slots)


@given(sets_of_nodes)
def test_with_room_for_all_each_row_is_fetched_once(batches):
    rows = run(batches, NUM_NODES, epochs=2)
    assert sum(rows.fetched) == len({node for batch in batches for node in batch if is_far(node)})


def test_numbers_of_occurrences_begin_again_and_the_ring_grows(monkeypatch):
    monkeypatch.setattr(row_plan, "_FIRST_RING", 4)
    rng = np.random.default_rng(0)
    batches = [rng.permutation(NUM_NODES)[:9] for _ in range(40)]
    plan, rows = RowSchedule(OFFSETS, IS_NEAR, 6), Rows(6)
    plan._counter = (1 << 31) - 100  # so the counter wraps around in this test
    plan.begin(0, len(batches))
    for node in batches:
        plan.admit(node)
    for node in batches:
        rows.follow(node, plan.take())
    assert plan._counter < 1000
    far = [{v for v in batch.tolist() if is_far(v)} for batch in batches]
    assert sum(rows.fetched) == sum(len(fetched) for fetched, _ in belady(far, 6))


def test_batches_given_up_are_forgotten_and_rows_stay():
    plan, rows, node = RowSchedule(OFFSETS, IS_NEAR, 8), Rows(8), np.arange(2, 12)
    plan.begin(0, 3)
    for _ in range(3):
        plan.admit(node)
    rows.follow(node, plan.take())
    plan.begin(7, 9)
    assert (plan.num_used, len(plan._known)) == (8, 0)
    for _ in range(2):
        plan.admit(node)
        rows.follow(node, plan.take())
    assert rows.fetched == [8, 0, 0]
    plan.forget()
    plan.begin(0, 1)
    plan.admit(node)
    assert np.array_equal(plan.take().absent, np.flatnonzero(node >= 4))


@pytest.mark.parametrize("most_ahead", [0, 5, 100])
def test_rows_of_next_batches_come_with_a_batch_that_fetches(most_ahead):
    batches = [{4, 5}, {6, 7, 8}, {9}, {10}]
    rows = run(batches, 8, most_ahead=most_ahead)
    assert rows.fetched == {0: [2, 3, 1, 1], 5: [7, 0, 0, 0], 100: [7, 0, 0, 0]}[most_ahead]
