"""Rows larger than half of the memory are read page by page, other files in huge pages, as the system's flags of the mappings show."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from graphmill.storage.filesystem.mapped_files import huge_bytes, prefer_huge_pages, read_at_random
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions

SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(not SMAPS.exists(), reason="needs /proc")


def files_with(flag: str = "rr") -> set[str]:
    """Names of mapped files with a part that has this flag: "rr" is read at random, "hg" prefers huge pages."""
    found, name = set(), ""
    for line in SMAPS.read_text().splitlines():
        head, *flags = line.split()
        if not head.endswith(":"):  # the first line of a mapping: addresses, …, the file
            name = Path(flags[-1]).name
        elif head == "VmFlags:" and flag in flags:
            found.add(name)
    return found


def test_only_what_does_not_fit_is_read_at_random(tmp_path):
    np.arange(100_000, dtype=np.float32).tofile(tmp_path / "rows")
    rows = np.memmap(tmp_path / "rows", np.float32, "r", shape=(1000, 100))
    assert not read_at_random(rows)
    assert not read_at_random(rows, memory_bytes=800_000)
    assert not read_at_random(rows[:3], memory_bytes=1)  # no whole page
    assert files_with() == set()
    assert read_at_random(rows[1:], memory_bytes=799_000)
    assert files_with() == {"rows"}
    assert rows[999, 99] == 99_999


def test_a_partition_s_features_alone(tmp_path, monkeypatch):
    url = str(tmp_path / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=2000)), url, IngestOptions(num_partitions=2))
    partitions = list(open_graph(url).partitions())
    assert files_with() == set()
    monkeypatch.setattr("graphmill.storage.partition.read_at_random", partial(read_at_random, memory_bytes=100_000))
    again = list(open_graph(url).partitions(verify=True))
    assert files_with() == {"features.arrow"}
    for one, other in zip(partitions, again, strict=True):
        assert np.array_equal(one.feature, other.feature)


HUGE = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="needs a kernel with huge pages"
)


@HUGE
def test_only_what_stays_in_memory_prefers_huge_pages(tmp_path):
    np.arange(100_000, dtype=np.float32).tofile(tmp_path / "rows")
    rows = np.memmap(tmp_path / "rows", np.float32, "r")
    where = rows.ctypes.data, rows.nbytes
    assert not prefer_huge_pages(*where, memory_bytes=799_999)
    assert not prefer_huge_pages(where[0], 0)
    assert "rows" not in files_with("hg")
    assert prefer_huge_pages(*where, memory_bytes=800_000)
    assert "rows" in files_with("hg")


@HUGE
def test_all_files_of_a_partition_prefer_huge_pages(tmp_path):
    url = str(tmp_path / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=2000)), url, IngestOptions(num_partitions=1))
    partition = open_graph(url).partition(0)
    assert {"topology.arrow", "nodes.arrow", "features.arrow"} <= files_with("hg")
    assert partition.indices.sum() > 0
    huge, resident = huge_bytes()
    assert 0 <= huge <= resident
    assert resident >= partition.indices.nbytes
