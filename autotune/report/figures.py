"""What the figures of a report have in common; each is a dict as Plotly takes it.

Colours are names ("@m0", "@band0", "@text", ...): the page puts in those of its light or dark
theme. A method has one colour and one symbol in all figures. Text is escaped: Plotly reads HTML.
What was not measured is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from autotune.records import BASELINE
from autotune.report.data import Row, Span
from autotune.report.tables import factor, number
from autotune.wording import load_text

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
            "line": {"color": "@quiet", "width": 1.2, "dash": "dash"},
            "layer": "between"}  # fmt: skip
    label = {"xref": "paper", "x": 1, "y": y, "text": text, "showarrow": False,
             "xanchor": "right", "yanchor": "bottom",
             "font": {"size": 11, "color": "@quiet"}}  # fmt: skip
    return {"shapes": [line], "annotations": [label] if text else []}


def words_of(row: Row) -> str:
    """What a pointer on a measured candidate reads."""
    lines = [f"<b>{name_of(row)}</b> at concurrency {load_text(row.load)}, {row.status}"]
    lines.append(f"speed-up {factor(row.speedup)}, {number(row.rate, ',.1f')} tok/s")
    if row.acceptance_length:
        lines.append(f"{row.acceptance_length.value:.2f} tokens a round")
    if row.predicted:
        lines.append(f"predicted {factor(row.predicted)}")
    return "<br>".join(lines)
