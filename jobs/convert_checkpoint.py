"""Converts a published checkpoint to `model.safetensors` and `config.json`:

    python jobs/convert_checkpoint.py --source tokengt --checkpoint checkpoint_best.pt --out converted/

You should see the number of tensors and parameters within seconds, and exit code 1 with one line that names the tensor if the architecture does not match. Name
maps: models/tokengt/published.py, models/grit/published.py. The input is a `.safetensors` file, or a file of `torch.save`, read with `weights_only=True`: a
file that holds more than tensors and plain containers is refused. A file of fairseq also holds options: first write its state dict to a new file, on the
machine that made it: `torch.save(torch.load(path)["model"], "weights.pt")`. `load_converted(folder)` builds the model again.
"""

import dataclasses
import json
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphmill.core.errors import ConfigError, FormatError, quoted
from graphmill.core.files.json_object import parse_object
from graphmill.core.files.small_files import check_regular, read_small
from graphmill.jobs.cli.exit_codes import run
from graphmill.jobs.config.reader import build, parse
from graphmill.samplers.methods.registry import load
from graphmill.storage.filesystem.filesystem_errors import one_line, one_line_errors

if TYPE_CHECKING:
    from torch import Tensor, nn

# Import paths of each source's conversion, model and options.
_MODELS = {
    "tokengt": (
        "graphmill.models.tokengt.published:convert",
        "graphmill.models.tokengt.network:TokenGT",
        "graphmill.models.tokengt.options:TokenGTConfig",
    ),
    "grit": (
        "graphmill.models.grit.published:convert",
        "graphmill.models.grit.network:GRIT",
        "graphmill.models.grit.options:GRITConfig",
    ),
}
# Errors of torch, pickle, zipfile and struct for a file that is cut, damaged or of another format.
_DAMAGE = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError),
    *(TypeError, ValueError, struct.error, zipfile.BadZipFile, zlib.error),
)
# Keys under which a checkpoint of fairseq, GraphGym, Lightning and others holds the weights.
STATE_KEYS = ("model", "model_state", "state_dict")


@dataclass(frozen=True)
class ConvertConfig:
    """Convert a published checkpoint to model.safetensors and config.json."""

    source: Literal["tokengt", "grit"]
    """The model whose released code wrote the checkpoint."""
    checkpoint: Path
    """A .safetensors file, or a .pt or .ckpt file of tensors."""
    out: Path
    """The folder to write; it must be absent or empty."""
    num_heads: int | None = None
    """TokenGT: number of attention heads, which the shapes of the tensors do not show; default: 32, as in the published model."""
    task: Literal["graph", "node"] | None = None
    """GRIT: input of the head, which the shapes of the tensors do not show; default: graph."""
    pool: Literal["sum", "mean", "max"] | None = None
    """GRIT: the pooling of graph tasks; default: sum, as on ZINC. All other released configurations have mean."""
    activation: Literal["relu", "gelu"] | None = None
    """GRIT: activation of feed-forward networks and head; default: relu. The released PCQM4Mv2 configuration has gelu."""
    transposed_rrwp: bool | None = None
    """GRIT: use walks towards the query, as GRIT's code did before December 2024 and for all published numbers; default: yes."""


def convert_state(source: str, state: "Mapping[str, Tensor]", **options: Any) -> "nn.Module":
    """The model with the published weights. `options`: values that the shapes of the tensors do not show; None: the default.

    Raises ValueError for another architecture, ConfigError for an option that this model does not have.
    """
    from graphmill.cluster.checkpoints.checkpoint import set_weights

    options = {name: value for name, value in options.items() if value is not None}
    foreign = sorted(options.keys() - {"num_heads"})
    if source == "tokengt" and foreign:
        raise ConfigError(f"--source tokengt has the option --num_heads only, got {', '.join(foreign)}; leave it out")
    convert, kind, _ = map(load, _MODELS[source])
    config, weights = convert(state, **options)
    model = kind(config)
    set_weights(model, weights)
    return model


def read_state(path: Path) -> "dict[str, Tensor]":
    """A published state dict. Raises FormatError if the file is missing, damaged or holds more than tensors."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        check_regular(path)
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of newer pickle versions, which are refused anyway
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise FormatError(f"{path}: expected a checkpoint, found none") from None
    except pickle.UnpicklingError:
        raise FormatError(
            f"{path}: expected tensors only, found other objects, which are not loaded as they could run code; "
            "write its state dict alone where it was made (see --help)"
        ) from None
    except (SafetensorError, *_DAMAGE) as error:
        raise FormatError(f"{path}: expected a checkpoint, found damage ({one_line(error)[:200]})") from None
    for key in STATE_KEYS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        keys = ", ".join(STATE_KEYS)
        raise FormatError(f"{path}: expected a dictionary of tensors by name (also under {keys}), found another")
    for name, tensor in state.items():
        is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
        # a view of a small storage can have any shape
        if not is_dense or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise FormatError(f"{path}: expected dense tensors with a value for each element, found {quoted(name)}")
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


def save_converted(model: "nn.Module", source: str, folder: Path) -> None:
    """Writes model.safetensors, then config.json."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    (folder / "model.safetensors").write_bytes(save(weights))
    config: Any = model.config
    described = {"model": type(model).__name__, "from": source, "config": dataclasses.asdict(config)}
    (folder / "config.json").write_text(json.dumps(described, indent=1) + "\n")


def load_converted(folder: Path) -> "nn.Module":
    """The model that `save_converted` wrote. Raises FormatError if a file is missing or the two do not match."""
    where = folder / "config.json"
    try:
        described = parse_object(read_small(where), str(where))
    except FileNotFoundError:
        raise FormatError(f"{folder}: expected config.json beside model.safetensors, found none") from None
    from graphmill.cluster.checkpoints.checkpoint import load_weights
    from graphmill.models.options.features import Features

    for _, kind, config in _MODELS.values():
        if kind.endswith(f":{described.get('model')}"):
            options, fields = load(config), described.get("config")
            if not isinstance(fields, dict) or not fields.keys() >= set(options.GIVEN):
                raise FormatError(
                    f"{where}: expected the options of {kind}, found others; convert the checkpoint again"
                )
            inputs = {name: fields.pop(name) for name in options.GIVEN}
            inputs |= {name: build(Features, inputs[name]) for name in ("node", "edge")}
            model = load(kind)(build(options, fields, given=inputs))
            load_weights(folder / "model.safetensors", model)
            return model
    raise FormatError(f"{where}: expected a model of TokenGT or GRIT, found {quoted(described.get('model'))}")


def main() -> None:
    config = parse(ConvertConfig, __doc__)
    from graphmill.storage.filesystem.object_stores import list_names
    from graphmill.storage.filesystem.outputs import check_output, whole_folder

    check_output(config.out, "a converted checkpoint", list_names)  # refuses a folder that holds files
    state = read_state(config.checkpoint)
    try:
        options = ("num_heads", "task", "pool", "activation", "transposed_rrwp")
        model = convert_state(config.source, state, **{name: getattr(config, name) for name in options})
    except ValueError as error:
        raise FormatError(f"{config.checkpoint}: {error}") from None
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError) as error:
        raise FormatError(
            f"{config.checkpoint}: expected the tensors of {config.source}, found other shapes ({one_line(error)[:200]})"
        ) from None
    with one_line_errors(str(config.out), "write the checkpoint", ConfigError), whole_folder(config.out) as folder:
        save_converted(model, config.source, folder)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(state)} tensors, {parameters:,} parameters: {config.out / 'model.safetensors'}, config.json")


if __name__ == "__main__":
    run(main)
