"""Draws line plots with matplotlib as SVG. The SVG takes the colours of the page that contains it.

Names and labels are HTML, or are added after matplotlib has drawn. They never reach matplotlib, which would read some of them as formulas. Equal plots
give equal text. The drawing is 360 units wide, so a phone shows its text at full size.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree

from graphmill.jobs.reporting.page import number, printable

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Scale = Literal["linear", "log", "log2"]
Points = Sequence[tuple[float, float]]

NUM_COLOURS = 7  # number of series colours in the page's style: --series-0 …
# CSS names of the page's colours. matplotlib draws with placeholders: #0100 followed by the colour's position in this tuple.
_COLOURS = (*(f"series-{k}" for k in range(NUM_COLOURS)), "rule", "axis", "muted", "text")
_MAX_MARKS = 60  # maximum number of marks: more would hide the line (a mark shows its value under the pointer)
_FORMS = {"line": "o-", "dashed": "o--", "dot": "o", "ring": "o"}
_LOG_RATIO = 50.0  # "auto" axes are logarithmic if the ratio of the values exceeds this


@dataclass(frozen=True)
class Line:
    """A series: points joined by a solid or dashed line, separate points (dot, ring), or one value drawn as a dashed horizontal line."""

    name: str
    points: Points
    colour: int = 0
    style: Literal["line", "dashed", "dot", "level", "ring"] = "line"

    @property
    def stride(self) -> int:
        """Every `stride`-th point has a mark."""
        return max(-(-len(self.points) // _MAX_MARKS), 1)


@dataclass(frozen=True)
class Plot:
    """A plot with its labels. Leaves out points that an axis cannot show: values that are not finite or, on a logarithmic axis, not positive."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_scale: Scale = "linear"
    y_scale: Scale | Literal["auto"] = "auto"
    whole_x: bool = False  # ticks are whole numbers only
    from_zero: bool = False
    best: tuple[float, float] | None = None  # a point to mark

    def svg(self) -> "Markup | None":
        """The SVG drawing; None if no point can be shown."""
        from markupsafe import Markup

        y_scale = self.y_scale
        if y_scale == "auto":
            y_scale = _choose_scale([y for line in self.lines for _, y in line.points], self.from_zero)
        lines = [*self.lines, *([Line("best", [self.best], style="ring")] if self.best else [])]
        lines = [replace(x, points=[p for p in x.points if _fits(p, self.x_scale, y_scale)]) for x in lines]
        if not any(line.points for line in lines if line.style != "ring"):
            return None
        drawing = ElementTree.fromstring(self._draw(lines, y_scale))
        _adapt_to_page(drawing)
        names = ", ".join(line.name for line in self.lines)
        drawing.set("aria-label", printable(f"{self.title}: {self.y_label} over {self.x_label}; {names}"))
        for k, line in enumerate(lines):
            marks = drawing.findall(f".//g[@id='line-{k}']//use")  # a horizontal line has no marks
            for mark, (x, y) in zip(marks, line.points[:: line.stride]):
                label = f"{line.name}: {number(y)} at {self.x_label} {number(x)}"
                ElementTree.SubElement(mark, "title").text = printable(label)
        for element in drawing.iter("g"):
            element.attrib.pop("id", None)  # two drawings on one page would share the id
        return Markup(ElementTree.tostring(drawing, encoding="unicode"))

    def _draw(self, lines: Sequence[Line], y_scale: Scale) -> bytes:
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context():
            matplotlib.rcdefaults()  # ignores the user's matplotlibrc
            matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "graphmill", "font.size": 12})
            figure = Figure(figsize=(5, 2.9), frameon=False)
            axes = figure.add_axes((0.13, 0.1, 0.85, 0.86), facecolor="none")
            self._set_axes(axes, [point for line in lines for point in line.points], y_scale)
            for k, line in enumerate(lines):
                xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
                ring = line.style == "ring"
                colour = _placeholder("text" if ring else f"series-{line.colour % NUM_COLOURS}")
                if line.style == "level":
                    for y in ys:
                        axes.axhline(y, color=colour, linestyle="--", clip_on=False)
                    continue
                marks = axes.plot(xs, ys, _FORMS[line.style], color=colour, markevery=line.stride, clip_on=False)[0]
                marks.set(markersize=10 if ring else 5 if len(xs) <= 20 else 3, fillstyle="none" if ring else "full")
                marks.set_gid(f"line-{k}")
            text = io.BytesIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
        return text.getvalue()

    def _set_axes(self, axes: "Axes", points: Points, y_scale: Scale) -> None:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        if self.x_scale != "linear":
            axes.set_xscale("log", base=2 if self.x_scale == "log2" else 10)
        if y_scale != "linear":
            axes.set_yscale("log")
        _set_ticks(axes.xaxis, xs, self.x_scale, whole=self.whole_x)
        _set_ticks(axes.yaxis, ys, y_scale)
        if self.whole_x:  # for epochs, the line fills nearly the full width
            pad = (max(xs) - min(xs)) / 50 or 0.5
            axes.set_xlim(min(xs) - pad, max(xs) + pad)
        if self.from_zero:
            axes.update_datalim([(xs[0], 0.0)])
        axes.tick_params(which="both", length=0, labelcolor=_placeholder("muted"))
        axes.grid(axis="y", color=_placeholder("rule"), clip_on=False)
        axes.spines[["left", "top", "right"]].set_visible(False)
        axes.spines.bottom.set_color(_placeholder("axis"))


