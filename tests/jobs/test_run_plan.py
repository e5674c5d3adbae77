"""Tests `--plan`: its counts equal the run's counts, it starts and writes nothing, and it reports the errors that would end the run."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from graphmill.cluster.ray.placement import Resources
from graphmill.core.summaries import size
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.machine.memory_check import growth_bytes
from graphmill.jobs.plan.run_plan import duration
from graphmill.storage.format.encoding_names import EncodingOptions
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.runs import node_run

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    url = tmp_path_factory.mktemp("graph") / "graph"
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=500)), str(url), IngestOptions(num_partitions=2))
    return url


@pytest.fixture(scope="module")
def molecules(tmp_path_factory) -> Path:
    pytest.importorskip("rdkit")
    from graphmill.cluster.ingestion.molecules import ingest_molecules
    from graphmill.storage.molecules.enumerated_molecules import EnumeratedMolecules

    url = tmp_path_factory.mktemp("molecules") / "set"
    ingest_molecules(EnumeratedMolecules(120), str(url))
    return url


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Runs a job's --plan in an empty folder and returns its lines by name. Checks that Ray is not started and nothing is written."""
    import ray

    def start(*args, **options):
        pytest.fail("Ray was started")

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.chdir(tmp_path)

    def call(job: str, *arguments: object, beside: Path | None = None) -> dict[str, str]:
        monkeypatch.setattr(sys, "argv", [f"jobs/{job}.py", *map(str, arguments), "--plan"])
        before = {} if beside is None else listing(beside)
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            run(importlib.import_module(f"graphmill.jobs.{job}").main)
        said = capsys.readouterr()
        assert said.err == ""
        assert not list(tmp_path.iterdir())
        assert beside is None or listing(beside) == before
        _, head, lines = said.out.partition("nothing is started or written\n")
        assert head
        found: dict[str, str] = {}
        for line in lines.splitlines():
            name, text = line.strip().split("  ", 1)
            found[name] = f"{found[name]} | {text}" if name in found else text
        assert end.value.code == (1 if found.get("refused", "nothing") != "nothing" else 0)
        return found

    return call


SMALL = ("--model.width", "16")


def test_a_node_run_is_counted_and_measured(plan, graph):
    told = plan(
        "products_geco", "--data", graph, *SMALL, "--sampler.num_chunks", "5", "--fit.epochs", "3", beside=graph.parent
    )
    manifest = open_graph(str(graph)).manifest
    assert f"500 nodes, {manifest.num_edges:,} edges, 100 features, 47 classes, 2 partitions" in told["graph"]
    assert told["splits"] == "train 40, valid 10, test 450 labelled nodes"
    # Two workers share five chunks. Each worker has three steps, so there are six batches, and the last two batches share a chunk.
    assert (
        told["steps"]
        == "6 batches an epoch in 3 optimizer steps of 2 micro-batches, over 2 workers; 9 steps in 3 epochs"
    )
    assert "mean of 2 drawn" in told["batch"]
    assert re.search(r"about [\d.,]+ [MG]iB a worker \(estimate: process .*, activations", told["memory"])
    assert "estimate for this machine's" in told["time"]
    assert re.match(r"runs/products_geco-\d+-\d+, new", told["run"])
    assert "every 10 epochs" in told["checkpoints"]
    assert told["refused"] == "nothing"


