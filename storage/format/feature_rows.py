"""Defines the layout of node features in files and messages: all rows of a graph have the same number of bytes.

Therefore a row can be found, copied, cached and counted by its index alone. A row becomes float32 when it is put into a batch
(`graphmill.samplers.kernels.features`). docs/decisions/0055-feature-rows-travel-as-stored.md explains why rows have one size.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from graphmill.core.errors import ConfigError
from graphmill.storage.format.dtypes import FeatureDtype

FeatureLayout = Literal["dense", "bits", "indices", "entries"]
MAX_INT8 = 127
SCALE_BYTES = 4  # bytes of the float32 scale of an int8 row; the scale comes before the numbers


@dataclass(frozen=True)
class FeatureRows:
    """The number type and the layout of a row. The layouts are:

    - `dense`: all numbers. For an int8 row x, the scale s = max |x| / 127 and the integers q nearest to x / s are stored. Readers compute s · q.
      The error |x - s · q| is at most max |x| / 254, plus about 1e-7 · max |x| because s and s · q are rounded to float32.
    - `bits`: a bit for each column; only for rows of 0 and 1.
    - `indices`: the column numbers of the ones; only for rows of 0 and 1.
    - `entries`: the nonzero numbers, then their column numbers.

    `indices` and `entries` have room for `slots` numbers, the count of nonzero numbers in the fullest row. In a shorter row, the free places have the column
    number `dim`.
    """

    dim: int
    dtype: FeatureDtype = "float32"
    layout: FeatureLayout = "dense"
    slots: int = 0

    def __post_init__(self) -> None:
        is_listed = self.layout in ("indices", "entries")
        if self.dtype not in get_args(FeatureDtype) or self.layout not in get_args(FeatureLayout):
            raise ConfigError(f"expected rows of a known type and layout, got {self.dtype} and {self.layout}")
        if not (0 < self.slots <= self.dim if is_listed else self.slots == 0):
            raise ConfigError(f"expected 1 to {self.dim} slots in listed rows and none in others, got {self.slots}")
        if self.layout == "entries" and self.dtype == "int8":
            raise ConfigError("expected entries of float16 or float32, got int8")

    @cached_property
    def column_dtype(self) -> np.dtype:
        """The type of column numbers in `indices` and `entries`."""
        return np.dtype(np.uint16 if self.dim < 1 << 16 else np.uint32)

    @cached_property
    def stored_dtype(self) -> np.dtype:
        """The type of the stored array [n, stored_width]."""
        return np.dtype(self.dtype if self.layout == "dense" and self.dtype != "int8" else np.uint8)

    @cached_property
    def stored_width(self) -> int:
        if self.layout == "bits":
            return -(-self.dim // 8)
        if self.layout == "dense":
            return self.dim + SCALE_BYTES if self.dtype == "int8" else self.dim
        value_bytes = np.dtype(self.dtype).itemsize if self.layout == "entries" else 0
        return self.slots * (value_bytes + self.column_dtype.itemsize)

    @property
    def row_bytes(self) -> int:
        return self.stored_width * self.stored_dtype.itemsize

    def check(self, rows: np.ndarray) -> np.ndarray:
        """Returns the rows unchanged. Raises ConfigError if they do not have this layout."""
        if rows.ndim != 2 or rows.shape[1] != self.stored_width or rows.dtype != self.stored_dtype:
            raise ConfigError(
                f"expected feature rows of {self.stored_width} {self.stored_dtype}, got {rows.dtype} of shape {rows.shape}"
            )
        return rows

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Converts float32 [n, dim] to stored rows [n, stored_width]. The caller must choose a layout that can hold the numbers (`smallest_rows`)."""
        if self.layout == "bits":
            return np.packbits(numbers != 0, axis=1, bitorder="little")
        if self.layout == "dense":
            return _as_int8(numbers) if self.dtype == "int8" else numbers.astype(self.dtype, copy=False)
        typed = np.ascontiguousarray(numbers, self.dtype if self.layout == "entries" else np.float32)
        row, column = np.nonzero(_bits(typed))  # on bits, so that -0 is kept
        first = np.searchsorted(row, np.arange(len(numbers)))
        slot = np.arange(len(row)) - first[row]
        columns = np.full((len(numbers), self.slots), self.dim, self.column_dtype)
        columns[row, slot] = column
        if self.layout == "indices":
            return columns.view(np.uint8)
        values = np.zeros((len(numbers), self.slots), self.dtype)
        values[row, slot] = typed[row, column]
        return np.concatenate([values.view(np.uint8), columns.view(np.uint8)], axis=1)

    def decode(self, rows: np.ndarray) -> np.ndarray:
        """Converts stored rows to float32 [n, dim]."""
        rows = np.ascontiguousarray(self.check(rows))
        if self.layout == "bits":
            return np.unpackbits(rows, axis=1, count=self.dim, bitorder="little").astype(np.float32)
        if self.layout == "dense":
            if self.dtype != "int8":
                return rows.astype(np.float32, copy=False)
            return rows[:, SCALE_BYTES:].view(np.int8) * np.ascontiguousarray(rows[:, :SCALE_BYTES]).view(np.float32)
        split = self.stored_width - self.slots * self.column_dtype.itemsize
        columns = np.ascontiguousarray(rows[:, split:]).view(self.column_dtype)
        values = np.ascontiguousarray(rows[:, :split]).view(self.dtype) if split else np.ones(columns.shape, np.float32)
        numbers = np.zeros((len(rows), self.dim), np.float32)
        row, slot = np.nonzero(columns < self.dim)
        numbers[row, columns[row, slot]] = values[row, slot]
        return numbers


