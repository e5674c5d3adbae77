"""Records the files that this process maps, and makes the messages for files that change while they are read.

Reading a mapped file makes no call that could raise an error. If a page is missing because the file was truncated or the disk fails, the system sends SIGBUS.
If the bytes of the file change, any error is possible, even SIGSEGV. `graphmill.jobs.cli.faults` turns both signals into the messages of this module.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from graphmill.core.errors import DamageError, FormatError

# maps a path to the size and the time of change that the file had when it was mapped
_MAPPED: dict[str, tuple[int, int]] = {}
_LEAST_FREE_BYTES = 1 << 20
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_ADVICE = "put the file back; a run goes on with --run.resume"


def remember(path: str) -> None:
    """Records size and time of change of a file. Call this before mapping the file. Raises OSError."""
    path = os.path.realpath(path)
    stamp, before = _stamp(path), _MAPPED.get(path)
    # The record of an older mapping of the file stays while that mapping is in use.
    if before in (None, stamp) or all(each != path for *_, each in _mappings()):
        _MAPPED[path] = stamp


def why_unreadable(address: int) -> str | None:
    """Explains in one line what is wrong with the file that is mapped at the address of a SIGBUS. Returns None if no file is mapped there."""
    places = ((path, offset + address - first) for first, end, offset, path in _mappings() if first <= address < end)
    path, offset = next(places, (None, 0))
    if path is None:
        return None
    expected = f"{path}: expected " + ("the bytes that its manifest names" if path in _MAPPED else "the bytes it had")
    try:
        size = os.stat(path).st_size
        if offset >= size:
            return f"{expected}, found the file cut to {size:,} bytes while it was read; {_ADVICE}"
        disk = os.statvfs(path)
        if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:  # the disk is full, so the fault was a write to the page
            return f"{path}: expected room for it, found its disk full; free some"
        with open(path, "rb", buffering=0) as stream:
            os.pread(stream.fileno(), 1, offset)
        reason = "for a moment"
    except OSError as error:
        reason = f"({error.strerror})"
    return f"{expected}, found byte {offset:,} unreadable {reason}; {_ADVICE}"


def why_changed() -> str | None:
    """Names, in one line, the first mapped file that was changed after it was mapped. Returns None if no file was changed. Linux only."""
    for path in dict.fromkeys(path for *_, path in _mappings()):
        before = _MAPPED.get(path)
        with suppress(OSError):  # no error: a process that maps a replaced file still reads its old content
            if before is not None and _stamp(path) != before:
                return f"{path}: expected the bytes that its manifest names, found the file changed while it was read; {_ADVICE}"
    return None


def check_unchanged() -> None:
    """Raises FormatError if a file was changed after it was mapped, because results that were made from the file may be wrong."""
    if (line := why_changed()) is not None:
        raise FormatError(line)


def damaged(where: str) -> FormatError:
    """Returns the error for numbers that were in range when the file was opened and are out of range now."""
    if (line := why_changed()) is not None:
        return DamageError(line)
    return FormatError(
        f"{where}: expected the lists that were checked when it was opened, found others; verify it: graphmill inspect_graph <graph> --verify"
    )


def _stamp(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _mappings() -> Iterator[tuple[int, int, int, str]]:
    """Yields (first address, end address, position in the file, path) for every mapped file of this process."""
    with suppress(FileNotFoundError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            bounds, _, offset, _, inode, *path = line.split(maxsplit=5)
            if int(inode):
                first, end = bounds.split("-")
                yield int(first, 16), int(end, 16), int(offset, 16), path[0].rstrip("\n")


# share of the machine's memory; larger files do not stay in memory, because a run also needs memory for other data
_SHARE = 0.5


def read_at_random(rows: np.ndarray, memory_bytes: int | None = None) -> bool:
    """Tells the system that these mapped rows are read in random order, if they exceed half of `memory_bytes` (None: of the machine's memory).

    Returns whether the rows exceed this size. After the call, a page fault reads one page. By default a page fault reads about thirty pages (128 KiB), which
    are evicted before they are used. Each batch has a loader thread. The threads cause page faults at the same time, which keeps the disk busy
    (docs/performance.md, "Rows from a disk").
    """
    if _stays_in_memory(rows.nbytes, memory_bytes):
        return False
    first = -(-rows.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (rows.ctypes.data + rows.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    return _advise(first, end, "MADV_RANDOM")


def prefer_huge_pages(first: int, num_bytes: int, memory_bytes: int | None = None, *, other_bytes: int = 0) -> bool:
    """Asks the system to read the mapped file at address `first` in pages of 2 MiB, if the file and `other_bytes` of other files stay in memory. Returns whether
    the system accepts this.

    All processes share these pages. File systems with large folios have them (ext4 since Linux 6.16, XFS since 5.18). Other file systems read 2 MiB or more at a
    page fault, in pages of 4 KiB. Pages that are in memory already keep their size (docs/decisions/0111-mapped-files-lie-on-huge-pages.md).
    """
    stays = _stays_in_memory(num_bytes + other_bytes, memory_bytes)
    return stays and _advise(first, first + num_bytes, "MADV_HUGEPAGE")


def mapped_bytes() -> int:
    """Bytes of all files that this process has mapped."""
    return sum(size for size, _ in _MAPPED.values())


def huge_bytes() -> tuple[int, int]:
    """(bytes on pages of 2 MiB, bytes in memory) of the Arrow files that this process maps. Linux only; elsewhere (0, 0)."""
    bytes_of, is_ours = {"FilePmdMapped:": 0, "Rss:": 0}, False
    with suppress(FileNotFoundError), open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            name, *words = line.split(maxsplit=5)
            if "-" in name:
                is_ours = len(words) == 5 and words[-1].rstrip("\n") in _MAPPED
            elif is_ours and name in bytes_of:
                bytes_of[name] += 1024 * int(words[0])
    return bytes_of["FilePmdMapped:"], bytes_of["Rss:"]


def _stays_in_memory(num_bytes: int, memory_bytes: int | None) -> bool:
    """Whether a file has at most half of `memory_bytes` (None: of the machine's memory)."""
    if memory_bytes is None:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        with suppress(OSError, ValueError):  # no container, or a container without a limit ("max")
            memory_bytes = min(memory_bytes, int(_CONTAINER_LIMIT.read_text()))
    return num_bytes <= _SHARE * memory_bytes


def _advise(first: int, end: int, advice: str) -> bool:
    """Gives the system this advice about [first, end), in whole pages. Returns whether the system knows it and there is a page."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None or not hasattr(mmap, advice) or end <= first:
        return False
    return not madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), getattr(mmap, advice))
