"""Draws docs/images/rooms.svg: the folders and the floors of their rooms, as the contracts of import-linter in pyproject.toml say them."""

import textwrap
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

_ROW, _HEAD, _GAP, _MARGIN = 20, 26, 12, 8
_WIDTHS = {"models": 290}
_WIDTH = 430  # of a folder in the left column
_CHARACTER = 6.9  # width of one, at most


def contracts() -> tuple[list[str], dict[str, list[str]]]:
    """The folders, the upper one first, and each folder's floors, the upper one first; rooms of one floor are joined by " | "."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    order: list[str] = []
    floors = {}
    for contract in tomllib.loads(text)["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            folder = contract["containers"][0].removeprefix("graphmill").lstrip(".")
            if folder:
                floors[folder] = contract["layers"]
            else:
                order = contract["layers"]
    return order, floors


def _panel(folder: str, floors: list[str], x: int, y: int) -> tuple[list[str], int]:
    """The shapes of one folder, and its height."""
    width = _WIDTHS.get(folder, _WIDTH)
    wrapped = [textwrap.wrap(floor.replace(" | ", ", "), int((width - 20) / _CHARACTER)) for floor in floors]
    height = _HEAD + _ROW * sum(map(len, wrapped)) + (4 if floors else 0)
    shapes = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="#fff" stroke="#0b66c3"/>',
        f'<text x="{x + 10}" y="{y + 18}" font-weight="bold" fill="#0b66c3">{folder}/</text>',
    ]
    top = y + _HEAD
    for number, lines in enumerate(wrapped):
        if number % 2 == 0:
            shapes.append(
                f'<rect x="{x + 4}" y="{top}" width="{width - 8}" height="{_ROW * len(lines)}" fill="#eef3f8"/>'
            )
        for line in lines:
            shapes.append(f'<text x="{x + 10}" y="{top + 14}">{escape(line)}</text>')
            top += _ROW
    return shapes, height


def drawing() -> str:
    """The picture as SVG."""
    order, floors = contracts()
    shapes, y, tops = [], _MARGIN, {}
    for folder in order:
        tops[folder] = y
        panel, height = _panel(folder, floors.get(folder, []), _MARGIN, y)
        shapes += panel
        y += height + _GAP
    for below in order[1:]:
        x = _MARGIN + 60
        shapes.append(f'<path d="M{x} {tops[below] - _GAP} v{_GAP - 1}" stroke="#333" marker-end="url(#arrow)"/>')
    left = _MARGIN + _WIDTH + 3 * _GAP
    panel, _ = _panel("models", floors["models"], left, tops[order[1]])
    shapes += panel
    across = f"M{_MARGIN + _WIDTH} {tops[order[0]] + 13} H{left + 60} V{tops[order[1]] - 1}"
    shapes.append(f'<path d="{across}" fill="none" stroke="#333" marker-end="url(#arrow)"/>')
    width, height = left + _WIDTHS["models"] + _MARGIN, y - _GAP + _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    marker = (
        '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 1 L7 4 L0 7 z" fill="#333"/></marker></defs>'
    )
    style = 'font-family="DejaVu Sans, Arial, sans-serif" font-size="12" fill="#222"'
    ground = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([f"{head} {style}>", marker, ground, *shapes, "</svg>"]) + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "rooms.svg").write_text(drawing())
