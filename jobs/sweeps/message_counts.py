"""What a worker's batches ask of partitions, counted: messages and their bytes, and the worker's memory and CPU time.

`MeasuredNodes` is the training data of a run that is measured: the same servers, router and samplers as any run's (`NodeData`), with a
counter around each owner, and epochs cut to a number of steps. At the last step of each epoch a worker pushes its counts so far.
What is counted is `samplers.traffic`'s.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch

from cluster.partition_server import PartitionServers, connect
from cluster.training_data import OpenNodes
from jobs.run.memory_check import own_bytes
from samplers.minibatch import TorchBatch
from samplers.protocol import Batch, Sampler
from samplers.traffic import Traffic


class FirstSteps:
    """The first steps of a sampler's epochs."""

    def __init__(self, sampler: Sampler, num_ranks: int, max_steps: int) -> None:
        self._sampler, self.num_ranks = sampler, num_ranks
        self.num_steps = min(max_steps, sampler.num_batches // num_ranks)

    @property
    def options(self) -> Any:
        return self._sampler.options

    @property
    def content_hash(self) -> str:
        return self._sampler.content_hash

    @property
    def num_batches(self) -> int:
        return self.num_steps * self.num_ranks

    def sample(self, epoch: int, batch: int) -> Batch:
        return self._sampler.sample(epoch, batch)


def memory_bytes() -> dict[str, int]:
    """This process's most resident memory so far, maps of the graph among it, and what is its own of it now."""
    return {"peak_bytes": own_bytes("VmHWM"), "own_bytes": own_bytes("RssAnon")}


class OpenMeasured(OpenNodes):
    """One graph through a router whose messages are counted.

    The options of the training are those whose `shuffle` is on; others, of evaluations, get a single step and are not counted. The trainer
    asks for a batch's targets once a step, in its own thread: with those of an epoch's last step, when all its batches have come, a
    worker pushes what it has counted so far. So what lies between two reports is an epoch's.
    """

    def __init__(self, servers: PartitionServers, hub: Any, max_steps: int) -> None:
        self._counts = Traffic(len(servers.handles))
        super().__init__(connect(servers, self._counts.watch), traffic=self._counts)
        self._hub, self._max_steps = hub, max_steps
        self._training: FirstSteps | None = None
        self._num_targets = 0

    def sampler(self, options: Any, num_ranks: int) -> Sampler:
        sampler = super().sampler(options, num_ranks)
        if not options.shuffle:
            return FirstSteps(sampler, num_ranks, 1)
        self._training = FirstSteps(sampler, num_ranks, self._max_steps)
        return self._training

    def target(self, batch: TorchBatch) -> torch.Tensor:
        training = self._training
        assert training is not None, "the trainer makes its sampler before it asks for targets"
        epoch, step = divmod(self._num_targets, training.num_steps)
        self._num_targets += 1
        if step + 1 == training.num_steps and epoch == batch.epoch:  # an evaluation's batches are of epoch 0
            self._push(epoch, batch.index % training.num_ranks, training.num_steps)
        return super().target(batch)

    def _push(self, epoch: int, rank: int, num_steps: int) -> None:
        self._hub.push.remote(
            {
                "epoch": epoch,
                "rank": rank,
                "steps": num_steps,
                "train_thread_s": time.thread_time(),
                "process_s": time.process_time(),
                "torch_threads": torch.get_num_threads(),
                "node_id": ray.get_runtime_context().get_node_id(),
                **memory_bytes(),
                **self._counts.totals(),
            }
        )


@dataclass(frozen=True)
class MeasuredNodes:
    """One partitioned graph, measured; `hub` is an actor of `CountsHub`."""

    servers: PartitionServers
    hub: Any
    max_steps: int  # of an epoch

    def open(self) -> OpenMeasured:
        torch.set_num_threads(1)
        return OpenMeasured(self.servers, self.hub, self.max_steps)


class CountsHub:
    """An actor that holds what workers push until it is asked for."""

    def __init__(self) -> None:
        self._records: list[Mapping[str, Any]] = []

    def push(self, record: Mapping[str, Any]) -> None:
        self._records.append(record)

    def records(self) -> list[Mapping[str, Any]]:
        return self._records


def evaluation_of(training: Any) -> Mapping[str, Any]:
    """The trainer scores splits at the end of every run; where only its steps count, a batch of the training's kind will do."""
    return dict.fromkeys(("train", "valid", "test"), replace(training, shuffle=False))
