"""Tells whether a full disk is the cause of a failure."""

import shutil
import socket
from pathlib import Path

_LEAST_BYTES = 1 << 20


def full_disk(folder: Path, needed_bytes: int = 0) -> str | None:
    """Returns a message with host, folder and sizes if the folder's disk has no room for this number of bytes, or for 1 MiB; else None."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    if usage.free >= max(needed_bytes, _LEAST_BYTES):
        return None
    return f"{socket.gethostname()}: the disk of {folder} is full ({usage.free / 2**20:,.1f} of {usage.total / 2**20:,.0f} MiB are free)"
