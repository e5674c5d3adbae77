"""Writes small SVG drawings without a plotting package: matrices as grey cells, and dots by column."""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

_CELL, _GAP, _TEXT = 6, 14, 12  # sizes in pixels


def write_matrices(path: Path, rows: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Writes one row of matrices for each name. A cell is as dark as its value in [0, 1]; values outside are cut off."""
    parts, top, width = [], 0, 200
    for name, matrices in rows.items():
        top += _TEXT
        parts.append(f'<text x="0" y="{top}" font-size="{_TEXT}">{escape(name)}</text>')
        left = 0
        for matrix in matrices:
            height, columns = matrix.shape
            parts.append(
                f'<rect x="{left}" y="{top + 4}" width="{_CELL * columns}" height="{_CELL * height}" fill="none" stroke="#999"/>'
            )
            size = f'x="{left}" y="{top + 4}" width="{_CELL * columns}" height="{_CELL * height}"'
            parts.append(
                f'<image {size} style="image-rendering: pixelated" href="data:image/png;base64,{_png(matrix)}"/>'
            )
            left += _CELL * columns + _GAP
        width = max(width, left)
        top += 4 + _CELL * max((len(matrix) for matrix in matrices), default=0) + _GAP
    _write(path, parts, width, top)


def _png(matrix: np.ndarray) -> str:
    """The matrix as a grey PNG in base64; 1 is black."""
    rows = (255 - np.round(255 * np.clip(matrix, 0, 1))).astype(np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def write_dots(path: Path, rows: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Writes one panel for each name: column k has a dot for each number of the k-th sequence, from 0 at the bottom to the largest number at the top."""
    parts, top, width, height = [], 0, 200, 120
    for name, columns in rows.items():
        most = max((value for column in columns for value in column), default=0) or 1
        top += _TEXT
        parts.append(f'<text x="0" y="{top}" font-size="{_TEXT}">{escape(name)}, 0 to {most:.2f}</text>')
        top += 4
        for place, column in enumerate(columns):
            x = 20 + 24 * place
            parts.append(f'<text x="{x - 4}" y="{top + height + _TEXT}" font-size="10">{place}</text>')
            parts += [
                f'<circle cx="{x}" cy="{top + height * (1 - value / most):.1f}" r="3" fill-opacity="0.6"/>'
                for value in column
            ]
        width, top = max(width, 40 + 24 * len(columns)), top + height + _TEXT + _GAP
    _write(path, parts, width, top)


def _write(path: Path, parts: Sequence[str], width: int, height: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    path.write_text("\n".join([head, *parts, "</svg>", ""]))
