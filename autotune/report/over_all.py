"""Figures over all candidates: throughput against load, against latency, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.records import BASELINE, Recommendation
from autotune.report.data import Report, Row
from autotune.report.figures import Figure, Marks, Trace, bars, layout, name_of, words_of
from autotune.report.tables import number
from autotune.wording import load_text


def over_loads(report: Report, marks: Marks) -> Figure | None:
    """Throughput against concurrency: no speculation, and each method's best N at each load."""
    loads = [load for load in report.loads if load is not None]
    base = [(b.concurrency, b.output_tokens_per_second) for b in report.baseline if b.concurrency]
    if len(base) < 2:
        return None
    traces = [_throughput(BASELINE, base, ["no speculation"] * len(base), marks)]
    for method in report.methods:
        own = [r for r in report.rows if r.method == method and r.measured and r.rate]
        best = [max((r for r in own if r.load == load), key=lambda r: r.rate or 0, default=None)
                for load in loads]  # fmt: skip
        found = [r for r in best if r is not None]
        points = [(r.load, r.rate) for r in found]
        if points:
            traces.append(_throughput(method, points, [words_of(r) for r in found], marks))
    ticks = {"type": "log", "tickmode": "array", "tickvals": loads,
             "ticktext": [str(load) for load in loads]}  # fmt: skip
    y = {"type": "log", "dtick": "D2", "tickformat": ",.3~r"}
    return {
        "data": traces,
        "layout": layout("concurrency", "output tokens/s", xaxis=ticks, yaxis=y, height=340),
    }


def _throughput(
    method: str, points: Sequence[tuple[Any, Any]], words: list[str], marks: Marks
) -> Trace:
    return {
        "type": "scatter", "mode": "lines+markers", "x": [x for x, _ in points],
        "y": [y for _, y in points], "text": words, "hoverinfo": "text+y",
        "line": {"color": marks.colour(method), "width": 1.6,
                 "dash": "dash" if method == BASELINE else "solid"},
        "marker": {"color": marks.colour(method), "size": 8, "symbol": marks.symbol(method),
                   "line": {"width": 1.6, "color": marks.colour(method)}},
    }  # fmt: skip


def pareto(report: Report, marks: Marks, r: Recommendation | None) -> Figure | None:
    """All measured points by throughput and latency; the front is joined and named."""
    rows = [row for row in report.rows if row.measured and row.rate and row.tpot_seconds]
    plain = [
        Row(method=BASELINE, n=0, load=b.concurrency, status="probed",
            rate=b.output_tokens_per_second, tpot_seconds=b.tpot_p50_seconds)
        for b in report.baseline if b.tpot_p50_seconds
    ]  # fmt: skip
    if not rows:
        return None
    traces: list[Trace] = []
    front = r.pareto if r is not None else ()
    if front:
        traces.append({
            "type": "scatter", "mode": "lines", "hoverinfo": "skip",
            "x": [p.output_tokens_per_second for p in front],
            "y": [p.tpot_p50_seconds * 1e3 for p in front],
            "line": {"color": "@quiet", "width": 1.2, "shape": "vh"},
        })  # fmt: skip
    best = {(p.method, p.num_speculative_tokens, p.concurrency) for p in front}
    for method in (BASELINE, *report.methods):
        own = [row for row in (*plain, *rows) if row.method == method]
        on = [(row.method, row.n or 0, row.load) in best for row in own]
        if own:
            traces.append(_cloud(own, on, marks, method))
    wide = len({row.load for row in rows}) > 1
    x = {"type": "log", "dtick": "D2", "tickformat": ",.3~r"} if wide else {}
    y = {"type": "log", "dtick": "D2", "tickformat": ",.3~r"} if wide else {"rangemode": "tozero"}
    titles = ("output tokens/s of the engine", "ms per output token (p50)")
    return {"data": traces, "layout": layout(*titles, xaxis=x, yaxis=y, height=380)}


def _cloud(rows: Sequence[Row], on_front: Sequence[bool], marks: Marks, method: str) -> Trace:
    def words(row: Row) -> str:
        what = "no speculation" if row.method == BASELINE else name_of(row)
        return (
            f"<b>{what}</b> at concurrency {load_text(row.load)}<br>{number(row.rate, ',.1f')}"
            f" tok/s, {number(row.tpot_seconds, '.2f', 1e3)} ms a token"
        )

    return {
        "type": "scatter", "mode": "markers", "x": [row.rate for row in rows],
        "y": [(row.tpot_seconds or 0) * 1e3 for row in rows],
        "text": [words(row) for row in rows], "hoverinfo": "text",
        "marker": {"color": marks.colour(method),
                   "line": {"width": 1.6, "color": marks.colour(method)},
                   "size": [11 if on else 7 for on in on_front], "opacity": 1,
                   "symbol": [marks.symbol(method, hollow=not on) for on in on_front]},
    }  # fmt: skip


def predictions(report: Report, marks: Marks) -> Figure | None:
    """Speed-ups predicted before a candidate was measured, against what was then measured."""
    rows = [r for r in report.rows if r.measured and r.predicted and r.speedup]
    if not rows:
        return None
    traces = []
    for method in report.methods:
        own = [r for r in rows if r.method == method]
        predicted = [r.predicted for r in own if r.predicted]
        measured = [r.speedup for r in own if r.speedup]
        if own:
            traces.append({
                "type": "scatter", "mode": "markers", "x": [s.value for s in predicted],
                "y": [s.value for s in measured], "text": [words_of(r) for r in own],
                "hoverinfo": "text",
                "error_x": bars(predicted, color=marks.colour(method, "soft")) | {"width": 0},
                "error_y": bars(measured, color=marks.colour(method)) | {"width": 0},
                "marker": {"color": marks.colour(method), "size": 8,
                           "symbol": marks.symbol(method)},
            })  # fmt: skip
    values = [s.value for r in rows for s in (r.predicted, r.speedup) if s]
    room = 0.08 * (max(values) - min(values)) + 0.02
    ends = [min(values) - room, max(values) + room]
    diagonal = {"type": "line", "x0": ends[0], "y0": ends[0], "x1": ends[1], "y1": ends[1],
                "line": {"color": "@rule", "width": 1.2}, "layer": "below"}  # fmt: skip
    axis = {"range": ends, "ticksuffix": "x"}
    titles = ("predicted speed-up", "measured speed-up")
    more: dict[str, Any] = {"shapes": [diagonal], "xaxis": axis, "yaxis": dict(axis), "height": 360}
    return {"data": traces, "layout": layout(*titles, **more)}
