"""Checks frozen options by the types of their fields: a wrong value is one ConfigError that names the option, not a failure batches later.

What is accepted is stored as a plain int, float or tuple, so that equal options have equal fingerprints
(`graphmill.samplers.drawing.protocol.sampler_fingerprint` hashes their repr).
"""

from collections.abc import Callable
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.storage.format.encoding_names import check_encoding_names

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_HIGHEST_SEED = (1 << 64) - 1


def check_fields(options: Any, **least: int) -> None:
    """Each field becomes what its type says: an int, a float, a tuple of them, or one of the words of a Literal.

    `least`: the smallest value that a field may have. Raises ConfigError where a field has another type or a smaller value.
    """
    hints = _hints(type(options))
    for name, given in vars(options).items():
        value = _typed(name, hints[name], given)
        object.__setattr__(options, name, value)
        if name in least and value is not None and not value >= least[name]:
            raise ConfigError(f"{name}: expected at least {least[name]}, got {value}; set {name}")


def _typed(name: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is UnionType:  # with None
        return None if value is None else _typed(name, get_args(hint)[0], value)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{name}: expected one of {', '.join(get_args(hint))}, got {value!r}; set {name}")
    elif hint is int:
        return _integer(name, value)
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise ConfigError(f"{name}: expected a number, got {value!r}")
        return float(value)
    elif get_origin(hint) is tuple and get_args(hint)[0] is str:
        if name == "encodings":
            check_encoding_names(value)
    elif get_origin(hint) is tuple:
        if not isinstance(value, tuple | list) and not (isinstance(value, np.ndarray) and value.ndim == 1):
            raise ConfigError(
                f"{name}: expected a tuple of {'integers' if int in get_args(hint) else 'words'}, got {value!r}"
            )
        return tuple(_typed(name, get_args(hint)[0], one) for one in value)
    return value


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{name}: expected an integer, got {value!r}")
    highest = _HIGHEST_SEED if name == "seed" else _HIGHEST
    if not _LOWEST <= value <= highest:
        raise ConfigError(f"{name}: expected an integer of at most 64 bits, got {value}")
    return int(value)
