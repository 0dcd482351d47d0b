"""Intervals and pooled noise, against scipy, numpy and arithmetic done here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.stats import (
    Spread,
    mean,
    pooled_noise,
    ratio_interval,
    standard_error,
    two_way,
    within,
)

ratios = st.floats(-2, 2, allow_subnormal=False)
samples = st.lists(ratios, min_size=2, max_size=12)
groups = st.lists(st.lists(ratios, max_size=5), max_size=6)


def test_three_blocks_by_hand():
    # ln 2, ln 2.2, ln 2.42 are ln 1.1 apart: mean ln 2.2, sd ln 1.1; t(0.975, 2) = 4.302653
    interval = ratio_interval([math.log(2), math.log(2.2), math.log(2.42)], 0.95)
    factor = 1.1 ** (4.302653 / math.sqrt(3))
    assert interval.value == pytest.approx(2.2)
    assert interval.low == pytest.approx(2.2 / factor, rel=1e-6)
    assert interval.high == pytest.approx(2.2 * factor, rel=1e-6)
    assert interval.confidence == 0.95


def test_one_block_gets_the_assumed_noise_of_both_arms():
    # z(0.975) = 1.959964; two arms of 2 % each
    half = 1.959964 * 0.02 * math.sqrt(2)
    interval = ratio_interval([math.log(1.5)], 0.95)
    assert math.log(interval.high / interval.value) == pytest.approx(half, rel=1e-6)
    assert math.log(interval.value / interval.low) == pytest.approx(half, rel=1e-6)
    wide = ratio_interval([math.log(1.5)], 0.95, assumed_noise=0.04)
    assert math.log(wide.high / 1.5) == pytest.approx(2 * half, rel=1e-6)


def test_other_blocks_tell_of_the_spread_and_not_of_the_ratio():
    """Squares .002 with 3 degrees of freedom and .0002 with 1; t(4) at .975 is 2.776445."""
    interval = ratio_interval([0.0, 0.02, 0.04, 0.06], 0.95, beside=[1.0, 1.02])
    half = 2.776445 * math.sqrt(0.0022 / 4 / 4)
    assert interval.value == pytest.approx(math.exp(0.03))
    assert math.log(interval.high) == pytest.approx(0.03 + half, rel=1e-6)
    one = ratio_interval([0.03], 0.95, beside=[1.0, 1.02, 1.04])  # .0008 with 2: t(2) is 4.302653
    assert math.log(one.low) == pytest.approx(0.03 - 4.302653 * 0.02, rel=1e-6)


def test_no_block_is_no_ratio():
    with pytest.raises(ValueError, match="at least one"):
        ratio_interval([], 0.95)


@given(samples, st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_interval_is_scipys_of_the_logarithms(values, confidence):
    assume(np.ptp(values) > 1e-9)
    low, high = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    interval = ratio_interval(values, confidence)
    assert interval.value == pytest.approx(scipy.stats.gmean(np.exp(values)))
    assert interval.low == pytest.approx(math.exp(low))
    assert interval.high == pytest.approx(math.exp(high))


@given(samples, ratios)
def test_a_faster_baseline_scales_the_whole_interval(values, shift):
    one = ratio_interval(values, 0.95)
    other = ratio_interval([v + shift for v in values], 0.95)
    for name in ("value", "low", "high"):
        scaled = getattr(one, name) * math.exp(shift)
        assert getattr(other, name) == pytest.approx(scaled, rel=1e-9)


@given(samples)
def test_more_confidence_is_a_wider_interval(values):
    assume(np.ptp(values) > 1e-9)
    narrow, wide = ratio_interval(values, 0.9), ratio_interval(values, 0.99)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


@given(samples)
def test_swapping_the_arms_inverts_the_interval(values):
    one, other = ratio_interval(values, 0.95), ratio_interval([-v for v in values], 0.95)
    assert other.low == pytest.approx(1 / one.high)
    assert other.high == pytest.approx(1 / one.low)


@pytest.mark.parametrize("blocks", [2, 4])
def test_the_interval_holds_the_truth_as_often_as_it_says(blocks):
    runs = 1500
    draws = np.random.default_rng(5).normal(math.log(1.8), 0.05, (runs, blocks))
    intervals = [ratio_interval(list(row), 0.9) for row in draws]
    held = sum(i.low <= 1.8 <= i.high for i in intervals)
    assert held / runs == pytest.approx(0.9, abs=4 * math.sqrt(0.9 * 0.1 / runs))


@given(samples)
def test_mean_and_standard_error_are_numpys(values):
    assert mean(values) == pytest.approx(np.mean(values), abs=1e-12)
    by_numpy = np.std(values, ddof=1) / math.sqrt(len(values))
    assert standard_error(values) == pytest.approx(by_numpy, abs=1e-12)


def test_one_value_has_no_standard_error():
    assert standard_error([1.0]) is None
    assert standard_error([]) is None


def noise(groups, **prior):
    return pooled_noise([within(group) for group in groups if group], **prior)


def test_pooled_noise_by_hand():
    # (4 x 0.02^2 + 0.02 + 0.0008) / (4 + 2 + 1): squares about 0.2, and about 0.98
    groups = [[0.1, 0.2, 0.3], [1.0, 0.96], [7.0], []]
    assert noise(groups) == pytest.approx(math.sqrt((0.0016 + 0.02 + 0.0008) / 7))


def test_without_repeats_noise_is_the_assumption():
    assert pooled_noise([]) == 0.02
    assert noise([[1.0], [2.0]], prior=0.05) == 0.05


def test_many_repeats_drown_the_assumption():
    repeats = np.random.default_rng(1).normal(3.0, 0.1, (1000, 3))
    assert noise(repeats.tolist()) == pytest.approx(0.1, rel=0.05)


@given(groups, st.lists(ratios, min_size=6, max_size=6))
def test_noise_is_within_groups_only(values, shifts):
    moved = [[v + s for v in group] for group, s in zip(values, shifts, strict=False)]
    assert noise(moved) == pytest.approx(noise(values[: len(moved)]), abs=1e-9)


@given(groups)
def test_noise_is_between_the_assumption_and_the_largest_spread(values):
    spreads = [np.std(group, ddof=1) for group in values if len(group) > 1]
    low, high = min([0.02, *spreads]), max([0.02, *spreads])
    assert low - 1e-12 <= noise(values) <= high + 1e-12


# -------------------------------------------------------------- candidates raced in turn


def test_two_way_by_hand():
    # rows 1, 3 and 2, 8: rows' means 2, 5, columns' 1.5, 5.5, all 3.5; residuals +-1 everywhere
    assert two_way([[1.0, 3.0], [2.0, 8.0]]) == Spread(pytest.approx(4.0), 1)


@given(st.integers(2, 4), st.integers(2, 5), st.integers(0, 2**32))
def test_what_moves_a_whole_block_is_no_noise(rows, columns, seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(0, 0.02, (rows, columns))
    drifting = table + rng.normal(0, 0.5, (rows, 1)) + rng.normal(0, 0.5, (1, columns))
    still, moving = two_way(table.tolist()), two_way(drifting.tolist())
    assert moving.squares == pytest.approx(still.squares, rel=1e-6, abs=1e-12)
    assert moving.freedom == (rows - 1) * (columns - 1)


def test_two_way_estimates_the_noise():
    rng = np.random.default_rng(3)
    spreads = [two_way(rng.normal(0, 0.05, (3, 4)).tolist()) for _ in range(400)]
    assert pooled_noise(spreads) == pytest.approx(0.05, rel=0.05)
