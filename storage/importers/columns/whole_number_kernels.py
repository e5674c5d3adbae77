"""Compiled loops that read text in which every field is a plain whole number."""

import numpy as np

from graphmill.core.compile_cache import compiled

# Unsigned positions: numba adds a branch for negative ones.
_ONE, _TEN, _MOST_DIGITS = np.uint64(1), np.uint64(10), np.uint64(18)
_ZERO, _MINUS, _LINE_FEED, _CARRIAGE_RETURN = np.uint8(48), np.uint8(45), np.uint8(10), np.uint8(13)


@compiled
def count_lines(text):
    """Returns the number of line breaks in `text` (uint8)."""
    count = 0
    for i in range(len(text)):
        count += text[i] == _LINE_FEED
    return count


@compiled
def read_whole_numbers(text, delimiter, columns):
    """Reads lines of numbers, and returns the number of lines; -1 if there is anything else in the text, even a blank.

    text: uint8. A number has 1 to 18 digits, perhaps after a minus sign. A line ends with LF or CR LF, the last line perhaps with the text. `columns`: int64
    [number of fields of each line, number of lines], written; its content has no meaning after -1.
    """
    size, num_fields, num_lines = np.uint64(len(text)), columns.shape[0], columns.shape[1]
    i = np.uint64(0)
    for line in range(num_lines):
        for field in range(num_fields):
            is_negative = i < size and text[i] == _MINUS
            if is_negative:
                i += _ONE
            start, value = i, np.uint64(0)
            while i < size:
                digit = np.uint8(text[i] - _ZERO)
                if digit > 9:
                    break
                value = value * _TEN + np.uint64(digit)
                i += _ONE
            if i == start or i - start > _MOST_DIGITS:
                return -1
            columns[field, line] = -np.int64(value) if is_negative else np.int64(value)
            if field < num_fields - 1:
                if i == size or text[i] != delimiter:
                    return -1
                i += _ONE
            elif i < size:
                if text[i] == _CARRIAGE_RETURN:
                    i += _ONE
                if i == size or text[i] != _LINE_FEED:
                    return -1
                i += _ONE
    return num_lines if i == size else -1
