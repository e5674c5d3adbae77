"""What a model of a graph must beat: the majority class, and a classifier that sees features but no edges."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cluster.scores import SplitScores
from samplers.router import Router
from storage.source import SPLIT_TEST, SPLIT_TRAIN, SPLIT_VALID

_BLOCK_ROWS = 65_536
_MAX_TRAIN_ROWS = 200_000  # enough for a multilayer perceptron to be as good as it gets
_MAX_STEPS = 1_500
_BATCH_ROWS = 4_096


@dataclass(frozen=True)
class Baselines:
    """Scores by split, "valid" and "test", of both baselines."""

    majority: dict[str, float]
    features_only: dict[str, float] | None  # None: the graph has no features


def compute_baselines(router: Router, split_set: int, metric: str, seed: int) -> Baselines:
    """Fits both on the training nodes; the features-only model (a two-layer perceptron) is selected by validation score."""
    nodes = {
        name: router.list_split(split_set, code).node
        for name, code in (("train", SPLIT_TRAIN), ("valid", SPLIT_VALID), ("test", SPLIT_TEST))
    }
    label = router.fetch(nodes["train"], feature=False).label
    assert label is not None
    num_classes = router.manifest.num_classes or 0
    majority_class = int(np.bincount(label[label >= 0], minlength=num_classes).argmax())
    constant = torch.zeros(num_classes)
    constant[majority_class] = 1.0
    majority = {
        split: _score(router, nodes[split], lambda x: constant.expand(len(x), -1), metric, with_features=False)
        for split in ("valid", "test")
    }
    if not router.manifest.feature_dim:
        return Baselines(majority, None)
    return Baselines(majority, _fit_features(router, nodes, metric, seed))


def _fit_features(router: Router, nodes: dict[str, np.ndarray], metric: str, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    stride = max(1, -(-len(nodes["train"]) // _MAX_TRAIN_ROWS))
    rows = router.fetch(nodes["train"][::stride])
    assert rows.feature is not None
    assert rows.label is not None
    x, y = torch.tensor(rows.feature, dtype=torch.float32), torch.tensor(rows.label)
    x, y = x[y >= 0], y[y >= 0]
    mean, scale = x.mean(dim=0), x.std(dim=0).clamp_min(1e-6)
    num_classes = router.manifest.num_classes or 0
    perceptron = nn.Sequential(nn.Linear(x.shape[1], 256), nn.GELU(), nn.Dropout(0.5), nn.Linear(256, num_classes))
    optimizer = torch.optim.AdamW(perceptron.parameters(), lr=3e-3, weight_decay=1e-3)
    steps_per_check = max(10, -(-len(x) // _BATCH_ROWS))
    best = {"valid": -1.0, "test": -1.0}
    step = 0
    since_best = 0
    while step < _MAX_STEPS and since_best < 8:
        perceptron.train()
        for _ in range(steps_per_check):
            chosen = torch.randint(len(x), (min(len(x), _BATCH_ROWS),))
            loss = functional.cross_entropy(perceptron((x[chosen] - mean) / scale), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        perceptron.eval()
        with torch.no_grad():
            valid = _score(router, nodes["valid"], lambda rows: perceptron((rows - mean) / scale), metric)
            if valid > best["valid"]:
                test = _score(router, nodes["test"], lambda rows: perceptron((rows - mean) / scale), metric)
                best, since_best = {"valid": valid, "test": test}, 0
            else:
                since_best += 1
    return best


def _score(router: Router, node: np.ndarray, predict, metric: str, *, with_features: bool = True) -> float:
    """The metric over `node`, streamed in blocks."""
    scores = SplitScores(torch.device("cpu"), binary=router.manifest.num_classes == 2)
    for start in range(0, len(node), _BLOCK_ROWS):
        rows = router.fetch(node[start : start + _BLOCK_ROWS], feature=with_features)
        assert rows.label is not None
        features = rows.feature if with_features else np.empty((len(rows.label), 0), np.float32)
        scores.update(predict(torch.tensor(features, dtype=torch.float32)), torch.tensor(rows.label))
    return scores.compute()[metric]
