"""Formats values for people: dataclasses in a few lines with arrays by type and shape, counts, sizes, changed options."""

from collections.abc import Sized
from dataclasses import MISSING, fields
from textwrap import fill
from typing import Any

_WIDTH = 120


def describe(value: Any) -> str:
    """Formats a dataclass without its empty fields; arrays and tensors appear as `x float32 [64, 100]`."""
    parts = []
    for field in fields(value):
        entry = getattr(value, field.name)
        if hasattr(entry, "dtype") and hasattr(entry, "shape"):
            parts.append(f"{field.name} {str(entry.dtype).removeprefix('torch.')} {list(entry.shape)}")
        elif entry is not None and not (isinstance(entry, Sized) and len(entry) == 0):
            parts.append(f"{field.name} {entry}")
    return fill(f"{type(value).__name__}({', '.join(parts)})", _WIDTH, subsequent_indent="  ")


def counted(number: int, noun: str) -> str:
    """ "1 worker", "2 workers"; "2 micro-batches"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("batch") else "s")


def rounded(score: float) -> str:
    """Formats a number with four decimal places; a number below 0.001 with three significant digits."""
    return f"{score:.3g}" if 0 < abs(score) < 0.001 else f"{score:.4f}"


def size(num_bytes: float) -> str:
    """Formats a number of bytes in the largest unit in which the value is at least 1."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes:,.0f} bytes"


def changed_options(options: Any) -> str:
    """Lists the options that differ from their defaults, except options that come from the data: `fanouts=(5, 5), seed=1`."""
    from_data = getattr(options, "GIVEN", ())
    changed = []
    for field in fields(options):
        if field.name in from_data:
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(options, field.name)
        if default is not MISSING and value != default:
            changed.append(f"{field.name}={value!r}")
    return ", ".join(changed)
