"""Intervals and noise: ratios are compared as logarithms, paired by prompt block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from autotune.records import Interval

ASSUMED_NOISE = 0.02  # relative sd of one throughput figure where the data carry no spread


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None with fewer than two values."""
    if len(values) < 2:
        return None
    centre = mean(values)
    variance = math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))


def ratio_interval(
    log_ratios: Sequence[float], confidence: float, assumed_noise: float = ASSUMED_NOISE
) -> Interval:
    """Interval of a ratio from paired log ratios, one per block.

    Student's t over blocks. A single block carries no spread: then each of the two arms is
    taken to have the relative noise `assumed_noise` and the interval is normal.
    """
    from scipy.stats import norm, t

    if not log_ratios:
        raise ValueError("no paired blocks: a ratio needs at least one")
    centre = mean(log_ratios)
    error = standard_error(log_ratios)
    if error is None:
        half = float(norm.ppf((1 + confidence) / 2)) * assumed_noise * math.sqrt(2)
    else:
        half = float(t.ppf((1 + confidence) / 2, len(log_ratios) - 1)) * error
    return Interval(
        value=math.exp(centre),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        confidence=confidence,
    )


def pooled_noise(
    groups: Iterable[Sequence[float]], prior: float = ASSUMED_NOISE, prior_weight: float = 4.0
) -> float:
    """Standard deviation within groups of repeated log values, shrunk towards `prior`.

    The prior counts as `prior_weight` degrees of freedom (scaled-inverse-chi-square mean).
    """
    squares, freedom = prior_weight * prior**2, prior_weight
    for group in groups:
        if len(group) > 1:
            centre = mean(group)
            squares += math.fsum((v - centre) ** 2 for v in group)
            freedom += len(group) - 1
    return math.sqrt(squares / freedom)
