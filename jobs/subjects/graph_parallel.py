"""Graph-parallel training: an epoch has one batch, the whole graph. Each worker holds a shard of the graph.

The trainer sees a normal sampler with one batch per worker and epoch (`graphmill.samplers.methods.full_graph`). This module reads the shard once, into the
memory from which the process group sends (host memory with gloo, GPU memory with nccl), and plans the exchange of rows once.
"""

import zlib
from dataclasses import dataclass, replace
from datetime import timedelta
from platform import node
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from graphmill.cluster.data.training_data import OpenData, TrainingData
from graphmill.cluster.options import COLLECTIVE_TIMEOUT_S
from graphmill.cluster.process.malloc_trim import return_freed_blocks
from graphmill.jobs.machine.memory_check import available_bytes, check_fits
from graphmill.jobs.resolve.resolve import ResolvedRun
from graphmill.jobs.tasks.model_inputs import PlannedShard, PlannedTypedShard, plan_shard
from graphmill.models.parallel.collectives import Peers
from graphmill.models.parallel_cost import ParallelConfig, inference_bytes, training_bytes
from graphmill.samplers.batches.device_copy import map_tensors
from graphmill.samplers.batches.typed_batch import TypedBatch
from graphmill.samplers.drawing.build_batch import root_table
from graphmill.samplers.drawing.protocol import Sampler
from graphmill.samplers.vocabulary.options import FullGraphOptions
from graphmill.storage.format.manifest import Manifest


@dataclass(frozen=True)
class ShardMemory:
    """Estimated memory of a worker's shard."""

    layers: tuple[ParallelConfig, ...]  # the model's layers; for a typed graph also the relational layers before it
    num_nodes: int
    num_edges: int
    training: bool = True  # False: prediction, which keeps no arrays for a backward pass

    def worker_bytes(self, num_workers: int) -> int:
        """Estimated peak memory of one worker, in bytes."""
        estimate = training_bytes if self.training else inference_bytes
        return sum(estimate(layer, self.num_nodes, self.num_edges, num_workers) for layer in self.layers)

    def check(self, num_workers: int) -> int:
        """Memory of a worker, in bytes. Raises ConfigError if this machine cannot hold all workers."""
        needed = self.worker_bytes(num_workers)
        check_fits(needed, available_bytes() // num_workers, num_workers, self._advice)
        return needed

    def check_workers(self, peers: Peers) -> None:
        """Raises ConfigError on all workers if one worker has too little memory for its shard."""
        needed = self.worker_bytes(peers.size)
        # Workers with the same host name share that machine's memory in equal parts. A GPU belongs to one worker only.
        neighbors = _same_machine(peers)
        on_gpu = peers.device.type == "cuda"
        free = torch.cuda.mem_get_info(peers.device)[0] if on_gpu else available_bytes() // neighbors
        lack = torch.tensor([needed - free], dtype=torch.int64, device=peers.device)
        check_fits(needed, needed - int(peers.max(lack)), peers.size, self._advice)

    @property
    def _advice(self) -> str:
        """Advice for the error message if memory is short."""
        if not self.training:
            return "use more --workers on more machines, or set --run.parallel data"
        recompute = "" if getattr(self.layers[0], "recompute", True) else "set --model.recompute yes, "
        return f"{recompute}use more --workers on more machines, lower --model.width or --model.num_layers, or set --run.parallel data"


def shard_memory(manifest: Manifest, resolved: ResolvedRun, *, training: bool = True) -> ShardMemory:
    """The memory of a graph-parallel run, or of a prediction by such a run."""
    row, layers = resolved.config.model.row("model", resolved.config.kind), [resolved.model_config]
    if resolved.is_typed and not (row is not None and row.takes_types):
        layers.append(replace(resolved.config.relational, node_dims=dict(resolved.inputs.node_dims)))
    return ShardMemory(tuple(layers), manifest.num_nodes, manifest.num_edges, training)


@dataclass(frozen=True)
class WholeGraphData:
    """A graph of which each worker keeps one shard. `open` is a collective call: all workers must make it."""

    nodes: TrainingData
    shards: FullGraphOptions
    memory: ShardMemory

    def open(self) -> "OpenShard":
        """Raises ConfigError on all workers if the shards do not fit in memory, and FormatError if the graph is damaged."""
        nodes = self.nodes.open()
        # Nearly all memory of this process is the arrays of the shard. Freed blocks must return to the system, so that other workers on this machine can use
        # them.
        return_freed_blocks()
        # A separate group, because DDP's calls run at the same time. A new group does not inherit the deadline.
        deadline = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
        peers = Peers.of_group(dist.new_group(timeout=deadline) if dist.is_initialized() else None)
        self.memory.check_workers(peers)
        drawn = nodes.collate(nodes.sampler(self.shards, peers.size).sample(0, peers.rank))
        nodes.check()
        shard = map_tensors(drawn, lambda tensor: tensor.to(peers.device))
        kind = PlannedTypedShard if isinstance(shard, TypedBatch) else PlannedShard
        return OpenShard(nodes, kind(**vars(shard), graph=plan_shard(shard, peers)))


class OpenShard:
    """A shard in the form that the trainer reads."""

    def __init__(self, nodes: OpenData, shard: PlannedShard | PlannedTypedShard) -> None:
        self._nodes, self.shard = nodes, shard

    def sampler(self, options: FullGraphOptions, num_ranks: int) -> "KeptShard":
        return KeptShard(self._nodes.sampler(options, num_ranks), self.shard)

    def collate(self, minibatch: Any) -> Any:
        return minibatch

    def target(self, batch: Any) -> Tensor:
        return self._nodes.target(batch)

    def ids(self, batch: Any) -> Tensor:
        return self._nodes.ids(batch)

    def sizes(self, batch: Any) -> tuple[int, int]:
        return self._nodes.sizes(batch)

    def split_codes(self, batch: Any) -> Tensor | None:
        return self._nodes.split_codes(batch)

    def near_middle(self) -> float:
        return self._nodes.near_middle()

    def check(self) -> None:
        """Does nothing: `open` has already copied the shard into memory."""

    def traffic(self) -> np.ndarray | None:
        return self._nodes.traffic()


class KeptShard:
    """A sampler with one batch per worker and epoch: the shard in memory, with the roots of the sampler's splits."""

    def __init__(self, sampler: Sampler, shard: PlannedShard | PlannedTypedShard) -> None:
        self._sampler, self._shard, split = sampler, shard, root_table(shard).split
        if split is not None:  # without splits all nodes are roots, as in `shard`
            codes = torch.tensor(sampler.options.root_splits, dtype=split.dtype, device=split.device)
            self._shard = replace(shard, root_index=torch.nonzero(torch.isin(split, codes)).squeeze(1))

    @property
    def options(self) -> Any:
        return self._sampler.options

    @property
    def content_hash(self) -> str:
        return self._sampler.content_hash

    @property
    def num_batches(self) -> int:
        return self._sampler.num_batches

    def sample(self, epoch: int, batch: int) -> PlannedShard | PlannedTypedShard:
        return replace(self._shard, epoch=epoch, index=batch)


def _same_machine(peers: Peers) -> int:
    """Number of workers on this machine, this worker included."""
    names = peers.gather(torch.tensor([zlib.crc32(node().encode())], device=peers.device), [1] * peers.size)
    return int((names == names[peers.rank]).sum())
