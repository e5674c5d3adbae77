"""A training checkpoint: tensors as safetensors, everything else as JSON. Nothing is pickled, so nothing read can run code.

    model.safetensors      weights after the last finished epoch
    average.safetensors    their moving average, where the run keeps one
    best.safetensors       weights of the best validation score so far (averaged ones, where the run keeps an average)
    optimizer.safetensors  optimizer state, by parameter index
    config.json            the model's configuration: with a file of weights, all that rebuilds the model
    state.json             format version, next epoch, scores, the model's configuration again

Dropout, sampling and the learning rate are functions of (seed, epoch, step, rank), so no generator's state is kept.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from storage.errors import ConfigError, FormatError

CHECKPOINT_VERSION = 1


@dataclass(frozen=True)
class TrainState:
    """Where a run stands."""

    next_epoch: int
    best_epoch: int
    best_score: float | None  # None: not validated yet
    identity: Mapping[str, Any]  # what a run may not change between its parts: graph, split, metric, seed
    model_config: Mapping[str, Any]  # what the model was built from, as plain values


def save_checkpoint(
    directory: Path,
    state: TrainState,
    model: Mapping[str, torch.Tensor],
    best: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    average: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Writes a checkpoint into an existing empty directory, state.json last."""
    for file, tensors in (("model", model), ("average", average), ("best", best)):
        if tensors is not None:
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(whole, directory / f"{file}.safetensors")
    moments = {
        f"{index}.{name}": value.contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    save_file(moments, directory / "optimizer.safetensors")
    (directory / "config.json").write_text(json.dumps(dict(state.model_config), indent=1, default=str) + "\n")
    body = {"format": "graphmill-checkpoint", "format_version": CHECKPOINT_VERSION, **asdict(state)}
    (directory / "state.json").write_text(json.dumps(body, indent=1, default=str, allow_nan=False) + "\n")


def load_state(directory: Path) -> TrainState:
    """The checkpoint's state. Raises FormatError where it is missing, broken or of another version."""
    path = directory / "state.json"
    try:
        body = json.loads(path.read_text())
    except FileNotFoundError:
        raise FormatError(
            f"{path}: expected a checkpoint, found none; was the run stopped before its first one?"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: expected JSON, got broken text ({error})") from None
    if not isinstance(body, dict) or body.get("format") != "graphmill-checkpoint":
        raise FormatError(f"{path}: expected a Graphmill checkpoint, found something else")
    if body.get("format_version") != CHECKPOINT_VERSION:
        raise FormatError(f"{path}: expected format_version {CHECKPOINT_VERSION}, got {body.get('format_version')!r}")
    try:
        return TrainState(
            next_epoch=int(body["next_epoch"]),
            best_epoch=int(body["best_epoch"]),
            best_score=None if body["best_score"] is None else float(body["best_score"]),
            identity=dict(body["identity"]),
            model_config=dict(body["model_config"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path}: expected next_epoch, best_epoch, best_score, identity, model_config; got {error!r}"
        ) from None


def latest_checkpoint(run: Path) -> Path | None:
    """The newest whole checkpoint of a run's directory; None where there is none yet."""
    return max((file.parent for file in (run / "train").glob("epoch-*/state.json")), default=None)


def check_continues(
    state: TrainState, model_config: Mapping[str, Any], identity: Mapping[str, Any], epochs: int, where: str
) -> None:
    """Raises ConfigError naming what differs where a checkpoint is not of the run that is asked for."""
    for kind, theirs, ours in (
        ("another architecture", state.model_config, model_config),
        ("another run", state.identity, identity),
    ):
        expected = json.loads(json.dumps(dict(ours), default=str))
        differing = sorted(key for key in expected.keys() | theirs.keys() if expected.get(key) != theirs.get(key))
        if differing:
            shown = ", ".join(f"{key}: {theirs.get(key)!r} there, {expected.get(key)!r} here" for key in differing[:4])
            raise ConfigError(
                f"{where}: this checkpoint is of {kind} ({shown}); resume with its options, or start another run"
            )
    if epochs < state.next_epoch:
        raise ConfigError(
            f"{where}: {state.next_epoch} epochs are done, got --epochs {epochs}; ask for at least as many"
        )


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Loads a safetensors file into `model`. Raises FormatError where names or shapes do not match."""
    tensors = _load_file(path)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        names = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        first = names[0]
        raise FormatError(
            f"{path}: expected {first} of shape {expected.get(first)}, found {found.get(first)} "
            f"({len(names)} tensors differ); this checkpoint is of another architecture"
        )
    model.load_state_dict(tensors)


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer) -> None:
    """Loads moments written by `save_checkpoint`."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    num_parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    for key, value in _load_file(path).items():
        index, _, name = key.partition(".")
        if not index.isdigit() or int(index) >= num_parameters:
            raise FormatError(f"{path}: expected moments of {num_parameters} parameters, found {key!r}")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _load_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise FormatError(f"{path}: expected a safetensors file, found none") from None
    except SafetensorError as error:
        raise FormatError(f"{path}: expected a safetensors file, found damage ({error})") from None
