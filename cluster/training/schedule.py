"""Makes the optimizer, the learning rates and the callbacks, from the built-in classes or from a user's import paths.

The built-in rates are a pure function of the step, so a resumed run needs no state for them. The state of a user's scheduler and callbacks is saved as text
in the checkpoint.
"""

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import torch

from graphmill.cluster.options import CALLBACKS, Schedule, TrainOptions, is_own, nearest_callback
from graphmill.cluster.training.initial_weights import with_rates
from graphmill.core.errors import ConfigError, FormatError
from graphmill.samplers.methods.registry import load


def rate_factor(
    step: int,
    num_steps: int,
    warmup_steps: int,
    schedule: Schedule | str,
    floor: float = 0.0,
    power: float = 1.0,
) -> float:
    """Returns the factor on the peak rate at `step`: a linear warm-up from 1 / warmup_steps, then the schedule down to `floor`.

    "poly" is (1 - progress)^power; "linear" is "poly" with power 1.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, num_steps - warmup_steps))
    if schedule == "cosine":
        shape = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        shape = (1.0 - progress) ** (power if schedule == "poly" else 1.0)
    return floor + (1.0 - floor) * shape


_Made = TypeVar("_Made", bound=torch.optim.Optimizer)


@cache
def uncompiled(kind: type[_Made]) -> type[_Made]:
    """Returns one of torch's optimizers without the decorators that serve `torch.compile`. They import torch's compiler, which takes as long as torch itself.
    Each step is the same."""
    of_all = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    plain = {name: inspect.unwrap(getattr(torch.optim.Optimizer, name)) for name in of_all}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, **plain, "step": step})


def build_optimizer(model: torch.nn.Module, options: TrainOptions, *, foreach: bool) -> torch.optim.Optimizer:
    """Makes the optimizer. Raises ConfigError if an import path does not name an optimizer, or the optimizer does not accept the settings."""
    groups, rate = with_rates(model, _param_groups(model, options), options), options.learning_rate
    if not is_own(options.optimizer):
        algorithm = torch.optim.Adam if options.optimizer == "adam" else torch.optim.AdamW
        return uncompiled(algorithm)(groups, lr=rate, foreach=foreach)
    made = _called(options.optimizer, "optimizer", groups, lr=rate, **options.optimizer_options)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer: expected {options.optimizer} to make a torch.optim.Optimizer, got {type(made).__name__}"
        )
    if options.weight_decay and "weight_decay" not in made.defaults:
        raise ConfigError(
            f"weight_decay: {options.optimizer} has none, got {options.weight_decay}; set --fit.weight_decay 0"
        )
    return made


def _called(path: str, option: str, *given: Any, **settings: Any) -> Any:
    try:
        return load(path)(*given, **settings)
    except (TypeError, ValueError) as error:
        listed = " ".join(f"{name}={value}" for name, value in settings.items())
        raise ConfigError(f"{option}: {path} with {listed or 'no settings'}: {' '.join(str(error).split())}") from None


def _param_groups(model: torch.nn.Module, options: TrainOptions) -> list[dict[str, Any]]:
    """Returns the model's `param_groups`. If the model has none: one group of matrices with weight decay, and one of biases, norms and scalars without.
    With `decay_all`, or with an optimizer that is not AdamW, all groups have weight decay."""
    own = getattr(model, "param_groups", None)
    is_all = options.optimizer != "adamw" or options.decay_all
    everywhere = {"weight_decay": options.weight_decay} if is_all else {}
    if own is not None:
        return [group | everywhere for group in own(options.learning_rate, options.weight_decay)]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    plain = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    return [
        {"params": decayed, "weight_decay": options.weight_decay},
        {"params": plain, "weight_decay": 0.0, **everywhere},
    ]


class Rates:
    """Sets the learning rates of an optimizer's groups, step after step."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: TrainOptions, *, higher_is_better: bool) -> None:
        """Raises ConfigError if an import path does not name a scheduler, the scheduler does not accept the settings, or its state is not plain values."""
        self._optimizer, self._options = optimizer, options
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self.factor = 1.0  # factor of the current step on the first peak rate
        self.scheduler: Any = None
        if is_own(options.schedule):
            made, settings = load(options.schedule), dict(options.schedule_options)
            if isinstance(made, type) and issubclass(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
                settings = {"mode": "max" if higher_is_better else "min", **settings}
            self.scheduler = _called(options.schedule, "schedule", optimizer, **settings)
            if not hasattr(self.scheduler, "get_last_lr"):
                raise ConfigError(
                    f"schedule: expected {options.schedule} to make a scheduler of torch.optim.lr_scheduler, got {type(self.scheduler).__name__}"
                )
            self._takes_score = "metrics" in inspect.signature(self.scheduler.step).parameters
            if self._takes_score and options.schedule_each == "step":
                raise ConfigError(
                    f"schedule_each: {options.schedule} takes the validation's score, which a step has not, got step; set --fit.schedule_each epoch"
                )
            _as_text(self.scheduler, options.schedule)

    def set(self, step: int, steps_per_epoch: int) -> None:
        """Sets the rates of optimizer step `step`, counted from the beginning of the run."""
        options, peaks = self._options, self._peaks
        own = self.scheduler is not None
        factor = rate_factor(
            step,
            options.epochs * steps_per_epoch,
            options.num_warmup_steps(steps_per_epoch),
            "constant" if own else options.schedule,
            floor=options.min_learning_rate / options.learning_rate,
            power=options.power,
        )
        rates = self.scheduler.get_last_lr() if own else peaks
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        self.factor = factor * rates[0] / peaks[0] if own else factor

    def advance(self, each: str, score: float | None = None) -> None:
        """Advances a user's scheduler if its option `schedule_each` is `each`, "step" or "epoch". A scheduler that takes a score advances only with a score."""
        if self.scheduler is None or self._options.schedule_each != each:
            return
        for group, rate in zip(self._optimizer.param_groups, self.scheduler.get_last_lr(), strict=True):
            group["lr"] = rate  # without the warm-up
        if not self._takes_score:
            self.scheduler.step()
        elif score is not None:
            self.scheduler.step(score)


class Callbacks:
    """Calls a user's callbacks on rank 0. If a callback returns "stop" or True, all ranks end after the epoch."""

    def __init__(self, paths: Sequence[str], rank: int) -> None:
        self.paths = paths
        self._own = {path: self._made(path) for path in paths} if rank == 0 else {}
        self.stopped_by = ""

    @staticmethod
    def _made(path: str) -> Any:
        own = load(path)
        made = _called(path, "callbacks") if isinstance(own, type) else own
        if (misspelt := nearest_callback(made)) is not None:
            raise ConfigError(
                f"callbacks: expected {path} to have some of {', '.join(CALLBACKS)}, got {misspelt[0]}; perhaps {misspelt[1]}"
            )
        if not callable(made) and not any(hasattr(made, name) for name in CALLBACKS):
            raise ConfigError(
                f"callbacks: expected {path} to have some of {', '.join(CALLBACKS)}, got {type(made).__name__}"
            )
        return made

    def tell(self, event: str, epoch: int, record: Any) -> None:
        for path, each in self._own.items():
            is_function = event == CALLBACKS[0] and not any(hasattr(each, name) for name in CALLBACKS)
            call = each if is_function else getattr(each, event, None)
            answer = None if call is None else call(epoch, record)
            if str(answer) not in ("None", "False", "True", "stop"):
                raise ConfigError(
                    f"callbacks: expected {path} to return None, False, True or 'stop' of {event}, got {answer!r}"
                )
            if str(answer) in ("True", "stop"):
                self.stopped_by = self.stopped_by or f"{path} ended it ({event})"

    @property
    def with_state(self) -> dict[str, Any]:
        return {path: each for path, each in self._own.items() if hasattr(each, "state_dict")}


def saved_text(rates: Rates, callbacks: Callbacks) -> str:
    """Returns the state of a user's scheduler and callbacks as JSON. Empty if there is no state."""
    parts = callbacks.with_state | ({} if rates.scheduler is None else {"schedule": rates.scheduler})
    return json.dumps({name: json.loads(_as_text(part, name)) for name, part in parts.items()}) if parts else ""


def load_text(text: str, rates: Rates, callbacks: Callbacks) -> None:
    """Loads the states in a checkpoint's text into the scheduler and callbacks. Raises FormatError if the text is damaged."""
    parts = callbacks.with_state | ({} if rates.scheduler is None else {"schedule": rates.scheduler})
    try:
        states: Mapping[str, Any] = json.loads(text) if text else {}
        for name, state in states.items():
            if name in parts:
                parts[name].load_state_dict(state)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise FormatError(
            f"state of scheduler and callbacks: {' '.join(str(error).split())}; the file is damaged"
        ) from None


def _as_text(part: Any, name: str) -> str:
    try:
        return json.dumps(part.state_dict())
    except TypeError as error:
        raise ConfigError(
            f"{name}: expected a state_dict of plain values, which a checkpoint can hold, got one where {error}"
        ) from None
