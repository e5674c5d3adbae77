"""Tests the search of `--plan`: its settings cost no more than the current settings, fit in the free memory, and have the cost that the cost model gives."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmill.jobs.plan.cost_model import Link, Rates, Widths, Workload, draw_traffic, expected_batch, predict
from graphmill.jobs.plan.needs import Needs
from graphmill.jobs.plan.run_plan import size
from graphmill.jobs.plan.settings_search import Settings, Setup, flags, price, search_settings, settings_table

GB = 10**9
PAPERS = Workload("papers100M", 111.06e6, 1.616e9, 512)


def host_bytes(settings: Settings) -> int:
    return settings.workers * (GB + (settings.cache_bytes + settings.plan_bytes if settings.cache_bytes else 0)) // 8


@cache
def needs(roots: int = 1024, partitions: int = 8) -> Needs:
    """Needs for a sample of 20,000 nodes of papers100M. The probability that a batch holds a node follows from the node's degree."""
    shape, share = expected_batch(PAPERS.degrees, roots, (15, 10, 5))
    rng, number = np.random.default_rng(0), 20_000
    each = rng.permutation(np.repeat(share, number // len(share)))
    hits = np.stack([rng.binomial(rounds, each, (4, len(each))) for rounds in (16, 128)]).astype(np.uint8)
    draws = draw_traffic(shape, Widths(0), partitions)
    drawing = np.array([draws.requests, draws.sent, draws.received]) / partitions
    partition, scale = np.arange(len(each)) * partitions // len(each), PAPERS.num_nodes / len(each)
    return Needs(
        hits, (16, 128), partition, scale, np.tile(drawing, (4, partitions, 1)), False, partitions, 4, 6, 8 + 8 + 1
    )


def setup(roots: int = 1024, partitions: int = 8, **changes) -> Setup:
    """papers100M on 8 hosts. Each host has one worker, which trains on a batch in 100 ms."""
    known = Setup(
        needs=needs(roots, partitions),
        micro_batches=8,
        num_batches=1176,
        num_epochs=10**6,
        hosts=8,
        cores=16,
        most_workers=16,
        num_parameters=500_000,
        rates=replace(Rates(), train_step_s=0.1, train_node_s=0.0),
        loader_threads=4,
        row_bytes={"float32": 512},
        free_bytes=40 * GB,
        host_bytes=host_bytes,
    )
    return replace(known, **changes)


NOW = Settings(8, 0, 1 << 30, "float32")


def test_prices_are_those_of_the_cost_model():
    for share in (0.0, 0.2):
        rows = share * PAPERS.num_nodes
        settings = replace(NOW, cache_bytes=int(rows * (512 + 17)))
        found = price(setup(), settings, 10)
        traffic, cost = predict(PAPERS, 8, Link(10), setup().rates, share, None, 4)
        assert found.link_bytes == pytest.approx(traffic.received, rel=0.03)
        assert found.requests == pytest.approx(traffic.requests, rel=0.06)
        assert (found.step_s, found.bound) == (pytest.approx(cost.step_s, rel=0.03), cost.bound)
        _, alone = predict(PAPERS, 1, Link(10), setup().rates, 0.0, None, 4)
        assert found.efficiency == pytest.approx(alone.step_s / cost.step_s, rel=0.03)


def test_shared_rows_are_tried_where_a_host_has_several_workers():
    there = setup(micro_batches=32)
    room = int(0.1 * PAPERS.num_nodes * (512 + 17))
    alone = Settings(32, room, 1 << 30, "float32")
    sharing = replace(alone, cache_bytes=room // 2, shared_bytes=4 * room // 2)
    apart, together = (price(there, settings, 10) for settings in (alone, sharing))
    assert together.link_bytes < 0.9 * apart.link_bytes
    assert flags(sharing, alone, 32).split()[2:] == ["--loader.shared_bytes", str(4 * room // 2)]
    tried = {one.settings for one in search_settings(replace(there, free_bytes=10**15), alone, 10)}
    assert {settings.workers for settings in tried if settings.shared_bytes} == {16, 24, 32}
    # With one worker on each host, no other worker shares the rows.
    one_each = price(there, replace(sharing, workers=8), 10)
    assert one_each.link_bytes == price(there, replace(sharing, workers=8, shared_bytes=0), 10).link_bytes


def test_a_slow_link_asks_for_room_and_a_fast_one_for_nothing():
    best = search_settings(setup(), NOW, 10)
    now = next(one for one in best if one.settings == NOW)
    assert best[0].settings.cache_bytes > 0
    assert best[0].step_s < 0.5 * now.step_s
    assert best[0].efficiency > 0.7 > 0.35 > now.efficiency
    slow_training = setup(rates=replace(Rates(), train_step_s=60.0, train_node_s=0.0))
    assert search_settings(slow_training, NOW, 10)[0].settings == NOW


def test_rows_are_rounded_only_where_that_helps():
    rounded = {"float32": 512, "float16": 256, "int8": 132}
    assert search_settings(setup(row_bytes=rounded), NOW, 1)[0].settings.feature_dtype != "float32"
    slow_training = setup(rates=replace(Rates(), train_step_s=2.0, train_node_s=0.0), row_bytes=rounded)
    assert search_settings(slow_training, NOW, 10)[0].settings.feature_dtype == "float32"


def test_workers_of_a_step_are_no_more_than_its_batches():
    best = search_settings(setup(micro_batches=32), NOW, 100)
    assert {one.settings.workers for one in best} == {8, 16, 24, 32}
    assert best[0].settings.workers > 8
    told = flags(replace(best[0].settings, cache_bytes=7), NOW, 32)
    assert told.startswith(f"--workers {best[0].settings.workers} --fit.micro_batches 32 --loader.cache_bytes 7")
    assert {one.settings.workers for one in search_settings(setup(micro_batches=32, most_workers=2), NOW, 100)} == {
        8,
        16,
    }


@given(
    hosts=st.integers(2, 16),
    each=st.integers(1, 4),
    cache_gb=st.sampled_from([0, 1, 5, 60]),
    free_gb=st.sampled_from([0, 1, 3, 10, 100]),
    gigabits=st.sampled_from([1, 10, 100]),
    train_s=st.sampled_from([0.01, 0.1, 10.0]),
    cores=st.integers(1, 32),
    partitions=st.integers(1, 32),
    roots=st.sampled_from([10, 1024]),
)
@pytest.mark.long
def test_never_dearer_and_never_more_than_is_free(
    hosts, each, cache_gb, free_gb, gigabits, train_s, cores, partitions, roots
):
    there = setup(
        hosts=hosts,
        micro_batches=each * hosts,
        cores=cores,
        most_workers=cores,
        partitions=partitions,
        roots=roots,
        free_bytes=free_gb * GB,
        rates=replace(Rates(), train_step_s=train_s, train_node_s=0.0),
        row_bytes={"float32": 512, "float16": 256},
    )
    now = Settings(hosts, cache_gb * GB, 1 << 30, "float32")
    present, best = price(there, now, gigabits), search_settings(there, now, gigabits)
    assert all(one.host_bytes <= there.free_bytes for one in best)
    if present.host_bytes <= there.free_bytes:
        assert present in best
        assert all(one.step_s <= present.step_s for one in best)
    if best:
        assert best[0].step_s <= 1.01 * min(one.step_s for one in best)
    lines = settings_table(best, there, now, gigabits, size)
    assert 2 <= len(lines) <= 5
    assert [line[0] for line in lines[1:]].count("*") == 1
    assert ("MORE than is free" in "".join(lines)) == (present.host_bytes > there.free_bytes)
