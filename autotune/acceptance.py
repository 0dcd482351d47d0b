"""Acceptance as a function of N: how many tokens one decode step commits.

`step_rates` are unconditional acceptance rates per decode step and request. For drafters that
always draft N tokens they are vLLM's per-position rates; n-gram and suffix drafters skip steps,
and counting those steps makes tau(N) = 1 + sum(rates) the true number of tokens per step.

Model. Given that position i-1 was accepted, position i of a round of N tokens is accepted with

    a_i(N) = alpha_i + carry * p_N(N),    p_i = a_1 a_2 ... a_i

alpha is a random walk over positions (neighbours are alike). The second term is why rates drift
with N: a round that follows a wholly accepted round begins in easy text, one that follows a
rejection does not, and longer rounds are wholly accepted less often. On the 56 method panels of
the vLLM blog post of 2026-08-23 `carry` is 0.02 to 0.08 for every method, and the drift of one
position with N is linear in p_N. Posterior: linear regression on the measured a_i(N); the largest
N that is asked for fixes how many positions there are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from autotune.records import Prior, RequestDrafts, SpecCounters, Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIRST_SD = 0.12  # of alpha_1 before anything is measured; all sds are times the prior's `doubt`
STEP_SDS = (0.03, 0.015, 0.01)  # of alpha_i+1 - alpha_i, the last one from there on
CARRY_SD = 0.02
MODEL_SD = 0.005  # of one measured a_i beyond its sampling error
LENGTH_SD = 0.005  # of ln tau where only an acceptance length was printed
RELINEARISED = 5
RESIDUAL_SD = 0.003  # of ln tau at an N that was not measured, whatever else is known
SEEN = 0.01  # a position reached by fewer than this share of the rounds says nothing
MAX_POSITIONS = 64
FALLING = 8  # alpha's fall goes on to this position; what is published of later ones is flat
ROUNDS = 40  # of the fixed point p_N = product of a_i(p_N); it contracts by carry * N or faster


class StepRates(NamedTuple):
    """What was measured at one N: unconditional rates per decode step, all N positions."""

    rates: tuple[float, ...]
    steps: float | None = None  # (request, decode step) pairs counted; None: averages of a table
    exact: bool = True  # False: only their sum is known, the shape is a guess


def step_rates(counters: SpecCounters, output_tokens: int, num_requests: int) -> tuple[float, ...]:
    """Accepted drafts per position and decode step, from counters of one window.

    Empty where there was no step (see `decode_steps`).
    """
    steps = decode_steps(counters, output_tokens, num_requests)
    if steps <= 0:
        return ()
    return tuple(min(1.0, count / steps) for count in counters.accepted_per_pos)


def decode_steps(
    drafted: SpecCounters | RequestDrafts, output_tokens: int, num_requests: int
) -> int:
    """(request, decode step) pairs of a window, or of one request.

    Every step commits one token plus what was accepted, and the first token of a request comes
    from its prefill: steps = output tokens - requests - accepted. vLLM also counts drafts that
    were accepted beyond `max_tokens` or the end of the text, which makes that too few; never fewer
    than the drafts.
    """
    return max(drafted.num_drafts, output_tokens - num_requests - drafted.num_accepted_tokens)


def window_rates(window: Window) -> StepRates | None:
    """Step rates of one window at its N, from the best evidence it carries; None without any."""
    n = window.num_speculative_tokens
    if window.counters is not None and window.output_tokens is not None:
        counted = (window.counters, window.output_tokens, len(window.requests))
        steps = decode_steps(*counted)
        if steps > 0:  # without a single decode step nothing was offered, let alone rejected
            return StepRates((step_rates(*counted) + (0.0,) * n)[:n], float(steps))
    if window.per_position_acceptance_rates:
        return StepRates(_completed(window.per_position_acceptance_rates, n))
    if window.acceptance_length is not None and n:
        rate = geometric_rate(window.acceptance_length, n)
        return StepRates(tuple(rate**i for i in range(1, n + 1)), exact=False)
    return None


def _completed(rates: tuple[float, ...], n: int) -> tuple[float, ...]:
    """All N positions of a table that prints only the first ones: the last decay goes on."""
    chain = [1.0, *rates]
    decay = min(1.0, chain[-1] / chain[-2]) if chain[-2] > 0 else 0.0
    return rates + tuple(rates[-1] * decay**i for i in range(1, n - len(rates) + 1))


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


class _Row(NamedTuple):
    """One linear observation: design @ (alpha, carry) = value, with its variance."""

    design: NDArray[np.float64]
    value: float
    variance: float


class Acceptance:
    """The posterior of one method: tau at any N, measured or not."""

    def __init__(self, measured: Mapping[int, StepRates], prior: Prior, longest: int) -> None:
        """`longest`: the largest N that will be asked for; positions beyond 64 repeat the last."""
        self._measured = measured
        self._positions = min(max([longest, *measured]), MAX_POSITIONS)
        self._mean, self._covariance = _prior_state(prior, self._positions)
        self._condition()

    def log_tau(self, n: int) -> tuple[float, float]:
        """Mean and sd of ln tau(n). An N that was measured is exact: its own sampling error is
        part of the throughput's noise.
        """
        if n in self._measured:
            return math.log1p(math.fsum(self._measured[n].rates)), 0.0
        mean, gradient = self._log_tau(n)
        sums = {m: math.fsum(seen.rates) for m, seen in self._measured.items()}
        # more drafted tokens never commit fewer: between what shorter and longer N were measured at
        least = math.log1p(max((total for m, total in sums.items() if m < n), default=0.0))
        most = math.log1p(min((total for m, total in sums.items() if m > n), default=math.inf))
        mean = max(min(mean, most), least)
        return mean, math.hypot(RESIDUAL_SD, self._sd(gradient))

    def log_tau_beside(self, n: int, anchor: int) -> tuple[float, float]:
        """Mean of ln tau(n), and sd of ln tau(n) - ln tau(anchor).

        For methods whose acceptance nobody reported: a throughput measured at `anchor` has fixed
        tau / cost there, so only the difference is in doubt.
        """
        mean, gradient = self._log_tau(n)
        return mean, self._sd(gradient - self._log_tau(anchor)[1])

    def _sd(self, gradient: NDArray[np.float64]) -> float:
        return math.sqrt(max(0.0, float(gradient @ self._covariance @ gradient)))

    def _condition(self) -> None:
        """Linear-Gaussian update with every measured a_i(N), or ln tau(N) where that is all.

        ln tau is not linear in the state: it is linearised at the posterior, again and again.
        """
        import numpy as np

        prior, certainty = self._mean, np.linalg.inv(self._covariance)
        only_lengths = [n for n, seen in self._measured.items() if not seen.exact]
        for _ in range(RELINEARISED if only_lengths else 1):
            rows = [row for n, seen in self._measured.items() for row in self._rows(n, seen)]
            if not rows:
                return
            design = np.array([row.design for row in rows])
            surprise = np.array([row.value for row in rows]) - design @ prior
            weighted = design.T / np.array([row.variance for row in rows])
            # as large as the state, however many N were measured
            self._covariance = np.linalg.inv(certainty + weighted @ design)
            self._mean = prior + self._covariance @ (weighted @ surprise)

    def _rows(self, n: int, seen: StepRates) -> Iterator[_Row]:
        """What one N says about the state (alpha, carry)."""
        import numpy as np

        if not seen.exact:
            log_tau, gradient = self._log_tau(n)
            surprise = math.log1p(math.fsum(seen.rates)) - log_tau
            yield _Row(gradient, surprise + float(gradient @ self._mean), LENGTH_SD**2)
            return
        for i, (before, after) in enumerate(itertools.pairwise((1.0, *seen.rates))):
            if before < SEEN or i >= self._positions:
                return
            design = np.zeros(self._positions + 1)
            design[i], design[-1] = 1.0, seen.rates[n - 1]
            ratio = min(1.0, after / before)
            yield _Row(design, ratio, _variance(seen, before, ratio))

    def _log_tau(self, n: int) -> tuple[float, NDArray[np.float64]]:
        """ln tau(n) and its gradient in (alpha, carry), at the posterior mean.

        With T_j = sum of p_i / a_j over i >= j and S = sum of p_n / a_j the fixed point gives
        d tau = sum_j (T_j + carry T p_n / a_j / (1 - carry S)) (d alpha_j + p_n d carry).
        """
        import numpy as np

        index = np.minimum(np.arange(n), self._positions - 1)
        alpha, carry = self._mean[index], float(self._mean[-1])
        whole = 0.0
        for _ in range(ROUNDS):
            accepted = np.clip(alpha + carry * whole, 1e-6, 1.0)
            before, whole = whole, float(accepted.prod())
            if abs(whole - before) < 1e-12:
                break
        rates = np.cumprod(accepted)
        later = np.cumsum(rates[::-1])[::-1] / accepted
        shares = whole / accepted
        feedback = carry * later.sum() / max(0.2, 1 - carry * shares.sum())
        by_position = later + feedback * shares
        gradient = np.zeros(self._positions + 1)
        np.add.at(gradient, index, by_position)
        gradient[-1] = whole * by_position.sum()
        tau = 1 + float(rates.sum())
        return math.log(tau), gradient / tau


def _prior_state(prior: Prior, positions: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and covariance of (alpha_1 .. alpha_L, carry): a random walk and a number."""
    import numpy as np

    later = [prior.later_step] * (FALLING - 3) + [0.0] * positions
    steps = [prior.second_step, prior.third_step, *later]
    sds = [FIRST_SD, *STEP_SDS] + [STEP_SDS[-1]] * positions
    mean = np.cumsum([prior.first, *steps][:positions])
    variance = np.cumsum(np.square(sds[:positions]))
    covariance = np.zeros((positions + 1, positions + 1))
    places = np.arange(positions)
    covariance[:-1, :-1] = variance[np.minimum.outer(places, places)]
    covariance[-1, -1] = CARRY_SD**2
    return np.append(np.clip(mean, 0.02, 0.99), prior.carry), prior.doubt**2 * covariance


def _variance(seen: StepRates, before: float, ratio: float) -> float:
    """Of one measured a_i: the model's own, and a binomial's.

    How much requests differ is left out: all N of a study are measured on the same prompts.
    """
    if seen.steps is None:
        return MODEL_SD**2 / before
    chance = min(max(ratio, 0.02), 0.98)
    return MODEL_SD**2 / before + chance * (1 - chance) / (seen.steps * before)
