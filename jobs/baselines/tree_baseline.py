"""Computes the baseline of gradient-boosted trees (LightGBM: Ke et al., NIPS 2017). On tables of industry, trees with the means of the neighbors
are hard to beat (GraphLand, arXiv:2409.14500).

The trees of a node read its own row and, for each relation into its type, the in-degree and the mean, least and greatest value of each column over all
in-neighbors. The trees of a graph read its counts, like the linear baseline. Settings are tried in a fixed order; the best validation score counts.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from graphmill.cluster.tasks import Classification, Regression, Task
from graphmill.core.errors import ConfigError, MissingDependencyError
from graphmill.core.summaries import size
from graphmill.jobs.baselines.node_baselines import plain_task, split_scores, target_of
from graphmill.samplers.access.router import Router
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLITS

Blocks = Iterator[tuple[np.ndarray, torch.Tensor]]  # (inputs float32 [n, F], targets)
_MOST_ROWS = 200_000  # most training rows, and most rows that stop the training
_MOST_NUMBERS = 1 << 29  # most numbers of these rows, 2 GiB
_BLOCK_ROWS = 16_384
_BLOCK_NUMBERS = 1 << 25  # most numbers of neighbors' rows in memory, unless one node has more
_WIDEST = 128  # most columns of which the least and the greatest value are read too
_ROUNDS, _TREES, _PATIENCE = (
    500,
    6_000,
    30,
)  # rounds of boosting; all trees, of which a round has one for each class, answer or number; rounds without a gain


@dataclass(frozen=True)
class Setting:
    """One try. `sees_neighbors`: the trees also read the columns beyond the node's own row."""

    sees_neighbors: bool
    num_leaves: int

    @property
    def text(self) -> str:
        return f"{'own row and neighbors' if self.sees_neighbors else 'own row alone'}, {self.num_leaves} leaves"


SETTINGS = (Setting(True, 31), Setting(False, 31), Setting(True, 127), Setting(False, 127))


