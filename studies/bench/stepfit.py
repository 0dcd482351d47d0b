"""Draft and verify seconds of a step by N and batch, and how well a plain linear model fits them.

This is no part of spectune: it shows how much of the measured times such a model can explain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from autotune.records import BASELINE, BatchSteps, Plan, Window

MIN_STEPS = 5  # fewer of one N and batch are left out


class Timed(NamedTuple):
    """Steps of one method and N that held the same number of requests; seconds, means."""

    n: int
    requests: int
    steps: int
    tokens: float  # verified in a step
    draft: float | None
    verify: float


class Fit(NamedTuple):
    coefficients: tuple[float, ...]  # seconds
    measured: tuple[float, ...]
    fitted: tuple[float, ...]

    @property
    def median_error(self) -> float:
        return median(abs(f / m - 1) for f, m in zip(self.fitted, self.measured, strict=True))


def timed_steps(windows: Iterable[Window], method: str) -> list[Timed]:
    """All windows of a method pooled by N and requests, weighted by their steps.

    N = 0 only for the baseline: the in-engine reference of a method still drafts something.
    """
    groups: dict[tuple[int, int], list[BatchSteps]] = defaultdict(list)
    for window in windows:
        n = window.num_speculative_tokens
        if window.method == method and window.steps is not None and (n or method == BASELINE):
            for batch in window.steps.by_batch:
                groups[n, batch.requests].append(batch)
    pooled = [_pooled(*key, batches) for key, batches in sorted(groups.items())]
    return [timed for timed in pooled if timed.steps >= MIN_STEPS]


def _pooled(n: int, requests: int, batches: Sequence[BatchSteps]) -> Timed:
    steps = [batch.num_steps for batch in batches]

    def mean(values: Sequence[float]) -> float:
        return float(np.average(values, weights=steps))

    drafts = [b.draft_seconds_per_step for b in batches if b.draft_seconds_per_step is not None]
    return Timed(
        n=n,
        requests=requests,
        steps=sum(steps),
        tokens=mean([batch.verified_tokens_per_step for batch in batches]),
        draft=mean(drafts) if len(drafts) == len(batches) else None,
        verify=mean([batch.verify_seconds_per_step for batch in batches]),
    )


def draft_fit(found: Sequence[Timed]) -> Fit | None:
    """1, N, requests, N x requests: passes that cost something of their own and a request."""
    drafts = [t.draft for t in found if t.draft is not None]
    if not found or len(drafts) < len(found):
        return None
    return _fit(found, drafts, lambda t: [1.0, t.n, t.requests, t.n * t.requests])


def verify_fit(found: Sequence[Timed]) -> Fit | None:
    """1, requests, verified tokens: one pass of the target."""
    return _fit(found, [t.verify for t in found], lambda t: [1.0, t.requests, t.tokens])


def _fit(
    found: Sequence[Timed], seconds: Sequence[float], features: Callable[[Timed], list[float]]
) -> Fit | None:
    """Least squares of relative errors, weighted by the number of steps."""
    if not found:
        return None
    rows, measured = np.array([features(t) for t in found]), np.array(seconds)
    weights = np.sqrt([t.steps for t in found]) / measured
    solution, *_ = np.linalg.lstsq(rows * weights[:, None], measured * weights, rcond=None)
    return Fit(tuple(solution.tolist()), tuple(seconds), tuple((rows @ solution).tolist()))


def step_table(measured: Mapping[str, tuple[Plan, Sequence[Window]]]) -> str:
    """Markdown: the coefficients in milliseconds and the median error of both fits."""
    lines = [
        "| target | method | draft ms: 1, N, requests, N x requests | median error "
        "| verify ms: 1, requests, tokens | median error |",
        "|---|---|---|---|---|---|",
    ]
    for name, (plan, windows) in measured.items():
        for method in [space.method for space in plan.spaces]:
            found = timed_steps(windows, method)
            cells = [_cells(draft_fit(found)), _cells(verify_fit(found))]
            lines.append(f"| {name} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(fit: Fit | None) -> str:
    if fit is None:
        return "- | -"
    milliseconds = ", ".join(f"{1e3 * value:.3f}" for value in fit.coefficients)
    return f"{milliseconds} | {fit.median_error:.1%}"
