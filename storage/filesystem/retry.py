"""Repeats requests to a filesystem that may be slow or unreachable for a while. After a deadline, raises a one-line error.

This is the one rule for all remote filesystems: `graphmill.storage.filesystem.urls.split_url` returns them as `RepeatingFileSystem`. A caller with its own deadline
and words uses `retried`. Of nested calls only the outermost repeats, so deadlines do not multiply.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import fsspec

from graphmill.core.daemon_threads import begin
from graphmill.core.errors import DeadlineError, FormatError, GraphmillError
from graphmill.storage.filesystem.filesystem_errors import may_pass, one_line, one_line_errors

Result = TypeVar("Result")

DEADLINE_S = 60.0
_TRY_S = 20.0
# longest time of one whole file, listing or removal; the client itself gives up a silent connection earlier
_CONTENT_S = 1800.0
# these errors are valid answers of a store, so they are not retried
_ANSWERS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_LOOKS_AT_BUCKET = 4
_nested = threading.local()


def retried(
    action: Callable[[], Result], where: str, what: str, deadline_s: float = DEADLINE_S, try_s: float = _TRY_S
) -> Result:
    """Returns the result of `action`. After a temporary error of the filesystem, calls `action` again until the deadline.

    `where` and `what` name the action in errors: "s3://bucket/run: cannot write config.json". `try_s`: longest wait for one call. A call without an answer
    is abandoned, so `action` may run twice at the same time. FileNotFoundError and FileExistsError are raised unchanged. Raises DeadlineError, with the last
    error, at the deadline, and FormatError for an error that would occur again.
    """
    try:
        return _repeated(action, where, what, deadline_s, try_s)
    except _Refused as refused:
        error = refused.__cause__
        assert error is not None
        if refused.is_late or may_pass(error):
            last = "no answer" if refused.is_late else one_line(error)
            raise DeadlineError(f"{where}: cannot {what} within {deadline_s:g} s: {last}") from error
        if isinstance(error, _ANSWERS):
            raise error from None
        # for example missing permissions or credentials, or a full disk
        raise FormatError(str(refused)) from error


def _repeated(
    action: Callable[[], Result], where: str, what: str, deadline_s: float, try_s: float, *, of_errors: bool = False
) -> Result:
    """Returns the result of `action`. Raises _Refused for an error that would occur again, and at the deadline.

    `of_errors`: the deadline counts from the first temporary error, and bounds no single call. A call without an answer is an error since its beginning.
    """
    if getattr(_nested, "on", False):  # the outer call repeats the whole action
        return action()
    until, pause = None if of_errors else time.monotonic() + deadline_s, _FIRST_PAUSE_S
    while True:
        began, attempt = time.monotonic(), begin(partial(_once, action), "request")
        try:
            with one_line_errors(where, what, _Refused):
                longest = try_s if of_errors or until is None else min(until - began, try_s)
                return attempt.result(max(0.0, longest))
        except _Refused as refused:
            refused.is_late = not attempt.done()
            error, now = refused.__cause__, time.monotonic()
            if until is None:
                until = (began if refused.is_late else now) + deadline_s
            left = until - now
            assert error is not None
            if left <= 0 or not (refused.is_late or may_pass(error)):
                raise
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _once(action: Callable[[], Result]) -> Result:
    _nested.on = True  # of this attempt's own thread
    return action()


class _Refused(GraphmillError):
    """Carries an error of a filesystem as its cause."""

    is_late = False  # the call has not answered yet


class RepeatingFileSystem:
    """A remote filesystem that repeats each request after a temporary error, up to a deadline. All other attributes are those of the filesystem.

    The deadline counts from a call's first temporary error, so that a long copy, listing or removal that goes well is not ended by it.
    A request whose answer was lost is sent again, so it may have been done before: then an existing file with the same content is this writer's own, and a missing
    file is removed. Raises the errors of the filesystem; TimeoutError if it does not answer.
    """

    def __init__(self, filesystem: fsspec.AbstractFileSystem) -> None:
        self._filesystem = filesystem

    def __reduce__(self) -> tuple[Any, ...]:
        return RepeatingFileSystem, (self._filesystem,)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(vars(self)["_filesystem"], name)
        if name in _CONTENTS:
            return partial(self._request, attribute, _CONTENT_S)
        return partial(self._request, attribute, _TRY_S) if name in _LOOKS else attribute

    def _request(self, call: Callable[..., Any], try_s: float, *words: Any, **options: Any) -> Any:
        return self._repeat(lambda: call(*words, **options), try_s)

    def _repeat(self, action: Callable[[], Result], try_s: float = _TRY_S) -> Result:
        try:
            return _repeated(action, "", "", DEADLINE_S, try_s, of_errors=True)
        except _Refused as refused:
            error = refused.__cause__
            assert error is not None
            raise (TimeoutError("no answer from the store") if refused.is_late else error) from None

    # fsspec's `isfile` and `isdir` take every error for "no", and s3fs's `exists` does so for a bucket.

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def exists(self, path: str, **options: Any) -> bool:
        for further in reversed(range(_LOOKS_AT_BUCKET if "/" not in path else 1)):
            if self._repeat(lambda: self._filesystem.exists(path, **options)):
                return True
            if further:
                time.sleep(_FIRST_PAUSE_S)
        return False

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        calls: list[None] = []

        def put() -> None:
            calls.append(None)
            try:
                self._filesystem.pipe_file(path, value, **options)
            except FileExistsError:
                if len(calls) == 1 or self._filesystem.cat_file(path) != value:
                    raise

        self._repeat(put, _CONTENT_S)

    def rm(self, path: Any, **options: Any) -> None:
        self._remove(partial(self._filesystem.rm, path, **options))

    def rm_file(self, path: str) -> None:
        self._remove(partial(self._filesystem.rm_file, path))

    def _remove(self, remove: Callable[[], None]) -> None:
        calls: list[None] = []

        def call() -> None:
            calls.append(None)
            try:
                remove()
            except FileNotFoundError:
                if len(calls) == 1:
                    raise

        # A removal without an answer is not repeated: the second one could remove what was written anew.
        self._repeat(call, _CONTENT_S)

    def walk(self, path: str, **options: Any) -> Any:
        return iter(self._repeat(lambda: list(self._filesystem.walk(path, **options)), _CONTENT_S))

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """Opens a file. Its reads are repeated too; its writes are not, because they go on from the bytes before."""
        file = self._repeat(lambda: self._filesystem.open(path, mode, **options))
        cache: Any = getattr(file, "cache", None)
        if hasattr(cache, "fetcher"):
            cache.fetcher = partial(self._request, cache.fetcher, _CONTENT_S)
        return file


# requests whose length depends on the content: bytes or names
_CONTENTS = ("cat_file", "cat", "cat_ranges", "get_file", "get", "put_file", "ls", "find", "glob")
_LOOKS = ("info", "size", "makedirs", "created", "modified", "head")
