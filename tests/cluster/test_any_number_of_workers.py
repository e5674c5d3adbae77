"""With V micro-batches in each step, runs with 1, 2, 3 and 4 workers train the same weights. So does a run that stops and resumes with other numbers of
workers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.process.outcome import Finished
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.tasks import StepOutput
from graphmill.cluster.training.checkpoint_writer import CheckpointRequest, CheckpointWriter
from graphmill.cluster.training.train_loop import Worker
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.models.operators.favor import FavorAttention
from graphmill.models.primitives.batch_norm import RowBatchNorm
from graphmill.samplers.methods.graph_batches import TorchGraphBatch
from tests.cluster.training.test_train_loop import CPU, Records, spec, write_at_once
from tests.forked_ranks import run_ranks

MOVED = (
    (4, 3),
    (3, 4),
    (1, 2),
    (4, None),
)  # (workers, steps before a stop is requested); stops are within epochs and between epochs


class Mixed(nn.Module):
    """A model with dropout, BatchNorm, attention with redrawn random features, and a weight that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.norm, self.attention = RowBatchNorm(8), FavorAttention(8, 8, redraw_interval=3)
        self.rare = nn.Parameter(torch.ones(1))
        self.register_buffer("constant", torch.full((3,), 0.1))

    def forward(self, batch: TorchGraphBatch) -> StepOutput:
        h_nD = nn.functional.dropout(self.norm(self.first(batch.node_feature)), 0.3, self.training)
        h_BHTD = h_nD.relu()[None, None]
        h_nD = h_nD + self.attention(h_BHTD, h_BHTD, h_BHTD)[0, 0]
        out = torch.segment_reduce(self.second(h_nD), "sum", offsets=batch.node_ptr, axis=0)
        return StepOutput(out * self.rare if batch.index % 3 == 0 else out, self.second.weight.square().sum())


def a_spec(**options: Any) -> Any:
    settings = {"epochs": 10, "weight_decay": 0.1, "clip_norm": 1.0, "ema_decay": 0.9, "micro_batches": 4}
    return spec(3, Mixed, **settings | options)


def train_part(
    spec: TrainSpec, rank: int, num_workers: int, folder: Path, stop_after: int | None
) -> tuple[Worker, Records, Any]:
    """Trains one rank in one part of a run. Begins at the newest checkpoint in `folder`.

    After `stop_after` steps the driver asks the rank to save a checkpoint and end.
    """
    reporter, checkpoints = Records(), Checkpoints(RunStore.of(folder))
    worker = Worker(spec, reporter, rank, num_workers, CPU, CheckpointWriter(checkpoints, rank, None, write_at_once))
    if stop_after is not None and rank == 0:
        requests = [CheckpointRequest.NONE] * (stop_after - 1) + [CheckpointRequest.SAVE_AND_STOP] * 100
        worker._request = iter(requests).__next__  # type: ignore[method-assign]
    worker.restore(checkpoints)
    return worker, reporter, worker.run()


def train(rank: int, num_workers: int, folder: Path, stop_after: int | None) -> dict[str, Any]:
    worker, reporter, outcome = train_part(a_spec(), rank, num_workers, folder, stop_after)
    assert worker.average is not None
    moments = {f"moment {i} {k}": v for i, s in worker.optimizer.state_dict()["state"].items() for k, v in s.items()}
    return {
        "records": reporter.epochs,
        "scores": outcome.summary["scores"] if isinstance(outcome, Finished) else None,
        "model": {**worker.best, **moments, **{f"average {k}": v for k, v in worker.average.state_dict().items()}},
    }


def run_rank(
    rank: int, folder: str, runs: dict[str, tuple[tuple, ...]], train_rank: Callable[..., dict[str, Any]]
) -> None:
    """Takes part in all runs as this rank. `runs` has the parts of each run: (workers, arguments of `train_rank` …). The run "alone" has no process group."""
    torch.set_num_threads(1)  # all processes use one thread: the number of threads changes the last digits
    for name, parts in runs.items():
        for number, (num_workers, *arguments) in enumerate(parts):
            if rank >= num_workers:
                continue
            if name != "alone":
                meeting = f"file://{folder}/meet-{name}-{number}"
                dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num_workers)
            result = train_rank(rank, num_workers, Path(folder) / name, *arguments)
            torch.save(result, f"{folder}/{name}-{number}-{rank}.pt")
            if name != "alone":
                dist.destroy_process_group()


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files of all runs. Four processes are the workers; each run uses as many of these processes as it needs."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {"alone": ((1, None),), **{f"with-{count}": ((count, None),) for count in (1, 2, 3, 4)}, "moved": MOVED}
    run_ranks(run_rank, (str(folder), runs, train), 4)
    return folder


def found(folder: Path, name: str, number: int, rank: int) -> dict[str, Any]:
    return torch.load(folder / f"{name}-{number}-{rank}.pt", weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_any_number_of_workers_trains_the_same_weights(folder, num_workers):
    alone = found(folder, "alone", 0, 0)  # without a process group
    assert len(alone["records"]) == 10
    losses = [record["train_loss"] for record in alone["records"]]
    assert losses[-1] < losses[0]
    for rank in range(num_workers):
        ours = found(folder, f"with-{num_workers}", 0, rank)
        assert ours["records"] == (alone["records"] if rank == 0 else [])
        assert ours["scores"] == alone["scores"]
        assert_equal(ours["model"], alone["model"])


@pytest.mark.slow
def test_another_number_of_workers_goes_on_after_any_step(folder):
    alone = found(folder, "alone", 0, 0)
    parts = [found(folder, "moved", number, 0) for number in range(len(MOVED))]
    assert [record for part in parts for record in part["records"]] == alone["records"]
    for rank in range(4):
        last = found(folder, "moved", len(MOVED) - 1, rank)
        assert last["scores"] == alone["scores"]
        assert_equal(last["model"], alone["model"])
