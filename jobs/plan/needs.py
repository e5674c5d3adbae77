"""Estimates which rows of other hosts the workers of a host need, and how often. The estimate comes from a few drawn batches and holds for any number of
workers.

For a sample of the nodes, counts the batches that hold each node, separately for each position in a step. The counts give the probability that a batch holds
a node, for any order of roots. The first batches choose the rows that the workers of a host share (`graphmill.cluster.serving.shared_rows`). The other
batches show which further rows are needed.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmill.jobs.plan.cost_model import Traffic
from graphmill.samplers.vocabulary.rank_shares import own_positions

if TYPE_CHECKING:
    from graphmill.storage.graph import StoredGraph

_FIRST, _OTHERS = 16, 128  # maximum numbers for one position: batches that choose shared rows, other batches
# Maximum number of positions whose batches are drawn: for roots in groups, for shuffled roots.
_MOST_PLACES, _SHUFFLED_PLACES = 16, 4
_MOST_NODES = 1 << 17  # nodes of the sample
_GRID, _STEPS = 60, 200


@dataclass(frozen=True)
class Needs:
    """Counts over the drawn batches. Batches are drawn for a few positions in a step, the "places". A place stands for nearby positions or, with shuffled
    roots, for all positions."""

    hits: np.ndarray  # uint8 [2, places, nodes]: numbers of first batches and of other batches that hold a node
    rounds: tuple[int, int]  # number of batches drawn for each place: (first batches, other batches)
    partition: np.ndarray  # int64 [nodes], ascending: the partition of each node
    scale: float  # ratio: nodes of the graph / nodes of the sample
    drawing: np.ndarray  # float64 [places, partitions, 3]: requests of a batch's draws, bytes sent, received
    by_groups: bool
    num_partitions: int
    index_bytes: float  # bytes of a node's id in a request
    column_bytes: float  # bytes of a row in a reply, without features
    kept_bytes: float  # bytes of a kept row, without features

    @property
    def nodes(self) -> float:
        """Mean number of nodes in a batch."""
        return float(self.hits.sum()) * self.scale / (sum(self.rounds) * self.hits.shape[1])

    def places(self, positions: range, micro_batches: int) -> list[int]:
        """The places that stand for these positions in a step."""
        count = self.hits.shape[1]
        return sorted({at * count // micro_batches if self.by_groups else at % count for at in positions})


@dataclass(frozen=True)
class HostNeeds:
    """The rows of other hosts that the batches of a host's workers need."""

    hits: list[np.ndarray]  # for each worker: uint16 [2, nodes], counts for the nodes on other hosts
    trials: list[tuple[int, int]]  # for each worker: numbers of first and of other batches that `hits` counts
    scale: float
    drawing: Traffic  # traffic between hosts for a batch's draws, without sharing of requests
    owners: int  # number of other hosts with partitions

    @property
    def num_nodes(self) -> float:
        """Number of nodes on other hosts."""
        return self.hits[0].shape[1] * self.scale

    @property
    def rows(self) -> list[float]:
        """For each worker: mean number of rows that a batch needs."""
        return [float(h.sum()) * self.scale / sum(t) for h, t in zip(self.hits, self.trials, strict=True)]

    def shared(self, rows: float) -> np.ndarray:
        """bool [nodes]: True for the `rows` nodes that the workers' first batches need most often. The workers share the rows of these nodes."""
        chosen, most = np.zeros(self.hits[0].shape[1], bool), int(rows / self.scale)
        first = sum(hits[0].astype(np.int64) for hits in self.hits)
        needed = np.flatnonzero(first)
        chosen[needed[np.argsort(-first[needed], kind="stable")[:most]]] = True
        return chosen

    def classes(self, shared: np.ndarray | None) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each worker: (number of nodes that are not shared, probability that a batch holds such a node), both float64."""
        needs = []
        for (first, others), trials in zip(self.hits, self.trials, strict=True):
            times, num_trials = (first + others, sum(trials)) if shared is None else (others[~shared], trials[1])
            share, weight = probabilities(np.bincount(times, minlength=num_trials + 1), num_trials)
            needs.append((weight * len(times) * self.scale, share))
        return needs


def probabilities(histogram: np.ndarray, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """Fits a distribution of probabilities to counts: (probabilities, weight of each). `histogram[k]` events occurred in k of `trials` trials.

    The counts are a mixture of binomials over a grid of probabilities. Expectation maximisation fits the weights (Laird, Journal of the American Statistical
    Association 73(364), 1978).
    """
    from scipy.special import gammaln, xlog1py, xlogy

    grid, times = np.concatenate([[0.0], np.geomspace(0.02 / trials, 1, _GRID)]), np.arange(trials + 1)[:, None]
    often = gammaln(trials + 1) - gammaln(times + 1) - gammaln(trials - times + 1)
    chance = np.exp(often + xlogy(times, grid) + xlog1py(trials - times, -grid))
    occurs = histogram > 0
    weight, seen, chance = np.full(len(grid), 1 / len(grid)), histogram[occurs] / histogram.sum(), chance[occurs]
    for _ in range(_STEPS):
        weight = weight * ((seen / np.maximum(chance @ weight, 1e-300)) @ chance)
    return grid, weight


def requests_by_host(requests: np.ndarray, host_of: np.ndarray) -> list[float]:
    """The requests to each host. `requests`: requests to each partition; the requests of a round to a host's partitions are one message."""
    return [float(requests[host_of == host].max(initial=0)) for host in range(int(host_of.max()) + 1)]


