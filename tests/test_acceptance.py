"""Acceptance per position and tokens per step.

Expected values are published vectors, arithmetic, or a second computation written here: the joint
normal conditioned by its Schur complement, a fixed point found by bisection, finite differences.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tuner_samples import PUBLISHED as SWEEPS
from tuner_samples import window

from autotune import acceptance, priors
from autotune.acceptance import (
    Acceptance,
    StepRates,
    decode_steps,
    geometric_rate,
    step_rates,
    window_rates,
)
from autotune.recording import load_recording
from autotune.records import Prior, RequestResult, SpecCounters

# (per-position rates, printed acceptance length) from public logs and cards
PUBLISHED = {
    "ngram, opt-125m": ([0.983, 0.949, 0.915, 0.881, 0.712], 5.44),
    "MTP, Qwen3.6-27B": ([0.917, 0.837, 0.648, 0.538, 0.451, 0.348], 4.74),
    "DSpark, DeepSeek-V4-Flash": ([0.739, 0.478, 0.261, 0.174, 0.13, 0.087, 0.043], 2.91),
    "DFlash, Qwen3.6-27B": ([0.87, 0.76, 0.62, 0.534, 0.449], 4.23),
    "EAGLE, Llama-3.1-8B": ([0.6163, 0.4001, 0.2846, 0.2143], 2.515),
    # vLLM pull request 31739, 11043 drafts, 38611 accepted: 1 + 38611 / 11043 = 4.496
    "MTP, multi-layer": (
        [0.7617, 0.6158, 0.5125, 0.4243, 0.364, 0.3094, 0.2722, 0.2365],
        4.496,
    ),
}

# one drafter (EAGLE, Llama-3.1-8B) on one data set at four N: acceptance length by N
EAGLE = {
    4: ([0.6683, 0.4324, 0.2764, 0.1811], 2.558),
    6: ([0.6638, 0.4279, 0.2719, 0.1776, 0.1112, 0.0731], 2.726),
    8: ([0.663, 0.4269, 0.2689, 0.1749, 0.108, 0.0701, 0.0459, 0.0258], 2.783),
    10: (
        [0.6616, 0.4257, 0.2677, 0.1738, 0.1076, 0.0699, 0.0458, 0.0257, 0.0123, 0.0059],
        2.796,
    ),
}

conditional = st.lists(st.floats(0.05, 0.99), min_size=1, max_size=12)
any_rates = st.lists(st.floats(0, 1), min_size=1, max_size=10)
gentle = st.lists(st.floats(-0.03, 0.02), min_size=1, max_size=8)  # from position to position
figures = st.builds(
    Prior,
    first=st.floats(0.3, 0.95),
    second_step=st.floats(-0.08, 0.05),
    carry=st.floats(0.0, 0.08),
    doubt=st.floats(0.5, 4.0),
)


def falling(ratios):
    """Unconditional rates from conditional ones."""
    return [math.prod(ratios[: i + 1]) for i in range(len(ratios))]


def counters(drafts, per_pos, n=None):
    return SpecCounters(
        num_drafts=drafts,
        num_draft_tokens=drafts * (n or len(per_pos)),
        num_accepted_tokens=sum(per_pos),
        accepted_per_pos=tuple(per_pos),
    )


# -------------------------------------------------------------------------------- step rates


def test_steps_are_what_the_tokens_need():
    # 100 tokens of 4 requests: 4 come from prefills, 60 were drafted, so 36 steps
    rates = step_rates(counters(36, [30, 20, 10]), output_tokens=100, num_requests=4)
    assert rates == pytest.approx((30 / 36, 20 / 36, 10 / 36))
    assert 1 + sum(rates) == pytest.approx(96 / 36)


def test_steps_without_a_draft_count():
    # n-gram found a match in 10 of 40 steps only: tau is 1 + 15/40, not 1 + 15/10
    rates = step_rates(counters(10, [8, 7]), output_tokens=57, num_requests=2)
    assert rates == pytest.approx((8 / 40, 7 / 40))


def test_the_first_token_is_no_step():
    # vLLM 0.26: 149 drafts for 150 tokens of one request, nothing accepted: length 1, not 150/149
    assert step_rates(counters(149, [0] * 10), output_tokens=150, num_requests=1) == (0.0,) * 10


def test_no_step_no_rates():
    assert step_rates(counters(0, []), output_tokens=3, num_requests=3) == ()


@given(st.integers(1, 500), st.integers(1, 20), st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_tokens_per_step_is_an_identity(steps, requests, shares):
    per_pos = sorted((int(share * steps) for share in shares), reverse=True)
    tokens = steps + sum(per_pos) + requests
    rates = step_rates(counters(steps, per_pos), tokens, requests)
    assert (1 + sum(rates)) * steps + requests == pytest.approx(tokens)


# ------------------------------------------------------------------------------ window rates


def test_counters_are_the_best_evidence():
    rich = window(
        "mtp", 4, 100.0,
        counters=counters(36, [30, 20, 10], n=4),
        output_tokens=100,
        requests=tuple(RequestResult(prompt_id=f"{i}") for i in range(4)),
        per_position_acceptance_rates=(0.1, 0.1, 0.1, 0.1),
        acceptance_length=4.9,
    )  # fmt: skip
    # the fourth position never appeared in the counters: nothing was accepted there
    rates, steps, exact = window_rates(rich)
    assert rates == pytest.approx((30 / 36, 20 / 36, 10 / 36, 0.0))
    assert (steps, exact) == (36, True)


def test_the_steps_counted_are_never_fewer_than_the_drafts():
    assert decode_steps(counters(36, [30, 20, 10]), output_tokens=100, num_requests=4) == 36
    assert decode_steps(counters(10, [8, 7]), output_tokens=57, num_requests=2) == 40
    # the last draft's accepted tokens were cut off by max_tokens
    assert decode_steps(counters(36, [30, 20, 10]), output_tokens=97, num_requests=4) == 36


def test_a_drafter_that_never_drafted_was_measured():
    idle = window("ngram", 2, 100.0, counters=counters(0, [], n=2), output_tokens=50)
    assert window_rates(idle) == StepRates((0.0, 0.0), 50.0)


def test_a_window_without_a_decode_step_says_nothing():
    """Every answer was one token long: it came from the prefill, and nothing was drafted."""
    one = tuple(RequestResult(prompt_id=f"{i}") for i in range(3))
    short = window("mtp", 2, 9.0, counters=counters(0, []), output_tokens=3, requests=one)
    assert window_rates(short) is None


def test_printed_rates_come_before_the_length():
    printed = window(
        "mtp", 2, 100.0, per_position_acceptance_rates=(0.7, 0.5), acceptance_length=2.9
    )
    assert window_rates(printed) == StepRates((0.7, 0.5), steps=None, exact=True)


@pytest.mark.parametrize(
    ("printed", "n", "completed"),
    [
        ((0.8, 0.4), 4, (0.8, 0.4, 0.2, 0.1)),  # halved from one position to the next
        ((0.5,), 3, (0.5, 0.25, 0.125)),
        ((0.6, 0.0), 4, (0.6, 0.0, 0.0, 0.0)),
        ((0.0, 0.0), 3, (0.0, 0.0, 0.0)),
        ((0.6, 0.6), 3, (0.6, 0.6, 0.6)),
    ],
)
def test_positions_that_were_not_printed_decay_like_the_last(printed, n, completed):
    seen = window_rates(window("mtp", n, 100.0, per_position_acceptance_rates=printed))
    assert seen.rates == pytest.approx(completed)


def test_a_length_alone_becomes_a_geometric_decay():
    # 1 + r + r^2 = 1.75 has r = 1/2
    seen = window_rates(window("mtp", 2, 100.0, acceptance_length=1.75))
    assert seen.rates == pytest.approx((0.5, 0.25))
    assert (seen.steps, seen.exact) == (None, False)


def test_a_throughput_alone_says_nothing():
    assert window_rates(window("mtp", 2, 100.0)) is None
    assert window_rates(window("none", 0, 100.0, acceptance_length=None)) is None


@pytest.mark.parametrize(("length", "n", "rate"), [(1.8, 1, 0.8), (1.75, 2, 0.5), (1.0, 7, 0.0)])
def test_geometric_rate_by_hand(length, n, rate):
    assert geometric_rate(length, n) == pytest.approx(rate)


def test_everything_accepted_is_rate_one():
    assert geometric_rate(9.0, 8) == pytest.approx(1.0)


@given(st.floats(0.001, 0.999), st.integers(1, 32))
def test_geometric_rate_inverts_the_sum(rate, n):
    length = 1 + sum(rate**i for i in range(1, n + 1))
    assert geometric_rate(length, n) == pytest.approx(rate, abs=1e-6)


# ------------------------------------------------- tokens per step: the model, computed again


def exact(rates, steps=None):
    return StepRates(tuple(rates), steps)


def log_tau(known, n, prior=None, longest=16):
    return Acceptance(known, Prior() if prior is None else prior, longest).log_tau(n)


def rates_of(alpha, carry, n):
    """p_1 .. p_N of a_i = alpha_i + carry p_N, by bisection on p_N (one root for small carry)."""

    def positions(whole):
        chances = np.clip(np.asarray(alpha[:n]) + carry * whole, 1e-6, 1.0)
        return np.cumprod(chances)

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if positions(middle)[-1] > middle else (low, middle)
    return positions((low + high) / 2)


def prior_state(prior, length):
    """Joint normal of (alpha_1 .. alpha_L, carry), as documented: sums of independent steps."""
    later = [prior.later_step] * 5 + [0.0] * length  # it falls up to position 8
    steps = [prior.first, prior.second_step, prior.third_step, *later]
    sds = [acceptance.FIRST_SD, *acceptance.STEP_SDS] + [acceptance.STEP_SDS[-1]] * length
    walk = np.tril(np.ones((length, length)))
    spread = walk @ np.diag(np.square(sds[:length])) @ walk.T
    joint = np.zeros((length + 1, length + 1))
    joint[:-1, :-1], joint[-1, -1] = spread, acceptance.CARRY_SD**2
    mean = np.clip(walk @ steps[:length], 0.02, 0.99)
    return np.append(mean, prior.carry), prior.doubt**2 * joint


def posterior(known, prior, length):
    """Mean and covariance of the state given every measured a_i(N): one at a time."""
    mean, joint = prior_state(prior, length)
    for n, (rates, steps, _) in known.items():
        for i, (before, after) in enumerate(itertools.pairwise((1.0, *rates))):
            if before < acceptance.SEEN:
                break
            seen = np.zeros(length + 1)
            seen[i], seen[-1] = 1.0, rates[n - 1]
            ratio = min(1.0, after / before)
            noise = acceptance.MODEL_SD**2 / before
            if steps is not None:
                chance = min(max(ratio, 0.02), 0.98)
                binomial = chance * (1 - chance) / (steps * before)
                noise += binomial
            gain = joint @ seen / (seen @ joint @ seen + noise)
            mean = mean + gain * (ratio - seen @ mean)
            joint = joint - np.outer(gain, seen @ joint)
    return mean, joint


def log_length(state, n):
    return math.log1p(rates_of(state[:-1], state[-1], n).sum())


def expected(known, n, prior, length):
    """Mean and sd of ln tau(n): the sd through finite differences, plus what is always left."""
    mean, joint = posterior(known, prior, length)
    slope = np.zeros(length + 1)
    for i in range(length + 1):
        shift = np.zeros(length + 1)
        shift[i] = 1e-5
        slope[i] = (log_length(mean + shift, n) - log_length(mean - shift, n)) / 2e-5
    return log_length(mean, n), math.hypot(acceptance.RESIDUAL_SD, math.sqrt(slope @ joint @ slope))


@settings(max_examples=40)
@given(
    st.floats(0.45, 0.85),
    st.lists(st.floats(-0.05, 0.02), min_size=8, max_size=8),
    st.dictionaries(
        st.integers(1, 8),
        st.tuples(st.floats(-0.01, 0.01), st.none() | st.floats(20, 1e5)),
        max_size=3,
    ),
    st.integers(1, 8),
    st.floats(0.02, 0.08),
)
def test_the_posterior_is_the_joint_normal_conditioned(first, steps, drawn, n, carry):
    """Drafters whose acceptance drifts a little, so that no a_i reaches 0 or 1."""
    prior = Prior(first=0.7, carry=carry, second_step=-0.02)
    walk = first + np.cumsum(steps)
    known = {
        m: exact(falling(np.clip(walk[:m] + shift, 0.1, 0.9)), count)
        for m, (shift, count) in drawn.items()
        if m != n
    }
    state, _ = posterior(known, prior, 8)
    # where a chance is cut at 1 the slope is 0 on one side, and a doubt of 0 would be wrong
    assume(max(state[:n] + state[-1] * rates_of(state[:-1], state[-1], n)[-1]) < 0.999)
    mean, sd = log_tau(known, n, prior, longest=8)
    again = expected(known, n, prior, 8)
    least = max([0.0, *(math.log1p(sum(seen.rates)) for m, seen in known.items() if m < n)])
    most = min([math.inf, *(math.log1p(sum(seen.rates)) for m, seen in known.items() if m > n)])
    # more drafted tokens never commit fewer
    again = (max(min(again[0], most), least), again[1])
    assert mean == pytest.approx(again[0], abs=1e-5)
    assert sd == pytest.approx(again[1], rel=1e-3)


def test_the_sd_is_that_of_many_states():
    """Monte Carlo over the posterior state: the linear sd is right within 7 %."""
    known = {3: exact(falling([0.8, 0.75, 0.7]), 2000.0)}
    mean, joint = posterior(known, Prior(), 6)
    states = np.random.default_rng(3).multivariate_normal(mean, joint, size=1500)
    drawn = np.array([log_length(state, 6) for state in states])
    found, sd = log_tau(known, 6, longest=6)
    assert found == pytest.approx(drawn.mean(), abs=4 * drawn.std() / math.sqrt(1500) + 0.002)
    assert sd == pytest.approx(math.hypot(drawn.std(), acceptance.RESIDUAL_SD), rel=0.07)


def test_before_anything_is_measured_the_prior_is_told():
    # a_1(1) = alpha + carry p_1 = 0.8 + 0.05 p_1, so p_1 = 0.8 / 0.95
    mean, sd = log_tau({}, 1, Prior(first=0.8, carry=0.05))
    assert math.exp(mean) == pytest.approx(1 + 0.8 / 0.95)
    # d p_1 = (d alpha + p_1 d carry) / (1 - carry), and tau = 1 + p_1
    spread = math.hypot(0.12, 0.8 / 0.95 * 0.02) / 0.95 / (1 + 0.8 / 0.95)
    assert sd == pytest.approx(math.hypot(spread, 0.003))


def test_a_prior_that_falls_below_nothing_stops_at_a_fiftieth():
    prior = Prior(first=0.1, second_step=-0.05, third_step=-0.05, later_step=-0.05, carry=0.0)
    expected_length = 1 + math.fsum(falling([0.1, 0.05, 0.02, 0.02]))
    assert math.exp(log_tau({}, 4, prior)[0]) == pytest.approx(expected_length)


def test_rates_that_the_prior_expects_leave_its_mean():
    prior = Prior(first=0.8, second_step=-0.02, third_step=-0.01, later_step=-0.01, carry=0.04)
    alpha = [0.8, 0.78, 0.77, 0.76, 0.75, 0.74]
    known = {n: exact(rates_of(alpha, 0.04, n)) for n in (2, 5)}
    for n in (1, 3, 4, 6):
        expected_length = 1 + rates_of(alpha, 0.04, n).sum()
        assert math.exp(log_tau(known, n, prior)[0]) == pytest.approx(expected_length)


def test_both_acceptance_and_its_drift_are_found():
    """Many exact N of a drafter unlike the prior: what is left out lies on the same curve."""
    alpha, carry = np.linspace(0.62, 0.56, 8), 0.08
    known = {n: exact(rates_of(alpha, carry, n)) for n in (1, 2, 3, 5, 6, 8)}
    for n in (4, 7):
        mean, sd = log_tau(known, n)
        truth = math.log1p(rates_of(alpha, carry, n).sum())
        assert mean == pytest.approx(truth, abs=0.002)
        assert abs(mean - truth) < 1.96 * sd


# -------------------------------------------------------------- tokens per step: published data


@functools.cache
def panels():
    """(method, {N: rates}) of every published panel with rates for all positions."""
    found = []
    for path in sorted(SWEEPS.glob("*.json")):
        recording = load_recording(path)
        for method, load in itertools.product(recording.methods, recording.concurrencies):
            known = {
                p.num_speculative_tokens: exact(p.per_position_acceptance)
                for p in recording.points
                if (p.method, p.concurrency) == (method, load)
                and len(p.per_position_acceptance or ()) == p.num_speculative_tokens
            }
            if len(known) >= 3:
                found.append((method, known))
    return found


def left_out(inside):
    """|error| of ln tau and error / sd at each N that is left out of its panel."""
    errors = []
    for method, known in panels():
        for n, seen in known.items():
            rest = {m: other for m, other in known.items() if m != n}
            if (min(rest) < n < max(rest)) is inside:
                mean, sd = log_tau(rest, n, priors.prior(method), max(known))
                error = mean - math.log1p(math.fsum(seen.rates))
                errors.append((abs(error), error / sd))
    return np.array(errors).T


@pytest.mark.parametrize(
    ("inside", "worst", "typical"), [(True, 0.03, 0.003), (False, 0.06, 0.005)]
)
def test_a_published_n_left_out_is_predicted(inside, worst, typical):
    errors, scores = left_out(inside)
    assert len(errors) > 100
    assert np.median(errors) < typical
    assert (errors < worst).mean() > 0.98
    assert 0.9 < (abs(scores) < 1.96).mean() <= 0.99


def test_carry_is_alike_on_every_published_panel():
    """Least squares of a_i(N) on one column per position and p_N, panel by panel."""
    found = []
    for _, known in panels():
        rows, values = [], []
        for n, (rates, _, _) in known.items():
            for i, (before, after) in enumerate(itertools.pairwise((1.0, *rates))):
                rows.append(np.append(np.eye(max(known))[i], rates[n - 1]))
                values.append(after / before)
        solution, _, rank, _ = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)
        assert rank == max(known) + 1
        found.append(solution[-1])
    assert len(found) == 56
    assert min(found) > 0.02 and max(found) < 0.08


@pytest.mark.parametrize(("rates", "length"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_a_measured_n_is_one_plus_the_sum(rates, length):
    mean, sd = log_tau({len(rates): exact(rates)}, len(rates))
    assert math.exp(mean) == pytest.approx(length, abs=0.006)  # printed with two digits
    assert sd == 0


@pytest.mark.parametrize("n", EAGLE)
def test_an_n_left_out_is_predicted(n):
    known = {m: exact(rates) for m, (rates, _) in EAGLE.items() if m != n}
    mean, sd = log_tau(known, n, priors.prior("eagle"))
    error = mean - math.log(EAGLE[n][1])
    assert abs(error) < 0.01
    assert abs(error) < 1.96 * sd


def test_a_profile_cut_down_drifts_back():
    """vLLM pull request 48892: the N=8 profile cut to N=1 says 1.762, measured was 1.834."""
    rates, _ = PUBLISHED["MTP, multi-layer"]
    length = math.exp(log_tau({8: exact(rates)}, 1, priors.prior("mtp"))[0])
    assert 1.7617 + 0.02 < length < 1.834  # nearer to the truth than the cut profile


# ------------------------------------------------------------------ tokens per step: properties


@settings(max_examples=40)
@given(st.dictionaries(st.integers(1, 8), any_rates, max_size=3), figures, st.integers(1, 30))
def test_any_rates_give_a_length_between_1_and_n_plus_1(drawn, prior, n):
    known = {m: exact((falling(ratios) + [0.0] * m)[:m]) for m, ratios in drawn.items()}
    mean, sd = log_tau(known, n, prior, 30)
    assert -1e-12 <= mean <= math.log(n + 1) + 1e-12
    assert math.isfinite(sd)
    assert sd == 0 if n in known else sd >= acceptance.RESIDUAL_SD


@settings(max_examples=40)
@given(st.integers(1, 12), st.floats(0, 1), st.integers(1, 16))
def test_any_printed_length_gives_a_length(n, share, asked):
    seen = window_rates(window("mtp", n, 100.0, acceptance_length=1 + share * n))
    mean, sd = log_tau({n: seen}, asked)
    assert -1e-12 <= mean <= math.log(asked + 1) + 1e-12 and math.isfinite(sd)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 5, 100])
@pytest.mark.parametrize("steps", [None, 1.0, 1e9])
def test_all_or_nothing_accepted(value, n, steps):
    known = {n: exact([value] * n, steps)}
    for asked in (1, 5, 64, 1024):
        mean, sd = log_tau(known, asked, longest=1024)
        assert -1e-12 <= mean <= math.log(asked + 1) + 1e-12 and math.isfinite(sd)
    assert math.exp(log_tau(known, n)[0]) == pytest.approx(1 + value * n)


@settings(max_examples=40)
@given(st.floats(0.35, 0.85), gentle)
def test_more_tokens_are_never_fewer_per_step(first, steps):
    ratios = np.clip(first + np.cumsum(steps), 0.3, 0.9)
    model = Acceptance({len(ratios): exact(falling(ratios))}, Prior(), 16)
    unmeasured = [n for n in range(1, 17) if n != len(ratios)]
    lengths = [model.log_tau(n)[0] for n in unmeasured]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(lengths))


@settings(max_examples=40)
@given(st.dictionaries(st.integers(1, 10), conditional, min_size=1, max_size=4), figures)
def test_a_measured_n_is_exact(drawn, prior):
    known = {m: exact((falling(ratios) + [0.0] * m)[:m]) for m, ratios in drawn.items()}
    for n, (rates, _, _) in known.items():
        assert log_tau(known, n, prior) == (pytest.approx(math.log1p(math.fsum(rates))), 0.0)


@settings(max_examples=40)
@given(st.permutations([2, 3, 5, 8]), st.lists(st.floats(0.3, 0.95), min_size=8, max_size=8))
def test_the_order_of_measuring_does_not_matter(order, ratios):
    lengths = {n: exact(falling(ratios[:n]), 100.0 * n) for n in (2, 3, 5, 8)}
    shuffled = {n: lengths[n] for n in order}
    for n in (1, 4, 7, 12):
        assert log_tau(shuffled, n) == pytest.approx(log_tau(lengths, n), rel=1e-8)


@given(st.sets(st.integers(1, 10), max_size=4), st.integers(1, 10), st.integers(1, 12))
@settings(max_examples=40)
def test_expected_evidence_never_widens(measured, another, n):
    """Rates just as the prior says leave its mean, so that only the covariance can change."""
    alpha = 0.85 + np.cumsum([0, -0.03, -0.01] + [-0.004] * 9)
    told = {m: exact(rates_of(alpha, 0.05, m)) for m in measured | {another}}
    fewer = {m: seen for m, seen in told.items() if m in measured}
    assert log_tau(told, n)[1] <= log_tau(fewer, n)[1] + 1e-9


@given(st.floats(0.5, 0.9), st.integers(1, 8))
@settings(max_examples=30)
def test_distance_costs_certainty(ratio, n):
    model = Acceptance({n: exact(falling([ratio] * n))}, Prior(later_step=0.0), 16)
    sds = [model.log_tau(n + more)[1] for more in range(5)]
    assert sds[0] == 0
    assert all(a < b for a, b in itertools.pairwise(sds))


def test_positions_nobody_saw_cost_more_certainty():
    model = Acceptance({5: exact(falling([0.8] * 5))}, Prior(), 16)
    for distance in (1, 2, 3, 4):
        assert model.log_tau(5 + distance)[1] > model.log_tau(5 - distance)[1]


@pytest.mark.parametrize("n", [1, 4, 8])
def test_few_steps_widen_and_many_are_a_table(n):
    rates = falling([0.8, 0.75, 0.7])
    table, nothing = log_tau({3: exact(rates)}, n), log_tau({}, n)
    counted = [log_tau({3: exact(rates, steps)}, n) for steps in (1e10, 1e4, 1e3, 100.0, 10.0)]
    sds = [sd for _, sd in counted]
    assert all(a < b for a, b in itertools.pairwise([*sds, nothing[1]]))
    assert counted[0] == pytest.approx(table, rel=1e-4)
    # few steps leave the answer at the prior's, many bring it to the table's
    distances = [abs(mean - table[0]) for mean, _ in counted]
    assert all(
        a <= b + 1e-9 for a, b in itertools.pairwise([*distances, abs(nothing[0] - table[0])])
    )


def test_counts_weigh_against_each_other():
    """9000 steps against 1000 steps at another N: the larger sample is followed."""
    often, seldom = falling([0.8, 0.8]), falling([0.6, 0.6, 0.6])
    lengths = [
        log_tau({2: exact(often, steps), 3: exact(seldom, 10_000 - steps)}, 1)[0]
        for steps in (100.0, 5000.0, 9900.0)
    ]
    assert lengths[0] < lengths[1] < lengths[2]


def test_a_dead_drafter_stays_dead():
    # DFlash, Qwen3.6-35B NVFP4: only position 0 was ever accepted
    known = {15: exact([0.217] + [0.0] * 14)}
    assert math.exp(log_tau(known, 15)[0]) == pytest.approx(1.217)
    for n in (2, 7, 14, 20):
        assert math.exp(log_tau(known, n, longest=20)[0]) == pytest.approx(1.217, abs=0.01)


def test_doubt_widens_what_was_not_measured():
    known = {2: exact([0.7, 0.5])}
    for n in (1, 3, 8):
        doubtful = log_tau(known, n, Prior(doubt=3.0))[1]
        assert doubtful > log_tau(known, n)[1] + 0.001


def test_a_printed_length_is_met():
    """Only 1 + the sum is known: the posterior's own length at that N must come near it."""
    seen = window_rates(window("mtp", 4, 100.0, acceptance_length=2.5))
    model = Acceptance({4: seen}, Prior(), 8)
    assert math.exp(model.log_tau(4)[0]) == pytest.approx(2.5)
    around = [math.exp(model.log_tau(n)[0]) for n in (3, 5)]
    assert around[0] < 2.5 < around[1]
    shape = Acceptance({4: exact(seen.rates)}, Prior(), 8)
    assert model.log_tau(3)[1] > shape.log_tau(3)[1]  # its shape is a guess


