"""N by batch size: the tiers, what a trial decides, and whole studies with known answers."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_samples import Scripted, Told, Watched, plan_of, replay, simulate

from autotune.engines.arguments import max_num_seqs
from autotune.errors import EngineStartError
from autotune.measure import Lab
from autotune.plan import Request
from autotune.records import (
    BlockRole,
    Limits,
    MethodSpace,
    RequestResult,
    Target,
    scheduled_length,
)
from autotune.schedule import build_tiers, propose, threshold_loads
from autotune.store import load_study, open_study

LENGTHS = st.dictionaries(st.integers(1, 512), st.integers(1, 8), min_size=1, max_size=6)


# --------------------------------------------------------------------------------- the tiers


@given(LENGTHS, st.integers(1, 2048))
def test_every_batch_size_has_one_tier_and_every_load_its_own_n(lengths, most):
    tiers = build_tiers(lengths, most)
    assert tiers[0][0] == 1 and tiers[-1][1] == max(most, *lengths)
    sizes = [size for first, last, _ in tiers for size in range(first, last + 1)]
    assert sizes == list(range(1, tiers[-1][1] + 1))
    for load, n in lengths.items():
        assert [k for first, last, k in tiers if first <= load <= last] == [n]
        assert scheduled_length(tiers, load) == n
    values = [n for _, _, n in tiers]
    assert all(a != b for a, b in pairwise(values))
    assert max(values) == max(lengths.values())


@given(LENGTHS)
def test_vllm_takes_the_tiers(lengths):
    """Its rules (0.32, spec_decode/dynamic/utils.py): from 1, from <= to, sorted, no overlap."""
    previous = 0
    for first, last, n in build_tiers(lengths, 64):
        assert previous < first <= last and n >= 1
        previous = last


def test_tiers_by_hand():
    """Geometric means: sqrt(4 x 48) = 13.9, sqrt(48 x 100) = 69.3."""
    assert build_tiers({4: 7, 48: 3, 100: 1}, 256) == ((1, 13, 7), (14, 69, 3), (70, 256, 1))
    assert build_tiers({1: 5, 4: 5, 9: 2}, 8) == ((1, 6, 5), (7, 9, 2))
    assert build_tiers({1: 2, 2: 3}, 8) == ((1, 1, 2), (2, 8, 3))


def test_n_goes_on_above_the_last_tier():
    assert scheduled_length(((1, 4, 7), (5, 8, 2)), 9) == 2


def test_loads_beside_thresholds():
    tiers = ((1, 13, 7), (14, 69, 3), (70, 256, 1))
    assert threshold_loads(tiers, (4, 48, 100)) == (13, 14, 69, 70)
    assert threshold_loads(tiers, (4, 14, 70)) == (13, 69)
    assert threshold_loads(tiers[:1], (4,)) == ()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [((), None), (("--max-num-seqs", "64"), 64), (("--max_num_seqs=8",), 8),
     (("--max-num-seqs", "8", "--max-num-seqs", "16"), 16), (("--max-num-seqs", "1k"), None)],
)  # fmt: skip
def test_max_num_seqs(arguments, value):
    assert max_num_seqs(arguments) == value


def test_the_config_and_the_start_of_a_schedule():
    space = MethodSpace(method="ngram", lengths=(2, 7), config={"method": "ngram"})
    arm = space.schedule_arm(((1, 8, 7), (9, 64, 2)))
    assert arm.speculative_config == {
        "method": "ngram",
        "num_speculative_tokens": 7,
        "num_speculative_tokens_per_batch_size": [[1, 8, 7], [9, 64, 2]],
    }
    assert not arm.live and arm.num_speculative_tokens == 7
    keys = {arm.key, space.schedule_arm(((1, 9, 7), (10, 64, 2))).key,
            space.arm(7, live=False, generation=1).key}  # fmt: skip
    assert len(keys) == 3  # windows of one are never recalled for another
    assert all(key.startswith("ngram:7:") and key.endswith(":1") for key in keys)


class Falling(Told):
    """N = 5 gains less the more requests there are, N = 3 always the same: equal at `crossing`."""

    def __init__(self, crossing):
        self.crossing, self.predictions = crossing, {}
        spaces = plan_of((1, 128), mtp=[3, 5])
        super().__init__(spaces, self.predictions, measured=[("mtp", 3), ("mtp", 5)])

    def predict(self, method, n, load):
        gain = 0.5 if n == 3 else 0.5 + 0.01 * (self.crossing - load)
        self.predictions[method, n] = (gain, 0.01)
        return super().predict(method, n, load)


@pytest.mark.parametrize(("crossing", "parted"), [(3, 11), (20, 20), (90, 90), (120, 120)])
def test_tiers_part_where_the_model_crosses(crossing, parted):
    """At the crossing, or half way where it comes before: 11 is the root of 1 x 128.

    Sizes are a tenth apart: the last one below the crossing is at most so far from it.
    """
    knowledge = Falling(crossing)
    proposal = propose(knowledge.plan, knowledge, ("mtp", 3))
    (first, last, high), (after, end, low) = proposal.tiers
    assert (first, high, low, end) == (1, 5, 3, 1024)
    assert after == last + 1
    assert parted / 1.1 - 1 <= last <= parted


# ----------------------------------------------------------------------------- whole studies


@pytest.fixture
def steps(tmp_path):
    """The scenario `steps` with mtp alone: beyond 256 tokens a step no graph was captured."""

    def write(quirks=(), **changes):
        document = json.loads((files("autotune") / "scenarios/steps.json").read_text())
        document["methods"] = document["methods"][:1]
        document["quirks"].update(dict(quirks))
        path = tmp_path / "steps.json"
        path.write_text(json.dumps({**document, **changes}))
        return path

    return write


def best_length(engine, load):
    lengths = engine.scenario.method("mtp").lengths
    return max(lengths, key=lambda n: engine.truth("mtp", n, load))


def true_gain(engine, trial):
    """Geometric mean over the loads of the schedule's true throughput over the static N's."""
    static = trial.static_num_speculative_tokens
    ratios = [
        engine.scenario.schedule_truth("mtp", trial.tiers, load) / engine.truth("mtp", static, load)
        for load in engine.scenario.concurrencies
    ]
    return math.prod(ratios) ** (1 / len(ratios))


@pytest.mark.slow
def test_a_schedule_that_wins_is_recommended(stage, steps):
    engine = Watched(simulate(steps()))
    result = stage.tune(engine)
    lengths = {load: best_length(engine, load) for load in (4, 48)}
    assert lengths == {4: 7, 48: 3}
    assert result.schedule == [(1, 13, 7), (14, 1024, 3)]
    assert (result.decision, result.method, result.num_speculative_tokens) == (
        "speculate",
        "mtp",
        7,
    )
    trial = result.schedule_trial
    assert trial.outcome == "won" and trial.static_num_speculative_tokens == 3
    gain = true_gain(engine, trial)
    assert gain > 1.05
    assert trial.versus_static.value == pytest.approx(gain, rel=0.03)
    assert trial.versus_static.low > 1
    assert [at.concurrency for at in trial.loads] == [4, 13, 14, 48]
    assert [at.beside_threshold for at in trial.loads] == [False, True, True, False]
    for at in trial.loads:
        truth = engine.scenario.schedule_truth("mtp", trial.tiers, at.concurrency)
        assert at.output_tokens_per_second == pytest.approx(truth, rel=0.05)
        assert (at.baseline_output_tokens_per_second is None) == at.beside_threshold
        assert at.num_speculative_tokens == scheduled_length(trial.tiers, at.concurrency)
    base = math.prod(engine.truth("none", 0, load) for load in (4, 48))
    ours = math.prod(engine.scenario.schedule_truth("mtp", trial.tiers, c) for c in (4, 48))
    assert result.speedup == trial.speedup
    assert result.speedup.value == pytest.approx(math.sqrt(ours / base), rel=0.03)
    assert not any("batch size" in warning for warning in result.warnings)


def test_its_trial_is_paired_on_held_out_blocks(stage, steps):
    engine = Watched(simulate(steps()))
    result = stage.tune(engine)
    (arm,) = (arm for arm in engine.starts if arm.schedule)
    assert list(arm.schedule) == result.schedule
    confirmed = {key: set() for key in (arm.key, "mtp:3:static:1")}
    for key, _, block in engine.windows:
        if key in confirmed and block.startswith("confirm"):
            confirmed[key].add(block)
    expected = {f"confirm:{i}:c{load}" for i in range(4) for load in (4, 13, 14, 48)}
    assert set(map(frozenset, confirmed.values())) == {frozenset(expected)}
    # no other start: the baseline, one live start, and one each for the two finalists' N
    assert len([arm for arm in engine.starts if arm.generation == 2]) == 0


@pytest.mark.slow
def test_windows_of_a_schedule_are_no_recording(stage, steps):
    from autotune.plan import make_plan
    from autotune.store import as_recording

    engine = simulate(steps())
    stage.tune(engine)
    plan = make_plan(Request(), engine)
    with open_study(stage.url, plan) as study:
        points = as_recording(plan, study.windows())["points"]
    rates = {(p["num_speculative_tokens"], p["concurrency"]): p for p in points}
    # at 48 the schedule drafts 3 tokens: counted as N=7 it would be four times too fast
    assert rates[7, 48]["output_tokens_per_second"] < 1.1 * engine.truth("mtp", 7, 48)


def test_a_collapse_at_the_threshold_is_not_recommended(stage, steps):
    engine = simulate(steps({"threshold_factor": 10}))
    result = stage.tune(engine)
    trial = result.schedule_trial
    assert true_gain(engine, trial) > 1.05  # at the loads themselves it gains
    assert trial.outcome == "lost" and "beside a threshold" in trial.reason
    assert {at.concurrency for at in trial.loads if at.worse} == {13, 14}
    assert result.schedule is None
    assert (result.method, result.num_speculative_tokens) == ("mtp", 3)
    (said,) = [w for w in result.warnings if "N by batch size" in w]
    assert "was measured and lost" in said


@pytest.mark.slow
def test_a_schedule_that_slows_every_step_loses(stage, steps):
    """As on vLLM's first runner, which gives up full graphs for it."""
    result = stage.tune(simulate(steps({"schedule_factor": 1.3})))
    assert result.schedule_trial.outcome == "lost"
    assert all(at.worse for at in result.schedule_trial.loads if at.num_speculative_tokens == 3)
    assert (result.schedule, result.num_speculative_tokens) == (None, 3)


