"""The relative cost of a step: the posterior against a dense computation written here."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune import steptime
from autotune.steptime import CostPoint, log_cost

costs = st.builds(
    CostPoint,
    n=st.integers(1, 16),
    concurrency=st.sampled_from([1, 4, 32, 256]),
    cost=st.floats(0.5, 8.0),
    relative_sd=st.floats(0.005, 0.1),
)


def point(n, cost, load=8, sd=0.02):
    return CostPoint(n=n, concurrency=load, cost=cost, relative_sd=sd)


def covariance(a, b, scale=1.0):
    """Of c at two (N, load): affine in N, a smooth residual, a residual of its own, by load."""
    (n, load), (m, other) = a, b
    prior_n, prior_m = (steptime.INTERCEPT + steptime.SLOPE * k for k in (n, m))
    smooth = steptime.SMOOTH_SD**2 * math.exp(-((n - m) ** 2) / (2 * steptime.SMOOTH_LENGTH**2))
    own = steptime.STEP_SD**2 if n == m else 0.0
    affine = steptime.INTERCEPT_SD**2 + steptime.SLOPE_SD**2 * n * m
    octaves = math.log2(load) - math.log2(other)
    near = math.exp(-(octaves**2) / (2 * steptime.LOAD_LENGTH**2))
    return near * (affine + prior_n * prior_m * scale**2 * (smooth + own))


def posterior(points, n, load):
    """Condition the joint normal of (c at points, c at n) by its Schur complement."""
    places = [*((p.n, p.concurrency) for p in points), (n, load)]
    scale = likeliest_scale(points)
    joint = np.array([[covariance(a, b, scale) for b in places] for a in places])
    means = np.array([steptime.INTERCEPT + steptime.SLOPE * k for k, _ in places])
    noise = np.array([(p.relative_sd * p.cost) ** 2 for p in points])
    among = joint[:-1, :-1] + np.diag(noise)
    factor = scipy.linalg.cho_factor(among)
    surprise = np.array([p.cost for p in points]) - means[:-1]
    mean = means[-1] + joint[-1, :-1] @ scipy.linalg.cho_solve(factor, surprise)
    left = joint[-1, -1] - joint[-1, :-1] @ scipy.linalg.cho_solve(factor, joint[:-1, -1])
    return mean, math.sqrt(max(left, 0.0))


def likeliest_scale(points):
    """The roughness with the best log density of the measured costs, less one per doubling."""
    if len(points) < 4:
        return 1.0
    places = [(p.n, p.concurrency) for p in points]
    noise = np.diag([(p.relative_sd * p.cost) ** 2 for p in points])
    means = [steptime.INTERCEPT + steptime.SLOPE * p.n for p in points]

    def worth(doublings):
        spread = np.array([[covariance(a, b, 2.0**doublings) for b in places] for a in places])
        density = scipy.stats.multivariate_normal(means, spread + noise)
        return density.logpdf([p.cost for p in points]) - doublings

    return 2.0 ** max(range(5), key=worth)


@settings(max_examples=60)
@given(st.lists(costs, min_size=1, max_size=8), st.integers(1, 16), st.sampled_from([1, 8, 64]))
def test_posterior_is_the_dense_one(points, n, load):
    mean, sd = posterior(points, n, load)
    log_mean, log_sd = log_cost(points, n, load)
    if mean > steptime.MIN_COST:
        assert math.exp(log_mean) == pytest.approx(mean, rel=1e-6)
        assert log_sd * math.exp(log_mean) == pytest.approx(sd, rel=1e-3, abs=2e-6)
    else:
        assert math.exp(log_mean) == pytest.approx(steptime.MIN_COST)


def test_the_prior_is_wide_enough_for_the_published_panels():
    """Intercepts of 1.0 to 2.0 and slopes of 0.1 to 0.35 (the vLLM blog post of 2026-08-23)."""
    for intercept, slope in [(1.0, 0.1), (1.0, 0.35), (2.0, 0.1), (2.0, 0.35)]:
        for n in (1, 4, 8):
            mean, sd = log_cost([], n, 8)
            assert abs(math.log(intercept + slope * n) - mean) < 2.5 * sd


def test_one_exact_point_is_believed():
    mean, sd = log_cost([point(4, 1.7, sd=1e-4)], 4, 8)
    assert math.exp(mean) == pytest.approx(1.7, rel=0.002)
    assert sd < 0.005


def test_a_useless_point_changes_nothing():
    assert log_cost([point(4, 1.7, sd=1e4)], 6, 8) == pytest.approx(log_cost([], 6, 8), rel=1e-4)


def test_measuring_one_n_teaches_its_neighbours_most():
    known = [point(4, 2.0)]
    sds = [log_cost(known, n, 8)[1] for n in range(4, 12)]
    assert all(a < b for a, b in itertools.pairwise(sds))
    assert all(sd < log_cost([], n, 8)[1] for n, sd in enumerate(sds, 4))


def test_an_affine_cost_is_extrapolated():
    line = [point(n, 1.4 + 0.2 * n) for n in (1, 2, 4)]
    for n in (3, 6):
        mean, sd = log_cost(line, n, 8)
        assert abs(mean - math.log(1.4 + 0.2 * n)) < 1.5 * sd
        assert math.exp(mean) == pytest.approx(1.4 + 0.2 * n, rel=0.06)


def test_a_step_in_the_cost_does_not_spread():
    """Verification of N + 1 = 4 tokens fits a tile: a dip of 8 % at N = 3 alone."""
    line = {n: 1.4 + 0.2 * n for n in range(1, 7)}
    dipped = [point(n, c * (0.92 if n == 3 else 1), sd=0.01) for n, c in line.items() if n != 4]
    mean, sd = log_cost(dipped, 4, 8)
    assert math.exp(mean) == pytest.approx(line[4], rel=0.03)
    assert abs(mean - math.log(line[4])) < 1.96 * sd
    seen, _ = log_cost(dipped, 3, 8)
    assert seen == pytest.approx(math.log(line[3] * 0.92), abs=0.03)


def test_loads_teach_each_other_by_distance():
    known = [point(4, 2.6, load=8)]
    sds = [log_cost(known, 4, load)[1] for load in (8, 16, 64, 1024)]
    assert all(a < b for a, b in itertools.pairwise(sds))
    means = [log_cost(known, 4, load)[0] for load in (8, 16, 64, 1024)]
    prior = log_cost([], 4, 8)[0]
    assert all(a > b > prior - 1e-9 for a, b in itertools.pairwise(means))


def test_an_unstated_load_is_one_load():
    known = [point(4, 2.6, load=None)]
    assert log_cost(known, 4, None) == pytest.approx(log_cost([point(4, 2.6, load=1)], 4, 1))


@given(st.lists(costs, min_size=1, max_size=2), costs, st.integers(1, 16))
def test_more_points_are_never_less_certain(points, more, n):
    # fewer than four points: their roughness is not judged, only then this must hold
    def absolute(known):
        mean, sd = log_cost(known, n, 8)
        return sd * math.exp(mean)

    if math.exp(min(log_cost(k, n, 8)[0] for k in (points, [*points, more]))) > 0.21:
        assert absolute([*points, more]) <= absolute(points) * (1 + 1e-6)


@given(st.lists(costs, max_size=6), st.integers(1, 64), st.sampled_from([None, 1, 8, 512]))
def test_the_answer_is_always_a_number(points, n, load):
    mean, sd = log_cost(points, n, load)
    assert math.isfinite(mean) and sd > 0


def test_a_graph_capture_cliff_is_believed():
    """Above a capture size a step takes 4 times as long: measured points stay near their data."""
    cliff = [point(n, 1.2 + 0.1 * n if n < 5 else 6.0 + 0.2 * n) for n in (2, 4, 5, 6, 7, 8)]
    for p in cliff:
        mean, sd = log_cost(cliff, p.n, 8)
        assert abs(mean - math.log(p.cost)) < 3 * math.hypot(sd, p.relative_sd)
