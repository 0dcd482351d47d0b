"""Whether a schedule that was measured beat the one static N, load by load and over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from autotune import stats
from autotune.confirm import log_ratios
from autotune.evidence import mean_rate
from autotune.knowledge import Knowledge, Load
from autotune.limits import keeps, share_within
from autotune.records import (
    Confirmation,
    Interval,
    Plan,
    ScheduleLoad,
    ScheduleTrial,
    Window,
    scheduled_length,
)
from autotune.schedule import Proposal

Windows = Mapping[Load, tuple[Window, ...]]


class Sides(NamedTuple):
    """Held-out windows by load, of the schedule and of the static N on the same blocks."""

    ours: Windows
    static: Windows


def trial_of(proposal: Proposal, outcome: str, reason: str, **figures: Any) -> ScheduleTrial:
    """What the proposal came to; `figures` are the trial's measured fields."""
    return ScheduleTrial.model_validate(
        {
            "method": proposal.method,
            "tiers": proposal.tiers,
            "static_num_speculative_tokens": proposal.static,
            "predicted_versus_static": math.exp(proposal.log_gain),
            "outcome": outcome,
            "reason": reason,
            **figures,
        }
    )


def over_loads(
    plan: Plan,
    ratios: Mapping[Load, Sequence[float]],
    *,
    common_sd: float = 0.0,
    beside: Mapping[Load, Sequence[float]] | None = None,
) -> Interval:
    """Geometric mean over the plan's loads, one value per held-out block.

    `common_sd` and `beside`, by load: see `stats.ratio_interval`.
    """
    others = by_block(plan, beside) if beside else ()
    return stats.ratio_interval(
        by_block(plan, ratios), plan.settings.confidence, common_sd=common_sd, beside=others
    )


def by_block(plan: Plan, ratios: Mapping[Load, Sequence[float]]) -> list[float]:
    """The mean over the plan's loads of each block that all of them have."""
    each = zip(*(ratios[load] for load in plan.concurrencies), strict=False)
    return [stats.mean(block) for block in each]


def judge(
    knowledge: Knowledge, proposal: Proposal, static: Confirmation, sides: Sides
) -> ScheduleTrial:
    """Compare both sides; the static N's gain over no speculation carries over to the schedule."""
    plan, wander = knowledge.plan, knowledge.wander
    versus = {load: log_ratios(sides.ours[load], sides.static[load]) for load in sides.ours}
    total = {
        load: [a + b for a, b in zip(versus[load], static.log_ratios[load], strict=True)]
        for load in plan.concurrencies
    }
    loads = tuple(
        _at_load(knowledge, proposal, static, sides, load, versus[load])
        for load in sorted(versus, key=lambda c: c or 0)
    )
    gain = over_loads(plan, versus, common_sd=wander)
    outcome, reason = _verdict(knowledge, proposal, gain, loads)
    return trial_of(
        proposal,
        outcome,
        reason,
        versus_static=gain,
        speedup=over_loads(plan, total, common_sd=wander),
        loads=loads,
    )


def _at_load(
    knowledge: Knowledge,
    proposal: Proposal,
    static: Confirmation,
    sides: Sides,
    load: Load,
    versus: Sequence[float],
) -> ScheduleLoad:
    settings, ours, wander = knowledge.plan.settings, sides.ours[load], knowledge.wander
    planned = load in static.windows
    share = share_within(settings.limits, ours)
    return ScheduleLoad(
        concurrency=load or 1,
        num_speculative_tokens=scheduled_length(proposal.tiers, load or 1),
        beside_threshold=not planned,
        output_tokens_per_second=mean_rate(ours),
        static_output_tokens_per_second=mean_rate(sides.static[load]),
        baseline_output_tokens_per_second=mean_rate(static.baseline[load]) if planned else None,
        versus_static=stats.ratio_interval(versus, settings.confidence, common_sd=wander),
        speedup=stats.ratio_interval(
            [a + b for a, b in zip(versus, static.log_ratios[load], strict=True)],
            settings.confidence,
            common_sd=wander,
        )
        if planned
        else None,
        worse=stats.mean(versus) < -_allowance(knowledge, len(versus)),
        share_within_limits=share,
        meets_limits=None if settings.limits is None else (share or 0.0) >= settings.limits_share,
    )


def _allowance(knowledge: Knowledge, blocks: int) -> float:
    """How far below 0 the mean of `blocks` paired log ratios may be by noise, or as a tie.

    By the noise of the whole study: of a collapse in some blocks only, these blocks' own spread
    would hide it.
    """
    from scipy.stats import norm

    settings = knowledge.plan.settings
    z = float(norm.ppf((1 + settings.confidence) / 2))
    return max(math.log1p(settings.tie_margin), z * knowledge.noise * math.sqrt(2 / blocks))


def _verdict(
    knowledge: Knowledge, proposal: Proposal, gain: Interval, loads: Sequence[ScheduleLoad]
) -> tuple[str, str]:
    """("won" or "lost", why)."""
    key, margin = (proposal.method, proposal.static), knowledge.plan.settings.tie_margin
    measured = f"{gain.value:.3f}x [{gain.low:.3f}, {gain.high:.3f}] of N={proposal.static}"
    worst = min(loads, key=lambda at: at.versus_static.value)
    missed = [
        at.concurrency
        for at in loads
        if at.meets_limits is False
        and not at.beside_threshold
        and keeps(knowledge, key, at.concurrency)
    ]
    if any(at.worse for at in loads):
        advice = (
            ", beside a threshold; with a load between in --max-concurrency it could lie elsewhere"
        )
        return "lost", (
            f"{worst.versus_static.value:.2f}x of N={proposal.static} at concurrency "
            f"{worst.concurrency}{advice if worst.beside_threshold else ''}"
        )
    if missed:
        where = ", ".join(map(str, missed))
        return "lost", f"it misses the latency limits at concurrency {where}"
    if gain.value <= 1 + margin or gain.low <= 1:
        return "lost", f"{measured} over the loads: no gain above {margin:.0%} was shown"
    return "won", f"{measured} over the loads"
