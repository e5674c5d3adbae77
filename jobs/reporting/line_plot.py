"""A line plot as an SVG for a page of `jobs.reporting.html_page`: small enough to be read on a phone, coloured by the page's style.

The drawing is 360 units wide, so a card of about that width shows its text at its own size. Names of lines are not in the drawing
but in an HTML legend above it, which wraps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.reporting.html_page import escape
from jobs.reporting.ratio_plot import Series

Scale = Literal["linear", "log", "log2"]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 230, 60, 10, 10, 38
NUM_COLOURS = 7  # of the style: --series-0 …
_MAX_MARKS = 60  # of a line: marks carry the values that a pointer shows, and more would hide the line
_LOG_RATIO = 50.0  # "auto" values that span more than this are drawn on a logarithmic axis


@dataclass(frozen=True)
class Line:
    """A series with its place in the page's colours; lines of one colour are told apart by their style."""

    series: Series
    colour: int


@dataclass(frozen=True)
class _Axis:
    scale: Scale
    low: float  # of the transformed values
    high: float
    ticks: list[float]

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1."""
        return (_transform(value, self.scale) - self.low) / (self.high - self.low)


def line_plot(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    *,
    x_scale: Scale = "linear",
    y_scale: Scale | Literal["auto"] = "auto",
    whole_x: bool = False,
    from_zero: bool = False,
    ring: tuple[float, float] | None = None,
) -> str:
    """The figure: its caption, a legend where there is more than one line, the drawing.

    Points that an axis cannot show (not finite, or not positive on a logarithmic one) are left out. `whole_x`: only whole numbers are
    ticks. `ring`: a point to mark, such as the best.
    """
    finite = [(x, y) for line in lines for x, y in line.series.points if math.isfinite(x) and math.isfinite(y)]
    chosen = _choose_scale([y for _, y in finite]) if y_scale == "auto" and not from_zero else y_scale
    y_kind: Scale = "linear" if chosen == "auto" else chosen
    shown = [(x, y) for x, y in finite if _can_show(x, x_scale) and _can_show(y, y_kind)]
    if not shown:
        return f'<figure class="card"><figcaption>{escape(title)}</figcaption><p class="note">Nothing to draw.</p></figure>'
    x_axis = _axis([x for x, _ in shown], x_scale, 4, whole=whole_x)
    y_axis = _axis([y for _, y in shown] + ([0.0] if from_zero else []), y_kind, 5)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x_axis.share(x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y_axis.share(y) * (HEIGHT - BOTTOM - TOP),
        )

    parts = [f'<figure class="card"><figcaption>{escape(title)}</figcaption>']
    if len(lines) > 1:
        parts.append(_legend(lines))
    described = f"{title}: {y_label} over {x_label}; {', '.join(line.series.name for line in lines)}"
    parts.append(f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(described)}">')
    parts += _grid(x_axis, y_axis, x_label, y_label)
    for line in lines:
        points = [(x, y) for x, y in line.series.points if math.isfinite(x) and math.isfinite(y)]
        points = [(x, y) for x, y in points if _can_show(x, x_scale) and _can_show(y, y_kind)]
        places = [place(x, y) for x, y in points]
        parts += _draw(line, points, places, x_label)
    if ring is not None and math.isfinite(ring[1]) and _can_show(ring[1], y_kind):
        x, y = place(*ring)
        parts.append(
            f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>best: {number(ring[1])} at {x_label} {number(ring[0])}'
            "</title></circle>"
        )
    return "\n".join([*parts, "</svg></figure>"])


def number(value: float) -> str:
    """A value in five significant digits, thousands without fractions."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.5g}"


