"""Intervals and noise: ratios are compared as logarithms, paired by prompt block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
    log_ratios: Sequence[float],
    confidence: float,
    assumed_noise: float = ASSUMED_NOISE,
    *,
    common_sd: float = 0.0,
    beside: Sequence[float] = (),
) -> Interval:
    """Interval of a ratio from paired log ratios, one per block.

    Student's t over blocks. `beside` are ratios of the same two arms on other blocks: they tell
    how far blocks differ and nothing of the ratio (they may have chosen it). Without any spread
    each of the two arms is taken to have the relative noise `assumed_noise` and the interval is
    normal. `common_sd` is what moves all blocks of an arm together (each of the two arms by
    itself) and so does not show between them.
    """
    from scipy.stats import norm, t

    if not log_ratios:
        raise ValueError("no paired blocks: a ratio needs at least one")
    centre, z = mean(log_ratios), float(norm.ppf((1 + confidence) / 2))
    spread = pooled(within(values) for values in (log_ratios, beside) if values)
    if spread.freedom:
        error = math.sqrt(spread.squares / spread.freedom / len(log_ratios))
        half = float(t.ppf((1 + confidence) / 2, spread.freedom)) * error
    else:
        half = z * assumed_noise * math.sqrt(2)
    half = math.hypot(half, z * math.sqrt(2) * common_sd)
    return Interval(
        value=math.exp(centre),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        confidence=confidence,
    )


class Spread(NamedTuple):
    """Squared deviations and their degrees of freedom."""

    squares: float
    freedom: int


def within(values: Sequence[float]) -> Spread:
    """Around the mean of repeated values."""
    centre = mean(values)
    return Spread(math.fsum((v - centre) ** 2 for v in values), len(values) - 1)


def pooled(spreads: Iterable[Spread]) -> Spread:
    """Together, each around its own mean."""
    found = list(spreads)
    return Spread(math.fsum(s.squares for s in found), sum(s.freedom for s in found))


def two_way(table: Sequence[Sequence[float]]) -> Spread:
    """What rows (candidates) and columns (blocks) do not explain: residuals of row + column.

    Needs two rows and two columns, all of the same length. Whatever moves a whole column, such as
    its prompts or a drift of the machine between blocks, is not in it.
    """
    rows = [mean(row) for row in table]
    columns = [mean(column) for column in zip(*table, strict=True)]
    centre = mean(rows)
    squares = math.fsum(
        (value - row - column + centre) ** 2
        for values, row in zip(table, rows, strict=True)
        for value, column in zip(values, columns, strict=True)
    )
    return Spread(squares, (len(rows) - 1) * (len(columns) - 1))


def pooled_noise(
    spreads: Iterable[Spread], prior: float = ASSUMED_NOISE, prior_weight: float = 4.0
) -> float:
    """Standard deviation of one log value, pooled, shrunk towards `prior`.

    The prior counts as `prior_weight` degrees of freedom (scaled-inverse-chi-square mean).
    """
    squares, freedom = prior_weight * prior**2, prior_weight
    for spread in spreads:
        squares += spread.squares
        freedom += spread.freedom
    return math.sqrt(squares / freedom)
