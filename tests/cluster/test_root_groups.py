"""Training with roots by locality groups. Each rank has the positions whose nodes it reads itself. All numbers of ranks give the same weights, bit for bit."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from graphmill.cluster.data.training_data import OpenNodes
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.tasks import Classification
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.samplers.batches.minibatch import TorchBatch
from graphmill.samplers.vocabulary.options import LoaderOptions, NeighborOptions
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.cluster.test_any_number_of_workers import found, run_rank, train_part
from tests.far_owner import FarOwner, far_router
from tests.forked_ranks import run_ranks

PARTITIONS, CLASSES = 4, 5
# (workers, steps before a stop is requested, cached rows). The second part ends within an epoch.
RUNS = {
    "alone": ((1, None, 0),),
    "two": ((2, None, 0),),
    "three": ((3, None, 60_000),),
    "four": ((4, None, 0),),
    "moved": ((4, 5, 60_000), (2, 3, 0), (4, None, 60_000)),
}


class Mean(nn.Module):
    """A linear model of a root's features and the mean of its neighbors' features."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, batch: TorchBatch) -> Tensor:
        assert batch.x is not None
        count = batch.indptr.diff()
        mean = torch.segment_reduce(batch.x[batch.indices], "mean", lengths=count, axis=0, initial=0)
        return (self.own(batch.x) + self.other(mean))[batch.root_index]


class OfOneHost(OpenNodes):
    """Opens a graph as on one host. `far` collects the owners on other hosts; they count their requests."""

    far: list[FarOwner]

    @classmethod
    def of(cls, url: str, near: Iterable[int]) -> "OfOneHost":
        """`near`: the partitions of this host."""
        router, far = far_router(open_graph(url), tuple(near))
        data = cls(router)
        data.far = far
        return data


@dataclass(frozen=True)
class OnHosts:
    """Gives each rank's host a share of the partitions, in reverse order: the last rank's host has the first partitions."""

    url: str

    def open(self) -> OfOneHost:
        ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        near = np.array_split(np.arange(PARTITIONS), ranks)[ranks - 1 - rank]
        return OfOneHost.of(self.url, near)


def a_spec(url: str, cache_bytes: int) -> TrainSpec:
    options = NeighborOptions(fanouts=(4, 3), batch_size=32, root_order="groups")
    fixed = NeighborOptions(fanouts=(4,), batch_size=32, root_order="groups", shuffle=False, root_split=2)
    return TrainSpec(
        data=OnHosts(url),
        build_model=Mean,
        task=Classification(CLASSES),
        model_config={},
        identity={},
        sampler=options,
        evaluation={"valid": fixed, "test": fixed},
        options=TrainOptions(epochs=3, learning_rate=1e-2, micro_batches=4, checkpoint_every=1000),
        loader=LoaderOptions(cache_bytes=cache_bytes),
    )


def train(rank: int, num_workers: int, folder: Path, stop_after: int | None, cache_bytes: int) -> dict[str, Any]:
    spec = a_spec(str(folder.parent / "graph"), cache_bytes)
    worker, reporter, _ = train_part(spec, rank, num_workers, folder, stop_after)
    return {
        "records": reporter.epochs,
        "weights": {name: tensor.clone() for name, tensor in worker.model.state_dict().items()},
        "positions": list(worker.seat.positions),
        "asked": sum(owner.rows_asked for owner in worker.data.far),
    }


def write_graph(folder: Path) -> None:
    source = SyntheticGraph(
        SyntheticOptions(num_nodes=2000, mean_degree=12, num_classes=CLASSES, feature_dim=8, train_share=0.3)
    )
    ingest(source, str(folder / "graph"), IngestOptions(num_partitions=PARTITIONS, partitioner="ldg"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("groups")
    write_graph(folder)
    run_ranks(run_rank, (str(folder), RUNS, train), 4)
    return folder


@pytest.mark.slow
@pytest.mark.long
def test_ranks_take_the_positions_of_what_they_read_themselves(folder):
    for name, num_workers in (("two", 2), ("four", 4)):
        positions = [found(folder, name, 0, rank)["positions"] for rank in range(num_workers)]
        assert positions == [own.tolist() for own in np.array_split(np.arange(4), num_workers)[::-1]]
    assert [len(found(folder, "three", 0, rank)["positions"]) for rank in range(3)] == [2, 1, 1]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_hosts_stops_and_kept_rows_change_no_bit(folder, name):
    alone, parts = found(folder, "alone", 0, 0), RUNS[name]
    records = [record for number in range(len(parts)) for record in found(folder, name, number, 0)["records"]]
    assert len(records) == 3
    assert records == alone["records"]
    for rank in range(parts[-1][0]):
        weights = found(folder, name, len(parts) - 1, rank)["weights"]
        assert all(torch.equal(weights[key], tensor) for key, tensor in alone["weights"].items())