def host_needs(needs: Needs, hosts: int, workers: int, micro_batches: int, host: int) -> HostNeeds:
    """Needs of one host. Partitions, workers and positions are spread over the hosts evenly and in order."""
    host_of = np.arange(needs.num_partitions) * hosts // needs.num_partitions
    is_far = host_of != host
    far = is_far[needs.partition]
    own = [
        needs.places(own_positions(worker, workers, micro_batches), micro_batches)
        for worker in range(workers)
        if worker * hosts // workers == host
    ]
    drawing = np.mean([needs.drawing[places].mean(axis=0) for places in own], axis=0)
    _, sent, received = drawing[is_far].sum(axis=0)
    requests = sum(of_host for other, of_host in enumerate(requests_by_host(drawing[:, 0], host_of)) if other != host)
    rounds = round(float(needs.drawing[:, :, 0].max()))  # in a round, a batch sends one request to each owner
    return HostNeeds(
        [needs.hits[:, places].sum(axis=1, dtype=np.uint16)[:, far] for places in own],
        [(needs.rounds[0] * len(places), needs.rounds[1] * len(places)) for places in own],
        needs.scale,
        Traffic(float(sent), float(received), requests, rounds if requests else 0),
        len(np.unique(host_of[is_far])),
    )


def busiest_host(needs: Needs, hosts: int, workers: int, micro_batches: int) -> HostNeeds:
    """Needs of the host whose workers need the most rows of other hosts."""
    numbers = sorted({worker * hosts // workers for worker in range(workers)})
    return max(
        (host_needs(needs, hosts, workers, micro_batches, host) for host in numbers),
        key=lambda needs_of_host: sum(needs_of_host.rows),
    )


def seen_needs(graph: "StoredGraph", options: Any, positions: int, longest_s: float) -> Needs:
    """Draws batches without their rows for about `longest_s` seconds of processor time and counts the nodes of the batches."""
    from graphmill.samplers.access.router import local_router
    from graphmill.samplers.access.traffic import COLUMNS, WatchedRemote
    from graphmill.samplers.access.traffic import Traffic as Counted
    from graphmill.samplers.methods.registry import build_sampler

    manifest = graph.manifest
    counted = Counted(manifest.num_partitions)
    router = local_router(graph, watch=lambda owner, index: WatchedRemote(owner, index, counted))
    sampler = build_sampler(options, router, positions)
    by_groups = options.root_order == "groups"
    places = min(positions, _MOST_PLACES if by_groups else _SHUFFLED_PLACES)
    at = [place * positions // places for place in range(places)]
    steps, stride = sampler.num_batches // positions, -(-manifest.num_nodes // _MOST_NODES)
    sample = np.arange(0, manifest.num_nodes, stride)
    hits = np.zeros((2, places, len(sample)), np.uint8)
    columns = [COLUMNS.index(name) for name in ("remote_requests", "sent_bytes", "received_bytes")]
    drawing = np.zeros((places, manifest.num_partitions, 3))
    began, rounds = time.process_time(), [0, 0]
    # Half 0: the first batches of an epoch; half 1: batches of later epochs. Draws at least one of each half, then from both in turn.
    for number in range(_OTHERS):
        if number and time.process_time() - began > longest_s:
            break
        for half in (0, 1) if number < min(_FIRST, steps) else (1,):
            epoch, step = divmod(half * steps + number, steps)
            for place in range(places):
                before = counted.by_partition()
                (drawn,) = sampler.draw(epoch, [step * positions + at[place]])
                drawing[place] += (counted.by_partition() - before)[:, columns]
                hits[half, place, drawn.node[drawn.node % stride == 0] // stride] += 1
            rounds[half] += 1
    before = counted.by_partition()
    router.fetch(drawn.node, **vars(drawn.columns))
    sent, received = (counted.by_partition() - before).sum(axis=0)[columns[1:]] / len(drawn.node)
    one = router.empty_rows(1, **vars(drawn.columns), stored=True)
    kept = sum(column.nbytes for column in vars(one).values() if column is not None)
    feature = 0 if one.feature is None else one.feature.nbytes
    return Needs(
        hits=hits,
        rounds=(rounds[0], rounds[1]),
        partition=np.searchsorted(np.asarray(manifest.partition_offsets), sample, side="right") - 1,
        scale=manifest.num_nodes / len(sample),
        drawing=drawing / sum(rounds),
        by_groups=by_groups,
        num_partitions=manifest.num_partitions,
        index_bytes=float(sent),
        column_bytes=float(received) - feature,
        kept_bytes=kept - feature,
    )
