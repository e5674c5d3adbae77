"""Tests the one retry rule for remote filesystems: temporary errors are repeated, valid answers are not, and a lost answer is no error."""

import pickle
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from graphmill.core.daemon_threads import begin
from graphmill.core.errors import DeadlineError, FormatError
from graphmill.storage.filesystem import retry
from graphmill.storage.filesystem.retry import RepeatingFileSystem, retried
from graphmill.storage.filesystem.urls import split_url


class Failing(MemoryFileSystem):
    """Each call fails a few times with a temporary error: before or after its work."""

    store: dict[str, Any] = {}  # noqa: RUF012  its own, not the store of memory://
    cachable = False

    def __init__(self, failures: int = 1, after: bool = False) -> None:
        super().__init__()
        self.failures, self.after, self.calls = failures, after, 0

    def _faulty(self, call: Callable[..., Any], *words: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls > self.failures:
            return call(*words, **options)
        if self.after:
            call(*words, **options)
        raise OSError("503 slow down")

    def cat_file(self, *words: Any, **options: Any) -> Any:
        return self._faulty(super().cat_file, *words, **options)

    def info(self, *words: Any, **options: Any) -> Any:
        return self._faulty(super().info, *words, **options)

    def pipe_file(self, *words: Any, **options: Any) -> Any:
        return self._faulty(super().pipe_file, *words, **options)

    def rm_file(self, *words: Any) -> Any:
        return self._faulty(super().rm_file, *words)


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.01)
    Failing.store.clear()
    Failing.pseudo_dirs[:] = [""]


def test_a_temporary_error_is_repeated():
    inner = Failing(failures=0)
    filesystem = RepeatingFileSystem(inner)
    filesystem.pipe_file("/a", b"content")
    for call, expected in (("cat_file", b"content"), ("isfile", True), ("isdir", False)):
        inner.calls, inner.failures = 0, 2
        assert getattr(filesystem, call)("/a") == expected
        assert inner.calls == 3
    inner.calls = inner.failures = 0
    with pytest.raises(FileNotFoundError):
        filesystem.cat_file("/missing")
    assert inner.calls == 1  # a valid answer


def test_an_error_of_a_look_is_not_the_answer_no(monkeypatch):
    """fsspec's own `isfile` takes every error for "no". A graph that exists would then be overwritten."""
    monkeypatch.setattr(retry, "DEADLINE_S", 0.05)
    monkeypatch.setattr(retry, "_TRY_S", 0.05)
    inner = Failing(failures=10**6)
    assert not MemoryFileSystem.isfile(inner, "/a")
    with pytest.raises(OSError, match="503 slow down"):
        RepeatingFileSystem(inner)._type("/a")


def test_a_lost_answer_to_a_new_file_is_its_own_and_to_a_removal_is_done():
    inner = Failing(after=True)
    filesystem = RepeatingFileSystem(inner)
    filesystem.pipe_file("/a", b"mine", mode="create")
    inner.calls, inner.failures = 0, 0
    with pytest.raises(FileExistsError):
        filesystem.pipe_file("/a", b"mine", mode="create")  # no answer was lost: this is another writer
    inner.failures = 1
    with pytest.raises(FileExistsError):
        filesystem.pipe_file("/a", b"other", mode="create")
    inner.calls = 0
    filesystem.rm_file("/a")
    assert inner.calls == 2
    inner.failures = 0
    with pytest.raises(FileNotFoundError):
        filesystem.rm_file("/a")


def test_an_error_of_a_long_request_is_repeated_up_to_the_deadline_only(monkeypatch):
    """A refused connection must not be tried for as long as a whole file may take."""
    monkeypatch.setattr(retry, "DEADLINE_S", 0.05)
    inner = Failing(failures=10**6)
    filesystem = RepeatingFileSystem(inner)
    for call in (partial(filesystem.cat_file, "/a"), partial(filesystem.pipe_file, "/a", b"1")):
        with pytest.raises(OSError, match="503 slow down"):
            begin(call, "call").result(10.0)


def test_a_long_copy_is_repeated_after_an_error_at_its_end(monkeypatch):
    monkeypatch.setattr(retry, "DEADLINE_S", 0.1)
    inner, failures = Failing(), iter([OSError("503 slow down")])

    def slow(path: str) -> bytes:
        time.sleep(0.2)  # longer than the deadline, which counts from the first error
        if (error := next(failures, None)) is not None:
            raise error
        return b"content"

    monkeypatch.setattr(inner, "cat_file", slow)
    assert RepeatingFileSystem(inner).cat_file("/a") == b"content"


def test_a_long_listing_or_removal_is_not_begun_again(monkeypatch):
    monkeypatch.setattr(retry, "DEADLINE_S", 0.1)
    monkeypatch.setattr(retry, "_TRY_S", 0.05)
    calls: list[str] = []
    inner = Failing(failures=0)
    filesystem = RepeatingFileSystem(inner)

    def slowly(name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> list[str]:
            calls.append(name)
            time.sleep(0.3)
            return []

        return call

    names = ["find", "ls", "glob", "walk", "rm", "rm_file"]
    for name in names:
        monkeypatch.setattr(inner, name, slowly(name))
        getattr(filesystem, name)("/a")
    assert calls == names


def test_a_removal_without_an_answer_is_not_sent_again(monkeypatch):
    monkeypatch.setattr(retry, "DEADLINE_S", 0.05)
    monkeypatch.setattr(retry, "_CONTENT_S", 0.1)
    calls: list[None] = []
    inner = Failing(failures=0)
    monkeypatch.setattr(inner, "rm", lambda path: (calls.append(None), time.sleep(1.0)))
    with pytest.raises(TimeoutError, match="no answer from the store"):
        RepeatingFileSystem(inner).rm("/a")
    assert len(calls) == 1


def test_nested_calls_keep_the_outer_deadline():
    filesystem = RepeatingFileSystem(Failing(failures=10**6))
    with pytest.raises(DeadlineError, match=r"s3://bucket/a: cannot read it within 0\.3 s: 503 slow down"):
        retried(lambda: filesystem.cat_file("/a"), "s3://bucket/a", "read it", 0.3, 0.3)
    with pytest.raises(FormatError, match="no such right"):
        retried(_refuse, "s3://bucket/a", "read it", 0.3)


def _refuse() -> None:
    raise PermissionError("no such right")


def test_remote_filesystems_repeat_and_local_ones_do_not(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    remote, path = split_url(f"simplecache::file://{tmp_path}/a")
    assert isinstance(remote, RepeatingFileSystem)
    assert remote.cat_file(path) == b"1"
    assert pickle.loads(pickle.dumps(remote)).cat_file(path) == b"1"  # noqa: S301  our own bytes
    with remote.open(path, "rb") as stream:
        assert stream.read() == b"1"
    assert isinstance(split_url(str(tmp_path))[0], LocalFileSystem)
    assert isinstance(split_url("memory://a")[0], MemoryFileSystem)
    assert RepeatingFileSystem(DirFileSystem(str(tmp_path), LocalFileSystem())).exists("a")
