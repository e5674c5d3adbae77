"""Tests the directory of a run. Records are kept, a repeated epoch replaces its old record, and every line is complete."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from graphmill.cluster.runs.run_directory import RunDirectory, load_config
from graphmill.core.errors import ConfigError, FormatError


def record(run: RunDirectory, *epochs: int) -> None:
    for epoch in epochs:
        run.record({"epoch": epoch, "train_loss": 1.0 / (epoch + 1), "valid_accuracy": 0.5})


def recorded(run: RunDirectory) -> list[int]:
    return [line["epoch"] for line in run.metrics()]


def events(run: RunDirectory) -> list[int]:
    accumulator = EventAccumulator(str(run.path / "tensorboard"))
    accumulator.Reload()
    return [event.step for event in accumulator.Scalars("train/loss")]


def test_tensorboard_has_groups_and_the_options(tmp_path):
    run = RunDirectory.create(tmp_path / "run", {"fit": {"epochs": 3, "schedule": "cosine", "clip_norm": None}})
    run.start(0)
    record(run, 0)
    accumulator = EventAccumulator(str(run.path / "tensorboard"))
    accumulator.Reload()
    assert set(accumulator.Tags()["scalars"]) == {"train/loss", "valid/accuracy"}
    content = accumulator.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    options = HParamsPluginData.FromString(content).session_start_info.hparams
    assert options["fit.epochs"].number_value == 3
    assert options["fit.schedule"].string_value == "cosine"


@pytest.mark.parametrize(
    ("starts", "left"),
    [
        ([(0, 1, 2, 3), (2,)], 3),
        ([(0, 1), (0,)], 1),  # repeated from the start, without a checkpoint
        ([(epoch, epoch + 1) for epoch in range(12)], 13),
    ],
)
def test_a_restart_from_an_earlier_epoch_replaces_the_later_ones(tmp_path, starts, left):
    run = RunDirectory.create(tmp_path / "run", {"a": 1})
    for epochs in starts:
        run.start(epochs[0])
        record(run, *epochs)
    assert recorded(run) == list(range(left))
    assert events(run) == list(range(left))


def test_resuming_keeps_what_came_before_and_drops_half_a_line(tmp_path):
    first = RunDirectory.create(tmp_path / "run", {"a": 1})
    first.start(0)
    record(first, 0, 1)
    with open(first.path / "metrics.jsonl", "a") as stream:
        stream.write('{"epoch": 2, "train_lo')
    second = RunDirectory.resume(tmp_path / "run", {"a": 2})
    assert recorded(second) == [0, 1]
    assert load_config(second.path) == {"a": 1}  # the workers have not accepted the new one yet
    second.start(2)
    record(second, 2)
    assert recorded(second) == [0, 1, 2]
    assert events(second) == [0, 1, 2]
    assert load_config(second.path) == {"a": 2}
    text = (second.path / "metrics.jsonl").read_text()
    assert all(json.loads(line) for line in text.splitlines())


def test_numbers_that_json_does_not_have_are_refused(tmp_path):
    run = RunDirectory.create(tmp_path / "run", {})
    run.start(0)
    with pytest.raises(ValueError, match="JSON"):
        run.record({"epoch": 0, "train_loss": float("nan")})


def test_a_directory_that_holds_something_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"found other files \('file'\); choose another --run\.dir"):
        RunDirectory.create(tmp_path, {})
    with pytest.raises(FormatError, match="found none"):
        RunDirectory.resume(tmp_path, {})


def test_what_a_full_disk_raises_reaches_the_caller_and_nothing_is_said_beside_it(tmp_path, capfd):
    run = RunDirectory.create(tmp_path / "run", {})
    record(run, 0)
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    file.unlink()
    file.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        record(run, 1)
    assert capfd.readouterr() == ("", "")
