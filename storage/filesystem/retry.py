"""Requests to a filesystem that may be slow or unreachable for a while: repeated until a deadline, then refused in one line."""

import time
from collections.abc import Callable
from typing import TypeVar

from graphmill.core.daemon_threads import begin
from graphmill.core.errors import DeadlineError, FormatError, GraphmillError
from graphmill.storage.filesystem.filesystem_errors import may_pass, one_line, one_line_errors

Result = TypeVar("Result")

DEADLINE_S = 60.0
_TRY_S = 20.0
_ANSWERS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)  # valid answers of a store
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


def retried(
    action: Callable[[], Result], where: str, what: str, deadline_s: float = DEADLINE_S, try_s: float = _TRY_S
) -> Result:
    """The result of `action`, which is called again after a passing error of its filesystem, until the deadline.

    `where` and `what` name the action in errors: "s3://bucket/run: cannot write config.json". `try_s`: longest wait for one call; a call without an answer is
    abandoned, so `action` may run twice at once. FileNotFoundError and FileExistsError are raised unchanged. Raises DeadlineError with the last error at the
    deadline, FormatError for errors that another call would not mend.
    """
    until, pause = time.monotonic() + deadline_s, _FIRST_PAUSE_S
    while True:
        attempt = begin(action, "request")
        try:
            with one_line_errors(where, what, _Refused):
                return attempt.result(max(0.0, min(until - time.monotonic(), try_s)))
        except _Refused as refused:
            error = refused.__cause__
            assert error is not None
            if attempt.done() and not may_pass(error):
                if isinstance(error, _ANSWERS):
                    raise error from None
                raise FormatError(str(refused)) from error  # permissions, credentials, a full disk
            last = one_line(error) if attempt.done() else "no answer"
        left = until - time.monotonic()
        if left <= 0:
            raise DeadlineError(f"{where}: cannot {what} within {deadline_s:g} s: {last}")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class _Refused(GraphmillError):
    """Has a filesystem's error as its cause."""
