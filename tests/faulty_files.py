"""Makes one call on files below a folder fail. Call number k may be an open, read, write, sync, rename, link, listing, removal or map.

Python's calls of `os`, of `open` and of open files are counted. Arrow, NumPy and safetensors normally read and write
without Python; here they use `open`, so that their calls count too. Files outside the folder, such as imported modules,
are not affected.
"""

import builtins
import errno
import io
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import safetensors.torch

import graphmill.cluster.checkpoints.checkpoint

_OF_OS = ("open", "fsync", "rename", "replace", "link", "mkdir", "unlink", "remove", "rmdir", "listdir", "scandir")
_OF_FILES = frozenset(("read", "readinto", "readline", "write", "flush", "truncate"))


class Faults:
    """Counts the calls. Call number `fails_at` raises EIO or ENOSPC; the first call has number 0."""

    def __init__(self, folder: Path, fails_at: int = -1) -> None:
        self.count, self.failed = 0, ""
        self._folder, self._fails_at, self._lock = str(folder), fails_at, threading.Lock()

    def call(self, name: str, path: Any, dir_fd: int | None = None) -> None:
        where = self._absolute(path, dir_fd)
        if where != self._folder and not where.startswith(f"{self._folder}/"):
            return
        with self._lock:
            number, self.count = self.count, self.count + 1
        if number == self._fails_at:
            self.failed = f"{name} {where.removeprefix(self._folder)}"
            kind = errno.EIO if number % 2 else errno.ENOSPC
            raise OSError(kind, os.strerror(kind), where)

    @staticmethod
    def _absolute(path: Any, dir_fd: int | None) -> str:
        if isinstance(path, int):
            try:
                return os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return ""
        base = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        return os.path.normpath(os.path.join(base, os.fsdecode(path)))


class _File:
    """A file whose reads and writes are counted."""

    def __init__(self, file: Any, faults: Faults, path: Any) -> None:
        self._file, self._faults, self._path = file, faults, path

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._file, name)
        if name not in _OF_FILES:
            return value

        def counted(*args: Any) -> Any:
            self._faults.call(name, self._path)
            return value(*args)

        return counted

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


@contextmanager
def faulty_files(folder: Path, fails_at: int = -1) -> Iterator[Faults]:
    """Inside the `with` block, call number `fails_at` on files below `folder` fails. With -1 no call fails, and the calls are only counted."""
    faults = Faults(folder.resolve(), fails_at)
    real_open, real_map, real_os = builtins.open, mmap.mmap, {name: getattr(os, name) for name in _OF_OS}

    def open_counted(path: Any, *args: Any, **options: Any) -> Any:
        if isinstance(path, int):
            return real_open(path, *args, **options)
        faults.call("open", path)
        return _File(real_open(path, *args, **options), faults, path)

    def counted(name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            faults.call(name, args[0] if args else ".", options.get("dir_fd"))
            return real_os[name](*args, **options)

        return call

    def mapped(descriptor: int, *args: Any, **options: Any) -> Any:
        faults.call("mmap", descriptor)
        return real_map(descriptor, *args, **options)

    def read_whole(path: str, *_: Any) -> Any:
        with open_counted(path, "rb") as stream:
            return pa.BufferReader(stream.read())

    def save_tensors(tensors: Any, path: Any) -> None:
        with open_counted(path, "wb") as stream:
            stream.write(safetensors.torch.save(tensors))

    def load_tensors(path: Any) -> Any:
        with open_counted(path, "rb") as stream:
            return safetensors.torch.load(stream.read())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pa, "OSFile", lambda path, mode: pa.PythonFile(open_counted(path, mode), mode))
        patch.setattr(pa, "memory_map", read_whole)
        patch.setattr(graphmill.cluster.checkpoints.checkpoint, "save_file", save_tensors)
        patch.setattr(graphmill.cluster.checkpoints.checkpoint, "load_file", load_tensors)
        patch.setattr(mmap, "mmap", mapped)
        for module in (builtins, io):
            patch.setattr(module, "open", open_counted)
        for name in _OF_OS:
            patch.setattr(os, name, counted(name))
        yield faults
