"""A run in this process handles failures, attempts and checkpoints in the same way as a run on Ray's workers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.options import WorkerOptions
from graphmill.cluster.runs.records import AttemptRecords, Recorder
from graphmill.cluster.runs.run_directory import RunDirectory
from graphmill.cluster.runs.run_store import RunStore
from graphmill.cluster.training.one_process import ProcessLauncher
from graphmill.cluster.training.train_spec import TrainSpec
from graphmill.cluster.training.trainer import train
from graphmill.core.errors import DamageError, DataError, GraphmillError, StageError
from tests.cluster.training.test_train_loop import Pooled, spec

STEPS = 5  # steps in an epoch


class Failing(Pooled):
    """A model that raises an error in chosen training steps. The steps of all its instances are counted together."""

    seen = 0
    raises: dict[int, Exception]

    def forward(self, batch: Any) -> Any:
        kind = type(self)
        kind.seen += self.training
        if self.training and kind.seen in self.raises:
            raise self.raises[kind.seen]
        return super().forward(batch)


def failing(raises: dict[int, Exception]) -> type[Failing]:
    return type("FailingHere", (Failing,), {"seen": 0, "raises": raises})


def train_here(a_spec: TrainSpec, folder: Path, **workers: Any) -> tuple[dict[str, Any], list[dict[str, Any]], list]:
    """Runs training in this process. Returns (summary, events, records that were shown)."""
    shown: list[Any] = []
    directory = RunDirectory.create(folder, {})
    launcher = ProcessLauncher(WorkerOptions(1, "cpu", launcher="process", **workers), folder)
    summary = train(a_spec, launcher, directory, shown.append)
    return dict(summary), events(folder), shown


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def metrics(folder: Path) -> list[tuple[float, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(len(lines)))
    return [(line["train_loss"], line["valid_loss"]) for line in lines]


def test_a_failed_attempt_is_made_again_from_the_latest_checkpoint(tmp_path):
    undisturbed, _, _ = train_here(spec(checkpoint_every=1), tmp_path / "undisturbed")
    model = failing({STEPS + 3: DataError("graph 7: damaged"), 3 * STEPS: ZeroDivisionError("by zero")})
    disturbed, happened, shown = train_here(spec(checkpoint_every=1, build_model=model), tmp_path / "disturbed")
    assert disturbed == undisturbed
    assert metrics(tmp_path / "disturbed") == metrics(tmp_path / "undisturbed")
    assert [event["epoch"] for event in happened if event["kind"] == "start"] == [0, 1, 2]
    told = [record["what"] for record in shown if record["kind"] == "failure"]
    log = tmp_path / "disturbed" / "failure.log"
    assert told == [
        "training, rank 0: graph 7: damaged",
        f"training, rank 0: ZeroDivisionError: by zero; the traceback is in {log}",
    ]
    assert log.read_text().count("in forward") >= 2
    assert not (tmp_path / "disturbed" / "attempts").exists()


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (DataError("graph 7: damaged"), DataError, "training, rank 0: graph 7: damaged; given up after 1 failure "),
        (OSError(28, "No space left on device"), StageError, "training, rank 0: OSError: [Errno 28] No space left on"),
    ],
)
def test_more_failures_than_the_rate_allows_end_the_run_with_one_line(tmp_path, error, kind, line):
    with pytest.raises(kind) as raised:
        train_here(spec(build_model=failing({2: error})), tmp_path / "run", failures_per_hour=0)
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)
    assert [event["kind"] for event in events(tmp_path / "run")] == ["start", "planned", "failure"]


def test_an_error_of_the_users_code_is_raised_at_once_with_its_cause(tmp_path):
    wrong = KeyError("missing")
    with pytest.raises(StageError, match="rank 0: KeyError") as raised:
        train_here(spec(build_model=failing({2: wrong})), tmp_path / "run")
    assert raised.value.__cause__ is wrong
    assert [event["kind"] for event in events(tmp_path / "run")] == ["start", "planned"]


def test_a_damaged_file_is_not_read_again(tmp_path):
    line = "part-00001/features.arrow: expected the bytes that its manifest names"
    damage = DamageError(line)
    with pytest.raises(DamageError) as raised:
        train_here(spec(build_model=failing({2: damage})), tmp_path / "run")
    assert str(raised.value) == f"training, rank 0: {line}"
    assert [event["kind"] for event in events(tmp_path / "run")] == ["start", "planned"]


def test_what_another_attempt_would_meet_again_is_final(tmp_path):
    endless = replace(spec(), sampler=replace(spec().sampler, batch=replace(spec().sampler.batch, max_graphs=1)))
    train_here(endless, tmp_path / "run")
    directory = RunDirectory.resume(tmp_path / "run", {})
    other = replace(endless, identity={"seed": 1})
    with pytest.raises(GraphmillError, match="this checkpoint is of another run"):
        train(other, ProcessLauncher(WorkerOptions(1, "cpu", launcher="process"), tmp_path / "run"), directory, print)
    assert "failure" not in [event["kind"] for event in events(tmp_path / "run")]


def test_a_checkpoint_that_cannot_be_written_ends_the_attempt(tmp_path, monkeypatch):
    """A thread fails to write the checkpoint. The next attempt continues from the checkpoint before it."""
    full = iter([None, OSError(28, "No space left on device")])
    save = Checkpoints.save

    def save_checkpoint(self: Checkpoints, name: str, snapshot: Any, settle: Any) -> None:
        error = next(full, None)
        if error is not None:
            raise error
        save(self, name, snapshot, settle)

    monkeypatch.setattr(Checkpoints, "save", save_checkpoint)
    _, happened, shown = train_here(spec(checkpoint_every=1), tmp_path / "run")
    assert [event["epoch"] for event in happened if event["kind"] == "start"] == [0, 1]
    assert "No space left on device" in next(record["what"] for record in shown if record["kind"] == "failure")
    assert len(metrics(tmp_path / "run")) == 3


def test_only_the_latest_checkpoints_are_kept(tmp_path):
    train_here(spec(checkpoint_every=1, epochs=6), tmp_path / "run", keep_checkpoints=2)
    names = [path.name for path in sorted((tmp_path / "run" / "train").iterdir())]
    assert names == ["epoch-000005", "epoch-000006"]
    assert Checkpoints(RunStore.of(tmp_path / "run" / "train")).names()[0] == "epoch-000006"


def test_what_a_killed_process_had_not_recorded_is_made_up(tmp_path):
    train_here(spec(checkpoint_every=1), tmp_path / "whole")
    train_here(spec(checkpoint_every=1, epochs=2), tmp_path / "killed")
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "killed" / "metrics.jsonl").write_text(lines[0])
    recorder = Recorder(AttemptRecords.create(RunStore.of(tmp_path / "killed")))
    recorder.push({"kind": "epoch", **json.loads(lines[1])})
    recorder.close()
    directory = RunDirectory.resume(tmp_path / "killed", {})
    launcher = ProcessLauncher(WorkerOptions(1, "cpu", launcher="process"), tmp_path / "killed")
    train(spec(checkpoint_every=1), launcher, directory, lambda _: None)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