def smallest_rows(dim: int, dtype: FeatureDtype, most_nonzero: int, *, only_zero_or_one: bool) -> FeatureRows:
    """Returns the lossless layout with the fewest bytes, and the simpler of two equal layouts. `most_nonzero`: count of nonzero numbers in the fullest row."""
    layouts = [FeatureRows(dim, dtype)]
    if only_zero_or_one:
        layouts.append(FeatureRows(dim, dtype, "bits"))
    if most_nonzero and (only_zero_or_one or dtype != "int8"):
        layouts.append(FeatureRows(dim, dtype, "indices" if only_zero_or_one else "entries", most_nonzero))
    return min(layouts, key=lambda rows: rows.row_bytes)


class RowMeasure:
    """Measures rows, one block after another, for `smallest_rows`."""

    def __init__(self) -> None:
        self.most_nonzero, self.only_zero_or_one = 0, True

    def add(self, numbers: np.ndarray) -> None:
        """Measures a block of rows, float16 or float32 [k, dim]. -0 counts as neither 0 nor 1."""
        if not len(numbers):
            return
        bits = _bits(np.ascontiguousarray(numbers))
        self.most_nonzero = max(self.most_nonzero, int(np.count_nonzero(bits, axis=1).max()))
        one_bits = _bits(np.ones(1, numbers.dtype))[0]
        self.only_zero_or_one = self.only_zero_or_one and not np.any((bits != 0) & (bits != one_bits))


def _bits(numbers: np.ndarray) -> np.ndarray:
    return numbers.view(f"u{numbers.itemsize}")


def _as_int8(numbers: np.ndarray) -> np.ndarray:
    """Returns uint8 [n, 4 + dim]: for each row, its scale and its integers."""
    rows = np.empty((len(numbers), SCALE_BYTES + numbers.shape[1]), np.uint8)
    scale = (np.abs(numbers).max(axis=1, initial=0) / np.float32(MAX_INT8)).astype(np.float32)
    rows[:, :SCALE_BYTES] = scale[:, None].view(np.uint8)
    # The scale is 0 if every number of the row is 0, or so small that float32 rounds the scale to 0.
    steps = numbers / np.where(scale > 0, scale, 1)[:, None]
    rows[:, SCALE_BYTES:] = np.rint(steps).clip(-MAX_INT8, MAX_INT8).astype(np.int8).view(np.uint8)
    return rows
