"""Latency limits (--goodput) and the Pareto front: who keeps them, and what is recommended."""

from __future__ import annotations

import itertools
import json
import math
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_samples import Scripted, Told, Watched, knows, plan_of, simulate, window

from autotune.errors import ConfigurationError
from autotune.limits import could_keep, describe, goodput, is_good, parse_goodput, share_within
from autotune.pareto import pareto_front
from autotune.plan import Request, make_plan
from autotune.records import (
    BaselineResult,
    CandidateResult,
    Limits,
    RequestResult,
    Status,
)
from autotune.search import Prices, Search

# --------------------------------------------------------------------------------- the option


def test_milliseconds_as_vllm_spells_them():
    limits = parse_goodput("tpot:30,ttft:500")
    assert limits == Limits(tpot_seconds=0.03, ttft_seconds=0.5)
    assert parse_goodput("ttft:500 e2el:1e4") == Limits(ttft_seconds=0.5, e2el_seconds=10)
    assert describe(limits) == "ttft 500 ms, tpot 30 ms"


@pytest.mark.parametrize(
    "text",
    ["", ",", "tpot", "tpot:", "tpot:x", "tpot:0", "tpot:-1", "tpot:inf", "tpot:nan", "itl:3",
     "TPOT:3", "tpot:3,tpot:4", "tpot:3:4", "tpot=3"],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigurationError) as caught:
        parse_goodput(text)
    assert "--goodput" in caught.value.message and "tpot:30,ttft:500" in caught.value.hint


@given(st.dictionaries(st.sampled_from(["ttft", "tpot", "e2el"]), st.floats(1e-3, 1e6), min_size=1))
def test_what_is_given_comes_back_in_seconds(given_):
    limits = parse_goodput(",".join(f"{name}:{value!r}" for name, value in given_.items()))
    for name in ("ttft", "tpot", "e2el"):
        seconds = getattr(limits, f"{name}_seconds")
        assert (seconds is None) == (name not in given_)
        if seconds is not None:
            assert seconds * 1000 == pytest.approx(given_[name])


# ------------------------------------------------------------------------------- one request


def request(ttft=0.1, tpot=0.01, tokens=101, **more):
    total = ttft + tpot * (tokens - 1)
    values = {"ttft_seconds": ttft, "end_to_end_seconds": total, "completion_tokens": tokens}
    return RequestResult(prompt_id="p", **{**values, **more})


def test_a_request_is_good_within_all_limits():
    limits = Limits(ttft_seconds=0.2, tpot_seconds=0.02, e2el_seconds=2)
    assert is_good(limits, request())
    assert not is_good(limits, request(ttft=0.21))
    assert not is_good(limits, request(tpot=0.021))
    assert not is_good(limits, request(tokens=200))  # 0.1 + 199 x 0.01 = 2.09 s
    assert is_good(Limits(tpot_seconds=0.02), request(ttft=9.0))


def test_what_failed_or_was_not_timed():
    limits = Limits(tpot_seconds=0.02)
    assert is_good(limits, RequestResult(prompt_id="p", error="gone")) is False
    assert is_good(limits, RequestResult(prompt_id="p", text="?")) is None
    assert is_good(limits, request(tokens=1))  # TPOT 0, as vLLM has it
    silent = request(ttft_seconds=None)  # no text: its first token comes with its end
    assert not is_good(Limits(ttft_seconds=0.5), silent)


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 0.1)), min_size=1, max_size=30))
def test_goodput_is_the_share_times_the_request_rate(times):
    """vLLM: requests within all limits over the duration."""
    limits = Limits(ttft_seconds=0.5, tpot_seconds=0.05)
    requests = tuple(request(ttft, tpot) for ttft, tpot in times)
    windows = [
        window("mtp", 1, 10.0, requests=requests, duration_seconds=4.0),
        window("mtp", 1, 10.0, block="search:1", requests=requests, duration_seconds=6.0),
    ]
    share = share_within(limits, windows)
    assert 0 <= share <= 1
    assert goodput(limits, windows) == pytest.approx(share * 2 * len(times) / 10.0)
    assert share_within(None, windows) is None and goodput(None, windows) is None


