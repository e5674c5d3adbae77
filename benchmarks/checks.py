"""Measures the cost of the trainer's safety checks: `python -m benchmarks checks`.

    python -m benchmarks checks                               the embedded graph, two workers, a few minutes
    python -m benchmarks checks --data.nodes 5000 --epochs 3  a quick trial

Four loops train the same model on the same batches. Each loop has separate weights and sampling threads. In each epoch the four loops run one after
another, in random order:

    checked   the trainer's loop: checks every loss and gradient, lets the workers agree on each step's weight, seeds dropout by
              position, counts traffic by partition, sends progress and metrics to the driver
    saving    like checked, but each epoch also starts a checkpoint, which is written during the epoch
    bare      only forward, backward and optimizer under DDP; DDP's ring adds the gradients, and not Graphmill's fixed tree
    control   a second bare loop; its ratio to bare shows the noise of the machine

Prints the wall seconds of an epoch and the CPU seconds of the workers, as medians over the epochs, and as ratios to bare with quartiles. Then
prints how long a checkpoint stopped training. Run nothing else at the same time. Writes results.md and results.json to --out.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from graphmill.cluster.options import SessionOptions
from graphmill.core.option_checks import Count, check_fields
from graphmill.jobs.bench.results import check_results, keep, machine, table
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.config import NodeDataOptions, config_tree, read_config
from graphmill.jobs.config.reader import parse

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from graphmill.cluster.training.train_loop import Worker
    from graphmill.samplers.loading.loader import Loader

LOOPS = ("checked", "saving", "bare", "control")
UNSAFE = ("bare", "control")


@dataclass(frozen=True)
class Config:
    """Compare the trainer, with its checks, counts and checkpoints, to a bare loop on the same batches."""

    data: NodeDataOptions = field(default_factory=NodeDataOptions)
    """The graph to train on. Default: the embedded graph."""
    width: Count = 64
    """GECO's channels."""
    layers: Count = 3
    """GECO's layers."""
    chunks: Count = 8
    """Number of batches in an epoch. Each batch is a random part of the graph."""
    dropout: float = 0.3
    """Dropout of the layers and of their input."""
    epochs: Count = 12
    """Epochs of each loop, after a first epoch that is not counted."""
    workers: Count = 2
    """Number of workers."""
    local_reads: bool = True
    """yes: workers read the partitions of this machine directly. no: workers request rows from partition servers."""
    out: Path = Path("runs/bench-checks")
    """Folder of the table."""
    ray: SessionOptions = field(default_factory=SessionOptions)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Share:
    """One rank's measurements for each loop and epoch, and for each checkpoint, and the distance that each loop's weights moved."""

    wall_s: Mapping[str, Sequence[float]]
    cpu_s: Mapping[str, Sequence[float]]
    losses: Mapping[str, Sequence[float]]
    stall_s: Sequence[float]
    moved: Mapping[str, float]


def main() -> None:
    config = parse(Config, __doc__)
    check_results(config.out)
    shares = measure(config)
    text = describe(config, shares)
    keep(config.out, config, text, shares=shares)
    print(text)


def measure(config: Config) -> list[Share]:
    """Runs the loops on all ranks. Returns the ranks' measurements, in rank order."""
    import tempfile

    from graphmill.cluster.options import ServerOptions
    from graphmill.cluster.ray.session import ray_session
    from graphmill.cluster.runs.record_follower import followed
    from graphmill.cluster.runs.records import AttemptRecords
    from graphmill.cluster.runs.run_directory import RunDirectory
    from graphmill.cluster.serving.partition_server import partition_servers
    from graphmill.jobs.data.prepare_graph import prepare_graph
    from graphmill.storage.graph import StoredGraph

    graph = prepare_graph(config.data, kind=StoredGraph)
    with (
        tempfile.TemporaryDirectory(prefix="graphmill-checks-") as folder,
        ray_session(replace(config.ray, num_cpus=config.workers)),
        partition_servers(graph, ServerOptions(local_reads=config.local_reads)) as servers,
    ):
        directory = RunDirectory.create(Path(folder) / "run", {})
        files = AttemptRecords.create(directory.place)
        with followed(files, directory.take):
            return _train(config, servers, graph.manifest, files, folder)


