"""What a model of a graph must beat: the majority class (or label by label the majority answer), and a classifier that sees features but no edges."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from graphmill.cluster.data.training_data import answers
from graphmill.cluster.tasks import BinaryClassification, Classification, Task
from graphmill.core.daemon_threads import begin
from graphmill.samplers.access.router import Router
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLITS

_BLOCK_ROWS = 65_536
_MAX_TRAIN_ROWS = 200_000  # enough for a multilayer perceptron to be as good as it gets
_MAX_STEPS = 600
_BATCH_ROWS = 4_096
_PENALTIES = (1e-4, 1e-3, 1e-2)  # of the logistic regression's squared weights
_PATIENCE = 6  # checks without a better validation score


Seen = Callable[[torch.Tensor], torch.Tensor] | None
Baselines = dict[str, dict[str, float] | None]  # scores by baseline and split


def begin_baselines(fit: Callable[[], Baselines], *, alone: bool) -> Callable[[], Baselines]:
    """What gives the fitted baselines: at once where this process trains too, else from a thread, while the workers start."""
    if alone:  # training draws from the generators that they would draw from
        fitted = fit()
        return lambda: fitted
    return begin(fit, "baselines").result


def compute_baselines(router: Router, split_set: int, task: Task, seed: int, seen: Seen) -> Baselines:
    """Scores of "majority" and, None for a graph without features, "features_only" on the splits "valid" and "test".

    Both are fitted on the training nodes. Of the features-only models, logistic regression and a two-layer perceptron, the one that
    validates best is taken. Both read what `seen` makes of rows for the model, each column brought to mean 0 and deviation 1; None: rows as they are.
    """
    nodes = {name: router.list_split(split_set, code).node for name, code in SPLITS.items()}
    target = _target(router.fetch(nodes["train"], feature=False).label)
    plain = _plain(router.manifest, task)
    if isinstance(plain, BinaryClassification):
        constant = torch.logit(target.nanmean(dim=0).nan_to_num().clamp(1e-6, 1 - 1e-6))
    else:
        majority_class = int(torch.bincount(target[target >= 0], minlength=plain.num_classes).argmax())
        constant = torch.zeros(plain.num_classes)
        constant[majority_class] = 1.0
    majority = {
        split: _score(router, nodes[split], lambda x: constant.expand(len(x), -1), plain, with_features=False)
        for split in ("valid", "test")
    }
    features_only = _fit_features(router, nodes, plain, seed, seen) if router.manifest.feature_dim else None
    return {"majority": majority, "features_only": features_only}


def _plain(manifest: Manifest, task: Task) -> Classification | BinaryClassification:
    """The graph's task by its metric, without weights and smoothing."""
    kind = BinaryClassification if manifest.label_kind == "answers" else Classification
    return kind(manifest.num_classes or 0, task.metric)


def _target(label: np.ndarray | None) -> torch.Tensor:
    """Labels as a task takes them."""
    assert label is not None
    target = torch.tensor(label)
    return target if target.dim() == 1 else answers(target)


def _fit_features(
    router: Router, nodes: dict[str, np.ndarray], task: Classification | BinaryClassification, seed: int, seen: Seen
) -> dict[str, float]:
    torch.manual_seed(seed)
    stride = max(1, -(-len(nodes["train"]) // _MAX_TRAIN_ROWS))
    rows = router.fetch(nodes["train"][::stride])
    assert rows.feature is not None
    x, y = torch.tensor(rows.feature, dtype=torch.float32), _target(rows.label)
    known = y >= 0 if y.dim() == 1 else ~y.isnan().all(dim=1)
    x, y = x[known], y[known]
    own = x if seen is None else seen(x)
    mean, scale = own.mean(dim=0), own.std(dim=0, correction=0).clamp_min(1e-6)

    def read(rows: torch.Tensor) -> torch.Tensor:
        return rows if seen is None else (seen(rows) - mean) / scale

    x = read(x)

    def score(network: nn.Module, split: str) -> float:
        network.eval()
        with torch.no_grad():
            return _score(router, nodes[split], lambda rows: network(read(rows)), task)

    candidates = [_fit_linear(x, y, task, penalty) for penalty in _PENALTIES]
    candidates.append(_fit_perceptron(x, y, task, lambda network: score(network, "valid")))
    best = max(candidates, key=lambda network: score(network, "valid"))
    return {"valid": score(best, "valid"), "test": score(best, "test")}


def _mean_loss(prediction: torch.Tensor, y: torch.Tensor, task: Classification | BinaryClassification) -> torch.Tensor:
    if isinstance(task, BinaryClassification):
        return task.loss(prediction, y) / task.weight(y)
    return functional.cross_entropy(prediction, y)


def _fit_linear(
    x: torch.Tensor, y: torch.Tensor, task: Classification | BinaryClassification, penalty: float
) -> nn.Module:
    """Logistic regression, multinomial or one for each label, with an L2 penalty."""
    linear = zero_linear(x.shape[1], task.out_dim, torch.float32)
    minimise(linear, 50, lambda: _mean_loss(linear(x), y, task) + penalty * linear.weight.square().sum())
    return linear


def zero_linear(in_dim: int, out_dim: int, dtype: torch.dtype) -> nn.Linear:
    """A linear model whose weights are all 0."""
    linear = nn.Linear(in_dim, out_dim, dtype=dtype)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def minimise(model: nn.Module, max_iter: int, loss: Callable[[], torch.Tensor]) -> None:
    """Takes the model's weights to the minimum of a convex loss, by L-BFGS."""
    optimizer: Any = torch.optim.LBFGS(model.parameters(), max_iter=max_iter, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def _fit_perceptron(
    x: torch.Tensor,
    y: torch.Tensor,
    task: Classification | BinaryClassification,
    validate: Callable[[nn.Module], float],
) -> nn.Module:
    """Two layers with dropout by AdamW, stopped early by validation score."""
    network = nn.Sequential(nn.Linear(x.shape[1], 256), nn.GELU(), nn.Dropout(0.5), nn.Linear(256, task.out_dim))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-2)
    steps_per_check = max(10, -(-len(x) // _BATCH_ROWS))
    best_score, best_state, checks_since = -1.0, copy.deepcopy(network.state_dict()), 0
    for step in range(1, _MAX_STEPS + 1):
        chosen = torch.randint(len(x), (min(len(x), _BATCH_ROWS),))
        loss = _mean_loss(network(x[chosen]), y[chosen], task)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % steps_per_check == 0:
            score, checks_since = validate(network), checks_since + 1
            network.train()
            if score > best_score:
                best_score, best_state, checks_since = score, copy.deepcopy(network.state_dict()), 0
            if checks_since >= _PATIENCE:
                break
    network.load_state_dict(best_state)
    return network


def _score(router: Router, node: np.ndarray, predict: Any, task: Task, *, with_features: bool = True) -> float:
    """The metric over `node`, streamed in blocks."""
    scores = task.scores(torch.device("cpu"))
    for start in range(0, len(node), _BLOCK_ROWS):
        rows = router.fetch(node[start : start + _BLOCK_ROWS], feature=with_features)
        features = rows.feature if with_features else np.empty((len(rows.original_id), 0), np.float32)
        scores.update(predict(torch.tensor(features, dtype=torch.float32)), _target(rows.label))
    return scores.compute()[task.metric]
