"""Every benchmark and paper's experiment that docs/performance.md prints has such options; its links lead to its own sections."""

import re
from importlib import import_module

import pytest

from graphmill.jobs.config import reader
from tests.printed_commands import REPOSITORY, words

DOCUMENT = "docs/performance.md"
TEXT = (REPOSITORY / DOCUMENT).read_text()
COMMAND = re.compile(
    r"(?:graphmill (bench \w+)|python -m (benchmarks \w+|graphmill\.jobs\.papers\.\w+))((?: [^`\n]*)?)"
)


class Parsed(Exception):
    """The options were read; nothing is measured."""


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


def test_the_summary_names_each_section() -> None:
    def anchor(heading: str) -> str:
        return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

    anchors = {anchor(heading) for heading in re.findall(r"^## (.*)", TEXT, re.M)}
    links = set(re.findall(r"\]\(#([^)]*)\)", TEXT))
    assert links <= anchors
    assert {name for name in anchors - links if not name.startswith(("one-value", "ray-"))} == set()
    assert len(printed()) >= 12