@pytest.mark.parametrize("length", [1.5, 2.5, 4.5])
def test_a_printed_length_is_met_far_from_the_prior(length):
    """ln tau is curved: only linearising it where the answer lies brings the answer there."""
    seen = window_rates(window("mtp", 4, 100.0, acceptance_length=length))
    mean, _ = Acceptance({4: seen}, Prior(), 8).log_tau_beside(4, 4)  # not the printed length
    assert mean == pytest.approx(math.log(length), abs=0.01)


def test_beside_an_anchor_only_the_difference_is_in_doubt():
    model = Acceptance({}, Prior(), 8)
    mean, sd = model.log_tau_beside(4, 4)
    assert (mean, sd) == (model.log_tau(4)[0], 0.0)
    sds = [model.log_tau_beside(n, 4)[1] for n in (4, 5, 6, 7, 8)]
    assert all(a < b for a, b in itertools.pairwise(sds))
    assert all(model.log_tau_beside(n, 4)[1] < model.log_tau(n)[1] for n in (3, 5, 6))


def test_the_doubt_beside_an_anchor_is_that_of_the_difference():
    mean, joint = prior_state(Prior(), 6)
    states = np.random.default_rng(5).multivariate_normal(mean, joint / 25, size=1500)
    drawn = [log_length(state, 6) - log_length(state, 3) for state in states]
    _, sd = Acceptance({}, Prior(doubt=0.2), 6).log_tau_beside(6, 3)
    assert sd == pytest.approx(np.std(drawn), rel=0.07)