def test_a_run_on_a_cluster_is_planned_by_its_hosts(plan, graph, monkeypatch):
    flags = ("--data", graph, *SMALL, "--sampler", "neighbor", "--sampler.fanouts", "4", "3", "3", "--workers")
    here = plan("products_geco", *flags, "2", beside=graph.parent)
    assert "traffic" not in here
    monkeypatch.setattr("graphmill.jobs.plan.run_plan._cluster", lambda config: Resources(8, 0, hosts=4))
    told = plan("products_geco", *flags, "4", beside=graph.parent)
    asked = re.match(r"a batch asks (\d+) times for .*; with .* over 4 hosts, (\d+) times", told["traffic"])
    assert asked is not None, told["traffic"]
    # A batch sends requests for three hops and for the rows, to two partitions each: 8 requests.
    assert int(asked[1]) == 8
    assert int(asked[2]) == 6
    whole, far = mebibytes(told["traffic"], "times for"), mebibytes(told["traffic"], "times and")
    assert far == pytest.approx(0.75 * whole, rel=0.1)
    assert "at 1 Gb/s" in told["traffic"]
    assert "1 worker, 1 partition server" in told["memory"]
    assert "2 cores on each of 4 hosts" in told["time"]
    assert "8 CPUs and 0 GPUs on 4 hosts" in told["ray"]
    assert "rows by plan" not in told
    # A row has 417 bytes. A host without a partition therefore has room for 75 of its 500 remote rows.
    told = plan("products_geco", *flags, "4", "--loader.cache_bytes", str(75 * 417), beside=graph.parent)
    kept = re.match(
        r"room for 15% of the rows on other hosts: of a batch's .* about (\d+)% travel", told["rows by plan"]
    )
    assert kept is not None, told["rows by plan"]
    assert 20 < int(kept[1]) < 90


def test_the_cheapest_settings_of_a_cluster_are_the_flags_that_give_them(plan, graph, monkeypatch):
    """The plan's first line names the flags of the cheapest settings. A plan with these flags shows the same settings as the current ones, with the same bytes
    and requests."""
    monkeypatch.setattr("graphmill.jobs.plan.run_plan._cluster", lambda config: Resources(8, 0, hosts=4))
    flags = ("--data", graph, *SMALL, "--sampler", "neighbor", "--sampler.fanouts", "4", "3", "3", "--workers", "4")
    first = plan("products_geco", *flags, beside=graph.parent)["settings"].split(" | ")
    assert [line for line in first if line.startswith("at")] == [
        f"at {speed} Gb/s, a host and step: bytes, requests, time, efficiency, memory; * as it is" for speed in (1, 10)
    ]
    assert sum(line.startswith("*") for line in first) == 2
    kept = next(line for line in first if "--loader.cache_bytes" in line and "ingested" not in line)
    told, _, more = kept.partition(": ")
    again = plan("products_geco", *flags, *more.split(), beside=graph.parent)["settings"].split(" | ")
    now = next(line for line in again if line.startswith("*"))
    assert now.endswith("as it is")
    assert now.split()[1:4] == told.split()[:3]


