"""Tests full evaluation that is sharded over real gloo processes. Predictions and scores equal those from one process that has the whole graph.

Some models read other nodes only through sums over in-edges. Their predictions are compared to the bit, because each
sum adds the same numbers in the same order. Models with a global term (GECO's transforms, Primphormer's and Performer's
sums over all nodes) are compared up to rounding. Primphormer's predictions of 2, 3 and 4 processes are compared with
each other to the bit, because its sums are over fixed blocks of rows.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from graphmill.cluster.data.training_data import OpenNodes
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.tasks import Classification
from graphmill.cluster.training.evaluation import predictions
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.jobs.config.registry import Component, Inputs
from graphmill.jobs.tasks.build_model import build_model
from graphmill.jobs.tasks.model_inputs import PlannedShard, plan_shard
from graphmill.models.geco.options import GECOConfig
from graphmill.models.gps.options import GPSOptions
from graphmill.models.message_passing.options import GATConfig, GCNConfig, SAGEConfig
from graphmill.models.options.features import Features
from graphmill.models.options.filters import FilterConfig
from graphmill.models.options.local import LocalOptions
from graphmill.models.parallel import sequences
from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel.shards import NUM_BLOCKS
from graphmill.models.primphormer.options import PrimalOptions, PrimphormerConfig
from graphmill.models.tokengt.options import TokenGTConfig
from graphmill.samplers.access.node_tables import NodeTables
from graphmill.samplers.access.owners import LocalOwner
from graphmill.samplers.access.partition_owner import PartitionOwner
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.access.traffic import Traffic
from graphmill.samplers.batches.minibatch import TorchBatch, to_torch
from graphmill.samplers.methods.full_graph import FullGraphSampler
from graphmill.samplers.vocabulary.options import (
    FullGraphOptions,
    LoaderOptions,
    RandomPartitionOptions,
    full_evaluation,
)
from graphmill.storage.format.source import SPLITS
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.forked_ranks import run_ranks
from tests.gloo_workers import on_workers
from tests.pretend_cuda import pretend_cuda
from tests.recording_reporter import MemoryRecorder

SIZES = (1, 2, 3, 4)
NODES = 1000
OPTIONS = FullGraphOptions(0, tuple(SPLITS.values()), (), NUM_BLOCKS)
INPUTS = Inputs(node=Features(dim=100), out_dim=47, task="node", seed=3)
SMALL = FilterConfig(bands=2, inner_width=8, num_inner_layers=1, scale="length")

LOCAL = {
    "sage": ("sage", SAGEConfig(width=16)),
    "gcn": ("gcn", GCNConfig(width=16)),
    "gat": ("gat", GATConfig(width=16)),
    "sage with edges": ("sage", SAGEConfig(width=16)),
    "gcn with edges": ("gcn", GCNConfig(width=16)),
    "gat with edges": ("gat", GATConfig(width=16)),
}
GLOBAL = {
    "geco": ("geco", GECOConfig(width=16, num_layers=2, filter=SMALL, skip=True)),
    "geco with edges": (
        "geco",
        GECOConfig(width=16, num_layers=2, filter=SMALL, local=LocalOptions(block="gated-gcn", join="gate")),
    ),
    "geco in parts": ("geco", GECOConfig(width=16, num_layers=2, filter=SMALL, skip=True)),
    "geco dynamic": (
        "geco",
        GECOConfig(width=6, permutation="dynamic", propagation="sym", hops=2, filter=SMALL, jump="sum", norm="pre"),
    ),
    "primphormer": ("primphormer", PrimphormerConfig(width=16, num_heads=2, primal=PrimalOptions(num_virtual=5))),
    "primphormer gcn": (
        "primphormer",
        PrimphormerConfig(
            width=16,
            num_heads=2,
            layer=GPSOptions(local="gcn", norm="layer"),
            primal=PrimalOptions(num_virtual=5, pool="sum", virtual_nodes="running"),
        ),
    ),
    "performer": (
        "tokengt",
        TokenGTConfig(
            width=16,
            num_layers=2,
            num_heads=2,
            attention="performer",
            identifier="near_orf",
            sparse_equivariant_basis=True,
            basis_reduction="mean",
            init_std=0.2,
        ),
    ),
    "performer as released": (
        "tokengt",
        TokenGTConfig(
            width=16,
            num_layers=2,
            num_heads=2,
            attention="performer",
            performer_as_released=True,
            identifier="random",
            type_by_index=True,
            sparse_equivariant_basis=True,
            init_std=0.2,
        ),
    ),
}
MODELS = LOCAL | GLOBAL


def prepare(folder: str) -> None:
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=NODES)), f"{folder}/graph", IngestOptions(num_partitions=3))


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    edge = Features(dim=2 if "with edges" in name else 0)
    model = build_model(Component(*MODELS[name]), "nodes", replace(INPUTS, edge=edge))
    generator = torch.Generator().manual_seed(1)
    # Changes the weights, because norms and running statistics have no effect at their initial values.
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and "projection" not in name:
                tensor.add_(0.1 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


@torch.no_grad()
def predict(name: str, batch: TorchBatch) -> torch.Tensor:
    few = {"PART_BYTES": 1, "PART_CHANNELS": 3} if "in parts" in name else {}
    with patch.multiple(sequences, **few) if few else nullcontext():
        found = build(name)(batch)
    return getattr(found, "prediction", found)


def with_edges(batch: TorchBatch, router: Router) -> TorchBatch:
    """Adds edge features that are a function of the edge's ends."""
    permanent = batch.node_id
    if batch.shard is not None:
        permanent = torch.from_numpy(router.fetch(np.arange(NODES), feature=False).original_id)
    ends = permanent[batch.indices.long()], batch.node_id.repeat_interleave(batch.indptr.diff())
    return replace(batch, edge_feature=torch.stack([ends[0].sin(), (3 * ends[1] + ends[0]).cos()], dim=1))


