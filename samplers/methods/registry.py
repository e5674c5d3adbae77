"""The table of samplers over one graph: for each name its options and its class. A user's own sampler is named by its import path.

`package.module:Name` names a frozen dataclass whose fields are the options, with a method `build(router, num_ranks)` that makes a
`graphmill.samplers.drawing.protocol.Sampler`. Of its fields, the run fills in seed, split_set, root_split, shuffle and encodings where it has them.
"""

import importlib
from dataclasses import fields, replace
from typing import Any

from graphmill.core.errors import ConfigError

OBJECTS = "graphmill.objects"  # the module of what was given as an object in Python; other processes have none
# name: (options, sampler), by import path
SAMPLERS = {
    "random-partition": (
        "graphmill.samplers.vocabulary.options:RandomPartitionOptions",
        "graphmill.samplers.methods.random_partition:RandomPartitionSampler",
    ),
    "neighbor": (
        "graphmill.samplers.vocabulary.options:NeighborOptions",
        "graphmill.samplers.methods.neighbor:NeighborSampler",
    ),
    "node2subgraph": (
        "graphmill.samplers.vocabulary.options:Node2SubgraphOptions",
        "graphmill.samplers.methods.node2subgraph:Node2SubgraphSampler",
    ),
    "ppr": ("graphmill.samplers.vocabulary.options:PprOptions", "graphmill.samplers.methods.ppr:PprSampler"),
    "typed-neighbor": (
        "graphmill.samplers.vocabulary.options:TypedNeighborOptions",
        "graphmill.samplers.methods.neighbor:NeighborSampler",
    ),
    "typed-node2subgraph": (
        "graphmill.samplers.vocabulary.options:TypedNode2SubgraphOptions",
        "graphmill.samplers.methods.node2subgraph:Node2SubgraphSampler",
    ),
    "typed-ppr": ("graphmill.samplers.vocabulary.options:PprOptions", "graphmill.samplers.methods.ppr:PprSampler"),
    "saint": ("graphmill.samplers.vocabulary.options:SaintOptions", "graphmill.samplers.methods.saint:SaintSampler"),
}

# Of no name: a run chooses it.
_UNNAMED = {
    "full-graph": (
        "graphmill.samplers.vocabulary.options:FullGraphOptions",
        "graphmill.samplers.methods.full_graph:FullGraphSampler",
    ),
    "links": ("graphmill.samplers.vocabulary.options:LinkOptions", "graphmill.samplers.methods.links:LinkSampler"),
    "top-links": (
        "graphmill.samplers.vocabulary.options:TopLinkOptions",
        "graphmill.samplers.methods.links:TopLinkSampler",
    ),
}


def load(path: str) -> Any:
    """The object at an import path. Raises ConfigError, in one line, if it cannot be imported."""
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
    """The sampler that these options describe, ours or a user's."""
    for options_path, sampler_path in (SAMPLERS | _UNNAMED).values():
        if f"{type(options).__module__}:{type(options).__name__}" == options_path:
            return load(sampler_path)(router, options, num_ranks)
    return options.build(router, num_ranks)


def without_encodings(options: Any) -> Any:
    """The same without encodings, which may not be stored yet."""
    if hasattr(options, "around"):
        return replace(options, around=without_encodings(options.around))
    return replace(options, encodings=()) if hasattr(options, "encodings") else options


def given(options: Any, **values: Any) -> Any:
    """A sampler's options with what the run decides filled in: those of `values` that the class has."""
    names = {f.name for f in fields(options)}
    if "root_split" in values and "root_splits" in names:
        values["root_splits"] = (values.pop("root_split"),)
    return replace(options, **{name: value for name, value in values.items() if name in names})
