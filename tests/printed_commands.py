"""Finds the commands in README.md, in the site's home page and in the guides. They are in code blocks or in backticks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_DOCS = REPOSITORY / "docs"
DOCUMENTS = (
    "README.md",
    "docs/index.md",
    *sorted(f"docs/guides/{path.name}" for path in (_DOCS / "guides").glob("*.md")),
)
FIGURES = (
    "docs/performance.md",
    *sorted(f"docs/performance/{path.name}" for path in (_DOCS / "performance").glob("*.md")),
)

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*(make|python|pip|ray|sbatch|source|export|kubectl|prometheus)\b")


@dataclass(frozen=True)
class Block:
    """A code block: consecutive lines of one document."""

    document: str
    language: str  # bash, python, text …
    text: str

    @property
    def name(self) -> str:
        """A name for a test: the document and the first words of the block."""
        return f"{Path(self.document).stem}: {' '.join(self.text.split()[:5])}"


def blocks(document: str) -> list[Block]:
    """All fenced blocks, and indented blocks with commands, in the order of the document."""
    text = (REPOSITORY / document).read_text()
    found = [(match.start(), match[1], match[2]) for match in _FENCED.finditer(text)]
    rest = _FENCED.sub(lambda match: "\n" * len(match[0]), text)
    for match in _INDENTED.finditer(rest):
        body = re.sub(r"^    ", "", match[0], flags=re.MULTILINE)
        if _PROGRAM.match(body):
            found.append((match.start(), "bash", body))
    return [Block(document, language, body) for _, language, body in sorted(found)]


def written_files() -> dict[str, str]:
    """The modules and recipes that a guide asks the reader to save, by file name."""
    guides = {name: blocks(f"docs/guides/{name}.md") for name in ("your_model", "your_sampler", "options")}
    code = {name: [one.text for one in guides[name] if one.language == "python"] for name in guides}
    (recipe,) = re.findall(r"<<'END'\n(.*?)^END$", "".join(one.text for one in guides["options"]), re.M | re.S)
    return {
        "my_sage.py": code["your_model"][0],
        "balanced.py": code["your_sampler"][0],
        "focal_loss.py": code["options"][-1],
        "recipe.yaml": recipe,
    }


def inline_spans(document: str) -> list[str]:
    """All texts in backticks outside of blocks."""
    return _INLINE.findall(_FENCED.sub("", (REPOSITORY / document).read_text()))


def inline_commands(document: str) -> list[str]:
    """The texts in backticks that are commands with arguments."""
    return [span for span in inline_spans(document) if _PROGRAM.match(span) and " " in span]


def lines(block: Block) -> Iterator[str]:
    """The commands of a shell block, as separate lines."""
    for line in block.text.replace("\\\n", " ").splitlines():
        yield from (part.strip() for part in line.split("&&"))


def words(command: str) -> list[str]:
    return shlex.split(command, comments=True)
