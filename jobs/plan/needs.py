"""Which rows a host's workers need of other hosts, and how often: seen in a few batches that are drawn for it, for any number of workers.

Of a sample of the nodes it is counted how many batches of each position of a step hold them. From these counts follow the probabilities with which batches hold
nodes, for any order of roots; first batches choose the rows that a host's workers share (`graphmill.cluster.serving.shared_rows`), and others tell what is needed beside them.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmill.jobs.plan.cost_model import Traffic
from graphmill.samplers.vocabulary.rank_shares import own_positions

if TYPE_CHECKING:
    from graphmill.storage.graph import StoredGraph

_FIRST, _OTHERS = 16, 128  # batches of a position that choose shared rows, and others, at most
_MOST_PLACES, _SHUFFLED_PLACES = 16, 4  # positions of which batches are drawn
_MOST_NODES = 1 << 17  # of the sample
_GRID, _STEPS = 60, 200


@dataclass(frozen=True)
class Needs:
    """Of the batches of some positions of a step, which stand for those beside them, or for all where roots are shuffled."""

    hits: np.ndarray  # uint8 [2, places, nodes]: batches that hold a node of the sample, of the first and of others
    rounds: tuple[int, int]  # batches of each place, of the first and of others
    partition: np.ndarray  # int64 [nodes]: of each node, ascending
    scale: float  # nodes of the graph for one of the sample
    drawing: np.ndarray  # float64 [places, partitions, 3]: requests of a batch's draws, bytes sent, bytes received
    by_groups: bool
    num_partitions: int
    index_bytes: float  # of a node's id, in a request
    column_bytes: float  # of a row as it travels, beside its features
    kept_bytes: float  # of a row that is kept, beside its features

    @property
    def nodes(self) -> float:
        """Of a batch."""
        return float(self.hits.sum()) * self.scale / (sum(self.rounds) * self.hits.shape[1])

    def places(self, positions: range, micro_batches: int) -> list[int]:
        """Which stand for these positions of a step."""
        count = self.hits.shape[1]
        return sorted({at * count // micro_batches if self.by_groups else at % count for at in positions})


@dataclass(frozen=True)
class HostNeeds:
    """What the batches of a host's workers need of other hosts."""

    hits: list[np.ndarray]  # of each worker uint16 [2, nodes], of nodes on other hosts
    trials: list[tuple[int, int]]  # of each worker, the batches in `hits`
    scale: float
    drawing: Traffic  # of a batch, between hosts, each batch drawn for itself
    owners: int  # partitions on other hosts

    @property
    def num_nodes(self) -> float:
        """On other hosts."""
        return self.hits[0].shape[1] * self.scale

    @property
    def rows(self) -> list[float]:
        """Of each worker, that a batch needs."""
        return [float(h.sum()) * self.scale / sum(t) for h, t in zip(self.hits, self.trials, strict=True)]

    def shared(self, rows: float) -> np.ndarray:
        """bool [nodes]: those whose rows the workers share, so many, that most of their first batches need."""
        chosen, most = np.zeros(self.hits[0].shape[1], bool), int(rows / self.scale)
        first = sum(hits[0].astype(np.int64) for hits in self.hits)
        needed = np.flatnonzero(first)
        chosen[needed[np.argsort(-first[needed], kind="stable")[:most]]] = True
        return chosen

    def classes(self, shared: np.ndarray | None) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each worker (float64: nodes that are not shared, float64: the probability that a batch holds each of them)."""
        found = []
        for (first, others), trials in zip(self.hits, self.trials, strict=True):
            times, of = (first + others, sum(trials)) if shared is None else (others[~shared], trials[1])
            share, weight = probabilities(np.bincount(times, minlength=of + 1), of)
            found.append((weight * len(times) * self.scale, share))
        return found


def probabilities(histogram: np.ndarray, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """(probabilities, weight of each): with which things were there in so many of all trials, `histogram[k]` of them in k.

    Counts are taken as a mixture of binomials over a grid of probabilities, whose weights grow likelier step by step: expectation and maximisation (Laird, Journal of the
    American Statistical Association 73(364), 1978).
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


def host_needs(needs: Needs, hosts: int, workers: int, micro_batches: int, host: int) -> HostNeeds:
    """Of one host, where partitions, workers and positions are spread over the hosts evenly and in order."""
    is_far = np.arange(needs.num_partitions) * hosts // needs.num_partitions != host
    far = is_far[needs.partition]
    own = [
        needs.places(own_positions(worker, workers, micro_batches), micro_batches)
        for worker in range(workers)
        if worker * hosts // workers == host
    ]
    drawing = np.mean([needs.drawing[places].mean(axis=0) for places in own], axis=0)[is_far].sum(axis=0)
    rounds = round(float(needs.drawing[:, :, 0].max()))  # a request to each owner in each
    return HostNeeds(
        [needs.hits[:, places].sum(axis=1, dtype=np.uint16)[:, far] for places in own],
        [(needs.rounds[0] * len(places), needs.rounds[1] * len(places)) for places in own],
        needs.scale,
        Traffic(float(drawing[1]), float(drawing[2]), float(drawing[0]), rounds if drawing[0] else 0),
        int(is_far.sum()),
    )


def busiest_host(needs: Needs, hosts: int, workers: int, micro_batches: int) -> HostNeeds:
    """Of the host whose workers need most rows of others, among those with a worker."""
    numbers = sorted({worker * hosts // workers for worker in range(workers)})
    return max(
        (host_needs(needs, hosts, workers, micro_batches, host) for host in numbers), key=lambda one: sum(one.rows)
    )


def seen_needs(graph: "StoredGraph", options: Any, positions: int, longest_s: float) -> Needs:
    """Of batches that are drawn here, without their rows, for about so long."""
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
    began, rounds = time.perf_counter(), [0, 0]
    # The first batches of an epoch, then those of the next epochs: of either one at least, then both by turns.
    for number in range(_OTHERS):
        if number and time.perf_counter() - began > longest_s:
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
