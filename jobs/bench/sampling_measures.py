"""What `jobs/bench/sampling.py` times: our sampler, the same reads and nothing else, feature rows, and owners behind Ray.

Every measure is the best of `rounds` rounds over the same batches, after a warm-up: the machine's noise only ever adds.
"""

import pickle
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from jobs.run.memory_check import own_bytes
from samplers.array_pool import ArrayPool
from samplers.draw_kernels import draw_uniform, list_keys
from samplers.messages import Request
from samplers.minibatch import MiniBatch
from samplers.neighbor import NeighborSampler
from samplers.neighbor_kernels import entries, list_bounds
from samplers.node2subgraph import Node2SubgraphSampler
from samplers.options import NeighborOptions, Node2SubgraphOptions
from samplers.prefetch import prefetch
from samplers.random_streams import Purpose, stream_key
from samplers.relabel import Relabeler
from samplers.router import Owner, Pending, Router, local_router
from samplers.row_kernels import take_rows
from samplers.stage_clock import StageClock, listen
from storage.compiled import compiled
from storage.graph import Partition, open_graph


@dataclass(frozen=True)
class Effort:
    """How much is timed."""

    batches: int
    warmup: int
    rounds: int


@dataclass(frozen=True)
class Rate:
    """Best and median rate of some rounds."""

    best: float
    median: float

    @staticmethod
    def of(rates: list[float]) -> "Rate":
        return Rate(max(rates), statistics.median(rates))


@dataclass(frozen=True)
class SamplerRate:
    """Edges per second of a sampler."""

    whole: Rate  # by the clock, all of `sample`
    sampling: Rate  # without fetching rows (permanent ids, labels, splits): drawing and relabelling
    edges_per_batch: float
    nodes_per_batch: float


def time_sampler(router: Router, options: NeighborOptions, threads: int, effort: Effort) -> SamplerRate:
    """Batches of epoch 0 by `threads` threads; every output array is fresh."""
    sampler = NeighborSampler(router, options)
    numbers = [i % sampler.num_batches for i in range(effort.warmup + effort.batches)]

    def sample(number: int) -> tuple[int, int, float]:
        with listen(StageClock()) as clock:
            batch = sampler.sample(0, number)
        clock.enter("done")
        return batch.num_edges, batch.num_nodes, sum(clock.seconds.values()) - clock.seconds.get("fetch", 0.0)

    whole, sampling = [], []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(sample, numbers[: max(effort.warmup, threads)]))
        for _ in range(effort.rounds):
            start = time.perf_counter()
            done = list(pool.map(sample, numbers[effort.warmup :]))
            elapsed = time.perf_counter() - start
            num_edges = sum(edges for edges, _, _ in done)
            whole.append(num_edges / elapsed)
            sampling.append(num_edges / sum(seconds for _, _, seconds in done) * threads)
    count = len(done)
    return SamplerRate(Rate.of(whole), Rate.of(sampling), num_edges / count, sum(n for _, n, _ in done) / count)


@dataclass(frozen=True)
class SizeCost:
    """What batches of one graph cost."""

    edges_per_s: float
    limit: float  # the same of the loop that only reads
    nodes_per_batch: float
    milliseconds: float
    before: int  # private bytes after a first round
    grown: int  # and how many more after the last


def measure_size(url: str, options: NeighborOptions, effort: Effort) -> SizeCost:
    """Opens the graph and samples on one thread; for a process of its own."""
    torch.set_num_threads(1)
    graph = open_graph(url)
    router = local_router(graph)
    time_sampler(router, options, 1, Effort(effort.batches, effort.warmup, 1))
    before = own_bytes("RssAnon")  # not the mapped graph, which the system may drop and share
    rate = time_sampler(router, options, 1, effort)
    grown = own_bytes("RssAnon") - before
    sampler = NeighborSampler(router, options)
    roots = [router.find_nodes(sampler.roots_of(0, i % sampler.num_batches)) for i in range(effort.batches)]
    limit = time_reads(next(iter(graph.partitions())), roots, options.fanouts, 1, effort)
    best = rate.sampling.best
    milliseconds = rate.edges_per_batch / best * 1e3
    return SizeCost(best, limit.best, rate.nodes_per_batch, milliseconds, before, grown)


