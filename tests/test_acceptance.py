"""Acceptance per position and tokens per step, against published vectors and arithmetic."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_samples import window

from autotune.acceptance import (
    geometric_rate,
    log_tokens_per_step,
    step_rates,
    window_rates,
)
from autotune.records import RequestResult, SpecCounters

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
    assert window_rates(rich) == pytest.approx((30 / 36, 20 / 36, 10 / 36, 0.0))


def test_printed_rates_come_before_the_length():
    printed = window(
        "mtp", 2, 100.0, per_position_acceptance_rates=(0.7, 0.5), acceptance_length=2.9
    )
    assert window_rates(printed) == (0.7, 0.5)


def test_a_length_alone_becomes_a_geometric_decay():
    # 1 + r + r^2 = 1.75 has r = 1/2
    assert window_rates(window("mtp", 2, 100.0, acceptance_length=1.75)) == pytest.approx(
        (0.5, 0.25)
    )


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


# --------------------------------------------------------------------------- tokens per step


@pytest.mark.parametrize(("rates", "length"), PUBLISHED.values(), ids=PUBLISHED.keys())
def test_a_measured_n_is_one_plus_the_sum(rates, length):
    log_tau, sd = log_tokens_per_step({len(rates): rates}, len(rates))
    assert math.exp(log_tau) == pytest.approx(length, abs=0.006)  # printed with two digits
    assert sd == 0


@pytest.mark.parametrize("left_out", EAGLE)
def test_an_n_left_out_is_predicted(left_out):
    known = {n: rates for n, (rates, _) in EAGLE.items() if n != left_out}
    log_tau, sd = log_tokens_per_step(known, left_out)
    error = log_tau - math.log(EAGLE[left_out][1])
    assert abs(error) < 0.02
    assert abs(error) < 1.96 * sd


def test_a_profile_cut_down_carries_its_drift():
    # vLLM pull request 48892: the N=8 profile cut to N=1 says 1.762, measured was 1.834
    rates, _ = PUBLISHED["MTP, multi-layer"]
    log_tau, sd = log_tokens_per_step({8: rates}, 1)
    assert math.exp(log_tau) == pytest.approx(1.7617, abs=1e-4)
    assert abs(math.log(1.8339) - log_tau) < 1.96 * sd


@given(conditional)
def test_more_tokens_are_never_fewer_per_step(ratios):
    rates = falling(ratios)
    taus = [log_tokens_per_step({len(rates): rates}, n)[0] for n in range(1, len(rates) + 6)]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(taus))
    assert all(0 <= tau <= math.log(n + 1) + 1e-12 for n, tau in enumerate(taus, 1))


@given(st.lists(st.floats(0.05, 0.99), min_size=2, max_size=12), st.data())
def test_a_shorter_n_takes_the_first_positions(ratios, data):
    rates = falling(ratios)
    n = data.draw(st.integers(1, len(rates) - 1))
    log_tau, sd = log_tokens_per_step({len(rates): rates}, n)
    assert math.exp(log_tau) == pytest.approx(1 + math.fsum(rates[:n]))
    assert sd > 0


@given(conditional)
def test_distance_costs_certainty(ratios):
    rates = falling(ratios)
    sds = [log_tokens_per_step({len(rates): rates}, len(rates) + more)[1] for more in range(5)]
    assert sds[0] == 0
    assert all(a < b for a, b in itertools.pairwise(sds))


@given(st.lists(st.floats(0.05, 0.99), min_size=4, max_size=10), st.integers(1, 3))
def test_positions_nobody_saw_cost_more_certainty(ratios, distance):
    rates = falling(ratios)
    shorter = log_tokens_per_step({len(rates): rates}, len(rates) - distance)[1]
    assert log_tokens_per_step({len(rates): rates}, len(rates) + distance)[1] > shorter


@given(st.floats(0.1, 0.95), st.integers(2, 6), st.integers(1, 6))
def test_a_geometric_decay_goes_on(rate, n, more):
    known = [rate**i for i in range(1, n + 1)]
    log_tau, _ = log_tokens_per_step({n: known}, n + more)
    expected = 1 + math.fsum(rate**i for i in range(1, n + more + 1))
    assert math.exp(log_tau) == pytest.approx(expected)


def test_between_two_measured_n_the_nearer_counts_more():
    low, high = [0.8, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    # The tail of `low` decays by (0.6 / 0.8 + 0.8 / 1) / 2 = 0.775: .465, .360, .279
    alone = {3: (2.865, 2.5), 5: (2.865 + 0.3604 + 0.2793, 3.0)}
    for n, (of_low, of_high) in alone.items():
        between = math.exp(log_tokens_per_step({2: low, 6: high}, n)[0])
        assert of_high < between < of_low
        nearer, farther = (of_low, of_high) if n == 3 else (of_high, of_low)
        assert abs(between - nearer) < abs(between - farther)


def test_a_dead_drafter_stays_dead():
    # DFlash, Qwen3.6-35B NVFP4: only position 0 was ever accepted
    rates = [0.217] + [0.0] * 14
    assert math.exp(log_tokens_per_step({15: rates}, 15)[0]) == pytest.approx(1.217)
    assert math.exp(log_tokens_per_step({15: rates}, 20)[0]) == pytest.approx(1.217)


@given(st.integers(1, 16))
def test_before_anything_is_measured_the_doubt_is_large(n):
    log_tau, sd = log_tokens_per_step({}, n)
    assert 0 < log_tau < math.log(n + 1)
    assert sd >= 0.2
