"""The two figures of `predict.py`: predicted against measured, and step times with their fit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from evaluate import Z95, Outcome
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


class Timed(NamedTuple):
    """Steps of one method and N that held the same number of requests; seconds."""

    n: int
    requests: int
    steps: int
    tokens: float  # verified in a step
    draft: float | None
    verify: float


def timed_steps(windows: Iterable[Window], method: str) -> list[Timed]:
    """All windows of a method pooled by N and requests, weighted by their steps."""
    groups: dict[tuple[int, int], list] = defaultdict(list)
    for window in windows:
        if window.method == method and window.steps is not None:
            for batch in window.steps.by_batch:
                groups[window.num_speculative_tokens, batch.requests].append(batch)
    return [_pooled(*key, batches) for key, batches in sorted(groups.items())]


def _pooled(n: int, requests: int, batches: Sequence) -> Timed:
    steps = [b.num_steps for b in batches]

    def mean(values: Sequence[float]) -> float:
        return float(np.average(values, weights=steps))

    drafts = [b.draft_seconds_per_step for b in batches]
    return Timed(
        n=n,
        requests=requests,
        steps=sum(steps),
        tokens=mean([b.verified_tokens_per_step for b in batches]),
        draft=None if any(d is None for d in drafts) else mean(drafts),
        verify=mean([b.verify_seconds_per_step for b in batches]),
    )


def fit(rows: Sequence[Sequence[float]], seconds: Sequence[float], weights: Sequence[float]):
    """Weighted least squares; the function that maps a row of features to seconds."""
    root = np.sqrt(np.array(weights))
    solution, *_ = np.linalg.lstsq(
        np.array(rows) * root[:, None], np.array(seconds) * root, rcond=None
    )
    return lambda row: float(np.dot(row, solution))


def draft_features(t: Timed) -> list[float]:
    """A pass costs something of its own and something a request, and there are N of them."""
    return [1.0, t.n, t.requests, t.n * t.requests]


def verify_features(t: Timed) -> list[float]:
    """One pass: something of its own, something a request and something a token."""
    return [1.0, t.requests, t.tokens]


def step_figure(measured: Measured) -> str:
    """Draft and verify milliseconds against N, one colour a batch size, lines fitted."""
    panels = []
    for name, (plan, windows) in measured.items():
        for method in [space.method for space in plan.spaces]:
            found = [t for t in timed_steps(windows, method) if t.n and t.steps >= 5]
            if found:
                panels += _panels(f"{method} ({name})", found)
        base = timed_steps(windows, BASELINE)
        panels.append(_baseline_panel(f"no speculation ({name})", base))
    return figure(panels, columns=3)


def _panels(title: str, found: Sequence[Timed]) -> list[Panel]:
    weights = [t.steps for t in found]
    panels = []
    drafted = [t.draft for t in found if t.draft is not None]
    if len(drafted) == len(found):
        model = fit([draft_features(t) for t in found], drafted, weights)
        fitted = [model(draft_features(t)) for t in found]
        panels.append(_panel(f"draft: {title}", found, drafted, fitted))
    verified = [t.verify for t in found]
    model = fit([verify_features(t) for t in found], verified, weights)
    fitted = [model(verify_features(t)) for t in found]
    panels.append(_panel(f"verify: {title}", found, verified, fitted))
    return panels


def _panel(
    title: str, found: Sequence[Timed], measured: Sequence[float], fitted: Sequence[float]
) -> Panel:
    series = []
    for colour, requests in enumerate(sorted({t.requests for t in found})):
        own = [i for i, t in enumerate(found) if t.requests == requests]
        dots = [(found[i].n, 1e3 * measured[i]) for i in own]
        line = [(found[i].n, 1e3 * fitted[i]) for i in own]
        series += [Series(f"batch {requests}", dots, colour), Series("", line, colour, line=True)]
    return Panel(title, "N", "ms per step", series, from_zero=True)


def _baseline_panel(title: str, base: Sequence[Timed]) -> Panel:
    points = [(t.requests, 1e3 * t.verify) for t in base]
    dots = [Series("", points, 6)]
    return Panel(title, "requests in the step", "ms per step", dots, from_zero=True)
