"""Tests graph-parallel training: the trainer's steps with several models on real processes, and the options that are refused before a run starts."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from graphmill.cluster.data.training_data import StoredNodes
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.tasks import Classification
from graphmill.cluster.training.nonfinite import NonFiniteLossError
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.core.errors import ConfigError
from graphmill.jobs.machine import memory_check
from graphmill.jobs.resolve.resolve import ResolvedRun
from graphmill.jobs.subjects import graph_parallel as whole_graph_module
from graphmill.jobs.subjects.graph_parallel import ShardMemory, WholeGraphData, shard_memory
from graphmill.jobs.tasks.model_inputs import GECOClassifier
from graphmill.models.geco.options import GECOConfig
from graphmill.models.parallel_cost import inference_bytes, training_bytes
from graphmill.models.primitives.propagation import Adjacency
from graphmill.samplers.vocabulary.options import LoaderOptions
from graphmill.storage.graph import PLAIN_OR_TYPED, StoredGraph, TypedGraph, open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.synthetic.mag_like import SyntheticMagOptions, synthetic_mag
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.forked_ranks import run_ranks
from tests.recording_reporter import MemoryRecorder
from tests.runs import node_run

CPU = torch.device("cpu")
EPOCHS = 3
GECO = (
    "--model.width 8 --model.num_layers 2 --model.input_dropout 0.1 --model.permutation dynamic --model.hops 2 "
    "--model.recompute yes"
)
CLASSIC = "--model.width 8 --model.num_layers 2 --model.input_dropout 0.1 --model.dropout 0.3 --model.norm layer"
BEHIND = "--relational.width 8 --relational.num_layers 1"
WORDS = {
    "geco": GECO,
    "geco-batch-norm": f"{GECO} --model.local.join gate --model.local.block sage --model.local.norm batch",
    "sage": f"--model sage {CLASSIC}",
    "gcn": f"--model gcn {CLASSIC}",
    "gat": f"--model gat {CLASSIC} --model.num_heads 2",
    "sage-batch-norm": f"--model sage {CLASSIC} --model.norm batch",
    "typed-rsage": f"--model rsage {CLASSIC}",
    "typed-rsage-batch-norm": f"--model rsage {CLASSIC} --model.norm batch",
    "typed-geco": f"{GECO} {BEHIND}",
    "typed-gat": f"--model gat {CLASSIC} --model.num_heads 2 {BEHIND}",
}


def stored(folder: Path, model: str = "geco") -> Any:
    """Opens the plain graph or the typed graph, as the model requires."""
    return open_graph(str(folder / ("typed" if model.startswith("typed") else "graph")), kind=PLAIN_OR_TYPED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    ingest(SyntheticGraph(SyntheticOptions(num_nodes=211)), str(path / "graph"), IngestOptions(num_partitions=3))
    mag = synthetic_mag(SyntheticMagOptions(scale=0.0003, num_classes=3, feature_dim=6))
    ingest(mag, str(path / "typed"), IngestOptions(num_partitions=2, undirected=True))
    return path


def resolved(graph: StoredGraph | TypedGraph, model: str = "geco") -> ResolvedRun:
    return node_run(graph, *WORDS[model].split(), "--run.parallel", "graph")


def model_config(graph: StoredGraph) -> GECOConfig:
    config = resolved(graph).model_config
    assert isinstance(config, GECOConfig)
    return config


def whole_graph(graph: StoredGraph | TypedGraph, model: str = "geco", *, training: bool = True) -> WholeGraphData:
    run = resolved(graph, model)
    config = replace(run.model_config, recompute=False) if model == "geco" else run.model_config
    if isinstance(graph, TypedGraph):
        memory = shard_memory(graph.manifest, run, training=training)
    else:
        memory = ShardMemory((config,), graph.manifest.num_nodes, graph.manifest.num_edges, training)
    return WholeGraphData(StoredNodes.of(graph, verify=False), run.training, memory)


def train_spec(graph: StoredGraph | TypedGraph, model: str) -> TrainSpec:
    run = resolved(graph, model)
    return TrainSpec(
        data=whole_graph(graph, model),
        build_model=run.build_model,
        task=Classification(run.inputs.out_dim, label_smoothing=0.1),
        model_config={},
        identity={},
        sampler=run.training,
        evaluation=run.evaluation,
        options=TrainOptions(epochs=EPOCHS, learning_rate=1e-2),
        loader=LoaderOptions(),
    )


def outcome(folder: Path, rank: int, size: int, model: str) -> dict[str, Any]:
    """Trains a few epochs with the trainer, then evaluates with damaged weights on one rank only."""
    worker = Worker(train_spec(stored(folder, model), model), MemoryRecorder(), rank, size, CPU)
    with worker.loader(worker.spec.sampler) as train, worker.loader(worker.spec.evaluation["valid"]) as valid:
        records = [worker.train_epoch(train, epoch)[0] for epoch in range(EPOCHS)]
        scores = worker._evaluate(worker.model, valid, "valid")["valid"].compute()
        state = {name: tensor.clone() for name, tensor in worker.model.state_dict().items()}
        if rank == size - 1:
            with torch.no_grad():
                next(own for name, own in worker.model.named_parameters() if name.endswith("head.weight")).fill_(
                    float("nan")
                )
        try:
            worker._evaluate(worker.model, valid, "valid")
            error = ""
        except NonFiniteLossError as bad:
            error = str(bad)
    kept = ("train_loss", "roots", "learning_rate")
    return {
        "records": [{name: record[name] for name in kept} for record in records],
        "scores": scores,
        "model": state,
        "error": error,
    }


def one_rank(rank: int, folder: Path, size: int, model: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{model}", rank=rank, world_size=size)
    torch.save(outcome(folder, rank, size, model), folder / f"{model}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=[] if name in ("geco-batch-norm", "gcn", "typed-geco") else pytest.mark.long)
        for name in WORDS
    ],
)
def test_two_workers_train_as_one_does(folder, model):
    run_ranks(one_rank, (folder, 2, model), 2)
    alone = outcome(folder, 0, 1, model)
    # The true gradient of a bias before a batch norm is 0. AdamW makes full steps from its rounding errors, and the running mean follows the bias.
    drifting = ("own.bias", "running_mean") if "batch-norm" in model else ()
    assert re.search(r"the weights of [a-z.]+head.weight are not finite", alone["error"])
    for rank in range(2):
        part = torch.load(folder / f"{model}-{rank}.pt", weights_only=True)
        for ours, theirs in zip(part["records"], alone["records"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
        counted = {"by_class", "confusion"}  # computed from the same predictions as the accuracy
        assert counted < part["scores"].keys() == alone["scores"].keys()
        compared = [{name: of["scores"][name] for name in part["scores"].keys() - counted} for of in (part, alone)]
        assert compared[0] == pytest.approx(compared[1], rel=2e-3 if drifting else 1e-4)
        # A check is a forward pass of all ranks, so both ranks check. On both ranks the message names the rank that found the problem.
        assert re.match(
            r"evaluation of valid, rank 1, batch 1: a prediction is not finite; the weights of [a-z.]+head.weight",
            part["error"],
        )
        for name in (name for name in alone["model"] if not name.endswith(drifting)):
            tensor = alone["model"][name]
            torch.testing.assert_close(part["model"][name], tensor, rtol=0, atol=2e-5)


def test_one_worker_has_the_whole_graphs_logits_and_the_same_weights_serve_batches(folder):
    graph = stored(folder)
    config = model_config(graph)
    shard = whole_graph(graph).open().shard
    torch.manual_seed(0)
    model = GECOClassifier(config).eval()
    parts = list(graph.partitions())
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(p.indptr) for p in parts]))])
    indices = np.concatenate([p.indices for p in parts])
    x = torch.from_numpy(np.concatenate([p.feature_numbers() for p in parts]))
    ids = torch.from_numpy(np.concatenate([p.original_id for p in parts]))
    assert torch.equal(shard.x, x)
    assert torch.equal(shard.node_id, ids)
    with torch.no_grad():
        adjacency = Adjacency(torch.from_numpy(indptr), torch.from_numpy(indices))
        expected = model.model(x, adjacency, node_id_N=ids, epoch=2)
        found = model(replace(shard, epoch=2, root_index=torch.arange(211)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused_with_an_estimate(folder, monkeypatch):
    graph = stored(folder)
    data = whole_graph(graph)
    data.memory.check(1)
    whole_graph(graph, "gcn").memory.check(1)
    monkeypatch.setattr(whole_graph_module, "available_bytes", lambda: 2**18)
    with pytest.raises(ConfigError, match=r"free.*; use more --workers .* lower --model.width"):
        whole_graph(graph, "gcn").memory.check(1)
    monkeypatch.setattr(whole_graph_module, "available_bytes", lambda: 2**20)
    for refused in (lambda: data.memory.check(1), data.open):
        with pytest.raises(
            ConfigError, match=r"needs about .* GiB per worker, 0.0 GiB are free.*--model.recompute yes.*--workers"
        ):
            refused()
    assert memory_check.available_bytes() > 2**20
    large = replace(data.memory.layers[0], width=128, num_layers=3, recompute=False)
    one, two, four = (training_bytes(large, 2_449_029, 123_000_000, w) for w in (1, 2, 4))
    assert two < 0.6 * one
    assert four < 0.35 * one
    assert training_bytes(replace(large, recompute=True), 2_449_029, 123_000_000, 1) < 0.65 * one
    assert inference_bytes(large, 2_449_029, 123_000_000, 1) < 0.6 * one
    monkeypatch.setattr(whole_graph_module, "available_bytes", lambda: 2**10)
    predicting = whole_graph(graph, training=False)
    with pytest.raises(
        ConfigError, match=r"are free for each; use more --workers on more machines, or set --run.parallel data"
    ):
        predicting.open()
