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
from tuner_samples import PUBLISHED

from autotune import priors
from autotune.recording import load_recording
from autotune.records import Prior
from autotune.steptime import KERNELS, CostModel, CostPoint

PRIORS = {
    "mtp": Prior(cost_intercept=1.4, cost_slope=0.2),
    "eagle3": Prior(cost_intercept=1.2, cost_slope=0.15),
    "dflash": Prior(cost_intercept=1.5, cost_slope=0.1),
}
PARTS = ("whole", "draft", "verify")

methods = st.sampled_from(list(PRIORS))
loads = st.sampled_from([1, 4, 32, 256])
costs = st.builds(
    CostPoint,
    method=methods,
    n=st.integers(1, 16),
    concurrency=loads,
    cost=st.floats(0.5, 8.0),
    relative_sd=st.floats(0.005, 0.1),
)


def point(n, cost, load=8, sd=0.02, method="mtp"):
    return CostPoint(method=method, n=n, concurrency=load, cost=cost, relative_sd=sd)


MIN_COST = 0.02  # the normal has no end, a logarithm has


def log_of(model, place):
    means, sds = model.costs([place])
    mean = max(MIN_COST, float(means[0]))
    return math.log(mean), float(sds[0]) / mean


def log_cost(points, n, load=8, method="mtp", part="whole"):
    return log_of(CostModel(points, PRIORS, part), (method, n, load))


# ------------------------------------------------------------------- the model, computed again


def prior_cost(method, n, part="whole"):
    """A method's line; verification alone is 1.1 + 0.6 of its slope, never above the line."""
    line = PRIORS[method].cost_intercept + PRIORS[method].cost_slope * n
    verify = min(line, 1.1 + 0.6 * PRIORS[method].cost_slope * n)
    return {"whole": line, "verify": verify, "draft": line - verify}[part]


def covariance(a, b, part, scales):
    """Of c at two (method, N, load), term by term as the module's text has it."""
    (method, n, load), (other, m, at) = a, b
    k = KERNELS[part]
    steep_n, steep_m = (
        length * (1 + 0.25 * math.log2(requests)) for length, requests in ((n, load), (m, at))
    )
    total = k.shared_intercept**2 + k.shared_slope**2 * steep_n * steep_m
    level = prior_cost(method, n) * prior_cost(other, m)
    if n == m:
        total += level * k.shared_step**2
    if method == other:
        total += k.own_intercept**2 + k.own_slope**2 * steep_n * steep_m
        smooth = k.own_smooth**2 * math.exp(-((n - m) ** 2) / (2 * k.smooth_length**2))
        total += level * scales[method] ** 2 * (smooth + (k.own_step**2 if n == m else 0.0))
    octaves = math.log2(load / at)
    return total * math.exp(-abs(octaves) / 6)


def likeliest_scale(points, part):
    """The roughness with the best log density of the measured costs, less one per doubling."""
    if len(points) < 4:
        return 1.0
    places = [(p.method, p.n, p.concurrency) for p in points]
    noise = np.diag([(p.relative_sd * p.cost) ** 2 for p in points])
    means = [prior_cost(p.method, p.n, part) for p in points]

    def worth(doublings):
        scales = {points[0].method: 2.0**doublings}
        spread = np.array([[covariance(a, b, part, scales) for b in places] for a in places])
        density = scipy.stats.multivariate_normal(means, spread + noise)
        return density.logpdf([p.cost for p in points]) - doublings

    return 2.0 ** max(range(5), key=worth)


def posterior(points, place, part):
    """Condition the joint normal of (c at points, c at the place) by its Schur complement."""
    scales = {
        method: likeliest_scale([p for p in points if p.method == method], part)
        for method in PRIORS
    }
    places = [*((p.method, p.n, p.concurrency) for p in points), place]
    joint = np.array([[covariance(a, b, part, scales) for b in places] for a in places])
    means = np.array([prior_cost(method, n, part) for method, n, _ in places])
    noise = np.array([(p.relative_sd * p.cost) ** 2 for p in points])
    factor = scipy.linalg.cho_factor(joint[:-1, :-1] + np.diag(noise))
    surprise = np.array([p.cost for p in points]) - means[:-1]
    mean = means[-1] + joint[-1, :-1] @ scipy.linalg.cho_solve(factor, surprise)
    left = joint[-1, -1] - joint[-1, :-1] @ scipy.linalg.cho_solve(factor, joint[:-1, -1])
    return mean, math.sqrt(max(left, 0.0))


