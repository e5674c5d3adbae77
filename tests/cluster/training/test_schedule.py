"""Tests optimizers, schedulers and callbacks that a user names by import path. They are called as in plain torch code, and resume with their state."""

import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from graphmill.cluster.checkpoints.checkpoint import load_optimizer, moments_of
from graphmill.cluster.options import TrainOptions
from graphmill.cluster.training.schedule import Callbacks, Rates, build_optimizer, load_text, saved_text, uncompiled
from graphmill.core.errors import ConfigError

SCHEDULERS = {
    "StepLR": {"step_size": 2, "gamma": 0.5},
    "CosineAnnealingLR": {"T_max": 7},
    "ReduceLROnPlateau": {"patience": 0, "factor": 0.5},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 20},
}


def options(**said) -> TrainOptions:
    return TrainOptions(**{"epochs": 20, "learning_rate": 0.1, **said})


def scheduled(name: str) -> TrainOptions:
    return options(schedule=f"torch.optim.lr_scheduler:{name}", schedule_options=SCHEDULERS[name])


def made(of: TrainOptions, *, higher: bool = True) -> tuple[nn.Module, torch.optim.Optimizer, Rates]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, of, foreach=False)
    return model, optimizer, Rates(optimizer, of, higher_is_better=higher)


def go(rates: Rates, optimizer: torch.optim.Optimizer, epochs: range) -> list[float]:
    seen = []
    for epoch in epochs:
        rates.set(epoch, 1)
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rates.advance("step")
        rates.advance("epoch", float(min(epoch, 3)))
    return seen


@pytest.mark.parametrize("name", SCHEDULERS)
def test_rates_are_the_scheduler_s_and_go_on_from_a_checkpoint(name: str) -> None:
    _, optimizer, rates = made(scheduled(name))
    whole = go(rates, optimizer, range(12))
    plain = torch.optim.AdamW(nn.Linear(3, 2).parameters(), lr=0.1)
    settings = {"mode": "max"} if name == "ReduceLROnPlateau" else {}
    theirs = getattr(torch.optim.lr_scheduler, name)(plain, **settings, **SCHEDULERS[name])
    expected = []
    for epoch in range(12):
        expected.append(plain.param_groups[0]["lr"])
        plain.step()
        theirs.step(*([float(min(epoch, 3))] if settings else []))
    assert whole == expected
    _, optimizer, rates = made(scheduled(name))
    first = go(rates, optimizer, range(5))
    text = saved_text(rates, Callbacks((), 0))
    _, optimizer, rates = made(scheduled(name))
    load_text(text, rates, Callbacks((), 0))
    assert first + go(rates, optimizer, range(5, 12)) == whole


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "RMSprop", "NAdam", "Adafactor"])
def test_an_optimizer_goes_on_from_a_checkpoint(name: str, tmp_path) -> None:
    said = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    of = options(optimizer=f"torch.optim:{name}", optimizer_options=said)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer, _ = made(of)
    step(model, optimizer)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    save_file({key: value.clone() for key, value in moments_of(optimizer).items()}, tmp_path / "optimizer.safetensors")
    step(model, optimizer)
    later, resumed, _ = made(of)
    later.load_state_dict(weights)
    load_optimizer(tmp_path / "optimizer.safetensors", resumed)
    step(later, resumed)
    assert all(torch.equal(later.state_dict()[key], value) for key, value in model.state_dict().items())


