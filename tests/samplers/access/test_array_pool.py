"""The pool reuses the memory of an array only when no other object refers to it."""

import copy
import gc
import os
import platform
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch

from graphmill.samplers.access.array_pool import ArrayPool

_MB = 1 << 20


def _address(array):
    return array.__array_interface__["data"][0]


def test_memory_comes_back_when_the_last_view_is_gone():
    pool = ArrayPool()
    first = pool.empty((2 * _MB,), np.uint8)
    address, view = _address(first), first[:10]
    tensor = torch.from_numpy(first)
    del first
    assert pool.idle_bytes == 0
    del view
    assert pool.idle_bytes == 0
    tensor.fill_(7)
    other = pool.empty((2 * _MB,), np.uint8)
    assert _address(other) != address
    assert (tensor == 7).all()
    del tensor
    assert pool.idle_bytes == 2 * _MB
    assert _address(pool.empty((_MB // 2,), np.float32)) == address  # other shape and dtype, same size


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_shapes_and_dtypes(dtype):
    array = ArrayPool().empty((300_001, 7), dtype)
    assert array.shape == (300_001, 7)
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[-1] = 3
    assert (array[-1] == 3).all()


def test_small_and_empty_arrays_are_plain():
    pool = ArrayPool()
    for shape in ((0, 100), (10,), (0,)):
        assert pool.empty(shape, np.float32).shape == shape
    gc.collect()
    assert pool.idle_bytes == 0


def test_sizes_near_each_other_share_blocks_and_waste_at_most_an_eighth():
    pool = ArrayPool()
    for size in range(_MB, 5 * _MB, 123_457):
        array = pool.empty((size,), np.uint8)
        del array
        assert size <= pool.idle_bytes
        pool = ArrayPool()
    first = pool.empty((1000 * 1100,), np.uint8)
    del first
    idle = pool.idle_bytes
    assert idle <= 1100 * 1000 * 9 / 8 + 1
    second = pool.empty((1000 * 1110,), np.uint8)
    assert pool.idle_bytes == 0, "the second did not take the first one's block"
    assert len(second) == 1110 * 1000


def test_idle_memory_is_bounded():
    pool = ArrayPool(max_idle_bytes=3 * _MB)
    arrays = [pool.empty((_MB,), np.uint8) for _ in range(8)]
    del arrays
    assert pool.idle_bytes == 3 * _MB


def test_what_comes_back_at_once_is_bounded_at_once():
    """If many arrays are released at once, the pool frees memory above its bound at once, not only at the next call."""
    pool = ArrayPool(max_idle_bytes=3 * _MB)
    arrays = [pool.empty((2 * _MB,), np.uint8) for _ in range(20)]
    blocks = [weakref.ref(_block_of(array)) for array in arrays]
    del arrays
    assert sum(one() is not None for one in blocks) == 1


def _block_of(array):
    lease = array
    while isinstance(lease, np.ndarray):
        lease = lease.base
    return lease._block


def test_a_pool_travels_empty():
    pool = ArrayPool(max_idle_bytes=5 * _MB)
    array = pool.empty((2 * _MB,), np.uint8)
    del array
    other = copy.deepcopy(pool)  # copies like pickle
    assert other.idle_bytes == 0
    arrays = [other.empty((_MB,), np.uint8) for _ in range(8)]
    del arrays
    assert other.idle_bytes == 5 * _MB


def test_threads_never_share_memory():
    pool, wrong = ArrayPool(), []

    def work(number):
        for _ in range(200):
            array = pool.empty((_MB // 4,), np.int32)
            array[::4096] = number
            if (array[::4096] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_an_array_outlives_its_pool():
    pool = ArrayPool()
    array = pool.empty((2 * _MB,), np.uint8)
    array[:] = 5
    del pool
    gc.collect()
    assert (array == 5).all()


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="what is tested is glibc's allocator, this C library is another"
)
def test_freed_memory_stays_with_the_process():
    """Allocates and frees twenty megabytes of small arrays, repeatedly.

    If freed memory went back to the system, each round would take about 5,000 page faults.
    """
    code = """
import resource
import numpy as np
from graphmill.samplers.access.array_pool import ArrayPool
def rounds(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        arrays = [np.ones(60_000) for _ in range(40)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
ArrayPool()
rounds(3)
print(rounds(5))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(told.stdout) < 1000