# ---------------------------------------------------------------------------- very long drafts


def test_positions_are_counted_to_64(monkeypatch):
    """The state, and with it the work, does not grow with N; later positions repeat the last."""
    sizes = []
    build = acceptance._prior_state

    def watched(prior, positions):
        sizes.append(positions)
        return build(prior, positions)

    monkeypatch.setattr(acceptance, "_prior_state", watched)
    Acceptance({}, Prior(), 12)
    Acceptance({1024: exact([0.9] * 1024)}, Prior(), 7)
    Acceptance({}, Prior(), 1024)
    assert sizes == [12, 64, 64]


def test_a_thousand_drafted_tokens():
    # acceptance falls by .01 a position from .9 to the 8th position, .83, and no further
    prior = Prior(first=0.9, second_step=-0.01, third_step=-0.01, later_step=-0.01, carry=0.0)
    alpha = [0.9 - 0.01 * min(i, 7) for i in range(1024)]
    length = 1 + math.fsum(falling(alpha))
    assert math.exp(log_tau({}, 1024, prior, 1024)[0]) == pytest.approx(length)
    known = {1024: exact(falling(alpha))}
    assert math.exp(log_tau(known, 512, prior, 1024)[0]) == pytest.approx(length)


def test_many_measured_n_are_solved_in_the_size_of_the_state(monkeypatch):
    """All 64 N of a table: 2,080 acceptances of 64 positions, never a matrix of 2,080 x 2,080."""
    sizes = []
    for name in ("inv", "solve"):
        original = getattr(np.linalg, name)

        def watched(matrix, *rest, original=original):
            sizes.append(len(matrix))
            return original(matrix, *rest)

        monkeypatch.setattr(np.linalg, name, watched)
    known = {n: exact([0.99**i for i in range(1, n + 1)]) for n in range(1, 65)}
    log_tau(known, 1024, longest=64)
    assert sizes and max(sizes) <= 65
