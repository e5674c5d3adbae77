"""The site with the guides and the Python API builds without a warning and fits on a phone. Every link in the documents has a target."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphmill as gm
from docs.images import rooms
from tests.browser import browser, find_chromium

REPOSITORY = Path(__file__).parents[1]


DOCS = REPOSITORY / "docs"


def build_site(folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "site"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("site"))


def test_the_site_builds_without_a_warning(site: Path) -> None:
    page = (site / "reference" / "index.html").read_text()
    assert "The configuration that these words of a command line describe" in page


def test_the_notebook_is_a_page_and_links_lead_to_it(site: Path) -> None:
    page = (site / "guides" / "notebook" / "index.html").read_text()
    assert "From a DataFrame to predictions" in page
    assert "gm.ArrayGraph(" in page
    assert 'href="guides/notebook/">a notebook' in (site / "index.html").read_text()
    assert (site / "guides" / "notebook.ipynb").exists()


def test_llms_txt_lists_every_page_of_the_navigation(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    listed = dict(re.findall(r"^- \[.*?\]\((.*?)\): (\S.*)$", text, re.M))
    pages = re.findall(r": ([\w/-]+)\.md$", (REPOSITORY / "mkdocs.yml").read_text().split("\nnav:")[1], re.M)
    assert set(listed) == {f"{page}/".removesuffix("index/") or "index.html" for page in pages}
    assert "](" not in "".join(listed.values())


def test_every_decision_is_listed_by_its_title() -> None:
    text = (DOCS / "decisions" / "index.md").read_text().lower()
    decisions = [path for path in sorted((DOCS / "decisions").glob("0*.md")) if not path.name.startswith("0000")]
    rows = [f"- [{path.read_text().splitlines()[0].split(': ', 1)[1]}]({path.name})" for path in decisions]
    assert [row for row in rows if row.lower() not in text] == [], (
        "docs/decisions/index.md lacks these, each below its subject"
    )


def test_the_picture_of_the_rooms_is_what_import_linter_checks() -> None:
    assert (DOCS / "images" / "rooms.svg").read_text() == rooms.drawing(), "run python docs/images/rooms.py"
    order, floors = rooms.contracts()
    assert order == ["jobs", "cluster", "samplers", "storage", "core"]
    assert set(floors) == {"jobs", "cluster", "samplers", "storage", "models"}


@pytest.mark.parametrize(
    ("page", "most"), [("README.md", 110), ("docs/architecture.md", 120), ("docs/performance.md", 150)]
)
def test_a_front_page_stays_short(page: str, most: int) -> None:
    assert len((REPOSITORY / page).read_text().splitlines()) <= most, "move details to a guide or a page of figures"


def test_release_notes_stay_short() -> None:
    releases = (REPOSITORY / "CHANGELOG.md").read_text().split("\n## ")[1:]
    lines = [sum(line != "" for line in release.splitlines()[1:]) for release in releases]
    assert lines[0] <= 20, "unreleased: join lines; details are in guides and decisions"
    assert max(lines[1:]) <= 12


@pytest.mark.long
@pytest.mark.skipif(find_chromium() is None, reason="needs a browser")
def test_no_page_is_wider_than_a_phone(site: Path, tmp_path: Path) -> None:
    """Wide tables and code blocks scroll inside their boxes, and text in table cells wraps. So the page itself never scrolls sideways."""
    wide = """[...document.querySelectorAll(".rst-content table, .rst-content img")].filter(
        one => one.getBoundingClientRect().right > innerWidth && !one.closest(".wy-table-responsive")).length"""
    cells = """[...document.querySelectorAll(".rst-content td, .rst-content th")].filter(
        one => one.getBoundingClientRect().width > innerWidth).length"""
    program = find_chromium()
    assert program is not None
    with browser(program, tmp_path) as tab:
        for page in (
            "index.html",
            "performance/index.html",
            "performance/models/index.html",
            "guides/operations/index.html",
        ):
            tab.open((site / page).as_uri(), 390, 844)
            found = [tab.evaluate(expression) for expression in ("document.documentElement.scrollWidth", wide, cells)]
            assert found == [390, 0, 0], (page, found)


def test_the_reference_has_every_public_name():
    text = (REPOSITORY / "docs" / "reference.md").read_text()
    listed = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    tables = (gm._NAMES, gm.samplers._PUBLIC, gm.models._PUBLIC)
    assert listed == [path.replace(":", ".") for table in tables for path in table.values()]


@pytest.mark.parametrize("page", ["README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_outside_the_site_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (REPOSITORY / page).read_text())
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
