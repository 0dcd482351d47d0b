"""A schedule against the one static N: measured on a start of its own, block by block.

It is recommended only when it wins: its geometric mean over the plan's loads beats the static N
by more than the tie margin, the interval's low end is above 1, and nowhere, also not beside the
thresholds where N changes, is it worse than the noise allows. A collapse there has been seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.confirm import drifted, held_out
from autotune.errors import EngineError
from autotune.knowledge import Knowledge, Load
from autotune.limits import NO_SPECULATION, eligible
from autotune.measure import Lab
from autotune.records import BlockRole, Confirmation, ScheduleTrial, Window, scheduled_length
from autotune.schedule import Proposal, affordable, propose, threshold_loads
from autotune.schedule_verdict import Sides, judge, over_loads, trial_of
from autotune.wording import tiers_text


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
        return trial_of(proposal, "not_tried", reason)
    lab.progress(f"trying N by batch size for {proposal.method}: {tiers_text(proposal.tiers)}")
    try:
        sides = _measure(lab, knowledge, proposal, static)
    except EngineError as error:
        lab.progress(f"the schedule failed: {error.message}")
        return trial_of(proposal, "failed", error.message)
    if sides is None:
        return trial_of(proposal, "not_tried", "the machine drifted and there was no time left")
    return judge(knowledge, proposal, static, sides)


def _why_not(
    lab: Lab, knowledge: Knowledge, proposal: Proposal, static: Confirmation
) -> str | None:
    """What speaks against measuring it."""
    refused = lab.why_no_schedule(knowledge.spaces[proposal.method])
    if refused is not None:
        return refused
    if static.key not in eligible(knowledge, [static.key, NO_SPECULATION], lab.plan.concurrencies):
        return "not speculating keeps the latency limits at more of the loads"
    if over_loads(lab.plan, static.log_ratios).low <= 1:
        return f"{static.method} N={static.num_speculative_tokens} itself was not shown to gain"
    beside = set(threshold_loads(proposal.tiers, lab.plan.concurrencies))
    windows = (len(beside) + len(static.windows)) * lab.plan.settings.confirm_blocks
    missing = ", ".join(map(str, sorted(beside - set(static.beside))))
    # without a budget, or where others were measured, it was not time that lacked
    if missing and (static.beside or lab.plan.settings.budget_seconds is None):
        return (
            "the confirmations changed which N the loads want, and "
            f"N={proposal.static} was not measured beside the new thresholds, at {missing} requests"
        )
    if missing or not affordable(lab, windows):
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
