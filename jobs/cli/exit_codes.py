"""The exit status of every job: 0; 1 and one clear line; 2 from the command line's parser; 130 after Ctrl-C; 141 if nobody reads the output; 143 after SIGTERM."""

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

# Ray prints a lost host's stack, a page, several times, and a line for each repeated request. The run itself says
# which host it is. Ray reads this at its import; the user's value wins.
_NOT_SHOWN = {
    "RAY_DEDUP_LOGS_SKIP_REGEX": "Raylet is terminated|has been marked dead because|There are infinite retries remaining"
}
# No defect of ours, wherever they are raised: a disk that fails or is full, a file server that is gone.
_OF_THE_DISK = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Calls `main` and exits with its return value (None: 0).

    A GraphmillError is printed as one line, `error: …`, and exits with 1, and so are a mapped file that fails (`graphmill.jobs.cli.faults`), a name that
    is too long for a path, and a disk that fails or is full. Ctrl-C exits with 130. SIGTERM unwinds `main` as Ctrl-C does, so that temporary directories go,
    and exits with 143. If the reader of the output has gone (`| head`), the process ends in silence with 141, unless it had another reason to end. Any other
    exception is a defect and keeps its traceback.
    """
    for name, value in _NOT_SHOWN.items():
        os.environ.setdefault(name, value)
    with _sigterm_unwinds(), faults_told(), quiet_where_asked():
        try:
            code = _flushed(main)
        except GraphmillError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
            if isinstance(error, ClusterLostError):  # Ray would wait for the head as Python ends, and abort
                _flush_or_drop(code)
                sys.stderr.flush()
                os._exit(code)
        except Terminated:
            code = 128 + signal.SIGTERM
        except KeyboardInterrupt as stop:
            if not stop.args:  # else a run has said how to continue it
                print("interrupted", file=sys.stderr)
            code = 128 + signal.SIGINT
        except BrokenPipeError:
            if not _is_unread(1):
                raise
            code = 128 + signal.SIGPIPE
        except Exception as error:
            line = why_changed()  # an overwritten file's numbers may break any code that reads them
            if line is None and isinstance(error, OSError):
                line = _of_a_path_or_disk(error)
            if line is None:
                raise
            print(f"error: {GraphmillError(line)}", file=sys.stderr)
            code = 1
    _drop_unread()
    sys.exit(0 if code is None else code)


def _of_a_path_or_disk(error: OSError) -> str | None:
    """The line for an error of a path's length or a disk; None for another error."""
    if error.errno == errno.ENAMETOOLONG:
        return f"{quoted(error.filename)}: expected a path, got one with too long a name"
    return f"{error.filename or 'a file'}: {error.strerror}" if error.errno in _OF_THE_DISK else None


def _flushed(main: Callable[[], int | None]) -> int | None:
    """Calls `main` and flushes its output here, since an error during Python's end could no longer be caught."""
    try:
        code = main()
    except SystemExit as end:
        _flush_or_drop(end.code)  # --help: 0
        raise
    _flush_or_drop(code)
    return code


def _flush_or_drop(code: str | int | None) -> None:
    """Raises BrokenPipeError if `main` succeeded and nobody reads its output."""
    if code:
        _drop_unread()
    elif sys.stdout is not None:  # `>&-`
        sys.stdout.flush()


def _drop_unread() -> None:
    """Sends the unflushed output to /dev/null if nobody reads it."""
    if _is_unread(1):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _is_unread(file: int) -> bool:
    """Whether the file is a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(file, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """SIGTERM raises Terminated inside the block. A Ray session inside it does the same and then puts this handler back."""
    # An installed handler stays, and so does a parent's choice to ignore the signal; other threads may install no handler.
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
