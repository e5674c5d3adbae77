"""The files with pinned versions are complete, and .ci/lock.py makes them. If an audit has checked nothing, it fails where it is required."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", REPOSITORY / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCK = script("lock")


@pytest.mark.parametrize("path", LOCK.LISTS, ids=lambda path: path.name)
def test_a_list_of_what_a_job_needs_is_as_make_lock_makes_it(path: Path) -> None:
    assert path.read_text() == LOCK.LISTS[path](path.read_text()), "run: python .ci/lock.py --lists"
    if path == LOCK.RUNTIME_ENV:
        packages = yaml.safe_load(path.read_text())["pip"]["packages"]
    else:
        packages = re.findall(r"^ARG PACKAGES=\"([^\"]*)", path.read_text(), re.MULTILINE)[0].replace("\\", "").split()
        assert packages[0].startswith("torch==")
        assert [each for each in packages if each.startswith("ray")] == [
            f"ray[default,train]=={LOCK.pins()['ray'][5:]}"
        ]
    names = {re.split(r"\[|==", package)[0].lower() for package in packages}
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    stores = {"s3fs"} if path == LOCK.RUNTIME_ENV else {"ray", "s3fs", "gcsfs"}
    assert names == {re.split(r"[\[>=]", each)[0] for each in declared} - {"ray"} | stores


def test_a_package_that_is_missing_or_has_another_version_shows() -> None:
    for path, with_list in LOCK.LISTS.items():
        text = path.read_text()
        without = re.sub(r"\n.* Jinja2==.*", "", text)
        other = re.sub(r"numpy==\S+", "numpy==1.0", text)
        assert len({text, without, other}) == 3
        assert with_list(without) == with_list(other) == text


def test_the_lock_has_all_that_a_job_needs_at_the_pinned_versions_with_hashes() -> None:
    text = LOCK.LOCK.read_text()
    entries = re.findall(r"^(\S+)==([^\s;\\]+)(.*(?:\n    .*)*)", text, re.MULTILINE)
    locked = {LOCK.canonical(name): version for name, version, _ in entries}
    pins = {name: pin.split("==")[1] for name, pin in LOCK.pins().items()}
    assert set(LOCK.needed()) <= set(locked)
    assert {name: version for name, version in locked.items() if pins.get(name, version) != version} == {}
    assert [name for name, _, rest in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", rest)] == []
    assert len(re.findall(r"^[^\s#]", text, re.MULTILINE)) == len(entries)


def test_what_is_pinned_names_no_index() -> None:
    for path in (LOCK.CONSTRAINTS, LOCK.LOCK, REPOSITORY / "pyproject.toml", LOCK.RUNTIME_ENV):
        assert not re.search(r"://|--index|--find-links", path.read_text()), path.name
    # The image takes the index from an argument or from a file that stays outside.
    assert not re.search(r"://|--find-links|--extra-index", LOCK.DOCKERFILE.read_text())


# Replaces pip-audit. Writes the findings that the test gives, or no file.
STAND_IN = """
import os, sys
if os.environ["FOUND"]:
    open(sys.argv[sys.argv.index("-o") + 1], "w").write(os.environ["FOUND"])
else:
    sys.exit("the service is away")
"""
SKIPPED = '{"name": "a", "skip_reason": "not found"}'
CLEAN = '{"name": "b", "version": "1", "vulns": []}'
VULNERABLE = '{"name": "c", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}'


@pytest.mark.parametrize(
    ("entries", "said", "status", "strict_status"),
    [
        (None, " packages checked, 0 vulnerable: the service is away", 0, 1),
        ([SKIPPED], " packages checked, 0 vulnerable: the service knows none of them", 0, 1),
        ([SKIPPED, CLEAN], " packages checked, 0 vulnerable\n", 0, 0),
        ([CLEAN, VULNERABLE], "1 vulnerable\nc 1: X-1, fixed in 2", 1, 1),
    ],
)
def test_an_audit_says_what_it_checked(
    tmp_path: Path, entries: list[str] | None, said: str, status: int, strict_status: int
) -> None:
    (tmp_path / "pip_audit.py").write_text(STAND_IN)
    found = "" if entries is None else f'{{"dependencies": [{", ".join(entries)}]}}'
    num_checked = sum(entry != SKIPPED for entry in entries or ())
    for words, expected in (((), status), (("--strict",), strict_status)):
        command = [sys.executable, str(REPOSITORY / ".ci" / "audit.py"), *words]
        environment = {"PYTHONPATH": str(tmp_path), "FOUND": found}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == expected, done.stderr
        assert f"audit: {num_checked} of {len(LOCK.pins())} packages checked" in done.stdout
        assert said in done.stdout
