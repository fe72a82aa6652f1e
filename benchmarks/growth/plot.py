"""Small line charts as SVG, without a library. They follow the reader's colour scheme."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 616, 64, 284
_STYLE = """
text{font:12px system-ui,sans-serif;fill:#3d444d}.title{font-size:14px;font-weight:600;fill:#1f2328}
.grid{stroke:#d1d9e0;stroke-width:1}.line{fill:none;stroke-width:2}.end{text-anchor:end}.middle{text-anchor:middle}
.s0{stroke:#2a78d6}.s1{stroke:#d9480f}.s2{stroke:#2b8a3e}.s3{stroke:#9c36b5}
.p0{fill:#2a78d6}.p1{fill:#d9480f}.p2{fill:#2b8a3e}.p3{fill:#9c36b5}
@media (prefers-color-scheme:dark){text{fill:#b7bec8}.title{fill:#f0f6fc}.grid{stroke:#3d444d}
.s0{stroke:#6cb0ff}.s1{stroke:#ff9a5c}.s2{stroke:#69db7c}.s3{stroke:#d98cf0}
.p0{fill:#6cb0ff}.p1{fill:#ff9a5c}.p2{fill:#69db7c}.p3{fill:#d98cf0}}
"""

_TOLERANCE = 1.05
"""By which a value may lie outside of the last tick: 104,000 blocks are drawn on an axis that ends at 100k."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: The quantity and its unit.
        log: Whether equal distances are equal factors. Otherwise the axis begins at zero.
    """

    label: str
    log: bool = True


@dataclass(frozen=True)
class Plot:
    """A chart with up to four lines.

    Attributes:
        title: What it shows.
        x: The quantity that grows.
        y: What is measured.
        lines: The points of each line, by its name in the legend.
    """

    title: str
    x: Axis
    y: Axis
    lines: Mapping[str, Sequence[Point]]

    def svg(self) -> str:
        """The chart as an SVG document."""
        points = [point for line in self.lines.values() for point in line]
        across, x_ticks = _scale(self.x, [x for x, _ in points], _LEFT, _RIGHT)
        down, y_ticks = _scale(self.y, [y for _, y in points], _BOTTOM, _TOP)
        parts = [f'<text class="title" x="{_LEFT}" y="20">{escape(self.title)}</text>']
        for value in y_ticks:
            parts.append(f'<line class="grid" x1="{_LEFT}" y1="{down(value)}" x2="{_RIGHT}" y2="{down(value)}"/>')
            parts.append(f'<text class="end" x="{_LEFT - 8}" y="{down(value) + 4}">{_short(value)}</text>')
        for value in x_ticks:
            parts.append(f'<line class="grid" x1="{across(value)}" y1="{_BOTTOM}" x2="{across(value)}" y2="288"/>')
            parts.append(f'<text class="middle" x="{across(value)}" y="302">{_short(value)}</text>')
        parts.append(f'<text class="middle" x="{(_LEFT + _RIGHT) / 2}" y="326">{escape(self.x.label)}</text>')
        middle = (_TOP + _BOTTOM) / 2
        turned = f'transform="rotate(-90 16 {middle})"'
        parts.append(f'<text class="middle" x="16" y="{middle}" {turned}>{escape(self.y.label)}</text>')
        legend_at = _LEFT
        for number, (name, line) in enumerate(self.lines.items()):
            path = " ".join(f"{across(x)},{down(y)}" for x, y in line)
            parts.append(f'<polyline class="line s{number}" points="{path}"/>')
            for x, y in line:
                tooltip = f"<title>{escape(name)}: {_short(y)} at {_short(x)}</title>"
                parts.append(f'<circle class="p{number}" cx="{across(x)}" cy="{down(y)}" r="4">{tooltip}</circle>')
            parts.append(f'<rect class="p{number}" x="{legend_at}" y="36" width="10" height="10" rx="2"/>')
            parts.append(f'<text x="{legend_at + 15}" y="45">{escape(name)}</text>')
            legend_at += 35 + 6.6 * len(name)
        begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        return "\n".join([begin, f"<style>{_STYLE}</style>", *parts, "</svg>", ""])


def _scale(
    axis: Axis, values: Sequence[float], start: float, end: float
) -> tuple[Callable[[float], float], list[float]]:
    """From values to positions between two ends, and the values of the ticks."""
    if axis.log:
        rounds = [step * 10.0**power for power in range(-9, 13) for step in (1, 2, 5)]
        low = max(each for each in rounds if each <= min(values) * _TOLERANCE)
        high = min(each for each in rounds if each > low and each * _TOLERANCE >= max(values))
        inside = [each for each in rounds if low <= each <= high]
        ticks = inside if high <= 200 * low else [each for each in inside if f"{each:e}".startswith("1")]
        return lambda value: round(start + (end - start) * log10(value / low) / log10(high / low), 1), ticks
    step = _round_step(max(values) / 5)
    count = ceil(max(values) / step)
    return lambda value: round(start + (end - start) * value / (count * step), 1), [step * n for n in range(count + 1)]


def _round_step(least: float) -> float:
    power = 10.0 ** floor(log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _short(value: float) -> str:
    """A number as the axes show it: 0.05, 250, 16k, 10M."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"
