"""Checks that options of several models share. Each raises ValueError with the option's name."""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def check_choices(options: Any) -> None:
    """A field of a Literal type must hold one of its values."""
    for name, hint in _hints(type(options)).items():
        if get_origin(hint) is Literal and getattr(options, name) not in get_args(hint):
            raise ValueError(
                f"{name} must be one of {', '.join(get_args(hint))}, got {getattr(options, name)!r}; set {name}"
            )


def check_least(options: Any, least: int, *names: str) -> None:
    """None passes."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}; set {name}")


def check_shares(options: Any, *names: str) -> None:
    """Rates of dropout and the like."""
    for name in names:
        if not 0 <= getattr(options, name) < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {getattr(options, name)}; set {name}")


def check_numeric(options: Any, *names: str) -> None:
    """Options that act on numeric node features need some."""
    for name in names:
        if getattr(options, name) and not options.node.dim:
            off = "no" if getattr(options, name) is True else "0"
            raise ValueError(f"{name} acts on numeric features, and there are none; set {name} to {off}")


def check_heads(options: Any) -> None:
    """Every head has equally many of the channels; `num_heads` is positive."""
    if options.width % options.num_heads:
        raise ValueError(
            f"width must be a multiple of num_heads, got {options.width} and {options.num_heads}; set num_heads"
        )