def _train(config: Config, servers: Any, manifest: Any, files: Any, folder: str) -> list[Share]:
    from ray import train as ray_train
    from ray.train.torch import TorchTrainer

    trainer: Any = TorchTrainer(
        cast(Any, _measure_rank),
        train_loop_config={"config": config, "servers": servers, "manifest": manifest, "files": files},
        scaling_config=ray_train.ScalingConfig(num_workers=config.workers),
        run_config=ray_train.RunConfig(name="checks", storage_path=folder),
    )
    return trainer.fit().return_value


def _measure_rank(arguments: dict[str, Any]) -> list[Share]:
    """Runs the loops on every worker. Returns the Shares of all ranks."""
    import ray.train
    import torch
    import torch.distributed as dist
    from ray.train.torch import get_device
    from torch.nn.parallel import DistributedDataParallel

    from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
    from graphmill.cluster.data.training_data import OpenNodes
    from graphmill.cluster.metrics.class_scores import gather_objects
    from graphmill.cluster.runs.records import Recorder
    from graphmill.cluster.runs.run_store import RunStore
    from graphmill.cluster.serving.partition_server import connect
    from graphmill.cluster.training.checkpoint_writer import CheckpointWriter
    from graphmill.cluster.training.ray_train import register
    from graphmill.cluster.training.train_loop import Worker

    config: Config = arguments["config"]
    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    checkpoints = Checkpoints(RunStore(context.get_storage().experiment_fs_path))
    reporter = Recorder(arguments["files"])
    writer = CheckpointWriter(checkpoints, rank, None, partial(register, checkpoints, config.epochs))
    spec = _spec(config, arguments["servers"], arguments["manifest"])
    workers = {name: Worker(spec, reporter, rank, world_size, get_device(), writer) for name in LOOPS}
    for name in UNSAFE:
        workers[name].data = OpenNodes(connect(arguments["servers"]))
    ddp = {name: DistributedDataParallel(workers[name].model) for name in UNSAFE}
    before = {name: _flat(worker) for name, worker in workers.items()}
    wall, cpu, losses = ({name: [0.0] * config.epochs for name in LOOPS} for _ in range(3))
    stall = [0.0] * config.epochs
    for epoch in range(-1, config.epochs):  # epoch -1 only warms up
        # Each epoch has a new loader, so that no loop samples in advance while another loop is measured. The order is random, because in a fixed
        # order each loop would always follow the same other loop.
        for name in random.Random(epoch + 1).sample(LOOPS, len(LOOPS)):
            worker = workers[name]
            with worker.loader(spec.sampler) as loader:
                dist.barrier()
                began, began_cpu = time.perf_counter(), time.process_time()
                if name == "saving":
                    worker.next_epoch = epoch + 2
                    worker.checkpoint()
                if name in UNSAFE:
                    losses[name][epoch] = _bare(worker, ddp[name], loader, epoch + 1)
                else:
                    losses[name][epoch] = _checked(worker, loader, epoch + 1)
                wall[name][epoch] = time.perf_counter() - began
                writer.wait()
                cpu[name][epoch] = time.process_time() - began_cpu
                if name == "saving":
                    stall[epoch] = writer.take_stall_s()
    moved = {name: float((_flat(worker) - before[name]).norm()) for name, worker in workers.items()}
    return gather_objects(Share(wall, cpu, losses, stall, moved))


def _flat(worker: "Worker") -> Any:
    """Returns a copy of all weights as one vector."""
    import torch

    return torch.cat([parameter.detach().flatten() for parameter in worker.model.parameters()])


