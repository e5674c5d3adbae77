"""Reads the raw files of published data sets, which are pickles of plain data, numpy arrays, SciPy CSR matrices and torch tensors, without unpickling.

The reader interprets the opcodes of protocols 0 to 5 itself. It knows the functions and classes in the table below but never calls them: it computes their
result for the given arguments, or refuses the file. Arrays and tensors are views of the file's bytes. Text that is converted to bytes may have at most as many
bytes as the file. A caller may limit the number of opcodes, and thereby the number of objects.
"""

import io
import math
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from graphmill.core.errors import DataError
from graphmill.storage.filesystem.filesystem_errors import one_line

_TORCH_DTYPES = {
    "Float": "<f4",
    "Double": "<f8",
    "Half": "<f2",
    "Long": "<i8",
    "Int": "<i4",
    "Short": "<i2",
    "Char": "|i1",
    "Byte": "|u1",
    "Bool": "|b1",
}
_MAGIC = 0x1950A86A20F9469CFC6C  # magic number of files that torch.save wrote before version 1.6
# Errors that numpy, struct and zipfile raise for a damaged or forged file.
_BROKEN = (
    ValueError,
    TypeError,
    OverflowError,
    LookupError,
    struct.error,
    zipfile.BadZipFile,
    RuntimeError,
    MemoryError,
)
_PLAIN = re.compile(r"[biufS?]\d{0,4}|bool")  # dtypes of numbers and of bytes


class Refused(Exception):
    """The file holds something that this reader does not accept. The message names it."""


@dataclass(frozen=True)
class _Named:
    """A function or class in the table."""

    name: str


@dataclass
class _Dtype:
    name: str
    order: str = "="

    def build(self, state: Any, budget: "_Budget") -> None:
        match state:
            case (int(), "<" | ">" | "|" | "=" as order, None, None, None, *_):
                self.order = order
            case _:
                raise Refused("a dtype that is no plain number")

    @property
    def dtype(self) -> np.dtype:
        if not _PLAIN.fullmatch(self.name):
            raise Refused(f"an array of {self.name}: expected plain numbers")
        dtype = np.dtype(self.name)
        return dtype if self.order in "=|" else dtype.newbyteorder(self.order)  # type: ignore[arg-type]


@dataclass
class _Array:
    values: np.ndarray | None = None

    def build(self, state: Any, budget: "_Budget") -> None:
        match state:
            case (int(), tuple() as shape, _Dtype() as dtype, bool() | int() as in_columns, content):
                numbers = dtype.dtype
                self.values = _view(_bytes(content, budget), numbers).reshape(
                    _shape(shape), order="F" if in_columns else "C"
                )
            case _:
                raise Refused("an array whose state is not that of plain numbers")

    def array(self) -> np.ndarray:
        if self.values is None:
            raise Refused("an array without content")
        return self.values


@dataclass
class _Csr:
    state: dict[str, Any] = field(default_factory=dict)

    def build(self, state: Any, budget: "_Budget") -> None:
        self.state = state if isinstance(state, dict) else {}

    def array(self) -> csr_array:
        parts = {name: self.state.get(name) for name in ("data", "indices", "indptr")}
        shape = self.state.get("_shape") or self.state.get("shape")
        if not all(isinstance(part, _Array) for part in parts.values()) or not isinstance(shape, tuple):
            raise Refused("a sparse matrix without data, indices, indptr and shape")
        data, indices, indptr = (part.array() for part in parts.values())  # type: ignore[union-attr]
        matrix = csr_array((data, indices, indptr), shape=_shape(shape))
        matrix.check_format()  # without this check, scipy would write outside its memory for an index outside the shape
        return matrix


@dataclass
class _Storage:
    """The numbers of a tensor. In torch's older file format the numbers follow the pickle."""

    dtype: np.dtype
    length: int
    values: np.ndarray | None = None


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def array(self) -> np.ndarray:
        values = self.storage.values
        if values is None:
            raise Refused("a tensor without content")
        last = self.offset + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        if self.offset < 0 or min(self.size, default=1) < 0 or min(self.stride, default=0) < 0:
            raise Refused("a tensor of negative size")
        if math.prod(self.size) and last >= len(values):
            raise Refused(f"a tensor that ends at {last} of {len(values)} numbers")
        if math.prod(self.size) == 0:
            return np.empty(self.size, values.dtype)
        steps = tuple(step * values.itemsize for step in self.stride)
        return np.lib.stride_tricks.as_strided(values[self.offset :], self.size, steps, writeable=False)


