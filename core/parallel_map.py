"""Applies a function to a stream on several threads and yields the results in the stream's order."""

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
    """`function(item)` for each item, in their order: at most `num_threads` are running, and as many more wait to start or to be taken.

    Items are taken on the caller's thread, so a generator of items runs beside the threads. 0: no threads; an item is taken after the
    previous result was consumed. An error of `function` is raised in its turn; a caller that stops early waits for the items that are
    running. A generator of items is closed at the end, and so are the maps that it reads.
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
            del item  # a chunk's memory goes with its work
            if len(pending) >= 2 * num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # An abandoned map may be collected in a thread that is just starting, which must wait for no other (CPython 3.11 hangs there).
        pool.shutdown(wait=get_ident() == caller, cancel_futures=True)
