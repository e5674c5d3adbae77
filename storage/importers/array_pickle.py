"""Reads a pickled dictionary of numpy's integer vectors, as `torch.save` writes it, without unpickling.

Only the opcodes that such a dictionary needs are known, of protocols 2 to 5, and only the five functions that numpy's pickles name;
those are never called: each stands for the one thing that it does with the one kind of argument that numpy gives it. All else is
refused by name.

Memory: vectors are views into the file's own bytes. Beside those, a file of n bytes makes this reader hold at most 8 n bytes and 16 MiB.
"""

import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickletools import opcodes
from typing import Any

import numpy as np

from storage.errors import DataError
from storage.filesystem_errors import one_line

_MAX_OPCODES = 10_000  # one vector takes about forty
_INTEGER = re.compile("[iu][1248]")

_RECONSTRUCT, _FROM_BUFFER, _DTYPE, _NDARRAY, _ENCODE, _BYTES = range(6)
_FUNCTIONS = {  # by the names of numpy 1 and numpy 2, Python 2 and 3
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _RECONSTRUCT for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FROM_BUFFER for core in ("core", "_core")},
    ("numpy", "dtype"): _DTYPE,
    ("numpy", "ndarray"): _NDARRAY,
    ("_codecs", "encode"): _ENCODE,  # turns protocol 2's text into the bytes of a vector
    **{(module, "bytes"): _BYTES for module in ("__builtin__", "builtins")},  # protocol 2's empty bytes
}


def read_vectors(path: Path) -> dict[str, np.ndarray]:
    """The integer vectors of a file that `torch.save` wrote of a dictionary of them, by their names: views that cannot be written.

    Both of torch's containers are read: the zip file, and (before torch 1.6) the pickle after three others. DataError for a file
    that holds anything else, names any other function or is damaged.
    """
    try:
        content = _read(path)
    except (_Refused, OSError, *_BROKEN_ZIP) as error:
        raise DataError(f"{path}: expected a dictionary of arrays: {one_line(error)[:200]}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a dictionary of arrays, found {_named(content)}")
    vectors = {}
    for name, value in content.items():
        if not isinstance(value, _Vector) or value.rows is None:
            raise DataError(f"{path}: expected a dictionary of arrays, found {_named(value)} under {name[:40]!r}")
        vectors[name] = value.rows
    return vectors


# What zipfile raises of a damaged or forged archive.
_BROKEN_ZIP = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, struct.error)


class _Refused(Exception):
    """The file holds something else; the message says what."""


@dataclass(frozen=True)
class _Function:
    code: int


@dataclass
class _Kind:
    """A dtype. Its byte order comes after it has been made (and may have been used)."""

    name: str
    order: str = "="

    def dtype(self) -> np.dtype:
        return np.dtype(self.name).newbyteorder(self.order)  # type: ignore[arg-type]


@dataclass
class _Vector:
    rows: np.ndarray | None = None  # comes after it has been made


def _named(value: object) -> str:
    return {_Vector: "an array without content", _Kind: "a dtype", _Function: "a function"}.get(
        type(value), type(value).__name__
    )


def _read(path: Path) -> object:
    with open(path, "rb") as stream:
        if not zipfile.is_zipfile(stream):
            stream.seek(0)
            reader = _Reader(stream.read())
            for _ in range(3):  # magic number, version, sizes of this system's integers
                reader.load()
            return reader.load()
        num_bytes = path.stat().st_size
        with zipfile.ZipFile(stream) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith("/data.pkl")]
            if len(members) != 1:
                raise _Refused(f"expected one data.pkl in the zip file, found {len(members)}")
            (member,) = members
            if (
                member.compress_type != zipfile.ZIP_STORED
                or not member.file_size == member.compress_size < num_bytes
                or member.flag_bits & 1
            ):
                raise _Refused("expected data.pkl as torch stores it, neither compressed nor encrypted")
            return _Reader(archive.read(member)).load()


