"""Reads the fields of a manifest. Checks the type and range of every field, and that the paths of files match the format."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NoReturn

from graphmill.core.errors import FormatError, quoted
from graphmill.storage.filesystem.file_entry import FileEntry

FORMAT = "graphmill-graph"
FORMAT_VERSION = 2
# The names in `requires` stand for: several types; times of edges or nodes, which order the lists; relation numbers as edge features; encodings of
# types; lists of out-edges of a typed graph's relations.
TYPES, TIMES, RELATIONS = "types", "times", "relations"
OF_TYPES, OUT_EDGES = "encodings of types", "out-edges of relations"
_KNOWN = (TYPES, TIMES, RELATIONS, OF_TYPES, OUT_EDGES)

_ANY_PATH = re.compile(r"data/\d{6,18}-[0-9a-f]{8}/[A-Za-z0-9._/-]{1,256}")
_SHA256 = re.compile("[0-9a-f]{64}")
_NAMED = re.compile(r"(?:.*/)?(\d{6,18})\.json", re.DOTALL)
_MAX_NUMBER = 1.7e308
_MAX_TEXT = 2**16  # most characters of a text
_MAX_WIDTH = 2**24  # most columns of a row; Arrow allows 2^31 - 1
_TEXT = f"of at most {_MAX_TEXT} characters"
_YEAR_10000 = 253402300799.0  # latest date, in seconds since 1970
# `manifest_json` begins and ends the statistics with these texts. They contain line breaks, which JSON strings do not, so they occur nowhere else.
_STATISTICS, _END = '\n "statistics": {\n', "\n }"


class ManifestReader:
    """Reads the fields of a manifest with their types. Every error names the file and the field.

    The statistics are parsed at first use, because they are more than half of a manifest's text and opening a graph does not need them.
    """

    _statistics: str | None = None  # the text of the statistics, until it is parsed

    def __init__(self, text: str, where: str) -> None:
        """Reads the header. Raises FormatError if the text is not a manifest."""
        text, self._statistics = _cut_statistics(text)
        body = _parse(text, where)
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            form = body.get("format") if isinstance(body, dict) else type(body).__name__
            raise FormatError(f"{where}: expected format {FORMAT!r}, got {quoted(form)}; this is not a Graphmill graph")
        version = body.get("format_version")
        if version != FORMAT_VERSION or isinstance(version, bool):
            raise FormatError(
                f"{where}: expected format_version {FORMAT_VERSION}, got {quoted(version)}; "
                "read it with the Graphmill that wrote it, or ingest the graph again"
            )
        requires = body.get("requires")
        if not isinstance(requires, list) or any(name not in _KNOWN for name in requires):
            raise FormatError(
                f"{where}: this graph requires {quoted(requires)}, which this version of Graphmill does not know; use a newer one"
            )
        self.kind, self.is_typed = body.get("kind"), TYPES in requires
        self._body: dict[str, Any] = body
        self._where = where

    def check_kind(self, kind: str) -> None:
        """Raises FormatError for a manifest of another kind."""
        if self.kind != kind:
            raise FormatError(f"{self._where}: expected kind {kind!r}, got {quoted(self.kind)}")

    def check_content_hash(self, expected: str) -> None:
        self._checked("content_hash", expected, lambda value: value == expected)

    def fail(self, key: str, expected: str, got: object) -> NoReturn:
        raise FormatError(f"{self._where}: field {key!r}: expected {expected}, got {quoted(got)}")

    def _checked(self, key: str, expected: str, accepts: Callable[[Any], bool]) -> Any:
        """Returns the field's value. Raises FormatError unless `accepts` returns true for the value."""
        value = self._body.get(key)
        if not accepts(value):
            self.fail(key, expected, value)
        return value

    def count(self, key: str, most: int | None = None) -> int:
        value: int = self._checked(key, "a count (integer >= 0)", _is_count)
        if most is not None and value > most:
            self.fail(key, f"at most {most}", value)
        return value

    def width(self, key: str) -> int:
        value = self.count(key)
        if value > _MAX_WIDTH:
            self.fail(key, f"a width of at most {_MAX_WIDTH}", value)
        return value

    def optional_width(self, key: str) -> int | None:
        return None if self._body.get(key) is None else self.width(key)

    def is_null(self, key: str) -> bool:
        """Whether the field exists and has the value null."""
        return key in self._body and self._body[key] is None

    def optional_number(self, key: str) -> float | None:
        return None if self.is_null(key) else self.number(key, "a finite number", -_MAX_NUMBER, _MAX_NUMBER)

    def newer_number(self, key: str, least: float = -_MAX_NUMBER, most: float = _MAX_NUMBER) -> float | None:
        """Reads the field. Returns None if it is null or missing."""
        is_none = key not in self._body or self.is_null(key)
        return None if is_none else self.number(key, f"a number from {least:g} to {most:g}", least, most)

    def number(self, key: str, expected: str, least: float, most: float) -> float:
        return float(self._checked(key, expected, lambda value: type(value) in (int, float) and least <= value <= most))

    def hexadecimal(self, key: str, digits: int) -> str:
        pattern, expected = f"[0-9a-f]{{{digits}}}", f"{digits} hexadecimal digits"
        return str(self._checked(key, expected, lambda value: bool(_is_text(value) and re.fullmatch(pattern, value))))

    def counts(self, key: str) -> tuple[int, ...]:
        return tuple(self._checked(key, "a list of counts (integers >= 0)", _is_counts))

    def rows_of_counts(self, key: str) -> tuple[tuple[int, ...], ...]:
        rows = self._checked(key, "a list of lists of counts (integers >= 0)", _list_of(_is_counts))
        return tuple(tuple(row) for row in rows)

    def flag(self, key: str) -> bool:
        return bool(self._checked(key, "true or false", lambda value: isinstance(value, bool)))

    def optional_flag(self, key: str) -> bool:
        """Reads a flag. Returns False if the field is missing."""
        return key in self._body and self.flag(key)

    def text(self, key: str) -> str:
        return str(self._checked(key, f"a string {_TEXT}", _is_text))

    def optional_text(self, key: str) -> str | None:
        """Reads the field. Returns None if it is null or missing."""
        return None if self._body.get(key) is None else self.text(key)

    def only_value(self, key: str, expected: str) -> None:
        """Raises FormatError unless the field has the value `expected`."""
        if self._body.get(key) != expected:
            self.fail(key, repr(expected), self._body.get(key))

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        value = self._body.get(key)
        if value is not None and value not in choices:
            self.fail(key, f"null or one of {choices}", value)
        return value

    def word(self, key: str, words: tuple[str, ...]) -> str:
        return str(self._checked(key, f"one of {words}", lambda value: value in words))

    def texts(self, key: str) -> dict[str, str]:
        return dict(
            self._checked(
                key,
                f"an object of strings {_TEXT}",
                lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
            )
        )

    def names(self, key: str) -> tuple[str, ...]:
        texts = _list_of(_is_text)
        return tuple(
            self._checked(
                key,
                f"a list of distinct strings {_TEXT}",
                lambda value: texts(value) and len(set(value)) == len(value),
            )
        )

    def optional_names(self, key: str) -> tuple[str, ...]:
        """Reads a list of names. Returns an empty tuple if the field is missing."""
        return self.names(key) if key in self._body else ()

    def class_names(self, num_classes: int | None) -> tuple[str, ...]:
        """Returns the names of the classes; an empty tuple if the field is missing."""
        names = self.optional_names("class_names")
        if names and len(names) != num_classes:
            self.fail("class_names", f"{num_classes or 'no'} names, one for each class", f"{len(names)} names")
        return names

    def widths(self, key: str) -> tuple[int, ...]:
        is_width = _list_of(lambda value: type(value) is int and 0 < value <= _MAX_WIDTH)
        return tuple(self._checked(key, f"a list of integers in [1, {_MAX_WIDTH}]", is_width))

    def snapshot(self) -> int:
        """Returns the snapshot's number. Raises FormatError if the file's name has another number."""
        number, named = self.count("snapshot"), _NAMED.fullmatch(self._where)
        if named and int(named[1]) != number:
            self.fail("snapshot", f"{int(named[1])}, the number in the file's name", number)
        return number

    def date(self, key: str) -> float:
        """Returns the field's date, in seconds since 1970."""
        return self.number(key, "seconds since 1970", 0, _YEAR_10000)

    def inner(self, key: str) -> "ManifestReader":
        """Returns a reader for the object that this field holds."""
        return self._reader_of(key, self._body.get(key))

    def optional_inner(self, key: str) -> "ManifestReader | None":
        if key == "statistics" and self._statistics is not None:
            inner = self._reader_of(key, {})
            inner._statistics = self._statistics
            del inner._body
            return inner
        return None if self.is_null(key) else self.inner(key)

    def __getattr__(self, name: str) -> Any:
        """Parses the statistics when `_body` is first used."""
        if name != "_body" or self._statistics is None:
            raise AttributeError(name)
        self._body = _parse(self._statistics, self._where)
        return self._body

    def inners(self, key: str, *, optional: bool = False) -> list["ManifestReader"]:
        """Returns a reader for each object in this field's list. With `optional`, a missing field counts as an empty list."""
        if optional and key not in self._body:
            return []
        objects = self._checked(key, "a list of objects", _list_of(_is_object))
        return [self._reader_of(f"{key}[{index}]", each) for index, each in enumerate(objects)]

    def only(self, key: str) -> "ManifestReader":
        """Returns a reader for the only object in this field's list."""
        value = self._checked(key, "a list of one object", lambda value: isinstance(value, list) and len(value) == 1)
        return self._reader_of(key, value[0])

    def members(self, key: str, *, optional: bool = False) -> dict[str, "ManifestReader"]:
        """This field holds an object of named objects. Returns a reader for each, by name. With `optional`, a field that is null or missing counts as empty."""
        if optional and self._body.get(key) is None:
            return {}
        objects = self._checked(key, "an object", _is_object)
        return {name: self._reader_of(f"{key}: {name}", each) for name, each in objects.items()}

    def _reader_of(self, key: str, value: Any) -> "ManifestReader":
        if not _is_object(value):
            self.fail(key, "an object", value)
        inner = object.__new__(ManifestReader)  # copy.copy would take twenty times as long
        inner._body, inner._where = value, f"{self._where}: {key}"
        return inner

    def paths(self) -> list[str]:
        """Returns the paths of this object's files, from the field `files`."""
        files = self._checked("files", "an object", _is_object)
        paths: list[Any] = [entry.get("path") if isinstance(entry, dict) else None for entry in files.values()]
        bad = [path for path in paths if not isinstance(path, str) or not _ANY_PATH.fullmatch(path) or ".." in path]
        if bad:
            self.fail("files", "paths below data/", bad[0])
        return paths

    def offsets(self, key: str = "partition_offsets", total: str = "num_nodes") -> tuple[int, ...]:
        """Returns a list of ascending integers. The first is 0, and the last equals the field `total`."""
        num_rows, integers = self.count(total), _list_of(lambda value: type(value) is int)
        value = self._checked(key, "a list of at least 2 integers", lambda value: integers(value) and len(value) >= 2)
        if value[0] != 0 or value[-1] != num_rows or not all(a <= b for a, b in pairwise(value)):
            self.fail(key, f"ascending integers from 0 to {total} = {num_rows}", value)
        return tuple(value)

    def files(self, file_name: re.Pattern[str]) -> dict[str, FileEntry]:
        """Returns the entries of files by name. Checks that every name matches the format and that every path ends in the file's name."""
        paths, entries = self.paths(), {}
        for (name, entry), path in zip(self._body["files"].items(), paths, strict=True):
            if not file_name.fullmatch(name):
                self.fail("files", "only file names of the format (part-00000/topology.arrow …)", name)
            if path.split("/", 2)[2] != name:
                self.fail("files", f"a path that ends in {name}", path)
            num_bytes, sha256 = entry.get("num_bytes"), entry.get("sha256")
            if not (_is_count(num_bytes) and _is_text(sha256) and _SHA256.fullmatch(sha256)):
                self.fail("files", f"num_bytes and sha256 for {name}", entry)
            entries[name] = FileEntry(num_bytes, sha256, path)
        return entries


def _cut_statistics(text: str) -> tuple[str, str | None]:
    """Returns a manifest's text with null in place of the statistics, and the text of the statistics (None if `manifest_json` did not write the manifest)."""
    start = end = text.find(_STATISTICS)
    if start < 0:
        return text, None
    while not text.startswith(_END, end - 2):
        # searching for the whole text _END would be slow, because it begins with a line break
        end = text.find("}", end + 1)
        if end < 0:
            return text, None
    start += len(_STATISTICS) - 2
    return f"{text[:start]}null{text[end + 1 :]}", text[start : end + 1]


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: the text is not JSON, or has a huge number
        raise FormatError(f"{where}: expected JSON, got broken text ({error}); ingest the graph again") from None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _list_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


_is_counts = _list_of(_is_count)
