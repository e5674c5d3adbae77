"""The weights that a run begins with where they are another's: a finished run's best ones, or a converted checkpoint's (fine-tuning)."""

import os

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from graphmill.cluster.checkpoints.checkpoint import set_weights
from graphmill.cluster.checkpoints.checkpoint_store import BEST
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConfigError

_FILE = "model.safetensors"


def load_start(model: torch.nn.Module, path: str) -> None:
    """Sets the model's parameters and buffers to those of the run, folder or file at this path or URL.

    Buffers that are not there, such as the projections of an attention that the other model had not, keep their own values. Raises ConfigError where there are
    no weights, or where they are of another architecture.
    """
    found = _read(path)
    expected = model.state_dict()
    if not set(found) & set(
        expected
    ):  # a converted checkpoint names the network's own tensors, a run those of the module around it
        found = {f"model.{name}": tensor for name, tensor in found.items()}
    parameters = {name for name, _ in model.named_parameters()}
    missing = {name: tensor for name, tensor in expected.items() if name not in found and name not in parameters}
    try:
        set_weights(model, {**missing, **found})
    except ValueError as error:
        raise ConfigError(f"start_from {path}: {error}; give the run the options of that model") from None


def _read(path: str) -> dict[str, torch.Tensor]:
    run, names = path, [f"{BEST}/{_FILE}", _FILE]
    if path.endswith(".safetensors"):
        run, *names = os.path.split(path)
    for content in map(RunStore(run).read, names):
        if content is None:
            continue
        try:
            return load(content)
        except SafetensorError as error:
            raise ConfigError(f"start_from {path}: expected a safetensors file, found damage ({error})") from None
    raise ConfigError(
        f"start_from: expected a finished run, a folder with {_FILE}, or such a file at {path}, found none; set --fit.start_from"
    )
