"""Tests the commands of benchmarks and paper experiments in docs/performance.md and its pages: each has the printed options.

Each table links to its sections.
"""

import re
from importlib import import_module

import pytest

from graphmill.jobs.config import reader
from tests.printed_commands import FIGURES, REPOSITORY, words

TEXT = "".join((REPOSITORY / page).read_text() for page in FIGURES)
COMMAND = re.compile(
    r"(?:graphmill (bench \w+)|python -m (benchmarks \w+|graphmill\.jobs\.papers\.\w+))((?: [^`\n]*)?)"
)


class Parsed(Exception):
    """Raised when the options have been read, so that the command measures nothing."""


def printed() -> list[tuple[str, str]]:
    commands = [(f"graphmill.jobs.{ours}" if ours else other, rest) for ours, other, rest in COMMAND.findall(TEXT)]
    commands = [(name.replace(" ", "."), rest) for name, rest in commands]
    return [(name, re.sub(r"<[^>]*>", "python", rest.replace("<model>", "grit"))) for name, rest in commands]


@pytest.mark.parametrize(("module", "arguments"), printed())
def test_a_printed_command_has_such_options(module: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = import_module(module)

    def stop(kind: type, *_: object) -> None:
        reader.parse(kind, words=words(arguments))
        raise Parsed

    monkeypatch.setattr(job, "parse", stop)
    with pytest.raises(Parsed):
        job.main()


def test_there_are_many_commands() -> None:
    assert len(printed()) >= 12


def test_performance_md_names_each_page() -> None:
    text = (REPOSITORY / FIGURES[0]).read_text()
    pages = set(re.findall(r"^## \[.*\]\((.*)\)$", text, re.M))
    assert {f"docs/{page}" for page in pages} == set(FIGURES[1:])


@pytest.mark.parametrize("page", FIGURES[1:])
def test_the_table_of_a_page_names_each_section(page: str) -> None:
    def anchor(heading: str) -> str:
        return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

    text = (REPOSITORY / page).read_text()
    anchors = {anchor(heading) for heading in re.findall(r"^###? (.*)", text, re.M)}
    links = set(re.findall(r"\]\(#([^)]*)\)", text))
    assert links <= anchors
    assert {name for heading in re.findall(r"^## (.*)", text, re.M) if (name := anchor(heading)) not in links} == set()
