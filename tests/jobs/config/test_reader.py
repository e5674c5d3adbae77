"""Tests the grammar of options: a user may type each default as --help shows it."""

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Literal, get_type_hints

import pytest

from graphmill.jobs.config.config import group_classes
from graphmill.jobs.config.predict_options import PredictConfig
from graphmill.jobs.config.reader import UsageError, Words, convert, option_names, shown
from graphmill.jobs.config.registry import TABLES, options_class


def flags(kind: type, path: str) -> Iterator[tuple[str, object, object]]:
    """(name, type, default) of the options of a class that have a default."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint, name = hints[field.name], f"{path}.{field.name}"
        if field.name not in option_names(kind):
            continue
        if is_dataclass(hint):
            yield from flags(hint, name)
        elif field.default is not MISSING:
            yield name, hint, field.default
        elif field.default_factory is not MISSING:
            yield name, hint, field.default_factory()


def of_all() -> dict[str, tuple[object, object]]:
    classes: dict[str, type] = {"predict": PredictConfig}
    for kind in ("nodes", "graphs"):
        classes |= {f"{kind} {name}": made for name, made in group_classes(kind).items()}
        for group, table in TABLES.items():
            classes |= {f"{kind} {group} {name}": options_class(group, kind, name) for name in table[kind]}
    return {name: rest for path, made in classes.items() for name, *rest in flags(made, path)}


def test_a_default_is_typed_as_help_shows_it():
    options = of_all()
    assert len(options) > 100
    for name, (hint, default) in options.items():
        assert convert(Words(shown(default).split()), hint, name) == default, name


def test_none_is_an_empty_list_and_no_item_of_one():
    none = Words(["none"])
    assert convert(none, tuple[Literal["gcn", "gat"], ...], "models") == ()
    assert convert(none, tuple[int, ...], "fanouts") == ()
    with pytest.raises(UsageError, match=r"--models: expected one of gcn, gat, got 'none'"):
        convert(Words(["gcn", "none"]), tuple[Literal["gcn", "gat"], ...], "models")


def test_numbers_of_a_list_may_stand_between_commas():
    assert convert(Words(["0.8,0.1,0.1"]), tuple[float, ...], "shares") == (0.8, 0.1, 0.1)
    assert convert(Words(["15,10"]), tuple[int, ...], "fanouts") == (15, 10)
    assert convert(Words(["a,b"]), tuple[str, ...], "targets") == ("a,b",)
    with pytest.raises(UsageError, match="--fanouts: expected an integer, got 'x'"):
        convert(Words(["1,x"]), tuple[int, ...], "fanouts")
