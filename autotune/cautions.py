"""What a reader must know before trusting a recommendation: its warnings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from autotune import stats
from autotune.acceptance_flags import sentences
from autotune.choice import choose, measured, tie_margin
from autotune.evidence import Evidence, candidate_result
from autotune.knowledge import Key, Load
from autotune.limits import eligible
from autotune.load_cautions import limit_warnings, schedule_warnings
from autotune.records import BASELINE, Confirmation, LoadChoice, Status, Window

TOLD_ELSEWHERE = {"all_length_capped", "engine_tokens_unknown"}


def warnings(
    evidence: Evidence,
    decision: str,
    choices: tuple[LoadChoice, ...],
    static_reasons: Mapping[str, str],
    windows: list[Window],
) -> tuple[str, ...]:
    """In the order of the study: planning, search, confirmation, decision."""
    plan, knowledge = evidence.plan, evidence.knowledge
    said = list(plan.warnings)
    ran = {method for method, _ in measured(knowledge)}
    said += [
        f"{method}: started once per N, not switched live: {reason}"
        for method, reason in static_reasons.items()
        if method in ran
    ]
    if not any(knowledge.candidates()):
        said.append("every candidate failed: their `error` says why")
    said += _ties(evidence)
    said += _wander(evidence)
    said += _flags(windows)
    said += _acceptance(evidence, choices)
    for confirmation in evidence.confirmations:
        said += _about(evidence, confirmation)
    said += limit_warnings(evidence, decision, choices)
    said += schedule_warnings(evidence.trial)
    said += _thin(evidence, decision, choices)
    return tuple(said)


def _ties(evidence: Evidence) -> Iterator[str]:
    knowledge = evidence.knowledge
    chosen = choose(knowledge)
    if chosen is None:
        return
    score = knowledge.score(*chosen)[0]
    rivals = eligible(knowledge, measured(knowledge), evidence.plan.concurrencies)
    better = [key for key in rivals if knowledge.score(*key)[0] > score]
    if better:
        names = ", ".join(f"{method} N={n}" for method, n in better)
        margin = math.expm1(tie_margin(knowledge))
        yield (
            f"{names}: estimated within {margin:.1%} of the choice, a tie; the smaller N was taken"
        )


def _wander(evidence: Evidence) -> Iterator[str]:
    wander = evidence.knowledge.wander
    if wander > evidence.plan.settings.drift_margin / 2:
        yield (
            f"the machine's speed wandered by about {wander:.0%} from block to block: intervals "
            "are widened by that; measure on a quieter machine"
        )


def _flags(windows: list[Window]) -> Iterator[str]:
    """Flags of the engine's windows that did not fail a candidate, with how often."""
    counts = Counter(
        (window.method, flag)
        for window in windows
        for flag in window.flags
        if flag not in TOLD_ELSEWHERE
    )
    for (method, flag), count in sorted(counts.items()):
        who = "no speculation" if method == BASELINE else method
        yield f"{who}: {flag.replace('_', ' ')} in {count} measurements"


def _acceptance(evidence: Evidence, choices: tuple[LoadChoice, ...]) -> Iterator[str]:
    """Flags of the acceptance figures of what is recommended, or came closest to it."""
    loads: dict[tuple[Key, bool], list[Load]] = {}
    for choice in choices:
        chosen = choice.method != BASELINE
        key = (choice.method, choice.num_speculative_tokens)
        best = key if chosen else _best_measured(evidence, choice.concurrency)
        if best is not None:
            loads.setdefault((best, chosen), []).append(choice.concurrency)
    for (key, chosen), at in loads.items():
        results = [candidate_result(evidence, key, load) for load in at]
        yield from sentences(results, evidence.knowledge.spaces[key[0]], chosen=chosen)


def _best_measured(evidence: Evidence, load: Load) -> Key | None:
    def gain(key: Key) -> float:
        return evidence.knowledge.predict(*key, load).log_speedup

    return max(measured(evidence.knowledge), key=gain, default=None)


def _about(evidence: Evidence, confirmation: Confirmation) -> Iterator[str]:
    greedy = confirmation.greedy
    if greedy is not None and greedy.equal < greedy.compared:
        yield (
            f"greedy outputs at batch 1: {greedy.compared - greedy.equal} of {greedy.compared} "
            f"differ from the baseline (first: {greedy.first_difference})"
        )
    if evidence.plan.settings.repeats and not confirmation.references:
        yield (
            f"{confirmation.method} N={confirmation.num_speculative_tokens} was confirmed on the "
            "start that probed it: a drift of the machine since the baseline's start cannot be "
            "seen (--rigorous starts it once more)"
        )
    if confirmation.baseline_generation:
        moved = max(confirmation.drift.values(), key=abs)
        yield (
            f"the reference block moved by {math.expm1(moved):+.1%} between probing and "
            "confirming (drift of the machine, or a static start against a live one): the "
            "baseline was measured again next to the confirmation"
        )


def _thin(evidence: Evidence, decision: str, choices: tuple[LoadChoice, ...]) -> Iterator[str]:
    """Where the evidence does not reach as far as a reader may think."""
    if decision == "inconclusive" and evidence.confirmations:
        yield (
            "the interval includes both a gain and no gain: measure longer (--rigorous, more "
            "prompts) or on a quieter machine"
        )
    elif decision == "inconclusive":
        yield f"nothing could be confirmed ({evidence.stopped.reason}): the evidence is too thin"
    elif not evidence.stopped.exhausted:
        yield f"{evidence.stopped.reason}: a candidate that was not measured may be better"
    for choice in choices:
        if choice.method != BASELINE and choice.status == Status.PROBED:
            yield (
                f"concurrency {choice.concurrency}: {choice.method} "
                f"N={choice.num_speculative_tokens} was measured in the search only, not confirmed"
            )
    if not evidence.plan.settings.repeats:
        yield (
            "the figures carry no spread of their own; each is assumed to have "
            f"{stats.ASSUMED_NOISE:.0%} noise"
        )
