"""Node classification: what its task must know of the graph, and what the graph must have for it."""

import numpy as np

from cluster.options import NodeClassificationOptions
from cluster.tasks import Classification, Task
from jobs.run.resolve import ResolvedRun
from storage.errors import ConfigError
from storage.graph import StoredGraph
from storage.manifest import Manifest
from storage.source import SPLIT_TRAIN, SPLITS


def node_task(resolved: ResolvedRun, manifest: Manifest) -> Task:
    """The run's task on this graph. Raises ConfigError where the two do not fit."""
    options, data = resolved.config.task.options, resolved.config.data
    if not isinstance(options, NodeClassificationOptions):
        return options.build(resolved.inputs)
    weights = _balanced_weights(manifest, data.split_set) if options.class_weights == "balanced" else None
    return Classification(manifest.num_classes or 0, options.metric, options.label_smoothing, weights)


def _balanced_weights(manifest: Manifest, split_set: int) -> tuple[float, ...]:
    """Training nodes / (classes · nodes of the class), by class; 1 for a class without nodes."""
    classes = manifest.measured.splits[split_set].class_counts
    if classes is None:
        raise ConfigError(
            f"class weights: {manifest.name} has {manifest.num_classes} classes, more than are counted; "
            "set --task.class_weights none"
        )
    count = np.array(classes[SPLIT_TRAIN])
    weight = np.where(count > 0, count.sum() / (len(count) * np.maximum(count, 1)), 1.0)
    return tuple(weight.tolist())


def check_graph(graph: StoredGraph, split_set: int, metric: str, num_roots: int) -> None:
    """Raises ConfigError where the graph has not the labels, features and splits that classification needs.

    `num_roots`: labelled nodes that the training split must have at least.
    """
    manifest = graph.manifest
    if manifest.label_kind != "class":
        raise ConfigError(f"{graph.url}: expected class labels, the graph has {manifest.label_kind or 'none'}")
    if not manifest.feature_dim:
        raise ConfigError(
            f"{graph.url}: expected node features, the graph has none; ingest it with features (jobs/ingest.py --edge_list.features)"
        )
    if split_set >= manifest.num_split_sets:
        raise ConfigError(
            f"{graph.url}: expected a split set below {manifest.num_split_sets}, got {split_set}; set --data.split_set"
        )
    if metric == "rocauc" and manifest.num_classes != 2:
        raise ConfigError(
            f"metric rocauc: expected 2 classes, the graph has {manifest.num_classes}; set --task.metric accuracy"
        )
    check_splits(manifest, split_set, metric, num_roots)


def check_splits(manifest: Manifest, split_set: int, metric: str, num_roots: int) -> None:
    """Raises ConfigError where a split cannot be trained on or scored."""
    split = manifest.measured.splits[split_set]
    for name, code in SPLITS.items():
        labelled, size = split.num_labelled[code], split.num_nodes[code]
        needed = num_roots if name == "train" else 1
        if labelled < needed:
            raise ConfigError(
                f"split {name}: expected at least {needed} labelled nodes (one root per micro-batch of a step), the graph has {labelled} "
                f"among {size}; lower --fit.micro_batches (or, where it is auto, --workers) or ingest the graph with another split"
            )
        counts = split.class_counts[code] if split.class_counts else ()
        if metric == "rocauc" and labelled in counts:
            raise ConfigError(
                f"split {name}: rocauc needs nodes of both classes, the graph has only class {counts.index(labelled)}; "
                "set --task.metric accuracy or ingest the graph with another split"
            )
