"""The memory of this process, as the system reports it."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def own_bytes(field: str) -> int:
    """A field of this process's status in bytes: VmRSS (resident), VmHWM (its peak), RssAnon (without mapped files); 0 if missing."""
    for line in _STATUS.read_text().splitlines() if _STATUS.exists() else ():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0