def array(value: object, noun: str = "an array") -> Any:
    """Converts a leaf to a numpy array or a SciPy CSR array. Raises Refused if the value is not an array."""
    if not isinstance(value, _Array | _Tensor | _Csr):
        raise Refused(f"{noun}: expected an array, found {type(value).__name__.strip('_')}")
    return value.array()


def read_pickle(path: Path) -> Any:
    """Returns the content of a pickle: None, numbers, texts, bytes, lists, tuples, dictionaries, and leaves that `array` converts.

    Raises DataError for a file that is missing or damaged, or that refers to other functions or classes than those of arrays and tensors.
    """
    return _read(path, lambda content: _Reader(content, {}, _Budget(len(content))).load())


def read_torch(path: Path, most_opcodes: float = math.inf) -> Any:
    """Returns the content of a file of `torch.save`, in its old or new file format. Refuses a file with more than `most_opcodes` opcodes."""
    return _read(path, lambda content: _torch(content, _Budget(len(content), most_opcodes)))


def _read(path: Path, read: Callable[[bytes], Any]) -> Any:
    try:
        return read(path.read_bytes())
    except (Refused, OSError, *_BROKEN) as error:
        why = str(error) if isinstance(error, Refused) else one_line(error)
        raise DataError(
            f"{path}: expected a pickle of plain data and arrays, found {why[:200]}; nothing in it was run"
        ) from error


@dataclass
class _Budget:
    """The work that a file may still cause. Without a limit, a small file could refer to one text or pickle a thousand times, and each reference copies it."""

    text_bytes: int  # length of text that may still be converted to bytes
    opcodes: float = math.inf

    def take_text(self, count: int) -> None:
        self.text_bytes -= count
        if self.text_bytes < 0:
            raise Refused("text that becomes more bytes than the file has")


def _torch(content: bytes, budget: _Budget) -> Any:
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return _legacy(content, budget)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl") or name == "data.pkl"]
        members = archive.infolist()
        stored = all(each.compress_type == zipfile.ZIP_STORED and not each.flag_bits & 1 for each in members)
        if len(names) != 1 or not stored or sum(each.file_size for each in members) > len(content):
            raise Refused("a zip file that torch.save did not write")
        folder = names[0].removesuffix("data.pkl")
        storages: dict[str, _Storage] = {}
        reader = _Reader(archive.read(names[0]), storages, budget)
        value = reader.load()
        for key, storage in storages.items():
            _fill(storage, archive.read(f"{folder}data/{key}"))
        return value


def _legacy(content: bytes, budget: _Budget) -> Any:
    """Reads torch's older file format: magic number, version, system, value, keys of the storages, bytes of each storage."""
    storages: dict[str, _Storage] = {}
    reader = _Reader(content, storages, budget)
    if reader.load() != _MAGIC:
        raise Refused("no file of torch.save")
    reader.load(), reader.load()
    value, keys = reader.load(), reader.load()
    if not isinstance(keys, list) or set(keys) != set(storages):
        raise Refused("storages that do not belong to the tensors")
    at = reader.at
    for key in keys:
        storage = storages[key]
        (length,) = struct.unpack_from("<q", content, at)
        size = length * storage.dtype.itemsize
        _fill(storage, content[at + 8 : at + 8 + size] if length >= 0 else b"")
        at += 8 + size
    return value


def _fill(storage: _Storage, content: bytes) -> None:
    if len(content) != storage.length * storage.dtype.itemsize:
        raise Refused(f"{len(content)} bytes for {storage.length} numbers of {storage.dtype.itemsize}")
    storage.values = _view(content, storage.dtype)


