"""The site of guides and of the Python API builds without a warning, and every link of the documents leads somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphmill as gm

REPOSITORY = Path(__file__).parents[1]


def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    page = (tmp_path / "site" / "reference" / "index.html").read_text()
    assert "The configuration that these words of a command line describe" in page


def test_the_reference_has_every_public_name():
    text = (REPOSITORY / "docs" / "reference.md").read_text()
    listed = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    tables = (gm._NAMES, gm.samplers._PUBLIC, gm.models._PUBLIC)
    assert listed == [path.replace(":", ".") for table in tables for path in table.values()]


@pytest.mark.parametrize("page", ["README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_outside_the_site_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (REPOSITORY / page).read_text())
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
