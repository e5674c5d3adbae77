"""Checks options at their construction: a wrong value raises a ConfigError that names the option. The options are frozen dataclasses.

Checks that need the graph run later, at the start of a run or sampler (`graphmill.jobs.resolve`, `graphmill.samplers.vocabulary.requirements`). The type of
a field states its bounds: `width: Count`. This module imports only the standard library, because the options of models use it, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from math import inf
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from graphmill.core.errors import ConfigError, quoted


class Bound(NamedTuple):
    """The bound of an int or float field. For a tuple it is the bound of each entry, and the tuple must have at least one entry."""

    expected: str
    holds: Callable[[Any], bool]


Count = Annotated[int, Bound("at least 1", lambda value: value >= 1)]
Size = Annotated[int, Bound("at least 0", lambda value: value >= 0)]
Amount = Annotated[float, Bound("at least 0", lambda value: value >= 0)]
Positive = Annotated[float, Bound("more than 0", lambda value: 0 < value < inf)]
Share = Annotated[float, Bound("0 or more and less than 1", lambda value: 0 <= value < 1)]

_hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_HIGHEST_SEED = (1 << 64) - 1


def check_fields(options: Any, **least: float) -> None:
    """Converts each field to its type (a plain int, float or tuple), so that equal options have equal reprs.

    `least`: smallest allowed values by field, in addition to the bounds of the types. Raises ConfigError if a value has another type, is out of bounds, or is
    not in its Literal.
    """
    hints = _hints(type(options))
    for name, raw in vars(options).items():
        value = _typed(name, hints[name], raw)
        object.__setattr__(options, name, value)
        if name in least and value is not None and not value >= least[name]:
            raise refused(name, f"at least {least[name]}", value)


def check_options(options: Any, rows: Mapping[str, tuple[bool, str]]) -> None:
    """Raises ConfigError for the first option that is wrong. Each row is (whether the value is valid, what is expected)."""
    for name, (is_fine, expected) in rows.items():
        if not is_fine:
            raise refused(name, expected, getattr(options, name))


def refused(name: str, expected: str, value: Any) -> ConfigError:
    """The error for an option with this value."""
    return ConfigError(f"{name}: expected {expected}, got {quoted(value)}; set {name}")


def _typed(name: str, hint: Any, value: Any) -> Any:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        value, bound = _typed(name, arguments[0], value), hint.__metadata__[0]
        if not bound.holds(value):
            raise refused(name, bound.expected, value)
    elif kind in (Union, UnionType):
        others = [one for one in arguments if one is not type(None)]
        return value if value is None or len(others) > 1 else _typed(name, others[0], value)
    elif kind is Literal:
        if value not in arguments:
            raise refused(name, f"one of {', '.join(map(str, arguments))}", value)
    elif hint is int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise refused(name, "an integer", value)
        if not _LOWEST <= int(value) <= (_HIGHEST_SEED if name == "seed" else _HIGHEST):
            raise refused(name, "an integer of at most 64 bits", value)
        return int(value)
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise refused(name, "a number", value)
        return float(value)
    elif kind is tuple and arguments[-1] is Ellipsis:
        if not isinstance(value, tuple | list) and getattr(value, "ndim", 0) != 1:  # arrays need one axis
            words = {int: "integers", float: "numbers"}.get(arguments[0], "words")
            raise refused(name, f"a tuple of {words}", value)
        # a tuple with a bound must have at least one number
        if not len(value) and get_origin(arguments[0]) is Annotated:
            raise refused(name, arguments[0].__metadata__[0].expected, value)
        return tuple(_typed(name, arguments[0], one) for one in value)
    elif isinstance(hint, type) and is_dataclass(hint) and not isinstance(value, hint):
        raise refused(name, f"a {hint.__name__}", value)
    return value
