"""Uses our loader in training loops of PyTorch, PyG and Lightning, written as their users would write them."""

import lightning
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.router import local_router
from graphmill.samplers.loading.loader import Loader, LoaderOptions
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.peers.loaders import BatchDataset, NeighborLoader, lightning_data
from graphmill.samplers.vocabulary.options import NeighborOptions
from graphmill.storage.format.source import SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph import StoredGraph, open_graph
from graphmill.storage.importers.memory.from_pyg import pyg_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest

NODES, CLASSES = 120, 3


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(5)
    label = rng.integers(0, CLASSES, NODES)
    source, target = rng.integers(0, NODES, (2, 600))
    like = label[source] == label[target]
    keep = like | (rng.random(600) < 0.2)
    x = np.eye(CLASSES, dtype=np.float32)[label] + rng.normal(0, 1, (NODES, CLASSES)).astype(np.float32)
    made = Data(torch.from_numpy(x), torch.from_numpy(np.stack([source, target])[:, keep]), y=torch.from_numpy(label))
    made.train_mask, made.val_mask, made.test_mask = (torch.arange(NODES) % 3 == part for part in range(3))
    return made


@pytest.fixture(scope="module")
def graph(data, tmp_path_factory) -> StoredGraph:
    url = str(tmp_path_factory.mktemp("peers") / "graph")
    ingest(pyg_graph(data), url, IngestOptions(num_partitions=2))
    return open_graph(url, kind=StoredGraph)


class Sage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(CLASSES, 16), SAGEConv(16, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("of", ["data", "graph", "url"])
def test_all_neighbors_give_the_whole_graphs_outputs_at_the_roots(of, data, graph) -> None:
    torch.manual_seed(0)
    model = Sage().eval()
    given = {"data": data, "graph": graph, "url": graph.url}[of]
    roots = torch.randperm(NODES)[:50]
    loader = NeighborLoader(given, [-1, -1], roots, batch_size=16)
    whole, seen = model(data.x, data.edge_index), []
    for batch in loader:
        assert torch.equal(batch.n_id[: batch.batch_size], roots[batch.input_id])
        assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(out, whole[batch.n_id[: batch.batch_size]])
        seen.append(batch.input_id)
    assert [len(each) for each in seen] == [16, 16, 16, 2]  # same batches as PyG, in the given order
    assert torch.equal(torch.cat(seen), torch.arange(50))


def test_pygs_training_loop(data) -> None:
    torch.manual_seed(0)
    loader = NeighborLoader(data, num_neighbors=[5, 5], input_nodes=data.train_mask, batch_size=8, shuffle=True)
    model = Sage()
    optimizer, losses, orders = torch.optim.Adam(model.parameters(), lr=0.02), [], set()
    for _ in range(8):
        total, order = 0.0, []
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.batch_size
            order += batch.input_id.tolist()
        assert sorted(order) == list(range(int(data.train_mask.sum())))
        orders.add(tuple(order))
        losses.append(total / len(order))
    assert len(orders) == 8
    assert losses[-1] < 0.5 * losses[0]


def test_a_typed_graphs_batches_are_hetero_data() -> None:
    rng = np.random.default_rng(1)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(40, 3), torch.randn(20, 2)
    data["paper"].y = torch.arange(40) % CLASSES
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    data[writes].edge_index = torch.from_numpy(np.stack([rng.integers(0, 20, 90), rng.integers(0, 40, 90)]))
    data[cites].edge_index = torch.from_numpy(rng.integers(0, 40, (2, 90)))
    conv = HeteroConv({writes: SAGEConv((2, 3), 4), cites: SAGEConv(3, 4)})
    whole = conv(data.x_dict, data.edge_index_dict)["paper"]
    loader = NeighborLoader(data, {writes: [-1], cites: [-1]}, ("paper", torch.arange(40) % 2 == 0), batch_size=7)
    for batch in loader:
        out = conv(batch.x_dict, batch.edge_index_dict)["paper"]
        roots = batch["paper"].n_id[: batch["paper"].batch_size]
        torch.testing.assert_close(out[: len(roots)], whole[roots])
    assert len(loader) == 3
    with pytest.raises(ConfigError, match="none for paper--cites--paper"):
        NeighborLoader(data, {writes: [-1]}, "paper")
    assert len(NeighborLoader(data, [2], ("paper", None), batch_size=7, drop_last=True)) == 5


def test_each_loop_begins_an_epoch(data) -> None:
    loader = NeighborLoader(data, [2], torch.arange(40), batch_size=8)
    for _ in range(2):
        assert next(iter(loader)).input_id.tolist() == list(range(8))
    for batch in loader:
        if batch.input_id[0] == 8:
            break
    assert [len(batch.input_id) for batch in loader] == [8] * 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"weight_attr": "strength"}, "weight_attr: expected edge_weight or weight"),
        ({"time_attr": "year"}, "time_attr: expected time"),
        ({"input_nodes": torch.ones(10, dtype=torch.bool)}, "expected a mask of 120 nodes"),
        ({"input_nodes": torch.tensor([1.7])}, "whole numbers"),
    ],
)
def test_what_the_graph_cannot_give_is_refused(words, says, graph) -> None:
    with pytest.raises(ConfigError, match=says):
        NeighborLoader(graph, [2], **words)


def test_several_sets_of_masks_are_refused(data) -> None:
    several = data.clone()
    several.train_mask = torch.stack([data.train_mask, data.val_mask], dim=1)
    with pytest.raises(ConfigError, match="masks of one split"):
        NeighborLoader(several, [2])


def test_a_dataset_passes_the_loaders_epochs_on(graph) -> None:
    sampler = NeighborSampler(local_router(graph), NeighborOptions(fanouts=(3,), batch_size=16))
    with Loader(sampler, LoaderOptions(threads=1)) as one, Loader(sampler, LoaderOptions(threads=1)) as other:
        passed = DataLoader(BatchDataset(one, lambda batch: batch.node_id), batch_size=None)
        for _ in range(2):
            for nodes, batch in zip(passed, other, strict=True):
                assert torch.equal(nodes, batch.node_id)
        with pytest.raises(ConfigError, match="num_workers=0"):
            next(iter(DataLoader(BatchDataset(one), batch_size=None, num_workers=1)))


def test_lightnings_trainer_fits(graph, tmp_path) -> None:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.losses, self.roots, self.valid = Sage(), [], [], []

        def _loss(self, batch) -> torch.Tensor:
            target = torch.repeat_interleave(batch.indptr.diff())
            out = self.net(batch.x, torch.stack([batch.indices.long(), target]))[batch.root_index]
            return nn.functional.cross_entropy(out, batch.target)

        def training_step(self, batch, _) -> torch.Tensor:
            loss = self._loss(batch)
            self.losses.append(loss.item())
            self.roots += batch.predicted_id.tolist()
            return loss

        def validation_step(self, batch, _) -> None:
            self.valid.append(self._loss(batch).item())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    router, module = local_router(graph), Module()
    loaders = [
        Loader(NeighborSampler(router, NeighborOptions(fanouts=(5, 5), batch_size=40, root_split=part)))
        for part in (SPLIT_TRAIN, SPLIT_VALID)
    ]
    trainer = lightning.Trainer(
        max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, datamodule=lightning_data(*loaders))
    assert len(module.losses) == 6
    assert sorted(module.roots) == sorted(6 * list(range(0, NODES, 3)))
    assert module.losses[-1] < module.losses[0]
    assert len(module.valid) == 6
