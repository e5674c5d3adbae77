"""Applies a function to a stream on several threads, and yields the results in the stream's order."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from os import sched_getaffinity
from threading import get_ident
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_cores() -> int:
    """The cores that this process may use."""
    return len(sched_getaffinity(0))


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], num_threads: int
) -> Generator[Result, None, None]:
    """Yields `function(item)` for each item, in the order of the items. At most `num_threads` calls run at once. Up to `num_threads` further items wait: their
    calls have not started, or their results are not yielded yet.

    The caller's thread iterates over `items`, so a generator runs at the same time as the threads. With 0 threads, an item is taken after
    the previous result was consumed. An error of `function` is raised in place of its result. A caller that stops early waits for the running calls. At
    the end, `items` is closed if it is a generator, which also closes the maps that it reads.
    """
    try:
        yield from _mapped(function, items, num_threads) if num_threads else map(function, items)
    finally:
        if isinstance(items, Generator):
            items.close()


def _mapped(function: Callable[[Item], Result], items: Iterable[Item], num_threads: int) -> Iterator[Result]:
    pool, caller = ThreadPoolExecutor(num_threads, thread_name_prefix="ordered-map"), get_ident()
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            del item  # the item's memory is then freed when its call ends
            if len(pending) >= 2 * num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # The garbage collector may run this in a thread that is just starting. Such a thread must not wait for other threads (CPython 3.11 hangs).
        pool.shutdown(wait=get_ident() == caller, cancel_futures=True)
