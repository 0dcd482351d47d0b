"""The roofline, the scenarios and the simulated engine."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from engine_contract import Arms, EngineContract
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines import EngineOptions, load_engine
from autotune.engines.drafters import Acceptance, Drafting
from autotune.engines.roofline import (
    GPUS,
    Gpu,
    Machine,
    ModelShape,
    drafter_seconds,
    expected_experts,
    forward_seconds,
)
from autotune.engines.scenario import (
    Drift,
    Quirks,
    Scenario,
    Tile,
    load_scenario,
    packaged_scenarios,
)
from autotune.engines.simulate import SimulateEngine, draw_rounds
from autotune.errors import (
    ConfigurationError,
    EngineDiedError,
    EngineStartError,
    LiveSwitchError,
    UnusableMeasurementError,
)
from autotune.records import Arm, Block, BlockRole, Message, Prompt, Sampling, Target

TARGET = Target(model="some/model")
# round numbers: 100 TFLOP/s, 1 TB/s, everything reached
ROUND = Machine(
    gpu=Gpu(name="round", teraflops=100, terabytes_per_second=1, memory_gigabytes=100),
    compute_efficiency=1.0,
    bandwidth_efficiency=1.0,
)
DENSE = ModelShape(
    name="dense", parameters_billion=10, layers=10, attention_width=1000, kv_bytes_per_token=1e5
)
MOE = ModelShape(
    name="moe",
    parameters_billion=30,
    active_parameters_billion=3,
    num_experts=64,
    experts_per_token=4,
    layers=10,
    attention_width=1000,
    kv_bytes_per_token=0,
    bytes_per_weight=1,
)


def block(load=4, index=0, prompts=4, max_tokens=128, role=BlockRole.SEARCH):
    message = (Message(role="user", content="Hello."),)
    return Block(
        role=role,
        index=index,
        concurrency=load,
        prompts=tuple(Prompt(id=f"p{i}", messages=message) for i in range(prompts)),
        sampling=Sampling(max_tokens=max_tokens),
    )


def simulate(name=None, **options):
    return SimulateEngine(EngineOptions(simulation=name, **options))


def start(engine, method="none", n=0, live=False, generation=0):
    arm = Arm(method=method, num_speculative_tokens=n, live=live, generation=generation)
    return engine.open(TARGET, arm, lambda line: None)


def small(**changes):
    """A scenario without noise."""
    return {
        "schema": "spectune.scenario/1",
        "name": "small",
        "gpu": "H100",
        "model": DENSE.model_dump(),
        "methods": [
            {
                "method": "mtp",
                "lengths": [1, 2, 3, 4],
                "acceptance": {"rates": [0.8, 0.6, 0.4, 0.2]},
                "drafting": {"style": "sequential", "launch_seconds": 0.0005},
            }
        ],
        "concurrencies": [4],
        **changes,
    }


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "scenario.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


# ----------------------------------------------------------------------------------- roofline


def test_datasheet_figures():
    figures = {name: (gpu.teraflops, gpu.terabytes_per_second) for name, gpu in GPUS.items()}
    assert figures == {
        "A100": (312, 2.04),
        "H100": (989, 3.35),
        "H200": (989, 4.8),
        "MI300X": (1307, 5.3),
        "MI355X": (2500, 8.0),
    }


def test_memory_bound_pass_by_hand():
    # 10e9 weights x 2 bytes = 20 GB, 2 requests x 1000 tokens x 0.1 MB = 0.2 GB, at 1 TB/s
    assert forward_seconds(DENSE, ROUND, 2, 1, 1000) == pytest.approx(0.0202)


def test_compute_bound_pass_by_hand():
    # 200 x 10 tokens x (2 x 10e9 + 4 x 10 layers x 1000 x 1000 context) FLOP at 100 TFLOP/s
    by_hand = 2000 * (20e9 + 0.04e9) / 100e12
    assert by_hand == pytest.approx(0.4008)
    assert forward_seconds(DENSE, ROUND, 200, 10, 1000) == pytest.approx(by_hand)


def test_efficiency_and_gpu_count_scale_the_machine():
    two_halves = ROUND.model_copy(
        update={"gpu_count": 2, "compute_efficiency": 0.5, "bandwidth_efficiency": 0.25}
    )
    assert forward_seconds(DENSE, two_halves, 2, 1, 1000) == pytest.approx(0.0404)
    assert forward_seconds(DENSE, two_halves, 200, 10, 1000) == pytest.approx(0.4008)


@pytest.mark.parametrize(
    ("tokens", "experts"),
    [(0, 0), (1, 2), (2, 8 * (1 - 0.75**2)), (3, 4.625), (1000, 8)],
)
def test_expected_experts_by_hand(tokens, experts):
    # E=8, k=2: 8 (1 - 0.75^3) = 8 x 0.578125 = 4.625
    assert expected_experts(8, 2, tokens) == pytest.approx(experts)


def test_expected_experts_by_drawing():
    rng = np.random.default_rng(0)
    seen = [
        len({expert for _ in range(5) for expert in rng.choice(16, 3, replace=False)})
        for _ in range(4000)
    ]
    # sd of the count is below 1.5: four standard errors are below 0.1
    assert np.mean(seen) == pytest.approx(expected_experts(16, 3, 5), abs=0.1)


def test_moe_weights_by_hand():
    # X (1 - 4/64) = 30 - 3 -> X = 28.8, S = 1.2; one token reads 1.2 + 28.8/16 = 3.0
    assert MOE.in_experts == pytest.approx(28.8)
    assert MOE.shared == pytest.approx(1.2)
    assert MOE.weights_read(1) == pytest.approx(3.0)
    # two tokens: 64 (1 - (15/16)^2) = 7.75 experts, 1.2 + 28.8 x 7.75 / 64 = 4.6875
    assert MOE.weights_read(2) == pytest.approx(4.6875)
    assert MOE.weights_read(1e6) == pytest.approx(30)
    assert forward_seconds(MOE, ROUND, 1, 2, 0) == pytest.approx(4.6875e9 / 1e12)


def test_drafter_pass_by_hand():
    # 1e9 x 2 bytes at 1 TB/s; 100 tokens x 2e9 FLOP at 100 TFLOP/s is as long; 300 three times
    assert drafter_seconds(1, ROUND, 1) == pytest.approx(0.002)
    assert drafter_seconds(1, ROUND, 100) == pytest.approx(0.002)
    assert drafter_seconds(1, ROUND, 300) == pytest.approx(0.006)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": None}, "go together"),
        ({"experts_per_token": 64}, "activates a part"),
        ({"active_parameters_billion": 31}, "activates a part"),
        ({"active_parameters_billion": 1}, "fewer than the chosen experts"),
    ],
)
def test_impossible_experts(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelShape(**{**MOE.model_dump(), **changes})


# ----------------------------------------------------------------------------- scenario parts


def test_acceptance_by_hand():
    explicit = Acceptance(rates=(0.8, 0.5, 0.3))
    assert explicit.at(2) == (0.8, 0.5)
    geometric = Acceptance(first=0.8, decay=0.5)
    assert geometric.at(3) == pytest.approx((0.8, 0.4, 0.2))
    assert geometric.at(0) == ()


def test_acceptance_drifts_with_n():
    # .834 at N=1 and .762 at N=8, as published
    drift = math.log(0.834 / 0.762) / 7
    acceptance = Acceptance(first=0.834, decay=0.8, drift=drift)
    assert acceptance.at(1)[0] == pytest.approx(0.834)
    assert acceptance.at(8)[0] == pytest.approx(0.762)
    assert Acceptance(first=0.9, decay=0.9, drift=-1.0).at(5)[0] == 1.0


@pytest.mark.parametrize("bad", [{}, {"first": 0.5}, {"rates": (0.5,), "first": 0.5, "decay": 0.5}])
def test_acceptance_has_one_form(bad):
    with pytest.raises(ValueError, match="either"):
        Acceptance(**bad)


def test_drafting_by_hand():
    cost = {"parameters_billion": 1, "launch_seconds": 0.001, "request_seconds": 0.0001}
    sequential = Drafting(style="sequential", **cost)
    # a pass over 4 tokens: 2 ms of weights + 1 ms + 4 x 0.1 ms; three of them
    assert sequential.seconds(ROUND, 3, 4) == pytest.approx(3 * 0.0034)
    assert sequential.seconds(ROUND, 0, 4) == pytest.approx(0.0034)
    parallel = Drafting(style="parallel", **cost)
    assert parallel.seconds(ROUND, 3, 4) == pytest.approx(0.0034)
    # 100 requests x 6 tokens are compute-bound: 6 x 2 ms, + 1 ms + 10 ms
    assert parallel.seconds(ROUND, 5, 100) == pytest.approx(0.023)


def test_quirks():
    quirks = Quirks(
        tiles=(Tile(verify_tokens=4, factor=0.9),), capture_limit_tokens=16, capture_factor=5
    )
    assert [quirks.factor(4, n) for n in (3, 4, 5)] == [1.0, 0.9, 5.0]
    assert quirks.factor(5, 4) == 4.5


def test_drift_of_the_machine():
    sinusoid = Drift(kind="sinusoid", amplitude=0.2, period_windows=40)
    assert [sinusoid.speed(w) for w in (0, 10, 20, 30)] == pytest.approx([1, 1.2, 1, 0.8])
    linear = Drift(kind="linear", amplitude=-0.4, period_windows=10)
    assert [linear.speed(w) for w in (0, 5, 10, 99)] == pytest.approx([1, 0.8, 0.6, 0.6])


def test_step_and_truth_by_hand(write):
    scenario = load_scenario(
        write(
            small(
                compute_efficiency=1.0,
                bandwidth_efficiency=1.0,
                context_tokens=1000,
                step_overhead_seconds=0.001,
            )
        )
    )
    # verify: (20 GB + 4 x 0.1 GB) / 3.35 TB/s; draft: 2 x 0.5 ms
    verify = 20.4e9 / 3.35e12
    step = scenario.step("mtp", 2, 4)
    assert step.verify_seconds == pytest.approx(verify)
    assert step.draft_seconds == pytest.approx(0.001)
    assert scenario.truth("mtp", 2, 4) == pytest.approx(4 * 2.4 / (verify + 0.002))
    assert scenario.truth("none", 0, 4) == pytest.approx(4 / (verify + 0.001))
    assert scenario.truth("mtp", 0, 4) == pytest.approx(4 / (verify + 0.0015))


BAD = {
    "not JSON": ("{", "not a JSON object"),
    "a list": ([], "not a JSON object"),
    "schema": (small(schema="spectune.scenario/9"), r"scenario/9.*scenario/1"),
    "gpu": (small(gpu="TPU"), "unknown gpu 'TPU'; known: A100"),
    "unknown key": (small(speed=1), "speed"),
    "loads": (small(concurrencies=[4, 4]), "same concurrency twice"),
    "fault": (small(faults={"eagle": {"no_drafts": True}}), "do not exist: eagle"),
    "memory": (small(model={**DENSE.model_dump(), "parameters_billion": 60}), "do not fit"),
    "baseline": (small(methods=[{**small()["methods"][0], "method": "none"}]), "baseline"),
    "descending": (small(methods=[{**small()["methods"][0], "lengths": [2, 1]}]), "ascend"),
    "too few rates": (small(methods=[{**small()["methods"][0], "lengths": [5]}]), "4 rates for"),
    "rising rates": (
        small(methods=[{**small()["methods"][0], "acceptance": {"rates": [0.1, 0.2]}}]),
        "later position",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_scenario_is_refused(write, content, message):
    with pytest.raises(ConfigurationError, match=message):
        load_scenario(write(content))


def test_an_unknown_scenario_names_the_packaged_ones():
    with pytest.raises(ConfigurationError, match="no-such-thing") as caught:
        load_engine("simulate", EngineOptions(simulation="no-such-thing"))
    assert "dense-chat" in caught.value.hint


# ------------------------------------------------------------------------- packaged scenarios


def brute_force(engine, load):
    """The optimum among what a fault-free static start can run."""
    faults = engine.scenario.faults
    table = {("none", 0): engine.truth("none", 0, load)}
    for space in engine.offer().spaces:
        fault = faults.get(space.method)
        if fault and (fault.start_error or fault.dies_after is not None or fault.no_drafts):
            continue
        for n in space.lengths:
            table[space.method, n] = engine.truth(space.method, n, load)
    return max(table, key=table.get), table


@pytest.mark.parametrize("name", packaged_scenarios())
def test_best_is_the_optimum_by_brute_force(name):
    engine = simulate(name)
    assert engine.scenario.name == name and engine.scenario.description
    for load in engine.offer().concurrencies:
        winner, table = brute_force(engine, load)
        assert engine.best(load) == (*winner, table[winner])


def ratio(engine, load):
    """(method, N, speedup over the baseline) of the best candidate."""
    method, n, throughput = engine.best(load)
    return method, n, throughput / engine.truth("none", 0, load)


def test_default_scenario_has_a_clear_interior_optimum():
    engine = simulate()
    assert engine.scenario.name == "dense-chat"
    method, n, speedup = ratio(engine, 4)
    assert (method, n) == ("eagle3", 3) and speedup > 1.5
    _, table = brute_force(engine, 4)
    assert sorted(table.values())[-2] < 0.99 * table["eagle3", 3]


def test_moe_loses_at_low_load_and_wins_at_high_load():
    engine = simulate("moe-low-load")
    assert ratio(engine, 1)[:2] == ("none", 0)
    assert ratio(engine, 32)[2] > 1.5


def test_tie_is_within_a_tenth_of_a_percent():
    _, table = brute_force(simulate("tie"), 8)
    best, second, third = sorted(table, key=table.get)[:-4:-1]
    assert {best, second} == {("mtp", 5), ("mtp", 6)}
    assert table[second] > 0.999 * table[best] > 1.01 * table[third]


def test_edge_has_its_best_at_the_largest_n():
    engine = simulate("edge")
    method, n, _ = engine.best(2)
    assert n == max(max(s.lengths) for s in engine.offer().spaces if s.method == method)


def test_no_gain_means_the_baseline_wins():
    assert simulate("no-gain").best(128)[:2] == ("none", 0)


def test_three_loads_have_three_answers():
    engine = simulate("three-loads")
    lengths = {engine.best(load)[1] for load in engine.offer().concurrencies}
    assert len(engine.offer().concurrencies) == len(lengths) == 3


def test_steps_scenario_has_dips_and_a_cliff():
    engine = simulate("steps")
    verify = {n: engine.scenario.step("mtp", n, 4).verify_seconds for n in range(1, 9)}
    assert verify[3] < verify[2] and verify[7] < verify[6]
    assert engine.truth("mtp", 5, 48) < 0.5 * engine.truth("mtp", 4, 48)


# ------------------------------------------------------------------------------------ windows


def test_exact_window_without_noise(write):
    engine = simulate(write(small()))
    window = start(engine, "mtp", 3).run(block())
    assert window.output_tokens_per_second == pytest.approx(engine.truth("mtp", 3, 4))
    assert window.output_tokens == 4 * 128
    assert window.duration_seconds == pytest.approx(512 / window.output_tokens_per_second)
    split = engine.scenario.step("mtp", 3, 4)
    assert window.steps.step_seconds == pytest.approx(split.seconds)
    assert window.steps.tokens_per_step == pytest.approx(4 * (1 + 0.8 + 0.6 + 0.4))
    assert window.steps.requests_per_step == 4
    (batch,) = window.steps.by_batch
    assert (batch.requests, batch.verified_tokens_per_step) == (4, 16)
    assert batch.step_seconds == window.steps.step_seconds
    steps = window.duration_seconds / window.steps.step_seconds
    assert window.steps.num_steps == pytest.approx(steps, abs=0.51)


def test_tpot_is_the_time_per_output_token(write):
    engine = simulate(write(small()))
    baseline = start(engine).run(block())
    step = engine.scenario.step("none", 0, 4).seconds
    assert baseline.tpot.p50 == pytest.approx(step) == pytest.approx(baseline.tpot.p99)
    fast = start(engine, "mtp", 3).run(block(max_tokens=4096))
    assert fast.tpot.mean == pytest.approx(4 / fast.output_tokens_per_second, rel=0.02)


def test_counters_follow_the_rates(write):
    window = start(simulate(write(small())), "mtp", 4).run(block(prompts=200, max_tokens=257))
    drafts = window.counters.num_drafts
    assert drafts > 10_000 and window.counters.num_draft_tokens == 4 * drafts
    for seen, p in zip(window.per_position_acceptance_rates, (0.8, 0.6, 0.4, 0.2), strict=True):
        assert seen == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / drafts))


def test_rounds_by_hand():
    rng = np.random.default_rng(0)
    # all accepted: 3 tokens a round, 7 tokens need three rounds; none accepted: one each
    assert draw_rounds((1.0, 1.0), 1, 7, rng).tolist() == [[2, 2, 2, -1, -1, -1, -1]]
    assert draw_rounds((0.0,), 2, 2, rng).tolist() == [[0, 0], [0, 0]]
    assert draw_rounds((), 1, 3, rng).tolist() == [[0, 0, 0]]


def test_live_n_0_is_not_the_baseline(write):
    engine = simulate(write(small()))
    session = start(engine, "mtp", 4, live=True)
    session.set_num_speculative_tokens(0)
    window = session.run(block())
    assert window.counters.num_drafts == 0 and window.acceptance_length is None
    assert window.output_tokens_per_second < start(engine).run(block()).output_tokens_per_second


def test_noise_has_the_requested_spread(write):
    engine = simulate(write(small()), noise=0.03)
    session = start(engine, "mtp", 2)
    windows = [session.run(block(index=i, prompts=1, max_tokens=2)) for i in range(2000)]
    logs = np.log([w.output_tokens_per_second / engine.truth("mtp", 2, 4) for w in windows])
    assert logs.std() == pytest.approx(0.03, abs=4 * 0.03 / math.sqrt(4000))
    assert logs.mean() == pytest.approx(0, abs=4 * 0.03 / math.sqrt(2000))


def test_block_difficulty_is_common_to_all_arms(write):
    engine = simulate(write(small(block_sd=0.2)))
    baseline, candidate = start(engine), start(engine, "mtp", 2)
    truth = engine.truth("mtp", 2, 4) / engine.truth("none", 0, 4)
    rates = []
    for index in range(20):
        one, two = baseline.run(block(index=index)), candidate.run(block(index=index))
        rates.append(one.output_tokens_per_second)
        assert two.output_tokens_per_second / rates[-1] == pytest.approx(truth)
    assert np.std(np.log(rates)) > 0.1


def test_windows_depend_on_the_call_not_on_the_order(write):
    def world(order, seed=0):
        engine = simulate(write(small()), noise=0.02, seed=seed)
        sessions = {n: start(engine, "mtp", n) for n in (1, 2)}
        return {(n, i): sessions[n].run(block(index=i)) for n, i in order}

    calls = [(n, i) for n in (1, 2) for i in range(3)]
    assert world(calls) == world(calls[::-1])
    assert world(calls) != world(calls, seed=1)
    assert len({w.output_tokens_per_second for w in world(calls).values()}) == 6


def test_the_drifting_machine_drifts():
    engine = simulate("drifting", noise=0.0)
    session = start(engine)
    rates = [session.run(block(load=8, prompts=1)).output_tokens_per_second for _ in range(37)]
    assert max(rates) == pytest.approx(1.2 * rates[0], rel=0.01)
    assert min(rates) == pytest.approx(0.8 * rates[0], rel=0.01)


def test_repeats_are_promised_only_where_something_changes(write):
    assert not simulate(write(small())).offer().repeats
    assert simulate(write(small()), noise=0.01).offer().repeats
    assert simulate("drifting", noise=0.0).offer().repeats


def test_offer_identity_and_price():
    engine = simulate("drifting", seed=5)
    offer = engine.offer()
    assert (offer.model, offer.workload) == ("simulated/dense-8b", "chat")
    assert offer.environment.gpu == "NVIDIA H100 SXM"
    assert [(s.method, s.parallel, s.live_n) for s in offer.spaces] == [
        ("eagle3", False, True),
        ("pard", True, False),
    ]
    assert engine.identity() == simulate("drifting", seed=5).identity()
    others = (simulate("drifting", seed=6), simulate("edge", seed=5), simulate(noise=0.1, seed=5))
    assert all(other.identity() != engine.identity() for other in others)
    assert engine.estimated_start_seconds() == start(engine).start_seconds == 120
    arm = Arm(method="eagle3", num_speculative_tokens=8, live=True)
    assert engine.command(TARGET, arm) == "simulate drifting (some/model): eagle3 N=0..8 live"
    assert not any(s.live_n for s in simulate(live_n=False).offer().spaces)


def test_impossible_requests(write):
    engine = simulate(write(small()))
    with pytest.raises(EngineStartError, match="does not allow N=9"):
        start(engine, "mtp", 9)
    with pytest.raises(EngineStartError, match="no method 'eagle'"):
        start(engine, "eagle", 1)
    for bad in (block(load=None), block(prompts=0)):
        with pytest.raises(UnusableMeasurementError):
            start(engine).run(bad)
    with pytest.raises(ConfigurationError, match="noise"):
        simulate(noise=-1.0)


def test_a_method_that_cannot_switch_is_static():
    engine = simulate("drifting")
    session = start(engine, "pard", 8, live=True)
    assert not session.capabilities.live_n
    with pytest.raises(LiveSwitchError):
        session.set_num_speculative_tokens(2)


# ------------------------------------------------------------------------------------- faults


def test_start_error_carries_the_last_words():
    with pytest.raises(EngineStartError, match="eagle did not start") as caught:
        start(simulate("faulty"), "eagle", 2)
    assert "same vocabulary size" in caught.value.last_words


def test_dies_after_some_windows_and_stays_dead():
    engine = simulate("faulty")
    session = start(engine, "medusa", 4)
    for index in range(2):
        session.run(block(index=index))
    for _ in range(2):
        with pytest.raises(EngineDiedError, match="died after 2 windows"):
            session.run(block(index=3))
    session.close()
    start(engine, "medusa", 4, generation=1).run(block())  # a restart helps for a while


def test_ignored_switch_is_noticed():
    session = start(simulate("faulty"), "mtp", 6, live=True)
    session.run(block())
    session.set_num_speculative_tokens(2)
    with pytest.raises(LiveSwitchError, match=r"N=2 was set.*still drafts 6"):
        session.run(block())
    session.set_num_speculative_tokens(6)
    session.run(block())


def test_no_drafts_shows_in_the_counters():
    engine = simulate("faulty", noise=0.0)
    window = start(engine, "ngram", 4).run(block())
    assert window.num_speculative_tokens == 4
    assert window.counters.num_drafts == window.counters.num_draft_tokens == 0
    assert window.acceptance_length is None
    assert window.output_tokens_per_second < start(engine).run(block()).output_tokens_per_second


def test_even_the_baseline_can_fail(write):
    engine = simulate(write(small(faults={"none": {"start_error": "out of memory"}})))
    with pytest.raises(EngineStartError):
        start(engine)


# --------------------------------------------------------------------------------- properties

rates = st.floats(0.05, 0.95)
shapes = st.sampled_from([DENSE, MOE])
loads = st.integers(1, 512)
lengths = st.integers(1, 16)


@given(shapes, loads, lengths, st.integers(0, 32768))
def test_verifying_more_tokens_is_never_faster(model, requests, tokens, context):
    def seconds(r, t, c):
        return forward_seconds(model, ROUND, r, t, c)

    base = seconds(requests, tokens, context)
    assert base <= seconds(requests, tokens + 1, context)
    assert base <= seconds(requests + 1, tokens, context)
    assert base <= seconds(requests, tokens, context + 1)


@given(st.integers(2, 256), st.data())
def test_experts_grow_from_k_to_all(num_experts, data):
    k = data.draw(st.integers(1, num_experts - 1))
    tokens = data.draw(st.integers(1, 4096))
    experts = expected_experts(num_experts, k, tokens)
    assert k * (1 - 1e-9) <= experts <= num_experts
    assert experts <= expected_experts(num_experts, k, tokens + 1)


def world(first, decay, style="sequential", drift=0.0, launch=0.0005, model=DENSE):
    method = {
        "method": "m",
        "lengths": list(range(1, 17)),
        "acceptance": {"first": first, "decay": decay, "drift": drift},
        "drafting": {"style": style, "launch_seconds": launch},
    }
    return Scenario.model_validate(small(methods=[method], model=model.model_dump()))


@settings(deadline=None)
@given(rates, rates, st.floats(0, 0.05), lengths, loads, shapes)
def test_better_acceptance_or_cheaper_drafts_are_faster(first, decay, gain, n, load, model):
    here = world(first, decay, model=model).truth("m", n, load)
    assert here <= world(first + gain, decay, model=model).truth("m", n, load)
    assert here <= world(first, decay + gain, model=model).truth("m", n, load)
    assert here <= world(first, decay, launch=0.0004, model=model).truth("m", n, load)
    assert here >= world(first, decay, drift=0.01, model=model).truth("m", n, load)


@settings(deadline=None)
@given(lengths, loads, shapes, st.sampled_from(["sequential", "parallel"]))
def test_drafts_that_are_never_accepted_never_win(n, load, model, style):
    scenario = world(0.0, 0.0, style, model=model)
    assert scenario.truth("m", n, load) < scenario.truth("none", 0, load)
    assert scenario.best(load)[:2] == ("none", 0)


@settings(deadline=None)
@given(rates, rates, lengths, loads)
def test_speedup_is_bounded_by_the_acceptance_length(first, decay, n, load):
    scenario = world(first, decay)
    tau = 1 + sum(scenario.acceptance_rates("m", n))
    assert scenario.truth("m", n, load) <= tau * scenario.truth("none", 0, load) * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(0, 1), max_size=8).map(lambda p: tuple(sorted(p, reverse=True))),
    st.integers(1, 4),
    st.integers(1, 64),
    st.integers(0, 9),
)
def test_rounds_reach_the_tokens_and_not_a_round_more(p, prompts, tokens, seed):
    rounds = draw_rounds(p, prompts, tokens, np.random.default_rng(seed))
    assert rounds.max() <= len(p)
    for row in rounds:
        made = row[row >= 0] + 1
        assert sum(made) >= tokens > sum(made[:-1])
        assert (row[len(made) :] == -1).all()


# ----------------------------------------------------------------------------------- contract


class SimulateContract(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def arms(cls):
        return Arms(
            target=TARGET,
            static=Arm(method="eagle3", num_speculative_tokens=2),
            live=Arm(method="eagle3", num_speculative_tokens=6, live=True),
            switches=(1, 0, 3, 6),
            concurrency=8,
        )


class TestFaultyScenario(SimulateContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls):
        return simulate("faulty", seed=1)


class TestDriftingScenario(SimulateContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls):
        return simulate("drifting", seed=2)

    @pytest.fixture(scope="class")
    @classmethod
    def arms(cls):
        live = Arm(method="eagle3", num_speculative_tokens=8, live=True)
        static = Arm(method="pard", num_speculative_tokens=8)
        return Arms(target=TARGET, static=static, live=live, switches=(2, 8), concurrency=8)


class TestExactSimulation(SimulateContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls):
        return simulate("moe-low-load", noise=0.0)
