"""Acceptance as a function of N: how many tokens one decode step commits.

`step_rates` are unconditional acceptance rates per decode step and request. For drafters that
always draft N tokens they are vLLM's per-position rates; n-gram and suffix drafters skip steps,
and counting those steps makes tau(N) = 1 + sum(rates) the true number of tokens per step.

Rates drift with N because N changes where rounds begin (the same position and data gave .834 at
N=1 and .762 at N=8 in vLLM pull request 48892), so an N that was not measured is interpolated
between the measured ones and carries an error that grows with the distance.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from autotune.records import SpecCounters, Window

PRIOR_RATE = 0.85  # conditional acceptance assumed before anything is measured
PRIOR_SD = 0.35  # of ln tau, then: drafters of any quality exist
DRIFT_SD = 0.008  # of ln tau per step of distance to the nearest measured N
EXTRAPOLATION_SD = 0.02  # of ln tau per position beyond the last one measured


def step_rates(counters: SpecCounters, output_tokens: int, num_requests: int) -> tuple[float, ...]:
    """Accepted drafts per position and decode step, from counters of one window.

    Every step commits one token plus what was accepted, and the first token of a request comes
    from its prefill: steps = output tokens - requests - accepted. vLLM also counts drafts that
    were accepted beyond `max_tokens`, which makes that too few; never fewer than the drafts.
    """
    steps = output_tokens - num_requests - counters.num_accepted_tokens
    steps = max(counters.num_drafts, steps)
    if steps <= 0:
        return ()
    return tuple(min(1.0, count / steps) for count in counters.accepted_per_pos)


def window_rates(window: Window) -> tuple[float, ...] | None:
    """Step rates of one window at its N, from the best evidence it carries; None without any."""
    n = window.num_speculative_tokens
    if window.counters is not None and window.output_tokens is not None:
        requests = len(window.requests)
        rates = step_rates(window.counters, window.output_tokens, requests)
        return (rates + (0.0,) * n)[:n]
    if window.per_position_acceptance_rates:
        return window.per_position_acceptance_rates
    if window.acceptance_length is not None and n:
        rate = geometric_rate(window.acceptance_length, n)
        return tuple(rate**i for i in range(1, n + 1))
    return None


@functools.lru_cache(maxsize=4096)
def geometric_rate(acceptance_length: float, n: int) -> float:
    """The r with 1 + r + r^2 + ... + r^n = acceptance_length, 0..1, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if 1 + math.fsum(middle**i for i in range(1, n + 1)) < acceptance_length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def log_tokens_per_step(measured: Mapping[int, Sequence[float]], n: int) -> tuple[float, float]:
    """Mean and standard deviation of ln tau(n), given step rates at the measured N.

    An N that was measured is exact here (its own sampling error is part of the throughput noise).
    """
    if not measured:
        rates = [PRIOR_RATE**i for i in range(1, n + 1)]
        return math.log1p(math.fsum(rates)), PRIOR_SD
    if n in measured:
        return math.log1p(math.fsum(measured[n])), 0.0
    weights = {m: 1.0 / (1 + abs(m - n)) ** 2 for m in measured}
    total = math.fsum(weights.values())
    tau = 1 + math.fsum(
        weight / total * math.fsum(_extended(measured[m], n)) for m, weight in weights.items()
    )
    distance = min(abs(m - n) for m in measured)
    beyond = max(0, n - max(len(rates) for rates in measured.values()))
    sd = math.hypot(DRIFT_SD * distance, EXTRAPOLATION_SD * beyond)
    return math.log(tau), sd


def _extended(rates: Sequence[float], n: int) -> list[float]:
    """The first n rates; beyond the last one measured the mean conditional decay of the tail."""
    known = list(rates[:n])
    tail = _tail_decay(rates)
    while len(known) < n:
        known.append(known[-1] * tail if known else PRIOR_RATE)
    return known


def _tail_decay(rates: Sequence[float]) -> float:
    """Conditional acceptance p_i / p_(i-1) over the last two positions."""
    chain = [1.0, *rates]
    pairs = list(itertools.pairwise(chain))[-2:]
    ratios = [min(1.0, after / before) for before, after in pairs if before > 0]
    return sum(ratios) / len(ratios) if ratios else 0.0
