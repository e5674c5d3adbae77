"""Pieces of self-contained HTML pages: one style for light and dark, desktop and phone, tables with captions, headline figures.

A page needs nothing from a network and runs no script: its content security policy refuses both, whatever text is in it. What is
given as text is escaped here; parameters that are named `html` are markup. Pages are well-formed as XML too.
"""

import html as markup
from collections.abc import Sequence
from dataclasses import dataclass

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

# Colours: text at 4.5:1 and lines at 3:1 against the cards' background at least (WCAG 2.1, AA), in both schemes.
LIGHT = {
    "page": "#f4f6f8", "card": "#ffffff", "text": "#1b2129", "muted": "#566170", "rule": "#d5dbe2", "axis": "#7d8896",
    "good": "#1a7f37", "bad": "#b42318", "series-0": "#0b66c3", "series-1": "#c2410c", "series-2": "#15803d",
    "series-3": "#7c3aed", "series-4": "#a16207", "series-5": "#be185d", "series-6": "#0e7490",
}  # fmt: skip
DARK = {
    "page": "#0e1217", "card": "#171c23", "text": "#e5eaf0", "muted": "#9eabba", "rule": "#313945", "axis": "#74808f",
    "good": "#56d364", "bad": "#ff8f85", "series-0": "#6cb2ff", "series-1": "#ff9d5c", "series-2": "#5fd38a",
    "series-3": "#b99cff", "series-4": "#e3b341", "series-5": "#ff8bc0", "series-6": "#56c8d8",
}  # fmt: skip

_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;
  -webkit-text-size-adjust:100%;text-size-adjust:100%}
