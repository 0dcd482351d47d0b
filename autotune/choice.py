"""Which candidate is best, given what is known: over all loads, and at one load."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune import stats
from autotune.knowledge import Key, Knowledge, Load
from autotune.limits import NO_SPECULATION, eligible


def measured(knowledge: Knowledge) -> list[Key]:
    """Candidates that have an answer at every load."""
    return [key for key in knowledge.candidates() if knowledge.measured(*key)]


def choose(knowledge: Knowledge) -> Key | None:
    """The measured candidate to recommend over all loads; None when not speculating is as good.

    Only what keeps the latency limits at most of the loads is looked at. Within the tie margin of
    the best the smallest N wins.
    """
    loads = knowledge.plan.concurrencies
    scored = {key: _score(knowledge, key, loads) for key in measured(knowledge)}
    return _smallest_of_best(knowledge, scored, loads)


def _score(knowledge: Knowledge, key: Key, loads: Sequence[Load]) -> float:
    """ln(speedup) of a measured candidate, averaged over the loads.

    Of measurements the cost model's estimate, which leans on the neighbours as far as noise
    allows. A recording that always answers the same is taken at its word.
    """
    if knowledge.plan.settings.repeats:
        each = [knowledge.predict(*key, load).log_speedup for load in loads]
    else:
        each = [stats.mean(knowledge.log_ratios(*key, load)) for load in loads]
    return stats.mean(each)


def may_be_best(knowledge: Knowledge, method: str, n: int) -> bool:
    """Whether a candidate just measured can still turn out the choice, overall or at a load."""
    rivals = measured(knowledge)
    return any(
        _is_close(knowledge, (method, n), rivals, loads)
        for loads in (knowledge.loads, *((load,) for load in knowledge.loads))
    )


def _is_close(knowledge: Knowledge, ours: Key, rivals: list[Key], loads: tuple[Load, ...]) -> bool:
    def score(key: Key) -> float:
        return math.fsum(knowledge.predict(*key, load).log_speedup for load in loads) / len(loads)

    allowed = eligible(knowledge, [NO_SPECULATION, *rivals], loads)
    if ours not in allowed:
        return False
    best = max([0.0, *(score(key) for key in allowed if key != NO_SPECULATION)])
    return score(ours) >= best - tie_margin(knowledge) - knowledge.noise


def _smallest_of_best(
    knowledge: Knowledge, scored: dict[Key, float], loads: Sequence[Load]
) -> Key | None:
    allowed = eligible(knowledge, [NO_SPECULATION, *scored], loads)
    scored = {key: score for key, score in scored.items() if key in allowed}
    best, margin = max(scored.values(), default=0.0), tie_margin(knowledge)
    if not scored or (best <= margin and NO_SPECULATION in allowed):
        return None
    tied = [key for key, score in scored.items() if score >= best - margin]
    return min(tied, key=lambda key: (key[1], -scored[key]))


def tie_margin(knowledge: Knowledge) -> float:
    """ln(1 + margin): the plan's, or the standard error of the search if that is larger."""
    settings = knowledge.plan.settings
    asked = math.log1p(settings.tie_margin)
    if not settings.repeats:
        return asked  # there is no uncertainty of our own to speak of
    windows = settings.search_blocks * len(knowledge.plan.concurrencies)
    return max(asked, knowledge.noise / math.sqrt(windows))


def best_at(knowledge: Knowledge, load: Load) -> Key | None:
    """`choose` for one load alone."""
    scored = {key: _score(knowledge, key, (load,)) for key in measured(knowledge)}
    return _smallest_of_best(knowledge, scored, (load,))


def as_good(knowledge: Knowledge, ours: Key, best: Key, load: Load) -> bool:
    """Whether one candidate is within the tie margin of another at a load, and of its limits."""
    if ours not in eligible(knowledge, [ours, best], (load,)):
        return False
    left, right = (_score(knowledge, key, (load,)) for key in (ours, best))
    return left >= right - tie_margin(knowledge)
