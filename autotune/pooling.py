"""Several windows of one candidate taken together: sums first, ratios after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autotune import stats
from autotune.acceptance import StepRates
from autotune.records import BatchSteps, SpecCounters, Window


def pool_rates(rows: Sequence[StepRates]) -> StepRates:
    """Windows of one candidate at one N: weighted by the steps counted, else plain means."""
    counted = [row for row in rows if row.steps]
    rows = counted or list(rows)
    weights = [row.steps or 1.0 for row in rows]
    total = math.fsum(weights)
    rates = tuple(
        math.fsum(w * rate for w, rate in zip(weights, position, strict=True)) / total
        for position in zip(*(row.rates for row in rows), strict=False)
    )
    steps = total if counted else None
    return StepRates(rates, steps, exact=all(row.exact for row in rows))


def acceptance_figures(windows: Sequence[Window]) -> dict[str, Any]:
    """Acceptance length and rates per position: pooled counters where there are any."""
    counted = [w.counters for w in windows if w.counters is not None]
    if counted:
        counters = pool_counters(counted)
        return {
            "counters": counters,
            "acceptance_length": counters.acceptance_length,
            "per_position_acceptance_rates": counters.per_position_rates,
        }
    lengths = [w.acceptance_length for w in windows if w.acceptance_length is not None]
    return {
        "acceptance_length": stats.mean(lengths) if lengths else None,
        "per_position_acceptance_rates": windows[-1].per_position_acceptance_rates,
    }


def pool_counters(counters: Sequence[SpecCounters]) -> SpecCounters:
    """Sum first, divide after."""
    width = max(len(c.accepted_per_pos) for c in counters)
    return SpecCounters(
        num_drafts=sum(c.num_drafts for c in counters),
        num_draft_tokens=sum(c.num_draft_tokens for c in counters),
        num_accepted_tokens=sum(c.num_accepted_tokens for c in counters),
        accepted_per_pos=tuple(
            sum(c.accepted_per_pos[i] for c in counters if i < len(c.accepted_per_pos))
            for i in range(width)
        ),
    )


def step_figures(windows: Sequence[Window]) -> dict[str, float | None]:
    """Draft and verify seconds per step, each window weighted by its steps."""
    timed = [w.steps for w in windows if w.steps is not None and w.steps.num_steps]
    steps = sum(t.num_steps for t in timed)
    if not steps:
        return {}
    drafts = [(t.draft_seconds_per_step, t.num_steps) for t in timed]
    drafted = [(d, k) for d, k in drafts if d is not None]
    return {
        "draft_seconds_per_step": (
            math.fsum(d * k for d, k in drafted) / sum(k for _, k in drafted) if drafted else None
        ),
        "verify_seconds_per_step": math.fsum(t.verify_seconds_per_step * t.num_steps for t in timed)
        / steps,
        "step_seconds": math.fsum(t.step_seconds * t.num_steps for t in timed) / steps,
    }


def batch_figures(windows: Sequence[Window]) -> dict[int, BatchSteps]:
    """Decode steps apart by the number of requests they held, all windows pooled."""
    found: dict[int, list[BatchSteps]] = {}
    for window in windows:
        for batch in window.steps.by_batch if window.steps is not None else ():
            found.setdefault(batch.requests, []).append(batch)
    return {requests: _pooled(batches) for requests, batches in found.items()}


def _pooled(batches: Sequence[BatchSteps]) -> BatchSteps:
    """Means over all steps; a time that one window did not take is not known of all."""
    steps = sum(batch.num_steps for batch in batches)

    def mean(field: str) -> float | None:
        values = [(getattr(batch, field), batch.num_steps) for batch in batches]
        if any(value is None for value, _ in values):
            return None
        return math.fsum(value * weight for value, weight in values) / steps

    means = {field: mean(field) for field in BatchSteps.model_fields if field not in COUNTS}
    return BatchSteps(requests=batches[0].requests, num_steps=steps, **means)


COUNTS = ("requests", "num_steps")
