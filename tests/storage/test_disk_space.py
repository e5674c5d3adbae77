"""A full disk is told with its host and size."""

import errno
import os
import socket
from pathlib import Path

from storage.disk_space import full_disk


def test_a_disk_with_room_is_not_full_and_nothing_is_left_there(tmp_path: Path) -> None:
    assert full_disk(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_another_error_is_not(tmp_path: Path, monkeypatch) -> None:
    def fails(number: int):
        def write(path: Path, content: bytes) -> int:
            raise OSError(number, os.strerror(number), str(path))

        return write

    monkeypatch.setattr(Path, "write_bytes", fails(errno.ENOSPC))
    said = full_disk(tmp_path)
    assert said is not None
    assert said.startswith(f"{socket.gethostname()}: the disk of {tmp_path} is full (")
    monkeypatch.setattr(Path, "write_bytes", fails(errno.EACCES))
    assert full_disk(tmp_path) is None
