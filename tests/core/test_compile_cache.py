"""Tests the cache of compiled loops on disk. One process writes a loop and every other process can load it, even if several processes compile at once."""

import errno
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
from graphmill.core.compile_cache import cache_folder, compiled, one_compiles_for_all
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


def run(module: Path, dtype: str, cache: str = "cache") -> subprocess.Popen[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(module.parent / cache)}
    command = [sys.executable, str(module), dtype]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def hits(process: subprocess.Popen[str]) -> int:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return int(out)


def entries(module: Path) -> list[Path]:
    return sorted(module.parent.glob("cache/graphmill-loops/*.nbc"))


def test_processes_at_the_same_time_and_one_after(module):
    dtypes = ("int32", "float32", "float64")
    assert [hits(process) for process in [run(module, dtype) for dtype in dtypes]] == [0, 0, 0]
    assert len(entries(module)) == 3
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
    with locked(first._cache.turn, 0), one_compiles_for_all():  # loads without waiting
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


def test_an_entry_is_found_wherever_its_source_lies(module, tmp_path):
    hits(run(module, "int32"))
    (other := tmp_path / "elsewhere").mkdir()
    (copy := other / module.name).write_bytes(module.read_bytes())
    (other / "cache").symlink_to(module.parent / "cache")
    assert hits(run(copy, "int32")) == 1
    module.write_text(module.read_text().replace("* 0", "* 0.0"))
    assert hits(run(module, "int32")) == 0
    assert len(entries(module)) == 2


def test_what_a_loop_calls_is_part_of_its_name(monkeypatch, tmp_path):
    """numba checks only the source file of the function itself. If a function that it calls changes, numba would load the old code."""
    cached = graphmill.core.compile_cache

    def digest() -> str:
        cached._packages_digest.cache_clear()
        cached._sources.cache_clear()
        return cached._sources(__file__)

    before, packages = digest(), tmp_path / "packages"
    for package in ("core", "samplers", "storage"):
        shutil.copytree(ROOT / package, packages / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cached, "__file__", str(packages / "core" / "compile_cache.py"))
    assert digest() == before
    callee = packages / "samplers" / "kernels" / "random_streams.py"
    callee.write_bytes(callee.read_bytes() + b"\n")
    changed = digest()
    monkeypatch.undo()
    assert digest() == before
    assert changed != before


def test_a_function_without_a_file_is_not_kept(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    namespace: dict[str, object] = {}
    exec("def loop(values):\n    return values * values", namespace)
    assert (compiled(namespace["loop"])(np.arange(3, dtype=np.int32)) == [0, 1, 4]).all()
    assert not list(tmp_path.glob("*/*.nbc"))


def test_entries_that_were_loaded_longest_ago_are_removed_above_the_bound(monkeypatch, tmp_path):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    loop = compiled(square)
    for dtype in (np.int8, np.int16, np.int32):
        loop(np.arange(3, dtype=dtype))
    paths = sorted(tmp_path.glob("*/*.nbc"), key=lambda path: path.stat().st_mtime)
    os.utime(paths[0])  # the most recently loaded file
    for age, path in enumerate(paths[1:], start=1):
        os.utime(path, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(graphmill.core.compile_cache, "_MAX_BYTES", sum(path.stat().st_size for path in paths))
    loop(np.arange(3, dtype=np.int64))
    left = set(tmp_path.glob("*/*.nbc"))
    assert paths[0] in left
    assert not left & set(paths[1:])
    assert len(left) == 2


def square(values):
    return values * values


def test_two_caches_that_know_nothing_of_each_other(monkeypatch, tmp_path):
    """Both caches are opened before either of them saves. In this order, numba's own index would lose an entry or confuse two entries."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    first, second = compiled(square), compiled(square)
    assert (first(np.arange(3, dtype=np.int32)) == [0, 1, 4]).all()
    assert (second(np.arange(3, dtype=np.float32)) == [0, 1, 4]).all()
    assert len(list(tmp_path.glob("*/*.nbc"))) == 2
    third = compiled(square)
    assert third(np.arange(3, dtype=np.int32)).dtype == np.int32
    assert third(np.arange(3, dtype=np.float32)).dtype == np.float32
    assert sum(third.stats.cache_hits.values()) == 2


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage", [flip, lambda path: path.write_bytes(b""), lambda path: (path.unlink(), path.mkdir())]
)
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
    """In each process numba numbers compiled functions from 1. So two processes give different functions, such as two quicksorts, the same name."""
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
def test_a_folder_that_is_not_its_owner_s_alone_is_not_taken(tmp_path, caplog, case):
    if os.geteuid() and "another user" in case:
        pytest.skip("needs root, to give a folder away")
    base = str(tmp_path / "base")
    cache_folder.cache_clear()
    UNSAFE[case](cache_folder(base))
    cache_folder.cache_clear()
    assert [cache_folder(base) for _ in range(2)] == [None, None]
    (warning,) = caplog.messages
    assert warning.startswith("compiled loops are not kept on disk, each process compiles them: ")


def test_a_planted_entry_does_not_run(tmp_path):
    """An attacker puts an entry into the cache. If it were unpickled, it would create a file."""
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
        folder = cache_folder(str(tmp_path / "some" / "cache"))
    finally:
        os.umask(old)
    assert folder is None  # other users can write to its parent
    folder = cache_folder(str(tmp_path / "other" / "cache"))
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def no_folder_yet():
    cache_folder.cache_clear()
    yield
    cache_folder.cache_clear()


def test_the_users_cache_is_the_first_choice(tmp_path, monkeypatch, no_folder_yet):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder("") == tmp_path / "home" / ".cache" / "graphmill" / "loops"
    cache_folder.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert cache_folder("") == tmp_path / "other" / "graphmill" / "loops"


def test_without_a_home_that_can_be_written_the_folder_lies_in_the_package(tmp_path, monkeypatch, no_folder_yet):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(graphmill.core.compile_cache, "__file__", str(tmp_path / "core" / "compile_cache.py"))
    assert cache_folder("") == tmp_path / "core" / "__pycache__" / "compiled"
