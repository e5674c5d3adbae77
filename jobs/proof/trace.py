"""Replays steps of a run and keeps digests of what each computes: weights before, batch, output of each layer, gradients, weights after.

Two traces of the same steps show where two runs part, in the order in which a step computes.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from graphmill.cluster.receipts.chain import Entry, TensorDigests
from graphmill.cluster.receipts.digests import tensor_digests
from graphmill.jobs.proof.replay_steps import Replay


@dataclass
class StepTrace:
    """One step. Lists are in the order of computation; an output is listed once for each micro-batch."""

    before: TensorDigests
    inputs: list[tuple[str, str]] = field(default_factory=list)  # (field of the batch, digest)
    layers: list[tuple[str, str]] = field(default_factory=list)  # (name of the module, digest of its output)
    entry: Entry | None = None  # with a mark


@dataclass
class Trace:
    """Steps of one run, by number."""

    steps: dict[int, StepTrace]
    tensors: tuple[str, ...]
    trained: tuple[str, ...]


def trace_steps(replay: Replay, first: int, last: int) -> Trace:
    """Replays the steps from number `first` to `last`, from the nearest checkpoint at or before `first`."""
    proven = replay.proven
    marked = frozenset(proven.position(number) for number in range(first, last + 1))
    trace, current = Trace({}, (), ()), list[StepTrace]()
    hooks = ExitStack()

    def observe(worker: Any, entry: Entry) -> bool:
        is_begin = not entry.ids
        if is_begin:
            hooks.close()
            trace.tensors, trace.trained = tuple(worker.receipts.weights), tuple(worker.receipts.trained)
            for handle in _hooks(worker.model, current):
                hooks.callback(handle.remove)
        number = proven.number(entry.position) + (0 if is_begin else 1)
        if not is_begin and current:
            current[0].entry = entry
        current.clear()
        if first <= number <= last:
            current.append(StepTrace(worker.receipts.digests()))
            trace.steps[number] = current[0]
        return True

    with hooks:
        replay.steps(proven.position(last), observe, marked=marked, first=proven.position(first))
    return trace


def _hooks(model: torch.nn.Module, current: list[StepTrace]) -> Iterator[Any]:
    """Hooks that write the inputs and outputs of a forward pass to the current step's trace."""

    def before(_: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        if current and model.training:
            for argument in arguments:
                current[0].inputs += [(name, tensor_digests([value]).whole) for name, value in _tensors(argument)]

    def watch(name: str) -> Any:
        def after(module: torch.nn.Module, _: Any, output: Any) -> None:
            if current and model.training:
                found = [value for _, value in _tensors(output)] if not isinstance(output, Tensor) else [output]
                if found:
                    current[0].layers.append((name, tensor_digests(found).whole))

        return after

    yield model.register_forward_pre_hook(before)
    for name, module in model.named_modules():
        if not [*module.children()]:
            yield module.register_forward_hook(watch(name or type(module).__name__))
    if [*model.children()]:
        yield model.register_forward_hook(watch("the model's output"))


def _tensors(value: Any, of: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a batch or an output by name."""
    if isinstance(value, Tensor):
        yield of.rstrip(".") or "input", value
    elif is_dataclass(value):
        for each in fields(value):
            yield from _tensors(getattr(value, each.name), f"{of}{each.name}.")
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _tensors(each, f"{of}{name}.")
    elif isinstance(value, tuple | list):
        for number, each in enumerate(value):
            yield from _tensors(each, f"{of}{number}.")
