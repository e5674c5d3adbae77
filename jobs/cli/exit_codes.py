"""How every job ends: 0, one clear line and 1, 2 from the command line's parser, 130 after Ctrl-C, 141 where nobody reads on, 143 after SIGTERM."""

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
from graphmill.jobs.cli.quiet import quiet_where_asked
from graphmill.storage.filesystem.mapped_files import why_changed

# Of a lost host Ray prints its raylet's stack, a page, several times, and a line for each request that is asked again. The run itself says
# which host it is. Ray reads this as it is imported; what the user has set wins.
_NOT_SHOWN = {
    "RAY_DEDUP_LOGS_SKIP_REGEX": "Raylet is terminated|has been marked dead because|There are infinite retries remaining"
}
# Wherever they come from, they are no defect of ours: a disk that fails or is full, a server of files that is gone.
_OF_THE_DISK = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Calls `main` and exits with what it returns (None: 0).

    A GraphmillError is printed as one line, `error: …`, and exits with 1; Ctrl-C exits with 130. SIGTERM unwinds `main` like Ctrl-C
    does, so that temporary directories go, and exits with 143. A mapped file that fails is one line and 1 too (`graphmill.jobs.cli.faults`); so are a name
    that is too long for a path, and a disk that fails or is full. Where the reader of the output has gone (`| head`), it ends in silence with
    141, unless it had another reason to end. Any other exception is a defect and keeps its traceback.
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
            if not stop.args:  # else a run has said how it goes on
                print("interrupted", file=sys.stderr)
            code = 128 + signal.SIGINT
        except BrokenPipeError:
            if not _is_unread(1):
                raise
            code = 128 + signal.SIGPIPE
        except Exception as error:
            line = why_changed()  # numbers of a file that was overwritten may break whatever reads them
            if line is None and isinstance(error, OSError):
                line = _of_a_path_or_disk(error)
            if line is None:
                raise
            print(f"error: {GraphmillError(line)}", file=sys.stderr)
            code = 1
    _drop_unread()
    sys.exit(0 if code is None else code)


def _of_a_path_or_disk(error: OSError) -> str | None:
    """The line for what no option could have told; None for another error."""
    if error.errno == errno.ENAMETOOLONG:
        return f"{quoted(error.filename)}: expected a path, got one with too long a name"
    return f"{error.filename or 'a file'}: {error.strerror}" if error.errno in _OF_THE_DISK else None


def _flushed(main: Callable[[], int | None]) -> int | None:
    """Calls `main` and flushes its output, here and not while Python ends, where an error could no longer be caught."""
    try:
        code = main()
    except SystemExit as end:
        _flush_or_drop(end.code)  # --help: 0
        raise
    _flush_or_drop(code)
    return code


def _flush_or_drop(code: str | int | None) -> None:
    """Raises BrokenPipeError where `main` succeeded and nobody reads its output."""
    if code:
        _drop_unread()
    elif sys.stdout is not None:  # `>&-`
        sys.stdout.flush()


def _drop_unread() -> None:
    """Sends what is still to be flushed to /dev/null where nobody reads it."""
    if _is_unread(1):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _is_unread(file: int) -> bool:
    """Whether it is a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(file, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """SIGTERM raises Terminated inside the block. A Ray session inside it does the same and then puts this handler back."""
    # A handler that someone installed, or a parent's wish to ignore the signal, stays; other threads may install none.
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
