"""Tests that a run decides once, before anything starts, how many micro-batches a step has and how many workers compute them."""

import json

import pytest

from graphmill.cluster.ray.placement import Resources
from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import config_tree, read_config, read_saved, saved_tree
from graphmill.jobs.config.registry import PLACEHOLDERS
from graphmill.jobs.resolve.resolve import Facts, ResolvedRun, read_resolved, resolve

CPUS, GPUS, THIS_MACHINE = Resources(8, 0), Resources(8, 4), Resources(8, 0, free_bytes=1 << 33)


def resolved(there: Resources | None = CPUS, **options: object) -> ResolvedRun:
    flags = {name.replace("__", "."): value for name, value in options.items()}
    config = read_config(config_tree("nodes")).changed(*flags.items())
    return resolve(config, Facts(PLACEHOLDERS["nodes"], {}, there, data_bytes=1000))


def deal(run: ResolvedRun) -> tuple[int, int]:
    return run.micro_batches, run.workers.most


def test_without_a_word_there_are_as_many_as_the_first_workers():
    assert deal(resolved()) == (2, 2)
    assert deal(resolved(workers__num_workers=4)) == (4, 4)
    assert deal(resolved(workers__num_workers=1)) == (1, 1)
    assert deal(resolved(GPUS)) == (4, 4)
    assert deal(resolved(workers__num_workers=4, workers__min_workers=2)) == (4, 4)
    run = resolved(THIS_MACHINE)
    assert run.workers.launcher == "process"
    assert deal(run) == (1, 1)
    assert deal(resolved(THIS_MACHINE, fit__micro_batches=2)) == (2, 1)


def test_more_micro_batches_than_workers_are_dealt_to_them():
    assert deal(resolved(fit__micro_batches=4, workers__num_workers=3)) == (4, 3)
    run = resolved(fit__micro_batches=1)
    assert deal(run) == (1, 1)
    assert run.reasons[-1] == "1 micro-batch a step (--fit.micro_batches): 1 worker"
    assert deal(resolved(GPUS, fit__micro_batches=3)) == (3, 3)


def test_more_workers_than_micro_batches_are_refused():
    with pytest.raises(ConfigError, match=r"one for each of the 2 micro-batches of a step, got 3; lower --workers"):
        resolved(fit__micro_batches=2, workers__num_workers=3)
    with pytest.raises(ConfigError, match=r"2 micro-batches of a step"):
        resolved(fit__micro_batches=2, workers__num_workers=4, workers__min_workers=3)


def test_a_run_keeps_the_number_and_a_full_graph_has_none():
    run = resolved(workers__num_workers=3)
    assert run.identity["micro_batches"] == 3
    again = read_resolved(json.loads(json.dumps(run.tree())))
    assert again.config.fit.micro_batches == 3
    assert again == run
    whole = resolved(run__parallel="graph", workers__num_workers=3)
    assert "micro_batches" not in whole.identity
    assert whole.config.fit.micro_batches is None
    assert whole.micro_batches == 3


@pytest.mark.parametrize(("parallel", "expected"), [("data", 6), ("graph", None)])
def test_a_run_of_version_0_2_goes_on(tmp_path, parallel, expected):
    tree = resolved(workers__num_workers=3).tree()
    tree["fit"].pop("micro_batches")
    tree["fit"]["accumulate"] = 2
    tree["run"]["parallel"] = parallel
    (tmp_path / "config.json").write_text(json.dumps(tree))
    assert saved_tree(str(tmp_path), "")["fit"]["micro_batches"] == expected


@pytest.mark.parametrize("cache_bytes", [0, 5000])
def test_a_run_of_version_0_2_says_of_its_servers_what_is_now_the_loader_s(tmp_path, cache_bytes):
    tree = resolved(workers__num_workers=3).tree()
    tree["servers"] |= {"cache_bytes": cache_bytes, "feature_dtype": None}
    for name in ("cache_bytes", "plan_bytes"):
        tree["loader"].pop(name)
    (tmp_path / "config.json").write_text(json.dumps(tree))
    assert read_saved(str(tmp_path), "").loader.cache_bytes == cache_bytes
