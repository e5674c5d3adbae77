"""Types of options: a wrong one is one ConfigError that names the option, not a failure batches later.

What is accepted is stored as a plain int, float or tuple of ints, so that equal options have equal fingerprints
(`samplers.protocol.sampler_fingerprint` hashes their repr).
"""

from typing import Any

import numpy as np

from storage.errors import ConfigError

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_HIGHEST_SEED = (1 << 64) - 1


def check_integers(options: Any, *names: str) -> None:
    """Each of these fields of frozen options becomes an int. Raises ConfigError where one is none, or needs over 64 bits."""
    for name in names:
        object.__setattr__(options, name, _integer(name, getattr(options, name)))


def check_integer_tuples(options: Any, *names: str) -> None:
    """Each of these fields becomes a tuple of ints, from a tuple, list or array. Raises ConfigError where it is something else."""
    for name in names:
        value = getattr(options, name)
        if not isinstance(value, tuple | list) and not (isinstance(value, np.ndarray) and value.ndim == 1):
            raise ConfigError(f"{name}: expected a tuple of integers, got {value!r}")
        object.__setattr__(options, name, tuple(_integer(name, one) for one in value))


def check_root_split(options: Any) -> None:
    """`root_split` becomes an int, or stays None."""
    if options.root_split is not None:
        check_integers(options, "root_split")


def check_numbers(options: Any, *names: str) -> None:
    """Each of these fields becomes a float. Raises ConfigError where one is no number."""
    for name in names:
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise ConfigError(f"{name}: expected a number, got {value!r}")
        object.__setattr__(options, name, float(value))


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ConfigError(f"{name}: expected an integer, got {value!r}")
    highest = _HIGHEST_SEED if name == "seed" else _HIGHEST
    if not _LOWEST <= value <= highest:
        raise ConfigError(f"{name}: expected an integer of at most 64 bits, got {value}")
    return int(value)
