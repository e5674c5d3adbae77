"""Tasks on the nodes of one graph: the inputs of models, the tasks with their statistics, and checks of labels, features and splits."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphmill.cluster.options import (
    EmbeddingOptions,
    NodeAnswerOptions,
    NodeBinaryOptions,
    NodeClassificationOptions,
    NumberOptions,
)
from graphmill.cluster.tasks import BinaryClassification, Classification, Regression, Task, own_parts
from graphmill.core.errors import ConfigError, DataError
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.registry import Component, Inputs
from graphmill.jobs.config.stored_columns import category_columns, embedded_columns
from graphmill.models.options.features import Features
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SPLIT_TRAIN, SPLITS, SourceInfo
from graphmill.storage.format.statistics import TargetStatistics
from graphmill.storage.graph import StoredGraph

MOST_SHOWN = 5  # maximum number of classes, or of faults of splits, in a message


def num_extra_columns(config: RunConfig) -> int:
    """Number of columns that a batch's nodes have in addition to their stored features: embeddings and ages."""
    return config.embeddings.width + getattr(config.sampler.options, "recency_dim", 0)


def num_rows(manifest: Manifest, options: EmbeddingOptions) -> int:
    """Number of nodes with embeddings."""
    return sum(manifest.node_types[name].num_nodes for name in options.node_types or manifest.node_types)


def edge_dims(data: Manifest | SourceInfo, config: RunConfig) -> tuple[int, ...]:
    """Number of edge features of each relation. Empty: the run does not read edge features. Raises ConfigError if the run reads them and the graph has none."""
    if not config.data.edge_features:
        return ()
    rows = data.edge_types.values() if isinstance(data, Manifest) else (data,)
    if not any(row.edge_feature_dim for row in rows):
        raise ConfigError(
            f"{data.name}: edge_features: expected features of edges, the graph has none; leave out --data.edge_features, or ingest a source that has them"
        )
    if any(row.relations for row in rows):
        raise ConfigError(
            f"{data.name}: edge_features: expected numbers, an edge of a knowledge graph has a relation, which the decoder of links reads; leave out "
            "--data.edge_features"
        )
    return tuple(row.edge_feature_dim for row in rows)


def graph_inputs(data: Manifest | SourceInfo, config: RunConfig) -> Inputs:
    """The inputs that the graph and the task provide to a model of nodes. Raises ConfigError like `edge_dims`."""
    embedded = embedded_columns("", data.feature_columns)
    width = config.data.category_width if embedded else 0
    return Inputs(
        node=Features(dim=data.feature_dim + num_extra_columns(config) + width),
        edge=Features(dim=sum(edge_dims(data, config))),
        # For a run on links: the width of the states.
        out_dim=(data.num_classes or 1) if config.links is None else config.links.decoder.width,
        task="node",
        num_relations=0 if config.links is None else len(data.relations),
        embedded=embedded,
        category_width=width,
        categories=category_columns("", data.feature_columns),
    )


def node_task(config: RunConfig, inputs: Inputs, manifest: Manifest) -> Task:
    """The run's task on this graph. Raises ConfigError if its options do not fit the labels."""
    options, split_set = config.task.options, config.data.split_set
    names, num_classes = manifest.class_names, manifest.num_classes or 0
    if isinstance(options, NumberOptions):
        split = manifest.measured.splits[split_set]
        targets = [split.training_target] if split.training_target else split.training_targets
        return number_task(manifest.name, targets, [*names] or [str(number) for number in range(len(targets))], options)
    if isinstance(options, NodeBinaryOptions):
        positive = _given_weights(options, manifest)
        if options.class_weights == "balanced":
            positive = positive_weights(manifest, split_set)
        return BinaryClassification(
            num_classes,
            label_smoothing=options.label_smoothing,
            positive_weight=positive,
            names=names,
            **own_parts(options),
        )
    if not isinstance(options, NodeClassificationOptions):
        return options.build(inputs)
    weights = _given_weights(options, manifest)
    if options.class_weights == "balanced":
        weights = balanced(_training_counts(manifest, split_set))
    return Classification(
        num_classes,
        label_smoothing=options.label_smoothing,
        class_weight=weights,
        class_names=names,
        **own_parts(options),
    )


