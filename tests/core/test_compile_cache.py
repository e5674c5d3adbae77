"""Compiled loops on disk: one process writes them and any other may load them, also when several compile at once."""

import errno
import itertools
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphmill.core.compile_cache
import graphmill.core.files.file_lock
from graphmill.core.compile_cache import compiled, one_compiles_for_all
from graphmill.core.errors import DeadlineError
from graphmill.core.files.file_lock import locked

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
import sys
import numpy as np
sys.path.insert(0, {root!r})
from graphmill.core.compile_cache import compiled, one_compiles_for_all

@compiled
def total(values):
    found = values[0] * 0
    for value in values:
        found += value
    return found

values = np.arange(10).astype(sys.argv[1])
assert total(values) == 45, total(values)
print(sum(total.stats.cache_hits.values()))
"""


@pytest.fixture
def module(tmp_path) -> Path:
    path = tmp_path / "loops.py"
    path.write_text(MODULE.format(root=str(ROOT)))
    return path


def run(module: Path, dtype: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(module), dtype], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def hits(process: subprocess.Popen[str]) -> int:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return int(out)


def entries(module: Path) -> list[Path]:
    return sorted(module.parent.glob("__pycache__/compiled/*.nbc"))


def test_processes_at_the_same_time_and_one_after(module):
    dtypes = ("int32", "float32", "float64")
    assert [hits(process) for process in [run(module, dtype) for dtype in dtypes]] == [0, 0, 0]
    assert len(entries(module)) == 3
    assert not list(module.parent.glob("__pycache__/compiled/*.nbi"))
    assert hits(run(module, "float32")) == 1


def test_of_processes_that_take_turns_one_compiles(module):
    module.write_text(module.read_text().replace("assert total", "with one_compiles_for_all():\n    assert total"))
    assert sorted(hits(process) for process in [run(module, "int32") for _ in range(3)]) == [0, 1, 1]


def test_a_turn_that_does_not_end_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(graphmill.core.compile_cache, "_TURN_S", 0.1)
    first = compiled(square)
    with locked(first._cache.turn, 1), one_compiles_for_all():
        assert (first(np.arange(3, dtype=np.int32)) == [0, 1, 4]).all()
    with locked(first._cache.turn, 0), one_compiles_for_all():  # nothing to compile, nobody to wait for
        second = compiled(square)
        assert (second(np.arange(3, dtype=np.int32)) == [0, 1, 4]).all()
    assert second.stats.cache_hits


def test_a_folder_without_locks_has_no_turns(monkeypatch, tmp_path):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(graphmill.core.files.file_lock.fcntl, "flock", refuse)
    with one_compiles_for_all():
        assert (compiled(square)(np.arange(3, dtype=np.int32)) == [0, 1, 4]).all()
    assert len(list(tmp_path.glob("*/*.nbc"))) == 1


def test_a_turn_ends_with_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    first = compiled(square)

    @one_compiles_for_all()
    def fail() -> None:
        first(np.arange(3, dtype=np.int32))
        with pytest.raises(DeadlineError), locked(first._cache.turn, 0):
            pass
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with locked(first._cache.turn, 0):
        pass


def test_another_source_starts_afresh_and_clears_the_old(module):
    hits(run(module, "int32"))
    (old,) = entries(module)
    module.write_text("\n" + module.read_text().replace("45", "45.0"))  # the function moves by a line, too
    assert hits(run(module, "int32")) == 0
    (new,) = entries(module)
    assert new != old


def test_what_a_loop_calls_is_part_of_its_name(monkeypatch, tmp_path):
    """numba itself goes by a function's own file alone, and keeps the old code of a function that it calls."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def stamp() -> str:
        graphmill.core.compile_cache._packages_digest.cache_clear()
        return graphmill.core.compile_cache._stamp(run)

    before, packages = stamp(), tmp_path / "packages"
    for package in ("core", "samplers", "storage"):
        shutil.copytree(ROOT / package, packages / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(graphmill.core.compile_cache, "__file__", str(packages / "core" / "compile_cache.py"))
    assert stamp() == before
    callee = packages / "samplers" / "kernels" / "random_streams.py"
    callee.write_bytes(callee.read_bytes() + b"\n")
    changed = stamp()
    monkeypatch.undo()
    assert stamp() == before
    assert changed != before


def square(values):
    return values * values


def test_two_caches_that_know_nothing_of_each_other(monkeypatch, tmp_path):
    """The order in which numba's own index loses an entry, or gives it another's code: both are opened before either saves."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    first, second = compiled(square), compiled(square)
    assert (first(np.arange(3, dtype=np.int32)) == [0, 1, 4]).all()
    assert (second(np.arange(3, dtype=np.float32)) == [0, 1, 4]).all()
    assert len(list(tmp_path.glob("*/*.nbc"))) == 2
    third = compiled(square)
    assert third(np.arange(3, dtype=np.int32)).dtype == np.int32
    assert third(np.arange(3, dtype=np.float32)).dtype == np.float32
    assert sum(third.stats.cache_hits.values()) == 2


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), lambda path: (path.unlink(), path.mkdir())])
def test_a_file_that_cannot_be_read_is_compiled_again(monkeypatch, tmp_path, damage):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    compiled(square)(np.arange(3, dtype=np.int32))
    (path,) = tmp_path.glob("*/*.nbc")
    damage(path)
    second = compiled(square)
    assert (second(np.arange(3, dtype=np.int32)) == [0, 1, 4]).all()
    assert not second.stats.cache_hits


def test_a_file_with_another_s_code_is_not_taken(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    first = compiled(square)
    first(np.arange(3, dtype=np.int32))
    (of_integers,) = tmp_path.glob("*/*.nbc")
    first(np.arange(3, dtype=np.float32))
    (of_floats,) = set(tmp_path.glob("*/*.nbc")) - {of_integers}
    of_floats.write_bytes(of_integers.read_bytes())
    second = compiled(square)
    assert (second(np.arange(3, dtype=np.float32)) == [0.0, 1.0, 4.0]).all()
    assert not second.stats.cache_hits


SORTS = """
import sys
import numpy as np

sys.path.insert(0, {root!r})
from graphmill.core.compile_cache import compiled


@compiled
def in_place(values):
    values.sort()
    return values


@compiled
def permutation(values):
    return np.argsort(values)


for name in sys.argv[1:]:
    print(globals()[name](np.array([3, 1, 2])).tolist())
"""


def test_entries_of_two_processes_are_loaded_together(tmp_path):
    """numba numbers what it compiles from 1 in each process, and gives the quicksorts of both functions one name."""
    (path := tmp_path / "sorts.py").write_text(SORTS.format(root=str(ROOT)))

    def run_once(*names: str) -> str:
        command = [sys.executable, str(path), *names]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout

    assert run_once("in_place") == "[1, 2, 3]\n"
    assert run_once("permutation") == "[1, 2, 0]\n"
    assert run_once("in_place", "permutation") == "[1, 2, 3]\n[1, 2, 0]\n"
    assert run_once("permutation", "in_place") == "[1, 2, 0]\n[1, 2, 3]\n"


UNSAFE = {
    "written by others": lambda path: path.chmod(0o707),
    "read by others": lambda path: path.chmod(0o750),
    "another user's": lambda path: os.chown(path, 12345, 12345),
    "a link": lambda path: (path.rename(path.with_name("aside")), path.symlink_to(path.with_name("aside"))),
    "a file": lambda path: (path.rename(path.with_name("aside")), path.write_text("")),
    "in a folder that others write": lambda path: path.parent.chmod(0o777),
    "in another user's folder": lambda path: os.chown(path.parent, 12345, 12345),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_a_folder_that_is_not_its_owner_s_alone_is_not_taken(tmp_path, caplog, monkeypatch, case):
    if os.geteuid() and "another user" in case:
        pytest.skip("needs root, to give a folder away")
    monkeypatch.setattr(graphmill.core.compile_cache, "_WARNINGS", itertools.count())
    base = str(tmp_path / "base")
    folder = graphmill.core.compile_cache._folder(tmp_path, base)
    UNSAFE[case](folder)
    graphmill.core.compile_cache._folder.cache_clear()
    assert [graphmill.core.compile_cache._folder(tmp_path / name, base) for name in ("", "")] == [None, None]
    (warning,) = caplog.messages
    assert warning.startswith("compiled loops are not kept on disk, each process compiles them: ")


def test_a_planted_entry_does_not_run(tmp_path):
    """It is unpickled where it is read, and leaves a file."""
    (path := tmp_path / "loops.py").write_text(MODULE.format(root=str(ROOT)))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "base")}

    def run_once() -> tuple[str, str]:
        command = [sys.executable, str(path), "int32"]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        return process.stdout.strip(), process.stderr

    assert run_once() == ("0", "")
    (entry,) = (tmp_path / "base").glob("*/*.nbc")
    entry.write_bytes(pickle.dumps(_Planted(str(tmp_path / "owned"))))
    entry.parent.chmod(0o707)
    num_hits, warning = run_once()
    assert not (tmp_path / "owned").exists()
    assert num_hits == "0"
    assert warning.count("\n") == 1
    assert warning.startswith("compiled loops are not kept on disk")


class _Planted:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_the_folder_is_made_for_its_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        folder = graphmill.core.compile_cache._folder(tmp_path, str(tmp_path / "some" / "cache"))
    finally:
        os.umask(old)
    assert folder is None  # the folder above it can be written by others
    folder = graphmill.core.compile_cache._folder(tmp_path, str(tmp_path / "other" / "cache"))
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700


def test_sources_that_cannot_be_written_beside_use_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "__pycache__").write_text("no folder")
    folder = graphmill.core.compile_cache._folder(tmp_path / "sources", "")
    assert folder is not None
    assert folder.parent == tmp_path / "home" / ".cache"