def _draw(
    line: Line, points: Sequence[tuple[float, float]], places: Sequence[tuple[float, float]], x_label: str
) -> list[str]:
    kind = f"line s{line.colour % NUM_COLOURS} {line.series.style}"
    parts = []
    if line.series.style != "dot" and len(places) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path class="{kind}" d="M{path}"/>')
    stride = -(-len(points) // _MAX_MARKS)
    radius = 3 if len(points) <= 20 else 2
    for (x, y), (across, down) in list(zip(points, places, strict=True))[:: max(stride, 1)]:
        told = escape(f"{line.series.name}: {number(y)} at {x_label} {number(x)}")
        parts.append(
            f'<circle class="mark s{line.colour % NUM_COLOURS}" cx="{across:.1f}" cy="{down:.1f}" r="{radius}"><title>{told}</title></circle>'
        )
    return parts


def _legend(lines: Sequence[Line]) -> str:
    items = []
    for line in lines:
        kind = f"line s{line.colour % NUM_COLOURS} {line.series.style}"
        sample = f'<svg viewBox="0 0 24 10" aria-hidden="true"><path class="{kind}" d="M0 5H24"/></svg>'
        items.append(f"<li>{sample}{escape(line.series.name)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _grid(x_axis: _Axis, y_axis: _Axis, x_label: str, y_label: str) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y_axis.ticks:
        y = bottom - y_axis.share(tick) * (bottom - TOP)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick)}</text>')
    for tick in x_axis.ticks:
        x = LEFT + x_axis.share(tick) * (right - LEFT)
        parts.append(f'<path class="grid" d="M{x:.1f} {bottom}v4"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{_tick(tick)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="11" y="{middle}" transform="rotate(-90 11 {middle})" text-anchor="middle">{escape(y_label)}</text>'
    )
    return parts


def _tick(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 10 or (abs(value) >= size and size > 1e3):
            return f"{value / size:.4g}{letter}"
    if 0 < abs(value) < 0.01:
        digits, _, exponent = f"{value:.3e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:.4g}"


def _choose_scale(values: Sequence[float]) -> Scale:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return "log" if low > 0 and high / low > _LOG_RATIO else "linear"


def _can_show(value: float, scale: Scale) -> bool:
    """Differences of what can be shown are finite too."""
    return abs(value) <= 1e300 and (scale == "linear" or value > 0)


def _transform(value: float, scale: Scale) -> float:
    if scale == "linear":
        return value
    return math.log2(value) if scale == "log2" else math.log10(value)


def _axis(values: Sequence[float], scale: Scale, wanted: int, *, whole: bool = False) -> _Axis:
    """An axis that holds all values, with about `wanted` ticks at round numbers."""
    low, high = min(values), max(values)
    if scale == "linear":
        step = _round_step((high - low) / wanted or abs(high) / wanted or 1.0)
        step = max(step, 1.0) if whole else step
        if whole:  # numbers of epochs: the line fills the width
            ends = (low, high) if high > low else (low - 0.5, high + 0.5)
            first = math.ceil(low / step)
            return _Axis(scale, *ends, [k * step for k in range(first, math.floor(high / step) + 1)] or [low])
        first, last = math.floor(low / step), math.ceil(high / step)
        last = max(last, first + 1)
        return _Axis(scale, first * step, last * step, [k * step for k in range(first, last + 1)])
    base = 2.0 if scale == "log2" else 10.0
    lowest, highest = math.log(low, base), math.log(high, base)
    first, last = math.floor(lowest + 1e-9), math.ceil(highest - 1e-9)
    last = max(last, first + 1)
    if scale == "log" and last - first <= 2:  # within two decades, 2 and 5 are ticks too, and the ends lie at such
        marks = [m * 10.0**k for k in range(first, last + 1) for m in (1, 2, 5)]
        below = [m for m in marks if m <= low * (1 + 1e-9)][-1]
        above = next((m for m in marks if m >= high * (1 - 1e-9) and m > below), marks[-1])
        return _Axis(scale, math.log10(below), math.log10(above), [m for m in marks if below <= m <= above])
    stride = -(-(last - first) // 6)
    return _Axis(scale, float(first), float(last), [base**k for k in range(first, last + 1, stride)])


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))
