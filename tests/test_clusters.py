"""Intervals of rates whose trials come in clusters: arithmetic, scipy, and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.clusters import Totals, clustered, independent

cluster = st.integers(0, 60).flatmap(
    lambda trials: st.tuples(st.integers(0, trials), st.just(trials))
)
clusters = st.lists(cluster, min_size=2, max_size=20)


def of(pairs):
    return [Totals(int(counted), int(trials)) for counted, trials in pairs]


def wilson_roots(share, trials, critical):
    """The ends of the interval as roots of (p - x)^2 = c^2 x (1 - x) / n."""
    c2 = critical**2 / trials
    return sorted(np.roots([1 + c2, -(2 * share + c2), share**2]).real)


def test_two_requests_by_hand():
    # 3 of 4 and 1 of 4: p = 1/2, residuals 1 and -1, variance 2/1 (1 + 1) / 8^2 = 1/16
    estimate = clustered(of([(3, 4), (1, 4)]), 0.95)
    assert estimate.standard_error == pytest.approx(0.25)
    assert (estimate.clusters, estimate.basis) == (2, "requests")
    # as many trials as have that variance: (1/4) / (1/16) = 4; t(0.975, 1) = 12.7062
    low, high = wilson_roots(0.5, 4, 12.7062)
    assert estimate.interval.value == 0.5
    assert estimate.interval.low == pytest.approx(low, rel=1e-4)
    assert estimate.interval.high == pytest.approx(high, rel=1e-4)
    assert estimate.interval.confidence == 0.95


def test_a_mean_of_several_tokens_by_hand():
    # 9 and 3 tokens in 4 drafts of 3 each: mean 1.5, residuals 3 and -3, variance 2 x 18 / 64
    estimate = clustered(of([(9, 4), (3, 4)]), 0.9, most=3)
    assert estimate.standard_error == pytest.approx(0.75)
    # in units of 3 tokens: share 1/2, variance 1/16; t(0.95, 1) = 6.31375
    low, high = wilson_roots(0.5, 4, 6.31375)
    assert estimate.interval.value == 1.5
    assert estimate.interval.low == pytest.approx(3 * low, rel=1e-4)
    assert estimate.interval.high == pytest.approx(3 * high, rel=1e-4)


@given(st.integers(1, 50), st.data())
def test_equal_clusters_have_the_standard_error_of_their_rates(trials, data):
    counted = data.draw(st.lists(st.integers(0, trials), min_size=2, max_size=20))
    estimate = clustered(of((c, trials) for c in counted), 0.95)
    rates = np.array(counted) / trials
    by_numpy = np.std(rates, ddof=1) / math.sqrt(len(rates))
    assert estimate.standard_error == pytest.approx(by_numpy, abs=1e-12)


@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_independent_trials_have_wilsons_interval(trials, data, confidence):
    counted = data.draw(st.integers(0, trials))
    estimate = independent(counted, counted, trials, confidence)
    test = scipy.stats.binomtest(counted, trials)
    expected = test.proportion_ci(confidence, method="wilson")
    assert estimate.interval.low == pytest.approx(expected.low, abs=1e-9)
    assert estimate.interval.high == pytest.approx(expected.high, abs=1e-9)
    assert estimate.basis == "drafts"


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_independent_drafts_of_several_tokens(accepted):
    estimate = independent(sum(accepted), sum(j * j for j in accepted), len(accepted), 0.95, 4)
    expected = np.std(accepted) / math.sqrt(len(accepted))
    assert estimate.standard_error == pytest.approx(expected, abs=1e-6)
    assert estimate.interval.value == pytest.approx(np.mean(accepted))


@given(clusters, st.integers(1, 8))
def test_an_interval_holds_its_value_and_stays_in_range(pairs, most):
    totals = of((counted * most, trials) for counted, trials in pairs)
    estimate = clustered(totals, 0.95, most)
    assume(estimate is not None)
    interval = estimate.interval
    assert 0 <= interval.low <= interval.value <= interval.high <= most
    assert interval.low < interval.high  # certainty is never claimed


@given(clusters)
def test_clusters_without_trials_change_nothing(pairs):
    assume(sum(trials > 0 for _, trials in pairs) >= 2)
    assert clustered(of(pairs), 0.95) == clustered(of([*pairs, (0, 0), (0, 0)]), 0.95)


@pytest.mark.parametrize("pairs", [[], [(3, 9)], [(3, 9), (0, 0)], [(0, 0), (0, 0)]])
def test_a_single_cluster_shows_no_spread(pairs):
    assert clustered(of(pairs), 0.95) is None


def test_nothing_tried_is_no_rate():
    assert independent(0, 0, 0, 0.95) is None


def test_requests_that_all_agree_leave_wilsons_doubt():
    # 12 of 12 in two requests: Wilson's low end is n / (n + c^2), t(0.975, 1) = 12.7062
    estimate = clustered(of([(5, 5), (7, 7)]), 0.95)
    assert estimate.interval.high == estimate.interval.value == 1
    assert estimate.interval.low == pytest.approx(12 / (12 + 12.7062**2), rel=1e-4)


# ----------------------------------------------------------------------------------- coverage

RUNS = 800


def simulate(rate, alike, requests, seed):
    """Requests with rates of their own (beta, intra-class correlation `alike`), unequal lengths."""
    rng = np.random.default_rng(seed)
    for _ in range(RUNS):
        drafts = rng.integers(15, 80, requests)
        own = np.full(requests, rate)
        if alike:
            own = rng.beta(*(share * (1 / alike - 1) for share in (rate, 1 - rate)), requests)
        yield rng.binomial(drafts, own), drafts


def coverage(rate, alike, requests, seed=1):
    """How often each interval holds the rate; errors as estimated, and as they were."""
    held = {"requests": 0, "drafts": 0}
    errors, values = [], []
    for accepted, drafts in simulate(rate, alike, requests, seed):
        ours = clustered(of(zip(accepted, drafts, strict=True)), 0.95)
        total = int(accepted.sum())
        naive = independent(total, total, int(drafts.sum()), 0.95)
        for estimate in (ours, naive):
            held[estimate.basis] += estimate.interval.low <= rate <= estimate.interval.high
        errors.append(ours.standard_error)
        values.append(ours.interval.value)
    estimated = math.sqrt(np.mean(np.square(errors)))
    return held["requests"] / RUNS, held["drafts"] / RUNS, estimated / np.std(values, ddof=1)


@pytest.mark.parametrize("requests", [4, 8, 24])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_drafts_that_are_alike(rate, requests):
    """Intra-class correlation 0.1 with some 47 drafts a request: errors are sqrt(5.6) times as
    large as those of coin tosses (design effect 1 + 46 x 0.1)."""
    ours, naive, error = coverage(rate, 0.1, requests)
    assert 0.90 <= ours <= 0.98
    assert naive < 0.70
    # 800 runs: the sd of both figures is known to a few percent; four requests tell little
    assert error == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_coin_tosses(rate):
    ours, naive, error = coverage(rate, 0, 24)
    assert 0.90 <= ours <= 0.98 and 0.90 <= naive <= 0.98
    assert error == pytest.approx(1, abs=0.1)


def test_coin_tosses_have_the_binomial_error():
    accepted, drafts = next(simulate(0.6, 0, 400, seed=3))
    ours = clustered(of(zip(accepted, drafts, strict=True)), 0.95)
    binomial = math.sqrt(0.6 * 0.4 / drafts.sum())
    # a standard error from 400 requests is itself known to 1 / sqrt(800) = 3.5 %
    assert ours.standard_error == pytest.approx(binomial, rel=0.16)
