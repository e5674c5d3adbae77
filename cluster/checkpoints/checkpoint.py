"""A training checkpoint holds tensors as safetensors and everything else as JSON. Nothing is pickled, so reading a checkpoint cannot run code.

    model.safetensors      weights after the last step
    average.safetensors    moving average of the weights, if the run keeps an average
    best.safetensors       weights of the epoch with the best validation score so far (averaged weights, if the run keeps an average)
    optimizer.safetensors  optimizer state, by parameter index
    table-….npy            each owner's rows, best rows and state of an embedding table (`graphmill.cluster.embeddings.rows`)
    config.json            the model's configuration, which rebuilds the model together with a file of weights
    state.json             format version, position, scores, the model's configuration again, and every file's SHA-256

A checkpoint gets its final name only after all its files were written and synced. Dropout, sampling and the learning rate are functions of
(seed, epoch, step, position). Therefore no state of a random generator is saved.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file

from graphmill.cluster.embeddings.rows import saved_shards
from graphmill.core.errors import ConfigError, FormatError, StageError
from graphmill.core.files.json_object import parse_object
from graphmill.core.files.small_files import read_small
from graphmill.storage.filesystem.fsync import sync_file
from graphmill.storage.format.arrow_files import file_digest

CHECKPOINT_VERSION = 2  # version 1 has no digests and no positions within an epoch; it can still be read

DATA = "labels, splits and features"  # the digest of this data has this key in a run's identity
# Keys that older checkpoints may lack: the seed of classic models, the local block of GECO over many graphs. A changed local block shows in the shapes of the
# weights.
_LATER_IN_MODEL = ("seed", "local")
_LATER_IN_RUN = (DATA, "evaluation", "micro_batches")

# Names of the files of a checkpoint and of the best weights. Only files with these names are removed.
OURS = re.compile(
    r"(model|average|best|optimizer)\.safetensors|(config|state)\.json|table-\d{4,}-of-\d{4,}\.[a-z0-9]+\.npy"
)
# Names that `TrainState.name` and `Checkpoints.unused_name` make
NAME = re.compile(r"epoch-\d{6,}(-step-\d{8,})?(\+\d+)?")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # names of AdamW's state of a parameter


@dataclass(frozen=True)
class EpochProgress:
    """The progress within an epoch. It holds everything that the epoch's record needs, except the weights."""

    step: int  # optimizer steps done
    position: Mapping[str, int | str]  # the loader's position and fingerprint (`Loader.state_dict`)
    sums: tuple[tuple[float, ...], ...]  # for each position of a step, in order: its sums so far
    spent: Mapping[str, float]  # rank 0's measured times and counts so far


@dataclass(frozen=True)
class TrainState:
    """The progress of a run, without weights and optimizer state."""

    next_epoch: int
    best_epoch: int
    best_score: float | None  # None: not validated yet
    identity: Mapping[str, Any]  # must stay the same when the run is resumed: data, split, metric, scoring, seed
    model_config: Mapping[str, Any]  # the model's configuration, as plain values
    part: EpochProgress | None = None  # progress within `next_epoch`; None: that epoch has not begun
    since_best: int = 0  # validations since the best score (for early stopping)
    table_step: int = 0  # optimizer steps that are applied to the embedding table
    own: str = ""  # JSON: state of the user's own scheduler and callbacks; empty: there are none

    @property
    def position(self) -> tuple[int, int]:
        """The (epoch, step) with which training continues."""
        return self.next_epoch, 0 if self.part is None else self.part.step

    @property
    def name(self) -> str:
        """The checkpoint's name. The alphabetical order of names is the order of positions."""
        return f"epoch-{self.next_epoch:06d}" + ("" if self.part is None else f"-step-{self.part.step:08d}")


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint in memory. Training can go on while the checkpoint is written."""

    state: TrainState
    model: Mapping[str, torch.Tensor]
    best: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]
    average: Mapping[str, torch.Tensor] | None = field(default=None)
    # Folder with the owners' files of an embedding table; the files are moved into the checkpoint
    table: Path | None = None


def moments_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Returns the optimizer's state; a key is "parameter index.name". The tensors are not copied."""
    states = optimizer.state_dict()["state"].items()
    every = {f"{index}.{name}": value for index, values in states for name, value in values.items()}
    if isinstance(optimizer, torch.optim.Adam):
        return every
    # Other optimizers than Adam create None entries again, so these are left out. Python numbers become tensors, because a checkpoint holds only tensors.
    moments = {name: value for name, value in every.items() if value is not None}
    for name, value in moments.items():
        if isinstance(value, int | float):
            moments[name] = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
        elif not isinstance(value, torch.Tensor):
            raise ConfigError(
                f"optimizer: expected {type(optimizer).__name__} to keep tensors and numbers, which a checkpoint can hold, got {name} of {type(value).__name__}"
            )
    return moments