def compute_node_trees(
    router: Router | TypedRouter, own: str, split_set: int, task: Task, seed: int, tries: int
) -> dict[str, float]:
    """Scores on "valid" and "test" of the best of the first `tries` settings, for the nodes of the type `own`. Raises MissingDependencyError without LightGBM."""
    rows = router.nodes[own]
    check_node_trees(rows.manifest, task)
    block_rows = max(1, min(_BLOCK_ROWS, _MOST_NUMBERS // 4 // node_tree_columns(router, own)))
    nodes = {name: rows.list_split(split_set, code).node for name, code in SPLITS.items()}

    def read(split: str, most: int | None) -> Blocks:
        chosen = nodes[split] if most is None else nodes[split][:: max(1, -(-len(nodes[split]) // most))]
        for start in range(0, len(chosen), block_rows):
            node = chosen[start : start + block_rows]
            block = rows.fetch(node)
            seen = [] if block.feature is None else [block.feature]
            yield np.concatenate([*seen, *_neighbors(router, own, node)], axis=1), target_of(block.label)

    return best_trees(read, rows.manifest.feature_dim, plain_task(rows.manifest, task), ("valid", "test"), seed, tries)


def check_lightgbm() -> None:
    """Raises MissingDependencyError if LightGBM is not installed. A run calls it before it trains."""
    if importlib.util.find_spec("lightgbm") is None:
        raise MissingDependencyError("--baseline trees needs lightgbm: pip install -e '.[trees]'")


def check_node_trees(manifest: Manifest, task: Task) -> None:
    """Raises ConfigError if trees cannot predict these nodes' labels, MissingDependencyError without LightGBM."""
    if manifest.label_kind in ("value", "values") and not isinstance(task, Regression):
        raise ConfigError("baseline: trees expect classes, answers or numbers, got a task of your own; leave out trees")
    check_lightgbm()


def node_tree_columns(router: Router | TypedRouter, own: str) -> int:
    """Number of columns that the trees of these nodes read."""
    widths = [router.nodes[each.source].manifest.feature_dim for each in router.edges if each.target == own]
    return router.nodes[own].manifest.feature_dim + sum(1 + len(_reduced(width)) * width for width in widths)


def most_rows(columns: int) -> int:
    """Most rows of a split that are in memory at once."""
    return max(1, min(_MOST_ROWS, _MOST_NUMBERS // max(1, columns)))


def plan_text(tries: int, columns: int | None) -> str:
    """What the trees of a run try and keep in memory, for its plan. `columns`: None if it is not known yet."""
    tried = f"{min(tries, len(SETTINGS))} settings"
    if columns is None:
        return f"{tried}; training and validation rows of at most {size(4 * _MOST_NUMBERS)} each in memory"
    rows = most_rows(columns)
    return f"{tried}, {columns:,} columns; at most {rows:,} training and validation rows of {size(4 * rows * columns)} each in memory"


def best_trees(
    read: Callable[[str, int | None], Blocks], num_own: int, task: Task, splits: Sequence[str], seed: int, tries: int
) -> dict[str, float]:
    """Fits the settings, and returns the scores of the best one.

    `read(split, most)` yields blocks of inputs and targets, of about `most` evenly chosen rows, or of all. The first `num_own` columns are a node's own row.
    Without own columns, or without others, settings that would repeat another are left out.
    """
    width = next(read("train", 1))[0].shape[1]
    train, valid = (_joined(read(split, most_rows(width))) for split in ("train", "valid"))
    settings = [one for one in SETTINGS if num_own < width or not one.sees_neighbors]
    fitted = [
        (one, _Trees(train, valid, task, one, width if one.sees_neighbors else num_own, seed))
        for one in settings[:tries]
        if one.sees_neighbors or num_own
    ]
    sign = 1 if task.higher_is_better else -1
    best, trees = max(fitted, key=lambda one: sign * one[1].scores([valid])[task.metric])
    print(f"baseline trees: {best.text}, the best of {len(fitted)} settings by validation", flush=True)
    scores: dict[str, float] = {}
    for split in splits:
        scores |= split_scores(split, trees.scores(read(split, None)), task.metric)
    return scores


def _joined(blocks: Blocks) -> tuple[np.ndarray, torch.Tensor]:
    inputs, targets = zip(*blocks, strict=True)
    return np.concatenate(inputs), torch.cat(targets)


def _reduced(width: int) -> list[np.ufunc]:
    """What is read of each column of the neighbors; the first gives the mean."""
    return [np.add, np.minimum, np.maximum] if width <= _WIDEST else [np.add]


def _neighbors(router: Router | TypedRouter, own: str, node: np.ndarray) -> Iterator[np.ndarray]:
    """For each relation into the type: float32 [n, 1 + k * F] of these nodes, with k = 3, or 1 for a wide table. Columns of a node without neighbors are 0."""
    for relation, edges in router.edges.items():
        if relation.target != own:
            continue
        sources = router.nodes[relation.source]
        width = sources.manifest.feature_dim
        lists = edges.list_neighbors(node)
        yield np.log1p(lists.degree).astype(np.float32)[:, None]
        if not width:
            continue
        reduced = _reduced(width)
        result = np.zeros((len(node), len(reduced) * width), np.float32)
        ends = np.cumsum(lists.count)
        start = 0
        while start < len(node):
            first = ends[start] - lists.count[start]
            stop = max(start + 1, int(np.searchsorted(ends, first + _BLOCK_NUMBERS // width, side="right")))
            listed = np.arange(start, stop)[lists.count[start:stop] > 0]
            if len(listed):
                distinct, place = np.unique(lists.neighbor[first : ends[stop - 1]], return_inverse=True)
                feature = sources.fetch(distinct).feature
                assert feature is not None
                offsets = ends[listed] - lists.count[listed] - first
                values = feature[place]
                for part, reduce in enumerate(reduced):
                    columns = slice(part * width, (part + 1) * width)
                    result[listed, columns] = reduce.reduceat(values, offsets, axis=0)
                result[listed, :width] /= lists.count[listed, None]
            start = stop
        yield result


class _Trees:
    """The fitted trees of one setting: one booster for all classes, or one for each answer or number."""

    def __init__(
        self,
        train: tuple[np.ndarray, torch.Tensor],
        valid: tuple[np.ndarray, torch.Tensor],
        task: Task,
        setting: Setting,
        width: int,
        seed: int,
    ) -> None:
        lightgbm = _lightgbm()
        self.task, self.width = task, width
        objective, per_round = _objective(task)
        options = {
            "objective": objective,
            "learning_rate": 0.1,
            "num_leaves": setting.num_leaves,
            "num_threads": torch.get_num_threads(),
            "deterministic": True,
            "force_row_wise": True,
            "seed": seed,
            "verbosity": -1,
            **({"num_class": per_round} if objective == "multiclass" else {}),
        }
        self.boosters: list[Any] = []
        num_columns = 1 if isinstance(task, Classification) else task.out_dim
        rounds = max(20, min(_ROUNDS, _TREES // max(per_round, num_columns)))
        for column in range(num_columns):
            parts = []
            for inputs, target in (train, valid):
                answer = target if target.dim() == 1 else target[:, column]
                known = (answer >= 0 if isinstance(task, Classification) else ~answer.isnan()).numpy()
                parts.append((inputs[known, :width], answer.numpy()[known]))
            if not len(parts[0][1]):
                self.boosters.append(_Constant(task, column, per_round))
                continue
            own = lightgbm.Dataset(*parts[0], free_raw_data=True)
            checks = [lightgbm.Dataset(*parts[1], reference=own)] if len(parts[1][1]) else []
            stops = [lightgbm.early_stopping(_PATIENCE, verbose=False)] if checks else []
            self.boosters.append(lightgbm.train(options, own, rounds, valid_sets=checks, callbacks=stops))

    def scores(self, blocks: Any) -> dict[str, float]:
        """The task's scores over blocks of (inputs, targets)."""
        total = self.task.scores(torch.device("cpu"))
        for inputs, target in blocks:
            total.update(self._predict(inputs[:, : self.width]), target)
        return total.compute()

    def _predict(self, inputs: np.ndarray) -> torch.Tensor:
        """[n, out_dim], in the units of a model's output: logits, or standardised numbers."""
        raw = [np.asarray(one.predict(inputs, raw_score=True)) for one in self.boosters]
        if isinstance(self.task, Regression):
            numbers = torch.tensor(np.stack(raw, axis=1))
            return (numbers - torch.tensor(self.task.mean)) / torch.tensor(self.task.scale)
        if isinstance(self.task, Classification) and raw[0].ndim == 1 and self.task.out_dim == 2:
            return torch.tensor(np.stack([np.zeros_like(raw[0]), raw[0]], axis=1))
        return torch.tensor(raw[0] if raw[0].ndim == 2 else np.stack(raw, axis=1))


class _Constant:
    """Stands for the trees of a label of which no training row is known: the mean of a number, equal chances of answers and classes."""

    def __init__(self, task: Task, column: int, per_round: int) -> None:
        self.value = task.mean[column] if isinstance(task, Regression) else 0.0
        self.columns = (per_round,) if per_round > 1 else ()

    def predict(self, inputs: np.ndarray, *, raw_score: bool) -> np.ndarray:
        """The value for each row, in the form of LightGBM's raw scores."""
        return np.full((len(inputs), *self.columns), self.value)


def _objective(task: Task) -> tuple[str, int]:
    """(LightGBM's objective, trees in a round)."""
    if isinstance(task, Regression):
        return "l1" if task.metric == "mae" else "l2", 1
    if isinstance(task, Classification) and task.num_classes > 2:
        return "multiclass", task.num_classes
    return "binary", 1


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise MissingDependencyError(f"--baseline trees needs lightgbm: pip install -e '.[trees]' ({error})") from error
    return lightgbm
