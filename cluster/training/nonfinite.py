"""Finds the origin of a NaN or an infinity: runs the same batch again and checks every layer's output."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from graphmill.cluster.metrics.class_scores import gather_objects
from graphmill.core.errors import GraphmillError


class NonFiniteLossError(GraphmillError, FloatingPointError):
    """The loss, a gradient or a prediction became NaN or infinite."""


def find_nonfinite(
    model: nn.Module, forward: Callable[[], Any], batch: Any, rank: int, is_here: bool
) -> tuple[str, str]:
    """Returns (owner, finding) of the first rank whose own batch is bad (`is_here`). A collective call with the same result on all ranks."""
    # All ranks run the forward pass, because a model that spreads one graph over the ranks needs all of them.
    finding = describe_nonfinite(model, forward, batch)
    reports = gather_objects((f"rank {rank}, batch {batch.index}", finding) if is_here else None)
    return next(filter(None, reports), ("all ranks", "the sum over ranks overflows"))


def describe_nonfinite(model: nn.Module, forward: Callable[[], Any], batch: Any) -> str:
    """Describes the first value that is not finite: in the batch's tensors, in the weights, or in a layer's output in `forward`.

    The named module is the first that returns a bad output. An inner module returns before the outer module that contains it.
    """
    # The forward pass comes first and is never skipped: if the ranks share one graph, all of them must take part.
    with _first_bad_output(model) as bad_layers, torch.no_grad():
        forward()
    for name, value in vars(batch).items():
        # Targets are not checked, because unknown targets are NaN.
        if isinstance(value, Tensor) and name not in ("target", "y") and not _finite(value):
            return f"the batch's own {name} holds numbers that are not finite"
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"the weights of {name} are not finite"
    if bad_layers:
        return f"first bad layer: {bad_layers[0]}"
    return "every layer's output is finite; the loss is not: are the targets and their scale finite?"


def describe_nonfinite_gradients(model: nn.Module) -> str:
    """Describes the last parameter, in order of definition, with a gradient that is not finite. This parameter is the nearest to the loss."""
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    if not bad:
        return "every gradient is finite, their norm is not"
    return f"first bad layer, backwards: {bad[-1].rpartition('.')[0] or 'the model'} (gradient of {bad[-1]})"


@contextmanager
def _first_bad_output(model: nn.Module) -> Iterator[list[str]]:
    """Yields a list that receives the name of the first module whose output is not finite."""
    bad_layers: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not bad_layers and not all(_finite(tensor) for tensor in _tensors(output)):
                fed = "finite" if all(_finite(tensor) for tensor in _tensors(inputs)) else "not finite either"
                bad_layers.append(f"{name or 'the model itself'} ({type(module).__name__}), whose inputs are {fed}")

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    try:
        yield bad_layers
    finally:
        for handle in hooks:
            handle.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in (nested) tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _finite(tensor: Tensor) -> bool:
    inexact = tensor.is_floating_point() or tensor.is_complex()
    return not inexact or bool(torch.isfinite(tensor).all())
