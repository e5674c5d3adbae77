"""Tests the map over threads: the order of results, errors, how far it reads ahead, and that no thread remains at the end."""

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.core.parallel_map import ordered_map


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 4))
def test_results_come_in_the_order_of_items(delays: list[int], num_threads: int) -> None:
    def work(item: tuple[int, int]) -> int:
        time.sleep(item[1] * 1e-3)  # later items often finish first
        return item[0]

    assert list(ordered_map(work, enumerate(delays), num_threads)) == list(range(len(delays)))


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_few_items_are_taken_ahead(num_threads: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for taken in range(1, 101):
            assert threading.current_thread() is threading.main_thread()
            yield taken

    most = 0
    for result in ordered_map(lambda item: item, items(), num_threads):
        most = max(most, taken - result)
    assert most <= max(0, 2 * num_threads - 1)


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_an_error_comes_in_its_turn_and_ends_the_threads(num_threads: int) -> None:
    results = ordered_map(lambda item: 6 // item, [3, 2, 1, 0, 1, 1, 1, 1, 1], num_threads)
    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ordered-map")]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_of_the_items_and_an_early_end_leave_no_thread(num_threads: int) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(ordered_map(lambda item: item, items(), num_threads))
    results = ordered_map(lambda item: item, iter(range(100)), num_threads)
    assert next(results) == 0
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ordered-map")]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_the_end_of_a_map_is_that_of_what_it_reads(num_threads: int) -> None:
    ended = []

    def items() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            ended.append(threading.current_thread())

    inner = ordered_map(lambda item: item + 1, items(), num_threads)
    outer = ordered_map(lambda item: 2 * item, inner, num_threads)
    assert [next(outer), next(outer)] == [2, 4]
    outer.close()
    assert ended == [threading.main_thread()]
    assert list(inner) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ordered-map")]