@settings(max_examples=60)
@given(
    st.lists(costs, min_size=1, max_size=9),
    methods,
    st.integers(1, 16),
    st.sampled_from([1, 8, 64]),
    st.sampled_from(PARTS),
)
def test_the_posterior_is_the_dense_one(points, method, n, load, part):
    mean, sd = posterior(points, (method, n, load), part)
    log_mean, log_sd = log_cost(points, n, load, method, part)
    expected = max(MIN_COST, mean)
    assert math.exp(log_mean) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert log_sd * math.exp(log_mean) == pytest.approx(sd, rel=1e-3, abs=2e-6)


def test_the_prior_is_the_methods_own_line():
    mean, sd = log_cost([], 4)
    assert math.exp(mean) == pytest.approx(1.4 + 0.2 * 4)
    # at load 1 a slope counts once: four sds of intercepts and slopes, three of residuals
    variance = 0.30**2 + 0.12**2 + 16 * (0.08**2 + 0.035**2)
    variance += 2.2**2 * (0.03**2 + 0.02**2 + 0.06**2)
    assert log_cost([], 4, load=1)[1] == pytest.approx(math.sqrt(variance) / 2.2)
    assert sd > log_cost([], 4, load=1)[1]


def test_a_list_of_places_is_answered_place_by_place():
    points = [point(2, 1.9), point(5, 2.6, method="eagle3"), point(3, 2.0, load=64)]
    places = [(method, n, load) for method in PRIORS for n in (1, 2, 7) for load in (8, 64)]
    model = CostModel(points, PRIORS)
    means, sds = model.costs(places)
    for place, mean, sd in zip(places, means, sds, strict=True):
        again = log_of(model, place)
        assert (math.log(mean), sd / mean) == pytest.approx(again)


def test_the_prior_is_wide_enough_for_the_published_panels():
    """Intercepts of 1.0 to 2.0 and slopes of 0.1 to 0.35 (the vLLM blog post of 2026-08-23)."""
    for intercept, slope in itertools.product([1.0, 2.0], [0.1, 0.35]):
        for n in (1, 4, 8):
            mean, sd = log_cost([], n)
            assert abs(math.log(intercept + slope * n) - mean) < 2.5 * sd


def published():
    """{method: {N: tau / speedup}} of every published sweep with rates for all positions."""
    for path in sorted(PUBLISHED.glob("s01-*.json")):
        recording = load_recording(path)
        base = recording.baseline[0].output_tokens_per_second
        found = {}
        for p in recording.points:
            tau = 1 + math.fsum(p.per_position_acceptance)
            cost = tau * base / p.output_tokens_per_second
            found.setdefault(p.method, {})[p.num_speculative_tokens] = cost
        yield found


def test_a_published_cost_left_out_is_predicted():
    """All other N of all methods are known; the figures carry about 1 % of noise."""
    errors, scores = [], []
    for sweep in published():
        known = {method: priors.prior(method) for method in sweep}
        points = [point(n, c, None, 0.01, m) for m, row in sweep.items() for n, c in row.items()]
        for p in points:
            model = CostModel([q for q in points if q is not p], known)
            mean, sd = log_of(model, (p.method, p.n, None))
            errors.append(mean - math.log(p.cost))
            scores.append(errors[-1] / math.hypot(sd, 0.01))
    assert len(errors) > 250
    assert np.median(np.abs(errors)) < 0.02
    assert 0.9 < (np.abs(scores) < 1.96).mean() <= 0.99


# ------------------------------------------------------------------------------ one method


def test_one_exact_point_is_believed():
    mean, sd = log_cost([point(4, 1.7, sd=1e-4)], 4)
    assert math.exp(mean) == pytest.approx(1.7, rel=0.002)
    assert sd < 0.005


def test_a_useless_point_changes_nothing():
    assert log_cost([point(4, 1.7, sd=1e4)], 6) == pytest.approx(log_cost([], 6), rel=1e-4)


def test_measuring_one_n_teaches_its_neighbours_most():
    known = [point(4, 2.0)]
    sds = [log_cost(known, n)[1] for n in range(4, 12)]
    assert all(a < b for a, b in itertools.pairwise(sds))
    assert all(sd < log_cost([], n)[1] for n, sd in enumerate(sds, 4))


def test_an_affine_cost_is_extrapolated():
    line = [point(n, 1.1 + 0.3 * n) for n in (1, 2, 4)]
    for n in (3, 6):
        mean, sd = log_cost(line, n)
        assert abs(mean - math.log(1.1 + 0.3 * n)) < 1.5 * sd
        assert math.exp(mean) == pytest.approx(1.1 + 0.3 * n, rel=0.06)


