"""Figures against N: speed-up, acceptance, and where a round's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from autotune.records import BASELINE, Status
from autotune.report.data import Curve, Load, Report, Row
from autotune.report.figures import (
    Figure,
    Marks,
    Trace,
    bars,
    horizontal,
    layout,
    name_of,
    whole_numbers,
    words_of,
)
from autotune.report.tables import factor


def speedup(report: Report, marks: Marks, load: Load) -> Figure | None:
    """Measured speed-ups with intervals; the cost model's as a dashed line in a band."""
    rows = [r for r in report.rows if r.load == load and r.measured and r.speedup and r.n]
    curves = [c for c in report.curves if c.load == load]
    if not rows:
        return None
    traces: list[Trace] = []
    for curve in curves:
        traces += _band(curve, marks)
    for method in report.methods:
        own = sorted((r for r in rows if r.method == method), key=lambda r: r.n or 0)
        if own:
            traces.append(_points(own, marks, method, joined=not curves))
    spans = [r.speedup for r in rows if r.speedup]
    # a band may be as wide as ignorance is: the axis follows what was measured and expected
    ends = [v for s in spans for v in (s.value, s.low, s.high) if v is not None]
    ends += [s.value for c in curves for s in c.spans]
    low, high = min([*ends, 1.0]), max([*ends, 1.0])
    room = 0.06 * (high - low)
    lengths = [r.n for r in rows if r.n] + [n for c in curves for n in c.lengths]
    return {
        "data": traces,
        "layout": layout(
            "num_speculative_tokens (N)", "speed-up",
            xaxis=whole_numbers(lengths),
            yaxis={"range": [max(0.0, low - room), high + room], "ticksuffix": "x"},
            **horizontal(1.0, "no speculation"),
        ),
    }  # fmt: skip


def _band(curve: Curve, marks: Marks) -> list[Trace]:
    xs, spans = list(curve.lengths), curve.spans
    lows = [s.low if s.low is not None else s.value for s in spans]
    highs = [s.high if s.high is not None else s.value for s in spans]
    band = {
        "type": "scatter", "mode": "lines", "x": xs + xs[::-1], "y": highs + lows[::-1],
        "fill": "toself", "fillcolor": marks.colour(curve.method, "band"),
        "line": {"width": 0}, "hoverinfo": "skip",
    }  # fmt: skip
    line = {
        "type": "scatter", "mode": "lines", "x": xs, "y": [s.value for s in spans],
        "line": {"color": marks.colour(curve.method), "width": 1.2, "dash": "dot"},
        "text": [f"{escape(curve.method)} N={n}<br>cost model {factor(s)}"
                 for n, s in zip(xs, spans, strict=True)],
        "hoverinfo": "text",
    }  # fmt: skip
    return [band, line] if len(xs) > 1 else []


def _points(rows: Sequence[Row], marks: Marks, method: str, *, joined: bool) -> Trace:
    spans = [r.speedup for r in rows if r.speedup]
    hollow = [r.status == Status.PROBED.value for r in rows]
    return {
        "type": "scatter", "mode": "lines+markers" if joined else "markers",
        "x": [r.n for r in rows], "y": [s.value for s in spans],
        "error_y": bars(spans, color=marks.colour(method)),
        "line": {"color": marks.colour(method), "width": 1.4},
        "marker": {"color": marks.colour(method), "size": 9,
                   "line": {"width": 1.6, "color": marks.colour(method)},
                   "symbol": [marks.symbol(method, hollow=h) for h in hollow]},
        "text": [words_of(r) for r in rows], "hoverinfo": "text",
    }  # fmt: skip


def lengths(report: Report, marks: Marks, load: Load) -> Figure | None:
    """Acceptance length (tokens a round, the bonus token included) against N."""
    rows = [r for r in report.rows if r.load == load and r.measured and r.acceptance_length]
    traces = []
    for method in report.methods:
        own = sorted((r for r in rows if r.method == method), key=lambda r: r.n or 0)
        spans = [r.acceptance_length for r in own if r.acceptance_length]
        if own:
            traces.append({
                "type": "scatter", "mode": "lines+markers", "x": [r.n for r in own],
                "y": [s.value for s in spans], "error_y": bars(spans, color=marks.colour(method)),
                "line": {"color": marks.colour(method), "width": 1.4},
                "marker": {"color": marks.colour(method), "size": 8,
                           "symbol": marks.symbol(method)},
                "text": [f"<b>{name_of(r)}</b><br>{factor(s).replace('x', '')} tokens a round"
                         for r, s in zip(own, spans, strict=True)],
                "hoverinfo": "text",
            })  # fmt: skip
    if not traces:
        return None
    axes = {"xaxis": whole_numbers(r.n for r in rows if r.n)}
    return {"data": traces, "layout": layout("N", "tokens a round", **axes, height=250)}