@dataclass(frozen=True)
class _Reads:
    """What one hop of one batch reads: rows of `indptr`, and of each how many entries at which offsets."""

    row: np.ndarray
    count: np.ndarray
    offset: np.ndarray


_BLOCK = 4096  # edges whose ends are read before their map entries
_AHEAD = 32


@compiled
def _only_read(indptr, indices, position_of_id, row, count, offset):
    """Reads what sampling must, block by block, each read asked for ahead; nothing is drawn and nothing written but a block."""
    total, edge, i, drawn = np.int64(0), 0, 0, 0
    place, neighbor = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, indices.dtype)
    while edge < len(offset):
        filled = min(_BLOCK, len(offset) - edge)
        for e in range(filled):
            while drawn == count[i]:
                i, drawn = i + 1, 0
            if drawn == 0:
                if i + _AHEAD < len(row):
                    prefetch(indptr, row[i + _AHEAD])  # type: ignore[call-arg]
                total += indptr[row[i] + 1]
            place[e] = indptr[row[i]] + offset[edge + e]
            prefetch(indices, place[e])  # type: ignore[call-arg]
            drawn += 1
        for e in range(filled):
            neighbor[e] = indices[place[e]]
            prefetch(position_of_id, neighbor[e])  # type: ignore[call-arg]
        for e in range(filled):
            total += position_of_id[neighbor[e]]
        edge += filled
    return total


def time_reads(
    partition: Partition, roots: list[np.ndarray], fanouts: tuple[int, ...], threads: int, effort: Effort
) -> Rate:
    """Edges per second of a loop that reads what sampling must (list bounds, entries, relabel map), in the same order."""
    recorded = [_record(partition, some, fanouts, batch) for batch, some in enumerate(roots[: effort.batches])]
    num_edges = sum(len(reads.offset) for hops in recorded for reads in hops)

    position_of_id = np.zeros(partition.num_nodes, np.int32)

    def read(hops: list[_Reads]) -> int:
        return sum(
            _only_read(partition.indptr, partition.indices, position_of_id, one.row, one.count, one.offset)
            for one in hops
        )

    rates = []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, recorded))
        for _ in range(effort.rounds):
            start = time.perf_counter()
            list(pool.map(read, recorded))
            rates.append(num_edges / (time.perf_counter() - start))
    return Rate.of(rates)


def _record(partition: Partition, roots: np.ndarray, fanouts: tuple[int, ...], batch: int) -> list[_Reads]:
    relabeler, reads, first = Relabeler(roots), [], 0
    for hop, fanout in enumerate(fanouts):
        row = relabeler.node[first:].copy()
        first = relabeler.num_nodes
        start, degree = list_bounds(partition.indptr, row)
        keys = list_keys(stream_key(0, Purpose.NEIGHBORS, 0, batch, hop), entries(partition.original_id, row))
        count, position = draw_uniform(start, degree, keys, fanout)
        relabeler.add(entries(partition.indices, position))
        reads.append(_Reads(row, count, position - np.repeat(start, count)))
    return reads


