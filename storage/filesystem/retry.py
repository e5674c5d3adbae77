"""Repeats requests to a filesystem that may be slow or unreachable for a while. After a deadline, raises a one-line error."""

import time
from collections.abc import Callable
from typing import TypeVar

from graphmill.core.daemon_threads import begin
from graphmill.core.errors import DeadlineError, FormatError, GraphmillError
from graphmill.storage.filesystem.filesystem_errors import may_pass, one_line, one_line_errors

Result = TypeVar("Result")

DEADLINE_S = 60.0
_TRY_S = 20.0
# these errors are valid answers of a store, so they are not retried
_ANSWERS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


def retried(
    action: Callable[[], Result], where: str, what: str, deadline_s: float = DEADLINE_S, try_s: float = _TRY_S
) -> Result:
    """Returns the result of `action`. After a temporary error of the filesystem, calls `action` again until the deadline.

    `where` and `what` name the action in errors: "s3://bucket/run: cannot write config.json". `try_s`: longest wait for one call. A call without an answer
    is abandoned, so `action` may run twice at the same time. FileNotFoundError and FileExistsError are raised unchanged. Raises DeadlineError, with the last
    error, at the deadline, and FormatError for an error that would occur again.
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
                # for example missing permissions or credentials, or a full disk
                raise FormatError(str(refused)) from error
            last = one_line(error) if attempt.done() else "no answer"
        left = until - time.monotonic()
        if left <= 0:
            raise DeadlineError(f"{where}: cannot {what} within {deadline_s:g} s: {last}")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class _Refused(GraphmillError):
    """Carries an error of a filesystem as its cause."""