def acceptance(report: Report, marks: Marks, load: Load, method: str) -> Figure | None:
    """Unconditional acceptance by position, a line for each N that ends at position N."""
    rows = [r for r in report.rows if (r.method, r.load) == (method, load) and r.acceptance]
    rows = sorted((r for r in rows if r.measured), key=lambda r: r.n or 0)
    if not rows:
        return None
    data = [_line(row, marks, last=row is rows[-1]) for row in rows]
    width = max(len(r.acceptance) for r in rows)
    axes = {"xaxis": whole_numbers(range(1, width + 1)),
            "yaxis": {"range": [0, 1.06], "tickformat": ".0%"}}  # fmt: skip
    axes["xaxis"]["range"] = [0.6, width + 0.9]
    return {"data": data, "layout": layout("position", "accepted", **axes, height=250)}


def _line(row: Row, marks: Marks, *, last: bool) -> Trace:
    """One N; the longest carries the intervals, which would hide each other."""
    colour = marks.colour(row.method)
    xs = list(range(1, len(row.acceptance) + 1))
    label = [""] * (len(xs) - 1) + [f" {row.n}"]
    return {
        "type": "scatter", "mode": "lines+markers+text", "x": xs,
        "y": [s.value for s in row.acceptance], "text": label, "textposition": "top right",
        "textfont": {"size": 11, "color": colour}, "cliponaxis": False,
        "error_y": bars(row.acceptance, color=colour) if last else {"visible": False},
        "line": {"color": colour, "width": 1.8 if last else 1.0},
        "marker": {"color": colour, "size": 6 if last else 4, "symbol": marks.symbol(row.method)},
        "hovertext": [f"<b>{name_of(row)}</b>, position {x}: {s.value:.1%}"
                      for x, s in zip(xs, row.acceptance, strict=True)],
        "hoverinfo": "text",
    }  # fmt: skip


PARTS = (("draft", "draft_seconds", ""), ("verify", "verify_seconds", "/"),
         ("rest", "rest_seconds", "."))  # fmt: skip


def round_time(report: Report, load: Load, method: str) -> Figure | None:
    """Where a round's time goes against N: stacked bars; `none` is a step without speculation."""
    rows = [r for r in report.rows if (r.method, r.load) == (method, load) and r.measured]
    rows = sorted((r for r in rows if r.verify_seconds is not None), key=lambda r: r.n or 0)
    if not rows:
        return None
    base = next((steps for steps in report.baseline_steps if steps[0] == load), None)
    plain = [] if base is None else [Row(method=BASELINE, n=0, load=load, status="probed",
                                         verify_seconds=base[1], rest_seconds=base[2])]  # fmt: skip
    shown = [*plain, *rows]
    names = ["none" if r.method == BASELINE else str(r.n) for r in shown]
    traces = []
    for part, field, pattern in PARTS:
        values = [getattr(r, field) for r in shown]
        if any(value is not None for value in values):
            traces.append({
                "type": "bar", "name": part, "x": names,
                "y": [None if value is None else value * 1e3 for value in values],
                "marker": {"color": f"@{part}", "line": {"color": "@page", "width": 0.5},
                           "pattern": {"shape": pattern, "fillmode": "overlay",
                                       "fgcolor": "@page", "size": 5, "solidity": 0.2}},
                "hovertemplate": f"N=%{{x}}: {part} %{{y:.2f}} ms<extra></extra>",
            })  # fmt: skip
    axes = {"xaxis": {"type": "category"}, "yaxis": {"range": [0, 1.05e3 * _longest(report, load)]}}
    more = {"barmode": "stack", "bargap": 0.25, "height": 250, **axes}
    return {"data": traces, "layout": layout("N", "ms a round", **more)}


def _longest(report: Report, load: Load) -> float:
    """The longest round at a load, in seconds: methods are compared on one scale."""
    rounds = [[r.draft_seconds, r.verify_seconds, r.rest_seconds]
              for r in report.rows if r.load == load and r.measured]  # fmt: skip
    rounds += [[verify, rest] for at, verify, rest in report.baseline_steps if at == load]
    return max(sum(part or 0.0 for part in parts) for parts in rounds)
