"""The digest of what a run learns from: the same for any partitioning, another for any change that it looks at."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.data_digest import digest_graphs, digest_nodes
from tests.memory_graph import MemoryGraph, cut, memory_router

GRAPH = MemoryGraph(40, [], split=[1, 1, 2, 3] * 10)


@settings(deadline=None)  # the first request compiles
@given(st.integers(1, 5), st.integers(0, 99))
def test_partitions_do_not_matter(num_partitions, seed):
    assert digest_nodes(memory_router(GRAPH, cut(40, num_partitions, seed)), 0) == digest_nodes(memory_router(GRAPH), 0)


def test_splits_labels_and_features_matter():
    whole = digest_nodes(memory_router(GRAPH), 0)
    assert digest_nodes(memory_router(replace(GRAPH, split=[1, 2, 1, 3] * 10)), 0) != whole
    # Labels and features of a memory graph are functions of the permanent ids.
    assert digest_nodes(memory_router(replace(GRAPH, permanent_id=[*range(39), 46])), 0) != whole


def test_an_empty_split_is_no_obstacle():
    digest_nodes(memory_router(replace(GRAPH, split=[1] * 40)), 0)


@pytest.fixture(scope="module")
def molecules(tmp_path_factory):
    pytest.importorskip("rdkit")
    from cluster.molecule_ingest import ingest_molecules
    from storage.graph_store import open_graphs
    from storage.importers.enumerated_molecules import EnumeratedMolecules

    url = str(tmp_path_factory.mktemp("molecules") / "set")
    ingest_molecules(EnumeratedMolecules(60), url)
    return open_graphs(url)


def test_targets_and_splits_of_a_set_matter(molecules):
    class Changed:
        def __init__(self, **changed) -> None:
            self._changed = changed

        def __getattr__(self, name):
            return self._changed.get(name, getattr(molecules, name))

    whole = digest_graphs(molecules, (0,))
    assert digest_graphs(molecules, (0,)) == whole
    target = np.array(molecules.target)
    target[molecules.split("test")[0]] += 1
    assert digest_graphs(Changed(target=target), (0,)) != whole
    swapped = {"train": "valid", "valid": "train", "test": "test"}
    assert digest_graphs(Changed(split=lambda name: molecules.split(swapped[name])), (0,)) != whole
