"""The cheapest settings of a run on several hosts: a search by the cost model (`jobs.plan.cost_model`) over those that change no batch.

They are the workers on a host, the bytes for rows by plan and for batches drawn ahead, and the type that features are stored as, which is that of the wire;
only the last one changes numbers, by rounding. Draws share requests wherever rows are planned.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from jobs.plan.cost_model import (
    BatchShape,
    Degrees,
    Link,
    Rates,
    StepCost,
    Traffic,
    Widths,
    expected_batch,
    neighbor_traffic,
    planned_share,
    planned_traffic,
    remote_traffic,
    step_cost,
)
from storage.ingest_options import FeatureDtype

_SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)  # of other hosts' rows, that there is room for
_KEPT_COLUMNS = 8 + 8 + 1  # of a kept row, beside its features: permanent id, label, split
_ALIKE = 1.01  # times that differ by no more: less memory decides


@dataclass(frozen=True)
class Settings:
    """What is searched."""

    workers: int
    cache_bytes: int
    plan_bytes: int
    feature_dtype: FeatureDtype


@dataclass(frozen=True)
class Setup:
    """What all settings have in common."""

    degrees: Degrees
    roots: int  # of a batch
    fanouts: tuple[int, ...]
    micro_batches: int  # of a step
    num_batches: int  # of an epoch
    partitions: int
    hosts: int
    cores: int  # of a host
    most_workers: int  # on a host
    num_parameters: int
    rates: Rates
    loader_threads: int
    index_bytes: int
    row_bytes: Mapping[FeatureDtype, int]  # of a row of features, of the types that it might be stored as
    free_bytes: int  # of a host
    host_bytes: Callable[[Settings], int]  # that a host would need

    @cached_property
    def batch(self) -> BatchShape:
        return self._expected[0]

    @property
    def far_share(self) -> float:
        """Of all nodes, those on other hosts."""
        return 1 - 1 / self.hosts

    @cached_property
    def _expected(self) -> tuple[BatchShape, np.ndarray]:
        return expected_batch(self.degrees, self.roots, self.fanouts)

    def widths(self, settings: Settings) -> Widths:
        return Widths(self.row_bytes[settings.feature_dtype], self.index_bytes)

    def kept_rows(self, settings: Settings) -> float:
        """Rows that there is room for."""
        return settings.cache_bytes / (self.row_bytes[settings.feature_dtype] + _KEPT_COLUMNS)

    def fetched_share(self, settings: Settings) -> float:
        """Of a batch's rows on other hosts, those that travel."""
        if not settings.cache_bytes:
            return 1.0
        elsewhere = Degrees(self.degrees.degree, self.far_share * self.degrees.count)
        rows = self.kept_rows(settings)
        return planned_share(elsewhere, self._expected[1], rows, self.far_share * settings.plan_bytes)

    def traffic(self, settings: Settings) -> Traffic:
        """Of a batch, with other hosts."""
        widths, owners = self.widths(settings), self.partitions
        remote = remote_traffic(
            neighbor_traffic(self.batch, widths, owners), 1 / self.hosts, owners / self.hosts, owners
        )
        if not settings.cache_bytes:
            return remote
        return planned_traffic(remote, self.batch, widths, self.far_share, self.fetched_share(settings))


@dataclass(frozen=True)
class Priced:
    """Settings with what the model expects of a step, on the host with the most workers."""

    settings: Settings
    link_bytes: float  # received, and about as many sent
    requests: float
    step_s: float
    efficiency: float  # of the speed that there would be if every host had the whole graph
    host_bytes: int
    bound: str


