"""Checks that other users cannot access a file or folder, by its mode and by the owner and mode of every folder above it."""

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path

from graphmill.core.errors import ConfigError


def check_private(path: Path) -> None:
    """Raises ConfigError unless only this user and root can open, change or replace the file or folder at the path."""
    path = path.resolve()
    status, mode = _status(path, path)
    # A file of root may be readable by its group, like a mounted Kubernetes secret (defaultMode 0440): root made the group for this process.
    bits = 0o037 if status.st_uid == 0 != os.geteuid() and stat.S_ISREG(status.st_mode) else 0o077
    if mode & bits & ~_own_group_bits(status):
        raise ConfigError(f"other users can reach {path}: {path} has mode {mode:04o}; run: chmod go-rwx {path}")
    check_unreplaceable(path.parent, path)


def check_unreplaceable(folder: Path, path: Path | None = None) -> None:
    """Raises ConfigError if another user can replace `folder` or a folder above it. `path`: the file that the message names."""
    folder = folder.resolve()
    for each in (folder, *folder.parents):
        status, mode = _status(each, path or folder)
        # In a folder with the sticky bit, like /tmp, no user can replace another user's files.
        if not status.st_mode & stat.S_ISVTX and mode & 0o022 & ~_own_group_bits(status):
            raise ConfigError(
                f"other users can reach {path or folder}: {each} has mode {mode:04o}; run: chmod go-w {each}"
            )


def _status(each: Path, path: Path) -> tuple[os.stat_result, int]:
    try:
        status = each.lstat()
    except OSError as error:
        raise ConfigError(f"{each} cannot be looked at: {error.strerror}") from error
    if status.st_uid not in _trusted_owners():
        raise ConfigError(
            f"other users can change {path}: {each} belongs to user id {status.st_uid}; use another place"
        )
    return status, stat.S_IMODE(status.st_mode)


def _trusted_owners() -> set[int]:
    """Returns the ids of root and this user. In a container with a user map, files of the host's root have the overflow id, which is added."""
    owners = {0, os.geteuid()}
    with contextlib.suppress(OSError):  # Linux has these
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
            owners.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    return owners


def _own_group_bits(status: os.stat_result) -> int:
    """Returns the group's mode bits if this user is the only member of the group (a user private group, usual with umask 002); else 0."""
    with contextlib.suppress(KeyError):  # a number without a name
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
        # The group of root is excluded because containers put arbitrary users into it.
        if user.pw_gid == group.gr_gid != 0 and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}:
            return 0o070
    return 0
