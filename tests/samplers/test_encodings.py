"""With all samplers and partitionings, a batch has the stored encodings of its nodes, by name."""

import numpy as np
import pytest
import torch

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import local_router
from graphmill.samplers.batches.minibatch import to_torch
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.methods.ppr import PprSampler
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.methods.saint import SaintSampler
from graphmill.samplers.vocabulary.messages import FetchRows
from graphmill.samplers.vocabulary.options import (
    NeighborOptions,
    Node2SubgraphOptions,
    PprOptions,
    RandomPartitionOptions,
    SaintOptions,
)
from graphmill.storage.encoding.encode import store_encoding
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph

NODES = 80
NAMES = ("rwse-3", "laplacian-4-smallest")  # width 3: rows are not aligned to 8 bytes
SAMPLERS = {
    "neighbor": lambda r, names: NeighborSampler(r, NeighborOptions((3, 2), 8, encodings=names)),
    "no-features": lambda r, names: NeighborSampler(r, NeighborOptions((3,), 8, features=False, encodings=names)),
    "node2subgraph": lambda r, names: Node2SubgraphSampler(r, Node2SubgraphOptions(2, 9, encodings=names)),
    "ppr": lambda r, names: PprSampler(r, PprOptions(top_k=5, encodings=names)),
    "random-partition": lambda r, names: RandomPartitionSampler(r, RandomPartitionOptions(3, encodings=names)),
    "saint": lambda r, names: SaintSampler(r, SaintOptions(10, num_presamples=5, encodings=names)),
}


def rows_of(original_id: np.ndarray, name: str) -> np.ndarray:
    """Encodings whose values show to which node a row belongs."""
    dim, base = (3, 1000) if name == "rwse-3" else (4, 0)
    return (original_id[:, None] * 10 + np.arange(dim) + base).astype(np.float32)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """The same graph with encodings, in 1 and in 4 partitions."""
    stored = []
    for partitions in (1, 4):
        url = str(tmp_path_factory.mktemp("encoded") / "graph")
        ingest(random_listed_graph(NODES, 500), url, IngestOptions(num_partitions=partitions, out_edges=True))
        graph = open_graph(url)
        original_id = np.concatenate([partition.original_id for partition in graph.partitions()])
        for name in NAMES:
            graph = store_encoding(graph, name, rows_of(original_id, name))
        stored.append(graph)
    return stored


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1], NAMES[:1]], ids=["two", "reversed", "one"])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_batch_has_the_rows_of_its_nodes(graphs, kind, names):
    for graph in graphs:
        batch = SAMPLERS[kind](local_router(graph), names).sample(0, 0)
        assert tuple(batch.encodings) == names
        assert batch.num_nodes > 1
        for name, rows in batch.encodings.items():
            np.testing.assert_array_equal(rows, rows_of(batch.node_id, name))
        tensors = to_torch(batch)
        for name, rows in tensors.encodings.items():
            assert torch.equal(rows, torch.from_numpy(rows_of(batch.node_id, name)))
        moved = tensors.to("meta")
        assert all(rows.device.type == "meta" for rows in moved.encodings.values())


def test_none_asked_for_none_delivered(graphs):
    batch = SAMPLERS["neighbor"](local_router(graphs[1]), ()).sample(0, 0)
    assert batch.encodings == {}
    assert batch.encoding is None
    assert to_torch(batch).encodings == {}


def test_one_that_is_not_stored(graphs):
    for graph in graphs:
        for name, command in (
            ("rwse-7", "rwse --dim 7"),
            ("laplacian-8-both_ends", "laplacian --dim 8 --which both_ends"),
        ):
            sampler = SAMPLERS["neighbor"](local_router(graph), (name,))
            with pytest.raises(ConfigError, match=f"encoding '{name}'.*graphmill encode <url> {command}"):
                sampler.sample(0, 0)


def test_names_are_checked_with_the_options():
    for options in (NeighborOptions, Node2SubgraphOptions, PprOptions, RandomPartitionOptions, SaintOptions):
        with pytest.raises(ConfigError, match="expected names such as"):
            options(encodings=("laplacian",))


def test_no_nodes(graphs):
    none = np.empty(0, np.int64)
    rows = local_router(graphs[1]).fetch(none, encodings=NAMES)
    assert rows.encoding.shape == (0, 7)
    owner = PartitionOwner(graphs[1].partition(0), NODES)
    assert owner.answer(FetchRows(none, encodings=NAMES)).encoding.shape == (0, 7)