main{max-width:1200px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:1.5em;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15em;margin:32px 0 10px}
p{margin:6px 0;overflow-wrap:anywhere}
.note{color:var(--muted)} .good{color:var(--good)} .bad{color:var(--bad)}
.grid-of-cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:14px;align-items:start}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:12px;margin:0;min-width:0}
.grid-of-cards+.card,.card+.card{margin-top:14px} .grid-of-cards>.card,dl.headline>.card{margin-top:0}
.card .note{font-size:.87em}
figcaption,caption{font-size:15px;font-weight:600;text-align:left;padding:0 0 6px;caption-side:top}
dl.headline{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(45%,160px),1fr));gap:10px;margin:16px 0}
dl.headline div{display:flex;flex-direction:column}
dl.headline dt{color:var(--muted);font-size:.85em;overflow-wrap:anywhere}
dl.headline dd{margin:0;font-size:1.3em;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
dl.headline dd.aside{font-size:.8em;font-weight:400;color:var(--muted)}
.scroll{overflow-x:auto;max-width:100%}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--series-0);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.9em;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px 4px 0;border-top:1px solid var(--rule);text-align:left;vertical-align:top}
td{overflow-wrap:anywhere}
th{font-weight:500;color:var(--muted)} thead th{border-top:0;vertical-align:bottom}
table.figures td,table.figures thead th:not(:first-child){text-align:right;white-space:nowrap;padding:4px 0 4px 14px}
tbody th{color:var(--text);font-weight:400} table.figures tbody th{min-width:7.5em}
summary{cursor:pointer;padding:4px 0}
ul{padding-left:20px} li{overflow-wrap:anywhere}
ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;margin:0 0 6px;padding:0;font-size:.85em}
ul.legend svg{width:24px;height:10px;margin-right:6px}
svg.plot{display:block;width:100%;height:auto;max-width:520px}
svg text{fill:var(--muted);font-size:12px}
svg .grid{stroke:var(--rule);fill:none} svg .axis{stroke:var(--axis);fill:none}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round} svg .dashed{stroke-dasharray:5 4}
svg .ring{fill:none;stroke:var(--text);stroke-width:1.5}
.bar{display:flex;height:22px;margin:8px 0;width:100%;border-radius:4px;overflow:hidden;background:var(--rule)}
.bar span{display:block;min-width:1px}
.swatch{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:7px;vertical-align:-1px}
@media (max-width:480px){table{font-size:.8em} table.figures td,table.figures thead th:not(:first-child){padding-left:8px}}
@media (min-width:760px){.grid-of-cards>.card:has(table.figures td:nth-child(4)){grid-column:span 2}}
@media print{body{background:none} .card{break-inside:avoid}}
"""


@dataclass(frozen=True)
class Figure:
    """One number of the headline."""

    name: str
    value: str
    aside: str = ""  # what it is to be compared with


def page(title: str, html: Sequence[str]) -> str:
    """A whole page; `html` is the markup of its body."""
    head = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        # An empty icon: a browser that is served the page asks for none.
        '<link rel="icon" href="data:,"/>',
        f"<title>{escape(title)}</title><style>{_style()}</style></head><body><main>",
    ]
    return "\n".join([*head, *html, "</main></body></html>\n"])


def _style() -> str:
    series = "".join(
        f"svg .line.s{k}{{stroke:var(--series-{k})}} svg .mark.s{k}{{fill:var(--series-{k})}} span.s{k}{{background:var(--series-{k})}}\n"
        for k in range(7)
    )
    light, dark = ("".join(f"--{name}:{value};" for name, value in scheme.items()) for scheme in (LIGHT, DARK))
    return f":root{{color-scheme:light dark;{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{_RULES}{series}"


def escape(text: str) -> str:
    """Text as markup, without characters that no page may hold (a terminal's colours in a message, for instance)."""
    return markup.escape("".join(c for c in text if c >= " " or c in "\n\t"))


def paragraph(text: str, kind: str = "") -> str:
    """`kind`: note, good, bad or nothing."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def headline(figures: Sequence[Figure]) -> str:
    """The numbers that a reader looks for first."""
    items = []
    for figure in figures:
        aside = f'<dd class="aside">{escape(figure.aside)}</dd>' if figure.aside else ""
        items.append(
            f'<div class="card"><dt>{escape(figure.name)}</dt><dd>{escape(figure.value)}</dd>{aside}</div>',
        )
    return f'<dl class="headline">{"".join(items)}</dl>'


def card(html: str) -> str:
    """A box of its own."""
    return f'<div class="card">{html}</div>'


def cards(html: Sequence[str]) -> str:
    """Cards beside each other where there is room, else below."""
    return "\n".join(['<div class="grid-of-cards">', *html, "</div>"])


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    figures: bool = False,
    meanings: Sequence[str] = (),
    swatches: Sequence[int | None] = (),
) -> str:
    """A table whose first column names the rows; `figures`: the others are numbers.

    What is wider than the screen scrolls inside its own box. `meanings`: what the columns mean, shown to a pointer. `swatches`: the
    colour that a row has in a drawing.
    """
    kind = ' class="figures"' if figures else ""
    lines = [
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"><table{kind}>',
        f"<caption>{escape(caption)}</caption>",
    ]
    if any(columns):
        told = [f' title="{escape(text)}"' for text in meanings] or [""] * len(columns)
        head = "".join(f'<th scope="col"{t}>{escape(c)}</th>' for c, t in zip(columns, told, strict=True))
        lines.append(f"<thead><tr>{head}</tr></thead>")
    lines.append("<tbody>")
    colours = swatches or [None] * len(rows)
    for row, colour in zip(rows, colours, strict=True):
        swatch = "" if colour is None else f'<span class="swatch s{colour}"></span>'
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        lines.append(f'<tr><th scope="row">{swatch}{escape(row[0])}</th>{cells}</tr>')
    return "\n".join([*lines, "</tbody></table></div>"])


def stacked_bar(title: str, parts: Sequence[tuple[str, float, int]]) -> str:
    """Shares of a whole, (name, amount, colour) each; a table beside it should hold the numbers."""
    whole = sum(amount for _, amount, _ in parts) or 1.0
    spans = "".join(
        f'<span class="s{colour}" style="width:{100 * amount / whole:.2f}%" title="{escape(name)}: {amount / whole:.1%}"></span>'
        for name, amount, colour in parts
        if amount > 0
    )
    told = escape(f"{title}: " + ", ".join(f"{name} {amount / whole:.0%}" for name, amount, _ in parts))
    return f'<div class="bar" role="img" aria-label="{told}">{spans}</div>'


def folded(title: str, html: str) -> str:
    """Markup that is shown on demand."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"
