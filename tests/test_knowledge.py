"""From windows to predictions: pooled rates, parts of a step, and what the plan never asked for."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_samples import knows, plan_of, window

from autotune.acceptance import Acceptance, StepRates
from autotune.pooling import pool_rates
from autotune.records import Prior, RequestResult, SpecCounters, StepTimes
from autotune.stats import ASSUMED_NOISE
from autotune.steptime import CostModel, CostPoint

LENGTHS = tuple(range(1, 7))


def timed(draft, verify):
    return StepTimes(
        num_steps=100,
        draft_seconds_per_step=draft,
        verify_seconds_per_step=verify,
        step_seconds=verify + (draft or 0),
        coverage=1.0,
        tokens_per_step=1.0,
        requests_per_step=1.0,
    )


def counted(n, drafts, *accepted, requests=1):
    """Fields of a window in which every step drafted: tokens = steps + accepted + requests."""
    return {
        "counters": SpecCounters(
            num_drafts=drafts,
            num_draft_tokens=n * drafts,
            num_accepted_tokens=sum(accepted),
            accepted_per_pos=accepted,
        ),
        "output_tokens": drafts + sum(accepted) + requests,
        "requests": tuple(RequestResult(prompt_id=f"{i}") for i in range(requests)),
    }


def told(knowledge, method, n, load=8):
    prediction = knowledge.predict(method, n, load)
    return prediction.log_speedup, prediction.log_speedup_sd


# ------------------------------------------------------------------------------- pooled rates


def test_rates_are_pooled_by_the_steps_counted():
    pooled = pool_rates([StepRates((0.9, 0.6), 100.0), StepRates((0.5, 0.2), 300.0)])
    assert pooled.rates == pytest.approx((0.6, 0.3))  # (90 + 150) / 400, (60 + 60) / 400
    assert (pooled.steps, pooled.exact) == (400.0, True)


def test_rates_of_tables_are_averaged():
    pooled = pool_rates([StepRates((0.9, 0.6)), StepRates((0.7, 0.2))])
    assert pooled.rates == pytest.approx((0.8, 0.4))
    assert (pooled.steps, pooled.exact) == (None, True)


def test_what_was_counted_comes_before_what_was_printed():
    guess = StepRates((0.9, 0.81), exact=False)
    assert pool_rates([guess, StepRates((0.5, 0.2), 50.0)]) == StepRates((0.5, 0.2), 50.0)
    assert not pool_rates([guess, StepRates((0.5, 0.2))]).exact


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1), st.floats(0, 1)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_pooling_is_counting_together(windows, shuffler):
    """The pooled rate is accepted / steps over everything, in whatever order it came."""
    rows = [
        (steps, int(steps * first), int(int(steps * first) * share))
        for steps, first, share in windows
    ]
    shuffled = list(rows)
    shuffler.shuffle(shuffled)
    pooled = pool_rates([StepRates((a / k, b / k), float(k)) for k, a, b in shuffled])
    steps = sum(k for k, _, _ in rows)
    expected = [sum(a for _, a, _ in rows) / steps, sum(b for _, _, b in rows) / steps]
    assert pooled.rates == pytest.approx(expected)
    assert pooled.steps == steps


def log_cost(points, n, load):
    means, sds = CostModel(points, {"mtp": Prior()}).costs([("mtp", n, load)])
    return math.log(means[0]), float(sds[0] / means[0])


def test_windows_at_all_loads_tell_one_acceptance():
    """100 steps at load 1 and 300 at load 8 count together: 210 + 90 accepted in 400 steps."""
    knowledge = knows(
        plan_of((1, 8), mtp=LENGTHS),
        [
            window("none", 0, 100, load=1),
            window("none", 0, 100, load=8),
            window("mtp", 2, 140, load=1, **counted(2, 100, 90, 60)),
            window("mtp", 2, 150, load=8, **counted(2, 300, 120, 30)),
        ],
    )
    model = Acceptance({2: StepRates((210 / 400, 90 / 400), 400.0)}, Prior(), 6)
    points = [
        CostPoint(method="mtp", n=2, concurrency=load, cost=1.75 / ratio, relative_sd=ASSUMED_NOISE)
        for load, ratio in ((1, 1.4), (8, 1.5))
    ]  # tokens per step: 1 + 300 / 400
    for n, load in itertools.product((1, 2, 4), (1, 8)):
        cost, doubt = log_cost(points, n, load)
        tau, tau_doubt = model.log_tau(n)
        expected = (tau - cost, math.hypot(tau_doubt, doubt))
        assert told(knowledge, "mtp", n, load) == pytest.approx(expected)


def test_few_counted_steps_leave_more_doubt():
    def doubt(times):
        fields = counted(3, 20 * times, 16 * times, 12 * times, 8 * times)
        windows = [window("none", 0, 100), window("mtp", 3, 180, **fields)]
        return told(knows(plan_of(mtp=LENGTHS), windows), "mtp", 6)[1]

    assert doubt(1) > doubt(10) > doubt(1000)


def test_a_window_in_which_nothing_was_decoded_tells_no_acceptance():
    """All answers were one token long. That is no drafter of which nothing is accepted."""
    nothing = SpecCounters(num_drafts=0, num_draft_tokens=0, num_accepted_tokens=0)
    short = {"counters": nothing, "output_tokens": 1, "requests": (RequestResult(prompt_id="0"),)}
    base = window("none", 0, 100)
    knowledge = knows(plan_of(mtp=LENGTHS), [base, window("mtp", 3, 180, **short)])
    bare = knows(plan_of(mtp=LENGTHS), [base, window("mtp", 3, 180)])
    for n in LENGTHS:
        assert told(knowledge, "mtp", n) == told(bare, "mtp", n)


# -------------------------------------------------------------------------- parts of a step

RATES = {1: (0.8,), 3: (0.78, 0.6, 0.45)}
SPEED = {("mtp", 1): 1.5, ("mtp", 3): 1.8, ("eagle3", 3): 1.7}
DRAFTING = {("mtp", 1): 0.001, ("mtp", 3): 0.003, ("eagle3", 3): 0.002}  # beside 10 ms
COST = {(m, n): (1 + math.fsum(RATES[n])) / ratio for (m, n), ratio in SPEED.items()}


def split_study(*untimed):
    """Step times of all candidates but the `untimed`."""
    windows = [window("none", 0, 100, steps=timed(None, 0.008))]
    for (method, n), ratio in SPEED.items():
        steps = None if (method, n) in untimed else timed(DRAFTING[method, n], 0.010)
        windows.append(
            window(method, n, 100 * ratio, per_position_acceptance_rates=RATES[n], steps=steps)
        )
    return knows(plan_of(mtp=LENGTHS, eagle3=LENGTHS), windows)


def cost_of(part, method, n):
    shares = {
        key: {"whole": 1.0, "draft": d / (d + 0.01), "verify": 0.01 / (d + 0.01)}[part]
        for key, d in DRAFTING.items()
    }
    points = [
        CostPoint(method=m, n=k, concurrency=8, cost=cost * shares[m, k], relative_sd=ASSUMED_NOISE)
        for (m, k), cost in COST.items()
    ]
    known = {"mtp": Prior(), "eagle3": Prior()}
    means, sds = CostModel(points, known, part).costs([(method, n, 8)])
    return means[0], sds[0]


def log_tau(method, n):
    known = {k: StepRates(RATES[k]) for m, k in SPEED if m == method}
    return Acceptance(known, Prior(), 6).log_tau(n)


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_timed_steps_are_predicted_part_by_part(method):
    knowledge = split_study()
    for n in LENGTHS:
        (draft, draft_sd), (verify, verify_sd) = (
            cost_of(p, method, n) for p in ("draft", "verify")
        )
        tau, tau_sd = log_tau(method, n)
        cost = draft + verify
        doubt = math.hypot(tau_sd, math.hypot(draft_sd, verify_sd) / cost)
        assert told(knowledge, method, n) == pytest.approx((tau - math.log(cost), doubt))


@pytest.mark.parametrize("untimed", list(SPEED))
def test_one_candidate_without_times_and_all_steps_are_taken_whole(untimed):
    knowledge = split_study(untimed)
    for method, n in itertools.product(("mtp", "eagle3"), LENGTHS):
        cost, doubt = cost_of("whole", method, n)
        tau, tau_sd = log_tau(method, n)
        expected = (tau - math.log(cost), math.hypot(tau_sd, doubt / cost))
        assert told(knowledge, method, n) == pytest.approx(expected)


def test_the_parts_come_near_the_whole():
    parts, whole = split_study(), split_study(("mtp", 1))
    for method, n in SPEED:  # where it was measured
        assert told(parts, method, n)[0] == pytest.approx(math.log(SPEED[method, n]), abs=0.02)
        assert told(parts, method, n)[0] == pytest.approx(told(whole, method, n)[0], abs=0.02)
    for n in (2, 4):  # and beside it
        (apart, sd), (together, its_sd) = told(parts, "mtp", n), told(whole, "mtp", n)
        assert abs(apart - together) < math.hypot(sd, its_sd)


def test_what_only_another_load_timed_is_not_split():
    windows = [
        window("none", 0, 100, load=1),
        window("none", 0, 100, load=8),
        window("mtp", 2, 150, load=1, acceptance_length=2.0, steps=timed(0.002, 0.01)),
        window("mtp", 2, 150, load=8, acceptance_length=2.0),
    ]
    untimed = [w.model_copy(update={"steps": None}) for w in windows]
    plan = plan_of((1, 8), mtp=LENGTHS)
    for n, load in itertools.product(LENGTHS, (1, 8)):
        assert told(knows(plan, windows), "mtp", n, load) == told(
            knows(plan, untimed), "mtp", n, load
        )


# --------------------------------------------------------- methods without reported acceptance


def test_a_throughput_alone_is_believed_where_it_was_measured():
    base = window("none", 0, 100)
    knowledge = knows(plan_of(mtp=range(1, 9)), [base, window("mtp", 3, 180)])
    mean, sd = told(knowledge, "mtp", 3)
    assert mean == pytest.approx(math.log(1.8), abs=0.02)
    assert sd < 2 * ASSUMED_NOISE
    sds = [told(knowledge, "mtp", n)[1] for n in (3, 4, 5, 6, 8)]
    assert all(a < b for a, b in itertools.pairwise(sds))
    nothing = knows(plan_of(mtp=range(1, 9)), [base])
    assert all(told(knowledge, "mtp", n)[1] < told(nothing, "mtp", n)[1] for n in (2, 3, 4))


def test_without_acceptance_only_its_change_from_the_nearest_n_is_in_doubt():
    windows = [window("none", 0, 100), window("mtp", 2, 150), window("mtp", 5, 200)]
    knowledge, model = knows(plan_of(mtp=LENGTHS), windows), Acceptance({}, Prior(), 6)
    points = [
        CostPoint(
            method="mtp",
            n=n,
            concurrency=8,
            cost=math.exp(model.log_tau(n)[0]) / ratio,
            relative_sd=ASSUMED_NOISE,
        )
        for n, ratio in ((2, 1.5), (5, 2.0))
    ]
    for n, nearest in ((1, 2), (3, 2), (4, 5), (6, 5)):
        cost, doubt = log_cost(points, n, 8)
        tau, tau_doubt = model.log_tau_beside(n, nearest)
        expected = (tau - cost, math.hypot(tau_doubt, doubt))
        assert told(knowledge, "mtp", n) == pytest.approx(expected)


# -------------------------------------------------------------- what the plan does not ask for


def small(loads=(8,), longest=4):
    windows = [window("none", 0, 100)]
    for n, ratio in ((1, 1.5), (3, 1.8)):
        windows.append(window("mtp", n, 100 * ratio, per_position_acceptance_rates=RATES[n]))
    return knows(plan_of(loads, mtp=range(1, longest + 1)), windows)


def test_a_load_that_the_plan_lacks_is_predicted_all_the_same():
    for n, load in itertools.product((1, 2, 4), (1, 64, 1024)):
        assert told(small(), "mtp", n, load) == pytest.approx(
            told(small((8, load)), "mtp", n, load)
        )
    sds = [told(small(), "mtp", 3, load)[1] for load in (8, 16, 64, 256)]
    assert all(a < b for a, b in itertools.pairwise(sds))


def test_an_n_that_the_plan_lacks_is_predicted_all_the_same():
    knowledge, asked = small(longest=3), small(longest=6)
    for n in (4, 5, 6):
        mean, sd = told(knowledge, "mtp", n)
        # positions beyond the plan's repeat the last one instead of walking on
        assert mean == pytest.approx(told(asked, "mtp", n)[0], abs=0.03)
        assert sd == pytest.approx(told(asked, "mtp", n)[1], rel=0.3)
    assert math.isfinite(told(knowledge, "mtp", 1024)[0])


def test_a_question_beside_the_plan_changes_no_answer():
    fresh, asked = small(), small()
    asked.predict("mtp", 12, 8)
    asked.predict("mtp", 2, 512)
    for n in (1, 2, 3, 4):
        assert told(asked, "mtp", n) == told(fresh, "mtp", n)
    before = told(asked, "mtp", 12)
    asked.add(window("mtp", 4, 300, per_position_acceptance_rates=(0.78, 0.6, 0.45, 0.4)))
    assert told(asked, "mtp", 12)[0] > before[0]  # and a new window is heard there too


# -------------------------------------------------------------------------- priors in a plan


def with_prior(plan, **fields):
    spaces = tuple(s.model_copy(update={"prior": Prior(**fields)}) for s in plan.spaces)
    return plan.model_copy(update={"spaces": spaces})


def test_a_prior_is_no_part_of_a_study():
    """What is assumed before measuring may improve; what was measured then still holds."""
    plan = plan_of(mtp=LENGTHS)
    other = with_prior(plan, first=0.5, carry=0.02, doubt=3.0)
    assert other != plan
    assert other.sha256 == plan.sha256
    assert plan_of(mtp=(1, 2)).sha256 != plan.sha256
    drafter = plan.spaces[0].model_copy(update={"drafter": "acme/draft"})
    assert plan.model_copy(update={"spaces": (drafter,)}).sha256 != plan.sha256


def test_a_prior_moves_what_was_not_measured():
    windows = [window("none", 0, 100)]
    plan = plan_of(mtp=LENGTHS)
    low, high = (
        knows(with_prior(plan, first=first, cost_slope=0.1), windows) for first in (0.5, 0.9)
    )
    assert all(told(low, "mtp", n)[0] < told(high, "mtp", n)[0] for n in LENGTHS)
    dear = knows(with_prior(plan, first=0.9, cost_slope=0.4), windows)
    assert all(told(dear, "mtp", n)[0] < told(high, "mtp", n)[0] for n in LENGTHS)
    # by hand at N = 1: p_1 = .9 / .95 accepted, a step of 1.35 + .1
    assert told(high, "mtp", 1)[0] == pytest.approx(math.log((1 + 0.9 / 0.95) / 1.45))