def test_windows_without_times_tell_nothing():
    limits = Limits(tpot_seconds=0.05)
    untimed = (RequestResult(prompt_id="p"),)
    assert share_within(limits, [window("mtp", 1, 10.0, requests=untimed)]) is None
    assert share_within(limits, []) is None
    timed = window("mtp", 1, 10.0, requests=(request(),))  # its duration is not known
    assert goodput(limits, [timed]) is None


def test_what_could_keep_a_limit():
    """Baseline: 40 ms a token. Twice as fast: 20 ms, in the median and at the prediction."""
    plan = plan_of(mtp=[1], settings={"limits": Limits(tpot_seconds=0.0201)})
    times = (request(tpot=0.04),) * 3
    base = window("none", 0, 100.0, requests=times)
    fast = window("mtp", 1, 200.0, acceptance_length=1.9)
    slow = window("mtp", 1, 190.0, acceptance_length=1.9)
    assert could_keep(knows(plan, [base, fast]), "mtp", 1, 8, z=0.0)
    assert not could_keep(knows(plan, [base, slow]), "mtp", 1, 8, z=0.0)
    assert could_keep(knows(plan, [base, slow]), "mtp", 1, 8, z=10.0)
    # end to end: 0.1 + 100 x 0.02 s
    plan = plan_of(mtp=[1], settings={"limits": Limits(e2el_seconds=2.11)})
    assert could_keep(knows(plan, [base, fast]), "mtp", 1, 8, z=0.0)
    assert not could_keep(knows(plan, [base, slow]), "mtp", 1, 8, z=0.0)


# ----------------------------------------------------------------------------- whole studies


@pytest.fixture
def steps(tmp_path):
    """The scenario `steps` with mtp alone, without its cliff, at three loads."""
    document = json.loads((files("autotune") / "scenarios/steps.json").read_text())
    document["methods"] = document["methods"][:1]
    document["quirks"]["capture_factor"] = 1.0
    document["concurrencies"] = [2, 4, 48]
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(document))
    return path


def true_tpot(engine, n, load):
    """Seconds per token of one request: requests / throughput (Little's law)."""
    return load / engine.truth("mtp", n, load)


def total(engine, n):
    return math.prod(engine.truth("mtp", n, load) for load in engine.scenario.concurrencies)


def probed_lengths(watched):
    return {n for arm, n, _ in watched.windows if ":live:" in arm}


def test_the_overall_choice_keeps_the_limits_at_every_load(stage, steps):
    """Without limits N=7 is best over the loads; at 48 requests it takes too long a token."""
    engine, limit = simulate(steps), 0.0076
    lengths, loads = engine.scenario.method("mtp").lengths, engine.scenario.concurrencies
    assert max(lengths, key=lambda n: total(engine, n)) == 7
    kept = [n for n in lengths if all(true_tpot(engine, n, c) < limit for c in loads)]
    assert kept == [3, 4] and total(engine, 3) > total(engine, 4)
    assert true_tpot(engine, 7, 48) > 1.08 * limit
    plain = stage.tune(simulate(steps), Request(schedule=False))
    assert plain.num_speculative_tokens == 7 and plain.limits is None
    result = stage.tune(engine, Request(schedule=False, goodput="tpot:7.6"))
    assert result.num_speculative_tokens == 3
    assert result.limits == Limits(tpot_seconds=limit) and result.limits_share == 0.95
    choices = {c.concurrency: c for c in result.per_concurrency}
    assert choices[4].num_speculative_tokens == 7
    assert all(c.meets_limits for c in choices.values())
    assert not any("limits" in warning for warning in result.warnings)
    measured = [c for c in result.candidates if c.output_tokens_per_second is not None]
    for c in measured:
        if true_tpot(engine, c.num_speculative_tokens, c.concurrency) > 1.08 * limit:
            assert c.share_within_limits < 0.5
        assert (c.goodput_requests_per_second > 0) == (c.share_within_limits > 0)
    assert any(c.share_within_limits < 0.5 for c in measured)


