"""Tests every bound, word and number in the type of an option. The reader of command lines refuses any other value, with one line that names the flag."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest

from graphmill.core.errors import ConfigError
from graphmill.jobs.config.config import config_tree, group_classes, read_config
from graphmill.jobs.config.reader import option_names, read_words
from graphmill.jobs.config.registry import TABLES, Kind, options_class

GROUPS: list[tuple[Kind, str, str, type]] = [
    (kind, group, name, options_class(group, kind, name))
    for kind in ("nodes", "graphs")
    for group, table in TABLES.items()
    for name in table[kind]
] + [(kind, group, "", owner) for kind in ("nodes", "graphs") for group, owner in group_classes(kind).items()]


def options(owner: type, path: str) -> Iterator[tuple[str, Any]]:
    """(flag, type) of all options of a class and of its groups. The type has its bound, but not None."""
    hints = get_type_hints(owner, include_extras=True)
    for name in option_names(owner):
        hint = hints[name]
        kinds = [one for one in get_args(hint) if one is not type(None)]
        if type(None) in get_args(hint) and len(kinds) == 1:
            (hint,) = kinds
        if is_dataclass(hint):
            yield from options(hint, f"{path}.{name}")
        else:
            yield f"{path}.{name}", hint


def wrong_values(hint: Any) -> list[tuple[str, str]]:
    """Pairs: a wrong value, and the expected value that the message names."""
    found = []
    if get_origin(hint) is Annotated:
        hint, bound = get_args(hint)
        found += [(str(value), bound.expected) for value in (-1, 0, 1) if not bound.holds(value)]
        assert found
    if hint in (int, float):
        found.append(("many", "an integer" if hint is int else "a number"))
    elif get_origin(hint) is Literal:
        found.append(("nonsense", f"one of {', '.join(map(str, get_args(hint)))}"))
    return found


@pytest.mark.parametrize(("kind", "group", "name", "owner"), GROUPS, ids=lambda value: str(value))
def test_other_values_are_refused_by_name(kind: Kind, group: str, name: str, owner: type) -> None:
    for flag, hint in options(owner, group):
        for value, expected in wrong_values(hint):
            words = [*([f"--{group}", name] if name else []), f"--{flag}", value]
            with pytest.raises(ConfigError) as refused:
                read_config(config_tree(kind, read_words(words)[1]))
            said = str(refused.value)
            assert f": expected {expected}, got " in said, words
            assert f"--{flag}" in said, words


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in TABLES["model"] for name in TABLES["model"][kind]])
def test_every_number_of_a_model_has_a_bound(kind: Kind, name: str) -> None:
    """The exceptions are numbers for which the options class has a check that no bound can express."""
    owner = options_class("model", kind, name)
    free = {flag for flag, hint in options(owner, "model") if hint in (int, float)}
    assert free <= {"model.filter.frequency", "model.local.gate_start", "model.momentum", "model.layer_scale"}
    given = {f.name for f in fields(owner)} - {*option_names(owner)}
    assert given <= {"node", "edge", "in_dim", "edge_dim", "encoding_dim", "out_dim", "task", "seed", "encoding"} | {
        *("node_dims", "edge_dims", "relations")
    }
