"""Lets only one driver at a time train a run. For a local folder it uses a lock, which ends with the process. For an object store it uses a lease:

    holders/000003.json     the driver that trains the run; the highest number counts

A driver takes the lease by creating the file with the next number. If several drivers try, the store lets only one create it. The holder rewrites its file
four times per lease period. A new driver waits for one period, and takes the lease over if the file has not changed. Clocks of different hosts are not
compared. If the holder was a process of this machine and has ended, the new driver takes over immediately. A holder that could not reach the store finds the
higher number at its next check, and ends.
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
    """A driver that holds a lease."""

    host: str
    pid: int
    process: str  # distinguishes processes with the same pid: boot id, pid namespace, start time
    token: str  # distinguishes leases of the same process
    renewals: int = 0
    ended: bool = False

    @classmethod
    def this(cls) -> "Holder":
        return cls(socket.gethostname(), os.getpid(), _process(os.getpid()), secrets.token_hex(4))

    def is_gone(self) -> bool:
        """Returns whether the holder has certainly ended. False if this machine cannot decide that."""
        return self.ended or (
            self.process.rpartition(" ")[0] == _process(os.getpid()).rpartition(" ")[0] != ""
            and _process(self.pid) != self.process
        )


def _process(pid: int) -> str:
    """Returns `Holder.process` of a process of this machine. Empty if there is no such process or the system does not have /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
    return f"{boot} {namespace} {started}"


@contextlib.contextmanager
def held(run: RunStore) -> "Iterator[RunLease | None]":
    """Prevents other drivers from training this run during the block. For a run on a store yields the lease, which another driver may take over. For a run in
    a folder yields None.

    Raises ConflictError if another driver trains the run.
    """
    if not run.is_local:
        with RunLease(run) as hold:
            yield hold
        return
    descriptor = os.open(run.folder, os.O_RDONLY)
    try:
        try:
            # The lock is on the folder itself, so it adds no file
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"{run.url}: expected a run that nobody trains now, found a process that does; wait for its end, or choose another --run.dir"
            ) from None
        except OSError:  # a network file system that has no locks on folders
            pass
        yield None  # closing the descriptor, or the end of the process, releases the lock
    finally:
        os.close(descriptor)


class RunLease:
    """The lease of a run on a store. The driver holds it during the `with` block."""

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
        """Raises ConflictError if another process has taken the run over. `run`: the same run, with a separate deadline for this call."""
        if self._numbers(run)[-1:] > [self._number]:
            raise ConflictError(
                f"{self._run.url}: expected to train this run until its end, found that another process has taken it over, since "
                f"this one did not reach the store for {self._lease_s:g} s; that one goes on"
            )

    @property
    def is_lost(self) -> bool:
        """Returns whether another process has taken the run over. Then this process must not save any more."""
        return self._successor is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=self._run.deadline_s)
        if self._successor is not None:
            raise self._successor from error
        self._holder = replace(self._holder, ended=True)
        # If this fails, the next driver has to wait for a lease period
        with contextlib.suppress(GraphmillError, OSError):
            replace(self._run, deadline_s=10.0).write(_name(self._number), self._content())

    def _wait_for(self, number: int) -> None:
        """Waits up to a lease period until the holder with this number is gone. Raises ConflictError if it is still there."""
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
            except (GraphmillError, OSError):  # the next renewal tries again
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
