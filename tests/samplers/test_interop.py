"""Tests batches as PyG and DGL objects, PyG's stores over our partitions, and the loop that the guide prints."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from graphmill.core.errors import ConfigError, MissingDependencyError
from graphmill.samplers.access.router import local_router
from graphmill.samplers.batches.minibatch import TorchBatch, to_torch
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.methods.ppr import PprSampler
from graphmill.samplers.methods.random_partition import RandomPartitionSampler
from graphmill.samplers.methods.saint import SaintSampler
from graphmill.samplers.vocabulary.options import (
    NeighborOptions,
    Node2SubgraphOptions,
    PprOptions,
    RandomPartitionOptions,
    SaintOptions,
)
from graphmill.storage.encoding.encode import encode
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from tests.listed_graph import random_listed_graph

REPOSITORY = Path(__file__).resolve().parents[2]
NODES = 150


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    rng = np.random.default_rng(2)
    listed = random_listed_graph(NODES, 1200, seed=2)
    feature = rng.standard_normal((1200, 3)).astype(np.float32).tolist()
    listed = replace(listed, weight=rng.random(1200).tolist(), edge_feature=feature, edge_feature_dim=3)
    folder, stored = tmp_path_factory.mktemp("interop"), {}
    for partitions in (1, 3):
        url = str(folder / str(partitions))
        ingest(listed, url, IngestOptions(num_partitions=partitions, edge_ids=True, out_edges=True))
        stored[partitions], _ = encode(open_graph(url), EncodingOptions("rwse", 3))
    return stored


@pytest.fixture(scope="module")
def batch(graphs):
    options = NeighborOptions(fanouts=(4, 3), batch_size=20, edge_columns=("id", "weight", "feature"))
    return to_torch(NeighborSampler(local_router(graphs[3]), options).sample(0, 0))


@pytest.fixture(scope="module")
def saint(graphs):
    options = SaintOptions(num_walks=10, num_presamples=20, encodings=("rwse-3",))
    return to_torch(SaintSampler(local_router(graphs[3]), options).sample(0, 0))


def by_name(batch: TorchBatch) -> dict[str, torch.Tensor]:
    """The columns that have the same name in a batch and in the objects of PyG and DGL."""
    names = ("split", "hop", "score", "loss_weight", "edge_coefficient")
    found = {name: getattr(batch, name) for name in names} | batch.encodings
    return {name: column for name, column in found.items() if column is not None}


class TestPygData:
    pyg = pytest.importorskip("graphmill.samplers.batches.to_pyg", reason="needs torch-geometric")

    def test_columns_without_copies(self, batch):
        data = self.pyg.to_pyg(batch)
        data.validate()
        for name, tensor in (
            ("x", batch.x),
            ("y", batch.y),
            ("n_id", batch.node_id),
            ("e_id", batch.edge_id),
            ("edge_weight", batch.edge_weight),
            ("edge_attr", batch.edge_feature),
        ):
            assert data[name].data_ptr() == tensor.data_ptr(), name
        assert data.batch_size == len(batch.root_index)
        assert data.num_nodes == len(batch.node_id)
        assert data.num_edges == len(batch.indices)
        for edge in range(data.num_edges):
            source, destination = data.edge_index[:, edge].tolist()
            assert source == batch.indices[edge]
            assert batch.indptr[destination] <= edge < batch.indptr[destination + 1]

    def test_a_convolution_takes_it(self, batch):
        from torch_geometric.nn import SAGEConv

        data = self.pyg.to_pyg(batch)
        found = SAGEConv(data.x.shape[1], 5)(data.x, data.edge_index)
        assert found[: data.batch_size].shape == (len(batch.root_index), 5)

    def test_roots_that_do_not_come_first(self, graphs):
        sampler = RandomPartitionSampler(local_router(graphs[1]), RandomPartitionOptions(num_chunks=2))
        data = self.pyg.to_pyg(to_torch(sampler.sample(0, 0)))
        assert "batch_size" not in data
        assert len(data.root_index) > 0

    def test_packed_subgraphs(self, graphs):
        options = Node2SubgraphOptions(max_nodes=8, max_hops=2, batch_size=5)
        data = self.pyg.to_pyg(to_torch(Node2SubgraphSampler(local_router(graphs[1]), options).sample(0, 0)))
        assert data.ptr.tolist() == np.concatenate([[0], np.bincount(data.batch).cumsum()]).tolist()
        assert torch.equal(data.batch[data.edge_index[0]], data.batch[data.edge_index[1]])

    def test_what_saint_normalises_by(self, saint):
        data = self.pyg.to_pyg(saint)
        data.validate()
        expected = by_name(saint)
        assert set(expected) == {"split", "loss_weight", "edge_coefficient", "rwse-3"}
        for name, column in expected.items():
            assert data[name].data_ptr() == column.data_ptr(), name
            assert torch.equal(data[name], column), name
        assert data.is_edge_attr("edge_coefficient")
        assert data.is_node_attr("loss_weight")

    def test_scores_of_pagerank(self, graphs):
        batch = to_torch(PprSampler(local_router(graphs[1]), PprOptions(batch_size=5, top_k=4)).sample(0, 0))
        assert torch.equal(self.pyg.to_pyg(batch).score, batch.score)


class TestPygStores:
    pyg = TestPygData.pyg

    @pytest.fixture(params=[1, 3])
    def stores(self, request, graphs):
        graph = graphs[request.param]
        return self.pyg.pyg_stores(graph, local_router(graph)), graph

    def test_features(self, stores):
        (features, _), graph = stores
        rows = local_router(graph).fetch(np.arange(NODES), split_set=0)
        assert features.get_tensor_size(group_name="node", attr_name="x") == (NODES, 4)
        names = {attr.attr_name for attr in features.get_all_tensor_attrs()}
        assert names == {"x", "y", "original_id", "train_mask", "val_mask", "test_mask"}
        some = torch.tensor([5, 0, 149, 5])
        for index in (some, None, slice(10, 50, 3)):
            x = features.get_tensor(group_name="node", attr_name="x", index=index)
            assert torch.equal(x, torch.from_numpy(rows.feature[index if index is not None else slice(None)]))
        assert torch.equal(features["node", "y", None], torch.from_numpy(rows.label))
        assert torch.equal(features["node", "train_mask", None], torch.from_numpy(rows.split == 1))
        assert not features.put_tensor(torch.zeros(2), group_name="node", attr_name="x", index=None)
        assert features.get_tensor_size(group_name="node", attr_name="z") is None

    def test_topology(self, stores):
        (_, topology), graph = stores
        (attr,) = topology.get_all_edge_attrs()
        row, colptr = topology.get_edge_index(attr)
        assert row.dtype == torch.int64
        everything = local_router(graph).sample_neighbors(np.arange(NODES), -1, 0)
        assert torch.equal(row, torch.from_numpy(everything.neighbor).long())
        assert torch.equal(colptr.diff(), torch.from_numpy(everything.count))
        # PyG's samplers ask for the CSC of every edge type.
        rows, colptrs, _ = topology.csc()
        assert torch.equal(rows[self.pyg.EDGE_TYPE], row)
        assert torch.equal(colptrs[self.pyg.EDGE_TYPE], colptr)

    def test_topology_without_a_copy(self, graphs):
        topology = self.pyg.StoredGraphStore(graphs[1], index_dtype=torch.int32)
        (attr,) = topology.get_all_edge_attrs()
        row, colptr = topology.get_edge_index(attr)
        again, _ = topology.get_edge_index(attr)
        assert row.dtype == torch.int32
        assert torch.equal(row, again)
        assert len(colptr) == NODES + 1

    def test_neighbor_loader(self, stores):
        (data, graph), typing = stores, pytest.importorskip("torch_geometric.typing")
        if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
            pytest.skip("PyG's NeighborLoader needs pyg-lib or torch-sparse, which are compiled and not installed here")
        from torch_geometric.loader import NeighborLoader

        roots = torch.arange(0, NODES, 7)
        loader = NeighborLoader(data, [3, 2], input_nodes=("node", roots), batch_size=4)
        x = local_router(graph).fetch(np.arange(NODES)).feature
        for part in loader:
            assert np.array_equal(part["node"].x.numpy(), x[part["node"].n_id])

    def test_two_graphs(self, graphs):
        with pytest.raises(ConfigError, match="got two graphs"):
            self.pyg.pyg_stores(graphs[1], local_router(graphs[3]))


class TestDgl:
    def test_missing_dgl_is_said(self, batch, monkeypatch):
        from graphmill.samplers.batches.to_dgl import to_dgl

        monkeypatch.setitem(sys.modules, "dgl", None)
        with pytest.raises(MissingDependencyError, match=r"pip install -e '.\[dgl\]'"):
            to_dgl(batch)

    def test_every_column_is_put(self, saint, graphs, monkeypatch):
        """Every column of a batch is set in DGL's graphs and blocks. If DGL is not installed, stand-ins replace them."""
        from graphmill.samplers.batches.to_dgl import to_dgl, to_dgl_blocks

        def empty(*_args, **_sizes):
            return SimpleNamespace(ndata={}, edata={}, srcdata={}, dstdata={})

        fake = SimpleNamespace(graph=empty, create_block=empty, NID="_ID", EID="_ID")
        monkeypatch.setitem(sys.modules, "dgl", fake)
        graph = to_dgl(saint)
        for name, column in by_name(saint).items():
            assert torch.equal((graph.edata if name == "edge_coefficient" else graph.ndata)[name], column), name
        options = NeighborOptions(fanouts=(4, 3), batch_size=20, encodings=("rwse-3",))
        sampled = to_torch(NeighborSampler(local_router(graphs[3]), options).sample(0, 0))
        for block in to_dgl_blocks(sampled, 2):
            rows = block.srcdata["rwse-3"]
            assert torch.equal(rows, sampled.encodings["rwse-3"][: len(rows)])
            assert len(rows) == len(block.srcdata["_ID"])

    @pytest.fixture
    def dgl(self, monkeypatch):
        monkeypatch.setenv("DGL_BACKEND", "pytorch")  # without it, DGL writes to the home folder
        return pytest.importorskip("dgl")

    def test_graph(self, dgl, batch):
        from graphmill.samplers.batches.to_dgl import to_dgl

        graph = to_dgl(batch)
        assert (graph.num_nodes(), graph.num_edges()) == (len(batch.node_id), len(batch.indices))
        source, destination, edge = graph.edges("all")
        order = torch.argsort(edge)
        assert torch.equal(source[order], batch.indices.long())
        assert torch.equal(destination[order], torch.repeat_interleave(batch.indptr.diff()))
        assert torch.equal(graph.edata["weight"], batch.edge_weight)
        assert torch.equal(graph.ndata[dgl.NID], batch.node_id)
        assert graph.ndata["is_root"].sum() == len(batch.root_index)

    def test_blocks_compute_what_the_graph_computes(self, dgl, batch):
        import dgl.function as fn

        from graphmill.samplers.batches.to_dgl import to_dgl, to_dgl_blocks

        value = whole = batch.x
        for block in to_dgl_blocks(batch, 2):
            with block.local_scope():
                block.srcdata["h"] = value[: block.num_src_nodes()]
                block.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
                value = block.dstdata["h"]
        graph = to_dgl(batch)
        for _ in range(2):
            graph.ndata["h"] = whole
            graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
            whole = graph.ndata["h"]
        assert torch.allclose(value, whole[batch.root_index], atol=1e-5)


def test_the_guide_runs_as_printed(tmp_path):
    text = (REPOSITORY / "docs/guides/plain_pytorch.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    check = "\nassert sum(losses[-3:]) < sum(losses[:3]), losses\nimport sys; assert 'ray' not in sys.modules\n"
    done = subprocess.run(
        [sys.executable, "-c", code + check],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
