"""check_private refuses a file if, and only if, another user could read, change or replace it. The tests act as a real other user to check this."""

import contextlib
import grp
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphmill.core.errors import ConfigError
from graphmill.core.files.private import check_private
from tests.other_user import NOBODY, as_nobody, needs_root


@pytest.fixture
def outer() -> Iterator[Path]:
    """A folder that all users can enter, with a private file `inner/file`. Pytest's own folders cannot be used, because other users cannot enter them."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    (folder / "inner").mkdir(mode=0o700)
    (folder / "inner" / "file").touch(mode=0o600)
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_a_group_of_ones_own_is_no_other_user(outer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems with umask 002, each user usually has a group without other users. Write access for such a group is harmless."""
    for path in (outer, outer / "inner"):
        os.chown(path, -1, 4321)
        path.chmod(0o770)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_gid=4321, pw_name="ada"))
    for name, members, is_own in (("ada", [], True), ("ada", ["eve"], False), ("users", [], False)):
        group = SimpleNamespace(gr_gid=4321, gr_name=name, gr_mem=members)
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        with contextlib.nullcontext() if is_own else pytest.raises(ConfigError, match="other users can reach"):
            check_private(outer / "inner")


@needs_root
def test_a_secret_that_root_gives_by_a_group_passes(outer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes mounts secrets as files of root with mode 0440, because no mode lets only the pod's user read a file of root."""
    secret = outer / "inner" / "file"
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    secret.chmod(0o440)
    check_private(secret)
    secret.chmod(0o444)
    with pytest.raises(ConfigError, match="mode 0444"):
        check_private(secret)


def test_what_is_private_passes(outer: Path) -> None:
    check_private(outer / "inner")
    check_private(outer / "inner" / "file")
    outer.chmod(0o1777)  # like /tmp
    check_private(outer / "inner")


OPENED: dict[str, tuple[Callable[[Path], None], str]] = {
    "others write the folder": (lambda outer: (outer / "inner").chmod(0o707), "inner has mode 0707; run: chmod go-rwx"),
    "the group writes the folder": (lambda outer: (outer / "inner").chmod(0o770), "inner has mode 0770"),
    "others replace the folder": (lambda outer: outer.chmod(0o777), "has mode 0777; run: chmod go-w"),
    "the group replaces the folder": (lambda outer: outer.chmod(0o775), "has mode 0775; run: chmod go-w"),
}


@pytest.mark.parametrize("case", OPENED)
def test_what_is_open_is_refused(outer: Path, case: str) -> None:
    change, message = OPENED[case]
    change(outer)
    with pytest.raises(ConfigError, match=f"^other users can reach {outer}/inner: .*{message}"):
        check_private(outer / "inner")
    link = outer.with_name(f"{outer.name}-link")
    link.symlink_to(outer)
    try:
        with pytest.raises(ConfigError, match=f"other users can reach {outer}/inner"):
            check_private(link / "inner")
    finally:
        link.unlink()


@needs_root
@pytest.mark.parametrize("case", ["private", "sticky", *OPENED])
def test_another_user_can_do_what_is_refused_alone(outer: Path, case: str) -> None:
    if case == "sticky":
        outer.chmod(0o1777)
    elif case != "private":
        OPENED[case][0](outer)
    group = 0 if "group" in case else NOBODY
    wrote = as_nobody('echo planted > "$1"/planted', outer / "inner", group=group)
    replaced = as_nobody('mv "$1"/inner "$1"/away', outer, group=group)
    assert (wrote or replaced) == (case in OPENED)


@needs_root
def test_what_another_user_owns_is_refused(outer: Path) -> None:
    for owned in ("inner/file", "inner", "."):
        os.chown(outer / owned, NOBODY, NOBODY)
        with pytest.raises(ConfigError, match=f"belongs to user id {NOBODY}"):
            check_private(outer / "inner" / "file")
        os.chown(outer / owned, 0, 0)
    check_private(outer / "inner" / "file")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_that_others_read_is_refused(outer: Path, mode: int) -> None:
    (outer / "inner" / "file").chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}; run: chmod go-rwx {outer}/inner/file"):
        check_private(outer / "inner" / "file")
