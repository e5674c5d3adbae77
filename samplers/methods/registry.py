"""The table of samplers over one graph: name -> (options, sampler). A user's own sampler is named by its import path.

`package.module:Name` names a frozen dataclass whose fields are the options. Its method `build(router, num_ranks)` makes a
`graphmill.samplers.drawing.protocol.Sampler`. If the dataclass has the fields seed, split_set, root_split, shuffle and encodings, the run fills them in.
"""

import importlib
from dataclasses import fields, replace
from typing import Any

from graphmill.core.errors import ConfigError

OBJECTS = "graphmill.objects"  # the module of objects passed in Python; other processes do not have it


def _paths(options: str, sampler: str) -> tuple[str, str]:
    return f"graphmill.samplers.vocabulary.options:{options}", f"graphmill.samplers.methods.{sampler}"


# By import path.
SAMPLERS = {
    "random-partition": _paths("RandomPartitionOptions", "random_partition:RandomPartitionSampler"),
    "neighbor": _paths("NeighborOptions", "neighbor:NeighborSampler"),
    "node2subgraph": _paths("Node2SubgraphOptions", "node2subgraph:Node2SubgraphSampler"),
    "ppr": _paths("PprOptions", "ppr:PprSampler"),
    "typed-neighbor": _paths("TypedNeighborOptions", "neighbor:NeighborSampler"),
    "typed-node2subgraph": _paths("TypedNode2SubgraphOptions", "node2subgraph:Node2SubgraphSampler"),
    "typed-ppr": _paths("PprOptions", "ppr:PprSampler"),
    "saint": _paths("SaintOptions", "saint:SaintSampler"),
}

# Samplers that a run selects itself; users cannot select them by name.
_UNNAMED = (
    _paths("FullGraphOptions", "full_graph:FullGraphSampler"),
    _paths("LinkOptions", "links:LinkSampler"),
    _paths("TopLinkOptions", "links:TopLinkSampler"),
)


def load(path: str) -> Any:
    """The object at an import path. Raises ConfigError, with a message of one line, if it cannot be imported."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        if module == OBJECTS:
            raise ConfigError(
                f"{name.rpartition('_')[0]}: an object of the Python process that began the run, not of this one; give it again, as in model={name.rpartition('_')[0]}(…)"
            ) from None
        raise ConfigError(
            f"{path}: cannot be imported ({error}); install its package, or start where it lies (on a cluster: --working-dir)"
        ) from error


def build_sampler(options: Any, router: Any, num_ranks: int) -> Any:
    """The sampler that these options describe: one of Graphmill's samplers, or a user's."""
    path = dict((*SAMPLERS.values(), *_UNNAMED)).get(f"{type(options).__module__}:{type(options).__name__}")
    return options.build(router, num_ranks) if path is None else load(path)(router, options, num_ranks)


def without_encodings(options: Any) -> Any:
    """The options without encodings, because the encodings may not be stored yet."""
    if hasattr(options, "around"):
        return replace(options, around=without_encodings(options.around))
    return replace(options, encodings=()) if hasattr(options, "encodings") else options


def given(options: Any, **values: Any) -> Any:
    """A sampler's options. Fields that its class has are filled with the run's `values`."""
    names = {field.name for field in fields(options)}
    if "root_split" in values and "root_splits" in names:
        values["root_splits"] = (values.pop("root_split"),)
    return replace(options, **{name: value for name, value in values.items() if name in names})
