"""Compiles loops with numba and keeps their machine code on disk. A new process then loads the code instead of compiling for seconds.

An entry is a file. Its name is a digest of everything that decides its content: all sources of the packages with loops, the function's own file and bytecode,
argument types, processor, and the versions of Python, numba and NumPy. The folder of the checkout does not change the digest. So equal checkouts, wheels,
uploaded folders and Slurm jobs share entries. numba's own cache is found by path, ignores changes in callees, and has an index that processes overwrite for
each other (docs/decisions/0018-the-cache-of-compiled-loops.md).

Entries are pickles of machine code, the only files that Graphmill unpickles. So a folder of entries is used only if no other user can write to it. An entry is
used only if its bytes have the checksum that is stored at its beginning.

Two entries must not define different functions under the same name, because the linker would use the first function for both. numba names a function by
its position in the source and by a number that each process counts up. numba's own `sort` and `argsort` have the same position. Therefore each process
starts its count at a random number.
"""

import contextlib
import hashlib
import itertools
import logging
import os
import pickle
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import event, serialize
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import _Cache as NumbaCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys

from graphmill.core.errors import ConfigError, DeadlineError
from graphmill.core.files.file_lock import locked
from graphmill.core.files.private import check_private

Function = TypeVar("Function", bound=Callable[..., Any])

_NUMBA_CONFIG: Any = numba.config
_LOGGER = logging.getLogger(__name__)
_VERSIONS = (sys.implementation.cache_tag, numba.__version__, np.__version__)
_PACKAGES = ("core", "samplers", "storage")  # their compiled loops call each other
COMPILE_S = 1800.0  # longest time to compile; all loops take 30 s of a usual core, and hosts may be busy
# Longest wait for another process that compiles: a process that ends lets go at once. Then there is as much time to compile.
_TURN_S = COMPILE_S / 2
# The loops of one version of Graphmill take about 20 MB. Above the bound, the entries that were loaded longest ago are removed.
_MAX_BYTES = 256 * 2**20
_TOUCH_S = 86400.0


def _count_from_a_random_number() -> None:
    start = int.from_bytes(os.urandom(6), "little") << 16
    FunctionIdentity._unique_ids = itertools.count(start)


_count_from_a_random_number()
os.register_at_fork(after_in_child=_count_from_a_random_number)


class _CompilerLock(event.Listener):
    """Counts the threads that hold numba's compiler lock or wait for it. numba takes this lock to load or compile a loop."""

    def __init__(self) -> None:
        self._lock, self.num_threads = threading.Lock(), 0

    def on_start(self, _: Any) -> None:
        with self._lock:
            self.num_threads += 1

    def on_end(self, _: Any) -> None:
        with self._lock:
            self.num_threads -= 1


_LOCK = _CompilerLock()
event.register("numba:compiler_lock", _LOCK)


def is_compiling() -> bool:
    """Returns whether this process compiles a loop, or waits for another process that compiles the loop."""
    return _LOCK.num_threads > 0


_compiled: list[str] = []


def compiled_loops() -> tuple[str, ...]:
    """Returns the names of the loops that this process has compiled, and not loaded, so far."""
    return tuple(_compiled)


_NOT_BEGUN: list[ExitStack] = []  # the running block of `one_compiles_for_all`, if it does not hold the lock yet


@contextmanager
def one_compiles_for_all() -> Iterator[None]:
    """During the block, only one process of this host compiles missing loops; other processes wait and then load the compiled loops."""
    with ExitStack() as turn:
        _NOT_BEGUN.append(turn)
        try:
            yield
        finally:
            _NOT_BEGUN.clear()


def compiled(function: Function) -> Function:
    """Returns `function` as machine code that releases the GIL. It is compiled once for each combination of sources, argument types and processor.

    A function that is not defined in a file, as in a notebook, is compiled by each process. If no folder is safe, each process warns once and compiles all
    functions.
    """
    dispatcher: Any = numba.njit(nogil=True)(function)
    folder = cache_folder(_NUMBA_CONFIG.CACHE_DIR)
    if folder is not None and os.path.isfile(function.__code__.co_filename):
        dispatcher._cache = _Cache(function, folder)
    return dispatcher


def kept_loops() -> set[str] | None:
    """Returns the names of the entries that are kept on disk. None if no folder can keep entries."""
    folder = cache_folder(_NUMBA_CONFIG.CACHE_DIR)
    return None if folder is None else {path.name for path in folder.glob("*.nbc")}


