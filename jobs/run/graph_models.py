"""The five models as a job over many graphs chooses them: by name and preset, with the features of the set at hand."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from jobs.run.model_inputs import OverGraphs, graph_batch_graphs, plain, with_penalty
from models.options.features import Features
from storage.errors import ConfigError
from storage.graph_set_manifest import GraphSetManifest, RowSchema


@dataclass(frozen=True)
class ModelKind:
    """Where a model lives, and which of its presets are for whole graphs with molecules' sizes."""

    module: str
    network: str
    presets: tuple[str, ...]
    predict: Callable[..., Any] = plain
    # Largest over smallest graph of a training batch. Batches of like graphs save padding, but are no random sample, and batch
    # normalisation sees other statistics in each. Primphormer pads for its random walks alone, so it can afford a mixture.
    bucket_ratio: float = 1.2


MODELS: dict[str, ModelKind] = {
    "tokengt": ModelKind(
        "models.tokengt",
        "TokenGT",
        ("small", "pcqm4mv2_lap", "pcqm4mv2_orf", "pcqm4mv2_ablated", "pcqm4mv2_performer"),
    ),
    "grit": ModelKind("models.grit", "GRIT", ("small", "zinc", "pcqm4mv2", "peptides_func", "peptides_struct")),
    "ppgt": ModelKind(
        "models.ppgt", "PPGT", ("small", "zinc", "pcqm4mv2", "pcqm4mv2_base", "peptides_func", "peptides_struct")
    ),
    "primphormer": ModelKind(
        "models.primphormer", "Primphormer", ("small", "peptides_func", "peptides_struct"), with_penalty, bucket_ratio=4
    ),
    "geco": ModelKind("models.geco_graphs", "GECOGraphs", ("small",)),
}


# Stands for a set that is not there yet; of categories, which every preset can read.
_ANY_SET = GraphSetManifest(
    name="any",
    num_graphs=0,
    num_nodes=0,
    num_edges=0,
    graph_offsets=(0, 0),
    node=RowSchema(dim=1, categories=(2,)),
    edge=RowSchema(dim=1, categories=(2,)),
)


def build_config(model: str, preset: str, changes: dict[str, Any], manifest: GraphSetManifest, out_dim: int) -> Any:
    """A preset's configuration for the set's features, with `changes` by field. Raises ConfigError where it cannot be."""
    kind = MODELS[model]
    if preset not in kind.presets:
        raise ConfigError(f"preset: {model} has {', '.join(kind.presets)}, got {preset!r}; set --preset")
    module = importlib.import_module(kind.module.replace("models.", "models.options."))
    try:
        config = getattr(module, preset)(
            node=_features(manifest.node), edge=_features(manifest.edge), out_dim=out_dim, task="graph"
        )
        return replace(config, **_by_field(model, config, changes))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_options(model: str, preset: str, changes: dict[str, Any]) -> None:
    """Raises ConfigError for options that suit no set of graphs, before one is prepared."""
    build_config(model, preset, changes, _ANY_SET, 1)


# Options that the GPS hybrids keep in a part of their configuration: (part, its own name for it).
_NESTED = {"dropout": ("layer", "dropout"), "attention_dropout": ("primal", "dropout")}


def _by_field(model: str, config: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """What to replace in the configuration, at once, since options are checked together."""
    known = {field.name for field in fields(config)}
    found: dict[str, Any] = {}
    for name, value in changes.items():
        part, its_name = _NESTED.get(name, (name, name))
        if name in known:
            found[name] = value
        elif part in known:
            found[part] = replace(getattr(config, part), **{its_name: value})
        else:
            raise ConfigError(
                f"{name}: {model} has no such option; leave --{name.replace('_', '-')} out, or set another --model"
            )
    return found


def build_network(model: str, config: Any) -> nn.Module:
    """The model as the trainer takes one."""
    kind = MODELS[model]
    network = getattr(importlib.import_module(kind.module), kind.network)(config)
    return OverGraphs(network, graph_batch_graphs, kind.predict)


def _features(schema: RowSchema) -> Features:
    return Features(categories=schema.categories) if schema.categories else Features(dim=schema.dim)
