"""Tests the messages for a mapped file that changed. tests/jobs/test_changed_files.py tests the real signals."""

import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from graphmill.storage.filesystem.mapped_files import check_unchanged, remember, why_changed, why_unreadable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
BYTES = 3 * 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a name with spaces.arrow"
    path.write_bytes(bytes(BYTES))
    return path


def test_a_page_that_the_disk_cannot_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pread(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    link = path.with_name("link")
    link.symlink_to(path)
    remember(str(link))
    mapped = np.memmap(link, np.uint8, "r")
    address = mapped.ctypes.data + 5000
    expected = f"{path}: expected the bytes that its manifest names, found byte 5,000 unreadable"
    assert (why_unreadable(address) or "").startswith(f"{expected} for a moment; put the file back")
    monkeypatch.setattr(os, "pread", pread)
    assert (why_unreadable(address) or "").startswith(f"{expected} (Input/output error); put the file back")
    assert why_unreadable(8) is None


def test_only_a_file_that_is_mapped_and_not_replaced_is_blamed(path: Path) -> None:
    remember(str(path))
    os.utime(path, ns=(1, 1))
    assert why_changed() is None  # the changed file is not mapped
    mapped = np.memmap(path, np.uint8, "r")
    with pytest.raises(OSError, match="expected the bytes that its manifest names, found the file changed"):
        check_unchanged()
    other = path.with_name("other")
    other.write_bytes(bytes(BYTES))
    other.rename(path)
    assert why_changed() is None
    assert not mapped.any()


def test_a_second_map_of_a_changed_file_does_not_hide_the_change_from_the_first(path: Path) -> None:
    remember(str(path))
    mapped = np.memmap(path, np.uint8, "r")
    os.utime(path, ns=(1, 1))
    remember(str(path))
    assert why_changed() is not None
    del mapped
    remember(str(path))
    again = np.memmap(path, np.uint8, "r")
    assert why_changed() is None, again
