"""Tests checkpoints. Loaded values equal saved values bit for bit. A checkpoint that does not fit the run is refused with one line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from graphmill.cluster.checkpoints.checkpoint import (
    DATA,
    EpochProgress,
    Snapshot,
    TrainState,
    check_continues,
    load_optimizer,
    load_state,
    load_weights,
    moments_of,
    verify_checkpoint,
)
from graphmill.cluster.checkpoints.checkpoint_store import Checkpoints
from graphmill.cluster.embeddings.rows import TableConfig, TableShard
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError, FormatError, StageError


def _trained(width: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def save_checkpoint(directory: Path, snapshot: Snapshot) -> None:
    Checkpoints(RunStore.of(directory.parent)).save(directory.name, snapshot)


MODEL = {"width": 3, "filter": {"bands": 8}}
RUN = {"graph": "g", "seed": 7, "metric": "accuracy"}
STATE = TrainState(next_epoch=4, best_epoch=2, best_score=0.75, identity=RUN, model_config=MODEL)


@pytest.fixture
def saved(tmp_path):
    model, optimizer = _trained()
    best = {k: v + 1 for k, v in model.state_dict().items()}
    save_checkpoint(tmp_path / "epoch", Snapshot(STATE, model.state_dict(), best, moments_of(optimizer)))
    return tmp_path / "epoch", model, optimizer


def test_everything_comes_back_bit_for_bit(saved):
    directory, model, optimizer = saved
    fresh, fresh_optimizer = _trained()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh_optimizer.state.clear()
    load_weights(directory / "model.safetensors", fresh)
    load_optimizer(directory / "optimizer.safetensors", fresh_optimizer)
    assert load_state(directory) == STATE
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name])
    # Moments and step counts are restored too, so the next step has the same result.
    for network, optim in ((model, optimizer), (fresh, fresh_optimizer)):
        network(torch.ones(1, 4)).sum().backward()
        optim.step()
    for ours, theirs in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_checkpoint_takes_the_files_of_all_owners_of_a_table_or_is_none(tmp_path):
    model, optimizer = _trained()
    config = TableConfig(width=3, optimizer="adagrad", seed=5, num_nodes=20, is_exact=True, num_positions=1)
    table = tmp_path / "run" / ".table-1-7"
    snapshot = Snapshot(STATE, model.state_dict(), model.state_dict(), moments_of(optimizer), table=table)
    for number in (None, 0):
        if number is not None:
            TableShard(config, number, 2).save(table)
        with pytest.raises(
            StageError, match=r"\.table-1-7: expected the files of .* all hosts must write the run's directory"
        ):
            save_checkpoint(tmp_path / "run" / "epoch", snapshot)
        assert not (tmp_path / "run" / "epoch").exists()
    TableShard(config, 1, 2).save(table)
    (table / "table-0001-of-0002.rows.tmp").write_text("")  # left by an owner that died
    save_checkpoint(tmp_path / "run" / "epoch", snapshot)
    verify_checkpoint(tmp_path / "run" / "epoch")
    assert len([*(tmp_path / "run" / "epoch").glob("table-*")]) == 8
    assert not table.exists()


@pytest.mark.parametrize(
    ("model", "run", "epochs", "message"),
    [
        ({"width": 4}, {}, 4, r"another architecture \(width: 3 there, 4 here\)"),
        ({}, {"graph": "other"}, 4, "another run .graph:"),
        ({}, {"seed": 8}, 4, "another run .seed:"),
        ({}, {"metric": "rocauc"}, 4, "another run .metric:"),
        ({}, {}, 3, r"4 epochs are done, got --fit\.epochs 3"),
    ],
)
def test_another_run_is_refused(saved, model, run, epochs, message):
    state = load_state(saved[0])
    check_continues(state, MODEL, RUN, 4, "here")
    with pytest.raises(ConfigError, match=message):
        check_continues(state, MODEL | model, RUN | run, epochs, "here")


def test_a_position_within_an_epoch_comes_back_to_the_last_bit(tmp_path):
    model, optimizer = _trained()
    sums = ((0.1 + 0.2, 1 / 3, 3.0, 5e-324, 1e300), (2.0**-53, 0.0, 1.0, 2.0, 3.0))
    part = EpochProgress(17, {"epoch": 4, "step": 34, "fingerprint": "0123456789abcdef"}, sums, {"train_s": 1.1})
    state = replace(STATE, part=part, best_score=None)
    assert state.name == "epoch-000004-step-00000017"
    save_checkpoint(tmp_path / state.name, Snapshot(state, model.state_dict(), {}, moments_of(optimizer)))
    assert load_state(tmp_path / state.name) == state


@pytest.mark.parametrize("file", ["model.safetensors", "best.safetensors", "optimizer.safetensors", "config.json"])
def test_a_bit_that_flips_is_found(saved, file):
    verify_checkpoint(saved[0])
    path = saved[0] / file
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=f"{file}: expected the bytes that were saved"):
        verify_checkpoint(saved[0])
    path.unlink()
    with pytest.raises(FormatError, match=f"{file}: expected a file of the checkpoint"):
        verify_checkpoint(saved[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "names of files beside it") for name in ("../../secret", "/etc/hostname", "sub/model.safetensors")),
        *((name, "a file of the checkpoint") for name in ("\0", "\ud800", "none")),
        (None, "a digest for every file"),
    ],
)
def test_digests_that_no_checkpoint_has_are_refused(saved, name, message):
    path = saved[0] / "state.json"
    body = {name: value for name, value in json.loads(path.read_text()).items() if name not in ("digest", "sha256")}
    path.write_text(json.dumps(body if name is None else body | {"sha256": {name: "0" * 64}}))
    with pytest.raises(FormatError, match=f"expected {message}") as error:
        verify_checkpoint(saved[0])
    str(error.value).encode()


def test_a_checkpoint_appears_whole_or_not_at_all(tmp_path):
    model, optimizer = _trained()
    not_json = replace(STATE, best_score=float("nan"))
    with pytest.raises(ValueError, match="JSON"):
        save_checkpoint(tmp_path / "c", Snapshot(not_json, model.state_dict(), {}, moments_of(optimizer)))
    assert list(tmp_path.iterdir()) == []


def test_data_of_older_checkpoints_may_be_unknown_and_known_data_must_be_the_same():
    def identity(**more: str) -> dict[str, str]:
        return {"graph": "g", **more}

    def check(theirs: dict[str, str], ours: dict[str, str]) -> None:
        check_continues(replace(STATE, identity=theirs), STATE.model_config, ours, 99, "run")

    check(identity(), identity(**{DATA: "b", "evaluation": "full"}))
    check(identity(**{DATA: "b"}), identity())  # the graph's files are not available yet
    check(identity(**{DATA: "b"}), identity(**{DATA: "b"}))
    with pytest.raises(ConfigError, match="labels, splits and features: 'a' there, 'b' here"):
        check(identity(**{DATA: "a"}), identity(**{DATA: "b"}))
    with pytest.raises(ConfigError, match="ema_decay"):
        check(identity(), identity(ema_decay="0.9"))
    # Older versions had no option `seed` for classic models, and no option `local` for GECO over many graphs.
    check_continues(STATE, {**STATE.model_config, "seed": 1, "local": {}}, STATE.identity, 99, "run")
    with pytest.raises(ConfigError, match=r"another run \(seed: '1' there, None here"):
        check(identity(seed="1"), identity())


def test_another_architecture_is_refused_by_shape(saved):
    other, _ = _trained(width=5)
    with pytest.raises(FormatError, match=r"0\.bias of shape \(5,\), found \(3,\)"):
        load_weights(saved[0] / "model.safetensors", other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a checkpoint, found none"),
        ("{", "broken text"),
        ("[]", "expected an object, got list"),
        (json.dumps({"format": "graphmill-checkpoint", "format_version": 99}), "format_version 2, got 99"),
        (json.dumps({"format": "graphmill-checkpoint", "format_version": 1}), "next_epoch"),
    ],
)
def test_broken_state_is_one_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    with pytest.raises(FormatError, match=message) as caught:
        load_state(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_pickle_in_place_of_weights_is_refused(saved):
    directory, model, _ = saved
    torch.save({"weight": torch.ones(1)}, directory / "model.safetensors")
    with pytest.raises(FormatError, match="found damage"):
        load_weights(directory / "model.safetensors", model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.step": None}, "expected 0.step beside the other moments"),
        ({"1.exp_avg": None}, "expected 1.exp_avg beside the other moments"),
        ({"99.step": torch.ones(())}, "of 4 parameters, found '99.step'"),
        ({"00.step": torch.ones(())}, "of 4 parameters, found '00.step'"),
        ({"0.else": torch.ones(())}, "expected step, exp_avg, exp_avg_sq of 4 parameters, found '0.else'"),
        ({"²": torch.ones(())}, "of 4 parameters"),
        ({"9" * 5000: torch.ones(())}, "of 4 parameters"),
        ({"0.exp_avg": torch.ones(2, 2)}, r"expected '0.exp_avg' of shape \(3, 4\), found \(2, 2\)"),
        ({"0.step": torch.ones(3, 4)}, r"expected '0.step' of shape \(\), found \(3, 4\)"),
    ],
)
def test_moments_of_something_else_are_refused(saved, change, message):
    directory, _, optimizer = saved
    tensors = load_file(directory / "optimizer.safetensors") | change
    save_file({k: v for k, v in tensors.items() if v is not None}, directory / "optimizer.safetensors")
    with pytest.raises(FormatError, match=message):
        load_optimizer(directory / "optimizer.safetensors", optimizer)


@pytest.mark.parametrize("key", ["99.x", "00.x", "²", "9" * 5000])
def test_states_of_another_optimizer_are_of_its_parameters(tmp_path, key):
    optimizer = torch.optim.SGD(_trained()[0].parameters(), lr=0.1)
    save_file({key: torch.ones(())}, tmp_path / "optimizer.safetensors")
    with pytest.raises(FormatError, match="expected a state of 4 parameters, found"):
        load_optimizer(tmp_path / "optimizer.safetensors", optimizer)


@pytest.mark.parametrize(
    "text", ["9" * 5000, "[" * 5000, '{"next_epoch": 1e999}', '{"best_score": 1' + "0" * 400 + "}", "\x00", "NaN"]
)
def test_a_state_that_json_takes_ill_is_refused(saved, text):
    directory, _, _ = saved
    body = json.loads((directory / "state.json").read_text())
    body.pop("digest")
    changed = json.dumps(body)
    if text.startswith("{"):
        name, value = text.strip("{}").split(": ")
        changed = changed.replace(f"{name}: {json.dumps(body[name.strip(chr(34))])}", f"{name}: {value}")
        assert value in changed
    else:
        changed = text
    (directory / "state.json").write_text(changed)
    with pytest.raises(FormatError, match=r"state\.json: expected"):
        load_state(directory)
