"""What a job knows of its model: how its workers build it, and what is saved of it. Training and prediction share it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from jobs.run.whole_graph import WholeGraphData
    from storage.encoding_names import EncodingOptions
    from storage.graph import StoredGraph
    from storage.graph_set_manifest import GraphSetManifest
    from storage.manifest import Manifest


@dataclass(frozen=True)
class NodeModel:
    """A model of one graph's nodes: of the manifest it reads the widths of features and classes."""

    build: "Callable[[Manifest], nn.Module]"
    config: "Callable[[Manifest], Mapping[str, Any]]"
    encoding: "EncodingOptions | None" = None  # what every batch carries of the nodes' positions
    whole: "WholeGraphModel | None" = None  # where it can be spread over workers


@dataclass(frozen=True)
class WholeGraphModel:
    """The same model and weights over workers' shards of the whole graph, and what the shards are read by."""

    build: "Callable[[Manifest], nn.Module]"
    data: "Callable[[StoredGraph], WholeGraphData]"


@dataclass(frozen=True)
class GraphModel:
    """A model of whole graphs, by their manifest and the width of its predictions."""

    build: "Callable[[GraphSetManifest, int], nn.Module]"
    config: "Callable[[GraphSetManifest, int], Mapping[str, Any]]"
