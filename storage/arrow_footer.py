"""Reads from an Arrow IPC file's metadata what Arrow does not say before it reads: whether its record batch is compressed.

A file of a few kilobytes may expand to any size, and Arrow expands it as it reads. The metadata are flatbuffers, described in Arrow's
format/File.fbs and format/Message.fbs: a table begins with the distance to the list of its fields' places.
"""

import struct

_VERSION = 4  # V5, of Arrow from 1.0 on; those before it noted compression elsewhere
_END = 10  # of a file: the footer's length, and ARROW1


def is_plain(file: memoryview) -> bool:
    """Whether the first record batch is of today's version and uncompressed, and no column has a dictionary. Raises struct.error for damage."""
    end = len(file) - _END
    footer = _table(file, end - _number(file, "<i", end))
    dictionaries, batches = _field(file, footer, 2), _field(file, footer, 3)
    if batches is None or (dictionaries is not None and _number(file, "<I", _table(file, dictionaries))):
        return False
    start = _number(file, "<q", _table(file, batches) + 4)
    # Before the message are a mark and its length.
    message = _table(file, start + 8)
    version, header = _field(file, message, 0), _field(file, message, 2)
    if version is None or header is None or _number(file, "<h", version) != _VERSION:
        return False
    return _field(file, _table(file, header), 3) is None


def _number(file: memoryview, form: str, place: int) -> int:
    if place < 0:  # struct would count from the end
        raise struct.error(f"a place before the file's beginning, {place}")
    (number,) = struct.unpack_from(form, file, place)
    return int(number)


def _table(file: memoryview, place: int) -> int:
    """The place of what is named there by its distance."""
    return place + _number(file, "<I", place)


def _field(file: memoryview, table: int, index: int) -> int | None:
    """The place of a table's field; None: it has its default."""
    fields = table - _number(file, "<i", table)
    place = 4 + 2 * index
    offset = _number(file, "<H", fields + place) if place < _number(file, "<H", fields) else 0
    return table + offset if offset else None