def _view(content: bytes, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(content, dtype) if content else np.empty(0, dtype)


def _bytes(content: Any, budget: _Budget) -> bytes:
    """Returns bytes unchanged, and converts text to bytes, because Python 2 pickled bytes as text."""
    if isinstance(content, str):
        budget.take_text(len(content))
        return content.encode("latin1")
    if not isinstance(content, bytes):
        raise Refused(f"{type(content).__name__} in place of bytes")
    return content


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise Refused("a shape that is no sizes")
    return tuple(map(int, shape))


def _made(name: str, arguments: tuple[Any, ...], budget: _Budget) -> Any:
    """Computes the result of the table's function or class `name` for these arguments."""
    match name, arguments:
        case "dtype", (str() | bytes() as kind, *_):
            return _Dtype(kind if isinstance(kind, str) else kind.decode("latin1"))
        case "array", (_Named("ndarray"), *_):
            return _Array()
        case "buffer", (content, _Dtype() as dtype, tuple() as shape, str(order)):
            return _Array(
                _view(_bytes(content, budget), dtype.dtype).reshape(_shape(shape), order="F" if order == "F" else "C")
            )
        case "scalar", (_Dtype() as dtype, content):
            return _view(_bytes(content, budget), dtype.dtype)[0].item()
        case "object", (_Named("csr"), _Named("object"), None):
            return _Csr()
        case "csr", ():
            return _Csr()
        case "dict", () | (_Named("list"),):
            return {}
        case "bytes", ():
            return b""
        case "encode", (str(text), "latin1"):
            budget.take_text(len(text))
            return text.encode("latin1")
        case "tensor", (_Storage() as storage, int(offset), tuple() as size, tuple() as stride, *_):
            return _Tensor(storage, offset, _shape(size), _shape(stride))
        case "storage", (bytes() as content,):
            return _legacy(content, budget)
        case "size", (list() | tuple() as sizes,):
            return tuple(sizes)
    raise Refused(f"{name} of {len(arguments)} arguments, which are not those of plain data")


_TABLE: Mapping[str, str] = {
    **{f"numpy.{core}.multiarray _reconstruct": "array" for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray scalar": "scalar" for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": "buffer" for core in ("core", "_core")},
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    **{f"scipy.sparse.{module} csr_matrix": "csr" for module in ("csr", "_csr")},
    **{f"{module} _reconstructor": "object" for module in ("copy_reg", "copyreg")},
    **{f"{module} {name}": name for module in ("__builtin__", "builtins") for name in ("object", "list", "bytes")},
    "_codecs encode": "encode",
    "collections defaultdict": "dict",
    "collections OrderedDict": "dict",
    "torch._utils _rebuild_tensor": "tensor",
    "torch._utils _rebuild_tensor_v2": "tensor",
    "torch.storage _load_from_bytes": "storage",
    "torch Size": "size",
    **{f"torch {kind}Storage": f"{kind}Storage" for kind in _TORCH_DTYPES},
}

_MARK = object()


class _Reader:
    """Interprets the opcodes of one pickle after another."""

    def __init__(self, content: bytes, storages: dict[str, _Storage], budget: _Budget) -> None:
        """The reader adds each storage that the pickle names to `storages`, by key."""
        self._content, self._storages, self._budget, self.at = content, storages, budget, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Reads the pickle at the current position and returns its object."""
        self._stack, self._memo = [], {}
        content, table, budget = self._content, _OPCODES, self._budget
        while True:
            budget.opcodes -= 1
            if budget.opcodes < 0:
                raise Refused("more opcodes than such a file needs")
            code = content[self.at]
            self.at += 1
            if code == 0x2E:  # STOP
                return self._stack.pop()
            run = table.get(code)
            if run is None:
                raise Refused(f"opcode {bytes([code])!r}, which plain data does not need")
            run(self)

    def take(self, count: int) -> bytes:
        start = self.at
        if not 0 <= count <= len(self._content) - start:
            raise Refused("the file cut short")
        self.at = start + count
        return self._content[start : self.at]

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self._content.find(b"\n", self.at)
        if end < 0:
            raise Refused("the file cut short")
        text = self._content[self.at : end].decode("latin1")
        self.at = end + 1
        return text

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise Refused("a mark where a value belongs")
        return value

    def pop_to_mark(self) -> list[Any]:
        stack = self._stack
        start = len(stack) - 1
        while stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise Refused("an opcode without its mark")
        taken = stack[start + 1 :]
        del stack[start:]
        return taken

    def pop_tuple(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(values[::-1]))

    def append(self, values: list[Any]) -> None:
        into = self._stack[-1]
        if not isinstance(into, list):
            raise Refused("values for a list that is none")
        into.extend(values)

    def set_items(self, values: list[Any]) -> None:
        into = self._stack[-1]
        if not isinstance(into, dict) or len(values) % 2 or not all(isinstance(key, int | str) for key in values[::2]):
            raise Refused("pairs for a dictionary that is none")
        into.update(zip(values[::2], values[1::2], strict=True))

    def put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        self.push(self._memo[index])

    def name(self, module: Any, name: Any) -> None:
        if f"{module} {name}" not in _TABLE:
            raise Refused(f"{module}.{name}, which is no part of plain data")
        self.push(_Named(_TABLE[f"{module} {name}"]))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Named) or not isinstance(arguments, tuple):
            raise Refused("a call of what is no function")
        self.push(_made(function.name, arguments, self._budget))

    def build(self) -> None:
        state, thing = self.pop(), self._stack[-1]
        if isinstance(thing, _Dtype | _Array | _Csr):
            thing.build(state, self._budget)
        elif not (isinstance(thing, dict) and not state):  # the state of an OrderedDict has no attributes
            raise Refused("a state for what has none")

    def persistent(self) -> None:
        match self.pop():
            case ("storage", _Named(name=kind), str(key), str(), int(length), *_) if kind.endswith("Storage"):
                dtype = np.dtype(_TORCH_DTYPES[kind.removesuffix("Storage")])
                self.push(self._storages.setdefault(key, _Storage(dtype, length)))
            case _:
                raise Refused("a reference to what is no storage of numbers")


def _integer(reader: _Reader) -> int | bool:
    text = reader.line()
    return text == "01" if text in ("00", "01") else int(text)


def _quoted(reader: _Reader) -> str:
    text = reader.line()
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        raise Refused("a text without quotes")
    return text[1:-1].encode("latin1").decode("unicode_escape")


def _stack_name(reader: _Reader) -> None:
    name, module = reader.pop(), reader.pop()
    reader.name(module, name)


def _text(reader: _Reader, length: int) -> None:
    reader.push(reader.take(length).decode("utf-8", "surrogatepass"))


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


_RUN: Mapping[bytes, Callable[[_Reader], Any]] = {
    b"\x80": lambda r: r.take(1),  # PROTO
    b"\x95": lambda r: r.take(8),  # FRAME: only a hint for buffering
    b"(": lambda r: r.push(_MARK),
    b"0": lambda r: r._stack.pop(),
    b"1": lambda r: r.pop_to_mark(),
    b"N": lambda r: r.push(None),
    b"\x88": lambda r: r.push(True),
    b"\x89": lambda r: r.push(False),
    b"I": lambda r: r.push(_integer(r)),
    b"L": lambda r: r.push(int(r.line().rstrip("L"))),
    b"J": lambda r: r.push(r.number("<i")),
    b"K": lambda r: r.push(r.take(1)[0]),
    b"M": lambda r: r.push(r.number("<H")),
    b"\x8a": lambda r: r.push(int.from_bytes(r.take(r.take(1)[0]), "little", signed=True)),
    b"F": lambda r: r.push(float(r.line())),
    b"G": lambda r: r.push(r.number(">d")),
    b"S": lambda r: r.push(_quoted(r)),
    b"T": lambda r: r.push(r.take(r.number("<i")).decode("latin1")),
    b"U": lambda r: r.push(r.take(r.take(1)[0]).decode("latin1")),
    b"V": lambda r: r.push(r.line().encode("latin1").decode("raw_unicode_escape")),
    b"X": lambda r: _text(r, r.number("<I")),
    b"\x8c": lambda r: _text(r, r.take(1)[0]),
    b"\x8d": lambda r: _text(r, r.number("<Q")),
    b"B": lambda r: r.push(r.take(r.number("<I"))),
    b"C": lambda r: r.push(r.take(r.take(1)[0])),
    b"\x8e": lambda r: r.push(r.take(r.number("<Q"))),
    b"\x96": lambda r: r.push(r.take(r.number("<Q"))),
    b"]": lambda r: r.push([]),
    b"a": lambda r: r.append([r.pop()]),
    b"e": lambda r: r.append(r.pop_to_mark()),
    b"l": lambda r: r.push(r.pop_to_mark()),
    b")": lambda r: r.push(()),
    b"t": lambda r: r.push(tuple(r.pop_to_mark())),
    b"\x85": lambda r: r.pop_tuple(1),
    b"\x86": lambda r: r.pop_tuple(2),
    b"\x87": lambda r: r.pop_tuple(3),
    b"}": lambda r: r.push({}),
    b"d": lambda r: r.push(_pairs(r.pop_to_mark())),
    b"s": lambda r: r.set_items([r.pop(), r.pop()][::-1]),
    b"u": lambda r: r.set_items(r.pop_to_mark()),
    b"p": lambda r: r.put(int(r.line())),
    b"q": lambda r: r.put(r.take(1)[0]),
    b"r": lambda r: r.put(r.number("<I")),
    b"\x94": lambda r: r.put(len(r._memo)),
    b"g": lambda r: r.get(int(r.line())),
    b"h": lambda r: r.get(r.take(1)[0]),
    b"j": lambda r: r.get(r.number("<I")),
    b"c": lambda r: r.name(r.line(), r.line()),
    b"\x93": _stack_name,
    b"R": lambda r: r.reduce(),
    b"\x81": lambda r: r.reduce(),  # NEWOBJ: makes an object from a class of the table and its arguments
    b"b": lambda r: r.build(),
    b"Q": lambda r: r.persistent(),
}
_OPCODES = {code[0]: run for code, run in _RUN.items()}
