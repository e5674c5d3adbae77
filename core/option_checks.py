"""One way to refuse an option's value: ConfigError with the option's name, what is expected, and its value."""

from collections.abc import Callable, Mapping
from typing import Any

from graphmill.core.errors import ConfigError, quoted


def check_options(options: Any, rows: Mapping[str, tuple[bool, str]]) -> None:
    """Raises ConfigError for the first option whose row, (is its value fine?, what is expected), says no."""
    for name, (is_fine, expected) in rows.items():
        if not is_fine:
            raise ConfigError(f"{name}: expected {expected}, got {quoted(getattr(options, name))}; set --{name}")


def at_least(options: Any, least: float, *names: str) -> dict[str, tuple[bool, str]]:
    """Rows of `check_options`: numbers from `least` on, or lists of at least one of them. None is fine."""
    return _all(options, names, lambda number: number >= least, f"at least {least}")


def more_than_0(options: Any, *names: str) -> dict[str, tuple[bool, str]]:
    """Rows of `check_options`: numbers above 0, or lists of at least one of them. None is fine."""
    return _all(options, names, lambda number: number > 0, "more than 0")


def _all(
    options: Any, names: tuple[str, ...], is_fine: Callable[[float], bool], expected: str
) -> dict[str, tuple[bool, str]]:
    rows = {}
    for name in names:
        value = getattr(options, name)
        numbers = value if isinstance(value, tuple) else (value,)
        rows[name] = value is None or (len(numbers) > 0 and all(map(is_fine, numbers))), expected
    return rows