def _spec(config: Config, servers: Any, manifest: Any) -> Any:
    from graphmill.cluster.data.served_nodes import ServedNodes
    from graphmill.cluster.options import TrainOptions
    from graphmill.cluster.tasks import Classification
    from graphmill.cluster.training.train_spec import TrainSpec
    from graphmill.jobs.config.registry import Inputs
    from graphmill.jobs.tasks.build_model import build_model
    from graphmill.models.options.features import Features
    from graphmill.samplers.vocabulary.options import LoaderOptions, RandomPartitionOptions, full_evaluation

    model = {"name": "geco", "width": config.width, "num_layers": config.layers}
    model |= {"dropout": config.dropout, "input_dropout": config.dropout}
    component = read_config(config_tree("nodes", {"model": model, "run": {"defaults": "recipe"}})).model
    inputs = Inputs(node=Features(dim=manifest.feature_dim), out_dim=manifest.num_classes or 1, task="node")
    return TrainSpec(
        data=ServedNodes(servers),
        build_model=lambda: build_model(component, "nodes", inputs),
        task=Classification(manifest.num_classes),
        model_config={},
        identity={},
        sampler=RandomPartitionOptions(num_chunks=config.chunks),
        evaluation=full_evaluation(0, 1),
        options=TrainOptions(epochs=config.epochs + 1, schedule="constant", checkpoint_minutes=None),
        loader=LoaderOptions(),
    )


def _checked(worker: "Worker", loader: "Loader", epoch: int) -> float:
    record, _ = worker.train_epoch(loader, epoch)
    assert record is not None
    if worker.rank == 0:
        worker.reporter.push({"kind": "epoch", "epoch": epoch, **record})
    worker.report_traffic(epoch)
    return record["train_loss"]


def _bare(worker: "Worker", ddp: "DistributedDataParallel", loader: "Loader", epoch: int) -> float:
    """Runs an epoch of training without any check. Returns the mean loss over the targets of all ranks."""
    import torch

    from graphmill.cluster.metrics.class_scores import all_reduce_sum
    from graphmill.cluster.tasks import step_output

    ddp.train()
    clip, sums = worker.options.clip_norm, torch.zeros(2, dtype=torch.float64)
    parameters = list(worker.model.parameters())
    for batch in loader.epoch(epoch):
        target = worker.data.target(batch)
        loss, weight = worker.task.loss(step_output(ddp(batch)).prediction, target), worker.task.weight(target)
        worker.optimizer.zero_grad(set_to_none=True)
        (loss / weight.float()).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        worker.optimizer.step()
        sums += torch.stack([loss.detach().double(), weight])
    loss_sum, weight_sum = all_reduce_sum(sums).tolist()
    return loss_sum / weight_sum


def describe(config: Config, shares: Sequence[Share]) -> str:
    """Returns the figures as Markdown."""

    def of_epochs(kind: Literal["wall_s", "cpu_s"]) -> dict[str, np.ndarray]:
        """Returns, for each loop and epoch, the mean over ranks."""
        return {name: np.mean([getattr(share, kind)[name] for share in shares], axis=0) for name in LOOPS}

    rows = []
    for unit, epochs in (("seconds", of_epochs("wall_s")), ("CPU s of a worker", of_epochs("cpu_s"))):
        rows.append([unit, *(f"{np.median(epochs[name]):.3f}" for name in LOOPS)])
        ratios = [np.sort(epochs[name] / epochs["bare"]) for name in LOOPS]
        cells = [f"{np.median(r):.3f} ({r[len(r) // 4]:.3f} to {r[-1 - len(r) // 4]:.3f})" for r in ratios]
        rows.append(["to bare (quartiles)", *cells])
    rows.append(["last loss", *(f"{shares[0].losses[name][-1]:.4f}" for name in LOOPS)])
    rows.append(["weights moved by", *(f"{shares[0].moved[name]:.3f}" for name in LOOPS)])
    wall, stalls = of_epochs("wall_s"), np.max([share.stall_s for share in shares], axis=0)
    middle, more = np.median(stalls), np.median(wall["saving"] - wall["checked"])
    lines = [
        f"GECO {config.layers} x {config.width}, {config.workers} workers, {config.chunks} chunks, {config.epochs} epochs of each loop in a "
        f"drawn order; {machine()}",
        "",
        *table(dict.fromkeys(("an epoch", *LOOPS), ""), rows),
        "",
        f"A checkpoint stops training for {1e3 * middle:.1f} ms (median of {len(stalls)}; longest {1e3 * stalls.max():.1f} ms): "
        f"{middle / 60:.2%} of the time at one a minute. An epoch in which one is written takes {1e3 * more:.1f} ms more (median): {more / 60:.2%}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
