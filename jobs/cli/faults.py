"""Reports a fault of a mapped file as one line. Such a fault raises a signal. SIGBUS: a page of the file no longer exists. SIGSEGV: bytes of the file have
changed, and code that reads them used a wrong address.

Python runs its own signal handlers only after the interrupted C code returns; after such a fault it never returns. The handler here is therefore a C callback.
It runs in the thread that faulted, names the file, lets a run write its last record, and ends the process with status 1. No value that was read from the file
is used. If no mapped file is the cause, the signal kills the process, as it would without a handler.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from graphmill.core.errors import GraphmillError
from graphmill.storage.filesystem.mapped_files import why_changed, why_unreadable

_MOST_S = 60  # time for the last record of the run; then SIGALRM ends the process
_SA_SIGINFO = 4
_CODE, _ADDRESS = 8, 16  # cause of the signal and address of the fault, in siginfo_t
_LAST_WORDS: list[Callable[[str], str]] = []
_TELLING = threading.Lock()
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """The struct sigaction of Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@contextlib.contextmanager
def last_words(say: Callable[[str], str]) -> Iterator[None]:
    """Inside the block, a fault that ends the process calls `say` with the error line. The text that `say` returns is appended to the line."""
    _LAST_WORDS.append(say)
    try:
        yield
    finally:
        _LAST_WORDS.remove(say)


@contextlib.contextmanager
def faults_told() -> Iterator[None]:
    """Inside the block, a fault of a mapped file prints one line, `error: …`, and ends the process with status 1. Linux only."""
    if sys.platform != "linux":
        yield
        return
    before = {signum: _Action() for signum in (signal.SIGBUS, signal.SIGSEGV)}

    def put_back() -> None:
        for signum, action in before.items():
            _sigaction(signum, action, None)

    @_Handler
    def on_fault(signum: int, info: int, _: int) -> None:
        signal.alarm(_MOST_S)
        try:
            with _TELLING:  # several loader threads may fault at once: the first thread reports, the other threads wait for the end of the process
                address = ctypes.c_size_t.from_address(info + _ADDRESS).value
                # If Ray installs its handler later, that handler passes the signal on without the address.
                line = (why_unreadable(address) if signum == signal.SIGBUS else None) or why_changed()
                if line is not None:
                    _end(line)
        finally:
            put_back()  # the instruction faults again, and the signal kills the process
            if ctypes.c_int.from_address(info + _CODE).value <= 0:  # a process sent the signal; no instruction faulted
                signal.alarm(0)
                signal.raise_signal(signum)

    action = _Action(handler=ctypes.cast(on_fault, ctypes.c_void_p), flags=_SA_SIGINFO)
    for signum, old in before.items():
        _sigaction(signum, action, old)
    try:
        yield
    finally:
        put_back()


def _end(line: str) -> None:
    _write(f"error: {GraphmillError(line)}")  # first, because later steps may wait for a lock or the failing disk
    try:
        for say in reversed(_LAST_WORDS):
            _write(say(line))
        _write("\n")
        sys.stdout.flush()
    finally:
        os._exit(1)


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


def _sigaction(signum: int, new: _Action, old: _Action | None) -> None:
    ctypes.CDLL(None).sigaction(signum, ctypes.byref(new), None if old is None else ctypes.byref(old))
