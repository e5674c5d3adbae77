"""Measures how much freed memory a process keeps."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

# glibc raises its mmap threshold when the first block is freed. Later blocks then lie in the heap, and the small blocks keep the heap from shrinking.
KEPT = """
import sys
import numpy as np
from graphmill.cluster.process.malloc_trim import return_freed_blocks
from graphmill.core.process_memory import own_bytes

if sys.argv[1] == "return":
    return_freed_blocks()
first = np.ones(31 << 20, np.uint8)
del first
before, large, small = own_bytes("RssAnon"), [], []
for _ in range(8):
    large.append(np.ones(16 << 20, np.uint8))
    small.append(np.ones(100 << 10, np.uint8))
large.clear()
print((own_bytes("RssAnon") - before) >> 20)
"""


def kept_mib(mode: str) -> int:
    command = [sys.executable, "-c", KEPT, mode]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_freed_blocks_go_back_to_the_system():
    assert kept_mib("keep") > 100  # If this fails, the C library has changed and `return_freed_blocks` is useless.
    assert kept_mib("return") < 10
