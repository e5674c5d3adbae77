"""The tables, figures and claims of the five papers: each row has the paper's figure, our figure, and the command that runs the row.

published.csv: paper, table, row, published, ours (the figure and its place in docs/, or "not run"), command, status, reason (of a status that is not
"one command", or a remark). A command begins with `graphmill` or with `python -m graphmill.jobs.papers.`; data sets lie below `graphs/`.
"""

import csv
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from graphmill.core.errors import ConfigError

Status = Literal["one command", "in part", "not"]
STATUSES: tuple[Status, ...] = get_args(Status)
_FILE = Path(__file__).with_name("published.csv")
_DATA = "graphs/"  # folder of the ingested sets in the file's commands


@dataclass(frozen=True)
class PublishedRow:
    """One row of a paper's table, one figure or one claim."""

    paper: str
    table: str
    row: str
    published: str
    """The paper's figure."""
    ours: str
    """Our figure and where it stands; "not run"."""
    command: str
    status: Status
    reason: str

    def words(self, graphs: str = _DATA, more: Sequence[str] = ()) -> list[str]:
        """The words of the command after `graphmill` or `python -m`. `graphs`: folder of the ingested sets. `more`: words at the end, options of the training."""
        words = shlex.split(self.command)
        words = words[1:] if words[:1] == ["graphmill"] else words[2:]
        words = [
            graphs.rstrip("/") + "/" + word.removeprefix(_DATA) if word.startswith(_DATA) else word for word in words
        ]
        if words[0] == "reproduce" and graphs.rstrip("/") != _DATA.rstrip("/"):
            words += ["--graphs", graphs]
        return [*words, *(["--"] if more and words[0] in ("sweep", "reproduce") and "--" not in words else []), *more]


def read_rows() -> list[PublishedRow]:
    with _FILE.open(newline="", encoding="utf-8") as file:
        return [PublishedRow(**row) for row in csv.DictReader(file)]  # type: ignore[arg-type]


def select_rows(paper: str | None, table: str | None, names: Sequence[str] = ()) -> list[PublishedRow]:
    """The rows of a paper, of one of its tables, and with these names or numbers (from 1) within the table. Upper and lower case count as equal. Raises
    ConfigError with the known names for a name that is not there.
    """
    rows = read_rows()
    if paper is None:
        return rows
    rows = _named("paper", paper, rows, [row.paper for row in rows])
    if table is None:
        return rows
    rows = _named("table", table, rows, [row.table for row in rows])
    chosen: list[PublishedRow] = []
    for name in names:
        if name.isdecimal() and 1 <= int(name) <= len(rows):
            chosen.append(rows[int(name) - 1])
        else:
            chosen += _named("run", name, rows, [row.row for row in rows])
    return chosen if names else rows


def _named(option: str, name: str, rows: Sequence[PublishedRow], values: Sequence[str]) -> list[PublishedRow]:
    found = [row for row, value in zip(rows, values, strict=True) if value.casefold() == name.casefold()]
    if not found:
        known = ", ".join(dict.fromkeys(values))
        raise ConfigError(f"{option}: expected one of {known}, got {name}; `graphmill reproduce --list` lists all")
    return found