def test_loads_that_agree_try_nothing(stage, steps):
    engine = Watched(simulate(steps(concurrencies=[4, 13])))
    assert best_length(engine, 4) == best_length(engine, 13) == 7
    result = stage.tune(engine)
    assert (result.schedule, result.schedule_trial) == (None, None)
    assert not any(arm.schedule for arm in engine.starts)
    assert {block.split(":c")[1] for _, _, block in engine.windows} == {"4", "13"}


def test_a_gain_within_the_tie_margin_is_not_worth_a_start(stage, steps):
    """N=7 is better by 1.4 % at one of two loads: 0.7 % over both, below the margin of 1 %."""
    acceptance = {"first": 0.85, "decay": 0.708}
    document = json.loads((files("autotune") / "scenarios/steps.json").read_text())
    path = steps(methods=[{**document["methods"][0], "acceptance": acceptance}], noise_sd=0.0005)
    engine = simulate(path)
    gain = engine.truth("mtp", 7, 4) / engine.truth("mtp", 3, 4)
    assert 1.01 < gain < 1.02
    result = stage.tune(engine)
    assert result.num_speculative_tokens == 3
    assert result.schedule_trial is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "request_", [Request(effort="fast"), Request(schedule=False)], ids=["fast", "off"]
)
def test_it_can_be_switched_off(stage, steps, request_):
    engine = Watched(simulate(steps()))
    result = stage.tune(engine, request_)
    assert (result.schedule, result.schedule_trial) == (None, None)
    assert not any(arm.schedule for arm in engine.starts)


