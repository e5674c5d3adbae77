"""The message for a full disk names the host and the size of the disk."""

import shutil
import socket
from pathlib import Path

from graphmill.storage.filesystem.disk_space import full_disk


def test_a_disk_without_the_room_that_is_needed_is_full(tmp_path: Path) -> None:
    assert full_disk(tmp_path) is None
    total = shutil.disk_usage(tmp_path).total
    said = full_disk(tmp_path, total + 1)
    assert said is not None
    assert said.startswith(f"{socket.gethostname()}: the disk of {tmp_path} is full (")
    assert f"of {total / 2**20:,.0f} MiB are free" in said
    assert full_disk(tmp_path / "gone", total + 1) is None