def write_files(directory: Path, snapshot: Snapshot) -> None:
    """Writes a checkpoint's files to an empty folder and syncs them. Raises OSError if writing fails, StageError if a table's files are missing."""
    state = snapshot.state
    files = (
        ("model", snapshot.model),
        ("average", snapshot.average),
        ("best", snapshot.best),
        ("optimizer", snapshot.moments),
    )
    for file, tensors in files:
        if tensors is not None:
            whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
            try:
                save_file(whole, directory / f"{file}.safetensors")
            except SafetensorError as error:  # safetensors reports a full disk with this error too, as text
                raise OSError(f"{directory / file}.safetensors: {error}") from error
    (directory / "config.json").write_text(json.dumps(dict(state.model_config), indent=1, default=str) + "\n")
    if snapshot.table is not None:
        _move_table(snapshot.table, directory)
    write_state(directory, state)


def _move_table(table: Path, directory: Path) -> None:
    """Moves the owners' files into the checkpoint. Raises StageError if the files of an owner are missing."""
    try:
        for _ in saved_shards(table):
            pass
    except FormatError as error:
        raise StageError(
            f"{error}; all hosts must write the run's directory, each owner its files: set --run.dir to a shared folder"
        ) from None
    for path in sorted(table.glob("table-*.npy")):
        path.rename(directory / path.name)
    shutil.rmtree(table, ignore_errors=True)


def _write_body(directory: Path, body: Mapping[str, Any]) -> None:
    """Writes state.json with a digest of its own content. The digest reveals any later change of the content."""
    plain = json.loads(json.dumps(dict(body), default=str, allow_nan=False))
    path = directory / "state.json"
    path.write_text(json.dumps(plain | {"digest": _body_digest(plain)}, indent=1) + "\n")
    sync_file(path)


def _body_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(body), sort_keys=True).encode()).hexdigest()


def write_best(directory: Path, checkpoint: Path) -> None:
    """Writes a checkpoint's best weights to an empty folder as `model.safetensors`, and syncs the folder."""
    shutil.copy(checkpoint / "best.safetensors", directory / "model.safetensors")
    if (checkpoint / "config.json").exists():  # checkpoints of version 1 may have no digests
        shutil.copy(checkpoint / "config.json", directory / "config.json")
    for path in (*checkpoint.glob("table-*.ids.npy"), *checkpoint.glob("table-*.best.npy")):
        shutil.copy(path, directory / path.name)
    write_digests(directory, checkpoint)


def write_digests(directory: Path, checkpoint: Path) -> None:
    """Writes the checkpoint's state with the digests of the files in `directory`, and syncs these files."""
    digests = _synced_digests(directory)
    _write_body(directory, _state_body(checkpoint) | {"format_version": CHECKPOINT_VERSION, "sha256": digests})


def write_state(directory: Path, state: TrainState) -> None:
    """Writes `state` and the digests of the folder's files."""
    kind = {"format": "graphmill-checkpoint", "format_version": CHECKPOINT_VERSION}
    _write_body(directory, kind | {"sha256": _synced_digests(directory)} | asdict(state))


def _synced_digests(directory: Path) -> dict[str, str]:
    """Syncs all files of a folder and returns their digests by name."""
    digests = {}
    for path in sorted(directory.iterdir()):
        sync_file(path)
        digests[path.name] = file_digest(path)
    return digests


def verify_checkpoint(directory: Path) -> None:
    """Raises FormatError that names the first file that was changed since it was saved. Checkpoints of version 1 have no digests."""
    body = _state_body(directory)
    digests = body.get("sha256", {} if body["format_version"] == 1 else None)
    if not isinstance(digests, dict):
        raise FormatError(f"{directory / 'state.json'}: expected a digest for every file, got {type(digests).__name__}")
    for name, digest in digests.items():
        if Path(name).name != name:
            raise FormatError(f"{directory / 'state.json'}: expected names of files beside it, got {name!r}")
        try:
            found_digest = file_digest(directory / name)
        except (OSError, ValueError) as error:  # ValueError: the name is no file name, for example it has a zero byte
            reason = error.strerror if isinstance(error, OSError) else error
            raise FormatError(
                f"{directory / ascii(name)[1:-1]}: expected a file of the checkpoint, got {reason}"
            ) from None
        if found_digest != digest:
            raise FormatError(
                f"{directory / name}: expected the bytes that were saved (SHA-256 {str(digest)[:12]}), found others "
                f"({found_digest[:12]}); the file is damaged"
            )


def load_state(directory: Path) -> TrainState:
    """Reads the checkpoint's state. Raises FormatError if the state is missing, broken or of another version."""
    return parse_state(_state_text(directory), str(directory / "state.json"))


