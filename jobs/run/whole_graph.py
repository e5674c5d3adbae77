"""The whole graph as one batch over the workers: each reads its range of the nodes, and all plan who sends which rows to whom.

To the trainer this is data like any other: a sampler with one batch per worker and epoch, which is the worker's shard. The shard is read
once, to where its process group sends from: host memory with gloo, the worker's GPU with nccl.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from platform import node
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cluster.options import COLLECTIVE_TIMEOUT_S
from jobs.run.memory_check import available_bytes, check_fits, return_freed_blocks
from models.options.geco import GECOConfig
from models.parallel.collectives import Peers
from models.parallel.cost import inference_bytes, training_bytes
from models.parallel.halo import ShardedAdjacency
from models.parallel.sequences import ShardedLayout
from models.parallel.shards import Shards
from storage.file_stamps import FileStamps, take_stamps
from storage.graph import PinnedGraph, StoredGraph
from storage.source import SPLITS

_NEAR = 0.05  # of a shard: how far its end is moved to the end of a stored partition


@dataclass(frozen=True)
class ShardRoots:
    """Which of a shard's nodes are asked about: those with this split code."""

    split: int


@dataclass(frozen=True)
class ShardBatch:
    """A worker's rows of the whole graph: n rows here, N nodes."""

    epoch: int
    index: int  # the worker
    x: Tensor  # float32 [n, feature_dim]
    y: Tensor  # int64 [n]
    split: Tensor  # int8 [n]
    node_id: Tensor  # int64 [N]: permanent ids of all nodes
    adjacency: ShardedAdjacency
    layout: ShardedLayout
    root_index: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    @property
    def num_nodes(self) -> int:
        return self.adjacency.num_nodes

    @property
    def num_edges(self) -> int:
        return self.adjacency.num_edges

    @property
    def num_bytes(self) -> int:
        return self.x.nbytes + self.y.nbytes + self.split.nbytes


