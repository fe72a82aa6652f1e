"""Prints a report as one HTML file: light and dark, plots as inline SVG, no scripts, nothing loaded from elsewhere."""

from collections.abc import Iterator
from html import escape

from gateway.evaluation.analysis.report_parts import Bars, Figures, Listing, Paragraph, ReportDocument

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --quiet: #59636e; --page: #fff; --line: #d1d9e0; --bar: #0f6cbd;
  --soft: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ed; --quiet: #9aa4af; --page: #14171a; --line: #343b43; --bar: #62aef0; --soft: #1d2126; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.1rem; color: var(--quiet); font-weight: 600; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
.verdict { font-size: 1.5rem; line-height: 1.35; font-weight: 600; margin: .5rem 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.25rem .3rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--soft); padding: 1rem; overflow-x: auto; font-size: .85rem; border-radius: 6px; }
figure { margin: 1rem 0; }
figcaption { color: var(--quiet); font-size: .9rem; margin-bottom: .25rem; }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--text); font: 13px system-ui, sans-serif; }
svg .value { fill: var(--quiet); }
svg rect { fill: var(--bar); }
"""

_LABEL_WIDTH, _PLOT_WIDTH, _VALUE_WIDTH = 230, 420, 70
_ROW, _BAR = 22, 14
_LABEL_CHARS = 34


def as_html(document: ReportDocument) -> str:
    """The report as a complete HTML document."""
    return "\n".join(_html(document)) + "\n"


def _html(document: ReportDocument) -> Iterator[str]:
    title = escape(document.title)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>"
    yield f'<h1>{title}</h1>\n<p class="verdict">{escape(document.verdict)}</p>'
    for section in document.sections:
        yield f"<section>\n<h2>{escape(section.title)}</h2>"
        for part in section.parts:
            match part:
                case Paragraph():
                    yield f"<p>{escape(part.text)}</p>"
                case Listing():
                    yield f"<pre>{escape(part.text)}</pre>"
                case Figures():
                    yield from _table(part)
                case Bars():
                    yield f"<figure>\n<figcaption>{escape(part.title)}</figcaption>"
                    yield from _plot(part)
                    yield "</figure>"
        yield "</section>"
    yield "</main>\n</body>\n</html>"


def _table(figures: Figures) -> Iterator[str]:
    classes = ["" if number < figures.texts else ' class="number"' for number in range(len(figures.heads))]
    yield '<div class="wide"><table>\n<thead><tr>'
    yield "".join(
        f'<th scope="col"{style}>{escape(head)}</th>' for head, style in zip(figures.heads, classes, strict=True)
    )
    yield "</tr></thead>\n<tbody>"
    for row in figures.rows:
        cells = "".join(f"<td{style}>{escape(cell)}</td>" for cell, style in zip(row, classes, strict=True))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


def _plot(bars: Bars) -> Iterator[str]:
    width, height = _LABEL_WIDTH + _PLOT_WIDTH + _VALUE_WIDTH, _ROW * len(bars.bars)
    largest = max((share for _, share in bars.bars), default=0.0) or 1.0
    said = escape(bars.title + ": " + ", ".join(f"{label} {100 * share:.1f} %" for label, share in bars.bars))
    yield f'<svg role="img" aria-label="{said}" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    for number, (label, share) in enumerate(bars.bars):
        top = number * _ROW
        middle = top + _ROW - 7
        length = round(share / largest * _PLOT_WIDTH, 1)
        shown = label if len(label) <= _LABEL_CHARS else label[: _LABEL_CHARS - 1] + "…"
        yield f'<text x="{_LABEL_WIDTH - 10}" y="{middle}" text-anchor="end">{escape(shown)}</text>'
        yield f'<rect x="{_LABEL_WIDTH}" y="{top + 4}" width="{max(length, 1)}" height="{_BAR}" rx="2"></rect>'
        yield f'<text class="value" x="{_LABEL_WIDTH + length + 8}" y="{middle}">{100 * share:.1f} %</text>'
    yield "</svg>"
