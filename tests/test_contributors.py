"""Checks that files for contributors and for code hosts say only what is true of this repository."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def test_every_folder_has_its_rule() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|", (REPOSITORY / "AGENTS.md").read_text(), re.MULTILINE)
    folders = {path.name for path in REPOSITORY.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))}
    assert folders - {"build", "runs", "data", "graphs", "predictions"} <= set(rows)
    assert set(rows) <= folders


def test_the_commands_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in ("AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", ".github/workflows/release.yml"):
        assert (
            set(re.findall(r"(?:^ *|`|run: )make ([\w-]+)", (REPOSITORY / page).read_text(), re.MULTILINE)) <= targets
        )
    for name in ("run", "dist-check"):
        assert subprocess.run(["bash", "-n", REPOSITORY / ".ci" / name]).returncode == 0


def test_a_forge_runs_the_same_check_on_every_python_that_is_declared() -> None:
    job = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "check.yml").read_text())["jobs"]["check"]
    assert {"run": ".ci/run", "env": {"PYTHON": "python"}} in job["steps"]
    declared = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert job["strategy"]["matrix"]["python"] == declared


def test_workflows_may_only_read_and_name_actions_by_their_hashes() -> None:
    assert len(WORKFLOWS) == 2
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
        used = re.findall(r"uses: (\S+)", path.read_text())
        assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []


def test_issue_forms_are_whole() -> None:
    forms = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert len(forms) == 2
    for form in (yaml.safe_load(path.read_text()) for path in forms):
        assert {"name", "description", "body"} <= set(form)
        assert all({"label", "description"} <= set(part["attributes"]) for part in form["body"])
        assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["version"], citation["license"]) == (
        "1.2.0",
        PROJECT["version"],
        PROJECT["license"],
    )
    assert {"message", "title", "authors"} <= set(citation)


def built(source: Path, out: Path, *words: str) -> list[Path]:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out, *words], cwd=source, check=True, timeout=300)
    return sorted(out.iterdir())  # the sdist and the wheel


def test_the_sdist_makes_the_same_wheel(tmp_path: Path) -> None:
    wheel, sdist = built(REPOSITORY, tmp_path / "first")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    (again,) = built(next((tmp_path / "sdist").iterdir()), tmp_path / "again", "-t", "wheel")
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(again) as other:
        assert ours.namelist() == other.namelist()
        assert len(ours.namelist()) > 400
