"""Rows that are larger than half of the memory are read page by page. The system's flags of the mapping show this."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from graphmill.storage.filesystem.mapped_files import read_at_random
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(not SMAPS.exists(), reason="needs /proc")


def random_files() -> set[str]:
    """Returns the names of mapped files that have a part with the flag "rr" (random reads)."""
    found, name = set(), ""
    for line in SMAPS.read_text().splitlines():
        head, *flags = line.split()
        if not head.endswith(":"):  # the first line of a mapping: addresses, …, the file
            name = Path(flags[-1]).name
        elif head == "VmFlags:" and "rr" in flags:
            found.add(name)
    return found


def test_only_what_does_not_fit_is_read_at_random(tmp_path):
    np.arange(100_000, dtype=np.float32).tofile(tmp_path / "rows")
    rows = np.memmap(tmp_path / "rows", np.float32, "r", shape=(1000, 100))
    assert not read_at_random(rows)
    assert not read_at_random(rows, memory_bytes=800_000)
    assert not read_at_random(rows[:3], memory_bytes=1)  # these rows do not fill a page
    assert random_files() == set()
    assert read_at_random(rows[1:], memory_bytes=799_000)
    assert random_files() == {"rows"}
    assert rows[999, 99] == 99_999


def test_a_partition_s_features_alone(tmp_path, monkeypatch):
    url = str(tmp_path / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=2000)), url, IngestOptions(num_partitions=2))
    partitions = list(open_graph(url).partitions())
    assert random_files() == set()
    monkeypatch.setattr("graphmill.storage.partition.read_at_random", partial(read_at_random, memory_bytes=100_000))
    again = list(open_graph(url).partitions(verify=True))
    assert random_files() == {"features.arrow"}
    for one, other in zip(partitions, again, strict=True):
        assert np.array_equal(one.feature, other.feature)
