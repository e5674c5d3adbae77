"""Tests every model and the loop of every job on a pretended GPU (tests/pretend_cuda.py): training, checkpoint, resume, evaluation, prediction.

Devices are not mixed, the random draws of a run depend only on their position, and the numbers equal the CPU's.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.data.graph_set_data import GraphData, GraphSplitOptions
from graphmill.cluster.data.training_data import StoredNodes
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.prediction.prediction import split_scores
from graphmill.cluster.prediction.predictor import PredictionSpec, Predictor, SplitPlan, plan_pieces
from graphmill.cluster.process.outcome import Finished, Stopped
from graphmill.cluster.receipts import step_receipts
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.tasks import Classification, Regression, Task
from graphmill.cluster.training.checkpoint_writer import CheckpointRequest, CheckpointWriter
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.samplers.vocabulary.options import (
    GraphBatchOptions,
    LoaderOptions,
    NeighborOptions,
    Node2SubgraphOptions,
    RandomPartitionOptions,
    full_evaluation,
)
from graphmill.storage.format.graph_set_manifest import GraphSetManifest, RowSchema
from graphmill.storage.format.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID
from graphmill.storage.graph import open_graph
from graphmill.storage.ingestion.ingest import IngestOptions, ingest
from graphmill.storage.predictions import PredictionFolder
from graphmill.storage.synthetic.products_like import SyntheticGraph, SyntheticOptions
from tests.array_graph_store import ArrayGraphStore
from tests.pretend_cuda import pretend_cuda
from tests.recording_reporter import MemoryRecorder, write_at_once
from tests.runs import node_run, set_run

EPOCHS, STEPS = 2, 2  # number of epochs, number of steps in an epoch
SPLITS = {"train": SPLIT_TRAIN, "valid": SPLIT_VALID, "test": SPLIT_TEST}


@dataclass(frozen=True)
class Case:
    """A model with its data, in the form that a job's workers get."""

    data: Any
    build: Callable[[], torch.nn.Module]
    task: Task
    sampler: Any
    evaluation: Mapping[str, Any]

    def spec(self, **options: Any) -> TrainSpec:
        return TrainSpec(
            data=self.data,
            build_model=self.build,
            task=self.task,
            model_config={},
            identity={},
            sampler=self.sampler,
            evaluation=self.evaluation,
            options=TrainOptions(
                **{"epochs": EPOCHS, "learning_rate": 1e-3, "clip_norm": 1.0, "eval_every": EPOCHS, **options}
            ),
            loader=LoaderOptions(timeout_s=600),
        )


@dataclass(frozen=True)
class Rings(ArrayGraphStore):
    """Rings of 3 to 6 nodes: 12 for training, 4 for validation and 4 for test."""

    def split(self, name: str) -> np.ndarray:
        return {"train": np.arange(12), "valid": np.arange(12, 16), "test": np.arange(16, 20)}[name]

    @property
    def original_id(self) -> np.ndarray:
        return np.arange(20)

    @property
    def manifest(self) -> GraphSetManifest:
        return _SET


def rings() -> Rings:
    rng = np.random.default_rng(0)
    size = rng.integers(3, 7, 20)
    ptr = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    place = np.concatenate([np.arange(n) for n in size]).astype(np.int32)
    after = (place + 1) % np.repeat(size, size).astype(np.int32)
    feature = rng.normal(size=(ptr[-1], 4)).astype(np.float32)
    edges, edge_ptr = np.stack([place, after]), ptr
    return Rings(ptr, edge_ptr, edges, feature, None, rng.normal(size=(20, 1)).astype(np.float32))


_SET = GraphSetManifest("rings", 20, 0, 0, (0, 20), node=RowSchema(dim=4), edge=RowSchema(dim=0))


def graph_case(model: str, *words: object) -> Case:
    batches = GraphBatchOptions(max_graphs=6, bucket_ratio=float("inf"))
    resolved = set_run(_SET, 1, "--model", model, "--model.num_layers", 1, *words)
    return Case(
        GraphData(rings()),
        resolved.build_model,
        Regression((0.0,), (1.0,)),
        GraphSplitOptions("train", batches),
        {name: GraphSplitOptions(name, replace(batches, shuffle=False)) for name in ("train", "valid", "test")},
    )


