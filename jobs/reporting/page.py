"""Builds pages from the templates of this package, and formats numbers and tables for them.

A page is one file. It needs no network and runs no script; its content security policy refuses both. Every value is escaped.
"""

import csv
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmill.jobs.records.run_record import flat_text, is_number, setting_text

if TYPE_CHECKING:
    import fsspec
    from jinja2 import Environment

_MARK, _HEAD = b'<meta name="generator" content="Graphmill"/>', 1 << 10  # a page has this mark in its first _HEAD bytes


def render(template: str, **values: Any) -> str:
    """The page: the template filled with these values. The page is also well-formed XML."""
    return _environment().get_template(template).render(values)


def check_page(path: Path) -> None:
    """Raises ConfigError if `path` exists and is not a page that Graphmill wrote."""
    from graphmill.storage.filesystem.outputs import check_output

    check_output(path, "a report", _strangers, is_file=True)


def _strangers(_: "fsspec.AbstractFileSystem", path: str) -> list[str]:
    with open(path, "rb") as stream:
        return [] if _MARK in stream.read(_HEAD) else [path]


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("graphmill.jobs.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {"duration": duration, "flat": flat_text, "value": value_text, "when": when}
    environment.filters["setting_text"] = setting_text
    environment.tests["finite"] = is_number
    return environment


def printable(text: str) -> str:
    """The text without characters that XML refuses, for example colour codes of a terminal or half of a surrogate pair."""
    return "".join(c for c in text if c >= " " or c in "\n\t").encode("utf-8", "backslashreplace").decode()


def number(value: float) -> str:
    """Formats a value with five significant digits; from a thousand on, without fractions."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.5g}"


def short_number(value: float) -> str:
    """Formats a value with three significant digits; from a thousand on, with k, M or G. Whole numbers below 1,000 stay whole."""
    if abs(value) < 1e3 and value == int(value):
        return f"{value:.0f}"
    value = float(f"{value:.3g}")
    scale, letter = next(((s, x) for s, x in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if abs(value) >= s), (1.0, ""))
    return f"{value / scale:#.3g}".rstrip(".") + letter


def value_text(value: Any) -> str:
    """`number(value)`, or a dash if `value` is not a number."""
    return number(value) if is_number(value) else "–"


def duration(seconds: float) -> str:
    """Formats a time in seconds, minutes or hours."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def when(time: str) -> str:
    """Formats a recorded time (2026-01-01T10:00:00+00:00) for people."""
    return time.replace("+00:00", " UTC").replace("T", " ", 1)


def print_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file. Each name that any row has gets a column."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)
