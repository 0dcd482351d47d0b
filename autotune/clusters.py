"""Rates whose trials come in clusters: drafts of one answer are alike, so they are no coin tosses.

A rate is a ratio of sums over clusters, sum(accepted) / sum(drafts). Its variance is that of the
ratio estimator (linearised; W. G. Cochran, Sampling Techniques, 3rd ed. 1977, chapter 6). The
interval is E. B. Wilson's (JASA 22, 1927) with Student's t over clusters and the number of
independent trials that would have this variance (an effective sample size: E. L. Korn and
B. I. Graubard, Survey Methodology 24, 1998). It stays inside the range and reaches its ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from autotune.records import Interval


class Totals(NamedTuple):
    """One cluster: what was counted (accepted tokens) and in how many trials (drafts)."""

    counted: int
    trials: int


class Estimate(NamedTuple):
    """A rate with its uncertainty. `basis` says what was taken to be independent."""

    interval: Interval
    standard_error: float
    clusters: int
    basis: Literal["requests", "drafts"]


def clustered(totals: Sequence[Totals], confidence: float, most: int = 1) -> Estimate | None:
    """Ratio of sums over clusters; a trial counts 0..`most`. None with fewer than two clusters.

    Clusters without a trial say nothing and are left out. Where all clusters have the same ratio,
    nothing shows how alike their trials are: those then count as independent.
    """
    from scipy.stats import t

    seen = [total for total in totals if total.trials]
    if len(seen) < 2:
        return None
    counted, trials = sum(s.counted for s in seen), sum(s.trials for s in seen)
    # whole numbers: equal ratios give 0 exactly
    residuals = [s.counted * trials - counted * s.trials for s in seen]
    correction = len(seen) / (len(seen) - 1)
    variance = correction * sum(r * r for r in residuals) / trials**4
    critical = float(t.ppf((1 + confidence) / 2, len(seen) - 1))
    interval = _wilson(counted / trials, trials, variance, critical, confidence, most)
    return Estimate(interval, math.sqrt(variance), len(seen), "requests")


def independent(
    counted: int, squares: int, trials: int, confidence: float, most: int = 1
) -> Estimate | None:
    """The same as if every trial stood alone: too narrow for drafts. None without a trial.

    `squares` is the sum of the squared counts of the trials; with `most` 1 it is `counted`, and
    the interval is Wilson's.
    """
    from scipy.stats import norm

    if not trials:
        return None
    mean = counted / trials
    variance = max(0.0, squares / trials - mean**2) / trials
    critical = float(norm.ppf((1 + confidence) / 2))
    interval = _wilson(mean, trials, variance, critical, confidence, most)
    return Estimate(interval, math.sqrt(variance), 1, "drafts")


def _wilson(
    mean: float, trials: int, variance: float, critical: float, confidence: float, most: int
) -> Interval:
    """Wilson's interval for a mean in 0..most: its share of `most`, from as many trials of 0 or
    1 as would have its variance."""
    share = min(1.0, mean / most)
    alike = share * (1 - share) * most**2
    effective = alike / variance if variance > 0 and alike > 0 else trials
    stretch = 1 + critical**2 / effective
    centre = (share + critical**2 / (2 * effective)) / stretch
    half = (critical / stretch) * math.sqrt(
        share * (1 - share) / effective + (critical / (2 * effective)) ** 2
    )
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Interval(
        value=mean,
        low=min(mean, low * most),  # rounding may put an end of the range past the value
        high=max(mean, high * most),
        confidence=confidence,
    )