@pytest.mark.slow
def test_it_can_be_asked_for_with_fast(stage, steps):
    result = stage.tune(simulate(steps()), Request(effort="fast", schedule=True))
    assert result.schedule_trial is not None


# ------------------------------------------------------------------- a scripted engine, by hand

# speed-up by N up to 8 requests, and above
GAINS = {2: (1.5, 1.8), 6: (2.0, 1.3)}
# loads 2 and 32: the lines through ln of the gains cross before half way, which is sqrt(64) = 8
TIERS = ((1, 8, 6), (9, 1024, 2))


def scripted(scale=lambda arm, n, block: 1.0, start=lambda arm: None):
    """Exact rates: N=6 wins below 9 requests, N=2 above; `scale` multiplies a window's rate."""

    def react(arm, n, block, window):
        load = block.concurrency
        k = scheduled_length(arm.schedule, load) if arm.schedule else n
        gain = GAINS[k][load > 8] if k else 1.0
        rate = 50.0 * load * gain * scale(arm, k, block)
        return window.model_copy(update={"output_tokens_per_second": rate})

    rates = {("none", 0): 1.0, ("mtp", 2): 1.0, ("mtp", 6): 1.0}
    return Scripted(rates, react, start)


def two_loads(**settings):
    return plan_of((2, 32), settings={"greedy_prompts": 0, **settings}, mtp=[2, 6])