NODE_MODELS = {  # Options by model and by kind of batches.
    "geco neighbors": "--model.permutation dynamic",
    "geco chunks": "--model.recompute yes --model.skip yes",
    "primphormer chunks": "--model.num_heads 2",
    "geco chunks gated gcn": "--model.local gcn --model.local.join gate --model.local.norm batch --model.local.residual linear",
    "geco chunks on gat": "--model.local gat --model.local.join top --model.local.dropout 0.1 --model.scale_rows yes",
    "geco chunks past gates": "--model.propagation gcn --model.local.residual linear",
    "primphormer chunks gated gcn": "--model.num_heads 2 --model.layer.local none --model.local gated-gcn --model.local.join gate",
    "tokengt chunks gated sage": "--model.num_heads 2 --model.identifier none --model.local sage --model.local.join gate",
    "tokengt chunks": "--model.num_heads 2 --model.identifier near_orf --model.identifier_dim 4",
    "sage neighbors": "",
    "gcn chunks": "--model.norm layer",
    "gat neighbors": "--model.num_heads 2",
    "ppgt subgraphs": "--model.num_heads 2 --model.attention_dropout 0",
    "ppgt subgraphs fused dropout": "--model.num_heads 2",  # with the default dropout in the readout's attention
}


def node_case(name: str, folder: Path) -> Case:
    graph = open_graph(str(folder / "graph"))
    kind, how = name.split()[:2]
    sampler: Any
    if how == "chunks":
        sampler = RandomPartitionOptions(num_chunks=STEPS)
        evaluation: Mapping[str, Any] = full_evaluation(0)
    else:
        kinds = {
            "neighbors": lambda split: NeighborOptions(fanouts=(3,), batch_size=40, root_split=split),
            "subgraphs": lambda split: Node2SubgraphOptions(batch_size=40, max_hops=2, max_nodes=8, root_split=split),
        }
        sampler, evaluation = kinds[how](SPLIT_TRAIN), {key: kinds[how](code) for key, code in SPLITS.items()}
    words = ("--model", kind, "--model.width", 8, "--model.num_layers", 1, *NODE_MODELS[name].split())
    return Case(
        StoredNodes.of(graph),
        node_run(graph, *words).build_model,
        Classification(graph.manifest.num_classes or 0),
        sampler,
        evaluation,
    )


GRAPH_MODELS = {  # Options by model and special case.
    "tokengt": "--model.dropout 0.1 --model.drop_path 0.1 --model.eigenvector_dropout 0.1",
    "tokengt fused dropout": "--model.attention_dropout 0.1",
    "tokengt orthogonal": "--model.identifier orf --model.identifier_dim 4",
    "tokengt performer": "--model.attention performer --model.performer_features 8",
    "grit": "",
    "ppgt": "",
    "primphormer": "",
    "geco": "",
}
CASES = [*(f"graphs: {name}" for name in GRAPH_MODELS), *(f"nodes: {name}" for name in NODE_MODELS)]