@pytest.mark.slow
def test_a_load_out_of_reach_does_not_narrow_the_search(stage, steps):
    """6.2 ms a token: within reach at 4 requests for N=3 and more, at 48 for none."""
    engine = Watched(simulate(steps))
    assert min(true_tpot(engine, n, 4) for n in (1, 2)) > 0.0070
    assert true_tpot(engine, 7, 4) < 0.0050
    assert min(true_tpot(engine, n, 48) for n in range(1, 9)) > 0.0066
    result = stage.tune(engine, Request(goodput="tpot:6.2"))
    assert result.num_speculative_tokens == 7
    free = Watched(simulate(steps))
    stage.tune(free, Request())
    assert probed_lengths(engine) == probed_lengths(free)
    choices = {c.concurrency: c.meets_limits for c in result.per_concurrency}
    assert choices == {2: True, 4: True, 48: False}
    at = max(result.per_concurrency, key=lambda c: c.concurrency)
    best = max(range(1, 9), key=lambda n: engine.truth("mtp", n, 48))
    assert at.num_speculative_tokens == best == 3
    assert any("concurrency 48: nothing measured keeps the limits" in w for w in result.warnings)
    assert any("misses the limits at concurrency 48" in w for w in result.warnings)


@pytest.mark.parametrize(
    ("text", "speedups", "promising"),
    [
        ("tpot:20", {2: 1.9, 3: 1.2}, [2]),  # N=2 may take 40 / (1.9 x 1.18) = 17.8 ms
        ("tpot:20", {2: 1.2, 3: 1.25}, []),  # none may, and both are slower than N=1
        ("tpot:10", {2: 1.9, 3: 1.2}, [2]),  # none may: N=2 is faster
        ("ttft:50", {2: 1.9, 3: 1.2}, [2]),  # TTFT is 100 ms with and without speculation
        ("ttft:50,tpot:20", {2: 1.9, 3: 1.2}, [2]),
        ("tpot:30", {2: 1.9, 3: 1.2}, [2]),  # N=1 keeps it: 40 / 1.5 = 26.7 ms
    ],
)
def test_what_is_still_worth_measuring_within_limits(text, speedups, promising):
    """Baseline: 40 ms a token; N=1 is 1.5 times as fast; one-sided 95 %: exp(1.645 x 0.1) = 1.18.

    Where something may still keep the limits, what cannot is left out; where nothing can, or TTFT
    alone is missed, the faster ones are measured.
    """
    table = {("mtp", n): (math.log(gain), 0.1) for n, gain in speedups.items()}
    table["mtp", 1] = (math.log(1.5), 0.0)
    plan = plan_of(mtp=[1, 2, 3], settings={"limits": parse_goodput(text)})
    told = Told(plan, table, measured=[("mtp", 1)])
    told.add(window("none", 0, 100.0, requests=(request(tpot=0.04),)))
    told.add(window("mtp", 1, 150.0, requests=(request(tpot=0.04 / 1.5),)))
    search = Search(told, Prices(start_seconds=0.0, probe_seconds=1.0), starts_left=1)
    assert search.promising() == [("mtp", n) for n in promising]


@pytest.mark.slow
@pytest.mark.parametrize("goodput", ["tpot:0.001", "ttft:0.001", "tpot:0.001,ttft:0.001"])
def test_limits_that_nobody_can_keep_leave_a_search_by_throughput(stage, goodput):
    """The same windows as without limits, neither all nor hardly any, and the same answer."""
    free, bound = Watched(simulate("dense-chat")), Watched(simulate("dense-chat"))
    plain = stage.tune(free, Request(schedule=False))
    result = stage.tune(bound, Request(schedule=False, goodput=goodput))
    assert bound.windows == free.windows
    key = (result.method, result.num_speculative_tokens)
    assert key == (plain.method, plain.num_speculative_tokens)
    assert result.speedup.value == pytest.approx(plain.speedup.value)
    assert not any(choice.meets_limits for choice in result.per_concurrency)


def timed(table, ttft=0.05):
    """Rates and times by N: {n: (tokens/s, [seconds per token of each of 20 requests])}."""

    def react(arm, n, block, measured):
        rate, tpots = table[n](arm, block) if callable(table[n]) else table[n]
        requests = tuple(request(ttft, tpot) for tpot in tpots)
        update = {"output_tokens_per_second": rate, "requests": requests}
        return measured.model_copy(update=update)

    return Scripted({("none" if n == 0 else "mtp", n): 1.0 for n in table}, react)


def limited(text, *lengths, **settings):
    given_ = {"greedy_prompts": 0, "limits": parse_goodput(text), **settings}
    return plan_of(settings=given_, mtp=lengths)


EVEN = [0.010] * 20
TAIL = [0.008] * 17 + [0.030] * 3  # 15 % of the requests are slow


