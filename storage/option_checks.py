"""One way to refuse an option's value: ConfigError with the option's name, what is expected, and its value."""

from collections.abc import Mapping
from typing import Any

from storage.errors import ConfigError


def check_options(options: Any, rows: Mapping[str, tuple[bool, str]]) -> None:
    """Raises ConfigError for the first option whose row, (is its value fine?, what is expected), says no."""
    for name, (is_fine, expected) in rows.items():
        if not is_fine:
            raise ConfigError(f"{name}: expected {expected}, got {getattr(options, name)!r}; set --{name}")


def at_least(options: Any, least: int, *names: str) -> dict[str, tuple[bool, str]]:
    """Rows of `check_options`; None is fine, of a tuple each value counts, and there must be one."""
    values = {name: getattr(options, name) for name in names}
    rows = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}
    return {
        name: (row == (None,) or (bool(row) and all(value >= least for value in row)), f"at least {least}")
        for name, row in rows.items()
    }


def more_than_0(options: Any, *names: str) -> dict[str, tuple[bool, str]]:
    """Rows of `check_options`."""
    return {name: (getattr(options, name) > 0, "more than 0") for name in names}
