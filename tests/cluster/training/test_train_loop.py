"""Tests the training loop without Ray: gradients, averaged weights, exact resumption, and the errors that stop it."""

import re
import shutil
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.data.graph_set_data import GraphData, GraphSplitOptions
from graphmill.cluster.data.training_data import OpenNodes
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.process.outcome import Finished, Stopped
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.tasks import Classification, Regression, StepOutput
from graphmill.cluster.training.checkpoint_writer import CheckpointRequest, CheckpointWriter
from graphmill.cluster.training.nonfinite import NonFiniteLossError
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.core.errors import ConfigError, FormatError, StageError
from graphmill.samplers.loading.loader import STAGE_SECONDS
from graphmill.samplers.methods.graph_batches import TorchGraphBatch
from graphmill.samplers.vocabulary.options import GraphBatchOptions, LoaderOptions, SaintOptions
from tests.array_graph_store import ArrayGraphStore
from tests.forked_ranks import run_ranks
from tests.memory_graph import MemoryGraph, memory_router
from tests.recording_reporter import MemoryRecorder, write_at_once

CPU = torch.device("cpu")
NUM_GRAPHS = 30


@dataclass(frozen=True)
class Rings(ArrayGraphStore):
    """A data set of rings with 3 to 8 nodes and random features. The first 20 rings are for training."""

    def split(self, name: str) -> np.ndarray:
        return {"train": np.arange(20), "valid": np.arange(20, 25), "test": np.arange(25, 30)}[name]


def rings(target: np.ndarray | None = None) -> Rings:
    rng = np.random.default_rng(0)
    size = rng.integers(3, 9, NUM_GRAPHS)
    ptr = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    place = np.concatenate([np.arange(n) for n in size]).astype(np.int32)
    feature = rng.normal(size=(ptr[-1], 4)).astype(np.float32)
    if target is None:
        target = np.add.reduceat(feature[:, 0] ** 2, ptr[:-1])[:, None].astype(np.float32)
        target[[1, 2, 3, 11]] = np.nan  # batches and ranks have different numbers of these
    after = (place + 1) % np.repeat(size, size).astype(np.int32)
    return Rings(ptr, ptr, np.stack([place, after]), feature, None, target)


