"""Computes baselines for many graphs: a constant, and a linear model that reads only counts of nodes and edges, not the structure of a graph."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from graphmill.cluster.data.graph_set_data import graph_labels
from graphmill.cluster.tasks import BinaryClassification, Classification, Regression, Task
from graphmill.core.errors import ConfigError
from graphmill.jobs.baselines.node_baselines import Baselines, constant_prediction, minimise, split_scores, zero_linear
from graphmill.storage.graph_sets.graph_set import StoredGraphs

Seen = Callable[[Tensor], Tensor] | None
_BLOCK_ROWS = 65_536
_MAX_TRAIN_ROWS = 200_000
_MAX_CATEGORIES = 256
_PENALTY = 1e-4  # penalty on the linear model's squared weights, for standardised columns


def compute_graph_baselines(
    store: StoredGraphs, columns: tuple[int, ...], task: Task, splits: tuple[str, ...], seen: Seen = None
) -> Baselines:
    """Returns the scores by baseline and by split.

    Targets of graphs have two baselines. "constant" predicts the training mean. "composition" is a linear model of the number of nodes, the number of edges,
    and the number of nodes of each first category (the atoms of each element). Labelled nodes also have two. "shares" predicts the share of each class in the
    training split. "features_only" is a linear model of the node's features. Labelled pairs have one: "equal" gives all pairs the same score. `seen` maps rows
    of numeric features to the rows that the model reads.
    """
    if store.manifest.labelled == "pairs":
        return {"equal": {split: _equal_scores(store, task, split) for split in splits}}
    graphs = store.split("train")
    # Estimated number of rows of a graph: one row for each labelled node, or one row for the graph.
    per_graph = max(1, int(store.num_nodes.mean())) if store.manifest.labelled else 1
    block = max(1, _BLOCK_ROWS // per_graph)
    x, y = _rows(store, graphs[:: max(1, -(-len(graphs) * per_graph // _MAX_TRAIN_ROWS))], columns, task, seen)
    centre, scale = x.mean(dim=0), x.std(dim=0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    linear = _fit((x - centre) / scale, y, task)
    constant = constant_prediction(y, task)
    names = ("shares", "features_only") if store.manifest.labelled else ("constant", "composition")
    scores: dict[str, dict[str, float]] = {name: {} for name in names}
    for split in splits:
        totals = {name: task.scores(torch.device("cpu")) for name in scores}
        part = store.split(split)
        for start in range(0, len(part), block):
            rows, target = _rows(store, part[start : start + block], columns, task, seen)
            totals[names[0]].update(constant.expand(len(target), -1), target)
            with torch.no_grad():
                totals[names[1]].update(linear((rows - centre) / scale), target)
        for name, total in totals.items():
            scores[name] |= split_scores(split, total.compute(), task.metric)
    return dict(scores)


def check_graph_trees(store: StoredGraphs, task: Task) -> None:
    """Raises ConfigError if trees cannot predict the set's labels, MissingDependencyError without LightGBM."""
    from graphmill.jobs.baselines.tree_baseline import check_lightgbm

    if not isinstance(task, Classification | BinaryClassification | Regression):
        raise ConfigError(
            f"baseline: trees expect labels of graphs or nodes, got {store.manifest.labelled or 'others'}; leave out trees"
        )
    check_lightgbm()