def _given_weights(options: NodeAnswerOptions, manifest: Manifest) -> tuple[float, ...] | None:
    """`--task.weights`, or None if the option is empty. Raises ConfigError if its length differs from the number of classes or labels."""
    num_classes = manifest.num_classes or 0
    if options.weights and len(options.weights) != num_classes:
        raise ConfigError(
            f"weights: expected {num_classes} numbers, one for each class or label of {manifest.name}, got {len(options.weights)}; set --task.weights"
        )
    return options.weights or None


def positive_weights(manifest: Manifest, split_set: int) -> tuple[float, ...]:
    """`positive_balance` of the training nodes, one number for each label."""
    labelled = manifest.measured.splits[split_set].num_labelled[SPLIT_TRAIN]
    return positive_balance(_training_counts(manifest, split_set), labelled)


def positive_balance(count: np.ndarray, known: np.ndarray | int) -> tuple[float, ...]:
    """For each label: (known - count) / count, if `count` of `known` training targets are 1. The result is 1.0 if all or none of the targets are 1."""
    weight = np.where((count > 0) & (count < known), (known - count) / np.maximum(count, 1), 1.0)
    return tuple(weight.tolist())


def _training_counts(manifest: Manifest, split_set: int) -> np.ndarray:
    classes = manifest.measured.splits[split_set].class_counts
    if classes is None:
        raise ConfigError(
            f"class weights: {manifest.name} has {manifest.num_classes} classes, more than are counted; "
            "set --task.class_weights none"
        )
    return np.array(classes[SPLIT_TRAIN])


def balanced(count: np.ndarray) -> tuple[float, ...]:
    """For each class: targets / (classes · targets of the class); 1.0 for a class without targets."""
    weight = np.where(count > 0, count.sum() / (len(count) * np.maximum(count, 1)), 1.0)
    return tuple(weight.tolist())


def number_task(url: str, targets: Sequence[TargetStatistics], names: list[str], fit: NumberOptions) -> Regression:
    """Regression of targets with these statistics of the training split. Raises ConfigError if a target is empty there, DataError if one is infinite."""
    for name, target in zip(names, targets, strict=True):
        if not target.num_labelled:
            raise ConfigError(f"{url}: target {name}: nothing in the training split has one; leave this target out")
        if target.mean is None or target.std is None:
            raise DataError(f"{url}: expected finite targets or NaN, got infinity in the training split")
    deviations, several = tuple(target.std or 1.0 for target in targets), len(names) > 1
    return Regression(
        mean=tuple(target.mean or 0.0 for target in targets) if fit.standardise else (0.0,) * len(names),
        scale=deviations if fit.standardise else (1.0,) * len(names),
        kind=fit.loss,
        huber_delta=fit.huber_delta,
        **own_parts(fit),
        names=tuple(names) if several else (),
        deviation=deviations if several else (),
    )


TASKS = {"class": "classification", "answers": "binary", "value": "regression", "values": "regression"}  # by label kind
_HAVE = {"class": "a class each", "answers": "several labels each", "value": "a number each", "values": "numbers each"}


def fits_labels(manifest: Manifest, task: Component) -> bool:
    """Whether the labels of the graph fit the task. A user's own task accepts any labels."""
    fitting_task = TASKS.get(manifest.label_kind or "")
    return fitting_task is not None if task.is_foreign else fitting_task == task.name


def lacks_features(manifest: Manifest, width: int) -> bool:
    """Whether the run needs features and the graph has none. A type of a typed graph may have no features, and so may a graph with embeddings (`width` > 0)."""
    return not manifest.feature_dim + width and manifest.part is None


def check_features(graph: StoredGraph, width: int) -> None:
    """Raises ConfigError if `lacks_features` returns True."""
    if lacks_features(graph.manifest, width):
        raise ConfigError(
            f"{graph.url}: expected node features, the graph has none; train rows of its nodes (--embeddings.width 64), or ingest it with "
            "features (jobs/ingest.py --edge_list.features)"
        )