def mebibytes(text: str, what: str) -> float:
    found = re.search(rf"{what} ([\d.,]+) (GiB|MiB|KiB)", text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * {"GiB": 1024, "MiB": 1, "KiB": 1 / 1024}[found[2]]


@pytest.fixture(scope="module")
def wide_graph(tmp_path_factory) -> Path:
    """A graph many times larger than a batch of a few roots."""
    url = tmp_path_factory.mktemp("wide") / "graph"
    source = SyntheticGraph(SyntheticOptions(num_nodes=12_000))
    ingest(source, str(url), IngestOptions(num_partitions=2, partitioner="range"))
    return url


def test_scoring_is_in_the_plans_memory_and_time(plan, wide_graph):
    flags = (
        "--sampler",
        "neighbor",
        "--sampler.fanouts",
        "2",
        "2",
        "2",
        "--sampler.batch_size",
        "16",
        "--fit.epochs",
        "5",
        "--fit.eval_every",
        "2",
        "--workers",  # one worker, because several workers would divide the full graph
        "1",
    )
    told = plan("products_geco", "--data", wide_graph, "--model.width", "32", *flags)
    whole = mebibytes(told["memory"], "scoring")
    assert whole > 12_000 * (100 + 32) * 4 / 2**20  # features and states of one layer for all nodes at once
    assert whole > mebibytes(told["memory"], "activations")  # activations of a batch of 16 roots
    assert re.search(r"a validation about .* \(1 tried\), 3 of them and the final scores about", told["time"])
    assert "and scoring come on top" not in told["time"]
    # An evaluation in chunks takes less memory, and so does a sampled evaluation.
    chunks = plan("products_geco", "--data", wide_graph, "--model.width", "32", *flags, "--evaluation.chunks", "8")
    assert mebibytes(chunks["memory"], "scoring") < whole / 2
    sampled = plan("products_geco", "--data", wide_graph, "--model.width", "32", *flags, "--evaluation", "sampled")
    assert mebibytes(sampled["memory"], "scoring") < whole / 2


@pytest.mark.long
def test_a_whole_graph_too_large_to_try_is_scaled_from_parts_of_it(plan, wide_graph, monkeypatch):
    from graphmill.jobs.plan import tries
    from graphmill.jobs.subjects import node_plan

    flags = ("--data", wide_graph, "--model.width", "32", "--sampler.num_chunks", "1", "--workers", "1")
    whole = plan("products_geco", *flags)
    assert "scaled" not in whole["time"]
    monkeypatch.setattr(tries, "_TRAIN_S", 0.1)
    monkeypatch.setattr(tries, "_SCORE_S", 0.05)
    monkeypatch.setattr(node_plan, "_CHUNK_NODES", 3000)
    told = plan("products_geco", *flags)
    assert len(re.findall(r"scaled from [\d,]+ nodes", told["time"])) == 2
    for name in ("activations", "scoring"):
        there, here = (mebibytes(one["memory"], name) for one in (whole, told))
        assert there / 2 < here < there * 2, name
    # The sizes of the batch are those of the whole batch, although it was not computed.
    assert told["batch"].split(" (mean")[0] == whole["batch"].split(" (mean")[0]


def test_parts_of_a_batch_say_what_the_whole_costs():
    from graphmill.jobs.plan.tries import scaled

    assert scaled([100], [2.0], 400) == 8.0
    assert scaled([100, 200], [1.0, 2.0], 800) == pytest.approx(8.0)
    assert scaled([100, 200], [1.5, 2.0], 800) == pytest.approx(5.0)  # a constant part does not grow
    assert scaled([100, 200], [1.0, 4.0], 800) == pytest.approx(64.0)  # all pairs of nodes
    assert scaled([100, 200], [1.0, 16.0], 800) == pytest.approx(256.0)  # at most the second power
    assert scaled([100, 200], [1.0, 2.05], 800) == pytest.approx(8.35)  # noise does not become a power
    assert scaled([100, 200], [0, 2], 800) == pytest.approx(8.0)  # memory that did not grow tells no power
    assert scaled([100, 100], [2.0, 1.0], 200) == pytest.approx(2.0)  # the roots of both parts reach the same nodes


@pytest.mark.parametrize("is_typed", [False, True])
def test_a_part_has_the_ratio_of_edges_to_nodes_of_the_whole(tmp_path, is_typed):
    from graphmill.cluster.data.training_data import OpenNodes
    from graphmill.jobs.plan.batch_parts import BatchSize, can_cut, part_of_size
    from graphmill.samplers.access.typed_router import whole_router
    from graphmill.samplers.vocabulary.options import NeighborOptions, RandomPartitionOptions, TypedNeighborOptions
    from graphmill.storage.graph import PLAIN_OR_TYPED
    from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag

    source = synthetic_mag(SyntheticMagOptions(scale=0.0005)) if is_typed else SyntheticGraph(SyntheticOptions(600))
    ingest(source, str(tmp_path / "graph"), IngestOptions(num_partitions=2))
    data = OpenNodes(whole_router(open_graph(str(tmp_path / "graph"), kind=PLAIN_OR_TYPED)))
    batch = data.collate(data.sampler(RandomPartitionOptions(1), 1).sample(0, 0))
    assert can_cut(batch)
    size = BatchSize.of(batch)
    part = part_of_size(batch, batch.num_nodes // 4, size)
    assert part.num_nodes == pytest.approx(batch.num_nodes / 4, rel=0.02)
    assert part.num_edges == pytest.approx(batch.num_edges / 4, rel=0.02)
    assert part.num_roots == pytest.approx(batch.num_roots / 4, rel=0.1, abs=1)
    lists = part.edges.values() if is_typed else [part]
    for relation, edges in zip(part.edges if is_typed else [None], lists, strict=True):
        sources = len(part.nodes[relation.source]) if is_typed else part.num_nodes
        targets = len(part.nodes[relation.target]) if is_typed else part.num_nodes
        assert len(edges.indptr) == targets + 1
        assert edges.indptr[-1] == len(edges.indices)
        assert (edges.indices < sources).all()
    neighbors = TypedNeighborOptions((3, 3)) if is_typed else NeighborOptions((3, 3))
    assert not can_cut(data.collate(data.sampler(neighbors, 1).sample(0, 0)))  # its nodes lie in hops


def test_a_run_is_held_to_the_promise_of_its_plan(plan, graph, tmp_path_factory):
    """The plan prints an option and a cost. With the option, the run prints the promised figures beside its own, and keeps both in its summary."""
    from graphmill.jobs import train_nodes
    from tests.job_in_process import output_of

    flags = [
        "--data",
        graph,
        *SMALL,
        "--fit.epochs",
        "2",
        "--workers.launcher",
        "process",
        "--run.price_per_hour",
        "7200",
    ]
    told = plan("train_nodes", *flags)
    option = re.match(r"(--run.promise ([\d.e+-]+) ([\d.e+-]+) ([\d.e+-]+)): ", told["promise"])
    assert option is not None, told["promise"]
    assert float(told["cost"].split()[1].rstrip(":")) == pytest.approx(2 * float(option[4]), rel=0.02, abs=0.01)
    folder = tmp_path_factory.mktemp("held")
    said = output_of(train_nodes.main, *flags, *option[1].split(), "--run.dir", "run", cwd=folder)
    assert re.search(r"promised   [\d,]+ MiB a worker, [\d.e-]+ s of processor time a batch, .* \(--plan\)", said)
    assert re.search(r"taken      [\d,]+ MiB a worker \([+-]\d+%\), .* s of processor time a batch \([+-]\d+%\)", said)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert [pair[0] for pair in summary["promise"].values()] == pytest.approx(
        [float(option[each]) for each in (2, 3, 4)]
    )
    assert all(taken > 0 for _, taken in summary["promise"].values())
    assert summary["cost"] == pytest.approx(2 * summary["wall_s"])


def test_scoring_in_chunks_is_planned_as_an_estimate(plan, graph):
    told = plan("products_geco", "--data", graph, *SMALL, "--evaluation.chunks", "3")
    assert told["scoring"].startswith("estimates: each split is scored in 3 chunks, without the edges between them")
    assert "the last epoch is kept" in told["scoring"]
    told = plan(
        "products_geco", "--data", graph, *SMALL, "--evaluation.chunks", "3", "--evaluation.select_by", "estimate"
    )
    assert "the best estimate is kept" in told["scoring"]


def test_parameters_are_those_of_the_model(plan, graph):
    model = node_run(open_graph(str(graph)), "--model.width", 16, "--run.defaults", "recipe").build_model()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert f" {count:,} parameters" in plan("products_geco", "--data", graph, *SMALL)["model"]


def test_steps_with_accumulation_and_roots(plan, graph):
    flags = ("--sampler", "neighbor", "--sampler.batch_size", "8", "--fit.micro_batches", "3", "--fit.epochs", "1")
    told = plan("products_geco", "--data", graph, *SMALL, *flags)
    assert (
        told["steps"]
        == "6 batches an epoch in 2 optimizer steps of 3 micro-batches, over 2 workers; 2 steps in 1 epoch"
    )
    assert told["batch"].startswith("7 roots") or told["batch"].startswith("6 roots")


def test_the_embedded_graph_before_it_is_made(plan):
    told = plan("products_geco", *SMALL)
    assert "not there yet: the first run makes it, or graphmill ingest synthetic data/synthetic-20000" in told["graph"]
    assert told["splits"] == "train about 1,600, valid about 400, test about 18,000"
    assert told["steps"].startswith("4 batches an epoch in 2 optimizer steps of 2 micro-batches, over 2 workers")
    assert "once the graph is there" in told["batch"]
    assert "parameters" in told["model"]


def test_the_command_that_makes_the_graph_makes_the_one_that_is_found(monkeypatch, tmp_path):
    from graphmill.jobs.config.config import NodeDataOptions
    from graphmill.jobs.data.prepare_graph import find_graph, how_to_make

    monkeypatch.chdir(tmp_path)
    options = NodeDataOptions(nodes=300, graph_seed=3, partitions=3, partitioner="random")
    assert find_graph(options) is None
    command = how_to_make(options).split()
    monkeypatch.setattr(sys, "argv", command[1:])
    with pytest.raises(SystemExit) as end:
        run(importlib.import_module("graphmill.jobs.ingest").main)
    assert end.value.code == 0
    found = find_graph(options)
    assert found is not None
    assert found.manifest.num_partitions == 3


def test_an_ogb_set_that_is_not_there(plan):
    pytest.importorskip("ogb")
    told = plan("products_geco", "--data", "ogbn-products")
    assert "graphmill ingest ogbn-products data/ogbn-products-ldg2" in told["graph"]
    assert "model" not in told


@pytest.mark.parametrize("encoded", [False, True])
def test_an_encoding_is_not_computed(plan, tmp_path_factory, encoded):
    from graphmill.storage.encoding.encode import encode

    url = tmp_path_factory.mktemp("encoded") / "graph"
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=200)), str(url), IngestOptions(num_partitions=2))
    if encoded:
        encode(open_graph(str(url)), EncodingOptions("laplacian", 6))
    flags = ("--model.identifier_dim", "6", "--model.width", "8", "--model.num_heads", "2", "--sampler.num_chunks", "4")
    told = plan("train_nodes", "--model", "tokengt", "--data", url, *flags, beside=url.parent)
    assert ("stored with the graph" if encoded else "graphmill encode") in told["encoding"]
    assert "mean of" in told["batch"]


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("primphormer", ("--model.width", "16")),
        ("gat", ("--model.width", "16")),
        ("grit", ("--model.width", "16", "--model.num_heads", "2", "--sampler.batch_size", "16")),
        ("ppgt", ("--model.width", "16", "--model.num_heads", "2", "--sampler.batch_size", "16")),
    ],
)
@pytest.mark.long
def test_the_other_node_models(plan, graph, model, flags):
    told = plan("train_nodes", "--model", model, "--data", graph, *flags)
    assert {"graph", "splits", "model", "steps", "batch", "memory", "time", "run", "checkpoints"} <= set(told)