def test_a_tail_of_slow_requests_counts(stage):
    """N=4 has the higher throughput, but 3 of 20 requests above the limit: 85 %, not 95 %."""
    table = {0: (100.0, [0.02] * 20), 2: (180.0, EVEN), 4: (200.0, TAIL)}
    result = stage.tune(timed(table), plan=limited("tpot:25", 2, 4))
    assert (result.decision, result.num_speculative_tokens) == ("speculate", 2)
    assert result.speedup.value == pytest.approx(1.8)
    rows = {c.num_speculative_tokens: c for c in result.candidates}
    assert rows[4].share_within_limits == pytest.approx(0.85)
    # 20 requests in 10 s
    assert rows[4].goodput_requests_per_second == pytest.approx(17 / 10)
    assert rows[2].goodput_requests_per_second == pytest.approx(2.0)
    assert result.baseline[0].share_within_limits == 1.0
    assert result.baseline[0].goodput_requests_per_second == pytest.approx(2.0)
    asked = limited("tpot:25", 2, 4, limits_share=0.85)
    assert stage.tune(timed(table), plan=asked).num_speculative_tokens == 4


def test_where_only_the_baseline_keeps_them_it_stays(stage):
    table = {0: (100.0, [0.02] * 20), 2: (180.0, TAIL), 4: (200.0, TAIL)}
    result = stage.tune(timed(table), plan=limited("tpot:25", 2, 4))
    assert (result.decision, result.method, result.speedup) == ("do_not_speculate", "none", None)
    (choice,) = result.per_concurrency
    assert (choice.decision, choice.meets_limits) == ("do_not_speculate", True)
    assert Status.CONFIRMED not in {c.status for c in result.candidates}


def test_where_nothing_keeps_them_the_closest_is_named(stage):
    table = {0: (100.0, [0.04] * 20), 2: (180.0, [0.02] * 12 + [0.04] * 8), 4: (200.0, [0.03] * 20)}
    result = stage.tune(timed(table), plan=limited("tpot:25", 2, 4))
    assert (result.decision, result.num_speculative_tokens) == ("speculate", 2)
    assert result.per_concurrency[0].meets_limits is False
    (said,) = [w for w in result.warnings if "keeps the limits" in w]
    assert "concurrency 8" in said and "mtp N=2 comes closest: 60%" in said


def test_speculation_may_be_needed_to_keep_them(stage):
    """No gain in throughput is shown, but only the candidate is within the limits."""
    table = {0: (100.0, [0.03] * 20), 2: (100.5, EVEN)}
    result = stage.tune(timed(table), plan=limited("tpot:25", 2))
    assert (result.decision, result.num_speculative_tokens) == ("speculate", 2)
    assert result.per_concurrency[0].meets_limits


def test_time_to_first_token_counts_too(stage):
    table = {0: (100.0, EVEN), 2: (180.0, EVEN)}
    result = stage.tune(timed(table, ttft=0.6), plan=limited("tpot:25,ttft:500", 2))
    assert result.per_concurrency[0].meets_limits is False
    assert result.baseline[0].share_within_limits == 0.0


def test_held_out_blocks_decide_and_the_next_finalist_comes(stage):
    """N=4 kept the limits in the search and misses them on prompts it had not seen."""

    def four(arm, block):
        return 200.0, TAIL if arm.generation else EVEN

    table = {0: (100.0, [0.02] * 20), 2: (180.0, EVEN), 4: four}
    engine = Watched(timed(table))
    result = stage.tune(engine, plan=limited("tpot:25", 2, 4))
    assert (result.decision, result.num_speculative_tokens) == ("speculate", 2)
    assert [arm.key for arm in engine.starts if arm.generation] == [
        "mtp:4:static:1",
        "mtp:2:static:1",
    ]
    assert {c.status for c in result.candidates} == {Status.CONFIRMED}
    (said,) = [w for w in result.warnings if "not on held-out prompts" in w]
    assert "mtp N=4" in said and "100%" in said and "85%" in said


def test_at_most_three_finalists_are_started(stage):
    """All keep the limits in the search and miss them on held-out prompts."""

    def missing(rate):
        return lambda arm, block: (rate, TAIL if arm.generation else EVEN)

    lengths = (2, 4, 6, 8, 10)
    table = {0: (100.0, [0.02] * 20), **{n: missing(150.0 + 10 * n) for n in lengths}}
    engine = Watched(timed(table))
    stage.tune(engine, plan=limited("tpot:25", *lengths))
    assert sum(arm.generation == 1 and arm.method == "mtp" for arm in engine.starts) == 3


