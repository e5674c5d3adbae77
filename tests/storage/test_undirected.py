"""With `undirected=True`, the stored edges, weights and features equal the result of PyG's `ToUndirected` on the same Data."""

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.storage.graph import open_graph
from graphmill.storage.importers.memory.from_pyg import pyg_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import stored_graph

torch = pytest.importorskip("torch")
data_of_pyg = pytest.importorskip("torch_geometric.data")
transforms = pytest.importorskip("torch_geometric.transforms")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-9, 9)), max_size=20), st.integers(1, 3))
def test_undirected_is_pygs_to_undirected(edges, num_partitions) -> None:
    """The graph has duplicates, edges in both directions, and self-loops. Sums of small integers are exact in any order."""
    table = torch.tensor(edges, dtype=torch.int64).reshape(-1, 3)
    weight = table[:, 2].float()
    data = data_of_pyg.Data(
        num_nodes=6,
        edge_index=table[:, :2].T.contiguous(),
        edge_weight=weight,
        edge_attr=torch.stack([weight * weight, 3 - weight], dim=1),
    )
    with tempfile.TemporaryDirectory() as folder:
        ingest(pyg_graph(data), f"{folder}/graph", IngestOptions(num_partitions=num_partitions, undirected=True))
        rows = stored_graph(open_graph(f"{folder}/graph"))
    ours = {(edge.other_end, node): (edge.weight, edge.feature) for node, row in rows.items() for edge in row.in_edges}
    theirs = transforms.ToUndirected()(data)
    columns = zip(theirs.edge_index.T.tolist(), theirs.edge_weight.tolist(), theirs.edge_attr.tolist(), strict=True)
    assert ours == {(src, dst): (weighs, tuple(attr)) for (src, dst), weighs, attr in columns}
    assert sum(len(row.in_edges) for row in rows.values()) == theirs.num_edges