def parse_state(content: bytes, path: str) -> TrainState:
    """Parses the content of a state.json. Raises FormatError if the content is broken or of another version."""
    from pydantic import TypeAdapter, ValidationError  # a new run reads no state

    try:
        return TypeAdapter(TrainState).validate_python(_parse_body(content, path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(name) for name in first["loc"])
        raise FormatError(f"{path}: expected a training state, got {where}: {first['msg']}") from None


def _state_body(directory: Path) -> dict[str, Any]:
    return _parse_body(_state_text(directory), str(directory / "state.json"))


def _state_text(directory: Path) -> bytes:
    path = directory / "state.json"
    try:
        return read_small(path)
    except FileNotFoundError:
        raise FormatError(
            f"{path}: expected a checkpoint, found none; was the run stopped before its first one?"
        ) from None


def _parse_body(content: bytes, path: str) -> dict[str, Any]:
    body = parse_object(content, path, "the file is damaged")
    if body.get("format") != "graphmill-checkpoint":
        raise FormatError(f"{path}: expected a Graphmill checkpoint, found something else")
    if body.get("format_version") not in (1, CHECKPOINT_VERSION):
        raise FormatError(f"{path}: expected format_version {CHECKPOINT_VERSION}, got {body.get('format_version')!r}")
    digest = body.pop("digest", None)
    if digest is not None and digest != _body_digest(body):
        raise FormatError(f"{path}: expected the text that was saved, found another; the file is damaged")
    return body


def check_continues(
    state: TrainState, model_config: Mapping[str, Any], identity: Mapping[str, Any], epochs: int, where: str
) -> None:
    """Raises ConfigError if the checkpoint is not of this run; the message names the differences."""
    for kind, theirs, ours, later in (
        ("another architecture", state.model_config, model_config, _LATER_IN_MODEL),
        ("another run", state.identity, identity, _LATER_IN_RUN),
    ):
        expected = json.loads(json.dumps(dict(ours), default=str))
        keys = (expected.keys() | theirs.keys()) - {
            name for name in later if name not in theirs or name not in expected
        }
        differing = sorted(key for key in keys if expected.get(key) != theirs.get(key))
        if differing:
            differences = ", ".join(
                f"{key}: {theirs.get(key)!r} there, {expected.get(key)!r} here" for key in differing[:4]
            )
            raise ConfigError(
                f"{where}: this checkpoint is of {kind} ({differences}); resume with its options, or start another run"
            )
    if epochs < state.next_epoch:
        raise ConfigError(
            f"{where}: {state.next_epoch} epochs are done, got --fit.epochs {epochs}; ask for at least as many"
        )


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Loads a safetensors file into `model`. Raises FormatError if names or shapes do not match."""
    _set_weights(model, _load_file(path), str(path))


def parse_weights(content: bytes, path: str, model: torch.nn.Module) -> None:
    """Does the same as `load_weights`, with the content of the file instead of its path."""
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise FormatError(f"{path}: expected a safetensors file, found damage ({error})") from None
    _set_weights(model, tensors, path)


def _set_weights(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], path: str) -> None:
    try:
        set_weights(model, tensors)
    except ValueError as error:
        raise FormatError(f"{path}: {error}; this checkpoint is of another architecture") from None


def set_weights(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Loads the tensors into `model`. Raises ValueError if names or shapes do not match."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != shapes:
        names = sorted(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
        first = names[0]
        shape = f"expected {first} of shape {expected.get(first)}, found {shapes.get(first)}"
        raise ValueError(f"{shape} ({len(names)} tensors differ)")
    model.load_state_dict(tensors)


def load_optimizer(path: Path, optimizer: torch.optim.Optimizer) -> None:
    """Loads the optimizer's state written by `write_files`. Raises FormatError if it does not fit this optimizer's parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_index = {str(index): parameter for index, parameter in enumerate(parameters)}
    # An optimizer that is not AdamW has tensors of any name and shape
    is_adam = isinstance(optimizer, torch.optim.Adam)
    kinds = ", ".join(_MOMENTS) if is_adam else "a state"
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in _load_file(path).items():
        index, _, name = key.partition(".")
        parameter = by_index.get(index)
        if parameter is None or (is_adam and name not in _MOMENTS):
            raise FormatError(f"{path}: expected {kinds} of {len(parameters)} parameters, found {key!r}")
        shape = () if name == "step" else tuple(parameter.shape)
        if is_adam and tuple(value.shape) != shape:
            raise FormatError(f"{path}: expected {key!r} of shape {shape}, found {tuple(value.shape)}")
        state.setdefault(int(index), {})[name] = value
    for number, moments in state.items() if is_adam else ():
        lacking = [name for name in _MOMENTS if name not in moments]
        if lacking:
            raise FormatError(f"{path}: expected {number}.{lacking[0]} beside the other moments, found none")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _load_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise FormatError(f"{path}: expected a safetensors file, found none") from None
    except SafetensorError as error:
        raise FormatError(f"{path}: expected a safetensors file, found damage ({error})") from None
