"""Tests that the program can print every message that docs/guides/operations.md explains, with the same words."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_VALUE = "\0"  # placeholder for a value that an f-string inserts
_FROM_ELSEWHERE = {"out of memory"}  # a message of Ray


def explained() -> list[str]:
    """Messages that the guide explains: texts in backquotes, in the first column of the table of messages or after the word "says"."""
    before, section = (REPOSITORY / "docs/guides/operations.md").read_text().split("## What a message means", 1)
    found = re.findall(r"says `([^`]+)`", before)
    for line in section.split("\n## ", 1)[0].splitlines():
        if line.startswith("| `"):
            found += re.findall(r"`([^`]+)`", line.split(" | ", 1)[0])
    return found


@cache
def said() -> str:
    """All text constants of the program, one on each line."""
    texts = []
    for folder in ("core", "storage", "samplers", "cluster", "jobs"):
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    pieces = [part.value if isinstance(part, ast.Constant) else _VALUE for part in node.values]
                    texts.append("".join(map(str, pieces)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in texts)


def pattern(message: str) -> str:
    """A pattern for a message: a word with a digit matches any value, and `…` matches anything."""
    words = [
        f"(?:{re.escape(word)}|\\S*{_VALUE}\\S*)" if re.search(r"\d", word) else re.escape(word).replace("…", ".*")
        for word in message.split(" ")
    ]
    return " ".join(words)


def is_said(message: str) -> bool:
    """True if the message is a text of the program, or a text with another text as its value, such as "cannot {what}" with "start a local Ray"."""
    if re.search(pattern(message), said()):
        return True
    words, lines = message.split(" "), set(said().splitlines())
    halves = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(1, len(words))]
    return any(
        (first in lines and f"{_VALUE} {second}" in said()) or (second in lines and f"{first} {_VALUE}" in said())
        for first, second in halves
    )


@pytest.mark.parametrize("message", explained())
def test_an_explained_message_is_said(message):
    assert message in _FROM_ELSEWHERE or is_said(message), "nothing says this"


def test_messages_are_found():
    assert len(explained()) >= 20
    assert not is_said("another writer published snapshot 3 yesterday")
