"""Prepares fine-tuning: loads the weights of another run or of a file, freezes parameters, and changes learning rates of parameters.

A pattern (`*`, `?`) matches a whole parameter name, or the rest of a name after a dot: `head.*` matches `model.head.weight`.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from graphmill.cluster.checkpoints.checkpoint_store import BEST
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.runs.run_directory import flat
from graphmill.cluster.runs.run_store import CONFIG, RunStore
from graphmill.core.errors import ConfigError

_FILE = "model.safetensors"
_MOST_SHOWN = 5
_HEADS = ("decoder.", "pairs.")  # prefixes of the heads for links and for pairs; other models have a `head`
# Names differ: a converted checkpoint has the network's tensors, a run has the network in a wrapper module, and a run on links has it in an encoder.
_RENAMINGS: tuple[Callable[[str], str], ...] = (
    lambda name: name,
    lambda name: f"model.{name}",
    lambda name: f"encoder.{name}",
    lambda name: f"encoder.model.{name}",
    lambda name: name.removeprefix("encoder."),
)


def load_start(
    model: torch.nn.Module, path: str, *, fresh_head: bool = False, options: Mapping[str, Any] | None = None
) -> None:
    """Loads parameters and buffers of the run, folder or file at this path or URL into the model. With `fresh_head` the head keeps its own weights.

    Buffers that are missing in the source keep their values, for example the projections of an attention. Raises ConfigError if the source has no
    weights or its tensors do not fit the model. The message names the tensors, and gives an advice from `options`, the options of this model.
    """
    loaded, expected = _read(path), model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}

    def fits(rename: Callable[[str], str]) -> int:
        return sum(shapes.get(rename(name)) == tuple(tensor.shape) for name, tensor in loaded.items())

    rename = max(_RENAMINGS, key=fits)
    weights = {rename(name): tensor for name, tensor in loaded.items()}
    heads = tuple(_head_names(model))
    if fresh_head:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(heads)}
    parameters = {name for name, _ in model.named_parameters()}
    kept = {name for name in shapes if name not in parameters or (fresh_head and name.startswith(heads))}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    theirs |= {name: shapes[name] for name in kept if name not in theirs}
    differing = sorted(name for name in shapes.keys() | theirs.keys() if shapes.get(name) != theirs.get(name))
    if differing:
        listed = ", ".join(
            f"{name} of shape {shapes.get(name)}, found {theirs.get(name)}" for name in differing[:_MOST_SHOWN]
        )
        more = f" and {len(differing) - _MOST_SHOWN} more" if len(differing) > _MOST_SHOWN else ""
        only_head = all(name.startswith(heads) for name in differing)
        advice = "begin its head anew with --fit.fresh_head" if only_head else _advice(path, options or {}, differing)
        count = f"{len(differing)} tensor{'s differ' if len(differing) > 1 else ' differs'}"
        raise ConfigError(f"start_from {path}: {count}: expected {listed}{more}; {advice}")
    model.load_state_dict({**{name: expected[name] for name in kept}, **weights})


def _head_names(model: torch.nn.Module) -> Iterator[str]:
    """Yields the prefixes of the names of a head's tensors."""
    yield from _HEADS
    for outer in ("", "encoder."):  # a model of links has the head in its encoder too
        module: Any = getattr(model, "encoder", None) if outer else model
        head = getattr(module, "head", None)
        if head is not None:
            yield from (f"{outer}{name}." for name, each in module.named_modules() if each is head)


def _advice(path: str, options: Mapping[str, Any], differing: Sequence[str]) -> str:
    """Returns advice with the options that make the tensors equal. They come from the options that are saved with the weights."""
    content = None if path.endswith(".safetensors") else RunStore(path).read(CONFIG)
    saved = json.loads(content) if content else {}
    theirs = flat(saved.get("config") or (saved["model"] if isinstance(saved.get("model"), dict) else {}))
    ours = json.loads(json.dumps(dict(options), default=str))
    others = [f"--model.{name} {theirs[name]}" for name in ours if name in theirs and theirs[name] != ours[name]]
    if others:
        return f"give the run the options of that model: {' '.join(others)}"
    if all("standard." in name for name in differing):
        return "give the run data with the same columns, or the same --data.standardise"
    return "give the run the options of that model, and data with its features"


def freeze(model: torch.nn.Module, patterns: Sequence[str]) -> list[torch.nn.Module]:
    """Freezes the parameters that match these patterns. Returns the modules whose parameters are all frozen. The trainer keeps these modules in evaluation
    mode, so that their statistics do not change.

    Raises ConfigError if a pattern has no match or no parameter is left to train.
    """
    for pattern in patterns:
        for parameter in _matching(model, pattern, "freeze"):
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"freeze: expected parameters that are left to train, got {' '.join(patterns)}; freeze fewer")
    own = {module: [*module.parameters()] for module in model.modules()} if patterns else {}
    return [module for module, all_of in own.items() if all_of and not any(each.requires_grad for each in all_of)]


def with_rates(
    model: torch.nn.Module, groups: Sequence[dict[str, Any]], options: TrainOptions
) -> Sequence[dict[str, Any]]:
    """Splits the optimizer's groups by the factors on the learning rates of their parameters. Raises ConfigError if a pattern has no match."""
    if not options.rates:
        return groups
    factor_of: dict[int, float] = {}
    for rate in options.rates:
        pattern, _, number = rate.rpartition("=")
        for parameter in _matching(model, pattern, "rates"):
            factor_of.setdefault(id(parameter), float(number))
    made = []
    # The rate without a factor is first, because the first rate is recorded
    for factor in dict.fromkeys([1.0, *factor_of.values()]):
        for group in groups:
            own = [parameter for parameter in group["params"] if factor_of.get(id(parameter), 1.0) == factor]
            if own:
                made.append({**group, "params": own, "lr": group.get("lr", options.learning_rate) * factor})
    return made


def _matching(model: torch.nn.Module, pattern: str, option: str) -> list[torch.nn.Parameter]:
    matching = [
        parameter
        for name, parameter in model.named_parameters()
        if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")
    ]
    if not matching:
        names = ", ".join(dict.fromkeys(".".join(name.split(".")[:3]) for name, _ in model.named_parameters()))
        raise ConfigError(f"{option}: expected a pattern of parameters of {names}, got {pattern!r}; set --fit.{option}")
    return matching


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