class _Reader:
    """Runs the opcodes of one pickle after another."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self._at = 0
        self._opcodes_left = _MAX_OPCODES
        self._encode_left = len(content)  # bytes that text may still become
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> object:
        """The object of the pickle that begins here."""
        self._stack, self._marks, self._memo = [], [], {}
        while True:
            if not self._opcodes_left:
                raise _Refused(f"more than {_MAX_OPCODES} opcodes")
            self._opcodes_left -= 1
            opcode = bytes(self._take(1)).decode("latin1")
            if opcode == ".":
                return self._pop(object)
            run = _OPCODES.get(opcode)
            if run is None:
                name = next((known.name for known in opcodes if known.code == opcode), repr(opcode))
                raise _Refused(f"found {name}, which is no part of an array")
            run(self)

    def _take(self, count: int) -> memoryview:
        """The next bytes. They are counted before anything is made of them."""
        if not 0 <= count <= len(self._content) - self._at:
            raise _Refused(f"cut short: {count} bytes at byte {self._at} of {len(self._content)}")
        self._at += count
        return self._content[self._at - count : self._at]

    def _number(self, form: str) -> int:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _pop(self, kind: type) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise _Refused("nothing is there for an opcode to take")
        value = self._stack.pop()
        if not isinstance(value, kind):
            raise _Refused(f"expected {kind.__name__.strip('_')}, found {_named(value)}")
        return value

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise _Refused("an opcode needs a mark, there is none")
        start = self._marks.pop()
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def _top(self) -> Any:
        value = self._pop(object)
        self._stack.append(value)
        return value

    def _text(self, form: str) -> None:
        try:
            self._stack.append(str(self._take(self._number(form)), "utf-8"))
        except UnicodeDecodeError as error:
            raise _Refused("text that is not UTF-8") from error

    def _bytes(self, form: str) -> None:
        self._stack.append(self._take(self._number(form)))

    def _long(self) -> None:
        self._stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))

    def _tuple(self, count: int) -> None:
        parts = [self._pop(object) for _ in range(count)]
        self._stack.append(tuple(reversed(parts)))

    def _get(self, form: str) -> None:
        index = self._number(form)
        if index not in self._memo:
            raise _Refused(f"memo has no entry {index}")
        self._stack.append(self._memo[index])

    def _put(self, index: int) -> None:
        self._memo[index] = self._top()

    def _line(self) -> str:
        rest = bytes(self._content[self._at : self._at + 200])
        end = rest.find(b"\n")
        if end < 0:
            raise _Refused("a name without an end")
        self._take(end + 1)
        return rest[:end].decode("utf-8", "replace")

    def _global(self, module: str, name: str) -> None:
        code = _FUNCTIONS.get((module, name))
        if code is None:
            raise _Refused(f"found {module[:60]}.{name[:60]}, which is no part of an array; nothing was called")
        self._stack.append(_Function(code))

    def _stack_global(self) -> None:
        name, module = self._pop(str), self._pop(str)
        self._global(module, name)

    def _set_items(self, items: list[Any]) -> None:
        into = self._top()
        if not isinstance(into, dict) or len(items) % 2 or not all(isinstance(name, str) for name in items[::2]):
            raise _Refused("expected pairs of name and value for a dictionary")
        into.update(zip(items[::2], items[1::2], strict=True))

    def _reduce(self) -> None:
        arguments, function = self._pop(tuple), self._pop(_Function)
        match function.code, arguments:
            case code, (str(name), False, True) if code == _DTYPE and _INTEGER.fullmatch(name):
                made: Any = _Kind(name)
            case code, (_Function(of), (0,), memoryview()) if code == _RECONSTRUCT and of == _NDARRAY:
                made = _Vector()
            case code, (memoryview() as content, _Kind() as kind, (int(length),), "C") if code == _FROM_BUFFER:
                made = _Vector(_vector(content, kind, length))
            case code, (str(text), "latin1") if code == _ENCODE:
                made = self._encode(text)
            case code, () if code == _BYTES:
                made = memoryview(b"")
            case _:
                raise _Refused("a function's arguments are not those of an array of integers with one dimension")
        self._stack.append(made)

    def _encode(self, text: str) -> memoryview:
        if len(text) > self._encode_left:
            raise _Refused("its text becomes more bytes than the file has")
        self._encode_left -= len(text)
        try:
            return memoryview(text.encode("latin1"))
        except UnicodeEncodeError as error:
            raise _Refused("text that does not stand for bytes") from error

    def _build(self) -> None:
        state, thing = self._pop(tuple), self._top()
        match thing, state:
            case _Kind(), (3 | 4, "<" | ">" | "|" | "=" as order, None, None, None, -1, -1, 0):
                thing.order = order
            case _Vector(rows=None), (1, (int(length),), _Kind() as kind, bool(), memoryview() as content):
                thing.rows = _vector(content, kind, length)
            case _:
                raise _Refused("an object's state is not that of an array of integers with one dimension")


def _vector(content: memoryview, kind: _Kind, length: int) -> np.ndarray:
    dtype = kind.dtype()
    if length * dtype.itemsize != len(content):
        raise _Refused(f"expected {length} numbers of {dtype.itemsize} bytes, found {len(content)} bytes")
    # A view, in the file's byte order too: a pickle may name the same bytes a thousand times.
    return np.frombuffer(content, dtype)


_Opcode = Callable[[_Reader], object]
_OPCODES: dict[str, _Opcode] = {
    "\x80": lambda r: r._take(1),  # PROTO
    "\x95": lambda r: r._take(8),  # FRAME, a hint for buffering
    "}": lambda r: r._stack.append({}),
    ")": lambda r: r._stack.append(()),
    "N": lambda r: r._stack.append(None),
    "\x88": lambda r: r._stack.append(True),
    "\x89": lambda r: r._stack.append(False),
    "J": lambda r: r._stack.append(r._number("<i")),
    "K": lambda r: r._stack.append(r._number("<B")),
    "M": lambda r: r._stack.append(r._number("<H")),
    "\x8a": _Reader._long,
    "X": lambda r: r._text("<I"),
    "\x8c": lambda r: r._text("<B"),
    "\x8d": lambda r: r._text("<Q"),
    "B": lambda r: r._bytes("<I"),
    "C": lambda r: r._bytes("<B"),
    "\x8e": lambda r: r._bytes("<Q"),
    "\x96": lambda r: r._bytes("<Q"),  # BYTEARRAY8
    "(": lambda r: r._marks.append(len(r._stack)),
    "t": lambda r: r._stack.append(tuple(r._pop_to_mark())),
    "\x85": lambda r: r._tuple(1),
    "\x86": lambda r: r._tuple(2),
    "\x87": lambda r: r._tuple(3),
    "q": lambda r: r._put(r._number("<B")),
    "r": lambda r: r._put(r._number("<I")),
    "\x94": lambda r: r._put(len(r._memo)),
    "h": lambda r: r._get("<B"),
    "j": lambda r: r._get("<I"),
    "c": lambda r: r._global(r._line(), r._line()),
    "\x93": _Reader._stack_global,
    "s": lambda r: r._set_items([r._pop(object), r._pop(object)][::-1]),
    "u": lambda r: r._set_items(r._pop_to_mark()),
    "R": _Reader._reduce,
    "b": _Reader._build,
}