def test_doubt_grows_beyond_the_last_measured_n():
    known = [point(n, 1.4 + 0.2 * n) for n in (1, 2, 4)]
    means, sds = CostModel(known, PRIORS).costs([("mtp", n, 8) for n in range(4, 17)])
    assert all(a < b for a, b in itertools.pairwise(sds))
    assert means[0] == pytest.approx(2.2, rel=0.02)


def test_a_step_in_the_cost_does_not_spread():
    """Verification of N + 1 = 4 tokens fits a tile: a dip of 8 % at N = 3 alone."""
    line = {n: 1.4 + 0.2 * n for n in range(1, 7)}
    dipped = [point(n, c * (0.92 if n == 3 else 1), sd=0.01) for n, c in line.items() if n != 4]
    mean, sd = log_cost(dipped, 4)
    assert math.exp(mean) == pytest.approx(line[4], rel=0.03)
    assert abs(mean - math.log(line[4])) < 1.96 * sd
    seen, _ = log_cost(dipped, 3)
    assert seen == pytest.approx(math.log(line[3] * 0.92), abs=0.03)


def test_a_graph_capture_cliff_is_believed():
    """Above a capture size a step takes 4 times as long: measured points stay near their data."""
    cliff = [point(n, 1.2 + 0.1 * n if n < 5 else 6.0 + 0.2 * n) for n in (2, 4, 5, 6, 7, 8)]
    for p in cliff:
        mean, sd = log_cost(cliff, p.n)
        assert abs(mean - math.log(p.cost)) < 3 * math.hypot(sd, p.relative_sd)


def test_a_rough_method_is_doubted_more():
    """The same N measured, once along a line and once zigzagging by 40 % around it."""
    smooth = [point(n, 1.4 + 0.2 * n) for n in (1, 2, 3, 5, 6)]
    rough = [point(p.n, p.cost * (1.4 if p.n % 2 else 0.7)) for p in smooth]
    assert log_cost(rough, 4)[1] > 2 * log_cost(smooth, 4)[1]
    # three points cannot tell a cliff from a slope: as certain, to the noise, as along a line
    few = [
        [point(n, cost, sd=0.02 / cost) for n, cost in rows]
        for rows in ([(1, 1.6), (2, 1.8), (3, 2.0)], [(1, 2.6), (2, 1.2), (3, 2.8)])
    ]
    absolute = [CostModel(points, PRIORS).costs([("mtp", 4, 8)])[1][0] for points in few]
    assert absolute[0] == pytest.approx(absolute[1])


# -------------------------------------------------------------------------- several methods


def test_methods_teach_each_other():
    """Verification is the target's own: another method's cost at the same N moves this one's."""
    expensive = [point(4, 3.4, method="eagle3", sd=0.01)]  # its prior is 1.8
    mean, sd = log_cost(expensive, 4)
    assert mean > log_cost([], 4)[0] + 0.2
    assert sd < log_cost([], 4)[1]
    # a measurement of its own counts for more
    assert sd > log_cost([point(4, 3.4, sd=0.01)], 4)[1]


def test_a_dip_at_one_n_is_shared():
    """mtp dips at N = 3 against its own line, so eagle3 is expected to dip there as well."""
    line = {n: 1.4 + 0.2 * n for n in range(1, 8)}

    def bend(dip):
        known = [point(n, c * (dip if n == 3 else 1), sd=0.005) for n, c in line.items()]
        means, _ = CostModel(known, PRIORS).costs([("eagle3", n, 8) for n in (2, 3, 4)])
        return means[1] - (means[0] + means[2]) / 2

    assert bend(0.92) < bend(1.0) - 0.02


def test_drafting_is_a_methods_own():
    """Another method's drafting says less than its verification does."""

    def learned(part):
        before, after = log_cost([], 4, part=part), log_cost(
            [point(4, prior_cost("eagle3", 4, part), method="eagle3", sd=0.001)], 4, part=part
        )  # fmt: skip
        return 1 - (after[1] / before[1]) ** 2  # share of the variance that is gone

    assert learned("verify") > 0.8
    assert learned("draft") < 0.4


