"""Faults of hosts during training; each host has partitions on its disk. Afterwards losses are the same as without faults, or a line appears in time.

With `--fault-times 5` each fault is tried five times. `python -m tests.netlab.faults` does the same and writes a table.
"""

import shutil
from collections.abc import Iterator

import pytest

from tests.netlab.faults import FAULTS, Labs
from tests.netlab.hosts import why_not

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labs]:
    with Labs(tmp_path_factory.mktemp("labs")) as labs:
        yield labs


@pytest.mark.parametrize("name", sorted(FAULTS, key=lambda name: FAULTS[name].kind))
def test_a_run_goes_on_or_ends_with_one_line(labs: Labs, name: str, strike: int) -> None:
    if FAULTS[name].kind in ("redis", "jobs") and shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    labs.try_one(name, strike)
