"""Compiled loops that decode stored rows of features into float32. They write each row to its place in one pass, without intermediate rows, and release the
GIL.

Row `row[i]` of the table (row i if `row` is empty) goes to row `position[i]` of `out` (row i if `position` is empty). Stored values are never used as
addresses. A damaged row therefore gives wrong numbers, but never a write to another place.
"""

import numpy as np

from graphmill.core.compile_cache import compiled
from graphmill.samplers.kernels.prefetch import prefetch
from graphmill.samplers.kernels.rows import AHEAD, place_rows, take_rows
from graphmill.storage.format.feature_rows import SCALE_BYTES, FeatureRows

_EVERY = np.empty(0, np.int64)
_LINE_BYTES = 64
_HALF_SCALE = np.float32(2.0**-24)  # of float16's subnormals


@compiled
def _prefetch_row(flat, first, width):
    for k in range(0, width, _LINE_BYTES):
        prefetch(flat, first + k)  # type: ignore[call-arg]  # the compiler passes the context


@compiled
def _half_to_float(half):
    """Converts the bits of a float16 into a float32. Uses integers so that a loop over it is vectorised, and never creates a subnormal float32."""
    size, sign = half & 0x7FFF, (half & 0x8000) << 16
    bits = (size << 13) + (112 << 23)
    bits += 112 << 23 if size >= 0x7C00 else 0  # infinity or NaN
    small = np.int64(np.float32(np.float32(size) * _HALF_SCALE).view(np.uint32))
    return np.uint32((small if size < 0x400 else bits) | sign).view(np.float32)


@compiled
def _float_of(table, start):
    """The float32 that four little-endian bytes hold."""
    bits = np.int64(table[start]) | np.int64(table[start + 1]) << 8
    bits |= np.int64(table[start + 2]) << 16 | np.int64(table[start + 3]) << 24
    return np.uint32(bits).view(np.float32)


@compiled
def _decode_half(table, row, position, out):
    width, flat = table.shape[1], table.reshape(-1)
    for i in range(len(out) if len(position) == 0 else len(position)):
        source = row[i] if len(row) else i
        if len(row) and i + AHEAD < len(row):
            for k in range(0, width, 32):
                prefetch(flat, row[i + AHEAD] * width + k)  # type: ignore[call-arg]
        target = out[position[i] if len(position) else i]
        numbers = table[source]
        for k in range(width):
            target[k] = _half_to_float(np.int64(numbers[k]))


@compiled
def _decode_int8(table, signed, row, position, out):
    width, flat, dim = table.shape[1], table.reshape(-1), out.shape[1]
    for i in range(len(out) if len(position) == 0 else len(position)):
        source = row[i] if len(row) else i
        if len(row) and i + AHEAD < len(row):
            _prefetch_row(flat, row[i + AHEAD] * width, width)
        target = out[position[i] if len(position) else i]
        scale, numbers = _float_of(flat, source * width), signed[source]
        for k in range(dim):
            target[k] = np.float32(numbers[SCALE_BYTES + k]) * scale


@compiled
def _decode_bits(table, row, position, out):
    width, flat, dim = table.shape[1], table.reshape(-1), out.shape[1]
    for i in range(len(out) if len(position) == 0 else len(position)):
        source = row[i] if len(row) else i
        if len(row) and i + AHEAD < len(row):
            _prefetch_row(flat, row[i + AHEAD] * width, width)
        target, bits = out[position[i] if len(position) else i], table[source]
        for whole in range(dim // 8):
            byte = bits[whole]
            for k in range(8):
                target[8 * whole + k] = np.float32((byte >> k) & 1)
        for k in range(dim // 8 * 8, dim):
            target[k] = np.float32((bits[k >> 3] >> (k & 7)) & 1)


@compiled
def _decode_listed(table, value_bytes, column_bytes, slots, row, position, out):
    """Decodes the layouts `indices` (no bytes per value) and `entries` (2 or 4 bytes per value)."""
    width, flat, dim = table.shape[1], table.reshape(-1), out.shape[1]
    for i in range(len(out) if len(position) == 0 else len(position)):
        source = row[i] if len(row) else i
        if len(row) and i + AHEAD < len(row):
            _prefetch_row(flat, row[i + AHEAD] * width, width)
        target, first = out[position[i] if len(position) else i], source * width
        target[:] = np.float32(0)
        for slot in range(slots):
            place = first + slots * value_bytes + slot * column_bytes
            column = np.int64(flat[place]) | np.int64(flat[place + 1]) << 8
            if column_bytes == 4:
                column |= np.int64(flat[place + 2]) << 16 | np.int64(flat[place + 3]) << 24
            if column >= dim:
                break
            value = np.float32(1)
            if value_bytes == 4:
                value = _float_of(flat, first + 4 * slot)
            elif value_bytes == 2:
                at = first + 2 * slot
                value = _half_to_float(np.int64(flat[at]) | np.int64(flat[at + 1]) << 8)
            target[column] = value


def decode_rows(
    rows: FeatureRows,
    table: np.ndarray,
    out: np.ndarray,
    row: np.ndarray | None = None,
    position: np.ndarray | None = None,
) -> None:
    """out[position] = table[row], decoded into float32. None for `row` or `position` means all rows in order. Rows must be in the table.

    Raises ConfigError if the table's storage does not match `rows`.
    """
    count = len(rows.check(table)) if row is None else len(row)
    assert count == (len(out) if position is None else len(position))
    if not count:
        return
    where = (_EVERY if row is None else row, _EVERY if position is None else position, out)
    if rows.layout == "bits":
        _decode_bits(table, *where)
    elif rows.layout != "dense":
        value_bytes = rows.stored_width // rows.slots - rows.column_dtype.itemsize
        _decode_listed(table, value_bytes, rows.column_dtype.itemsize, rows.slots, *where)
    elif rows.dtype == "int8":
        _decode_int8(table, table.view(np.int8), *where)
    elif rows.dtype == "float16":
        _decode_half(table.view(np.uint16), *where)
    elif row is None:
        out[slice(None) if position is None else position] = table
    elif position is None:
        take_rows(table, row, out)
    else:
        place_rows(table, row, position, out)
