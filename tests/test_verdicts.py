"""Statistics of a check, against published values, arithmetic and independent computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from autotune.check.pairs import paired
from autotune.check.records import Figure
from autotune.check.verdicts import METRICS, Effect, effect, holm, judge, parse_margins, tail, welch
from autotune.check.windows import ratio_figure, trimmed
from autotune.errors import ConfigurationError
from autotune.records import PromptDrafts

SPEEDUP = METRICS["speedup"]
ratios = st.floats(0.2, 5.0)
errors = st.floats(0.001, 0.2)
figures = st.builds(Figure, value=ratios, sd=errors, freedom=st.none() | st.floats(2, 60))


def word(change: float, sd: float, assumed: bool = False) -> str:
    """Of a change in per cent of the logarithm."""
    e = Effect(change / 100, sd / 100, None, assumed)
    return judge([e], [SPEEDUP], [0.05])[0].word


@pytest.mark.parametrize(
    ("change", "sd", "expected"),
    [
        (0, 1, "no difference"),
        (-5.13, 1, "regression"),  # exactly 5 %: ln .95 = -.0513
        (-4, 1, "regression"),  # 4 sd from nothing, 1.1 sd from the margin
        (-3, 0.5, "no difference"),  # real, but 4.3 sd short of the margin
        (-2, 1, "no difference"),  # 3.1 sd short of the margin
        (-5, 3, "inconclusive"),  # 1.7 sd from nothing
        (0, 4, "inconclusive"),  # 5 % is 1.3 sd away
        (5.13, 1, "improvement"),
        (-50, 1, "regression"),
    ],
)
def test_a_verdict_needs_an_effect_and_a_test(change, sd, expected):
    assert word(change, sd) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [(0, "no difference"), (-12.8, "regression"), (-6, "inconclusive"), (12.8, "improvement")],
)
def test_with_assumed_noise_the_estimate_itself_must_be_beyond_the_margin(change, expected):
    assert word(change, 4, assumed=True) == expected  # 2 % noise in each of four figures


@given(figures)
def test_a_figure_against_itself_is_never_worse_or_better(figure):
    e = effect(figure, figure, SPEEDUP)
    found = judge([e], [SPEEDUP], [0.05])[0]
    assert found.word in ("no difference", "inconclusive")


@given(figures, figures, st.booleans())
def test_swapping_the_sides_swaps_the_words(one, other, assumed):
    if assumed:
        one = one.model_copy(update={"assumed": True})
    there, back = (
        judge([effect(*pair, SPEEDUP)], [SPEEDUP], [0.05])[0]
        for pair in ((one, other), (other, one))
    )
    swapped = {"regression": "improvement", "improvement": "regression"}
    assert back.word == swapped.get(there.word, there.word)
    assert back.p_better == pytest.approx(there.p_worse)


@given(figures, figures, st.floats(0.1, 10))
def test_a_common_factor_changes_nothing(one, other, factor):
    scaled = [f.model_copy(update={"value": f.value * factor}) for f in (one, other)]
    plain, moved = effect(one, other, SPEEDUP), effect(*scaled, SPEEDUP)
    assert moved.change == pytest.approx(plain.change, abs=1e-9)
    assert tail(moved) == pytest.approx(tail(plain), abs=1e-6)


def test_where_less_is_better_the_sign_turns():
    slower = effect(Figure(value=0.02, sd=0.01), Figure(value=0.03, sd=0.01), METRICS["tpot"])
    assert slower.change == pytest.approx(-math.log(1.5))


def test_holm_of_equal_weights_is_the_published_procedure():
    """Example of Holm's step-down: .01, .04, .03, .005 -> .03, .06, .06, .02."""
    adjusted = holm([0.01, 0.04, 0.03, 0.005], [1, 1, 1, 1])
    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_weights_shift_the_level_and_keep_the_family():
    """Weights 1 and .1: the first is held against alpha / 1.1, then the second against alpha."""
    assert holm([0.009, 0.5], [1, 0.1]) == pytest.approx([0.0099, 0.5])
    assert holm([0.5, 0.001], [1, 0.1]) == pytest.approx([0.5, 0.011])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.data())
def test_corrected_p_values_never_shrink(p_values, data):
    weights = data.draw(st.lists(st.floats(0.1, 1), min_size=len(p_values), max_size=len(p_values)))
    for corrected, raw in zip(holm(p_values, weights), p_values, strict=True):
        assert min(1, raw) <= corrected <= 1


