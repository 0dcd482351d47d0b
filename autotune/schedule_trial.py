"""A schedule against the one static N: measured on a start of its own, block by block.

It is recommended only when it wins: its geometric mean over the plan's loads beats the static N
by more than the tie margin, the interval's low end is above 1, and nowhere, also not beside the
thresholds where N changes, is it worse than the noise allows. A collapse there has been seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from autotune import stats
from autotune.confirm import drifted, held_out, log_ratios
from autotune.errors import EngineError
from autotune.evidence import mean_rate
from autotune.knowledge import Knowledge, Load
from autotune.limits import keeps, share_within
from autotune.measure import Lab
from autotune.records import (
    BlockRole,
    Confirmation,
    Interval,
    Plan,
    ScheduleLoad,
    ScheduleTrial,
    Window,
    scheduled_length,
)
from autotune.schedule import Proposal, affordable, propose, threshold_loads

Windows = Mapping[Load, tuple[Window, ...]]


class Sides(NamedTuple):
    """Held-out windows by load, of the schedule and of the static N on the same blocks."""

    ours: Windows
    static: Windows


def try_schedule(
    lab: Lab, knowledge: Knowledge, confirmations: Sequence[Confirmation]
) -> ScheduleTrial | None:
    """Measure the schedule that the loads want; None where they want none or it is switched off."""
    if not confirmations or not lab.plan.settings.schedule:
        return None
    static = confirmations[0]
    proposal = propose(lab.plan, knowledge, static.key)
    if proposal is None:
        return None
    reason = _why_not(lab, knowledge, proposal, static)
    if reason is not None:
        return _trial(proposal, "not_tried", reason)
    lab.progress(f"trying N by batch size for {proposal.method}: {list(proposal.tiers)}")
    try:
        sides = _measure(lab, knowledge, proposal, static)
    except EngineError as error:
        lab.progress(f"the schedule failed: {error.message}")
        return _trial(proposal, "failed", error.message)
    if sides is None:
        return _trial(proposal, "not_tried", "the machine drifted and there was no time left")
    return _judge(knowledge, proposal, static, sides)


def _trial(proposal: Proposal, outcome: str, reason: str, **figures: Any) -> ScheduleTrial:
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


def _why_not(
    lab: Lab, knowledge: Knowledge, proposal: Proposal, static: Confirmation
) -> str | None:
    """What speaks against measuring it."""
    refused = lab.why_no_schedule(knowledge.spaces[proposal.method])
    if refused is not None:
        return refused
    if _over_loads(lab.plan, static.log_ratios).low <= 1:
        return f"{static.method} N={static.num_speculative_tokens} itself was not shown to gain"
    beside = threshold_loads(proposal.tiers, lab.plan.concurrencies)
    windows = (len(beside) + len(static.windows)) * lab.plan.settings.confirm_blocks
    if not set(beside) <= set(static.beside) or not affordable(lab, windows):
        return "there was no time left"
    return None


def _measure(
    lab: Lab, knowledge: Knowledge, proposal: Proposal, static: Confirmation
) -> Sides | None:
    """Both sides; a drift of the machine starts the static N once more. None: no time for that."""
    space = knowledge.spaces[proposal.method]
    arm = space.schedule_arm(proposal.tiers)
    fixed: dict[Load, tuple[Window, ...]] = {**static.windows}
    fixed.update((load, static.beside[load]) for load in static.beside)
    loads = tuple(fixed)
    moved = _moved(lab, knowledge, proposal) if lab.plan.settings.repeats else {}
    ours = held_out(lab, arm, arm.num_speculative_tokens, loads)
    if not drifted(lab, knowledge, moved):
        return Sides(ours, fixed)
    if not affordable(lab, len(loads) * lab.plan.settings.confirm_blocks):
        return None
    lab.progress("the machine has moved: measuring the static N once more")
    again = space.arm(proposal.static, live=False, generation=2)
    return Sides(ours, held_out(lab, again, proposal.static, loads))


def _moved(lab: Lab, knowledge: Knowledge, proposal: Proposal) -> dict[Load, float]:
    """By load: ln(search block 0 now / when its N was probed, which was under a schedule too)."""
    arm = knowledge.spaces[proposal.method].schedule_arm(proposal.tiers)
    moved: dict[Load, float] = {}
    for load in lab.plan.concurrencies:
        n = scheduled_length(proposal.tiers, load or 1)
        then = knowledge.windows(proposal.method, n, load)[0].output_tokens_per_second
        now = lab.window(arm, arm.num_speculative_tokens, BlockRole.REFERENCE, 0, load)
        moved[load] = math.log(now.output_tokens_per_second / then)
    return moved


def _over_loads(plan: Plan, ratios: Mapping[Load, Sequence[float]]) -> Interval:
    """Geometric mean over the plan's loads, one value per held-out block."""
    by_block = zip(*(ratios[load] for load in plan.concurrencies), strict=True)
    return stats.ratio_interval([stats.mean(b) for b in by_block], plan.settings.confidence)


def _judge(
    knowledge: Knowledge, proposal: Proposal, static: Confirmation, sides: Sides
) -> ScheduleTrial:
    plan = knowledge.plan
    versus = {load: log_ratios(sides.ours[load], sides.static[load]) for load in sides.ours}
    total = {
        load: [a + b for a, b in zip(versus[load], static.log_ratios[load], strict=True)]
        for load in plan.concurrencies
    }
    loads = tuple(
        _at_load(knowledge, proposal, static, sides, load, versus[load])
        for load in sorted(versus, key=lambda c: c or 0)
    )
    gain = _over_loads(plan, versus)
    outcome, reason = _verdict(knowledge, proposal, gain, loads)
    return _trial(
        proposal,
        outcome,
        reason,
        versus_static=gain,
        speedup=_over_loads(plan, total),
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
    settings, ours = knowledge.plan.settings, sides.ours[load]
    planned = load in static.windows
    share = share_within(settings.limits, ours)
    return ScheduleLoad(
        concurrency=load or 1,
        num_speculative_tokens=scheduled_length(proposal.tiers, load or 1),
        beside_threshold=not planned,
        output_tokens_per_second=mean_rate(ours),
        static_output_tokens_per_second=mean_rate(sides.static[load]),
        baseline_output_tokens_per_second=mean_rate(static.baseline[load]) if planned else None,
        versus_static=stats.ratio_interval(versus, settings.confidence),
        speedup=stats.ratio_interval(
            [a + b for a, b in zip(versus, static.log_ratios[load], strict=True)],
            settings.confidence,
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