class Cases:
    """Computes on a worker, for every model, the ids that the worker predicts, and their predictions."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, peers: Peers) -> dict[str, Any]:
        router = local_router(open_graph(f"{self.folder}/graph"))
        options = replace(OPTIONS, alone="shard")
        shard = to_torch(FullGraphSampler(router, options, peers.size).sample(0, peers.rank))
        shard = with_edges(shard, router)
        planned = PlannedShard(**vars(shard), graph=plan_shard(shard, peers))
        found: dict[str, Any] = {"id": shard.node_id[shard.root_index], "bytes": {}}
        for name in MODELS:
            peers.sent_bytes.clear()
            found[name] = predict(name, planned)
            found["bytes"][name] = dict(peers.sent_bytes)
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("sharded"))
    prepare(path)
    return path


@pytest.fixture(scope="module")
def results(folder) -> tuple[dict[int, list[Any]], Callable[[str], torch.Tensor]]:
    router = local_router(open_graph(f"{folder}/graph"))
    batch = to_torch(FullGraphSampler(router, OPTIONS, 1).sample(0, 0))
    assert batch.shard is None
    assert batch.node_id.tolist() == sorted(batch.node_id.tolist())
    return on_workers(Cases(folder), SIZES), lambda name: predict(name, with_edges(batch, router))


def joined(by_rank: list[Any], name: str) -> torch.Tensor:
    """Predictions of all workers, in ascending order of permanent id."""
    ids = torch.cat([found["id"] for found in by_rank])
    assert ids.unique().numel() == NODES
    return torch.cat([found[name] for found in by_rank])[ids.argsort()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(MODELS))
def test_predictions_are_those_of_one_process(results, name, size):
    by_size, whole = results
    found, expected = joined(by_size[size], name), whole(name)
    assert expected.std() > 1e-2
    if name in LOCAL:
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("name", [*LOCAL, "primphormer", "primphormer gcn"])
def test_any_number_of_workers_has_the_same_bits(results, name):
    by_size, _ = results
    two, three, four = (joined(by_size[size], name) for size in (2, 3, 4))
    assert torch.equal(two, three)
    assert torch.equal(two, four)


class Watched:
    """Opens the graph in this process, and counts the requests to its partitions."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self) -> OpenNodes:
        graph = open_graph(f"{self.folder}/graph")
        traffic, tables = Traffic(graph.manifest.num_partitions), NodeTables(graph)
        parts = enumerate(graph.partitions())
        owners = [traffic.watch(LocalOwner(PartitionOwner(part, NODES, tables)), index) for index, part in parts]
        return OpenNodes(Router(graph.manifest, owners), traffic=traffic)


def trainer(
    folder: str, name: str, rank: int = 0, size: int = 1, evaluation: dict[str, Any] | None = None
) -> tuple[Worker, MemoryRecorder]:
    reporter = MemoryRecorder()
    spec = TrainSpec(
        data=Watched(folder),
        build_model=lambda: build(name),
        task=Classification(INPUTS.out_dim),
        model_config={},
        identity={},
        sampler=RandomPartitionOptions(num_chunks=4),
        evaluation=full_evaluation(0, num_blocks=NUM_BLOCKS) if evaluation is None else evaluation,
        options=TrainOptions(epochs=4, learning_rate=3e-3, checkpoint_every=9),
        loader=LoaderOptions(),
    )
    return Worker(spec, reporter, rank, size, torch.device("cpu")), reporter


