"""Whether a full disk is why something failed."""

import errno
import secrets
import shutil
import socket
from pathlib import Path

_PROBE_BYTES = 1 << 18
_FULL = (errno.ENOSPC, errno.EDQUOT)


def full_disk(folder: Path) -> str | None:
    """What to say where the disk of a folder has no room for a small file: the host, the folder, and how large the disk is; else None."""
    probe = folder / f".probe.{secrets.token_hex(4)}"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    except OSError as error:
        if error.errno not in _FULL:
            return None
        size = shutil.disk_usage(folder).total / 2**20
        return f"{socket.gethostname()}: the disk of {folder} is full ({size:,.0f} MiB; No space left on device); free some"
    finally:
        probe.unlink(missing_ok=True)
    return None
