"""Checks, when a sampler of a typed graph is made, that the graph has what its options name. They read only manifests."""

from collections.abc import Iterable

from graphmill.core.errors import ConfigError
from graphmill.samplers.access.typed_router import TypedRouter
from graphmill.samplers.vocabulary.messages import EdgeColumn
from graphmill.storage.format.manifest import Manifest
from graphmill.storage.format.source import Relation


def type_of_roots(router: TypedRouter, given: str | None) -> str:
    """The roots' type. Raises ConfigError where it is not there, or none is given and not exactly one has labels."""
    if given is not None:
        if given not in router.nodes:
            raise ConfigError(f"root_type: expected one of {', '.join(router.nodes)}, got {given!r}; set root_type")
        return given
    labelled = [name for name, each in router.nodes.items() if each.manifest.label_kind is not None]
    if len(labelled) != 1:
        raise ConfigError(
            f"root_type: expected a type of nodes, for {' and '.join(labelled) or 'no type'} of {', '.join(router.nodes)} "
            "has labels; set root_type"
        )
    return labelled[0]


def check_splits(manifest: Manifest, node_type: str, split_set: int) -> None:
    """Raises ConfigError where the type has no such split set."""
    if not 0 <= split_set < max(manifest.num_split_sets, 1):
        held = f"one of {node_type}'s {manifest.num_split_sets}" if manifest.num_split_sets else "0, it has none"
        raise ConfigError(f"split set: expected {held}, got {split_set}; set --data.split_set")


def known_relations(router: TypedRouter, names: Iterable[str], option: str = "relations") -> tuple[Relation, ...]:
    """These relations of the graph, in its order; all of them where none are named. Raises ConfigError for one that is not there."""
    named = {Relation.of(name) for name in names}
    for relation in named:
        if relation not in router.edges:
            raise ConfigError(f"{option}: expected relations among {', '.join(map(str, router.edges))}, got {relation}")
    return tuple(relation for relation in router.edges if relation in named or not named)


def check_edge_columns(router: TypedRouter, wanted: Iterable[str]) -> None:
    """Raises ConfigError where no relation has a column of edges that is asked of all."""
    for name in wanted:
        if not any(has_column(each.manifest, name) for each in router.edges.values()):
            raise ConfigError(f"edge column {name!r}: no relation has it; ingest a source that has it")


def edge_columns_of(manifest: Manifest, wanted: tuple[EdgeColumn, ...]) -> tuple[EdgeColumn, ...]:
    """Those that a relation stores."""
    return tuple(name for name in wanted if has_column(manifest, name))


def has_column(manifest: Manifest, name: str) -> bool:
    """Whether a relation stores this column of its edges."""
    return {
        "id": manifest.has_edge_id,
        "weight": manifest.has_edge_weight,
        "time": manifest.has_edge_time,
        "feature": manifest.edge_feature_dim > 0,
    }[name]