def _set_ticks(axis: "Axis", values: Sequence[float], scale: Scale, *, whole: bool = False) -> None:
    """Puts ticks at round numbers."""
    from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

    locator: Locator = MaxNLocator(6, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1 if whole else 2)
    if scale != "linear":
        near = max(values) < 100 * min(values)  # an axis of at most two decades also has ticks at 2 and 5
        locator = LogLocator(2) if scale == "log2" else LogLocator(10, subs=(1, 2, 5) if near else (1,), numticks=6)
        axis.set_minor_locator(NullLocator())
    axis.set_major_locator(locator)
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))


def tick_text(value: float) -> str:
    """Text of a tick's number, short enough for the margin."""
    if value and not 0.01 <= abs(value) < 1e12:
        digits, _, exponent = f"{value:.3e}".partition("e")
        return f"{float(digits):g}e{int(exponent)}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 10 or (abs(value) >= size and size > 1e3):
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _placeholder(name: str) -> str:
    return f"#0100{_COLOURS.index(name):02x}"


def _choose_scale(values: Sequence[float], from_zero: bool) -> Scale:
    usual = [value for value in values if _fits((0.0, value), "linear", "linear")]
    low, high = min(usual, default=0.0), max(usual, default=0.0)
    return "log" if low > 0 and high / low > _LOG_RATIO and not from_zero else "linear"


def _fits(point: tuple[float, float], *scales: Scale) -> bool:
    """Whether the axes can show a point. The bounds also keep matplotlib's own computations finite."""
    linear, log = (lambda v: abs(v) <= 1e300), (lambda v: 1e-140 < v < 1e140)
    return all(linear(v) if scale == "linear" else log(v) for v, scale in zip(point, scales, strict=True))


def _adapt_to_page(drawing: ElementTree.Element) -> None:
    """Adapts matplotlib's SVG to a page: with the page's colours and font."""
    for element in list(drawing.iter()):
        for child in [one for one in element if one.tag.rpartition("}")[2] in ("metadata", "style")]:
            element.remove(child)
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        style = re.sub(r"font-family:[^;]*;?", "", element.get("style", ""))
        element.set("style", re.sub(r"#0100(\w\w)", lambda match: f"var(--{_COLOURS[int(match[1], 16)]})", style))
    for name in ("width", "height", "version"):
        drawing.attrib.pop(name, None)
    drawing.attrib |= {"class": "plot", "role": "img"}
