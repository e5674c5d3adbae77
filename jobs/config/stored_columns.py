"""The columns that a graph stores in addition to the features and labels of nodes, and which of these columns a run reads."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from graphmill.core.errors import ConfigError
from graphmill.core.summaries import counted
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.registry import EmbeddedColumn, Inputs
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import FeatureColumn, SourceInfo


def embedded_columns(of: str, columns: Iterable[FeatureColumn]) -> tuple[EmbeddedColumn, ...]:
    """The embedded columns of a node type, or of a plain graph (empty type). For each such column, a model has a trained vector for each category and one more
    vector for all other values."""
    columns = list(columns)
    return tuple(
        (of, sum(before.width for before in columns[:index]), own.name, len(own.values) + 1, _digest(own.values))
        for index, own in enumerate(columns)
        if own.kind == "embedded"
    )


def category_columns(of: str, columns: Iterable[FeatureColumn]) -> tuple[tuple[str, str, str], ...]:
    """(node type, name, digest of the categories) of each column of categories that is one-hot encoded."""
    return tuple((of, own.name, _digest(own.values)) for own in columns if own.kind == "categories" and own.values)


def _digest(values: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(values).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class EdgeWeights:
    """The weights of a graph's edges."""

    graph: str
    least: float | None
    """The smallest weight. None: a weight is not finite, or an older version ingested the graph."""

    def check(self) -> None:
        """Raises ConfigError if a weight is below 0, or if the smallest weight is not known."""
        if self.least is None or self.least < 0:
            least = "not known" if self.least is None else f"{self.least:g}"
            raise ConfigError(
                f"{self.graph}: edge_weight: expected weights of at least 0, by which sums over neighbors are divided, the least is {least}; "
                "set --data.edge_weight no, or ingest other weights"
            )


def edge_weights(data: Manifest | SourceInfo, config: RunConfig) -> EdgeWeights | None:
    """The edge weights; for a typed graph, the weights of the relation with the smallest weight. None: edges have no weights. Weights of a source that is not
    read yet are assumed to be at least 0.

    Raises ConfigError if the options ask for weights and the edges have none.
    """
    rows = data.edge_types.values() if isinstance(data, Manifest) else (data,)
    weights = [
        EdgeWeights(row.name, row.measured.least_weight if isinstance(row, Manifest) and row.num_edges else 0)
        for row in rows
        if row.has_edge_weight
    ]
    if not weights and config.data.edge_weight == "yes":
        raise ConfigError(
            f"{data.name}: edge_weight: expected weights of edges, the graph has none; leave out --data.edge_weight, or ingest a source that has them"
        )
    return min(weights, key=lambda row: -inf if row.least is None else row.least, default=None)


def choose_weights(config: RunConfig, weights: EdgeWeights | None, *, is_typed: bool = False) -> bool:
    """Whether the model or the sampler reads the graph's weights. Raises ConfigError if the options ask for weights that are negative or cannot be read."""
    asked, sampler = config.data.edge_weight, config.sampler.options
    in_columns = "weight" in getattr(sampler, "edge_columns", ())
    if asked == "no" and in_columns:
        raise ConfigError(
            "edge_weight: expected auto or yes with --sampler.edge_columns weight, got no; leave out one of them"
        )
    if weights is None or asked == "no":
        return False
    problem = _why_not(config, weights, is_typed)
    if problem is None:
        weights.check()
    elif asked == "yes" or in_columns:
        raise ConfigError(f"{weights.graph}: edge_weight: {problem}; set --data.edge_weight no")
    draws = getattr(sampler, "scheme", "uniform") == "weight"
    return problem is None and (asked == "yes" or in_columns or not draws)


def _why_not(config: RunConfig, weights: EdgeWeights, is_typed: bool) -> str | None:
    """The reason why neither the model nor the sampler can read the weights (the samplers PPR and Node2Subgraph can)."""
    model, sampler = config.model, config.sampler
    reads = getattr(model.options, "reads_weights", model.is_foreign and config.data.edge_weight == "yes")
    if not (reads or (is_typed and config.relational.num_layers > 0) or hasattr(sampler.options, "by_weight")):
        return f"expected a model that sums over neighbors (gcn, sage, gat, geco), got {model.name} with these options"
    if not hasattr(sampler.options, "edge_columns"):
        return f"expected a sampler with the field edge_columns, {sampler.name} has none"
    if getattr(sampler.options, "corrected", False):
        return "expected sums over the batch's own edges, got --sampler.corrected, which counts edges without weights"
    if weights.least is None:
        return "expected finite weights, of which the manifest knows the least; ingest the graph again"
    return None


def unread_columns(manifest: Manifest, read: Collection[str] = (), *, splits: bool = True) -> list[str]:
    """Stored columns that `read` (weight, feature, time) does not name, each with the option that makes the run read it."""
    of_nodes = manifest.part is None or not manifest.has_topology
    num_features, further = manifest.edge_feature_dim, manifest.num_split_sets - 1
    stored = {
        "edge weights": (manifest.has_edge_weight and "weight" not in read, "--data.edge_weight"),
        f"{num_features} features of edges": (
            num_features > 0 and not manifest.relations and "feature" not in read,
            "--data.edge_features",
        ),
        "relations of edges": (bool(manifest.relations) and "feature" not in read, "--task links"),
        "times of edges": (manifest.has_edge_time and "time" not in read, "--sampler.time"),
        "times of nodes": (manifest.has_node_time and of_nodes and "time" not in read, "--sampler.time"),
        counted(further, "further split set"): (further > 0 and of_nodes and splits, "--data.split_set"),
    }
    return [f"{name} ({option})" for name, (is_unread, option) in stored.items() if is_unread]


def unread(manifest: Manifest, config: RunConfig, inputs: Inputs) -> str:
    """One line about the stored columns that this run does not read, in all parts of the graph. Empty: the run reads all stored columns."""
    sampler = config.sampler.options
    scheme = getattr(sampler, "scheme", "uniform")
    uses = {
        "weight": inputs.edge_weight or scheme == "weight",
        "feature": not inputs.edge.empty or inputs.num_relations > 0,
        "time": scheme == "last" or getattr(sampler, "time", "all") != "all",
    }
    read, parts_by_column = [name for name, is_used in uses.items() if is_used], dict[str, list[str]]()
    for row in manifest.rows.values():
        for column in unread_columns(row, read, splits=config.links is None):
            parts_by_column.setdefault(column, []).append("" if row.part is None else row.part.name)
    if inputs.encoding is not None and inputs.edge_weight:
        parts_by_column[f"edge weights in {inputs.encoding}, which is of the graph without them"] = []
    columns = [f"{column} of {', '.join(parts)}" if any(parts) else column for column, parts in parts_by_column.items()]
    return f"stored and not read by this run: {'; '.join(columns)}" if columns else ""
