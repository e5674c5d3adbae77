"""A log-log plot as a self-contained SVG, without a plotting library."""

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 480, 70, 50, 40, 190
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#7f7f7f")


@dataclass(frozen=True)
class Series:
    """Points (x, y), both positive: joined by a line, a dashed one, or left single."""

    name: str
    points: list[tuple[float, float]]
    style: str = "line"  # line | dashed | dot


def log_log_svg(title: str, x_label: str, y_label: str, series: list[Series]) -> str:
    """The plot; x ticks at powers of two, y ticks at powers of ten."""
    points = [(x, y) for s in series for x, y in s.points if x > 0 and y > 0 and math.isfinite(y)]
    x_low, x_high = _span([math.log2(x) for x, _ in points])
    y_low, y_high = _span([math.log10(y) for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - x_low) / (x_high - x_low)
        up = (math.log10(y) - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="{(WIDTH - RIGHT + LEFT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for exponent in range(x_low, x_high + 1):
        x, y = place(2**exponent, 10**y_low)
        lines.append(f'<path d="M{x:.1f} {y:.1f}V{TOP}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">2^{exponent}</text>')
    for exponent in range(y_low, y_high + 1):
        x, y = place(2**x_low, 10**exponent)
        lines.append(f'<path d="M{x:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{10.0**exponent:g}</text>')
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(x, y) for x, y in one.points if x > 0 and y > 0 and math.isfinite(y)]
        if one.style != "dot" and len(places) > 1:
            dash = ' stroke-dasharray="6 4"' if one.style == "dashed" else ""
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if one.style != "dashed":
            lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places]
        y_legend = TOP + 12 + 20 * number
        lines.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{y_legend - 9}" width="14" height="10" fill="{colour}"/>')
        lines.append(f'<text x="{WIDTH - RIGHT + 32}" y="{y_legend}">{escape(one.name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _span(values: list[float]) -> tuple[int, int]:
    low, high = math.floor(min(values, default=0)), math.ceil(max(values, default=1))
    return low, max(high, low + 1)