def check_graph(graph: StoredGraph, split_set: int, task: Component, metric: str, num_roots: int, width: int) -> None:
    """Raises ConfigError if the task needs labels, features or splits that the graph does not have.

    `num_roots`: minimum number of labelled nodes in the training split. `width`: width of the embeddings; a graph with embeddings needs no features.
    """
    manifest = graph.manifest
    if not fits_labels(manifest, task):
        wanted = _HAVE[next((kind for kind, name in TASKS.items() if name == task.name), "class")]
        label_kind = manifest.label_kind or ""
        advice = f"set --task {TASKS[label_kind]}" if label_kind else "ingest it with such labels"
        raise ConfigError(
            f"{graph.url}: expected nodes with {wanted}, the graph's have {_HAVE.get(label_kind, 'no labels')}; {advice}"
        )
    check_features(graph, width)
    if split_set >= manifest.num_split_sets:
        raise ConfigError(
            f"{graph.url}: expected a split set below {manifest.num_split_sets}, got {split_set}; set --data.split_set"
            if manifest.num_split_sets
            else f"{graph.url}: expected a split of the nodes, the graph has none; ingest it again with --split.shares 0.8 0.1 0.1 --overwrite"
        )
    if manifest.label_kind == "class" and (manifest.num_classes or 0) < 2:
        raise ConfigError(
            f"{graph.url}: expected labels of two classes or more, the graph has {manifest.num_classes}; ingest it with such labels (or "
            "--num_classes 2)"
        )
    check_splits(manifest, split_set, metric, num_roots)


def check_splits(manifest: Manifest, split_set: int, metric: str, num_roots: int) -> None:
    """Raises ConfigError if a split cannot be used for training or scoring."""
    split = manifest.measured.splits[split_set]
    for name, code in SPLITS.items():
        labelled, size = split.num_labelled[code], split.num_nodes[code]
        needed = num_roots if name == "train" else 1
        if labelled < needed:
            fewer = "lower --fit.micro_batches (or, where it is none, --workers) or " if labelled else ""
            raise ConfigError(
                f"split {name}: expected at least {needed} labelled nodes (one root per micro-batch of a step), the graph has {labelled} "
                f"among {size}; {fewer}ingest the graph with another split"
            )
        counts = split.class_counts[code] if split.class_counts else ()
        several = manifest.label_kind == "answers"
        if several and metric in ("rocauc", "ap") and all(count in (0, labelled) for count in counts):
            raise ConfigError(
                f"split {name}: {metric} needs a label that some of its nodes have and others not, the graph has none; "
                "set --task.metric micro_f1 or ingest the graph with another split"
            )
        if not several and metric == "rocauc" and labelled in counts:
            raise ConfigError(
                f"split {name}: rocauc needs nodes of both classes, the graph has only class {counts.index(labelled)}; "
                "set --task.metric accuracy or ingest the graph with another split"
            )


def graph_lacks(manifest: Manifest, split_set: int) -> list[str]:
    """Faults of a split set, each in a few words. Empty if labels are not classes, or if ingestion did not count the classes because there are too many."""
    split = manifest.measured.splits[split_set] if split_set < manifest.num_split_sets else None
    if split is None or split.class_counts is None:
        return []
    rows = {name: (split.class_counts[code], split.num_labelled[code]) for name, code in SPLITS.items()}
    return split_faults(rows, "nodes", manifest.class_names)


def split_faults(rows: Mapping[str, tuple[Any, int]], unit: str, names: Sequence[str]) -> list[str]:
    """Faults of splits, each in a few words with its counts. `rows`: split -> (number of labels by class, number of all labels). `names`: names of the classes;
    if empty, the texts have the classes' indices."""
    lacks, (trained, num_trained) = [], rows["train"]
    for name, (counts, total) in rows.items():
        of_class = {i: f"{names[i] if names else i} ({n:,} of {total:,}" for i, n in enumerate(counts) if n}
        if unseen := [told + ")" for i, told in of_class.items() if not trained[i]]:
            first_classes = ", ".join(unseen[:MOST_SHOWN]) + (" …" if len(unseen) > MOST_SHOWN else "")
            lacks.append(f"{name} has classes that none of {num_trained:,} training {unit} has: {first_classes}")
        if len(of_class) == 1 < len(counts) and sum(counts) == total:
            lacks.append(f"{name} has one class of {len(counts):,}: {', '.join(of_class.values())} {unit})")
    return lacks
