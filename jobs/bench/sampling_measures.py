"""Measurements of `jobs/bench/sampling.py`: Graphmill's sampler, a loop of the same reads, feature rows, and partition owners behind Ray.

Every rate is the best of `rounds` rounds over the same batches, after a warm-up: disturbance only makes a round slower.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from graphmill.core.compile_cache import compiled
from graphmill.core.process_memory import own_bytes
from graphmill.samplers.access.array_pool import ArrayPool
from graphmill.samplers.access.router import Router, local_router
from graphmill.samplers.access.traffic import COLUMNS, Traffic
from graphmill.samplers.kernels.draws import draw_uniform
from graphmill.samplers.kernels.lists import entries
from graphmill.samplers.kernels.prefetch import prefetch
from graphmill.samplers.kernels.random_streams import Purpose, hash_ids, stream_key
from graphmill.samplers.kernels.relabel import Relabeler
from graphmill.samplers.kernels.rows import take_rows
from graphmill.samplers.kernels.subgraphs import list_bounds
from graphmill.samplers.methods.neighbor import NeighborSampler
from graphmill.samplers.methods.node2subgraph import Node2SubgraphSampler
from graphmill.samplers.vocabulary.options import NeighborOptions, Node2SubgraphOptions
from graphmill.samplers.vocabulary.stage_clock import StageClock, listen
from graphmill.storage.graph import Partition, StoredGraph, open_graph


@dataclass(frozen=True)
class Effort:
    """Counts of the batches and rounds to time."""

    batches: int
    warmup: int
    rounds: int


class SamplerRate(NamedTuple):
    """Edges per second of a sampler."""

    whole: float  # by wall clock, for the whole call of `sample`
    sampling: float  # drawing and relabelling, without fetching rows (permanent ids, labels, splits)
    edges_per_batch: float
    nodes_per_batch: float
    cpu_ms: float  # CPU time of a batch, with its rows


def rounds_of(
    work: Callable[[Any], Any], items: Sequence[Any], warmup: Sequence[Any], threads: int, rounds: int
) -> list[tuple[float, list[Any]]]:
    """Seconds and results of each round of `work` over the items with `threads` threads."""
    measured = []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, warmup))
        for _ in range(rounds):
            start = time.perf_counter()
            done = list(pool.map(work, items))
            measured.append((time.perf_counter() - start, done))
    return measured


def _numbers(effort: Effort, threads: int, num_batches: int) -> tuple[list[int], list[int]]:
    """(ids of the batches to time, ids of the batches to warm up with)."""
    numbers = [i % num_batches for i in range(effort.warmup + effort.batches)]
    return numbers[effort.warmup :], numbers[: max(effort.warmup, threads)]


def time_sampler(router: Router, options: NeighborOptions, threads: int, effort: Effort) -> SamplerRate:
    """Samples the batches of epoch 0 with `threads` threads. Every output array is fresh."""
    sampler = NeighborSampler(router, options)

    def sample(number: int) -> tuple[int, int, float, float]:
        began_s = time.thread_time()
        with listen(StageClock()) as clock:
            batch = sampler.sample(0, number)
        clock.enter("done")
        sampling_s = sum(clock.seconds.values()) - clock.seconds.get("fetch", 0.0)
        return batch.num_edges, batch.num_nodes, sampling_s, time.thread_time() - began_s

    rounds = rounds_of(sample, *_numbers(effort, threads, sampler.num_batches), threads, effort.rounds)
    count, done = effort.batches, rounds[0][1]
    edges, nodes, *_ = (sum(column) for column in zip(*done, strict=True))
    sampling = max(edges / sum(busy for _, _, busy, _ in done) * threads for _, done in rounds)
    cpu_ms = 1e3 * min(sum(cpu_s for *_, cpu_s in done) for _, done in rounds) / count
    return SamplerRate(max(edges / s for s, _ in rounds), sampling, edges / count, nodes / count, cpu_ms)


def batch_roots(graph: StoredGraph, options: NeighborOptions, count: int) -> list[np.ndarray]:
    """Stored ids of the roots in the first batches of epoch 0, in order. The peers sample around the same roots."""
    router = local_router(graph)
    sampler = NeighborSampler(router, options)
    return [router.find_nodes(sampler.roots_of(0, i % sampler.num_batches)) for i in range(count)]


class SizeCost(NamedTuple):
    """Cost of the batches of one graph."""

    rate: SamplerRate
    limit: float  # edges per second of `time_reads`
    before: int  # private bytes of the process after the first round
    grown: int  # growth of the private bytes until the end of the last round


def measure_size(url: str, options: NeighborOptions, effort: Effort) -> SizeCost:
    """Opens the graph and samples with one thread. Call it in a fresh process."""
    torch.set_num_threads(1)
    graph = open_graph(url, kind=StoredGraph)
    router = local_router(graph)
    time_sampler(router, options, 1, Effort(effort.batches, effort.warmup, 1))
    before = own_bytes("RssAnon")  # excludes the mapped graph, whose pages the system may drop and share
    rate = time_sampler(router, options, 1, effort)
    grown = own_bytes("RssAnon") - before
    limit = time_reads(graph, batch_roots(graph, options, effort.batches), options.fanouts, 1, effort.rounds)
    return SizeCost(rate, limit, before, grown)


class _Reads(NamedTuple):
    """The reads of one hop of a batch: the rows of `indptr`, the number of entries that are read for each row, and the offsets of these entries."""

    row: np.ndarray
    num_entries: np.ndarray
    offset: np.ndarray


# Number of edges in a block. For each block, the neighbors of all edges are read first, then the map entries of the neighbors.
_BLOCK = 4096
_AHEAD = 32


@compiled
def _only_read(indptr, indices, position_of_id, row, count, offset):
    """Does the reads of sampling, block by block, with prefetching. Draws nothing and writes only the block."""
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
    graph: StoredGraph, roots: Sequence[np.ndarray], fanouts: tuple[int, ...], threads: int, rounds: int
) -> float:
    """Edges per second of a loop that does only the reads of sampling (list bounds, entries, relabel map), in the same order."""
    partition = next(iter(graph.partitions()))
    recorded = [_record(partition, some, fanouts, batch) for batch, some in enumerate(roots)]
    num_edges = sum(len(reads.offset) for hops in recorded for reads in hops)
    position_of_id = np.zeros(partition.num_nodes, np.int32)

    def read(hops: list[_Reads]) -> int:
        return sum(_only_read(partition.indptr, partition.indices, position_of_id, *one) for one in hops)

    return num_edges / min(seconds for seconds, _ in rounds_of(read, recorded, recorded, threads, rounds))


def _record(partition: Partition, roots: np.ndarray, fanouts: tuple[int, ...], batch: int) -> list[_Reads]:
    relabeler, reads, first = Relabeler(roots), [], 0
    for hop, fanout in enumerate(fanouts):
        row = relabeler.node[first:].copy()
        first = relabeler.num_nodes
        start, degree = list_bounds(partition.indptr, row, len(partition.indices))
        keys = hash_ids(stream_key(0, Purpose.NEIGHBORS, 0, batch, hop), entries(partition.original_id, row))
        count, position = draw_uniform(start, degree, keys, fanout)
        relabeler.add(entries(partition.indices, position))
        reads.append(_Reads(row, count, position - np.repeat(start, count)))
    return reads


def time_gather(ours: np.ndarray, in_memory: torch.Tensor, node: np.ndarray, rounds: int) -> dict[str, float]:
    """GB/s of gathering feature rows. Graphmill gathers from the mapped file, into an array of a pool and into a fresh array; torch runs index_select(out=)."""
    shape = (len(node), ours.shape[1])
    pool, out_torch, index = ArrayPool(), torch.empty(shape, dtype=in_memory.dtype), torch.from_numpy(node)
    work: dict[str, Callable[[], Any]] = {
        "pooled": lambda: take_rows(ours, node, pool.empty(shape, ours.dtype)),
        "fresh": lambda: np.take(ours, node, axis=0),
        "torch_out": lambda: torch.index_select(in_memory, 0, index, out=out_torch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    # All three run in turn in each round, so that a slow moment affects all of them. The first round warms up.
    for _ in range(max(rounds, 10) + 1):
        for name, gather in work.items():
            start = time.perf_counter()
            gather()
            seconds[name].append(time.perf_counter() - start)
    return {name: out_torch.nbytes / min(some[1:]) / 1e9 for name, some in seconds.items()}


def time_subgraphs(
    router: Router, options: Node2SubgraphOptions, threads: int, effort: Effort
) -> tuple[float, float, float]:
    """(subgraphs per second by wall clock, nodes of a subgraph, edges of a subgraph) over batches of epoch 0."""
    sampler = Node2SubgraphSampler(router, options)

    def sizes(number: int) -> tuple[int, int, int]:
        batch = sampler.sample(0, number)
        return batch.num_roots, batch.num_nodes, batch.num_edges

    rounds = rounds_of(sizes, *_numbers(effort, threads, sampler.num_batches), threads, effort.rounds)
    roots, nodes, edges = (sum(column) for column in zip(*rounds[0][1], strict=True))
    return roots / min(seconds for seconds, _ in rounds), nodes / roots, edges / roots


def batch_traffic(router: Router, traffic: Traffic, options: NeighborOptions) -> dict[str, int]:
    """Requests and bytes of one batch, in the columns of `graphmill.samplers.access.traffic.COLUMNS`. Requests that list the roots do not count."""
    sampler = NeighborSampler(router, options)
    sampler.sample(0, 0)
    before = traffic.by_partition()
    sampler.sample(0, 1 % sampler.num_batches)
    return dict(zip(COLUMNS, (traffic.by_partition() - before).sum(axis=0).tolist(), strict=True))