def test_exact_rates_give_the_exact_gain(stage):
    """Static: N=2, sqrt(1.5 x 1.8) against sqrt(2 x 1.3). The schedule: sqrt(2 x 1.8)."""
    result = stage.tune(scripted(), plan=two_loads())
    assert result.schedule == list(TIERS)
    trial = result.schedule_trial
    assert trial.static_num_speculative_tokens == 2
    assert trial.predicted_versus_static == pytest.approx(math.sqrt(2 / 1.5), rel=0.02)
    assert trial.versus_static.value == pytest.approx(math.sqrt(2 / 1.5))
    assert result.speedup.value == pytest.approx(math.sqrt(2 * 1.8))
    by_load = {at.concurrency: at.versus_static.value for at in trial.loads}
    assert by_load == pytest.approx({2: 2 / 1.5, 8: 2 / 1.5, 9: 1.0, 32: 1.0})


@pytest.mark.parametrize(("gain", "outcome"), [(1.005, "lost"), (1.03, "won")])
def test_a_measured_tie_is_no_win(stage, gain, outcome):
    """What was predicted does not come: over both loads the schedule gains `gain`."""

    def scale(arm, n, block):
        # at every load the same, so that it is worse than the static N at none
        if not arm.schedule or block.role != BlockRole.CONFIRM:
            return 1.0
        return gain if n == 2 else gain / (2 / 1.5)

    result = stage.tune(scripted(scale), plan=two_loads())
    trial = result.schedule_trial
    assert trial.versus_static.value == pytest.approx(gain)
    assert trial.outcome == outcome
    assert (result.schedule is None) == (outcome == "lost")
    if outcome == "lost":
        assert "no gain above 1%" in trial.reason


def test_a_collapse_in_one_block_of_four_counts(stage):
    """Its own spread would hide it: a t interval over 4 blocks reaches far above 1."""

    def scale(arm, n, block):
        collapsed = arm.schedule and (block.concurrency, block.index) == (9, 2)
        return 0.1 if collapsed and block.role == BlockRole.CONFIRM else 1.0

    trial = stage.tune(scripted(scale), plan=two_loads()).schedule_trial
    (at,) = (at for at in trial.loads if at.concurrency == 9)
    assert at.versus_static.high > 1 and at.worse
    assert trial.outcome == "lost"


def test_drift_between_the_two_starts_measures_the_static_n_again(stage):
    """The machine slows to 0.7 after the static start: that is not the schedule's fault."""

    def scale(arm, n, block):
        return 0.7 if arm.schedule or arm.generation == 2 else 1.0

    engine = Watched(scripted(scale))
    result = stage.tune(engine, plan=two_loads())
    assert [arm.key for arm in engine.starts][-1] == "mtp:2:static:2"
    trial = result.schedule_trial
    assert trial.outcome == "won"
    assert trial.versus_static.value == pytest.approx(math.sqrt(2 / 1.5))
    assert result.speedup.value == pytest.approx(math.sqrt(2 * 1.8))


def test_a_start_that_fails_is_told_and_leaves_the_static_choice(stage):
    def start(arm):
        if arm.schedule:
            raise EngineStartError("no such schedule")

    result = stage.tune(scripted(start=start), plan=two_loads())
    assert result.schedule_trial.outcome == "failed"
    assert (result.decision, result.num_speculative_tokens) == ("speculate", 2)
    assert any("failed: no such schedule" in w for w in result.warnings)
    assert load_study(stage.url).failures == ()  # N=2 itself is well


