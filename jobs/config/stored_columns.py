"""What a graph stores beside features and labels of nodes, and which of it a run reads."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import RunConfig
from graphmill.jobs.config.registry import Inputs
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import SourceInfo


@dataclass(frozen=True)
class EdgeWeights:
    """The weights of a graph's edges."""

    graph: str
    least: float | None
    """None: one is not finite, or an older version ingested the graph."""

    def check(self) -> None:
        """Raises ConfigError where one is below 0."""
        if self.least is not None and self.least < 0:
            raise ConfigError(
                f"{self.graph}: edge_weight: expected weights of at least 0, by which sums over neighbors are divided, the least is "
                f"{self.least:g}; set --data.edge_weight no, or ingest other weights"
            )


def edge_weights(data: Manifest | SourceInfo) -> EdgeWeights | None:
    """None: edges have no weights. Those of a source that is not read yet are taken to be at least 0."""
    if not data.has_edge_weight:
        return None
    return EdgeWeights(data.name, data.measured.least_weight if isinstance(data, Manifest) else 0)


def choose_weights(config: RunConfig, weights: EdgeWeights | None) -> bool:
    """Whether the model reads the graph's weights. Raises ConfigError where they are asked for and cannot be read, or are negative."""
    asked, sampler = config.data.edge_weight, config.sampler.options
    in_columns = "weight" in getattr(sampler, "edge_columns", ())
    if asked == "no" and in_columns:
        raise ConfigError(
            "edge_weight: expected auto or yes with --sampler.edge_columns weight, got no; leave out one of them"
        )
    if weights is None or asked == "no":
        return False
    problem = _why_not(config, weights)
    if problem is None:
        weights.check()
    elif asked == "yes" or in_columns:
        raise ConfigError(f"{weights.graph}: edge_weight: {problem}; set --data.edge_weight no")
    draws = getattr(sampler, "scheme", "uniform") == "weight"
    return problem is None and (asked == "yes" or in_columns or not draws)


def _why_not(config: RunConfig, weights: EdgeWeights) -> str | None:
    """Why this run's model cannot read them."""
    model, sampler = config.model, config.sampler
    if not getattr(model.options, "reads_weights", model.is_foreign and config.data.edge_weight == "yes"):
        return f"expected a model that sums over neighbors (gcn, sage, gat, geco), got {model.name} with these options"
    if not hasattr(sampler.options, "edge_columns"):
        return f"expected a sampler with the field edge_columns, {sampler.name} has none"
    if getattr(sampler.options, "corrected", False):
        return "expected sums over the batch's own edges, got --sampler.corrected, which counts edges without weights"
    if weights.least is None:
        return "expected finite weights, of which the manifest knows the least; ingest the graph again"
    return None


def unread_columns(manifest: Manifest, read: Collection[str] = (), *, splits: bool = True) -> list[str]:
    """Columns that the graph stores and `read` (weight, feature, time) does not name, each with the option that reads it, where one does."""
    is_plain, of_nodes = manifest.part is None, manifest.part is None or not manifest.has_topology
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
        f"{further} further split sets": (further > 0 and of_nodes and splits, "--data.split_set"),
    }
    return [f"{name} ({option})" if is_plain else name for name, (is_unread, option) in stored.items() if is_unread]


def unread(rows: Iterable[Manifest], config: RunConfig, inputs: Inputs) -> str:
    """What the parts of a graph store and this run does not read, in one line; empty: nothing."""
    sampler = config.sampler.options
    scheme = getattr(sampler, "scheme", "uniform")
    uses = {
        "weight": inputs.edge_weight or scheme == "weight",
        "feature": not inputs.edge.empty or inputs.num_relations > 0,
        "time": scheme == "last" or getattr(sampler, "time", "all") != "all",
    }
    read, told = [name for name, is_used in uses.items() if is_used], dict[str, list[str]]()
    for row in rows:
        for column in unread_columns(row, read, splits=config.links is None):
            told.setdefault(column, []).append("" if row.part is None else row.part.name)
    return "; ".join(f"{column} of {', '.join(parts)}" if any(parts) else column for column, parts in told.items())
