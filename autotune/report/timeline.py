"""The figure of what was run when: a row for each engine start, a bar for each start and window."""

from __future__ import annotations

from html import escape
from typing import Any

from autotune.report.data import Event, Report
from autotune.report.events import START, arm_label
from autotune.report.figures import Figure, Marks, Trace, layout
from autotune.report.tables import number
from autotune.wording import duration, load_text

PATTERNS = {START: "/", "search": "", "reference": ".", "confirm": "x", "greedy": "-"}
ROW_HEIGHT = 26  # pixels
SHORT_SECONDS = 300.0  # runs up to this are shown in seconds
AXES = {
    "clock": "by the clock, from the first start on",
    "cost": "one after the other, by what the engine says each took",
    "order": "in order; the engine tells no times",
}


def timeline(report: Report, marks: Marks) -> Figure | None:
    """None where nothing was run."""
    if not report.events:
        return None
    arms = list(dict.fromkeys(event.arm for event in report.events))
    short = max(event.begin + event.seconds for event in report.events) < SHORT_SECONDS
    scale = 1.0 if report.axis == "order" or short else 1 / 60
    traces = []
    for kind in PATTERNS:
        for method in dict.fromkeys(event.method for event in report.events):
            own = [e for e in report.events if (e.kind, e.method) == (kind, method)]
            if own:  # one colour a trace: patterns take no list of them
                traces.append(_bars(own, kind, marks.colour(method), scale, report.axis))
    broken = [event for event in report.events if event.error is not None]
    if broken:
        traces.append(_crosses(broken, scale))
    rows = {
        "type": "category", "autorange": "reversed", "showgrid": False,
        "categoryorder": "array", "categoryarray": arms, "tickmode": "array", "tickvals": arms,
        "ticktext": [escape(arm_label(arm)) for arm in arms], "tickfont": {"size": 11},
    }  # fmt: skip
    height = 70 + ROW_HEIGHT * len(arms)
    unit = "" if report.axis == "order" else "seconds" if short else "minutes"
    figure = layout(unit, "", xaxis={"showgrid": True, "rangemode": "tozero"},
                    yaxis=rows, height=height, barmode="overlay", bargap=0.3)  # fmt: skip
    return {"data": traces, "layout": figure}


def _bars(events: list[Event], kind: str, colour: str, scale: float, axis: str) -> Trace:
    return {
        "type": "bar", "orientation": "h", "name": kind, "y": [event.arm for event in events],
        "base": [event.begin * scale for event in events],
        "x": [event.seconds * scale for event in events],
        "text": [_words(event, axis) for event in events], "hoverinfo": "text",
        "textposition": "none",
        "marker": {"color": colour, "line": {"width": 0},
                   "pattern": {"shape": PATTERNS[kind], "fillmode": "overlay",
                               "fgcolor": "@page", "size": 5, "solidity": 0.35}},
    }  # fmt: skip


def _words(event: Event, axis: str) -> str:
    took = "" if axis == "order" else f", {duration(event.seconds)}"
    if event.kind == START:
        words = f"engine start{took}"
        return words if event.error is None else f"{words}: {escape(event.error)}"
    n = f"N={event.n}, " if event.n else ""
    load = f"concurrency {load_text(event.load)}"
    return f"{n}{load}, {event.kind} block{took}<br>{number(event.rate, ',.1f')} tok/s"


def _crosses(events: list[Event], scale: float) -> Trace:
    marker: dict[str, Any] = {"symbol": "x-thin", "size": 11, "color": "@text"}
    return {
        "type": "scatter", "mode": "markers", "y": [event.arm for event in events],
        "x": [(event.begin + event.seconds) * scale for event in events],
        "text": [f"failed: {escape(event.error or '')}" for event in events],
        "hoverinfo": "text", "marker": {**marker, "line": {"width": 2.5, "color": "@text"}},
    }  # fmt: skip
