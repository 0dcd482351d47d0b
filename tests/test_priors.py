"""What is assumed of a method before it is measured: learned from the published sweeps."""

from __future__ import annotations

import functools
import math

import pytest
from pydantic import ValidationError
from tuner_samples import PUBLISHED

from autotune import priors
from autotune.errors import ConfigurationError
from autotune.methods import all_methods
from autotune.recording import RecordedBaseline, RecordedPoint, Recording, load_recording
from autotune.records import Prior

LEARNED = ("default", "dflash", "dspark", "eagle3", "gemma4_mtp", "mtp")


@functools.cache
def sweeps():
    return [load_recording(path) for path in sorted(PUBLISHED.glob("*.json"))]


def recording(model, alpha, carry, line, method="mtp", lengths=(1, 2, 3, 4), base=100.0):
    """A sweep made by the model itself: a_i(N) = alpha_i + carry p_N, cost = a line in N."""
    points = []
    for n in lengths:
        whole = 0.5
        for _ in range(200):
            whole = math.prod(a + carry * whole for a in alpha[:n])
        rates = [math.prod(a + carry * whole for a in alpha[: i + 1]) for i in range(n)]
        cost = line[0] + line[1] * n
        points.append(
            RecordedPoint(
                method=method,
                num_speculative_tokens=n,
                output_tokens_per_second=base * (1 + math.fsum(rates)) / cost,
                per_position_acceptance=tuple(rates),
            )
        )
    return Recording(
        model=model,
        workload="made by hand",
        baseline=(RecordedBaseline(output_tokens_per_second=base),),
        points=tuple(points),
    )


# --------------------------------------------------------------------------------- the table


def test_the_table_is_what_the_published_sweeps_give():
    found = priors.learn(sweeps())
    assert tuple(found) == LEARNED
    assert {method: priors.table()[method] for method in LEARNED} == found


@pytest.mark.parametrize("method", LEARNED)
def test_the_order_of_the_sweeps_does_not_matter(method):
    again = priors.learn(reversed(sweeps()))[method]
    for field, value in priors.table()[method]:
        assert getattr(again, field) == pytest.approx(value, abs=0.0011)  # rounded to a thousandth


def test_figures_set_by_hand_are_doubted_more():
    for method, prior in priors.table().items():
        assert (prior.doubt > 1) is (method not in LEARNED), method


def test_nearly_every_method_has_figures_of_its_own():
    """Of what can be tuned only mlp_speculator has the default's: no source measures it."""
    common = priors.table()["default"]
    without = {m.name for m in all_methods() if priors.prior(m.name) == common}
    assert without == {"mlp_speculator"}


@pytest.mark.parametrize(
    ("method", "family"),
    [
        ("mtp", "mtp"),
        ("gemma4_mtp", "gemma4_mtp"),
        ("dflash_w4a16", "dflash"),
        ("gemma4_mtp_fp8", "gemma4_mtp"),
        ("eagle", "eagle"),
        ("eagle_small", "eagle"),
        ("eagle3", "eagle3"),
        ("eagle3_long", "eagle3"),
        ("draft_model", "draft_model"),
        ("mtp2", "default"),  # no variant by its name
        ("deepseek_mtp", "default"),
        ("unheard of", "default"),
    ],
)
def test_a_variant_belongs_to_the_family_its_name_begins_with(method, family):
    assert priors.prior(method) == priors.table()[family]


def test_another_table_can_be_asked():
    known = {"default": Prior(first=0.5), "mtp": Prior(first=0.6), "mtp_wide": Prior(first=0.7)}
    assert priors.prior("mtp_wide_2", known).first == 0.7  # the longest name
    assert priors.prior("mtp_2", known).first == 0.6
    assert priors.prior("dflash", known).first == 0.5


# ------------------------------------------------------------------------------------ learning


