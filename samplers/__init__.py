"""From roots to minibatches: neighbor sampling, random partitioning, and the loader that streams them. No Ray. Imports: storage, core."""

from importlib import import_module
from typing import Any

from graphmill.samplers.methods.registry import SAMPLERS

_PATHS = (
    *(path for paths in SAMPLERS.values() for path in reversed(paths)),
    "graphmill.samplers.methods.graph_batches:GraphBatchSampler",
    "graphmill.samplers.vocabulary.options:GraphBatchOptions",
    "graphmill.samplers.loading.loader:Loader",
    "graphmill.samplers.vocabulary.options:LoaderOptions",
)
_PUBLIC = {path.partition(":")[2]: path for path in _PATHS}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in _PUBLIC:
        raise AttributeError(f"expected one of {', '.join(sorted(_PUBLIC))}, got {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
