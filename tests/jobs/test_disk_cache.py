"""Tests runs on a graph on an object store, with --servers.disk_cache_dir or --servers.range_reads. The losses equal those on the same graph on a local disk.

With a cache, a second run copies nothing.
"""

import uuid
from pathlib import Path

import pytest

from graphmill.jobs import predict, train_nodes
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.job_in_process import output_of, run_job
from tests.runs import curve

RUN = [
    *("--model.width", "8", "--model.num_layers", "1", "--fit.epochs", "2", "--workers", "1"),
    *("--workers.launcher", "process", "--workers.device", "cpu"),
]


@pytest.mark.long
def test_a_run_reads_a_store_by_a_cache_and_the_next_run_finds_it(tmp_path: Path):
    urls = {"local": str(tmp_path / "graph"), "store": f"memory://{uuid.uuid4().hex}/graph"}
    for url in urls.values():
        ingest(SyntheticGraph(SyntheticOptions(num_nodes=400)), url, IngestOptions(num_partitions=2))
    cache = ["--servers.disk_cache_dir", str(tmp_path / "cache")]
    said = {}
    for name, url, more in (
        ("local", urls["local"], []),
        *((name, urls["store"], cache) for name in ("first", "second")),
    ):
        printed = output_of(train_nodes.main, *RUN, "--data", url, *more, "--run.dir", name, cwd=tmp_path)
        said[name] = printed
    assert curve(tmp_path / "first") == curve(tmp_path / "local") == curve(tmp_path / "second")
    assert "copied there now" not in said["local"]
    assert "copied there now" in said["first"]
    assert " 0 bytes copied there now" not in said["first"]
    assert " 0 bytes copied there now" in said["second"]
    small = [*cache, "--servers.disk_cache_bytes", "1000", "--run.dir", "small"]
    cache[1] = small[1] = str(tmp_path / "other")
    left = ["--servers.range_reads", "yes", "--loader.cache_bytes", "1000000", "--run.dir", "left"]
    output_of(train_nodes.main, *RUN, "--data", urls["store"], *left, cwd=tmp_path)
    assert curve(tmp_path / "left") == curve(tmp_path / "local")
    # A graph on a local disk is mapped, even if the run read its graph in another way.
    output_of(predict.main, "left", "predicted", "--graph", urls["local"], cwd=tmp_path)
    refused = run_job(train_nodes.main, [*RUN, "--data", urls["store"], *cache, *left], tmp_path)
    assert "no beside disk_cache_dir" in refused.stderr
    refused = run_job(train_nodes.main, [*RUN, "--data", urls["local"], *left[:2], "--run.dir", "mapped"], tmp_path)
    assert refused.returncode != 0
    assert "leave out --servers.range_reads" in refused.stderr
    refused = run_job(train_nodes.main, [*RUN, "--data", urls["store"], *small], tmp_path)
    assert refused.returncode != 0
    assert "raise --servers.disk_cache_bytes" in refused.stderr
    assert "Traceback" not in refused.stderr
    relative = run_job(train_nodes.main, [*RUN, "--data", urls["store"], "--servers.disk_cache_dir", "here"], tmp_path)
    assert "an absolute path" in relative.stderr