def test_the_figures_behind_a_sweep_are_found():
    """One model and one method: its own figures, and the centre is the same."""
    made = recording("acme/a", [0.8, 0.76, 0.75, 0.74], 0.06, (1.3, 0.25))
    expected = Prior(
        first=0.8,
        second_step=-0.04,
        third_step=-0.01,
        later_step=-0.01,
        carry=0.06,
        cost_intercept=1.3,
        cost_slope=0.25,
    )
    assert priors.learn([made]) == {"default": expected, "mtp": expected}


def test_models_count_alike_however_many_sweeps_they_have():
    one = [recording("acme/a", [0.9] * 4, 0.05, (1.0, 0.1), base=100.0 + i) for i in range(5)]
    other = recording("acme/b", [0.7] * 4, 0.05, (2.0, 0.3))
    found = priors.learn([*one, other])["default"]
    assert found.first == pytest.approx(0.8)
    assert (found.cost_intercept, found.cost_slope) == pytest.approx((1.5, 0.2))


def test_a_method_seen_on_few_models_is_drawn_to_the_centre():
    made = [
        recording("acme/a", [0.9] * 4, 0.05, (1.2, 0.2), method="mtp"),
        recording("acme/a", [0.6] * 4, 0.05, (1.2, 0.2), method="eagle3"),
        recording("acme/b", [0.6] * 4, 0.05, (1.2, 0.2), method="eagle3"),
    ]
    found = priors.learn(made)
    # the mean of three is .7; one model counts 1 : 2 against it, two models 2 : 2
    assert found["default"].first == pytest.approx(0.7)
    assert found["mtp"].first == pytest.approx(0.767)  # (0.9 + 2 x 0.7) / 3
    assert found["eagle3"].first == pytest.approx(0.65)  # (2 x 0.6 + 2 x 0.7) / 4


def test_a_model_left_out_is_not_learned_from():
    models = {sweep.model for sweep in sweeps() if sweep.model in MODELS_WITH_PANELS}
    assert models == MODELS_WITH_PANELS
    everything = priors.learn(sweeps())
    for model in models:
        rest = priors.learn(sweep for sweep in sweeps() if sweep.model != model)
        assert rest["default"] != everything["default"]
        for field, value in everything["default"]:  # ... but no single model makes the centre
            assert getattr(rest["default"], field) == pytest.approx(value, abs=0.12)


MODELS_WITH_PANELS = {
    "google/gemma-4-31B-it",
    "google/gemma-4-26B-A4B-it",
    "MiniMaxAI/MiniMax-M3-MXFP8",
    "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.6-35B-A3B",
}


def test_rows_without_all_rates_teach_nothing():
    made = recording("acme/a", [0.8] * 4, 0.05, (1.3, 0.2))
    bare = [
        RecordedPoint(method=m, num_speculative_tokens=n, output_tokens_per_second=1.0, **rates)
        for m, n, rates in [
            ("mtp", 5, {}),
            ("mtp", 6, {"per_position_acceptance": (0.1, 0.1)}),
            ("ngram", 1, {"per_position_acceptance": (0.1,)}),  # two N only: no line
            ("ngram", 2, {"per_position_acceptance": (0.1, 0.1)}),
        ]
    ]
    more = made.model_copy(update={"points": (*made.points, *bare)})
    assert priors.learn([more]) == priors.learn([made])


def test_nothing_to_learn_from_is_said():
    made = recording("acme/a", [0.8, 0.8], 0.05, (1.3, 0.2), lengths=(1, 2))
    for nothing in ([], [made]):
        with pytest.raises(ConfigurationError, match="three N or more"):
            priors.learn(nothing)


# -------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": 1.01},
        {"first": -0.01},
        {"cost_intercept": 0.0},
        {"cost_slope": -0.01},
        {"doubt": 0.0},
        {"carrry": 0.05},
    ],
)
def test_a_prior_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        Prior(**wrong)


def test_a_prior_at_its_bounds_is_a_prior():
    for extreme in ({"first": 0.0}, {"first": 1.0}, {"cost_slope": 0.0}, {"doubt": 1e-6}):
        assert Prior(**extreme).model_dump()[next(iter(extreme))] == next(iter(extreme.values()))
