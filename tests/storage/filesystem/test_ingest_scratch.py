"""A scratch directory is removed after its block. If its process was killed, the next process removes it. A directory in use is never removed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import graphmill.storage.filesystem.temporary_folder
from graphmill.core.errors import ConfigError
from graphmill.storage.filesystem.ingest_scratch import scratch_directory
from graphmill.storage.filesystem.temporary_folder import remove_orphans

REPOSITORY = Path(__file__).resolve().parents[3]


def test_a_directory_in_use_stays_and_goes_with_its_block(tmp_path: Path) -> None:
    with scratch_directory(tmp_path, "graph") as folder:
        (folder / "work").touch()
        remove_orphans(tmp_path, ".graph.ingest-")
        assert (folder / "work").exists()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def orphan(tmp_path: Path) -> Path:
    """Makes a scratch directory whose process was killed."""
    script = f"""
        import os, signal
        from pathlib import Path
        from graphmill.storage.filesystem.ingest_scratch import scratch_directory
        with scratch_directory(Path({str(tmp_path)!r}), "graph"):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=REPOSITORY, timeout=600, check=False)
    assert done.returncode == -signal.SIGKILL
    (folder,) = tmp_path.iterdir()
    return folder


def test_an_orphan_is_removed_by_its_own_name_alone(orphan: Path, tmp_path: Path) -> None:
    remove_orphans(tmp_path, ".other.ingest-")
    remove_orphans(tmp_path, ".grap..ingest-")
    assert orphan.exists()
    with scratch_directory(tmp_path, "graph"):
        assert not orphan.exists()


def test_what_may_not_be_an_orphan_stays(orphan: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    orphan.rename(tmp_path / "elsewhere" / "owned")
    (tmp_path / ".graph.ingest-abcdefgh").symlink_to(tmp_path / "elsewhere" / "owned")
    (tmp_path / ".graph.ingest-00000000").mkdir()  # is kept, because its owner may be about to lock it
    (tmp_path / ".graph.ingest-notours").mkdir()
    before = sorted(tmp_path.rglob("*"))
    remove_orphans(tmp_path, ".graph.ingest-")
    assert sorted(tmp_path.rglob("*")) == before


def test_folders_of_other_users_and_links_stay(orphan: Path, tmp_path: Path) -> None:
    linked = tmp_path / ".graph.ingest-linked00"
    linked.mkdir()
    (linked / "owner").symlink_to(orphan / "owner")
    others = [linked]
    if os.geteuid() == 0:
        others.append(tmp_path / ".graph.ingest-another0")
        others[-1].mkdir()
        (others[-1] / "owner").touch()
        os.chown(others[-1], 12345, 12345)
        others.append(tmp_path / ".graph.ingest-another1")
        others[-1].mkdir()
        (others[-1] / "owner").touch()
        os.chown(others[-1] / "owner", 12345, 12345)
    remove_orphans(tmp_path, ".graph.ingest-")
    assert not orphan.exists()
    assert all(other.exists() for other in others)


def test_a_filesystem_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(graphmill.storage.filesystem.temporary_folder.fcntl, "flock", refuse)
    with scratch_directory(tmp_path, "graph") as folder:
        remove_orphans(tmp_path, ".graph.ingest-")
        assert folder.exists()
    assert os.listdir(tmp_path) == []


def test_a_parent_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="cannot make a temporary directory there"),
        scratch_directory(tmp_path / "absent", "graph"),
    ):
        pass
