"""Searches for the cheapest settings of a run on several hosts by the cost model (`graphmill.jobs.plan.cost_model`). No setting changes a batch.

The search varies the number of workers on a host; the bytes for rows kept by plan, for rows that the workers of a host share, and for batches drawn ahead; and
the type in which features are stored and sent. Only the type changes results, by rounding. Draws share requests if rows are kept by plan.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

import numpy as np

from graphmill.jobs.plan.cost_model import (
    DRAWN_BYTES,
    JOINED,
    BatchShape,
    Link,
    Rates,
    StepCost,
    Traffic,
    early_batches,
    planned_share,
    planned_traffic,
    row_traffic,
    step_cost,
)
from graphmill.jobs.plan.needs import HostNeeds, Needs, busiest_host
from graphmill.storage.format.dtypes import FeatureDtype

_SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)  # sizes of the room for kept rows, as shares of all rows on other hosts
_SHARED = (0.0, 0.5, 0.75)  # shares of a host's room for kept rows that its workers have in common
_ALIKE = 1.01  # among times within this ratio, the setting with the least memory wins


@dataclass(frozen=True)
class Settings:
    """One combination of settings in the search."""

    workers: int
    cache_bytes: int
    plan_bytes: int
    feature_dtype: FeatureDtype
    shared_bytes: int = 0


@dataclass(frozen=True)
class Setup:
    """The run and its hosts: equal for all settings."""

    needs: Needs
    micro_batches: int  # number in a step
    num_batches: int  # number in an epoch
    num_epochs: int
    hosts: int
    cores: int  # of a host
    most_workers: int  # largest number on a host
    num_parameters: int
    rates: Rates
    loader_threads: int
    row_bytes: Mapping[FeatureDtype, int]  # bytes of a row of features, for each type in which it could be stored
    free_bytes: int  # of a host
    host_bytes: Callable[[Settings], int]  # bytes that a host would need with these settings

    def on_a_host(self, settings: Settings) -> int:
        """Number of workers on the host with the most workers."""
        return -(-settings.workers // self.hosts)

    def batches_of_worker(self, settings: Settings) -> int:
        """Number of batches of a worker in an epoch."""
        return max(1, self.num_batches // self.micro_batches) * -(-self.micro_batches // settings.workers)

    @cached_property
    def host(self) -> Callable[[int], HostNeeds]:
        """Returns a function: number of workers -> needs of the busiest host."""
        return cache(lambda workers: busiest_host(self.needs, self.hosts, workers, self.micro_batches))

    def kept_row_bytes(self, settings: Settings) -> float:
        return self.row_bytes[settings.feature_dtype] + self.needs.kept_bytes

    def traffic(self, settings: Settings) -> Traffic:
        """Traffic of the busiest host with other hosts, for a mean batch. The mean includes the first batches, for which no rows are kept yet."""
        host, needs = self.host(settings.workers), self.needs
        row_bytes = needs.column_bytes + self.row_bytes[settings.feature_dtype]
        needed = sum(host.rows) / len(host.rows)
        rows = row_traffic(needed, needs.index_bytes, row_bytes, host.owners)
        if not settings.cache_bytes or not needed:
            return host.drawing + rows
        batches, fetched = self.batches_of_worker(settings), self.fetched_rows(settings)
        early = early_batches(self.room(settings), fetched)
        return planned_traffic(host.drawing, rows, fetched / needed, -(-batches // JOINED) / batches, early)

    def fetched_rows(self, settings: Settings) -> float:
        """Number of rows that a batch of the busiest host fetches, if rows are kept by plan."""
        workers, shared_bytes = settings.workers, settings.shared_bytes
        room, of_run = self.room(settings), self.batches_of_worker(settings) * self.num_epochs
        known = settings.plan_bytes / (DRAWN_BYTES * self.needs.nodes)
        shared, classes = self._classes((workers, shared_bytes / self.kept_row_bytes(settings)))
        by_plan = [
            float((count * share).sum()) * planned_share(count, share, room, known, of_run) for count, share in classes
        ]
        return (sum(by_plan) + shared / of_run) / len(classes)

    def room(self, settings: Settings) -> float:
        """Number of rows that a worker can keep."""
        return settings.cache_bytes / self.kept_row_bytes(settings)

    @cached_property
    def _classes(self) -> Callable[[tuple[int, float]], tuple[float, list[tuple[np.ndarray, np.ndarray]]]]:
        """Returns a function: (workers, rows to share) -> (number of shared rows, needs of each worker for the other rows)."""

        def find(key: tuple[int, float]) -> tuple[float, list[tuple[np.ndarray, np.ndarray]]]:
            host = self.host(key[0])
            if not key[1] or len(host.hits) == 1:
                return 0.0, host.classes(None)
            chosen = host.shared(key[1])
            return float(chosen.sum()) * host.scale, host.classes(chosen)

        return cache(find)


@dataclass(frozen=True)
class Priced:
    """Settings with the expected cost of a step on the host with the most workers."""

    settings: Settings
    link_bytes: float  # bytes received; about the same number is sent
    requests: float
    step_s: float
    efficiency: float  # ratio: speed / speed with the whole graph on every host
    host_bytes: int
    bound: str


def price(setup: Setup, settings: Settings, gigabits: float) -> Priced:
    """Expected cost of a step on hosts with links of `gigabits` Gb/s."""
    on_a_host = setup.on_a_host(settings)
    each = -(-setup.micro_batches // settings.workers)  # number of batches of a worker in a step
    traffic, nothing, batch = setup.traffic(settings), Traffic(0, 0, 0, 0), BatchShape((), (), setup.needs.nodes)

    def cost(remote: Traffic, workers: int, link: Link | None) -> StepCost:
        return step_cost(
            batch,
            remote,
            setup.num_parameters / each,  # gradients are sent once in a step, not in each batch
            workers,
            setup.rates,
            link,
            setup.cores / on_a_host,
            loader_threads=setup.loader_threads,
        )

    here = cost(traffic, settings.workers, Link(gigabits / on_a_host))  # the workers of a host share its link
    return Priced(
        settings,
        on_a_host * each * max(traffic.sent, traffic.received),
        on_a_host * each * traffic.requests,
        each * here.step_s,
        cost(nothing, 1, None).step_s / here.step_s,
        setup.host_bytes(settings),
        here.bound,
    )


def search_settings(setup: Setup, now: Settings, gigabits: float) -> list[Priced]:
    """Settings that fit the hosts' memory and are no slower than `now`, best first. Empty if no settings fit.

    Settings within one percent of the shortest time count as equally fast. Among these, settings with the stored type of features come first, and then settings
    with less memory.
    """
    present = price(setup, now, gigabits)
    priced = [price(setup, settings, gigabits) for settings in {now: None, **dict.fromkeys(_candidates(setup, now))}]
    fits = [candidate for candidate in priced if candidate.host_bytes <= setup.free_bytes]
    if present in fits:
        fits = [candidate for candidate in fits if candidate.step_s <= present.step_s]
    shortest = min((candidate.step_s for candidate in fits), default=0.0)

    def key(candidate: Priced) -> tuple[float, bool, int, bool, float]:
        settings = candidate.settings
        is_rounded, is_new = settings.feature_dtype != now.feature_dtype, settings != now
        return max(candidate.step_s, _ALIKE * shortest), is_rounded, candidate.host_bytes, is_new, candidate.link_bytes

    return sorted(fits, key=key)


def _candidates(setup: Setup, now: Settings) -> Iterator[Settings]:
    """Yields all settings of the search."""
    most = min(setup.most_workers, -(-setup.micro_batches // setup.hosts))
    workers = {now.workers}
    workers |= {min(setup.hosts * each, setup.micro_batches) for each in range(1, most + 1)}
    ahead = setup.num_batches / setup.micro_batches * setup.needs.nodes * DRAWN_BYTES
    plans = {now.plan_bytes, max(now.plan_bytes, int(1.05 * ahead))}
    for number, dtype in product(sorted(workers), setup.row_bytes):
        without = Settings(number, 0, now.plan_bytes, dtype)
        yield without
        nodes, on_a_host = setup.host(number).num_nodes, setup.on_a_host(without)
        budgets = {int(share * nodes * setup.kept_row_bytes(without)) for share in _SHARES}
        room = {(now.cache_bytes, now.shared_bytes)}
        room |= {
            (int((1 - part) * budget), int(part * budget * on_a_host))
            for budget, part in product(budgets, _SHARED)
            if on_a_host > 1 or not part
        }
        for (cache_bytes, shared_bytes), plan_bytes in product(sorted(room), sorted(plans)):
            if cache_bytes:
                yield Settings(number, cache_bytes, plan_bytes, dtype, shared_bytes)


def flags(settings: Settings, now: Settings, micro_batches: int) -> str:
    """The options to set in order to change `now` into `settings`."""
    words = []
    if settings.workers != now.workers:
        words.append(f"--workers {settings.workers} --fit.micro_batches {micro_batches}")
    if settings.cache_bytes != now.cache_bytes:
        words.append(f"--loader.cache_bytes {settings.cache_bytes}")
    if settings.shared_bytes != now.shared_bytes and settings.cache_bytes:
        words.append(f"--loader.shared_bytes {settings.shared_bytes}")
    if settings.plan_bytes != now.plan_bytes and settings.cache_bytes:
        words.append(f"--loader.plan_bytes {settings.plan_bytes}")
    if settings.feature_dtype != now.feature_dtype:
        words.append(f"the graph ingested with --feature-dtype {settings.feature_dtype}")
    return " ".join(words) or "as it is"


def settings_table(
    best: Sequence[Priced], setup: Setup, now: Settings, gigabits: float, size: Callable[[float], str]
) -> list[str]:
    """Lines for the best three settings and for `now`. A star marks the line of `now`."""
    present = price(setup, now, gigabits)
    rows = [present, *(candidate for candidate in best[:3] if candidate.settings != now)]
    rows.sort(key=lambda candidate: list(best).index(candidate) if candidate in best else len(best))
    lines = [f"at {gigabits:g} Gb/s, a host and step: bytes, requests, time, efficiency, memory; * as it is"]
    for candidate in rows:
        mark = "*" if candidate.settings == now else " "
        over = "" if candidate.host_bytes <= setup.free_bytes else " (MORE than is free)"
        lines.append(
            f"{mark} {size(candidate.link_bytes):>10} {candidate.requests:6,.0f} {1e3 * candidate.step_s:9,.0f} ms {candidate.efficiency:5.0%} {size(candidate.host_bytes):>9}"
            f"{over}  {candidate.bound}: {flags(candidate.settings, now, setup.micro_batches)}"
        )
    return lines
