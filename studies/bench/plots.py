"""The two figures of `predict.py`: predicted against measured, and step times with their fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluate import Z95, Outcome
from stepfit import Fit, Timed, draft_fit, timed_steps, verify_fit
from svg import Panel, Series, figure

from autotune.records import BASELINE, Plan, Window

Measured = Mapping[str, tuple[Plan, Sequence[Window]]]


def write_plots(folder: Path, measured: Measured, outcomes: Sequence[Outcome]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "predicted-measured.svg").write_text(prediction_figure(outcomes))
    (folder / "step-times.svg").write_text(step_figure(measured))


def prediction_figure(outcomes: Sequence[Outcome]) -> str:
    """Speed-up predicted (with its 95 % interval) against measured, and the relative errors."""
    methods = list(dict.fromkeys((o.target, o.method) for o in outcomes))
    scatter, errors = [], []
    for colour, key in enumerate(methods):
        own = [o for o in outcomes if (o.target, o.method) == key]
        label = f"{key[1]} ({key[0]})"
        points = [(math.exp(o.measured), math.exp(o.predicted)) for o in own]
        bars = [Z95 * o.predicted_sd * math.exp(o.predicted) for o in own]
        scatter.append(Series(label, points, colour, bars=bars))
        spread = 0.12 * (colour - (len(methods) - 1) / 2)
        errors.append(Series(label, [(o.n + spread, 100 * o.error) for o in own], colour))
    return figure(
        [
            Panel("Speed-up", "measured", "predicted", scatter, diagonal=True),
            Panel("Error of the prediction", "N", "percent", errors, from_zero=True),
        ],
        columns=2,
    )


def step_figure(measured: Measured) -> str:
    """Draft and verify milliseconds against N, one colour a batch size, lines fitted."""
    panels = []
    for name, (plan, windows) in measured.items():
        for method in [space.method for space in plan.spaces]:
            found = timed_steps(windows, method)
            for what, fit in (("draft", draft_fit(found)), ("verify", verify_fit(found))):
                if fit is not None:
                    panels.append(_panel(f"{what}: {method} ({name})", found, fit))
        panels.append(_baseline_panel(f"no speculation ({name})", timed_steps(windows, BASELINE)))
    return figure(panels, columns=3)


def _panel(title: str, found: Sequence[Timed], fit: Fit) -> Panel:
    series = []
    for requests in sorted({t.requests for t in found}):
        own = [i for i, t in enumerate(found) if t.requests == requests]
        colour = requests - 1  # the same in every panel
        dots = [(found[i].n, 1e3 * fit.measured[i]) for i in own]
        line = [(found[i].n, 1e3 * fit.fitted[i]) for i in own]
        series += [Series(f"batch {requests}", dots, colour), Series("", line, colour, line=True)]
    return Panel(title, "N", "ms per step", series, from_zero=True)


def _baseline_panel(title: str, base: Sequence[Timed]) -> Panel:
    points = [(t.requests, 1e3 * t.verify) for t in base]
    dots = [Series("", points, 6)]
    return Panel(title, "requests in the step", "ms per step", dots, from_zero=True)
