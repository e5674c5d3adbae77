"""Computes baselines for nodes: the majority class (the majority answer of each label, the mean of numbers), and a model that sees features but no edges."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from graphmill.cluster.data.training_data import answers
from graphmill.cluster.tasks import BinaryClassification, Classification, Regression, Task
from graphmill.cluster.training.schedule import uncompiled
from graphmill.core.daemon_threads import begin
from graphmill.jobs.records.verdict import metric_of_one
from graphmill.samplers.access.router import Router
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLITS

_BLOCK_ROWS = 65_536
_MAX_TRAIN_ROWS = 200_000  # maximum number of training rows: more rows do not improve the perceptron
_MAX_STEPS = 600
_BATCH_ROWS = 4_096
_PENALTIES = (1e-4, 1e-3, 1e-2)  # penalties on the logistic regression's squared weights
_PATIENCE = 6  # training stops after this number of checks without a better validation score


Seen = Callable[[torch.Tensor], torch.Tensor] | None
Baselines = dict[str, dict[str, float] | None]  # baseline -> scores, with the names of `split_scores`
Plain = Classification | BinaryClassification | Regression


def begin_baselines(fit: Callable[[], Baselines], what: str, *, alone: bool) -> Callable[[], Baselines]:
    """Returns a function that returns the fitted baselines `what`. With `alone`, this function fits them, after the training; otherwise a thread fits them
    while the workers start."""

    def say() -> None:
        print(f"fitting the baselines ({what})", flush=True)

    if alone:  # this process also trains, and a thread would compete for its cores

        def fit_now() -> Baselines:
            say()
            return fit()

        return fit_now
    say()
    return begin(fit, "baselines", computes=True).result


class _Unset(nn.Linear):
    """Its weights have no initial values, and no random numbers are drawn. (`skip_init` does the same, and imports SymPy.)"""

    def reset_parameters(self) -> None: ...


def compute_baselines(router: Router, split_set: int, task: Task, seed: int, seen: Seen) -> Baselines:
    """Scores on "valid" and "test" of "majority" and "features_only". For numbers, "constant" (the mean) replaces "majority".
    "features_only" is None for a graph without features.

    All baselines are fitted on the training nodes. "features_only" is the model with the best validation score among logistic or ridge regressions and a
    two-layer perceptron. The models read `seen(rows)`, standardised to mean 0 and deviation 1 in each column. If `seen` is None, they read the rows as stored.
    """
    nodes = {name: router.list_split(split_set, code).node for name, code in SPLITS.items()}
    target = target_of(router.fetch(nodes["train"], feature=False).label)
    plain = plain_task(router.manifest, task)
    if router.manifest.label_kind in ("value", "values") and not isinstance(plain, Regression):
        return {}  # the loss of a user's own task is unknown
    constant = constant_prediction(target, plain).float()
    majority: dict[str, float] = {}
    for split in ("valid", "test"):
        scores = _scores(router, nodes[split], lambda x: constant.expand(len(x), -1), plain, blind=True)
        majority |= split_scores(split, scores, task.metric)
    features_only = _fit_features(router, nodes, plain, seed, seen) if router.manifest.feature_dim else None
    return {"constant" if isinstance(plain, Regression) else "majority": majority, "features_only": features_only}


def constant_prediction(y: torch.Tensor, task: Task) -> torch.Tensor:
    """[out_dim]: the constant prediction with the least loss on the training targets."""
    if isinstance(task, Regression):
        return torch.zeros(task.out_dim)
    if isinstance(task, Classification):
        log_count = torch.bincount(y[y >= 0], minlength=task.num_classes).double().clamp_min(1e-3).log()
        return log_count.diff() if task.one_logit else log_count
    return torch.logit(y.nanmean(dim=0).nan_to_num().clamp(1e-6, 1 - 1e-6))


def split_scores(split: str, scores: Mapping[str, float], metric: str) -> dict[str, float]:
    """Scores by name. The name `split` has the metric. With several targets, the names `split_metric_NAME` have the metric of each target."""
    prefix = f"{metric_of_one(metric)}_"
    return {split: scores[metric], **{f"{split}_{k}": score for k, score in scores.items() if k.startswith(prefix)}}


def plain_task(manifest: Manifest, task: Task) -> Plain:
    """The graph's task with the run's metric, without class weights and label smoothing."""
    if isinstance(task, Regression):
        return replace(task, kind="mse", own_loss="")
    metric: dict[str, Any] = {"metric": task.metric, "own_metric": getattr(task, "own_metric", "")}
    if manifest.label_kind == "answers":
        return BinaryClassification(manifest.num_classes or 0, names=getattr(task, "names", ()), **metric)
    return Classification(manifest.num_classes or 0, **metric)


def target_of(label: np.ndarray | None) -> torch.Tensor:
    """Labels in the form that a task takes."""
    assert label is not None
    target = torch.tensor(label)
    return target if target.dtype == torch.int64 else answers(target.reshape(len(target), -1))


def _fit_features(router: Router, nodes: dict[str, np.ndarray], task: Plain, seed: int, seen: Seen) -> dict[str, float]:
    stride = max(1, -(-len(nodes["train"]) // _MAX_TRAIN_ROWS))
    rows = router.fetch(nodes["train"][::stride])
    assert rows.feature is not None
    x, y = torch.tensor(rows.feature, dtype=torch.float32), target_of(rows.label)
    known = y >= 0 if y.dim() == 1 else ~y.isnan().all(dim=1)
    x, y = x[known], y[known]
    own = x if seen is None else seen(x)
    mean, scale = own.mean(dim=0), own.std(dim=0, correction=0).clamp_min(1e-6)

    def read(rows: torch.Tensor) -> torch.Tensor:
        return rows if seen is None else (seen(rows) - mean) / scale

    x = read(x)

    def scores(network: nn.Module, split: str) -> dict[str, float]:
        network.eval()
        with torch.no_grad():
            return split_scores(
                split, _scores(router, nodes[split], lambda rows: network(read(rows)), task), task.metric
            )

    def validate(network: nn.Module) -> float:
        return scores(network, "valid")["valid"] * (1 if task.higher_is_better else -1)

    candidates = [_fit_linear(x, y, task, penalty) for penalty in _PENALTIES]
    candidates.append(_fit_perceptron(x, y, task, seed, validate))
    best = max(candidates, key=validate)
    return scores(best, "valid") | scores(best, "test")


def _mean_loss(prediction: torch.Tensor, y: torch.Tensor, task: Plain) -> torch.Tensor:
    if not isinstance(task, Classification):
        return task.loss(prediction, y) / task.weight(y)
    return functional.cross_entropy(prediction, y)


def _fit_linear(x: torch.Tensor, y: torch.Tensor, task: Plain, penalty: float) -> nn.Module:
    """Fits a linear model with an L2 penalty: logistic regression (multinomial, or binary for each label) or least squares."""
    linear = zero_linear(x.shape[1], task.out_dim, torch.float32)
    minimise(linear, 50, lambda: _mean_loss(linear(x), y, task) + penalty * linear.weight.square().sum())
    return linear


def zero_linear(in_dim: int, out_dim: int, dtype: torch.dtype) -> nn.Linear:
    """Creates a linear model whose weights are all 0."""
    linear = _Unset(in_dim, out_dim, dtype=dtype)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def minimise(model: nn.Module, max_iter: int, loss: Callable[[], torch.Tensor]) -> None:
    """Minimises a convex loss over the model's weights by L-BFGS."""
    optimizer: Any = uncompiled(torch.optim.LBFGS)(model.parameters(), max_iter=max_iter, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


class _Perceptron(nn.Module):
    """A two-layer perceptron with dropout. Dropout draws from a separate generator: the model may run in a thread while other threads draw from PyTorch's
    global generator."""

    def __init__(self, in_dim: int, out_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator
        self.hidden, self.out = _Unset(in_dim, 256), _Unset(256, out_dim)
        for layer in (self.hidden, self.out):  # initial values as in nn.Linear
            bound = 1 / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.weight, -bound, bound, generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.hidden(x))
        if self.training:
            hidden = hidden * torch.empty_like(hidden).bernoulli_(0.5, generator=self.generator).div_(0.5)
        prediction: torch.Tensor = self.out(hidden)
        return prediction


def _fit_perceptron(
    x: torch.Tensor, y: torch.Tensor, task: Plain, seed: int, score_of: Callable[[nn.Module], float]
) -> nn.Module:
    """Trains a perceptron by AdamW, with early stopping on the validation score."""
    generator = torch.Generator().manual_seed(seed)
    # Skips the random numbers that earlier versions drew for the linear models, so that scores stay equal to the scores of earlier versions.
    torch.empty(len(_PENALTIES) * (x.shape[1] + 1) * task.out_dim).uniform_(generator=generator)
    network = _Perceptron(x.shape[1], task.out_dim, generator)
    optimizer = uncompiled(torch.optim.AdamW)(network.parameters(), lr=3e-3, weight_decay=1e-2)
    steps_per_check = max(10, -(-len(x) // _BATCH_ROWS))
    best_score, best_state, checks_since = -math.inf, copy.deepcopy(network.state_dict()), 0
    for step in range(1, _MAX_STEPS + 1):
        chosen = torch.randint(len(x), (min(len(x), _BATCH_ROWS),), generator=generator)
        loss = _mean_loss(network(x[chosen]), y[chosen], task)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % steps_per_check == 0:
            score, checks_since = score_of(network), checks_since + 1
            network.train()
            if score > best_score:
                best_score, best_state, checks_since = score, copy.deepcopy(network.state_dict()), 0
            if checks_since >= _PATIENCE:
                break
    network.load_state_dict(best_state)
    return network


def _scores(router: Router, node: np.ndarray, model: Any, task: Task, *, blind: bool = False) -> dict[str, float]:
    """Scores over the ids `node`, computed in blocks of rows. `blind`: the model sees no features."""
    scores = task.scores(torch.device("cpu"))
    for start in range(0, len(node), _BLOCK_ROWS):
        rows = router.fetch(node[start : start + _BLOCK_ROWS], feature=not blind)
        features = np.empty((len(rows.original_id), 0), np.float32) if blind else rows.feature
        scores.update(model(torch.tensor(features, dtype=torch.float32)), target_of(rows.label))
    return scores.compute()
