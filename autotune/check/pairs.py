"""Acceptance of two measurements on the same prompts: paired by prompt.

Prompts differ far more from each other than a drafter differs from itself, so most of the
uncertainty of either rate is common to both and cancels. Each rate is a ratio of sums over prompts;
its linearised error is sum_j (accepted_j - rate * drafts_j) / drafts (W. G. Cochran, Sampling
Techniques, 3rd ed. 1977, chapter 6), and the error of the change is that of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from autotune.check.verdicts import Effect
from autotune.records import PromptDrafts

ENOUGH = 4  # prompts in common; with fewer the intervals of the two sides say more


class Paired(NamedTuple):
    """Changes from the first to the second measurement, and the figures of both."""

    prompts: int
    length: Effect  # of ln(acceptance length)
    lengths: tuple[float, float]
    positions: tuple[Effect, ...]  # of the rates
    rates: tuple[tuple[float, float], ...]


def paired(one: Sequence[PromptDrafts], other: Sequence[PromptDrafts]) -> Paired | None:
    """None where they have too few prompts in common."""
    before = {p.prompt_id: p for p in one}
    after = {p.prompt_id: p for p in other}
    common = [key for key in before if key in after]
    if len(common) < ENOUGH:
        return None
    pairs = [(before[key], after[key]) for key in common]
    width = max(len(p.accepted_per_pos) for pair in pairs for p in pair)
    drafts = [tuple(p.num_drafts for p in pair) for pair in pairs]
    accepted = [tuple(sum(p.accepted_per_pos) for p in pair) for pair in pairs]
    means, errors = _linearised(accepted, drafts)
    lengths = (1 + means[0], 1 + means[1])
    change = math.log(lengths[1] / lengths[0])
    relative = [b / lengths[1] - a / lengths[0] for a, b in errors]
    positions, rates = [], []
    for i in range(width):
        counts = [tuple(_count(p, i) for p in pair) for pair in pairs]
        rate, moves = _linearised(counts, drafts)
        rates.append((rate[0], rate[1]))
        positions.append(_effect(rate[1] - rate[0], [b - a for a, b in moves]))
    return Paired(len(pairs), _effect(change, relative), lengths, tuple(positions), tuple(rates))


def _count(prompt: PromptDrafts, i: int) -> int:
    return prompt.accepted_per_pos[i] if i < len(prompt.accepted_per_pos) else 0


def _linearised(
    counted: Sequence[tuple[int, ...]], trials: Sequence[tuple[int, ...]]
) -> tuple[list[float], list[tuple[float, float]]]:
    """Ratios of sums of both sides, and each prompt's share of their errors."""
    totals = [sum(pair[side] for pair in trials) for side in (0, 1)]
    means = [sum(pair[side] for pair in counted) / totals[side] for side in (0, 1)]
    errors = [
        (
            (count[0] - means[0] * trial[0]) / totals[0],
            (count[1] - means[1] * trial[1]) / totals[1],
        )
        for count, trial in zip(counted, trials, strict=True)
    ]
    return means, errors


def _effect(change: float, errors: Sequence[float]) -> Effect:
    """The errors sum to 0, so their squares are the variance."""
    count = len(errors)
    variance = count / (count - 1) * math.fsum(e * e for e in errors)
    return Effect(change, math.sqrt(variance), float(count - 1), assumed=False)
