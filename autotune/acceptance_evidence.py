"""How well acceptance is known: windows of one candidate -> rates and lengths with intervals.

Drafts of one prompt are alike, so requests (and repeats of a prompt) are the units that vary, as
far as the engine tells of each request. Where it does not, or for a single prompt, drafts are
taken to be independent, which makes intervals too narrow: `Estimate.basis` says which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from autotune.acceptance import decode_steps
from autotune.clusters import Estimate, Totals, clustered, independent
from autotune.records import PromptDrafts, RequestDrafts, Window

DISAGREE = "request_drafts_disagree"  # flag of a window whose requests its counters contradict


class Told(NamedTuple):
    """One answer that told of its drafts."""

    prompt_id: str
    drafts: RequestDrafts
    steps: int | None  # decode steps of the request; None where its tokens were not counted
    finish_reason: str | None


def told(windows: Iterable[Window]) -> list[Told] | None:
    """All answers of the windows; None unless each tells of its drafts and the counters agree."""
    found: list[Told] = []
    for window in windows:
        requests = window.requests
        if not requests or DISAGREE in window.flags:
            return None
        for request in requests:
            if request.drafts is None:
                return None
            tokens = request.completion_tokens
            steps = None if tokens is None else decode_steps(request.drafts, tokens, 1)
            found.append(Told(request.prompt_id, request.drafts, steps, request.finish_reason))
    return found or None


def acceptance_length(windows: Sequence[Window], confidence: float) -> Estimate | None:
    """1 + accepted tokens per draft, the bonus token included. None where nothing was counted."""
    most = max((window.num_speculative_tokens for window in windows), default=0)
    if not most:
        return None
    totals = _totals(told(windows), lambda t: (t.drafts.num_accepted_tokens, t.drafts.num_drafts))
    return _plus_one(clustered(totals, confidence, most) or _length(windows, confidence, most))


def acceptance_rates(windows: Sequence[Window], confidence: float) -> tuple[Estimate, ...] | None:
    """Accepted drafts per position over all drafts (vLLM's rate), positions 1..N."""
    n = max((window.num_speculative_tokens for window in windows), default=0)
    rates = [_rate(windows, i, confidence) for i in range(n)]
    known = tuple(rate for rate in rates if rate is not None)
    return known if known and len(known) == n else None


def _rate(windows: Sequence[Window], i: int, confidence: float) -> Estimate | None:
    def count(told: Told) -> tuple[int, int]:
        return _at(told.drafts.accepted_per_pos, i), told.drafts.num_drafts

    counters = [w.counters for w in windows if w.counters is not None]
    accepted = sum(_at(c.accepted_per_pos, i) for c in counters)
    drafts = sum(c.num_drafts for c in counters)
    return clustered(_totals(told(windows), count), confidence) or independent(
        accepted, accepted, drafts, confidence
    )


def conditional_rates(windows: Sequence[Window]) -> tuple[float, ...] | None:
    """Accepted drafts per position over those drafts that reached it, as far as any did.

    None where the lengths of the drafts are not known.
    """
    answers = told(windows) or []
    lengths = [t.drafts.drafted_per_pos for t in answers]
    known = [each for each in lengths if each is not None]
    if not any(known) or len(known) < len(lengths):
        return None
    return tuple(
        sum(_at(t.drafts.accepted_per_pos, i) for t in answers)
        / sum(_at(each, i) for each in known)
        for i in range(max(map(len, known)))
    )


def prompt_drafts(windows: Sequence[Window]) -> tuple[PromptDrafts, ...]:
    """Drafts of each prompt, all its answers summed; nothing unless every answer tells."""
    sums: dict[str, tuple[int, list[int]]] = {}
    for answer in told(windows) or ():
        drafts, accepted = sums.get(answer.prompt_id, (0, []))
        counts = answer.drafts.accepted_per_pos
        width = max(len(accepted), len(counts))
        both = [_at(accepted, i) + _at(counts, i) for i in range(width)]
        sums[answer.prompt_id] = (drafts + answer.drafts.num_drafts, both)
    return tuple(
        PromptDrafts(prompt_id=key, num_drafts=drafts, accepted_per_pos=tuple(accepted))
        for key, (drafts, accepted) in sums.items()
        if drafts
    )


def _totals(
    answers: Iterable[Told] | None, count: Callable[[Told], tuple[int, int]]
) -> list[Totals]:
    """One cluster a prompt: the same prompt again gives much the same answer."""
    sums: dict[str, Totals] = {}
    for answer in answers or ():
        counted, trials = count(answer)
        before = sums.get(answer.prompt_id, Totals(0, 0))
        sums[answer.prompt_id] = Totals(before.counted + counted, before.trials + trials)
    return list(sums.values())


def _length(windows: Sequence[Window], confidence: float, most: int) -> Estimate | None:
    """From the counters: a draft of which j tokens were accepted counts at positions 1..j."""
    counters = [w.counters for w in windows if w.counters is not None]
    by_position = [sum(_at(c.accepted_per_pos, i) for c in counters) for i in range(most)]
    squares = sum((2 * i + 1) * count for i, count in enumerate(by_position))  # j^2 = 1 + 3 + ...
    accepted = sum(c.num_accepted_tokens for c in counters)
    if sum(by_position) != accepted:
        return None  # positions are missing among the counters
    return independent(accepted, squares, sum(c.num_drafts for c in counters), confidence, most)


def _plus_one(estimate: Estimate | None) -> Estimate | None:
    if estimate is None:
        return None
    ends = {end: getattr(estimate.interval, end) + 1 for end in ("value", "low", "high")}
    return estimate._replace(interval=estimate.interval.model_copy(update=ends))


def _at(counts: Sequence[int], i: int) -> int:
    return counts[i] if i < len(counts) else 0
