"""What to know before reading a candidate's acceptance figures: its flags, and what they mean.

- `edge`: the largest N offered, faster than the one before it, and its last position is still
  accepted often: a larger N may be better.
- `censored`: late positions were seen rarely, because most drafts were shorter than N or (then
  `short_answers` too) because most answers ended at max_tokens after a few steps.
- `few_rounds`: too few drafts to know the rate of every position well.
- `varying_lengths`: drafts of several lengths: rates per draft and per drafted token differ.
- `unclustered`: the intervals take drafts for independent, so they are too narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.acceptance_evidence import told
from autotune.clusters import Estimate
from autotune.knowledge import Key, Knowledge, Load
from autotune.pooling import acceptance_figures, pool_counters
from autotune.records import CandidateResult, MethodSpace, Window

EDGE_ACCEPTANCE = 0.6  # of the last position, where all earlier ones were accepted
LATE_SHARE = 0.5  # of the drafts must reach position N
CAPPED_STEPS = 5  # an answer that ends at max_tokens after so few steps is a short one
CAPPED_SHARE = 0.5  # of the answers may be short ones
WIDE = 0.1  # half of a rate's interval, or a difference between two rates, that matters
VARYING = 0.01  # of the tokens of full drafts may be missing


def acceptance_flags(
    knowledge: Knowledge,
    key: Key,
    load: Load,
    windows: Sequence[Window],
    estimates: Sequence[Estimate],
) -> tuple[str, ...]:
    """Flags of one measured candidate at one load; `windows` and `estimates` are its figures'."""
    n = key[1]
    short_answers = _answers_are_short(windows)
    halves = [(e.interval.high - e.interval.low) / 2 for e in estimates]
    found = {
        "edge": _at_the_edge(knowledge, key, load, windows),
        "censored": short_answers or _reach(windows, n) < LATE_SHARE,
        "short_answers": short_answers,
        "few_rounds": max(halves, default=0.0) > WIDE,
        "varying_lengths": _full(windows, n) < 1 - VARYING,
        "unclustered": any(e.basis == "drafts" for e in estimates),
    }
    return tuple(flag for flag, holds in found.items() if holds)


def _at_the_edge(knowledge: Knowledge, key: Key, load: Load, windows: Sequence[Window]) -> bool:
    method, n = key
    space, plan = knowledge.spaces[method], knowledge.plan
    if n != max(space.lengths) or (plan.sends_prompts and space.next_length is None):
        return False
    last = last_acceptance(acceptance_figures(windows)["per_position_acceptance_rates"], n)
    if last is None or last < EDGE_ACCEPTANCE:
        return False
    before = [m for m in space.lengths if m < n and knowledge.alive(method, m)]
    gain = knowledge.predict(method, n, load).log_speedup
    return gain > (knowledge.predict(method, before[-1], load).log_speedup if before else 0.0)


def last_acceptance(rates: Sequence[float] | None, n: int) -> float | None:
    """Acceptance of position n where all before it were accepted: p_n / p_(n-1)."""
    if rates is None or len(rates) < n:
        return None
    before = rates[n - 2] if n > 1 else 1.0
    return rates[n - 1] / before if before > 0 else None


def _full(windows: Sequence[Window], n: int) -> float:
    """Drafted tokens over those of full drafts; 1 where nothing was counted."""
    counted = [w.counters for w in windows if w.counters is not None]
    pooled = pool_counters(counted) if counted else None
    if pooled is None or not pooled.num_drafts:
        return 1.0
    return pooled.num_draft_tokens / (n * pooled.num_drafts)


def _reach(windows: Sequence[Window], n: int) -> float:
    """Share of the drafts that reach position n; where each is not known, the most it can be."""
    lengths = [(t.drafts.drafted_per_pos, t.drafts.num_drafts) for t in told(windows) or ()]
    drafts = sum(count for _, count in lengths)
    if not drafts or any(reached is None for reached, _ in lengths):
        return _full(windows, n)
    return sum(reached[n - 1] for reached, _ in lengths if reached and len(reached) >= n) / drafts


def _answers_are_short(windows: Sequence[Window]) -> bool:
    steps = [
        (t.finish_reason == "length", t.steps) for t in told(windows) or () if t.steps is not None
    ]
    short = sum(capped and count <= CAPPED_STEPS for capped, count in steps)
    return bool(steps) and short >= CAPPED_SHARE * len(steps)


# ---------------------------------------------------------------------------- what they mean


def sentences(
    results: Sequence[CandidateResult], space: MethodSpace, *, chosen: bool
) -> Iterator[str]:
    """What follows from the flags of one candidate, its loads taken together.

    One that was not `chosen` matters where a larger N might have been.
    """
    for flag, say in SAY.items() if chosen else [("edge", _edge)]:
        flagged = [r for r in results if flag in r.flags]
        said = say(flagged[0], space) if flagged else None
        if said is not None:
            loads = ", ".join(str(r.concurrency) for r in flagged)
            at = "" if len(flagged) == len(results) else f" at concurrency {loads}"
            yield f"{space.method} N={flagged[0].num_speculative_tokens}{at}: {said}"


def _edge(result: CandidateResult, space: MethodSpace) -> str | None:
    last = last_acceptance(result.per_position_acceptance_rates, max(space.lengths))
    if last is None:
        return None
    more = (
        "no larger one can be tried here"
        if space.next_length is None
        else f"{space.method} allows N={space.next_length} next: --num-speculative-tokens"
    )
    return (
        f"the largest N that was offered, and its last position is accepted in {last:.0%} of the "
        f"drafts that are right so far; a larger N may be faster still ({more})"
    )


def _censored(result: CandidateResult, space: MethodSpace) -> str:
    if "short_answers" in result.flags:
        return (
            f"most answers reached max_tokens within {CAPPED_STEPS} steps: acceptance is that of "
            "how answers begin (raise --max-tokens)"
        )
    return (
        "most drafts were shorter than N: what is known of its late positions comes from few "
        "drafts, and a smaller N would do much the same"
    )


def _few_rounds(result: CandidateResult, space: MethodSpace) -> str | None:
    intervals = result.per_position_acceptance_intervals or ()
    if not intervals:
        return None
    widest = max(intervals, key=lambda interval: interval.high - interval.low)
    return (
        f"acceptance at position {intervals.index(widest) + 1} lies between {widest.low:.2f} and "
        f"{widest.high:.2f}, no closer: more prompts (--rigorous) or longer answers would tell"
    )


def _varying_lengths(result: CandidateResult, space: MethodSpace) -> str | None:
    rates = result.per_position_acceptance_rates or ()
    drafted = result.conditional_acceptance_rates or ()
    gaps = [ours - rate for rate, ours in zip(rates, drafted, strict=False)]
    if not gaps or max(gaps) <= WIDE:
        return None
    i = gaps.index(max(gaps))
    return (
        f"position {i + 1} is accepted in {rates[i]:.0%} of all drafts, but in {drafted[i]:.0%} "
        "of those long enough to have it: the drafts are short rather than wrong"
    )


SAY = {
    "edge": _edge,
    "censored": _censored,
    "few_rounds": _few_rounds,
    "varying_lengths": _varying_lengths,
}