def test_the_parts_of_the_prior_are_the_whole():
    for method, n in itertools.product(PRIORS, (1, 3, 8)):
        whole, draft, verify = (
            math.exp(log_cost([], n, method=method, part=part)[0]) for part in PARTS
        )
        assert draft + verify == pytest.approx(whole)
        # 1.1 + 0.6 of the slope is the target's, by hand for mtp at N = 3: 1.46 of 2.0
    assert math.exp(log_cost([], 3, part="verify")[0]) == pytest.approx(1.46)


def test_drafting_may_cost_next_to_nothing():
    """A share of 0.2 % of the step is what is measured, and what comes out."""
    points = [point(n, 0.002, sd=0.01) for n in (1, 2, 4)]
    means, _ = CostModel(points, PRIORS, "draft").costs([("mtp", n, 8) for n in (1, 2, 4)])
    assert means == pytest.approx([0.002] * 3, rel=0.1)


def test_a_method_whose_acceptance_is_not_known_teaches_no_other():
    """A low speed may be bad drafts: the steps of others need not be long."""
    bad = [point(5, 4.0, method="eagle3")]
    place = ("mtp", 3, 8)
    shared, alone = (
        CostModel(bad, PRIORS, alone=names).costs([place]) for names in ((), ("eagle3",))
    )
    before = CostModel([], PRIORS).costs([place])
    assert shared[0] > before[0] and shared[1] < before[1]
    assert alone == (pytest.approx(before[0]), pytest.approx(before[1]))
    own = CostModel(bad, PRIORS, alone=("eagle3",)).costs([("eagle3", 5, 8)])
    assert own[0] == pytest.approx(4.0, rel=0.03)


# ------------------------------------------------------------------------------------ loads


def test_loads_teach_each_other_by_distance():
    known = [point(4, 2.6, load=8)]
    means, sds = CostModel(known, PRIORS).costs([("mtp", 4, load) for load in (8, 16, 64, 1024)])
    assert all(a < b for a, b in itertools.pairwise(sds))
    # part of the surprise may be slope, which is steeper at 16 requests; far away it fades
    prior = 1.4 + 0.2 * 4
    assert all(mean > prior for mean in means)
    assert means[3] - prior < means[2] - prior
    assert means[3] - prior < 0.75 * (means[0] - prior)  # 7 doublings away


def test_a_slope_may_be_steeper_at_a_higher_load():
    """A quarter more with every doubling: 2.5 times the slope's sd at 64 requests."""
    low, high = CostModel([], PRIORS).costs([("mtp", 8, 1), ("mtp", 8, 64)])[1] ** 2
    assert high - low == pytest.approx(8**2 * (0.08**2 + 0.035**2) * (2.5**2 - 1))


def test_an_unstated_load_is_one_load():
    known = [point(4, 2.6, load=None)]
    assert log_cost(known, 4, None) == pytest.approx(log_cost([point(4, 2.6, load=1)], 4, 1))


# ------------------------------------------------------------------------------- properties


@settings(max_examples=50)
@given(st.lists(costs, max_size=2), costs, methods, st.integers(1, 16), st.sampled_from(PARTS))
def test_more_points_are_never_less_certain(points, more, method, n, part):
    # fewer than four points: their roughness is not judged, only then this must hold
    def sd(known):
        return CostModel(known, PRIORS, part).costs([(method, n, 8)])[1][0]

    assert sd([*points, more]) <= sd(points) * (1 + 1e-6)


@settings(max_examples=50)
@given(st.lists(costs, min_size=2, max_size=8), st.randoms(use_true_random=False), methods)
def test_the_order_of_measuring_does_not_matter(points, shuffler, method):
    shuffled = list(points)
    shuffler.shuffle(shuffled)
    for n in (1, 5, 12):
        means, sds = CostModel(points, PRIORS).costs([(method, n, 8)])
        again, its_sds = CostModel(shuffled, PRIORS).costs([(method, n, 8)])
        assert again == pytest.approx(means, rel=1e-6)
        assert its_sds == pytest.approx(sds, rel=1e-4, abs=1e-6)


@settings(max_examples=50)
@given(
    st.lists(costs, max_size=6),
    methods,
    st.integers(1, 1024),
    st.sampled_from([None, 1, 8, 512]),
    st.sampled_from(PARTS),
)
def test_the_answer_is_always_a_number(points, method, n, load, part):
    mean, sd = log_cost(points, n, load, method, part)
    assert math.isfinite(mean) and math.isfinite(sd) and sd > 0


def test_a_method_nobody_knows_is_a_mistake():
    with pytest.raises((KeyError, ValueError)):
        log_cost([], 4, method="unheard of")
