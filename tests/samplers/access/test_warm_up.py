"""The warm-up compiles all loops that replies need. It does not request columns that the graph does not store."""

import numpy as np
import pytest

from graphmill.samplers.access.partition_owner import open_parts
from graphmill.samplers.access.warm_up import warm_up
from graphmill.samplers.kernels import draws as draw_kernels
from graphmill.samplers.kernels import subgraphs as subgraph_kernels
from graphmill.samplers.vocabulary.messages import FetchRows, ForParts, SampleNeighbors
from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.array_graph import ArrayGraph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest


@pytest.mark.parametrize("out_edges", [False, True])
def test_nothing_is_left_to_compile(tmp_path, out_edges):
    ring = ArrayGraph("ring", 4, np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0]))
    ingest(ring, str(tmp_path / "graph"), IngestOptions(num_partitions=2, out_edges=out_edges))
    graph = open_graph(str(tmp_path / "graph"))
    owner = open_parts(graph, [0])
    warm_up(owner, graph, 0)
    compiled = [len(draw_kernels.draw_uniform.signatures), len(subgraph_kernels.list_neighbors.signatures)]
    assert min(compiled) > 0
    node = np.arange(graph.partition(0).start, graph.partition(0).stop)
    asked = ForParts(("0", "0"), (SampleNeighbors(node, 2, key=1), FetchRows(node)))
    lists, rows = owner.answer(asked).replies
    assert lists.count.sum() == len(node)
    assert len(rows.original_id) == len(node)
    assert compiled[0] == len(draw_kernels.draw_uniform.signatures)
