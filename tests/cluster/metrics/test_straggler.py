"""Tests that reports name the rank for which the others wait, and that reports on ranks and partitions stay small in a long run."""

import itertools
import json
import math
from pathlib import Path

import pytest

from graphmill.cluster.metrics.straggler import PeerWait, Straggler, StragglerWatch, find_slow_link, find_straggler
from graphmill.cluster.runs.records import is_recorded
from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.cluster.training.train_loop import RANK_SECONDS
from graphmill.jobs.records.run_record import read_run
from graphmill.jobs.reporting.run_report import run_page
from graphmill.samplers.access.traffic import COLUMNS

HOSTS = ["h0 (10.77.0.1)", "h1 (10.77.0.2)", "h2 (10.77.0.3)"]


def ranks(computing: list[float], waiting: list[float], **stages: list[float]) -> dict[str, list[float]]:
    """The seconds of each rank, for ranks that take their steps at the same time."""
    own = [a + b for a, b in zip(computing, waiting, strict=True)]
    train = max(own)
    return {
        "train_s": [train] * len(own),
        "wait_s": waiting,
        "peers_s": [train - each for each in own],
        "sample_s": [1.0] * len(own),
        "fetch_s": [1.0] * len(own),
        **stages,
    }


def test_the_rank_that_computes_slowly_is_found():
    assert find_straggler(ranks([5, 20, 5], [0, 0, 0])) == Straggler(1, "computing", 4.0, 0.75)


def test_a_rank_whose_batches_are_late_is_found_with_the_stage_that_delays_them():
    found = find_straggler(ranks([5, 5, 5], [0, 1, 15], fetch_s=[2, 2, 18]))
    assert found == Straggler(2, "fetching rows", 9.0, pytest.approx(0.725))
    found = find_straggler(ranks([5, 5, 5], [1, 1, 15], fetch_s=[16, 16, 18]))
    assert found == Straggler(2, "waiting for batches", 15.0, pytest.approx(0.7))


@pytest.mark.parametrize(
    "seconds",
    [
        ranks([5, 5, 5], [1, 1, 1]),
        ranks([20, 24, 20], [0, 0, 0]),
        {**ranks([1, 1.9, 1], [0, 0, 0]), "train_s": [100.0] * 3, "peers_s": [99, 98.1, 99]},  # all wait for a link
    ],
)
def test_ranks_that_are_nearly_equal_or_wait_for_a_link_are_not_named(seconds):
    assert find_straggler(seconds) is None


def test_a_slow_link_is_told_with_the_rate_that_was_measured():
    seconds = ranks([1, 1, 1], [9, 9, 9], fetch_s=[9, 9, 9])
    assert find_slow_link(seconds, [1e6, 1e6, 1e6]) == (
        "all ranks wait 90% of the training time for what other hosts send, most of it for rows; 0.1 MB/s arrive at each rank: is a link slow?"
    )
    gradients = {**ranks([1, 1, 1], [0, 0, 0]), "train_s": [10.0] * 3, "peers_s": [9.0] * 3}
    assert "most of it for gradients" in (find_slow_link(gradients, [1e6, 1e6, 1e6]) or "")
    assert find_slow_link(ranks([1, 1, 1], [9, 9, 9], sample_s=[9, 9, 9]), [1, 1, 1]) is None
    assert find_slow_link(ranks([9, 9, 9], [1, 1, 1], fetch_s=[9, 9, 9]), [1, 1, 1]) is None
    assert find_slow_link(ranks([1, 40, 1], [0, 0, 0]), [1, 1, 1]) is None, "they wait for a rank"
    watch = StragglerWatch(["one host"] * 3)
    assert watch.update({name: [4 * s for s in each] for name, each in seconds.items()}, [1e6] * 3) is None


def test_a_change_is_told_once_and_then_has_to_last_longer_each_time():
    watch = StragglerWatch(HOSTS)
    even, slow, link = (ranks([20, each, 20], [0, 0, 0]) for each in (20, 80, 20))
    link = ranks([1, 1, 1], [20, 20, 20], fetch_s=[30, 30, 30])

    def said(seconds) -> str | None:
        return watch.update(seconds, [1e6] * 3)

    assert said(ranks([5, 40, 5], [0, 0, 0])) is not None
    watch = StragglerWatch(HOSTS)
    assert said(ranks([5, 5, 5], [0, 0, 0])) is None, "too short"
    assert said(even) is None
    assert said(slow) == (
        "rank 1 on h1 (10.77.0.2) is slow: computing takes it 4.0 times as long as the others; they wait for it 75% of the training time"
    )
    assert said(slow) is None
    assert [said(even) for _ in range(2)] == [None, "no longer slow: rank 1 on h1 (10.77.0.2)"]
    assert [bool(said(link)) for _ in range(5)] == [False, False, False, True, False]
    told = [said(slow if turn % 2 else even) for turn in range(10_000)]
    assert sum(what is not None for what in told) < 20, "what flaps floods"


def test_waiting_for_peers_is_counted_on_cpus():
    for measured in (True, False):
        wait = PeerWait(is_measured=measured)
        with wait:
            math.factorial(2000)
        assert (wait.seconds > 0) == measured


@pytest.mark.long
def test_the_first_epochs_are_told_each_and_later_ones_ever_more_rarely():
    told = [epoch for epoch in range(100_000) if is_recorded(epoch)]
    assert told[:32] == list(range(32))
    assert all(b - a <= max(1, (a + 1) / 16) for a, b in itertools.pairwise(told))
    assert len(told) < 170


@pytest.mark.long
def test_a_run_of_100000_epochs_on_1000_partitions_and_ranks_has_files_of_bounded_size(tmp_path: Path):
    """The bytes per epoch do not depend on the number of partitions and ranks. Other reports grow with the logarithm of the number of epochs."""
    num_epochs, many = 100_000, 1000
    run = RunDirectory.create(tmp_path / "run", {"fit": {"epochs": num_epochs}})
    run.note("begin")
    run.start(0)
    columns = {name: [10**9] * many for name in COLUMNS}
    seconds = {name: [1234.567] * many for name in RANK_SECONDS}
    hosts = [f"worker-{rank:04d} (10.77.100.{rank % 250})" for rank in range(many)]
    last = -1
    for epoch in filter(is_recorded, range(num_epochs)):
        covered = {"epoch": epoch, "epochs": epoch - last}
        run.take({"kind": "traffic", "of": "epochs", **covered, **columns})
        run.take({"kind": "ranks", **covered, "hosts": hosts, **seconds})
        last = epoch
    record = {"train_loss": 1 / 3, "valid_accuracy": 2 / 3, **dict.fromkeys(RANK_SECONDS, 1 / 3)}
    (run.path / "metrics.jsonl").write_text(
        "".join(json.dumps({"epoch": epoch, **record}) + "\n" for epoch in range(num_epochs))
    )
    assert (run.path / "events.jsonl").stat().st_size < 64e6
    record_of_run = read_run(run.path)
    assert len(record_of_run.ranks) == many
    assert sum(event["epochs"] for event in record_of_run.told("traffic")) == last + 1
    page = run_page(record_of_run)
    assert len(page) < 2e6
    assert "The largest of the partitions" in page
    assert "The 200 slowest of 1000" in page
