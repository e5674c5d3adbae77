"""How every job ends: 0, one clear line and 1, 2 from the command line's parser, 130 after Ctrl-C, 143 after SIGTERM."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from storage.errors import GraphmillError


def run(main: Callable[[], int | None]) -> NoReturn:
    """Calls `main` and exits with what it returns (None: 0).

    A GraphmillError is printed as one line, `error: …`, and exits with 1; Ctrl-C exits with 130. SIGTERM unwinds `main` like Ctrl-C
    does, so that temporary directories go, and exits with 143. Any other exception is a defect and keeps its traceback.
    """
    with _sigterm_unwinds():
        try:
            code = main()
        except GraphmillError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = 130
    sys.exit(0 if code is None else code)


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """SIGTERM raises SystemExit(143) inside the block. A Ray session inside it does the same and then puts this handler back."""
    # A handler that someone installed, or a parent's wish to ignore the signal, stays; other threads may install none.
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def terminate(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