# In the gate: one case over many graphs, and one over sampled neighborhoods.
IN_THE_GATE = {"graphs: grit", "nodes: geco neighbors"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("on-cuda")
    source = SyntheticGraph(SyntheticOptions(num_nodes=80, num_classes=4))
    ingest(source, str(path / "graph"), IngestOptions(num_partitions=2))
    return path


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one process, so that the code of DDP and of all collective calls runs."""
    meet = tmp_path_factory.mktemp("group") / "meet"
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def case_of(name: str, folder: Path) -> Case:
    kind, _, which = name.partition(": ")
    if kind == "nodes":
        return node_case(which, folder)
    return graph_case(which.split()[0], *GRAPH_MODELS[which].split())


def run(spec: TrainSpec, device: str, folder: Path, stop_at: int | None = None) -> tuple[Worker, Any]:
    """Trains from the checkpoint in the folder. `stop_at`: number of steps until the driver asks the worker to stop."""
    worker = Worker(
        spec,
        MemoryRecorder(),
        0,
        1,
        torch.device(device),
        CheckpointWriter(Checkpoints(RunStore.of(folder)), 0, None, write_at_once),
    )
    if stop_at is not None:
        requests = iter([CheckpointRequest.NONE] * (stop_at - 1) + [CheckpointRequest.SAVE_AND_STOP] * 1000)
        worker._request = lambda: next(requests)  # type: ignore[method-assign]
    worker.restore(Checkpoints(RunStore.of(folder)))
    outcome = worker.run()
    return worker, outcome.summary if isinstance(outcome, Finished) else outcome


def weights(worker: Worker) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in worker.model.state_dict().items()}


def losses_of(worker: Worker) -> list[float]:
    """The training loss of each epoch."""
    return [record["train_loss"] for record in worker.reporter.records if record["kind"] == "epoch"]  # type: ignore[attr-defined]


def numbers(scores: Any, name: str = "") -> dict[str, float]:
    """All numbers of a nested result. The keys are paths of names and positions; a table has an entry for each class."""
    if not isinstance(scores, dict | list):
        return {name: scores}
    inner = scores.items() if isinstance(scores, dict) else enumerate(scores)
    return {path: number for key, value in inner for path, number in numbers(value, f"{name}/{key}").items()}


def predict(case: Case, best: bytes, folder: Path, device: str) -> Any:
    """Writes predictions to the folder, and returns the scores of the splits."""
    spec = PredictionSpec(
        data=case.data,
        build_model=case.build,
        weights=best,
        task=case.task,
        target_names=("y",),
        has_targets=True,
        splits=tuple(SplitPlan(name, case.evaluation[name], 1, 1) for name in SPLITS),
        embeddings=False,
        precision="float32",
        seed=0,
        loader=LoaderOptions(),
    )
    data = case.data.open()
    counts = [data.sampler(split.sampler, 1).num_batches for split in spec.splits]
    pieces, out, bounds = plan_pieces(counts, 2), PredictionFolder(str(folder)), np.zeros(1, np.int64)
    out.begin({})
    predictor = Predictor(spec, out, bounds, device)
    for piece in pieces:
        predictor.predict(piece)
    scores = split_scores(out, spec, pieces)
    predictor.join(0, pieces)
    assert pq.read_table(folder / "part-00000.parquet").num_rows > 0
    return scores


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in IN_THE_GATE else pytest.mark.long) for name in CASES],
)
def test_a_run_on_a_gpu_is_that_of_the_cpu_resumes_exactly_and_predicts(name, folder, tmp_path):
    case = case_of(name, folder)
    for part in ("cpu", "whole", "parts"):
        (tmp_path / part).mkdir()
    on_cpu, reference = run(case.spec(), "cpu", tmp_path / "cpu")
    expected = losses_of(on_cpu)
    with pretend_cuda() as pretended:
        whole, result = run(case.spec(), "cuda", tmp_path / "whole")
        assert all(tensor.is_cuda for tensor in whole.model.state_dict().values())
        assert pretended.hidden_draws == []
        _, stopped = run(case.spec(), "cuda", tmp_path / "parts", stop_at=1)
        assert isinstance(stopped, Stopped)
        resumed, again = run(case.spec(), "cuda", tmp_path / "parts")
        losses, trained, later = losses_of(whole), weights(whole), weights(resumed)
        best = save({key: value.cpu().contiguous() for key, value in whole.best.items()})
        scores = predict(case, best, tmp_path / "predictions", "cuda")
    for key, value in trained.items():
        assert torch.equal(value, later[key]), key
    assert again["scores"] == result["scores"]
    for split in SPLITS:
        assert numbers(scores[split]) == pytest.approx(numbers(result["scores"][split]))
    if "fused dropout" not in name:  # dropout masks of PyTorch's fused attention differ between devices
        assert losses == pytest.approx(expected, rel=1e-3)
        assert result["scores"]["test"]["loss"] == pytest.approx(reference["scores"]["test"]["loss"], rel=1e-2)


def test_a_step_without_an_entry_in_the_receipt_runs_on_a_gpu(folder, tmp_path, monkeypatch):
    """A run has such steps after 4,096."""
    monkeypatch.setattr(step_receipts, "_DENSE", 1)
    with pretend_cuda():
        worker, _ = run(case_of("nodes: geco neighbors", folder).spec(epochs=4), "cuda", tmp_path)
    records = worker.reporter.records  # type: ignore[attr-defined]
    entries = [row[:2] for record in records if record["kind"] == "receipt" for row in record["entries"]]
    assert entries == [[0, 0], [1, 0], [3, 0]]
    (start,) = [record for record in records if record["kind"] == "receipt-start"]
    assert "capability" in start["facts"]["gpu"]


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_on_a_gpu_trains_with_an_average(name, folder, tmp_path):
    case = case_of(name, folder)
    with pretend_cuda():
        _, result = run(case.spec(precision="bfloat16", ema_decay=0.9, epochs=1), "cuda", tmp_path)
    assert np.isfinite(result["scores"]["test"]["loss"])
