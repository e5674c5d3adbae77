"""Tests that graph-parallel training on pretended GPUs equals training by one worker on a CPU. The GPUs are two processes whose process group claims to use
nccl."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.data.training_data import StoredNodes
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.process.outcome import Finished
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.tasks import Classification
from graphmill.cluster.training.checkpoint_writer import CheckpointRequest, CheckpointWriter
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.jobs.subjects.graph_parallel import WholeGraphData, shard_memory
from graphmill.models.parallel.collectives import Peers, sum_gradients
from graphmill.samplers.vocabulary.options import LoaderOptions
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.pretend_cuda import pretend_cuda
from tests.recording_reporter import MemoryRecorder, write_at_once
from tests.runs import node_run

PRECISIONS = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("parallel")
    source = SyntheticGraph(SyntheticOptions(num_nodes=151, num_classes=4))
    ingest(source, str(path / "graph"), IngestOptions(num_partitions=3))
    return path


def spec(folder: Path, precision: str) -> TrainSpec:
    graph = open_graph(str(folder / "graph"))
    model = "--model.width 8 --model.num_layers 1 --model.permutation dynamic --model.hops 2 --model.recompute yes --model.propagation gcn"
    resolved = node_run(graph, "--run.parallel", "graph", *model.split(), "--model.skip", "yes")
    memory = shard_memory(graph.manifest, resolved)
    return TrainSpec(
        data=WholeGraphData(StoredNodes.of(graph, verify=False), resolved.training, memory),
        build_model=resolved.build_model,
        task=Classification(graph.manifest.num_classes or 0),
        model_config={},
        identity={},
        sampler=resolved.training,
        evaluation=resolved.evaluation,
        options=TrainOptions(epochs=2, learning_rate=1e-2, checkpoint_every=1, precision=precision),
        loader=LoaderOptions(),
    )


def outcome(a_spec: TrainSpec, rank: int, size: int, device: str, reports: Path, epochs: int) -> dict[str, Any]:
    """Trains from the newest checkpoint until `epochs` epochs are done."""
    reporter = MemoryRecorder()
    worker = Worker(
        a_spec,
        reporter,
        rank,
        size,
        torch.device(device),
        CheckpointWriter(Checkpoints(RunStore.of(reports)), rank, None, write_at_once),
    )
    requests = iter([CheckpointRequest.NONE] * (epochs - 1) + [CheckpointRequest.SAVE_AND_STOP] * 9)
    if rank == 0 and epochs < a_spec.options.epochs:
        worker._request = lambda: next(requests)  # type: ignore[method-assign]
    worker.restore(Checkpoints(RunStore.of(reports)))
    result = worker.run()
    return {
        "losses": [record["train_loss"] for record in reporter.records if record["kind"] == "epoch"],
        "scores": result.summary["scores"] if isinstance(result, Finished) else None,
        "model": {name: tensor.detach().cpu() for name, tensor in worker.model.state_dict().items()},
    }


def one_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    with pretend_cuda():
        dist.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
        peers = Peers.of_group()
        assert peers.device.type == "cuda"
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            peers.max(torch.zeros(1))
        weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
        weight.grad = torch.full((2,), rank + 1.0, device="cuda")
        sum_gradients([weight], peers)
        assert weight.grad.tolist() == [3.0, 3.0]
        half = torch.full((1,), 1.0 + rank / 128, dtype=torch.bfloat16, device="cuda")
        assert peers.sum(half).dtype == torch.bfloat16
        found = {}
        for precision in PRECISIONS:
            whole, parts = folder / f"{precision}-whole", folder / f"{precision}-parts"
            found[precision] = outcome(spec(folder, precision), rank, 2, "cuda", whole, 2)
            outcome(spec(folder, precision), rank, 2, "cuda", parts, 1)
            found[f"{precision} resumed"] = outcome(spec(folder, precision), rank, 2, "cuda", parts, 2)
        torch.save(found, folder / f"{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.long
def test_two_gpus_train_as_one_cpu_does_and_resume_exactly(folder, tmp_path):
    for precision in PRECISIONS:
        for part in ("whole", "parts"):
            (folder / f"{precision}-{part}").mkdir()
    multiprocessing.start_processes(one_rank, args=(folder,), nprocs=2, join=True, start_method="spawn")
    found = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]
    # The two devices use different kernels, and an Adam step enlarges the difference.
    for precision, tolerance in zip(PRECISIONS, (1e-3, 5e-2), strict=True):
        (tmp_path / precision).mkdir()
        alone = outcome(replace(spec(folder, "float32")), 0, 1, "cpu", tmp_path / precision, 2)
        ours, other, resumed = found[0][precision], found[1][precision], found[0][f"{precision} resumed"]
        assert ours["losses"] == pytest.approx(alone["losses"], rel=tolerance)
        assert ours["scores"]["test"]["loss"] == pytest.approx(alone["scores"]["test"]["loss"], rel=tolerance)
        assert resumed["losses"] == ours["losses"][1:]
        for name, tensor in ours["model"].items():
            assert torch.equal(tensor, other["model"][name]), name
            assert torch.equal(tensor, resumed["model"][name]), name