def test_an_engine_that_cannot_says_why(stage, tmp_path):
    """A recording knows no batch sizes between its loads: what is missed is told, not tried."""
    document = {
        "schema": "spectune.recording/1",
        "model": "acme/small",
        "workload": "by hand",
        "baseline": [
            {"concurrency": load, "output_tokens_per_second": 50.0 * load} for load in (2, 32)
        ],
        "points": [
            {
                "method": "mtp",
                "num_speculative_tokens": n,
                "concurrency": load,
                "output_tokens_per_second": 50.0 * load * gains[load > 8],
                "mean_acceptance_length": {2: 2.5, 6: 4.0}[n],
            }
            for n, gains in GAINS.items()
            for load in (2, 32)
        ],
    }
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(document))
    engine = Watched(replay(path))
    result = stage.tune(engine)
    trial = result.schedule_trial
    assert (trial.outcome, trial.loads, trial.tiers) == ("not_tried", (), TIERS)
    assert trial.reason == "engine replay cannot let N follow the batch size"
    assert result.schedule is None
    assert not any(arm.schedule for arm in engine.starts)
    assert {block.split(":")[2] for _, _, block in engine.windows} == {"c2", "c32"}
    assert any(trial.reason in said and "was not tried" in said for said in result.warnings)


def test_a_model_that_repeats_itself_is_not_the_schedules_fault(stage):
    """Its own answers are broken everywhere; beside the thresholds the baseline never ran."""
    exact = scripted()

    def react(arm, n, block, window):
        measured = exact.react(arm, n, block, window)
        return measured.model_copy(update={"flags": ("degenerate_output",)})

    result = stage.tune(Scripted(exact.rates, react), plan=two_loads())
    assert load_study(stage.url).failures == ()
    assert result.schedule == list(TIERS)
    assert [at.concurrency for at in result.schedule_trial.loads] == [2, 8, 9, 32]


def test_text_broken_beside_a_threshold_alone_still_counts(stage):
    exact = scripted()

    def react(arm, n, block, window):
        broken = ("degenerate_output",) if block.concurrency == 9 and arm.schedule else ()
        return exact.react(arm, n, block, window).model_copy(update={"flags": broken})

    trial = stage.tune(Scripted(exact.rates, react), plan=two_loads()).schedule_trial
    assert trial.outcome == "failed" and "repeat one phrase" in trial.reason


def test_tiers_that_change_while_confirming_are_no_lack_of_time(stage):
    """At 48 requests N=4 is wanted; it does not start alone, and then N=2 is, from another size."""
    gains = {0: (1.0, 1.0), 2: (1.5, 1.9), 4: (1.6, 2.0), 7: (2.5, 1.4)}  # at 4 and 48 requests

    def react(arm, n, block, window):
        part = math.log(block.concurrency / 4) / math.log(48 / 4)
        low, high = gains[n]
        rate = 50.0 * block.concurrency * low ** (1 - part) * high**part
        return window.model_copy(update={"output_tokens_per_second": rate})

    def start(arm):
        if arm.key == "mtp:4:static:1":
            raise EngineStartError("no memory")

    rates = {("none" if n == 0 else "mtp", n): 1.0 for n in gains}
    engine = Watched(Scripted(rates, react, start))
    plan = plan_of((4, 48), settings={"greedy_prompts": 0}, mtp=[2, 4, 7])
    trial = stage.tune(engine, plan=plan).schedule_trial
    assert "mtp:4:static:1" in [arm.key for arm in engine.starts]
    assert [n for _, _, n in trial.tiers] == [7, 2]
    assert trial.outcome == "not_tried"
    assert "time" not in trial.reason
    last = trial.tiers[0][1]
    assert f"N=7 was not measured beside the new thresholds, at {last}, {last + 1}" in trial.reason


