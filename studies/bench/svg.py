"""Small scatter and line plots as SVG text: panels in a grid, no library, no fonts to embed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 300, 230  # of one panel, pixels
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 36  # margins around its axes
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
Points = Sequence[tuple[float, float]]  # (x, y)


@dataclass(frozen=True)
class Series:
    """Points of one colour; `line` joins them, otherwise they are dots with vertical bars."""

    label: str
    points: Points
    colour: int = 0
    line: bool = False
    bars: Sequence[float] = ()  # half the height of each point's bar, in units of y


@dataclass(frozen=True)
class Panel:
    title: str
    x: str
    y: str
    series: Sequence[Series]
    diagonal: bool = False  # draw y = x, both axes with the same range
    from_zero: bool = False  # the y axis holds 0, where a line is drawn

    def limits(self) -> tuple[float, float, float, float]:
        """(x low, x high, y low, y high) with some room around the points."""
        xs = [x for s in self.series for x, _ in s.points]
        ys = [y for s in self.series for _, y in s.points]
        if self.diagonal:
            xs = ys = xs + ys
        if self.from_zero:
            ys = [0.0, *ys]
        return (*_room(xs), *_room(ys))


def figure(panels: Sequence[Panel], columns: int = 3) -> str:
    """The whole file. The legend of all panels stands below: one entry per label."""
    rows = math.ceil(len(panels) / columns)
    labels = {s.label: s for panel in panels for s in panel.series if s.label}
    width, below = WIDTH * min(columns, len(panels)), rows * HEIGHT
    entries = _legend(list(labels.values()), width, below)
    height = below + 18 * len({y for _, _, y in entries}) + 8
    body = [
        f'<g transform="translate({WIDTH * (i % columns)},{HEIGHT * (i // columns)})">'
        f"{_panel(panel)}</g>"
        for i, panel in enumerate(panels)
    ]
    for series, x, y in entries:
        body.append(_mark(series, x + 6, y - 4) + _text(series.label, x + 16, y))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11" fill="#222">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _panel(panel: Panel) -> str:
    x0, x1, y0, y1 = panel.limits()
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x0) / (x1 - x0) * (right - LEFT),
            bottom - (y - y0) / (y1 - y0) * (bottom - TOP),
        )

    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">{escape(panel.title)}</text>']
    for tick in ticks(x0, x1):
        x, _ = at(tick, y0)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#eee"/>')
        parts.append(_text(f"{tick:g}", x, bottom + 13, "middle"))
    for tick in ticks(y0, y1):
        _, y = at(x0, tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#eee"/>')
        parts.append(_text(f"{tick:g}", LEFT - 4, y + 4, "end"))
    if panel.diagonal:
        (a, b), (c, d) = at(x0, x0), at(x1, x1)
        parts.append(f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" stroke="#888"/>')
    if panel.from_zero:
        parts.append(f'<path d="M{LEFT} {at(x0, 0)[1]:.1f}H{right}" stroke="#888"/>')
    parts += [_series(series, at) for series in panel.series]
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#666"/>')
    parts.append(_text(panel.x, (LEFT + right) / 2, HEIGHT - 8, "middle"))
    upright = f'<g transform="translate(11,{(TOP + bottom) / 2}) rotate(-90)">'
    parts.append(upright + _text(panel.y, 0, 0, "middle") + "</g>")
    return "".join(parts)


def _text(words: str, x: float, y: float, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _series(series: Series, at) -> str:
    colour = COLOURS[series.colour % len(COLOURS)]
    placed = [at(x, y) for x, y in series.points]
    if series.line:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
    bars = [
        f'<path d="M{at(x, y - bar)[0]:.1f} {at(x, y - bar)[1]:.1f}V{at(x, y + bar)[1]:.1f}" '
        f'stroke="{colour}" opacity=".35"/>'
        for (x, y), bar in zip(series.points, series.bars, strict=False)
    ]
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in placed]
    return "".join(bars + dots)


def _mark(series: Series, x: float, y: float) -> str:
    colour = COLOURS[series.colour % len(COLOURS)]
    if series.line:
        return f'<path d="M{x - 6} {y}h12" stroke="{colour}" stroke-width="1.3"/>'
    return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'


def _legend(
    entries: Sequence[Series], width: float, top: float
) -> list[tuple[Series, float, float]]:
    """(series, x, y) of each entry, wrapped at the figure's width."""
    placed, x, y = [], 12.0, top + 16
    for series in entries:
        needs = 26 + 6.2 * len(series.label)
        if x > 12 and x + needs > width:
            x, y = 12.0, y + 18
        placed.append((series, x, y))
        x += needs
    return placed


def _room(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between low and high: 1, 2 or 5 times a power of ten apart."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step) + 1)]
