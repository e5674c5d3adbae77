"""Tasks over many graphs: the targets that a run predicts, and the statistics of the training split that the task needs."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from graphmill.cluster.options import BinaryOptions, ClassesOptions, NodesOptions, NumberOptions, PairsOptions
from graphmill.cluster.tasks import BinaryClassification, Classification, PairClassification, Task, own_parts
from graphmill.core.errors import ConfigError
from graphmill.jobs.config.registry import Component, Inputs
from graphmill.jobs.tasks.node_task import MOST_SHOWN, balanced, number_task, positive_balance, split_faults
from graphmill.models.options.features import Features
from graphmill.storage.format.graph_set_manifest import GraphSetManifest, RowSchema
from graphmill.storage.graph_sets.graph_set import StoredGraphs

_MOST_CLASSES = 1000  # whole numbers below this limit count as classes


def set_inputs(manifest: GraphSetManifest, out_dim: int, edges: bool = True) -> Inputs:
    """The inputs that the set provides to a model or a task. `edges`: whether features of edges are read."""
    task, edge = _MODEL_TASKS[manifest.labelled], _features(manifest.edge) if edges else Features()
    return Inputs(node=_features(manifest.node), edge=edge, out_dim=out_dim, task=task)


_MODEL_TASKS: dict[str | None, Literal["node", "graph", "link"]] = {None: "graph", "nodes": "node", "pairs": "link"}


def _features(schema: RowSchema) -> Features:
    return Features(categories=schema.categories) if schema.categories else Features(dim=schema.dim)


def predicted(manifest: GraphSetManifest) -> str:
    """Plural noun for the predicted things."""
    return "graphs" if manifest.labelled is None else f"labelled {manifest.labelled}"


def target_columns(store: StoredGraphs, wanted: str | None) -> tuple[int, ...]:
    """Indices of the target columns that the run predicts; empty if nodes or pairs are labelled."""
    names = store.target_names
    if store.manifest.labelled:
        return ()
    if not names:
        raise ConfigError(f"{store.url}: expected targets, the set has none; ingest it with a target")
    if wanted is None:
        return tuple(range(len(names)))
    if wanted not in names:
        raise ConfigError(f"{store.url}: expected a target of {', '.join(names)}, got {wanted!r}; set --task.target")
    return (names.index(wanted),)


def scored_splits(store: StoredGraphs, columns: tuple[int, ...], task: Task, micro_batches: int) -> tuple[str, ...]:
    """The scored splits: "valid", and "test" if it has targets. Raises ConfigError if "train" or "valid" is unusable."""
    scored = []
    for split in ("train", "valid", "test"):
        graphs = store.split(split) if split in store.split_names else np.empty(0, np.int64)
        target = split_targets(store, split, columns)
        enough, needed = bool((~np.isnan(target)).any()), "a target"
        if isinstance(task, PairClassification):
            enough, needed = bool((target == 1).any()), "a pair that belongs together"
        elif isinstance(task, BinaryClassification) or task.metric == "rocauc":
            has_both = (target == 1).any(axis=0) & (target == 0).any(axis=0)
            enough, needed = bool(has_both.any()), "a question with both answers"
        if isinstance(task, Classification) and enough and np.nanmax(target) >= task.num_classes:
            raise ConfigError(
                f"{store.url}: split {split}: expected the training split's classes 0 to {task.num_classes - 1}, got {np.nanmax(target):g}; "
                "ingest the set with another split"
            )
        if enough and len(graphs) >= micro_batches:
            scored.append(split)
        elif split != "test" and not enough:
            raise ConfigError(
                f"{store.url}: split {split}: expected {needed} among its {len(graphs)} graphs, found none; ingest the set with another split"
            )
        elif split != "test":
            raise ConfigError(
                f"{store.url}: split {split}: expected at least {micro_batches} graphs (one per micro-batch of a step), got {len(graphs)}; "
                "lower --fit.micro_batches (or, where it is none, --workers) or ingest the set with another split"
            )
    return tuple(scored[1:])


def split_targets(store: StoredGraphs, split: str, columns: tuple[int, ...]) -> np.ndarray:
    """[rows, columns], NaN for a missing target. One row for each graph of the split, or for each labelled node or pair."""
    if split not in store.split_names:
        return np.empty((0, max(1, len(columns))))
    if store.manifest.labelled == "nodes":
        label = store.node_labels(split)
        return np.where(label < 0, np.nan, label.astype(np.float32))[:, None]
    if store.manifest.labelled == "pairs":
        return store.pair_labels(split).astype(np.float32)[:, None]
    return store.target[store.split(split)][:, list(columns)]


def graph_task(component: Component, store: StoredGraphs, columns: tuple[int, ...]) -> Task:
    """The task, with the statistics of the training split that it needs."""
    options, labelled = component.options, store.manifest.labelled
    wanted = {NodesOptions: "nodes", PairsOptions: "pairs"}.get(type(options))
    if wanted != labelled and (wanted or not component.is_foreign):
        raise ConfigError(
            f"{store.url}: expected --task {labelled or 'regression, binary or classes'} for a set of which "
            f"{f'{labelled} are labelled' if labelled else 'graphs have targets'}, got {component.name}"
        )
    if isinstance(options, NodesOptions):
        return _nodes_task(store, options)
    if isinstance(options, PairsOptions):
        return PairClassification(options.metric)
    if labelled:
        return options.build(set_inputs(store.manifest, store.manifest.num_classes or 1))
    training = store.manifest.measured.parts[store.split_names.index("train") + 1]
    names = [store.target_names[column] for column in columns]
    number_options = options if isinstance(options, NumberOptions) else NumberOptions()
    numbers = number_task(store.url, [training.targets[column] for column in columns], names, number_options)
    if isinstance(options, BinaryOptions | ClassesOptions):
        target = store.target[store.split("train")][:, list(columns)].astype(np.float64)
        if isinstance(options, BinaryOptions):
            return _binary_task(store.url, target, names, options)
        return _class_task(store.url, target, names, options, store.class_names)
    return numbers if options is number_options else options.build(set_inputs(store.manifest, len(columns)))


def _binary_task(url: str, target: np.ndarray, names: list[str], fit: BinaryOptions) -> Task:
    other = ~np.isnan(target) & (target != 0) & (target != 1)
    if other.any():
        column = int(np.argmax(other.any(axis=0)))
        raise ConfigError(
            f"{url}: target {names[column]}: expected 0, 1 or nothing, got {target[other[:, column], column][0]:g}; set --task regression"
        )
    weight = positive_balance(np.count_nonzero(target == 1, axis=0), np.count_nonzero(~np.isnan(target), axis=0))
    return BinaryClassification(
        num_tasks=target.shape[1],
        **own_parts(fit),
        label_smoothing=fit.label_smoothing,
        positive_weight=weight if fit.class_weights == "balanced" else None,
        names=tuple(names) if len(names) > 1 else (),
    )


def _nodes_task(store: StoredGraphs, fit: NodesOptions) -> Task:
    label, num_classes = store.node_labels("train"), store.manifest.num_classes or 0
    count = np.bincount(label[label >= 0], minlength=num_classes)
    return _classification(count, store.class_names, fit)


def _classification(count: np.ndarray, names: tuple[str, ...], fit: NodesOptions | ClassesOptions) -> Classification:
    """The task of a set. `count`: number of training targets of each class."""
    return Classification(
        num_classes=len(count),
        **own_parts(fit),
        label_smoothing=fit.label_smoothing,
        class_weight=balanced(count) if fit.class_weights == "balanced" else None,
        batch_weights=fit.class_weights == "batch",
        one_logit=getattr(fit, "one_logit", False),
        class_names=names,
    )


def _class_task(url: str, target: np.ndarray, names: list[str], fit: ClassesOptions, classes: tuple[str, ...]) -> Task:
    if len(names) != 1:
        raise ConfigError(
            f"{url}: expected one target with numbers of classes, got {', '.join(names)}; set --task.target"
        )
    known = target[~np.isnan(target)]
    if (known < 0).any() or (known != np.floor(known)).any():
        raise ConfigError(f"{url}: target {names[0]}: expected classes 0, 1, 2 …, got others; set --task regression")
    count = np.bincount(known.astype(np.int64), minlength=max(2, len(classes)))
    return _classification(count, classes, fit)


def set_lacks(store: StoredGraphs, columns: Sequence[int] | None = None) -> list[str]:
    """Faults in the rows and splits of a set, each in a few words. `columns`: targets to check (None: all). Only targets with classes are checked."""
    text, labelled = store.manifest.provenance.get("rejected"), store.manifest.labelled
    lacks = [f"rejected rows: {text}"] if text else []
    columns = range(len(store.target_names)) if columns is None else columns
    for column in [0] if labelled else columns:
        values = {name: split_targets(store, name, (column,))[:, 0] for name in store.split_names}
        known = {name: own[~np.isnan(own)] for name, own in values.items()}
        every = np.concatenate([np.empty(0), *known.values()])
        is_class = len(every) and not (every % 1).any() and 0 <= every.min() <= every.max() < _MOST_CLASSES
        if is_class and "train" in known:
            width, target = int(every.max()) + 1, f"{store.target_names[column]}: " if len(columns) > 1 else ""
            rows = {name: (np.bincount(own.astype(int), minlength=width), len(own)) for name, own in known.items()}
            lacks += [target + each for each in split_faults(rows, labelled or "graphs", store.class_names)]
    return lacks if len(lacks) <= MOST_SHOWN else [*lacks[:MOST_SHOWN], f"{len(lacks) - MOST_SHOWN} more of this kind"]
