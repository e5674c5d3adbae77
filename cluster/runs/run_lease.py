"""One driver at a time trains a run. In a folder a lock keeps others out, which ends with the process. On an object store, which has none, a lease does:

    holders/000003.json     who trains it; the highest number counts

To hold it is to create the next number, which the store lets one of several do; so nobody who was cut off for a while goes on beside its
successor: it finds a higher number at its next look, and ends. The holder's file is written again four times a lease. Who comes later waits for
a lease, and takes over where the file has not changed meanwhile: no clocks are compared. A holder of this machine whose process is gone is
followed at once.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from graphmill.cluster.process.graceful_stop import interrupt_main
from graphmill.cluster.runs.run_store import RunStore
from graphmill.core.errors import ConflictError, GraphmillError
from graphmill.storage.snapshots.conditional_put import check_exclusive_creation

HOLDERS = "holders"
LEASE_S = 60.0
_NAME = re.compile(r"(\d{6,})\.json")
_LOOK_S = 1.0


@dataclass(frozen=True)
class Holder:
    """A driver."""

    host: str
    pid: int
    process: (
        str  # what else tells it from one of the same number: the machine's start, the process namespace, its own start
    )
    token: str  # of one hold: a process may have several
    renewals: int = 0
    ended: bool = False

    @classmethod
    def this(cls) -> "Holder":
        return cls(socket.gethostname(), os.getpid(), _process(os.getpid()), secrets.token_hex(4))

    def is_gone(self) -> bool:
        """Whether it has ended for certain, as far as can be seen from here."""
        return self.ended or (
            self.process.rpartition(" ")[0] == _process(os.getpid()).rpartition(" ")[0] != ""
            and _process(self.pid) != self.process
        )


def _process(pid: int) -> str:
    """Of a process of this machine; empty where there is no such process, or the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
    return f"{boot} {namespace} {started}"


@contextlib.contextmanager
def held(run: RunStore) -> "Iterator[RunLease | None]":
    """No other driver trains this run meanwhile. Raises ConflictError where one does. Of a run on a store it gives the lease, which another
    driver may take over."""
    if not run.is_local:
        with RunLease(run) as hold:
            yield hold
        return
    descriptor = os.open(run.folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(
                descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # of the folder: it adds no file, and ends with the process
        except BlockingIOError:
            raise ConflictError(
                f"{run.url}: expected a run that nobody trains now, found a process that does; wait for its end, or choose another --run.dir"
            ) from None
        except OSError:  # a network filesystem without locks of folders
            pass
        yield None  # the lock ends with the process
    finally:
        os.close(descriptor)


class RunLease:
    """Held inside the context."""

    def __init__(self, run: RunStore, lease_s: float = LEASE_S) -> None:
        self._run, self._lease_s = run, lease_s
        self._holder = Holder.this()
        self._number = 0
        self._ended = threading.Event()
        self._successor: ConflictError | None = None
        self._thread = threading.Thread(target=self._keep, name="graphmill-hold", daemon=True)

    def __enter__(self) -> "RunLease":
        check_exclusive_creation(self._run.filesystem, f"{self._run.path}/{HOLDERS}", self._run.url)
        before = self._numbers(self._run)
        if before:
            self._wait_for(before[-1])
        self._number = before[-1] + 1 if before else 1
        if not self._run.create(_name(self._number), self._content()):
            raise self._refusal("another process that began at the same time")
        self._run.remove([_name(number) for number in before])
        self._thread.start()
        return self

    def check(self, run: RunStore) -> None:
        """Raises ConflictError where another process has taken the run over. `run`: the same, with the deadline that counts."""
        if self._numbers(run)[-1:] > [self._number]:
            raise ConflictError(
                f"{self._run.url}: expected to train this run until its end, found that another process has taken it over, since "
                f"this one did not reach the store for {self._lease_s:g} s; that one goes on"
            )

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken the run over: nothing may be saved any more."""
        return self._successor is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=self._run.deadline_s)
        if self._successor is not None:
            raise self._successor from error
        self._holder = replace(self._holder, ended=True)
        with contextlib.suppress(GraphmillError, OSError):  # else who comes next waits for a lease
            replace(self._run, deadline_s=10.0).write(_name(self._number), self._content())

    def _wait_for(self, number: int) -> None:
        """Until the holder of this number is gone. Raises ConflictError where it is not."""
        first = self._run.read(_name(number))
        holder, until = _parse(first), time.monotonic() + self._lease_s
        if first is None or (holder is not None and holder.is_gone()):
            return
        who = "a process" if holder is None else f"process {holder.pid} on {holder.host}"
        print(
            f"{self._run.url} was trained by {who}; looking for {self._lease_s:g} s whether it still is",
            file=sys.stderr,
        )
        while time.monotonic() < until:
            time.sleep(min(_LOOK_S, self._lease_s / 4))
            now = self._run.read(_name(number))
            if now != first:
                if (holder := _parse(now)) is not None and not holder.ended:
                    raise self._refusal(who)
                return

    def _refusal(self, who: str) -> ConflictError:
        return ConflictError(
            f"{self._run.url}: expected a run that nobody trains now, found {who}; wait for its end, or choose another --run.dir"
        )

    def _keep(self) -> None:
        while not self._ended.wait(self._lease_s / 4):
            try:
                self.check(self._run)
                self._holder = replace(self._holder, renewals=self._holder.renewals + 1)
                self._run.write(_name(self._number), self._content())
            except ConflictError as error:
                self._successor = error
                interrupt_main()
                return
            except (GraphmillError, OSError):  # tried again at the next renewal
                continue

    @staticmethod
    def _numbers(run: RunStore) -> list[int]:
        matches = [_NAME.fullmatch(name) for name in run.names(HOLDERS)]
        return sorted(int(match[1]) for match in matches if match)

    def _content(self) -> bytes:
        return (json.dumps(asdict(self._holder)) + "\n").encode()


def _name(number: int) -> str:
    return f"{HOLDERS}/{number:06d}.json"


def _parse(content: bytes | None) -> Holder | None:
    try:
        return Holder(**json.loads(content or b""))
    except (ValueError, TypeError):
        return None