@cache
def cache_folder(cache_dir: str) -> Path | None:
    """Returns the folder of machine code. It lies below numba's CACHE_DIR if that is set, else in the user's cache. If the user's cache is not
    writable or not private, a folder in this package is used. Returns None, and warns, if no folder is safe."""
    beside = Path(__file__).resolve().parent / "__pycache__" / "compiled"
    folders = [Path(cache_dir) / "graphmill-loops"] if cache_dir else [*_below_home(), beside]
    unsafe = []
    for folder in folders:
        if (reason := _why_unsafe(folder)) is None:
            return folder.resolve()
        unsafe.append(reason)
    _LOGGER.warning("compiled loops are not kept on disk, each process compiles them: %s", "; ".join(unsafe))
    return None


def _below_home() -> list[Path]:
    with suppress(RuntimeError):  # a user without a home
        return [Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphmill" / "loops"]
    return []


def _why_unsafe(folder: Path) -> str | None:
    """Makes the folder if it does not exist. Returns the reason if another user could write to it or if it cannot be made; None if the folder is safe."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return f"{folder} is a link or a file"
        check_private(folder)
        if not os.access(folder, os.W_OK):
            return f"{folder} cannot be written"
    except ConfigError as error:
        return str(error)
    except OSError as error:
        return f"{folder} cannot be used ({error.strerror or error})"
    return None


class _Cache(NumbaCache):
    """The entries of one function. For new argument types numba calls `load_overload` before it compiles, and `save_overload` after that."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._function, self._folder = function, folder
        self.turn = folder / "turn.lock"

    cache_path = property(lambda self: str(self._folder))

    def enable(self) -> None:
        pass

    def disable(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Returns the stored machine code for these argument types, even if another process stored it while this process waited for the lock.

        Code needs only numba's runtime. What compiles code (`refresh`: implementations for all types, SciPy) costs 0.4 CPU seconds; the compiler calls it itself.
        """
        rtsys.initialize(target_context)
        key = self._key(sig, target_context.codegen())
        overload = self._load(key, target_context)
        if overload is None and _NOT_BEGUN:
            with suppress(OSError, DeadlineError):  # no locks, or a timeout: this process compiles the loop itself
                _NOT_BEGUN.pop().enter_context(locked(self.turn, _TURN_S))
            overload = self._load(key, target_context)
        return overload

    def save_overload(self, sig: Any, data: Any) -> None:
        _compiled.append(self._name)
        if data.lifted or data.library.has_dynamic_globals:  # such code holds addresses of this process
            return
        key = self._key(sig, data.codegen)
        with suppress(OSError):  # a full or read-only disk: the compiled loop runs all the same
            stored = serialize.dumps((key, data._reduce()))
            _write(self._path(key), hashlib.sha256(stored).digest() + stored)
            _remove_oldest(self._folder)

    def _load(self, key: tuple[Any, ...], target_context: Any) -> Any:
        path = self._path(key)
        try:
            stored = path.read_bytes()
            if hashlib.sha256(stored[32:]).digest() != stored[:32]:
                return None
            stored_key, data = pickle.loads(stored[32:])  # noqa: S301, the folder is private
            if time.time() - path.stat().st_mtime > _TOUCH_S:
                os.utime(path)
        except (
            OSError,
            AttributeError,
            ImportError,
        ):  # the entry is missing or unreadable, or a class of its arguments has moved: compile again
            return None
        return CompileResult._rebuild(target_context, *data) if stored_key == key else None

    def _key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        code, cells = self._function.__code__, self._function.__closure__ or ()
        own = hashlib.sha256(code.co_code + serialize.dumps(tuple(cell.cell_contents for cell in cells))).hexdigest()
        return (_VERSIONS, self._name, _sources(code.co_filename), own, sig, codegen.magic_tuple())

    @property
    def _name(self) -> str:
        return f"{self._function.__module__}.{self._function.__qualname__}"

    def _path(self, key: tuple[Any, ...]) -> Path:
        name = re.sub(r"[^\w.]", "", self._name)[-100:]
        return self._folder / f"{name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.nbc"


def _write(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix="tmp-", suffix=".nbc")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _remove_oldest(folder: Path) -> None:
    """If the entries exceed the bound, removes those that were loaded longest ago until three quarters of the bound are left."""
    entries = []
    for path in folder.glob("*.nbc"):
        with suppress(OSError):  # removed by another process
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    if total <= _MAX_BYTES:
        return
    for _, size, path in sorted(entries):
        with suppress(OSError):
            path.unlink()
        total -= size
        if total <= _MAX_BYTES * 3 // 4:
            return


@cache
def _sources(file: str) -> str:
    """Returns a digest of the contents of a loop's file and of all sources of the packages with compiled loops. The folder of the checkout does not change it."""
    return hashlib.sha256(_packages_digest() + Path(file).read_bytes()).hexdigest()


@cache
def _packages_digest() -> bytes:
    digest, root = hashlib.sha256(), Path(__file__).resolve().parents[1]
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode())
            digest.update(path.read_bytes())
    return digest.digest()
