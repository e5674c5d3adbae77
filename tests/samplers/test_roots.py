"""Which nodes are roots, whatever says so."""

import numpy as np
import pytest

from samplers.random_partition import RandomPartitionOptions, RandomPartitionSampler
from samplers.roots import Roots
from samplers.router import Router
from storage.errors import ConfigError
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
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


def test_content_hash_tells_roots_apart(router):
    whole, given = Roots(router, 0, (SPLIT_TRAIN,)).content_hash, Roots(router, 0, None, np.array([5, 99])).content_hash
    assert whole == router.manifest.content_hash != given
    assert Roots(router, 0, None, np.array([99, 5])).content_hash == given  # a set: its order changes no batch
    assert Roots(router, 0, None, np.array([99])).content_hash != given


def test_roots_that_cannot_be(router):
    for given, message in (([5, 99, 5], "node 5 twice"), ([4], "got 4, which"), ([], "at least one")):
        with pytest.raises(ConfigError, match=f"^roots: expected .*{message}"):
            Roots(router, 0, None, np.array(given, np.int64))
