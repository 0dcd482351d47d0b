"""The figures of a report as plain Plotly figures (dicts): `{"data": [...], "layout": {...}}`.

Colours are names ("@m0", "@band0", "@text", ...): the page puts in those of its light or dark
theme. A method has one colour and one symbol in all figures. Text is escaped: Plotly reads HTML.
What was not measured is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from autotune.records import BASELINE, Recommendation, Status
from autotune.report_data import Curve, Load, Report, Row, Span
from autotune.report_tables import factor, load_text, number

Figure = dict[str, Any]
Trace = dict[str, Any]

# slots of the palette that a method takes if it is free, so that reports look alike
PREFERRED = {"mtp": 0, "gemma4_mtp": 0, "eagle3": 1, "dflash": 2, "dspark": 3, "ngram": 4,
             "draft_model": 5, "suffix": 6, "eagle": 7, "medusa": 3, "pard": 5}  # fmt: skip
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
SLOTS = len(SYMBOLS)
HEIGHT = 300  # pixels


class Marks:
    """Who has which colour and symbol: slots of the palette by method."""

    def __init__(self, methods: Iterable[str]) -> None:
        self.slots: dict[str, int] = {}
        for method in methods:
            taken = set(self.slots.values())
            wanted = PREFERRED.get(method)
            free = [slot for slot in range(SLOTS) if slot not in taken]
            if wanted is not None and wanted not in taken:
                self.slots[method] = wanted
            else:  # more methods than slots: colours come again
                self.slots[method] = free[0] if free else len(self.slots) % SLOTS

    def colour(self, method: str, kind: str = "m") -> str:
        return "@text" if method == BASELINE else f"@{kind}{self.slots[method]}"

    def symbol(self, method: str, *, hollow: bool = False) -> str:
        name = "line-ew" if method == BASELINE else SYMBOLS[self.slots[method]]
        return f"{name}-open" if hollow or method == BASELINE else name


def layout(x: str, y: str, **more: Any) -> Figure:
    """What all figures have in common; axes are named in `x` and `y`."""
    axis = {
        "gridcolor": "@grid", "linecolor": "@rule", "tickcolor": "@rule", "zeroline": False,
        "automargin": True, "fixedrange": True, "ticks": "outside", "ticklen": 4,
    }  # fmt: skip
    own_x, own_y = more.pop("xaxis", {}), more.pop("yaxis", {})
    title = {"font": {"size": 12}, "standoff": 8}
    return {
        "height": HEIGHT,
        "margin": {"l": 8, "r": 12, "t": 10, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 12, "color": "@text"},
        "hoverlabel": {"bgcolor": "@page", "bordercolor": "@rule", "font": {"color": "@text"}},
        "hovermode": "closest",
        "dragmode": False,  # a finger on a figure scrolls the page
        "showlegend": False,  # the page has one legend for all figures
        "xaxis": {**axis, "showgrid": False, "title": {"text": x, **title}, **own_x},
        "yaxis": {**axis, "title": {"text": y, **title}, **own_y},
        **more,
    }


def whole_numbers(values: Iterable[int]) -> Figure:
    """An axis of N or positions: ticks at whole numbers only."""
    values = sorted(set(values))
    step = max(1, (values[-1] - values[0]) // 8 + 1) if values else 1
    room = 0.5 if values and values[-1] - values[0] < 12 else 0.8
    ends = {"range": [values[0] - room, values[-1] + room]} if values else {}
    ticks = values if len(values) <= 9 else list(range(values[0], values[-1] + 1, step))
    return {"tickmode": "array", "tickvals": ticks, **ends}


def name_of(row: Row) -> str:
    return f"{escape(row.method)} N={row.n}"


def bars(spans: Sequence[Span], scale: float = 1.0, **more: Any) -> Figure:
    """Error bars; none where the source gives no interval."""
    up = [None if s.high is None else (s.high - s.value) * scale for s in spans]
    down = [None if s.low is None else (s.value - s.low) * scale for s in spans]
    if all(value is None for value in up):
        return {"visible": False}
    return {"type": "data", "array": up, "arrayminus": down, "width": 3, "thickness": 1.2, **more}


def horizontal(y: float, text: str = "") -> Figure:
    """Layout entries of a line across the figure."""
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y,
            "line": {"color": "@quiet", "width": 1.2, "dash": "dash"}, "layer": "between"}  # fmt: skip
    label = {"xref": "paper", "x": 1, "y": y, "text": text, "showarrow": False,
             "xanchor": "right", "yanchor": "bottom", "font": {"size": 11, "color": "@quiet"}}  # fmt: skip
    return {"shapes": [line], "annotations": [label] if text else []}


# ------------------------------------------------------------------------------ against N


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
        "text": [_hover(r) for r in rows], "hoverinfo": "text",
    }  # fmt: skip


def _hover(row: Row) -> str:
    lines = [f"<b>{name_of(row)}</b> at concurrency {load_text(row.load)}, {row.status}"]
    lines.append(f"speed-up {factor(row.speedup)}, {number(row.rate, ',.1f')} tok/s")
    if row.acceptance_length:
        lines.append(f"{row.acceptance_length.value:.2f} tokens a round")
    if row.predicted:
        lines.append(f"predicted {factor(row.predicted)}")
    return "<br>".join(lines)


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


# ------------------------------------------------------------------------------ over loads


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
            traces.append(_throughput(method, points, [_hover(r) for r in found], marks))
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
        Row(method=BASELINE, n=0, load=b.concurrency, status="probed", tpot_seconds=b.tpot_p50_seconds,
            rate=b.output_tokens_per_second)
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


# -------------------------------------------------------------------- predictions, the run


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
                "y": [s.value for s in measured], "text": [_hover(r) for r in own],
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
    more = {"shapes": [diagonal], "xaxis": axis, "yaxis": dict(axis), "height": 360}
    return {"data": traces, "layout": layout(*titles, **more)}
