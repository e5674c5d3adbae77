"""Tests which nodes are roots, for each way to choose roots."""

from dataclasses import replace

import numpy as np
import pytest

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.drawing.roots import Roots
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.vocabulary.options import RandomPartitionOptions
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import ListedGraph, marked_graph
from tests.memory_graph import MemoryGraph, memory_router

PERMANENT = [3, 5, 6, 20, 21, 40, 41, 99]
SPLIT = [1, 2, 3, 0, 1, 2, 3, 1]
ASSIGNMENT = [1, 0, 2, 0, 1, 2, 2, 0]


@pytest.fixture
def router() -> Router:
    return memory_router(MemoryGraph(8, [(0, 1)], permanent_id=PERMANENT, split=SPLIT), ASSIGNMENT)


@pytest.mark.parametrize(
    ("codes", "given", "expected"),
    [
        ((SPLIT_TRAIN,), None, [3, 21, 99]),
        ((SPLIT_TEST, SPLIT_VALID), None, [5, 6, 40, 41]),
        (None, None, PERMANENT),
        ((SPLIT_TRAIN,), [99, 20, 5], [5, 20, 99]),
        (None, [99, 20, 5], [5, 20, 99]),
    ],
)
def test_roots_listed_and_among_a_batch(codes, given, expected, router):
    roots = Roots(router, 0, codes, None if given is None else np.array(given))
    assert roots.nodes.original_id.tolist() == expected
    assert router.fetch(roots.nodes.node).original_id.tolist() == expected
    everything = RandomPartitionSampler(router, RandomPartitionOptions(num_chunks=1)).sample(0, 0)
    assert everything.node_id[roots.among(everything)].tolist() == expected


def test_content_hash_tells_graphs_and_roots_apart_and_not_partitions(tmp_path):
    routers = {}
    for mark, partitions in ((1, 1), (1, 3), (2, 1)):
        url = str(tmp_path / f"{mark}-{partitions}")
        ingest(marked_graph(mark), url, IngestOptions(num_partitions=partitions))
        routers[mark, partitions] = local_router(open_graph(url))
    whole = {key: Roots(router, 0, None).content_hash for key, router in routers.items()}
    assert whole[1, 1] == whole[1, 3] != whole[2, 1]
    given = {ids: Roots(routers[1, 1], 0, None, np.array(ids)).content_hash for ids in ((5, 7), (7, 5), (7,))}
    assert given[5, 7] == given[7, 5]  # the order of given ids does not matter
    assert len({whole[1, 1], given[5, 7], given[7,]}) == 3


def test_content_hash_of_graphs_without_splits(tmp_path):
    """Without a split set, the hash still depends on ids, labels and the number of nodes."""
    graph = ListedGraph(4, [(0, 1)], label=[0, 1, 0, 1])
    others = [
        graph,
        replace(graph, label=[0, 1, 1, 1]),
        replace(graph, original_id=[1, 2, 3, 4]),
        replace(graph, num_nodes=5, label=[0, 1, 0, 1, 1]),
    ]
    found = set()
    for index, other in enumerate(others):
        ingest(other, str(tmp_path / str(index)))
        found.add(Roots(local_router(open_graph(str(tmp_path / str(index)))), 0, None).content_hash)
    assert len(found) == len(others)


def test_roots_that_cannot_be(router):
    for given, message in (([5, 99, 5], "node 5 twice"), ([4], "got 4, which"), ([], "at least one")):
        with pytest.raises(ConfigError, match=f"^roots: expected .*{message}"):
            Roots(router, 0, None, np.array(given, np.int64))