@dataclass(frozen=True)
class WholeGraphData:
    """Names the graph; opening it is a collective call of all workers."""

    graph: PinnedGraph
    split_set: int
    model: GECOConfig
    stamps: FileStamps  # as the run began, before the servers verified the files
    training: bool = True  # and not prediction, which keeps nothing for a backward pass

    @classmethod
    def of(cls, graph: StoredGraph, split_set: int, model: GECOConfig) -> "WholeGraphData":
        return cls(graph.pin(), split_set, model, take_stamps(graph.url, graph.manifest.files.values()))

    def roots(self) -> dict[str, Any]:
        """The sampler's options for every split."""
        return {name: ShardRoots(code) for name, code in SPLITS.items()}

    def check_memory(self, graph: StoredGraph, num_workers: int) -> int:
        """Bytes of a worker. Raises ConfigError where this machine cannot hold them all."""
        needed = self.worker_bytes(graph, num_workers)
        check_fits(needed, available_bytes() // num_workers, num_workers, self._advice)
        return needed

    @property
    def _advice(self) -> str:
        """Where memory is short."""
        if not self.training:
            return "use more --workers on more machines, or set --run.parallel data"
        more = "" if self.model.recompute else "set --model.recompute yes, "
        return f"{more}use more --workers on more machines, lower --model.width or --model.num_layers, or set --run.parallel data"

    def worker_bytes(self, graph: StoredGraph, num_workers: int) -> int:
        """About the most memory that a worker's shard takes."""
        estimate = training_bytes if self.training else inference_bytes
        return estimate(self.model, graph.manifest.num_nodes, graph.manifest.num_edges, num_workers)

    def open(self) -> "OpenShard":
        """Raises ConfigError, on all workers, where the shards do not fit in memory; FormatError where the graph is damaged."""
        graph = self.graph.open()
        # This process has the shard's arrays and little else: what it frees is for its neighbours.
        return_freed_blocks()
        # A group of its own, since DDP's calls are under way beside ours; its deadline is not inherited.
        deadline = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
        peers = Peers.of_group(dist.new_group(timeout=deadline) if dist.is_initialized() else None)
        shards = choose_shards(graph, peers.size)
        self._check_workers_memory(graph, peers)
        stamps = self.stamps.renewed()
        shard = read_shard(graph, shards, peers, self.split_set)
        stamps.check_untouched()
        return OpenShard(shard, self.graph.content_hash)

    def _check_workers_memory(self, graph: StoredGraph, peers: Peers) -> None:
        """Raises ConfigError on all workers where one of them lacks the memory for its shard."""
        needed = self.worker_bytes(graph, peers.size)
        # Workers of one machine share its memory: each counts on its part only. A name is a machine. A GPU is one worker's.
        neighbors = _same_machine(peers)
        on_gpu = peers.device.type == "cuda"
        free = torch.cuda.mem_get_info(peers.device)[0] if on_gpu else available_bytes() // neighbors
        lack = torch.tensor([needed - free], dtype=torch.int64, device=peers.device)
        check_fits(needed, needed - int(peers.max(lack)), peers.size, self._advice)


class OpenShard:
    """The trainer's view of a shard."""

    def __init__(self, shard: ShardBatch, content_hash: str) -> None:
        self.shard, self._content_hash = shard, content_hash

    def sampler(self, options: ShardRoots, num_ranks: int) -> "ShardSampler":
        return ShardSampler(self.shard, options, num_ranks, self._content_hash)

    def collate(self, minibatch: ShardBatch) -> ShardBatch:
        return minibatch

    def target(self, batch: ShardBatch) -> Tensor:
        return batch.y[batch.root_index]

    def sizes(self, batch: ShardBatch) -> tuple[int, int]:
        return batch.num_nodes, batch.num_edges

    def ids(self, batch: ShardBatch) -> Tensor:
        """Permanent ids of the roots."""
        return batch.node_id[batch.layout.first_row + batch.root_index]

    def check(self) -> None:
        """Nothing to do: the shard was copied into memory as it was opened."""

    def traffic(self) -> None:
        return None  # nothing is asked of partitions after that


class ShardSampler:
    """One batch per worker and epoch: its shard, with one split's roots."""

    def __init__(self, shard: ShardBatch, options: ShardRoots, num_ranks: int, content_hash: str) -> None:
        self._options, self._num_ranks, self._content_hash = options, num_ranks, content_hash
        self._shard = replace(shard, root_index=torch.nonzero(shard.split == options.split).squeeze(1))

    @property
    def options(self) -> ShardRoots:
        return self._options

    @property
    def content_hash(self) -> str:
        return self._content_hash

    @property
    def num_batches(self) -> int:
        return self._num_ranks

    def sample(self, epoch: int, batch: int) -> ShardBatch:
        return replace(self._shard, epoch=epoch, index=batch)


def choose_shards(graph: StoredGraph, num_workers: int) -> Shards:
    """Even ranges of the stored ids, their ends moved to those of stored partitions where these are near."""
    even = Shards.even(graph.manifest.num_nodes, num_workers)
    near = _NEAR * even.total / num_workers
    ends = []
    for end in even.bounds[1:-1]:
        offset = int(graph.offsets[np.abs(graph.offsets - end).argmin()])
        ends.append(offset if abs(offset - end) <= near else end)
    return Shards((0, *ends, even.total))


def _same_machine(peers: Peers) -> int:
    """How many of the workers run on this machine, this one included."""
    names = peers.gather(torch.tensor([zlib.crc32(node().encode())], device=peers.device), [1] * peers.size)
    return int((names == names[peers.rank]).sum())


def read_shard(graph: StoredGraph, shards: Shards, peers: Peers, split_set: int) -> ShardBatch:
    """Reads this worker's rows, from the partitions that hold them, and plans the exchange; a collective call."""
    start, stop = shards.range(peers.rank)
    pieces = [_read_rows(graph, index, start, stop, split_set) for index in _partitions_of(graph, start, stop)]
    indptr = np.concatenate([[0], np.cumsum(_joined([p["degree"] for p in pieces], np.int64))]).astype(np.int64)
    index_dtype = np.dtype(graph.manifest.index_dtype)

    def placed(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(peers.device)

    source_id = placed(_joined([p.pop("source_id") for p in pieces], index_dtype))
    adjacency = ShardedAdjacency(placed(indptr), source_id, shards, peers, symmetric=graph.manifest.symmetric)
    del source_id
    original_id = placed(_joined([p["original_id"] for p in pieces], np.int64))
    feature = [p["feature"] for p in pieces] or [np.empty((0, graph.manifest.feature_dim), np.float32)]
    return ShardBatch(
        epoch=0,
        index=peers.rank,
        x=placed(np.concatenate(feature)),
        y=placed(_joined([p["label"] for p in pieces], np.int64)),
        split=placed(_joined([p["split"] for p in pieces], np.int8)),
        node_id=peers.gather(original_id, shards.sizes),
        adjacency=adjacency,
        layout=ShardedLayout(shards, peers),
    )


def _partitions_of(graph: StoredGraph, start: int, stop: int) -> range:
    if start == stop:
        return range(0)
    first = int(np.searchsorted(graph.offsets, start, side="right")) - 1
    return range(first, int(np.searchsorted(graph.offsets, stop, side="left")))


def _read_rows(graph: StoredGraph, index: int, start: int, stop: int, split_set: int) -> dict[str, np.ndarray]:
    """Copies of one partition's rows within [start, stop); the partition's files are let go again."""
    part = graph.partition(index)
    rows = slice(max(start, part.start) - part.start, min(stop, part.stop) - part.start)
    assert part.feature is not None
    assert part.split is not None
    label = np.full(part.num_nodes, -1) if part.label is None else part.label
    return {
        "degree": np.diff(part.indptr[rows.start : rows.stop + 1]),
        "source_id": part.indices[part.indptr[rows.start] : part.indptr[rows.stop]].copy(),
        "original_id": part.original_id[rows].copy(),
        "feature": np.array(part.feature[rows], np.float32),
        "label": np.array(label[rows], np.int64),
        "split": part.split[split_set, rows].copy(),
    }


def _joined(pieces: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *pieces]).astype(dtype, copy=False)