class Pooled(nn.Module):
    """A model that applies a perceptron to each node and adds up the results of each graph."""

    def __init__(self, penalised: bool = False, norm: bool = False, out_dim: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.second = nn.Linear(8, out_dim)
        self.penalised = penalised

    def forward(self, batch: TorchGraphBatch) -> StepOutput:
        h = self.norm(self.first(batch.node_feature)).relu()
        out = torch.segment_reduce(self.second(h), "sum", offsets=batch.node_ptr, axis=0)
        return StepOutput(out, self.second.weight.square().sum() if self.penalised else None)


class Records(MemoryRecorder):
    @property
    def epochs(self) -> list[dict]:
        timed = {
            "train_s",
            "wait_s",
            "eval_s",
            "checkpoint_s",
            "cpu_s",
            "train_cpu_s",
            "peers_s",
            "roots_per_s",
            "nodes_per_s",
            "edges_per_s",
            *STAGE_SECONDS,
        }
        return [{k: v for k, v in r.items() if k not in timed} for r in self.records if r["kind"] == "epoch"]


def spec(batch_size: int = 4, build_model=Pooled, store: Rings | None = None, task=None, **options) -> TrainSpec:
    batches = GraphBatchOptions(max_graphs=batch_size, bucket_ratio=float("inf"))
    return TrainSpec(
        data=GraphData(store or rings()),
        build_model=build_model,
        task=task or Regression((2.0,), (3.0,)),
        model_config={},
        identity={},
        sampler=GraphSplitOptions("train", batches),
        evaluation={s: GraphSplitOptions(s, replace(batches, shuffle=False)) for s in ("valid", "test")},
        options=TrainOptions(**{"epochs": 3, "learning_rate": 1e-2, "checkpoint_every": 1000, **options}),
        loader=LoaderOptions(),
    )


@pytest.fixture
def reports(tmp_path) -> Path:
    """The folder for checkpoints."""
    return tmp_path


def run_alone(
    a_spec: TrainSpec,
    folder: Path,
    checkpoint: Path | None = None,
    stop_at: int | None = None,
    reporter: Records | None = None,
) -> tuple[Worker, Records, Any]:
    """Trains with one worker. After `stop_at` steps the driver asks the worker to stop."""
    reporter = reporter or Records()
    writer = CheckpointWriter(Checkpoints(RunStore.of(folder)), 0, a_spec.options.checkpoint_minutes, write_at_once)
    worker = Worker(a_spec, reporter, 0, 1, CPU, writer)
    if stop_at is not None:
        requests = iter([CheckpointRequest.NONE] * (stop_at - 1) + [CheckpointRequest.SAVE_AND_STOP] * 1000)
        worker._request = lambda: next(requests)  # type: ignore[method-assign]
    if checkpoint is not None:
        shutil.copytree(checkpoint, folder / checkpoint.name, dirs_exist_ok=True)
    worker.restore(Checkpoints(RunStore.of(folder)))
    outcome = worker.run()
    return worker, reporter, dict(outcome.summary) if isinstance(outcome, Finished) else outcome


def one_of_two(rank: int, folder: str, build_model, store: Rings | None) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    a_spec = spec(5, build_model, store, micro_batches=4, weight_decay=0.1)
    found: dict = {"error": ""}
    worker = Worker(a_spec, Records(), rank, 2, CPU)
    try:
        with worker.loader(a_spec.sampler) as loader:
            found["losses"] = [worker.train_epoch(loader, epoch)[0]["train_loss"] for epoch in range(3)]
        with worker.loader(a_spec.evaluation["valid"]) as loader:
            found["scores"] = worker._evaluate(worker.model, loader, "valid")["valid"].compute()
    except NonFiniteLossError as error:
        found["error"] = str(error)
    found["model"] = worker.model.state_dict()
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def run_two(folder: Path, build_model, store: Rings | None = None) -> list[dict]:
    run_ranks(one_of_two, (str(folder), build_model, store), 2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def whole_epoch_steps(a_spec: TrainSpec, epochs: int = 3) -> tuple[Worker, list[float]]:
    worker = Worker(a_spec, Records(), 0, 1, CPU)
    with worker.loader(a_spec.sampler) as loader:
        return worker, [worker.train_epoch(loader, epoch)[0]["train_loss"] for epoch in range(epochs)]


@pytest.mark.parametrize("penalised", [False, True])
def test_accumulated_batches_give_the_large_batchs_steps(penalised):
    build = partial(Pooled, penalised)
    large, losses = whole_epoch_steps(spec(20, build))
    assert large.data.sampler(large.spec.sampler, 1).num_batches == 1
    small, found = whole_epoch_steps(spec(3, build, micro_batches=7))
    assert small.data.sampler(small.spec.sampler, 1).num_batches == 7
    assert found == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(small.model.parameters(), large.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    # With fewer micro-batches, training gives other losses.
    _, others = whole_epoch_steps(spec(3, build, micro_batches=2))
    assert others[1:] != pytest.approx(losses[1:], rel=1e-3)


@pytest.mark.slow
def test_two_ranks_that_accumulate_give_the_large_batchs_steps(tmp_path):
    large, losses = whole_epoch_steps(spec(20, partial(Pooled, True), weight_decay=0.1))
    with large.loader(large.spec.evaluation["valid"]) as loader:
        scores = large._evaluate(large.model, loader, "valid")["valid"].compute()
    for found in run_two(tmp_path, partial(Pooled, True)):
        assert found["error"] == ""
        assert found["losses"] == pytest.approx(losses, rel=1e-5)
        assert found["scores"] == pytest.approx(scores, rel=1e-4)
        assert found["scores"]["count"] == 5
        for name, tensor in large.model.state_dict().items():
            torch.testing.assert_close(found["model"][name], tensor, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_ranks_score_one_model_whatever_their_batch_statistics(tmp_path):
    first, second = run_two(tmp_path, partial(Pooled, norm=True))
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name]), name


AVERAGED = {"ema_decay": 0.9, "epochs": 3, "schedule": "cosine", "warmup_steps": 3, "micro_batches": 2}


@dataclass(frozen=True)
class Walked:
    """A data set whose batches GraphSAINT draws from a graph in memory."""

    router: Any

    def open(self) -> OpenNodes:
        return OpenNodes(self.router)


class Scaled(nn.Module):
    """A linear model that reads only the first feature of each root."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.line(batch.x[batch.root_index, :1])


def test_saints_weights_are_those_of_the_losses():
    """A step's loss is the mean over its micro-batches. The loss of each root is multiplied by its GraphSAINT weight (arXiv:1907.04931, section 3.2)."""
    edges = [(0, i) for i in range(1, 8)] + [(i, 0) for i in range(1, 8)]
    graph = MemoryGraph(8, edges, symmetric=True, split=[1, 1, 1, 1, 1, 2, 2, 3])
    data, options = Walked(memory_router(graph)), SaintOptions(num_walks=2, walk_length=2, batches_per_epoch=4)
    walked = replace(spec(micro_batches=2, build_model=Scaled), data=data, sampler=options, evaluation={})
    worker = Worker(walked, Records(), 0, 1, CPU)
    with worker.loader(options) as loader:
        batches = list(loader.epoch(0))
    for step in range(2):
        own = batches[2 * step : 2 * step + 2]
        targets = [batch.target for batch in own]
        error = [worker.model(batch)[:, 0] - (y - 2) / 3 for batch, y in zip(own, targets, strict=True)]
        weight = torch.cat([batch.loss_weight[batch.root_index] for batch in own])
        assert len(weight.unique()) > 1
        expected = (torch.cat(error).abs() * weight).sum() / weight.sum()
        loss, total = worker._step(0, step, own, targets)[0].sum(dim=0)
        assert float(loss / total) == pytest.approx(float(expected), rel=1e-6)


def assert_same_end(ours: Worker, theirs: Worker) -> None:
    assert ours.average is not None
    assert theirs.average is not None
    for name, tensor in ours.average.module.state_dict().items():
        assert torch.equal(tensor, theirs.average.module.state_dict()[name])
        assert torch.equal(ours.best[name], theirs.best[name])


@pytest.mark.parametrize("norm", [False, True])
def test_a_run_resumes_exactly_after_any_step(reports, norm):
    build = partial(Pooled, norm=norm)
    a_spec = spec(build_model=build, checkpoint_minutes=0, checkpoint_every=1, **AVERAGED)
    whole, whole_reporter, result = run_alone(a_spec, reports)
    saved = sorted(path.name for path in reports.iterdir())
    steps = ("", "-step-00000001", "-step-00000002")
    assert saved == [*[f"epoch-{epoch:06d}{step}" for epoch in range(3) for step in steps][1:], "epoch-000003"]
    for number, name in enumerate(saved[:-1]):
        again, reporter, resumed = run_alone(
            spec(build_model=build, **AVERAGED), reports / f"again{number}", reports / name
        )
        position = name.split("-")
        epoch, step = int(position[1]), int(position[3]) if len(position) > 2 else 0
        assert reporter.records[0] == {"kind": "start", "epoch": epoch, "step": step, "workers": 1}
        assert reporter.epochs == whole_reporter.epochs[epoch:]
        assert resumed == result
        assert_same_end(again, whole)


@pytest.mark.parametrize("stop_at", range(1, 9))
def test_a_run_that_is_asked_to_stop_saves_after_that_step(reports, stop_at):
    whole, whole_reporter, result = run_alone(spec(**AVERAGED), reports / "whole")
    _, first, stopped = run_alone(spec(**AVERAGED), reports / "first", stop_at=stop_at)
    epoch, step = divmod(stop_at, 3)
    assert stopped == Stopped(epoch, step)
    assert len(list((reports / "first").iterdir())) == 1
    again, reporter, resumed = run_alone(spec(**AVERAGED), reports / "again", latest_of(reports / "first"))
    assert first.epochs + reporter.epochs == whole_reporter.epochs
    assert resumed == result
    assert_same_end(again, whole)


def test_a_stop_at_the_very_end_is_the_end(reports):
    _, _, result = run_alone(spec(epochs=1), reports, stop_at=5)
    assert "scores" in result


def latest_of(folder: Path) -> Path:
    return max(folder.iterdir())


@pytest.mark.parametrize("other", [{"batch_size": 5}, {"micro_batches": 3}])
def test_a_position_within_an_epoch_is_of_its_batches(reports, other):
    run_alone(spec(**AVERAGED), reports / "a", stop_at=1)
    with pytest.raises(
        ConfigError, match="resume with the options and the number of micro-batches a step that saved it"
    ):
        run_alone(spec(**AVERAGED | other), reports / "again", latest_of(reports / "a"))
    # From a checkpoint at the end of an epoch, a run may continue with other numbers.
    run_alone(spec(**AVERAGED), reports / "b", stop_at=3)
    run_alone(spec(**AVERAGED | other), reports / "c", latest_of(reports / "b"))


def test_an_older_checkpoint_is_taken_where_the_newest_is_damaged(reports):
    _, whole, result = run_alone(spec(checkpoint_every=1, **AVERAGED), reports)
    newest, older = reports / "epoch-000002", reports / "epoch-000001"
    shutil.rmtree(reports / "epoch-000003")
    (newest / "optimizer.safetensors").write_bytes(b"x" + (newest / "optimizer.safetensors").read_bytes()[1:])
    _, reporter, resumed = run_alone(spec(**AVERAGED), reports)
    assert "optimizer.safetensors: expected the bytes that were saved" in reporter.records[0]["what"]
    assert reporter.records[1] == {"kind": "start", "epoch": 1, "step": 0, "workers": 1}
    assert resumed == result
    assert reporter.epochs == whole.epochs[1:]
    assert (reports / "epoch-000003").exists()
    shutil.rmtree(reports / "epoch-000003")
    (older / "state.json").write_text("{")
    with pytest.raises(FormatError, match="no older checkpoint is whole"):
        run_alone(spec(**AVERAGED), reports)


def test_a_checkpoint_is_written_after_what_was_reported_before_it_is_on_the_disk(reports):
    flushes = []

    class Watched(Records):
        def flush(self):
            reported = [record["epoch"] for record in self.records if record["kind"] == "epoch"]
            whole = {path.name for path in reports.iterdir() if not path.name.startswith(".")}
            flushes.append((reported, whole))

    run_alone(spec(checkpoint_every=1, epochs=2), reports, reporter=Watched())
    assert flushes == [([0], set()), ([0, 1], {"epoch-000001"})]

    class Full(Records):
        def flush(self):
            raise StageError("no space")

    with pytest.raises(StageError, match=r"^checkpoint, rank 0: no space$"):
        run_alone(spec(checkpoint_every=1, epochs=3), reports, reporter=Full())
    assert {path.name for path in reports.iterdir()} == {"epoch-000001", "epoch-000002"}


@pytest.mark.parametrize("norm", [False, True])
def test_the_average_is_what_is_evaluated_and_kept(reports, norm):
    """Running statistics of BatchNorm are averaged like weights. Its counter of batches is not averaged."""
    a_spec = spec(ema_decay=0.5, epochs=1, build_model=partial(Pooled, norm=norm))
    torch.manual_seed(0)
    reference = Pooled(norm=norm)
    average = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    plain = Worker(replace(a_spec, options=replace(a_spec.options, ema_decay=None)), Records(), 0, 1, CPU)
    with plain.loader(a_spec.sampler) as loader:
        step = plain._update

        def averaging(epoch, step_index, batches):
            step(epoch, step_index, batches)
            decay = min(0.5, (1 + step_index) / (10 + step_index))
            for name, tensor in plain.model.state_dict().items():
                average[name] = (
                    tensor.clone() if name.endswith("tracked") else torch.lerp(average[name], tensor, 1 - decay)
                )

        plain._update = averaging
        plain.train_epoch(loader, 0)
    worker, _, result = run_alone(a_spec, reports)
    for name, tensor in average.items():
        torch.testing.assert_close(worker.best[name], tensor, msg=lambda text, name=name: f"{name}: {text}")
        assert name.endswith("tracked") or not torch.equal(worker.best[name], plain.model.state_dict()[name])
    with plain.loader(a_spec.evaluation["test"]) as loader:
        plain.model.load_state_dict(average)
        scores = plain._evaluate(plain.model, loader, "test")["test"].compute()
        for name, value in result["scores"]["test"].items():
            assert scores[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)


def test_lower_is_better_where_the_task_says_so(reports):
    worker, reporter, result = run_alone(spec(epochs=6, learning_rate=3e-2), reports)
    curve = [epoch["valid_mae"] for epoch in reporter.epochs]
    assert worker.best_epoch == int(np.argmin(curve))
    assert result["scores"]["valid"]["mae"] == pytest.approx(min(curve))
    assert curve[-1] < curve[0]


def test_an_estimate_is_named_so_and_keeps_the_last_epoch(reports):
    worker, reporter, result = run_alone(replace(spec(epochs=4), is_estimate=True, keep_best=False), reports)
    assert not [name for epoch in reporter.epochs for name in epoch if name in ("valid_mae", "best_epoch")]
    assert worker.best_score is None
    assert result["last_epoch"] == 3
    assert result["scores"]["valid"]["mae"] == pytest.approx(reporter.epochs[-1]["valid_estimate_mae"])


def test_an_estimate_chooses_where_it_is_told_to(reports):
    _, reporter, result = run_alone(replace(spec(epochs=4), is_estimate=True), reports)
    curve = [epoch["valid_estimate_mae"] for epoch in reporter.epochs]
    assert result["best_epoch_by_estimate"] == int(np.argmin(curve)) == reporter.epochs[-1]["best_epoch_by_estimate"]
    assert result["scores"]["valid"]["mae"] == pytest.approx(min(curve))


# In this run the validation error first falls and then rises.
PATIENT = {"epochs": 40, "learning_rate": 0.3, "patience": 3, "schedule": "cosine"}


def test_training_ends_where_patience_does_and_the_best_epoch_is_kept(reports):
    _, reporter, result = run_alone(spec(**PATIENT), reports)
    curve = [epoch["valid_mae"] for epoch in reporter.epochs]
    best = int(np.argmin(curve))
    assert len(curve) == best + 1 + 3 < 40
    assert [epoch["since_best"] for epoch in reporter.epochs[best:]] == [0, 1, 2, 3]
    why = "no better valid mae in 3 validations (--fit.patience 3)"
    assert result["stopped_early"] == {"epoch": best + 3, "why": why}
    assert result["best_epoch"] == best
    assert result["scores"]["valid"]["mae"] == pytest.approx(min(curve))
    # Learning rates depend only on the planned number of epochs. So with patience, all epochs before the end are the same as without.
    _, whole, all_of_it = run_alone(spec(**PATIENT | {"patience": None}), reports / "whole")
    assert [{**epoch, "since_best": 0} for epoch in whole.epochs[: len(curve)]] == [
        {**epoch, "since_best": 0} for epoch in reporter.epochs
    ]
    assert "stopped_early" not in all_of_it


def test_patience_is_counted_over_a_resume(reports):
    a_spec = spec(checkpoint_every=1, checkpoint_minutes=0, **PATIENT)
    worker, reporter, result = run_alone(a_spec, reports / "whole")
    saved = sorted(path.name for path in (reports / "whole").iterdir())
    assert len(saved) > 10
    for name in saved[-7:]:
        _, again, resumed = run_alone(spec(**PATIENT), reports / name, reports / "whole" / name)
        assert resumed == result
        assert again.epochs == reporter.epochs[int(name.split("-")[1]) :]
    # A run that has stopped early continues only if it gets more patience.
    longer = spec(**PATIENT | {"patience": None, "epochs": worker.next_epoch + 1})
    _, more, _ = run_alone(longer, reports / "more", latest_of(reports / "whole"))
    assert len(more.epochs) == 1


@dataclass(frozen=True)
class UnevenScores(Regression):
    """A task of a user, whose scores differ between ranks."""

    def scores(self, device):
        made = super().scores(device)
        compute = made.compute

        def uneven() -> dict[str, float]:
            # The score of rank 0 is always 0; the score of the other rank falls.
            return {"mae": -float(dist.get_rank()) * next(self.calls), "count": compute()["count"]}

        made.compute = uneven
        return made

    @cached_property
    def calls(self):
        return iter(range(100))


def patient_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    soon, meet = timedelta(seconds=60), f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=soon)
    task = UnevenScores((2.0,), (3.0,))
    worker = Worker(spec(task=task, epochs=9, patience=2), Records(), rank, 2, CPU)
    ended = worker.run()
    assert isinstance(ended, Finished)
    torch.save({"epochs": worker.next_epoch, "best": worker.best_epoch}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.long
def test_all_ranks_stop_by_rank_0s_score(tmp_path):
    run_ranks(patient_rank, (str(tmp_path),), 2)
    ended = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert ended == [{"epochs": 3, "best": 0}] * 2


def test_a_run_says_how_many_steps_it_will_take(reports):
    _, reporter, _ = run_alone(spec(micro_batches=2, warmup_epochs=2), reports)
    assert {"kind": "planned", "steps": 9, "warmup_steps": 6} in reporter.records


class Overflowing(Pooled):
    """A model whose second layer overflows for graphs with more than `limit` nodes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.second = nn.Sequential(nn.Linear(8, 8), Power(limit), nn.Linear(8, 1))

    def forward(self, batch: TorchGraphBatch) -> StepOutput:
        self.second[1].largest = int(batch.node_ptr.diff().max())
        return super().forward(batch)


class Power(nn.Module):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.largest = limit, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1e38 if self.largest > self.limit else 1.0) * 10.0


def test_a_loss_that_is_not_finite_stops_the_run_at_once_and_names_the_layer(reports):
    with pytest.raises(NonFiniteLossError) as caught:
        run_alone(spec(4, partial(Overflowing, 4)), reports)
    line = re.fullmatch(
        r"epoch 0, step \d+, rank 0, batch (\d+): the loss is not finite; first bad layer: second\.1 \(Power\), whose inputs are "
        r"finite; lower --fit\.learning_rate \(now 0\.01\), set --fit\.clip_norm, or check the features and targets",
        str(caught.value),
    )
    assert line is not None, caught.value
    index = int(line[1])
    store, a_spec = rings(), spec(4)
    graphs = a_spec.data.open().sampler(a_spec.sampler, 1).graphs_of(0, index)
    assert store.num_nodes[graphs].max() > 4
    assert not list(reports.iterdir())


@pytest.mark.slow
@pytest.mark.long
def test_all_ranks_stop_where_one_meets_a_bad_batch(tmp_path):
    target = rings().target.copy()
    target[0] = np.inf
    first, second = run_two(tmp_path, Pooled, rings(target))
    assert first["error"] == second["error"]
    assert "every layer's output is finite; the loss is not" in first["error"]


class BadGradient(Pooled):
    def forward(self, batch: TorchGraphBatch) -> StepOutput:
        out = super().forward(batch).prediction
        return StepOutput(out + (self.first.weight * 0.0).square().sum().sqrt())  # the gradient of √x at 0 is infinite


class BadEvaluation(Pooled):
    def forward(self, batch: TorchGraphBatch) -> StepOutput:
        out = super().forward(batch).prediction
        return StepOutput(out if self.training else self.second(torch.full((len(out), 8), float("inf"))))


@pytest.mark.parametrize(
    ("model", "feature", "message"),
    [
        (BadGradient, 0.0, r"epoch 0, step 0, rank 0, batches 0: the gradient is not finite.*first\.weight"),
        (
            BadEvaluation,
            0.0,
            r"evaluation of valid, rank 0, batch 0: a prediction is not finite; first bad layer: second .Linear.",
        ),
        (Pooled, np.nan, "the batch's own node_feature holds numbers that are not finite"),
    ],
)
def test_a_number_that_is_not_finite_stops_the_run_and_its_origin_is_named(reports, model, feature, message):
    store = rings()
    store.node_feature[5, 0] = feature
    with pytest.raises(NonFiniteLossError, match=message):
        run_alone(spec(4, model, store), reports)


def test_graphs_are_classified_too(reports):
    ptr, feature = rings().node_ptr, rings().node_feature
    label = (np.add.reduceat(feature[:, 0], ptr[:-1]) > 0).astype(np.int64)
    a_spec = spec(
        4, partial(Pooled, out_dim=2), rings(label), Classification(2, "rocauc"), epochs=30, learning_rate=3e-2
    )
    _, reporter, result = run_alone(a_spec, reports)
    assert result["scores"]["valid"]["count"] == 5
    assert reporter.epochs[-1]["train_loss"] < 0.5 * reporter.epochs[0]["train_loss"]


def test_bfloat16_trains(reports):
    _, reporter, _ = run_alone(spec(4, precision="bfloat16", epochs=8, learning_rate=3e-2), reports)
    assert reporter.epochs[-1]["train_loss"] < reporter.epochs[0]["train_loss"]


def test_matrices_decay_and_biases_do_not():
    decayed, plain = Worker(spec(weight_decay=0.1), Records(), 0, 1, CPU).optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert [parameter.ndim for parameter in (*decayed["params"], *plain["params"])] == [2, 2, 1, 1]
    groups = Worker(spec(weight_decay=0.1, decay_all=True), Records(), 0, 1, CPU).optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1]


def test_adams_penalty_is_in_the_gradient_of_all_weights():
    worker, _ = whole_epoch_steps(spec(20, weight_decay=0.1, optimizer="adam"), epochs=0)
    assert isinstance(worker.optimizer, torch.optim.Adam)
    assert not isinstance(worker.optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in worker.optimizer.param_groups] == [0.1, 0.1]
    reference = Pooled()
    reference.load_state_dict(worker.model.state_dict())
    with worker.loader(worker.spec.sampler) as loader:
        (batch,) = list(loader.epoch(0))
        worker.train_epoch(loader, 0)
    target = worker.data.target(batch)
    loss = worker.task.loss(reference(batch).prediction, target) / worker.task.weight(target)
    loss.backward()
    # If the gradient is not close to 0, Adam's first step is the learning rate times the sign of the gradient.
    for ours, theirs in zip(worker.model.parameters(), reference.parameters(), strict=True):
        gradient = theirs.grad + 0.1 * theirs.detach()
        step = theirs.detach() - 1e-2 * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(ours.detach(), step, rtol=1e-4, atol=1e-5)


def test_warm_up_may_be_counted_in_steps(reports):
    _, reporter, _ = run_alone(spec(4, warmup_steps=8, schedule="linear", epochs=4, min_learning_rate=1e-3), reports)
    # An epoch has five steps, so the last step of the first epoch is the fifth of eight warm-up steps.
    assert reporter.epochs[0]["learning_rate"] == pytest.approx(1e-2 * 5 / 8)
    assert reporter.epochs[-1]["learning_rate"] == pytest.approx(1e-3 + 9e-3 * (1 / 12))


@pytest.mark.parametrize("options", [{"ema_decay": 1.0}, {"min_learning_rate": 1.0}])
def test_options_that_cannot_work_are_named(options):
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name}: expected .*; set {name}$"):
        TrainOptions(**options)