def test_a_budget_without_room_for_it_is_a_lack_of_time(stage):
    """A start of 100 s and 24 windows of 10 s (4 blocks, 2 loads, twice 2 beside): 340 s."""
    engine = Watched(scripted())
    result = stage.tune(engine, plan=two_loads(budget_seconds=335.0))
    trial = result.schedule_trial
    assert (trial.outcome, trial.reason) == ("not_tried", "there was no time left")
    assert not any(arm.schedule for arm in engine.starts)
    assert stage.tune(scripted(), plan=two_loads(budget_seconds=600.0), fresh=True).schedule


def test_without_live_n_no_start_is_spent_on_it(stage):
    """One start per N has answered everything; beside the thresholds would be another."""
    engine = Watched(scripted())
    result = stage.tune(engine, plan=two_loads(live_n=False))
    keys = sorted(arm.key for arm in engine.starts)
    assert keys == ["mtp:2:static:0", "mtp:6:static:0", "none:0:static:0"]
    assert result.num_speculative_tokens == 2
    assert result.schedule_trial.outcome == "not_tried"
    assert "live N is off" in result.schedule_trial.reason


def test_without_live_n_a_fresh_confirmation_has_its_thresholds(stage):
    engine = Watched(scripted())
    result = stage.tune(engine, plan=two_loads(live_n=False, confirm_fresh=True))
    assert result.schedule == list(TIERS)
    keys = [arm.key for arm in engine.starts]
    assert len(set(keys)) == len(keys)


def test_data_parallelism_and_fixed_lengths_speak_against_it(stage):
    """What forbids switching N on a running engine forbids a schedule too."""
    dropped = "vLLM drops the schedule under data parallelism"

    class Cannot(Scripted):
        def why_not_live(self, target, space):
            return dropped

    plan = two_loads()
    (space,) = plan.spaces
    fixed = space.model_copy(update={"live_n": False})
    with open_study(stage.url, plan) as study:
        lab = Lab(plan, Cannot(scripted().rates), study, stage.said.append)
        assert lab.why_no_schedule(space) == dropped
        able = Lab(plan, scripted(), study, stage.said.append)
        assert able.why_no_schedule(space) is None
        assert "cannot change while the engine runs" in able.why_no_schedule(fixed)


def test_a_schedule_that_misses_the_limits_of_the_static_n_loses(stage):
    """As fast as predicted, but with the schedule one request in four takes 40 ms a token."""
    exact = scripted()

    def react(arm, n, block, window):
        slow = 1 if arm.schedule and block.concurrency == 32 else 0
        seconds = [0.040] * slow + [0.010] * (4 - slow)
        requests = [
            RequestResult(prompt_id="p", completion_tokens=101, ttft_seconds=0.1,
                          end_to_end_seconds=0.1 + 100 * each)
            for each in seconds
        ]  # fmt: skip
        measured = exact.react(arm, n, block, window)
        return measured.model_copy(update={"requests": tuple(requests)})

    plan = two_loads(limits=Limits(tpot_seconds=0.025))
    result = stage.tune(Scripted(exact.rates, react), plan=plan)
    trial = result.schedule_trial
    assert trial.versus_static.value == pytest.approx(math.sqrt(2 / 1.5))
    assert trial.outcome == "lost" and "latency limits at concurrency 32" in trial.reason
    (at,) = (at for at in trial.loads if at.concurrency == 32)
    assert (at.share_within_limits, at.meets_limits) == (0.75, False)
    assert (result.schedule, result.num_speculative_tokens) == (None, 2)


def test_the_last_tier_ends_at_max_num_seqs(stage):
    plan = two_loads()
    target = Target(model="acme/small", engine_args=("--max-num-seqs", "40"))
    result = stage.tune(scripted(), plan=plan.model_copy(update={"target": target}))
    assert result.schedule == [(1, 8, 6), (9, 40, 2)]


def test_a_won_schedule_is_what_is_served(stage):
    plan = two_loads()
    (space,) = plan.spaces
    named = space.model_copy(update={"config": {"method": "mtp"}})
    result = stage.tune(scripted(), plan=plan.model_copy(update={"spaces": (named,)}))
    assert result.speculative_config == {
        "method": "mtp",
        "num_speculative_tokens": 6,
        "num_speculative_tokens_per_batch_size": [[1, 8, 6], [9, 1024, 2]],
    }
    flag, text = result.vllm_serve_args
    assert flag == "--speculative-config" and json.loads(text) == result.speculative_config