def test_an_engine_that_times_nothing_keeps_nothing(stage):
    result = stage.tune(
        Scripted({("none", 0): 100.0, ("mtp", 2): 180.0}), plan=limited("tpot:25", 2)
    )
    assert result.per_concurrency[0].meets_limits is False
    assert any("requests were not timed" in warning for warning in result.warnings)


def test_an_interrupted_study_with_limits_goes_on(stage):
    def four(arm, block):
        return 200.0, TAIL if arm.generation else EVEN

    table = {0: (100.0, [0.02] * 20), 2: (180.0, EVEN), 4: four}
    plan = limited("tpot:25", 2, 4)
    whole = Watched(timed(table))
    expected = stage.tune(whole, plan=plan)
    left = [len(whole.windows) - 3]

    def before(what):
        left[0] -= what == "window"
        if left[0] < 0:
            raise KeyboardInterrupt

    first = Watched(timed(table), before)
    with pytest.raises(KeyboardInterrupt):
        stage.tune(first, plan=plan, fresh=True)
    rest = Watched(timed(table))
    result = stage.tune(rest, plan=plan)
    assert sorted(first.windows + rest.windows) == sorted(whole.windows)
    assert result.num_speculative_tokens == expected.num_speculative_tokens == 2
    assert result.per_concurrency == expected.per_concurrency


def test_limits_make_another_study(stage):
    engine = simulate("dense-chat")
    plans = [make_plan(Request(goodput=text), engine) for text in (None, "tpot:30", "tpot:31")]
    assert len({plan.sha256 for plan in plans}) == 3


# ---------------------------------------------------------------------------- the Pareto front

ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(1, 20).map(float)),
        st.one_of(st.none(), st.integers(1, 20).map(float)),
    ),
    max_size=25,
)


def dominates(a, b):
    """At least as good in both figures and better in one."""
    return a[0] >= b[0] and a[1] <= b[1] and a != b


def check_front(front, rows):
    """`rows`: (tokens/s, TPOT) of everything measured."""
    points = [(p.output_tokens_per_second, p.tpot_p50_seconds) for p in front]
    assert not any(dominates(a, b) for a, b in itertools.permutations(points, 2))
    assert len(set(points)) == len(points)
    assert set(points) <= set(rows)
    assert points == sorted(points)
    for row in rows:
        assert row in points or any(dominates(point, row) for point in points)


@given(ROWS, ROWS)
def test_a_front_is_what_nothing_dominates(candidates, baseline):
    made = [
        CandidateResult(
            method="mtp", num_speculative_tokens=n, concurrency=1, status=Status.PROBED,
            output_tokens_per_second=rate, tpot_p50_seconds=tpot,
        )
        for n, rate, tpot in candidates
    ]  # fmt: skip
    base = [
        BaselineResult(concurrency=n, output_tokens_per_second=rate, tpot_p50_seconds=tpot)
        for n, rate, tpot in baseline
        if rate is not None
    ]
    rows = [
        (row.output_tokens_per_second, row.tpot_p50_seconds)
        for row in (*made, *base)
        if row.output_tokens_per_second is not None and row.tpot_p50_seconds is not None
    ]
    check_front(pareto_front(made, base), rows)


def test_the_front_of_a_study_is_of_measured_rows(stage):
    result = stage.tune(simulate("moe-low-load"), Request(schedule=False))
    rows = {
        (c.method, c.num_speculative_tokens, c.concurrency):
            (c.output_tokens_per_second, c.tpot_p50_seconds)
        for c in result.candidates if c.output_tokens_per_second is not None
    }  # fmt: skip
    for b in result.baseline:
        rows["none", 0, b.concurrency] = (b.output_tokens_per_second, b.tpot_p50_seconds)
    check_front(result.pareto, list(rows.values()))
    for p in result.pareto:
        figures = (p.output_tokens_per_second, p.tpot_p50_seconds)
        assert rows[p.method, p.num_speculative_tokens, p.concurrency] == figures
    # at one request speculation loses here, at 32 it wins
    ends = result.pareto[0], result.pareto[-1]
    assert [(p.method == "none", p.concurrency) for p in ends] == [(True, 1), (False, 32)]