def test_the_whole_graph_as_one_batch(plan, graph):
    told = plan(
        "products_geco",
        "--data",
        graph,
        *SMALL,
        "--run.parallel",
        "graph",
        "--fit.epochs",
        "2",
        "--fit.eval_every",
        "1",
    )
    assert "about 250 nodes on each of 2 workers" in told["batch"]
    assert "sent by a worker in a step" in told["traffic"]
    assert "shard" in told["memory"]
    assert "2 of them and the final scores about" in told["time"]


def test_what_would_be_refused(plan, graph):
    told = plan("products_geco", "--data", graph, *SMALL, "--data.split_set", "2")
    assert "expected a split set below 1, got 2" in told["refused"]
    assert "batch" not in told


def test_a_graph_of_one_class_is_refused(plan, tmp_path_factory):
    url = str(tmp_path_factory.mktemp("one") / "graph")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=300, num_classes=1)), url, IngestOptions(num_partitions=1))
    told = plan("train_nodes", "--data", url)
    assert "expected labels of two classes or more, the graph has 1" in told["refused"]


def test_it_has_the_workers_that_the_run_would_have(plan, graph, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    told = plan("products_geco", "--data", graph, *SMALL)
    assert "1 worker" in told["steps"]
    told = plan("products_geco", "--data", graph, *SMALL, "--workers", "2")
    assert "1 worker" in told["steps"]
    told = plan("products_geco", "--data", graph, *SMALL, "--workers", "2", "--workers.device", "cpu")
    assert "2 workers" in told["steps"]


@pytest.mark.parametrize(("workers", "launcher", "steps"), [
    ((), "not started", "5 batches an epoch in 5 optimizer steps of 1 micro-batch, over 1 worker"),
    (("--fit.micro_batches", "2"), "not started", "6 batches an epoch in 3 optimizer steps of 2 micro-batches, over 1 worker"),
    (("--workers", "2"), "a local one", "6 batches an epoch in 3 optimizer steps of 2 micro-batches, over 2 workers"),
])  # fmt: skip
def test_one_process_has_the_micro_batches_that_the_run_would_have(plan, graph, workers, launcher, steps):
    told = plan("train_nodes", "--data", graph, *SMALL, "--sampler.num_chunks", "5", *workers)
    assert told["steps"].startswith(steps)
    assert told["ray"].startswith(launcher)


def test_a_set_in_one_process_has_one_micro_batch(plan, molecules):
    told = plan("train_graphs", "--data", molecules, "--model.width", "16", "--model.num_heads", "2")
    assert "of 1 micro-batch, over 1 worker" in told["steps"]


def test_what_is_not_there_yet_has_one_micro_batch_in_one_process(plan):
    told = plan("train_nodes", "--data.nodes", "500", *SMALL)
    assert "of 1 micro-batch, over 1 worker" in told["steps"]


def test_a_shard_beyond_memory_is_refused(plan, graph, monkeypatch):
    from graphmill.jobs.subjects import graph_parallel as whole_graph

    monkeypatch.setattr(whole_graph, "available_bytes", lambda: 1000)
    told = plan("products_geco", "--data", graph, *SMALL, "--run.parallel", "graph")
    assert "GiB are free for each" in told["refused"]


def test_molecules(plan, molecules):
    told = plan(
        "pcqm4m_tokengt", "--data", molecules, "--model.width", "16", "--model.num_heads", "2", beside=molecules.parent
    )
    assert "120 graphs" in told["graphs"]
    assert "scored: valid, test" in told["splits"]
    assert "mean of" in told["batch"]
    assert mebibytes(told["memory"], "scoring") > 0
    assert "30 of them and the final scores about" in told["time"]
    assert told["steps"].endswith("steps in 30 epochs")
    refused = plan("pcqm4m_tokengt", "--data", molecules, "--task", "binary")
    assert "--task regression" in refused["refused"]


def test_molecules_before_they_are_made(plan):
    pytest.importorskip("rdkit")
    told = plan("pcqm4m_tokengt", "--data.molecules", "200")
    assert "graphmill ingest embedded data/molecules-200 --count 200" in told["graphs"]
    assert "TokenGT" in told["model"]
    assert told["splits"].startswith("train about 160")


def test_a_prediction(plan, graph, tmp_path_factory):
    run_dir = saved_run(tmp_path_factory.mktemp("run") / "run", graph)
    told = plan("predict", run_dir, "out", beside=run_dir)
    assert told["rows"] == "500 in 1 Parquet files of at most 250,000"
    assert told["batches"] == "the whole graph over 2 workers, once for all splits"
    assert told["out"].startswith("out, new")
    assert told["refused"] == "nothing"


def saved_run(folder: Path, url: Path) -> Path:
    """Writes the files that prediction reads from a finished run of products_geco."""
    from safetensors.torch import save_file

    run = node_run(open_graph(str(url)), "--data", url, "--model.width", 8, "--model.num_layers", 1)
    manifest = open_graph(str(url)).manifest
    (folder / "best").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(run.tree()))
    save_file(run.build_model().state_dict(), folder / "best" / "model.safetensors")
    state = {"next_epoch": 1, "best_epoch": 0, "best_score": 0.5, "identity": {}}
    state |= {"format": "graphmill-checkpoint", "format_version": 1, "model_config": run.architecture}
    (folder / "best" / "state.json").write_text(json.dumps(state))
    summary = {"job": "products_geco", "workers": 2, "device": "cpu", "scores": {"test": 0.5}}
    summary |= {"graph": str(url), "graph_hash": manifest.content_hash, "snapshot": manifest.snapshot}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_growth_is_seen():
    grown = growth_bytes(lambda: torch.ones(16 * 2**20)) or 0  # the array has 64 MiB
    assert grown == 0 or 60 * 2**20 < grown < 90 * 2**20


def test_figures():
    assert [size(n) for n in (3, 2048, 5 * 2**20, 3 * 2**30)] == ["3 bytes", "2.0 KiB", "5.0 MiB", "3.0 GiB"]
    assert [duration(s) for s in (0.0123, 2, 300, 9000)] == ["12.3 ms", "2.0 s", "5 minutes", "2.5 hours"]