def time_gather(ours: np.ndarray, in_memory: torch.Tensor, node: np.ndarray, rounds: int) -> dict[str, float]:
    """GB/s of feature rows: ours from the map into an array of a pool and into a fresh one, against torch's index_select(out=)."""
    shape = (len(node), ours.shape[1])
    pool, out_torch, index = ArrayPool(), torch.empty(shape, dtype=in_memory.dtype), torch.from_numpy(node)
    work: dict[str, Callable[[], Any]] = {
        "pooled": lambda: take_rows(ours, node, pool.empty(shape, ours.dtype)),
        "fresh": lambda: np.take(ours, node, axis=0),
        "torch_out": lambda: torch.index_select(in_memory, 0, index, out=out_torch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(max(rounds, 10) + 1):  # in turn, so that a slow moment meets all of them; the first time only warms
        for name, gather in work.items():
            start = time.perf_counter()
            gather()
            seconds[name].append(time.perf_counter() - start)
    num_bytes = out_torch.numel() * out_torch.element_size()
    return {name: num_bytes / min(some[1:]) / 1e9 for name, some in seconds.items()}


@dataclass(frozen=True)
class SubgraphRate:
    """Subgraphs per second, and how large one is."""

    per_s: Rate
    nodes: float
    edges: float


def time_subgraphs(router: Router, options: Node2SubgraphOptions, threads: int, effort: Effort) -> SubgraphRate:
    """Batches of epoch 0 by `threads` threads, by the clock."""
    sampler = Node2SubgraphSampler(router, options)
    numbers = [i % sampler.num_batches for i in range(effort.warmup + effort.batches)]
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda number: sampler.sample(0, number), numbers[: max(effort.warmup, threads)]))
        for _ in range(effort.rounds):
            start = time.perf_counter()
            done = list(pool.map(lambda number: _sizes(sampler.sample(0, number)), numbers[effort.warmup :]))
            roots, nodes, edges = (sum(column) for column in zip(*done, strict=True))
            rates.append(roots / (time.perf_counter() - start))
    return SubgraphRate(Rate.of(rates), nodes / roots, edges / roots)


def _sizes(batch: MiniBatch) -> tuple[int, int, int]:
    return batch.num_roots, batch.num_nodes, batch.num_edges


class CountingOwner:
    """Counts what travels between a router and an owner: calls, and bytes of requests and replies as pickled."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.calls: dict[str, int] = {}
        self.sent_bytes = self.received_bytes = 0

    def submit(self, request: Request) -> Pending:
        name = type(request).__name__
        self.calls[name] = self.calls.get(name, 0) + 1
        self.sent_bytes += _num_bytes(request)
        return _CountingPending(self._owner.submit(request), self)


class _CountingPending:
    def __init__(self, pending: Pending, owner: CountingOwner) -> None:
        self._pending, self._owner = pending, owner

    def result(self) -> Any:
        reply = self._pending.result()
        self._owner.received_bytes += _num_bytes(reply)
        return reply


def _num_bytes(message: Any) -> int:
    arrays = [value for value in vars(message).values() if isinstance(value, np.ndarray)]
    rest = {name: value for name, value in vars(message).items() if not isinstance(value, np.ndarray)}
    return sum(array.nbytes for array in arrays) + len(pickle.dumps(rest))


@dataclass(frozen=True)
class RemoteCost:
    """What a batch costs when every partition is another process."""

    rate: SamplerRate
    calls_per_batch: dict[str, float]
    sent_bytes_per_batch: float
    received_bytes_per_batch: float


def time_remote(router: Router, owners: list[CountingOwner], options: NeighborOptions, effort: Effort) -> RemoteCost:
    """One thread; counts are of one batch sampled apart, its roots known already."""
    rate = time_sampler(router, options, 1, effort)
    sampler = NeighborSampler(router, options)
    sampler.sample(0, 0)
    before = [(dict(owner.calls), owner.sent_bytes, owner.received_bytes) for owner in owners]
    sampler.sample(0, 1 % sampler.num_batches)
    calls: dict[str, float] = {}
    for owner, (earlier, _, _) in zip(owners, before, strict=True):
        for name, count in owner.calls.items():
            calls[name] = calls.get(name, 0) + count - earlier.get(name, 0)
    return RemoteCost(
        rate,
        {name: count for name, count in calls.items() if count},
        sum(owner.sent_bytes - sent for owner, (_, sent, _) in zip(owners, before, strict=True)),
        sum(owner.received_bytes - received for owner, (_, _, received) in zip(owners, before, strict=True)),
    )
