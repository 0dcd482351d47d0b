"""Warnings about several loads: latency limits that are not kept, and the schedule's trial."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.evidence import Evidence
from autotune.knowledge import Key, Load
from autotune.limits import NO_SPECULATION, describe, keeps
from autotune.records import LoadChoice, ScheduleTrial


def limit_warnings(
    evidence: Evidence, decision: str, choices: tuple[LoadChoice, ...]
) -> Iterator[str]:
    """Where the latency limits are not kept, by what is recommended and by anything at all."""
    limits = evidence.plan.settings.limits
    if limits is None:
        return
    for choice in choices:
        if not choice.meets_limits:
            yield (
                f"concurrency {choice.concurrency}: nothing measured keeps the limits "
                f"({describe(limits)}); {_closest(evidence, choice)}"
            )
    for confirmation in evidence.confirmations:
        yield from _lost_on_held_out(evidence, confirmation.key, tuple(confirmation.windows))
    speculating = decision != "do_not_speculate" and evidence.confirmations
    overall = evidence.confirmations[0].key if speculating else NO_SPECULATION
    missed = [c for c in evidence.plan.concurrencies if not keeps(evidence.knowledge, overall, c)]
    if missed and len(evidence.plan.concurrencies) > 1:
        where = ", ".join(map(str, missed))
        yield f"{_name(overall)}, the overall choice, misses the limits at concurrency {where}"


def _name(key: Key) -> str:
    return "no speculation" if key == NO_SPECULATION else f"{key[0]} N={key[1]}"


def _closest(evidence: Evidence, choice: LoadChoice) -> str:
    key = (choice.method, choice.num_speculative_tokens)
    share = evidence.knowledge.share_within_limits(*key, choice.concurrency)
    how = "its requests were not timed" if share is None else f"{share:.0%} of its requests do"
    return f"{_name(key)} comes closest: {how}"


def _lost_on_held_out(evidence: Evidence, key: Key, loads: tuple[Load, ...]) -> Iterator[str]:
    """Finalists whose held-out blocks did not repeat what the search had seen."""
    knowledge, settings = evidence.knowledge, evidence.plan.settings
    for load in loads:
        share = knowledge.share_within_limits(*key, load)
        before = knowledge.search_share(*key, load)
        if share is None or before is None:
            continue
        if before >= settings.limits_share > share:
            yield (
                f"concurrency {load}: {_name(key)} kept the limits in the search ({before:.0%} of "
                f"the requests), not on held-out prompts ({share:.0%})"
            )


def schedule_warnings(trial: ScheduleTrial | None) -> Iterator[str]:
    """A schedule that looked better and is not recommended, and what it was measured at."""
    if trial is None or trial.outcome == "won":
        return
    what = {
        "lost": "was measured and lost",
        "failed": "failed",
        "not_tried": "was not tried",
    }[trial.outcome]
    tiers = ", ".join(f"{first}-{last}: {n}" for first, last, n in trial.tiers)
    yield f"{trial.method} with N by batch size ({tiers}) {what}: {trial.reason}"
