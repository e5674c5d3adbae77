"""Reads and writes the journal of a folder below `data/`. The journal names the folder's writer and holds its lease, which the writer renews while it lives.

If no manifest names a folder and its lease has expired, the writer is dead, and `graphmill.storage.snapshots.prune` may remove the folder. The clocks of the
machine that writes and the machine that prunes may differ by up to `CLOCK_MARGIN_S`.
"""

import json
import math
import os
import re
import socket
import threading
import time
from dataclasses import asdict, dataclass, replace

import fsspec

from graphmill.core.errors import ConflictError, FormatError
from graphmill.storage.filesystem.filesystem_errors import one_line_errors
from graphmill.storage.filesystem.object_stores import put_file

JOURNAL = "journal.json"
LEASE_S = 3600.0
CLOCK_MARGIN_S = 600.0
# Patterns of the names of temporary journal files (`write_durably`), and of pieces that were written after another process had removed the journal.
_WITHOUT_JOURNAL = re.compile(r"\.journal\.json\.[0-9a-f]{8}|\.?chunk-\d{7}-[0-9a-f]{64}\.arrow(\.[0-9a-f]{8})?")
_FORMAT = "graphmill-journal"


@dataclass(frozen=True)
class Journal:
    """The writer of a folder, and the writer's lease. Times are seconds since 1970, by the writer's clock."""

    host: str
    pid: int
    started: float
    lease_until: float

    def is_over(self, now: float) -> bool:
        return now > self.lease_until + CLOCK_MARGIN_S


class Lease:
    """Holds the lease of a folder: writes the journal, and renews the lease from a thread until `release`."""

    def __init__(self, filesystem: fsspec.AbstractFileSystem, folder: str, lease_s: float = LEASE_S) -> None:
        self._filesystem, self._where, self._lease_s = filesystem, f"{folder}/{JOURNAL}", lease_s
        now = time.time()
        self._journal = Journal(socket.gethostname(), os.getpid(), now, now + lease_s)
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="snapshot-lease", daemon=True)

    def begin(self) -> None:
        self._write()
        self._thread.start()

    def check(self) -> None:
        """Raises ConflictError if the lease has expired or the journal is missing, because then the folder may have been pruned."""
        if not self._lasts():
            raise ConflictError(
                f"{self._where}: expected this writer's lease to last, found it over (the process was stopped for more than "
                f"{self._lease_s:g} s, or the journal could not be written); nothing was published, run again"
            )

    def release(self) -> None:
        self._released.set()
        if self._thread.is_alive():
            self._thread.join(timeout=60)

    def _keep(self) -> None:
        # An expired lease is not renewed, because the folder may have been pruned while this process was stopped.
        while not self._released.wait(self._lease_s / 4) and self._lasts():
            renewed = replace(self._journal, lease_until=time.time() + self._lease_s)
            try:
                self._journal, before = renewed, self._journal
                self._write()
            except (FormatError, OSError):  # the next renewal tries again; `check` notices an expired lease
                self._journal = before

    def _lasts(self) -> bool:
        return time.time() <= self._journal.lease_until and read_journal(self._filesystem, self._where) is not None

    def _write(self) -> None:
        body = {"format": _FORMAT, "format_version": 1, **asdict(self._journal)}
        content = (json.dumps(body, indent=1) + "\n").encode()
        with one_line_errors(self._where, "write this file"):
            put_file(self._filesystem, self._where, content)


def is_abandoned(folder: str, now: float) -> bool:
    """Whether a dead writer left this local folder without a journal. This is so if two conditions hold: the folder has only files that can exist before the
    journal is written or after it is removed, and the folder has not changed for longer than a lease."""
    try:
        changed = os.stat(folder).st_mtime
    except OSError:
        return False
    names = (name for _, _, names in os.walk(folder) for name in names)
    return all(_WITHOUT_JOURNAL.fullmatch(name) for name in names) and now > changed + LEASE_S + CLOCK_MARGIN_S


def read_journal(filesystem: fsspec.AbstractFileSystem, where: str) -> Journal | None:
    """Reads the journal at this path. Returns None if there is no file, or if the file is not a journal."""
    with one_line_errors(where, "read this file"):
        try:
            content = filesystem.cat_file(where)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.get("format") != _FORMAT or body.get("format_version") != 1:
        return None
    host, pid, started, until = (body.get(name) for name in ("host", "pid", "started", "lease_until"))
    if not isinstance(host, str) or type(pid) is not int:
        return None
    if not isinstance(started, int | float) or not isinstance(until, int | float):
        return None
    if not (math.isfinite(started) and math.isfinite(until)):
        return None
    return Journal(host, pid, float(started), float(until))
