"""Compiles the loops, and keeps the machine code on disk so that a fresh process loads it instead of compiling for seconds.

numba's own cache keeps an index that processes overwrite for each other, and it ignores changes in the functions that a function calls. Here
each entry is a file of its own, named by everything that decides its content, and a change in any source of a package with loops invalidates it.
The entries are pickles of machine code, the only files that we unpickle. So a folder of entries is used only if nobody but its owner can
write there (docs/decisions/0018-the-cache-of-compiled-loops.md).

Two entries must not define two functions under one name either: the linker takes the first for both. numba names a function after its
place in the source and a number that it counts up in each process, and its own `sort` and `argsort` lie at one place. So each process
counts from a number of its own.
"""

import hashlib
import itertools
import logging
import os
import pickle
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache, IndexDataCacheFile

from graphmill.core.errors import ConfigError, DeadlineError
from graphmill.core.files.file_lock import locked
from graphmill.core.files.private import check_private

Function = TypeVar("Function", bound=Callable[..., Any])

_NUMBA_CONFIG: Any = numba.config
_LOGGER = logging.getLogger(__name__)
_WARNINGS = itertools.count()
_PACKAGES = ("core", "samplers", "storage")  # whose compiled loops call each other
# Below --servers.start_timeout_s; a server's loops take 14 s of a usual core.
_TURN_S = 100.0


def _count_from_a_random_number() -> None:
    start = int.from_bytes(os.urandom(6), "little") << 16
    FunctionIdentity._unique_ids = itertools.count(start)


_count_from_a_random_number()
os.register_at_fork(after_in_child=_count_from_a_random_number)


_NOT_BEGUN: list[ExitStack] = []  # the turn under way, until a loop is missing


@contextmanager
def one_compiles_for_all() -> Iterator[None]:
    """Of this host's processes that are in here at once, one compiles the loops that no file has; the others wait, and load them."""
    with ExitStack() as turn:
        _NOT_BEGUN.append(turn)
        try:
            yield
        finally:
            _NOT_BEGUN.clear()


def compiled(function: Function) -> Function:
    """`function` as machine code that releases the GIL, compiled once per combination of argument types and machine.

    Where no folder is safe, it is compiled once per process, with one warning.
    """
    dispatcher: Any = numba.njit(nogil=True)(function)
    folder = _folder(Path(function.__code__.co_filename).resolve().parent, _NUMBA_CONFIG.CACHE_DIR)
    if folder is not None:
        dispatcher._cache = _Cache(function, folder)
    return dispatcher


@cache
def _folder(sources: Path, cache_dir: str) -> Path | None:
    """Where the code of this folder's functions lies: below numba's CACHE_DIR if it is set, else beside the sources or, where that
    cannot be written or is not its owner's alone, in the user's own cache. None, and a warning, where no folder is safe."""
    name = f"graphmill-{hashlib.sha256(str(sources).encode()).hexdigest()[:12]}"
    folders = [Path(cache_dir) / name] if cache_dir else [sources / "__pycache__" / "compiled", *_below_home(name)]
    unsafe = []
    for folder in folders:
        if (reason := _why_unsafe(folder)) is None:
            return folder.resolve()
        unsafe.append(reason)
    if not next(_WARNINGS):  # one line for all folders of sources
        _LOGGER.warning("compiled loops are not kept on disk, each process compiles them: %s", "; ".join(unsafe))
    return None


def _below_home(name: str) -> list[Path]:
    with suppress(RuntimeError):  # a user without a home
        return [Path.home() / ".cache" / name]
    return []


def _why_unsafe(folder: Path) -> str | None:
    """Makes the folder if it is not there. Returns why another user could write there, or why it cannot be made; None if it is safe."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return f"{folder} is a link or a file"
        check_private(folder)
    except ConfigError as error:
        return str(error)
    except OSError as error:
        return f"{folder} cannot be used ({error.strerror or error})"
    return None


class _EntryFiles(IndexDataCacheFile):
    """One file per entry, and no index."""

    def __init__(self, cache_path: str, filename_base: str, source_stamp: str) -> None:
        super().__init__(cache_path, filename_base, source_stamp)
        self._base, self._folder = filename_base, Path(cache_path)
        # With any line number: a function moves with every edit above it.
        self._any_line = re.sub(r"-\d+(\.py\w+)$", r"-*\1", filename_base)

    def flush(self) -> None:
        self._remove(f"{self._any_line}-*.nbc")

    def save(self, key: Any, data: Any) -> None:
        with suppress(OSError):  # a full or foreign disk: the loop is compiled, and runs
            self._save_data(self._name(key), (key, data))
        # Entries of older sources; a process that still runs these compiles again.
        self._remove(f"{self._any_line}-*.nbc", keep=f"-{self._source_stamp}-")
        self._remove(f"{self._any_line}.*.nbc")
        self._remove(f"{self._any_line}.nbi")

    def load(self, key: Any) -> Any:
        try:
            stored_key, data = self._load_data(self._name(key))
        except (OSError, EOFError, pickle.UnpicklingError):  # absent, not ours to read, or cut short: compile
            return None
        return data if stored_key == key else None

    def _name(self, key: Any) -> str:
        digest = hashlib.sha256(repr((self._version, key)).encode()).hexdigest()
        return f"{self._base}-{self._source_stamp}-{digest[:32]}.nbc"

    def _remove(self, pattern: str, keep: str | None = None) -> None:
        for path in self._folder.glob(pattern):
            if keep is None or keep not in path.name:
                with suppress(OSError):  # removed by another process, or not ours to remove
                    path.unlink()


class _Cache(FunctionCache):
    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        super().__init__(function)
        self._cache_file = _EntryFiles(str(folder), self._impl.filename_base, _stamp(function))
        self.turn = folder / "turn.lock"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As numba's; what another process made while this one waited for its turn is found, too."""
        overload = super().load_overload(sig, target_context)
        if overload is None and _NOT_BEGUN:
            with suppress(OSError, DeadlineError):  # no locks there, or no end: this process compiles by itself
                _NOT_BEGUN.pop().enter_context(locked(self.turn, _TURN_S))
            overload = super().load_overload(sig, target_context)
        return overload


def _stamp(function: Callable[..., Any]) -> str:
    """12 hexadecimal digits that change with the function's file and with any source of the packages with compiled loops."""
    own = Path(function.__code__.co_filename).read_bytes()
    return hashlib.sha256(_packages_digest() + own).hexdigest()[:12]


@cache
def _packages_digest() -> bytes:
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((Path(__file__).resolve().parents[1] / package).rglob("*.py")):
            digest.update(f"{package}/{path.name}\0".encode())
            digest.update(path.read_bytes())
    return digest.digest()