def test_the_warm_up_is_a_factor_on_a_scheduler_s_rates() -> None:
    of = options(
        schedule="torch.optim.lr_scheduler:StepLR", schedule_options={"step_size": 1, "gamma": 0.5}, warmup_steps=2
    )
    _, optimizer, rates = made(of)
    assert go(rates, optimizer, range(4)) == [0.05, 0.05, 0.025, 0.0125]
    assert rates.factor == 0.125


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"optimizer": "sgd"}, "expected one of adamw, adam, or package.module:Name"),
        (
            {"optimizer_options": {"momentum": 0.9}},
            "optimizer_options: expected settings of an optimizer by its import path",
        ),
        ({"optimizer": "torch.optim:SGD", "optimizer_options": {"lr": 1.0}}, "--fit.learning_rate"),
        ({"schedule_each": "step"}, "schedule_each: expected epoch"),
        ({"schedule": "torch.optim.lr_scheduler:StepLR", "min_learning_rate": 0.01}, "min_learning_rate: expected 0"),
        ({"callbacks": ("stop",)}, "callbacks: expected import paths"),
        ({"optimizer": "torch.optim:SGD", "optimizer_options": {"momentums": 1}}, "torch.optim:SGD with .*momentums"),
        ({"optimizer": "torch.optim:Rprop", "weight_decay": 0.1}, "weight_decay: torch.optim:Rprop has none"),
        ({"optimizer": "torch.optim:swa_utils"}, "module' object is not callable"),
        ({"schedule": "torch.optim.lr_scheduler:StepLR"}, "with no settings: .*step_size"),
        (
            {"schedule": "torch.optim.lr_scheduler:ReduceLROnPlateau", "schedule_each": "step"},
            "schedule_each: .*takes the validation's score.*set --fit.schedule_each epoch",
        ),
        ({"schedule": "torch.optim:SGD"}, "schedule: torch.optim:SGD|expected torch.optim:SGD to make a scheduler"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(said, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        made(options(**said))
    assert "\n" not in str(raised.value)


def test_callbacks_hear_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []

    class Stop:
        def __init__(self) -> None:
            self.count = 0

        def on_validation(self, epoch, scores):
            self.count += 1
            return scores["accuracy"] > 0.9

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    own = SimpleNamespace(
        Stop=Stop, hear=lambda epoch, record: heard.append((epoch, record)), wrong=lambda *_: 3, thing=object()
    )
    monkeypatch.setitem(sys.modules, "own_parts", own)
    callbacks = Callbacks(("own_parts:Stop", "own_parts:hear"), 0)
    callbacks.tell("on_validation", 0, {"accuracy": 0.5})
    callbacks.tell("on_epoch_end", 0, {"train_loss": 1.0})
    assert heard == [(0, {"train_loss": 1.0})]
    assert not callbacks.stopped_by
    callbacks.tell("on_validation", 1, {"accuracy": 0.95})
    assert callbacks.stopped_by == "own_parts:Stop ended it (on_validation)"
    _, _, rates = made(options())
    later = Callbacks(("own_parts:Stop",), 0)
    load_text(saved_text(rates, callbacks), rates, later)
    assert later.with_state["own_parts:Stop"].count == 2
    with pytest.raises(ConfigError, match="expected own_parts:wrong to return None, False, True or 'stop'"):
        Callbacks(("own_parts:wrong",), 0).tell("on_epoch_end", 0, {})
    with pytest.raises(ConfigError, match="expected own_parts:thing to have some of on_epoch_end"):
        Callbacks(("own_parts:thing",), 0)
    assert not Callbacks(("own_parts:thing",), 1).stopped_by  # only rank 0 has callbacks


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.LBFGS])
def test_an_optimizer_without_torchs_compiler_makes_the_same_steps(kind):
    weights, states = [], []
    for made in (kind, uncompiled(kind)):
        layer = nn.Linear(3, 2)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(6.0).view(2, 3) / 7)
            layer.bias.fill_(0.5)
        optimizer = made(
            [{"params": [layer.weight], "lr": 0.1}, {"params": [layer.bias]}][: 1 if "LBFGS" in str(kind) else 2],
            lr=0.2,
        )

        def loss(layer=layer, optimizer=optimizer):
            optimizer.zero_grad()
            value = layer(torch.eye(3)).square().sum()
            value.backward()
            return value

        for _ in range(3):
            optimizer.step(loss)
        assert all(parameter.requires_grad for parameter in layer.parameters())
        weights.append([parameter.detach() for parameter in layer.parameters()])
        states.append(optimizer.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    assert repr(states[0]) == repr(states[1])