def compute_graph_trees(
    store: StoredGraphs, columns: tuple[int, ...], task: Task, splits: tuple[str, ...], seed: int, tries: int
) -> dict[str, float]:
    """The scores by split of gradient-boosted trees that read what "composition" or "features_only" reads. Raises ConfigError for labelled pairs."""
    from graphmill.jobs.baselines.tree_baseline import best_trees

    check_graph_trees(store, task)
    per_graph = max(1, int(store.num_nodes.mean())) if store.manifest.labelled else 1

    def read(split: str, most: int | None) -> Iterator[tuple[np.ndarray, Tensor]]:
        graphs, block = store.split(split), max(1, _BLOCK_ROWS // per_graph)
        graphs = graphs if most is None else graphs[:: max(1, -(-len(graphs) * per_graph // most))]
        for start in range(0, len(graphs), block):
            rows, target = _rows(store, graphs[start : start + block], columns, task, None)
            yield rows.float().numpy(), target

    width = next(read("train", 1))[0].shape[1]
    return best_trees(read, width, task, splits, seed, tries)


def _rows(
    store: StoredGraphs, graphs: np.ndarray, columns: tuple[int, ...], task: Task, seen: Seen
) -> tuple[Tensor, Tensor]:
    """(inputs, targets). The inputs are float64 [n, F]: the counts of graphs or the features of labelled nodes. The targets have the form that the task
    requires."""
    packed = store.fetch(graphs)
    if seen is not None and store.manifest.node.holds_numbers:
        packed = replace(packed, node_feature=seen(torch.tensor(packed.node_feature)).numpy())
    if packed.node_label is not None:
        own = np.ones((len(packed.node_label), 1)) if packed.node_feature is None else packed.node_feature
        if np.issubdtype(own.dtype, np.integer):
            own = np.eye(_MAX_CATEGORIES)[np.minimum(own[:, 0].astype(np.int64), _MAX_CATEGORIES - 1)]
        return torch.tensor(own).double(), torch.tensor(packed.node_label).long()
    counts = [packed.num_nodes[:, None], packed.num_edges[:, None]]
    feature = packed.node_feature
    if feature is not None:
        owner = np.repeat(np.arange(len(graphs)), packed.num_nodes)
        if np.issubdtype(feature.dtype, np.integer):
            kind = np.minimum(feature[:, 0].astype(np.int64), _MAX_CATEGORIES - 1)
            flat = np.bincount(owner * _MAX_CATEGORIES + kind, minlength=len(graphs) * _MAX_CATEGORIES)
            counts.append(flat.reshape(len(graphs), _MAX_CATEGORIES))
        else:
            sums = np.zeros((len(graphs), feature.shape[1]))
            np.add.at(sums, owner, feature)
            counts.append(sums)
    assert packed.target is not None
    x, y = torch.tensor(np.concatenate(counts, axis=1)).double(), torch.tensor(packed.target[:, list(columns)]).double()
    return x, graph_labels(y) if isinstance(task, Classification) else y


def _equal_scores(store: StoredGraphs, task: Task, split: str) -> float:
    """The metric's value if all pairs of a graph have the same score."""
    total = task.scores(torch.device("cpu"))
    graphs = store.split(split)
    for start in range(0, len(graphs), _BLOCK_ROWS):
        part = graphs[start : start + _BLOCK_ROWS]
        packed = store.fetch(part)
        assert packed.pairs is not None
        assert packed.num_pairs is not None
        same = np.repeat(packed.num_nodes - 1, packed.num_pairs)
        prediction = np.stack([np.zeros(len(same)), np.zeros(len(same)), same], axis=1)
        target = np.stack([packed.pairs[:, 2], np.repeat(part, packed.num_pairs)], axis=1)
        total.update(torch.tensor(prediction), torch.tensor(target))
    return total.compute()[task.metric]


def _fit(x: Tensor, y: Tensor, task: Task) -> nn.Module:
    """Fits a linear model: by least squares for numeric targets, by L-BFGS on the task's own loss for other targets."""
    linear = zero_linear(x.shape[1], task.out_dim, torch.float64)
    if isinstance(task, Regression):
        _least_squares(linear, x, (y - torch.tensor(task.mean)) / torch.tensor(task.scale))
        return linear
    weight = task.weight(y)
    minimise(linear, 100, lambda: task.loss(linear(x), y) / weight + _PENALTY * linear.weight.square().sum())
    return linear


@torch.no_grad()
def _least_squares(linear: nn.Linear, x: Tensor, y: Tensor) -> None:
    """Fits a ridge regression for each target, with only the graphs that have this target."""
    for column in range(y.shape[1]):
        known = ~y[:, column].isnan()
        rows = torch.cat([x[known], torch.ones(int(known.sum()), 1, dtype=x.dtype)], dim=1)
        penalty = torch.eye(rows.shape[1], dtype=x.dtype) * _PENALTY * len(rows)
        penalty[-1, -1] = 0.0  # the bias has no penalty
        solution = torch.linalg.lstsq(rows.T @ rows + penalty, rows.T @ y[known, column : column + 1]).solution[:, 0]
        linear.weight[column], linear.bias[column] = solution[:-1], solution[-1]