def scores_of(worker: Worker) -> dict[str, dict[str, float]]:
    found = {}
    for split, options in worker.spec.evaluation.items():
        if split not in found:
            with worker.loader(options) as loader:
                found |= worker._evaluate(worker.model, loader, split)
    return {split: scores.compute() for split, scores in found.items()}


@pytest.mark.parametrize("name", ["sage", "geco", "primphormer"])
def test_one_pass_scores_all_splits_as_a_pass_for_each_does(folder, name):
    each = {
        split: RandomPartitionOptions(num_chunks=1, root_splits=(code,), shuffle=False)
        for split, code in SPLITS.items()
    }
    expected = scores_of(trainer(folder, name, evaluation=each)[0])
    assert expected["valid"]["count"] >= 10
    assert scores_of(trainer(folder, name)[0]) == expected
    assert scores_of(trainer(folder, name, evaluation=full_evaluation(0))[0]) == expected


def test_final_scores_are_what_the_best_validation_found(folder):
    worker, reporter = trainer(folder, "sage")
    passes: list[bool] = []
    worker.model.register_forward_pre_hook(lambda model, _: passes.append(model.training))
    summary = worker.run().summary  # type: ignore[union-attr]
    assert passes.count(False) == 4
    epochs = [record for record in reporter.records if record["kind"] == "epoch"]
    best = max(epochs, key=lambda record: record["valid_accuracy"])
    assert summary["best_epoch"] == best["epoch"]
    assert summary["scores"]["valid"]["loss"] == best["valid_loss"]
    assert scores_of(worker) == summary["scores"]


TRAINED = ("sage", "geco")


def one_of_three(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
    found: dict[str, Any] = {}
    for name in TRAINED:
        worker, _ = trainer(folder, name, rank, 3)
        found[name] = scores_of(worker)
        found["bytes"] = int(worker.data.traffic().sum())  # type: ignore[union-attr]
        # A forward pass also works after training has begun.
        with worker.loader(worker.spec.sampler) as loader:
            worker.train_epoch(loader, 0)
        assert scores_of(worker) != found[name]
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.long
def test_three_ranks_score_as_one_does_and_ask_for_a_third_each(folder):
    run_ranks(one_of_three, (folder,), 3)
    for name in TRAINED:
        worker, _ = trainer(folder, name)
        expected = scores_of(worker)
        whole = int(worker.data.traffic().sum())  # type: ignore[union-attr]
        for rank in range(3):
            found = torch.load(f"{folder}/{rank}.pt", weights_only=True)
            assert found["bytes"] < 0.4 * whole
            for split, scores in expected.items():
                assert found[name][split] == pytest.approx(scores, rel=1e-12 if name in LOCAL else 1e-5)


def one_gpu(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    with pretend_cuda():
        dist.init_process_group("nccl", init_method=f"file://{folder}/gpus", rank=rank, world_size=2)
        router = local_router(open_graph(f"{folder}/graph"))
        shard = to_torch(FullGraphSampler(router, OPTIONS, 2).sample(0, rank))
        ids = shard.node_id[shard.root_index]
        there = replace(shard, **{n: v.to("cuda") for n, v in vars(shard).items() if isinstance(v, torch.Tensor)})
        found: dict[str, Any] = {"id": ids}
        for name in ON_GPU:
            ((_, logits),) = predictions(build(name).to("cuda"), [there], torch.device("cuda"), "float32")
            found[name] = logits.cpu()
        torch.save(found, f"{folder}/gpu-{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()


ON_GPU = ("gat", "primphormer", "geco", "performer")


@pytest.mark.long
@pytest.mark.slow
def test_two_pretended_gpus_predict_as_one_cpu_does(folder):
    multiprocessing.start_processes(one_gpu, args=(folder,), nprocs=2, join=True, start_method="spawn")
    found = [torch.load(f"{folder}/gpu-{rank}.pt", weights_only=True) for rank in range(2)]
    batch = to_torch(FullGraphSampler(local_router(open_graph(f"{folder}/graph")), OPTIONS, 1).sample(0, 0))
    for name in ON_GPU:
        expected = predict(name, batch)
        scale = float(expected.abs().max())
        torch.testing.assert_close(joined(found, name), expected, rtol=1e-3, atol=1e-3 * scale)