def test_welch_freedom_of_equal_halves():
    assert welch([(0.02, 5), (0.02, 5)]) == pytest.approx(10)
    assert welch([(0.02, None), (0.0, 3)]) is None


@given(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=40))
def test_the_trimmed_mean_and_its_error_are_yuens(values):
    """scipy computes Yuen's two-sample t with the same share: against a constant sample of 0."""
    mean, error, freedom = trimmed(values)
    cut = int(0.2 * len(values))
    assert mean == pytest.approx(float(scipy_stats.trim_mean(values, 0.2)), abs=1e-12)
    assert freedom == len(values) - 2 * cut - 1
    winsorised = scipy_stats.mstats.winsorize(np.array(values), (cut / len(values),) * 2)
    left = len(values) - 2 * cut
    expected = math.sqrt(float(np.var(np.asarray(winsorised))) * len(values) / (left * (left - 1)))
    assert error == pytest.approx(expected, abs=1e-12)


def test_a_disturbed_window_moves_the_figure_little():
    calm = [0.5 + 0.01 * (-1) ** i for i in range(10)]
    disturbed = [*calm[:-1], 0.1]
    figure = ratio_figure([disturbed])
    assert figure.value == pytest.approx(math.exp(0.5), rel=0.01)
    assert figure.sd < 0.012


def test_what_moves_whole_cycles_widens_the_figure():
    """Four cycles at +-5 %, blocks alike within: ten equal blocks know no more than one."""
    cycles = [[0.05 * (-1) ** i + 0.001 * (-1) ** j for j in range(10)] for i in range(4)]
    figure = ratio_figure(cycles)
    # variance between cycles (.05^2 * 4/3) with 3 degrees of freedom, 4 of the assumed 2 * .004^2
    expected = (4 * 2 * 0.004**2 + 3 * 0.05**2 * 4 / 3) / 7
    assert figure.sd == pytest.approx(math.sqrt(expected / 4), rel=0.25)


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_a_loss_of_the_margin_is_found_and_none_is_imagined(noise):
    """4,000 experiments: sd .95 %, the precision of a whole default check at 5 % noise."""
    rng, sd = np.random.default_rng(1), 0.0095 * noise / 0.05
    found = {0.0: 0, -0.0513: 0}
    for truth in found:
        for estimate in truth + sd * rng.standard_normal(2000):
            e = Effect(float(estimate), sd, None, False)
            found[truth] += judge([e], [SPEEDUP], [0.05], alpha=0.005 / 3)[0].word == "regression"
    assert found[0.0] <= 0.01 * 2000
    assert found[-0.0513] >= 0.95 * 2000


def test_a_drafter_that_is_as_good_on_every_prompt_differs_by_nothing():
    prompts = [
        PromptDrafts(prompt_id=f"p{i}", num_drafts=50 + i, accepted_per_pos=(40, 10 + i))
        for i in range(8)
    ]
    found = paired(prompts, prompts)
    assert found is not None
    assert (found.length.change, found.length.sd) == (0, 0)
    assert found.lengths[0] == pytest.approx(1 + (8 * 40 + sum(range(10, 18))) / sum(range(50, 58)))


def test_pairing_cancels_what_prompts_differ_by():
    """Prompts between .2 and .8; a drop of .05 on each: known far better than either rate is."""
    before = [
        PromptDrafts(prompt_id=str(i), num_drafts=100, accepted_per_pos=(20 + 2 * i,))
        for i in range(30)
    ]
    after = [
        p.model_copy(update={"accepted_per_pos": (p.accepted_per_pos[0] - 5 + (-1) ** i,)})
        for i, p in enumerate(before)
    ]
    found = paired(before, after)
    assert found is not None
    assert found.positions[0].change == pytest.approx(-0.05)
    rates = [p.accepted_per_pos[0] / 100 for p in before]
    alone = np.std(rates, ddof=1) / math.sqrt(30)
    assert found.positions[0].sd < alone / 10


def test_too_few_common_prompts_are_not_paired():
    one = [PromptDrafts(prompt_id="a", num_drafts=1, accepted_per_pos=(1,))]
    assert paired(one, one) is None


def test_margins_are_read_and_what_cannot_be_is_named():
    margins = parse_margins(["speedup=10%", "position=0.1"])
    assert (margins["speedup"], margins["position"]) == (0.1, 0.1)
    assert margins["acceptance_length"] == 0.03
    for text in ("speed=5%", "speedup=x", "speedup=0", "speedup=150%", "speedup"):
        with pytest.raises(ConfigurationError, match="--margin"):
            parse_margins([text])