def price(setup: Setup, settings: Settings, gigabits: float) -> Priced:
    """What a step takes where hosts have links of `gigabits`."""
    on_a_host = -(-settings.workers // setup.hosts)
    each = -(-setup.micro_batches // settings.workers)  # batches of a worker
    traffic, nothing = setup.traffic(settings), Traffic(0, 0, 0, 0)

    def cost(remote: Traffic, workers: int, link: Link | None) -> StepCost:
        return step_cost(
            setup.batch,
            remote,
            setup.num_parameters / each,  # gradients travel once a step
            workers,
            setup.rates,
            link,
            setup.cores / on_a_host,
            loader_threads=setup.loader_threads,
        )

    here = cost(traffic, settings.workers, Link(gigabits / on_a_host))  # workers share their host's link
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
    """Settings that fit the hosts' memory and take no longer than those of `now`, the best first.

    Of those within one percent of the shortest time the ones with the least memory; features are as they are stored where that is as good. Empty where
    nothing fits.
    """
    present = price(setup, now, gigabits)
    priced = [price(setup, settings, gigabits) for settings in {now: None, **dict.fromkeys(_candidates(setup, now))}]
    fits = [one for one in priced if one.host_bytes <= setup.free_bytes]
    if present in fits:
        fits = [one for one in fits if one.step_s <= present.step_s]
    shortest = min((one.step_s for one in fits), default=0.0)

    def key(one: Priced) -> tuple[float, bool, int, bool, float]:
        settings = one.settings
        is_rounded, is_new = settings.feature_dtype != now.feature_dtype, settings != now
        return max(one.step_s, _ALIKE * shortest), is_rounded, one.host_bytes, is_new, one.link_bytes

    return sorted(fits, key=key)


def _candidates(setup: Setup, now: Settings) -> Iterator[Settings]:
    """All settings that are tried."""
    most = min(setup.most_workers, -(-setup.micro_batches // setup.hosts))
    workers = {now.workers}
    workers |= {min(setup.hosts * each, setup.micro_batches) for each in range(1, most + 1)}
    ahead = setup.num_batches / setup.micro_batches * setup.batch.nodes * setup.far_share * 12
    plans = {now.plan_bytes, max(now.plan_bytes, int(1.05 * ahead))}
    nodes = setup.far_share * setup.degrees.num_nodes
    for number, dtype in product(sorted(workers), setup.row_bytes):
        yield Settings(number, 0, now.plan_bytes, dtype)
        row = setup.row_bytes[dtype] + _KEPT_COLUMNS
        budgets = {now.cache_bytes, *(int(share * nodes * row) for share in _SHARES)} - {0}
        for cache_bytes, plan_bytes in product(sorted(budgets), sorted(plans)):
            yield Settings(number, cache_bytes, plan_bytes, dtype)


def flags(settings: Settings, now: Settings, micro_batches: int) -> str:
    """What to say for these settings, beside what is said now."""
    words = []
    if settings.workers != now.workers:
        words.append(f"--workers {settings.workers} --fit.micro_batches {micro_batches}")
    if settings.cache_bytes != now.cache_bytes:
        words.append(f"--loader.cache_bytes {settings.cache_bytes}")
    if settings.plan_bytes != now.plan_bytes and settings.cache_bytes:
        words.append(f"--loader.plan_bytes {settings.plan_bytes}")
    if settings.feature_dtype != now.feature_dtype:
        words.append(f"the graph ingested with --feature-dtype {settings.feature_dtype}")
    return " ".join(words) or "as it is"


def settings_table(
    best: Sequence[Priced], setup: Setup, now: Settings, gigabits: float, size: Callable[[float], str]
) -> list[str]:
    """The best few as lines, and those of `now`, marked with a star."""
    present = price(setup, now, gigabits)
    rows = [present, *(one for one in best[:3] if one.settings != now)]
    rows.sort(key=lambda one: list(best).index(one) if one in best else len(best))
    lines = [f"at {gigabits:g} Gb/s, a host and step: bytes, requests, time, efficiency, memory; * as it is"]
    for one in rows:
        mark = "*" if one.settings == now else " "
        over = "" if one.host_bytes <= setup.free_bytes else " (MORE than is free)"
        lines.append(
            f"{mark} {size(one.link_bytes):>10} {one.requests:6,.0f} {1e3 * one.step_s:9,.0f} ms {one.efficiency:5.0%} {size(one.host_bytes):>9}"
            f"{over}  {one.bound}: {flags(one.settings, now, setup.micro_batches)}"
        )
    return lines
