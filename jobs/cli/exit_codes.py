"""Exit status of every job. 0: success. 1: an error, printed as one line. 2: a wrong command line.
3: `graphmill verify` could not compare bits. 130: Ctrl-C. 141: nobody reads the output. 143: SIGTERM."""

import contextlib
import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from graphmill.core.errors import ClusterLostError, GraphmillError, Terminated, quoted
from graphmill.jobs.cli.faults import faults_told
from graphmill.jobs.cli.progress import quiet_where_asked
from graphmill.storage.filesystem.mapped_files import why_changed

UNPROVEN = 3
# If a host is lost, Ray prints a stack of a page several times, and a line for each repeated request. The variable below turns this output off, because the run
# itself reports which host is lost. Ray reads the variable when it is imported. A value that the user has set is kept.
_NOT_SHOWN = {
    "RAY_DEDUP_LOGS_SKIP_REGEX": "Raylet is terminated|has been marked dead because|There are infinite retries remaining"
}
# Errors of the disk or of a file server, not of Graphmill: a disk fails or is full, a file server does not answer.
_OF_THE_DISK = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Calls `main` and exits with its return value (None: 0).

    A GraphmillError is printed as one line, `error: …`, and the status is 1. The same holds for a mapped file that fails (`graphmill.jobs.cli.faults`), a name
    that is too long for a path, and a disk that fails or is full. Ctrl-C exits with 130. SIGTERM exits with 143; it unwinds `main` like Ctrl-C, which removes
    temporary directories. If the reader of the output has ended (`| head`), the process prints nothing and exits with 141, unless another error ended it. Any
    other exception is a bug and keeps its traceback.
    """
    for name, value in _NOT_SHOWN.items():
        os.environ.setdefault(name, value)
    with _sigterm_unwinds(), faults_told(), quiet_where_asked():
        try:
            code = _flushed(main)
        except GraphmillError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
            if isinstance(error, ClusterLostError):  # otherwise Ray waits for the lost head at exit, and aborts
                _flush_or_drop(code)
                sys.stderr.flush()
                os._exit(code)
        except Terminated:
            code = 128 + signal.SIGTERM
        except KeyboardInterrupt as stop:
            if not stop.args:  # otherwise the run has already printed how to continue
                print("interrupted", file=sys.stderr)
            code = 128 + signal.SIGINT
        except BrokenPipeError:
            if not _is_unread(1):
                raise
            code = 128 + signal.SIGPIPE
        except Exception as error:
            line = why_changed()  # an overwritten file holds wrong numbers: any code that reads them may fail
            if line is None and isinstance(error, OSError):
                line = _of_a_path_or_disk(error)
            if line is None:
                raise
            print(f"error: {GraphmillError(line)}", file=sys.stderr)
            code = 1
    _drop_unread()
    sys.exit(0 if code is None else code)


def _of_a_path_or_disk(error: OSError) -> str | None:
    """The message for an error of the disk or of a path that is too long; None for any other error."""
    if error.errno == errno.ENAMETOOLONG:
        return f"{quoted(error.filename)}: expected a path, got one with too long a name"
    return f"{error.filename or 'a file'}: {error.strerror}" if error.errno in _OF_THE_DISK else None


def _flushed(main: Callable[[], int | None]) -> int | None:
    """Calls `main` and flushes the output here, because an error in the flush at Python's exit cannot be caught."""
    try:
        code = main()
    except SystemExit as end:
        _flush_or_drop(end.code)  # --help ends with code 0
        raise
    _flush_or_drop(code)
    return code


def _flush_or_drop(code: str | int | None) -> None:
    """Raises BrokenPipeError if `main` succeeded and nobody reads its output."""
    if code:
        _drop_unread()
    elif sys.stdout is not None:  # None if the shell closed the output (`>&-`)
        sys.stdout.flush()


def _drop_unread() -> None:
    """Sends the unflushed output to /dev/null if nobody reads the output."""
    if _is_unread(1):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _is_unread(file: int) -> bool:
    """Whether the file is a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(file, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Inside the block, SIGTERM raises Terminated. A Ray session inside the block installs its own handler with the same effect and restores this one."""
    # A handler that is already installed stays, and SIGTERM that the parent ignores stays ignored. Threads other than the main thread may not install handlers.
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def terminate(signum: int, frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
