"""Reads a pickled dictionary of numpy's integer vectors, as `torch.save` writes it, without unpickling.

It knows only the opcodes of protocols 2 to 5 that such a dictionary needs, and only the functions that numpy's pickles name. These are never
called: the reader does itself what each does with numpy's arguments. Everything else is refused by name.
Memory: a file of n bytes makes this reader hold at most 8 n bytes and 16 MiB beside the file's own.
"""

import io
import re
import struct
import zipfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from pickletools import opcodes
from typing import Any

import numpy as np

from storage.errors import DataError
from storage.filesystem_errors import one_line

_MAX_OPCODES = 10_000  # one vector takes about forty
_INTEGER = re.compile("[iu][1248]")
_OPCODES = {
    known.code: known
    for known in opcodes
    if known.code in "().BCJKMNRXbchjqrstu}\x80\x85\x86\x87\x88\x89\x8a\x8c\x8d\x8e\x93\x94\x95\x96"
}


class _Function(Enum):
    """The functions, under their names in numpy 1 and 2 and in Python 2 and 3."""

    RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
    FROM_BUFFER = ("numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer")
    DTYPE = ("numpy dtype",)
    NDARRAY = ("numpy ndarray",)
    ENCODE = ("_codecs encode",)  # turns protocol 2's text into the bytes of a vector
    BYTES = ("__builtin__ bytes", "builtins bytes")  # protocol 2's empty bytes


_FUNCTIONS = {name: function for function in _Function for name in function.value}

# What zipfile and pickletools raise of a damaged or forged file.
_BROKEN = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, struct.error)


class _Refused(Exception):
    """The file holds something else; the message says what."""


@dataclass
class _Dtype:
    """A dtype. Its byte order is set after it is made, perhaps even after it is used."""

    name: str
    order: str = "="

    def vector(self, content: memoryview, length: int) -> np.ndarray:
        dtype = np.dtype(self.name).newbyteorder(self.order)  # type: ignore[arg-type]
        if length * dtype.itemsize != len(content):
            raise _Refused(f"expected {length} numbers of {dtype.itemsize} bytes, found {len(content)} bytes")
        # A view, in the file's byte order: a pickle may refer to the same bytes a thousand times.
        return np.frombuffer(content, dtype)


@dataclass
class _Vector:
    rows: np.ndarray | None = None  # set after it is made


def read_vectors(path: Path) -> dict[str, np.ndarray]:
    """The integer vectors of a file that `torch.save` wrote of a dictionary of them, by their names: views that cannot be written.

    Both of torch's containers are read: the zip file, and (before torch 1.6) the pickle after three others. DataError for a file
    that holds anything else, names any other function or is damaged.
    """
    try:
        content = _read(path)
    except (_Refused, OSError, *_BROKEN) as error:
        raise DataError(f"{path}: expected a dictionary of arrays: {one_line(error)[:200]}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a dictionary of arrays, found {_named(content)}")
    vectors = {}
    for name, value in content.items():
        if not isinstance(value, _Vector) or value.rows is None:
            raise DataError(f"{path}: expected a dictionary of arrays, found {_named(value)} under {name[:40]!r}")
        vectors[name] = value.rows
    return vectors


def _named(value: object) -> str:
    names: dict[type, str] = {_Vector: "an array without content", _Dtype: "a dtype", _Function: "a function"}
    return names.get(type(value), type(value).__name__)


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
    """Runs the opcodes of one pickle after another; `pickletools` reads their arguments."""

    def __init__(self, content: bytes) -> None:
        self._stream = io.BytesIO(content)
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
            code = self._stream.read(1).decode("latin1")
            if not code:
                raise _Refused("it is cut short")
            opcode = _OPCODES.get(code)
            if opcode is None:
                name = next((known.name for known in opcodes if known.code == code), repr(code))
                raise _Refused(f"found {name}, which is no part of an array")
            if opcode.name == "STOP":
                return self._pop(object)
            self._run(opcode.name, opcode.arg.reader(self._stream) if opcode.arg else None)

    def _run(self, opcode: str, argument: Any) -> None:
        match opcode:
            case "PROTO" | "FRAME":  # a frame is a hint for buffering
                pass
            case "MARK":
                self._marks.append(len(self._stack))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._memo[len(self._memo) if argument is None else argument] = self._top()
            case "SETITEM":
                self._set_items([self._pop(object), self._pop(object)][::-1])
            case "SETITEMS":
                self._set_items(self._pop_to_mark())
            case "BUILD":
                self._build()
            case _:
                self._stack.append(self._made(opcode, argument))

    def _made(self, opcode: str, argument: Any) -> object:
        """What the opcode puts on the stack."""
        match opcode:
            case "EMPTY_DICT":
                return {}
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = "123".find(opcode[-1]) + 1
                return tuple([self._pop(object) for _ in range(count)][::-1])
            case "TUPLE":
                return tuple(self._pop_to_mark())
            case "NEWTRUE" | "NEWFALSE":
                return opcode == "NEWTRUE"
            case "BINGET" | "LONG_BINGET":
                if argument not in self._memo:
                    raise _Refused(f"memo has no entry {argument}")
                return self._memo[argument]
            case "GLOBAL" | "STACK_GLOBAL":
                named = argument or " ".join([self._pop(str), self._pop(str)][::-1])
                if named not in _FUNCTIONS:
                    raise _Refused(
                        f"found {named[:120].replace(' ', '.')}, which is no part of an array; nothing was called"
                    )
                return _FUNCTIONS[named]
            case "REDUCE":
                return self._reduce()
            case _:  # None, an integer, text or bytes
                return memoryview(argument).toreadonly() if isinstance(argument, bytes | bytearray) else argument

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

    def _set_items(self, items: list[Any]) -> None:
        into = self._top()
        if not isinstance(into, dict) or len(items) % 2 or not all(isinstance(name, str) for name in items[::2]):
            raise _Refused("expected pairs of name and value for a dictionary")
        into.update(zip(items[::2], items[1::2], strict=True))

    def _reduce(self) -> object:
        arguments, function = self._pop(tuple), self._pop(_Function)
        match function, arguments:
            case _Function.DTYPE, (str(name), False, True) if _INTEGER.fullmatch(name):
                return _Dtype(name)
            case _Function.RECONSTRUCT, (_Function.NDARRAY, (0,), memoryview()):
                return _Vector()
            case _Function.FROM_BUFFER, (memoryview() as content, _Dtype() as dtype, (int(length),), "C"):
                return _Vector(dtype.vector(content, length))
            case _Function.ENCODE, (str(text), "latin1"):
                if len(text) > self._encode_left:
                    raise _Refused("its text becomes more bytes than the file has")
                self._encode_left -= len(text)
                return memoryview(text.encode("latin1"))
            case _Function.BYTES, ():
                return memoryview(b"")
        raise _Refused("a function's arguments are not those of an array of integers with one dimension")

    def _build(self) -> None:
        state, thing = self._pop(tuple), self._top()
        match thing, state:
            case _Dtype(), (3 | 4, "<" | ">" | "|" | "=" as order, None, None, None, -1, -1, 0):
                thing.order = order
            case _Vector(rows=None), (1, (int(length),), _Dtype() as dtype, bool(), memoryview() as content):
                thing.rows = dtype.vector(content, length)
            case _:
                raise _Refused("an object's state is not that of an array of integers with one dimension")
