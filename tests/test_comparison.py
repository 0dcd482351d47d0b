"""`run --sampler tpe|gp|random|grid`: the same study, the next candidate chosen by Optuna."""

from __future__ import annotations

import contextlib
import typing
from collections import Counter

import optuna
import pytest
from tuner_samples import PUBLISHED, Scripted, Watched, plan_of, replay, simulate

from autotune import comparison
from autotune.cli.run import command
from autotune.dryrun import preview
from autotune.errors import ConfigurationError, EngineDiedError, UnusableMeasurementError
from autotune.plan import Request, make_plan
from autotune.records import BlockRole, SamplerName, Status
from autotune.store import open_study

PANEL = PUBLISHED / "s01-gemma-4-26b-a4b-it-gsm8k.json"
METHODS, CANDIDATES = 3, 14
pytestmark = pytest.mark.slow  # whole studies; gp imports torch and fits a model at every trial

OPTUNAS = ("tpe", "gp", "random", "grid")
CHANCE = ("tpe", "gp", "random")  # these may propose a candidate again
RATES = {("none", 0): 100.0, **{("mtp", n): 100.0 + 10 * n for n in range(1, 7)},
         ("ngram", 2): 110.0, ("ngram", 3): 90.0}  # fmt: skip


def tried(result):
    """Candidates that were run."""
    kinds = (Status.CONFIRMED, Status.PROBED, Status.FAILED)
    rows = [c for c in result.candidates if c.status in kinds]
    return {(c.method, c.num_speculative_tokens) for c in rows}


def trials_of(stage, plan):
    """(candidate, value) of every trial, None for the value of a failed one."""
    with open_study(stage.url, plan) as study:
        return [
            (comparison.candidate_of(trial.params, plan.spaces), trial.value)
            for trial in study.optuna_study().trials
        ]


def scripted_plan(sampler, **setting):
    given = {"greedy_prompts": 0, "search_blocks": 1, "sampler": sampler, **setting}
    return plan_of(settings=given, mtp=range(1, 7), ngram=[2, 3])


# ------------------------------------------------------------------------------ how they end


@pytest.mark.parametrize("sampler", OPTUNAS)
def test_it_ends_with_a_confirmed_answer(stage, sampler):
    engine = Watched(replay(PANEL))
    request = Request(sampler=sampler)
    result = stage.tune(engine, request)
    trials = trials_of(stage, make_plan(request, engine))
    assert len(trials) <= CANDIDATES
    assert result.decision == "speculate"
    assert any(c.status == Status.CONFIRMED for c in result.candidates)
    assert result.cost.engine_starts == len(engine.starts)
    assert result.exhausted == (len(tried(result)) == CANDIDATES)
    if sampler != "grid":
        left = CANDIDATES - len(tried(result))
        reason = (
            f"--sampler {sampler} had its {CANDIDATES} trials, one per candidate; "
            f"{left} candidates were not measured"
        )
        assert result.stopped_because == reason


def test_the_grid_measures_everything_method_by_method(stage):
    engine = Watched(replay(PANEL))
    result = stage.tune(engine, Request(sampler="grid"))
    assert len(tried(result)) == CANDIDATES
    assert result.stopped_because == "every candidate was measured"
    assert result.exhausted
    assert len(engine.starts) == METHODS + 2  # live N: the baseline and a confirmation beside them


def test_more_starts_than_our_search_may_have(stage):
    """Going to and fro between methods costs a start each time: allowed here, and counted."""
    engine = Watched(replay(PANEL))
    result = stage.tune(engine, Request(sampler="random"))
    assert result.cost.engine_starts > METHODS + 2


def test_values_are_the_measured_speedups(stage):
    request = Request(sampler="random")
    engine = replay(PANEL)
    result = stage.tune(engine, request)
    plan = make_plan(request, engine)
    base = result.baseline[0].output_tokens_per_second
    with open_study(stage.url, plan) as study:
        rates = {(w.n, w.window.method): w.window.output_tokens_per_second for w in study.windows()}
    for (method, n), value in trials_of(stage, plan):
        assert value == pytest.approx(rates[n, method] / base)


@pytest.mark.parametrize("sampler", ["spectune", *OPTUNAS])
@pytest.mark.parametrize("allowed", [1, 4])
def test_max_candidates_is_an_upper_bound(stage, sampler, allowed):
    result = stage.tune(replay(PANEL), Request(sampler=sampler, max_candidates=allowed))
    assert len(tried(result)) == allowed
    assert result.stopped_because.startswith(
        "the candidates allowed by --max-candidates were spent; "
    )
    assert not result.exhausted


def test_our_search_may_need_fewer(stage):
    unlimited = stage.tune(replay(PANEL))
    limited = stage.tune(replay(PANEL), Request(max_candidates=CANDIDATES), fresh=True)
    assert tried(limited) == tried(unlimited)
    assert limited.stopped_because == unlimited.stopped_because
    assert limited.exhausted


def test_more_candidates_go_on_with_the_same_study(stage):
    few = stage.tune(replay(PANEL), Request(sampler="grid", max_candidates=3))
    same = stage.tune(replay(PANEL), Request(sampler="grid", max_candidates=2))
    assert same == few
    engine = Watched(replay(PANEL))
    more = stage.tune(engine, Request(sampler="grid", max_candidates=5))
    assert more.study == few.study
    assert len(tried(more)) == 5
    assert tried(few) < tried(more)
    searched = [block for arm, _, block in engine.windows if block.startswith("search")]
    assert len(searched) == 2
    assert stage.tune(replay(PANEL), Request(sampler="grid")).exhausted


@pytest.mark.parametrize(
    "error, run",
    [(UnusableMeasurementError("garbage"), [1, 2]), (EngineDiedError("gone"), [1])],
)
def test_what_was_given_up_unseen_is_not_counted_against_the_limit(stage, error, run):
    def react(arm, n, block, window):
        if arm.method == "mtp":
            raise error

    def limited(allowed):
        return scripted_plan("grid", max_candidates=allowed)

    few = stage.tune(Scripted(RATES, react), plan=limited(len(run) + 1))
    assert few.stopped_because.startswith("the candidates allowed by --max-candidates were spent")
    mtp = [c for c in few.candidates if c.method == "mtp"]
    assert {c.status for c in mtp} == {Status.FAILED}
    seen = [c for c in mtp if not c.error.startswith("not tried")]
    assert [c.num_speculative_tokens for c in seen] == run
    engine = Watched(Scripted(RATES, react))
    more = stage.tune(engine, plan=limited(len(run) + 2))
    assert Status.PREDICTED not in {c.status for c in more.candidates}  # both N of n-gram measured
    assert all(arm.method != "mtp" for arm in engine.starts)


def test_the_sampler_belongs_to_the_study():
    plans = [scripted_plan(name) for name in ("spectune", "tpe")]
    assert plans[0].sha256 != plans[1].sha256
    assert plans[1].sha256 == scripted_plan("tpe", max_candidates=3).sha256
    assert plans[1].sha256 == scripted_plan("tpe", budget_seconds=3.0).sha256


@pytest.mark.parametrize("sampler", OPTUNAS)
def test_a_budget_ends_it(stage, sampler):
    plan = scripted_plan(sampler, budget_seconds=1e-6)
    result = stage.tune(Scripted(RATES), plan=plan)
    assert result.stopped_because == "the budget was spent"
    assert tried(result) == set()
    assert not result.exhausted


# ------------------------------------------------------------------- a candidate proposed again


@pytest.mark.parametrize("sampler", CHANCE)
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_candidate_proposed_again_gets_its_next_block_as_long_as_there_is_one(
    stage, sampler, blocks
):
    """Throughput falls by 10 % in block 1, so the pooled value shows what was measured."""

    def react(arm, n, block, window):
        if arm.method != "none" and block.role == BlockRole.SEARCH and block.index == 1:
            slower = 0.9 * window.output_tokens_per_second
            return window.model_copy(update={"output_tokens_per_second": slower})
        return None

    engine = Watched(Scripted(RATES, react))
    plan = scripted_plan(sampler, search_blocks=blocks)
    stage.tune(engine, plan=plan)
    trials = trials_of(stage, plan)
    times = Counter(key for key, _ in trials)
    assert max(times.values()) > 1  # otherwise this test says nothing
    measured = Counter(
        (arm.split(":")[0], n)
        for arm, n, block in engine.windows
        if block.startswith("search") and n and arm.endswith(":0")
    )
    assert measured == {key: min(count, blocks) for key, count in times.items()}
    seen = Counter()
    for key, value in trials:
        seen[key] += 1
        fallen = 0.9**0.5 if blocks == 2 and seen[key] > 1 else 1.0
        assert value == pytest.approx(RATES[key] / 100.0 * fallen)


@pytest.mark.parametrize("sampler", OPTUNAS)
def test_what_failed_is_not_run_again(stage, sampler):
    def react(arm, n, block, window):
        if (arm.method, n) == ("mtp", 3):
            raise UnusableMeasurementError("garbage")

    runs = Watched(Scripted(RATES, react))
    result = stage.tune(runs, plan=scripted_plan(sampler))
    attempts = [key for key, value in trials_of(stage, scripted_plan(sampler)) if value is None]
    assert set(attempts) <= {("mtp", 3)}
    if sampler == "grid":
        assert attempts == [("mtp", 3)]
        assert result.stopped_because == "every candidate was measured or has failed"
        assert result.exhausted


@pytest.mark.parametrize("sampler", OPTUNAS)
def test_a_method_that_cannot_run_ends_nothing(stage, sampler):
    def react(arm, n, block, window):
        if arm.method == "mtp":
            raise EngineDiedError("gone")

    result = stage.tune(Scripted(RATES, react), plan=scripted_plan(sampler))
    assert {c.status for c in result.candidates if c.method == "mtp"} <= {
        Status.FAILED, Status.PREDICTED}  # fmt: skip
    trials = trials_of(stage, scripted_plan(sampler))
    assert len(trials) <= 8
    if sampler == "grid":
        assert (result.method, result.num_speculative_tokens) == ("ngram", 2)


# ------------------------------------------------------------------------- interrupted, resumed


def stop_after(k):
    left = [k]

    def before(what):
        if what == "window":
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

    return before


@pytest.mark.parametrize("sampler", OPTUNAS)
def test_an_interrupted_comparison_goes_on_where_it_was(stage, sampler):
    """Three runs of a few windows each: the same trials as in one run, no window twice."""
    plan = scripted_plan(sampler, search_blocks=2)
    expected = stage.tune(Scripted(RATES), plan=plan)
    whole = trials_of(stage, plan)
    measured = []
    for run, k in enumerate((8, 2, 1, 10_000)):
        engine = Watched(Scripted(RATES), stop_after(k))
        with contextlib.suppress(KeyboardInterrupt):
            result = stage.tune(engine, plan=plan, fresh=run == 0)
        measured += engine.windows
    assert len(measured) == len(set(measured))
    assert trials_of(stage, plan) == whole
    assert (result.method, result.num_speculative_tokens) == (
        expected.method, expected.num_speculative_tokens)  # fmt: skip


def test_interrupted_between_measuring_and_telling(stage, monkeypatch):
    """The block that a repeated candidate got is stored already: it does not get one more."""
    plan = scripted_plan("random", search_blocks=3)
    stage.tune(Scripted(RATES), plan=plan)
    whole = trials_of(stage, plan)
    keys = [key for key, _ in whole]
    first_repeat = next(i for i, key in enumerate(keys) if key in keys[:i])
    tell, told = optuna.Study.tell, []

    def interrupted(study, *arguments, **named):
        told.append(arguments)
        if len(told) == first_repeat + 1:
            raise KeyboardInterrupt
        return tell(study, *arguments, **named)

    monkeypatch.setattr(optuna.Study, "tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage.tune(Scripted(RATES), plan=plan, fresh=True)
    rest = Watched(Scripted(RATES))
    stage.tune(rest, plan=plan)
    assert trials_of(stage, plan) == whole
    method, n = keys[first_repeat]
    again = [b for arm, k, b in rest.windows if arm.startswith(f"{method}:") and k == n]
    assert sum(block.startswith("search") for block in again) == max(0, keys.count((method, n)) - 2)


def test_a_grid_trial_lost_before_its_parameters_is_made_up_for(stage):
    plan = scripted_plan("grid")
    with open_study(stage.url, plan) as study:
        trials = study.optuna_study()
        trials.enqueue_trial({"method": "mtp", "mtp.num_speculative_tokens": 1})
        trials.ask()  # the process died here
    assert len(tried(stage.tune(Scripted(RATES), plan=plan))) == 8


def test_a_seed_makes_a_difference(stage):
    orders = []
    for seed in (0, 0, 1):
        plan = scripted_plan("random", seed=seed)
        stage.tune(Scripted(RATES), plan=plan, fresh=True)
        orders.append([key for key, _ in trials_of(stage, plan)])
    assert orders[0] == orders[1] != orders[2]


# --------------------------------------------------------------------------------- what it needs


def test_gp_without_torch_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="--sampler gp needs PyTorch") as caught:
        make_plan(Request(sampler="gp"), simulate("edge"))
    assert caught.value.exit_code == 2
    assert "pip install torch" in caught.value.hint
    make_plan(Request(sampler="tpe"), simulate("edge"))


def test_a_dry_run_counts_the_starts(stage):
    """Three methods, 14 candidates: one start a method, or up to one a trial."""
    expected = {"spectune": METHODS + 2, "grid": METHODS + 2, "tpe": CANDIDATES + 2}
    engine = replay(PANEL)
    for sampler, starts in expected.items():
        plan = make_plan(Request(sampler=sampler), engine)
        assert preview(plan, engine).engine_starts == starts


def test_the_command_line_offers_every_sampler():
    option = next(p for p in command.params if p.name == "sampler")
    assert tuple(option.type.choices) == typing.get_args(SamplerName)
    assert option.default == Request().sampler == "spectune"


def test_the_gp_has_one_space_for_all_methods(stage):
    """Rank in the method's own lengths; N is noted under the usual name."""
    lengths = {"mtp": (1, 2, 4), "ngram": (2, 3, 5)}
    rates = {(m, n): 100.0 + n for m, own in lengths.items() for n in own}
    plan = plan_of(settings={"greedy_prompts": 0, "sampler": "gp"}, **lengths)
    stage.tune(Scripted({("none", 0): 100.0, **rates}), plan=plan)
    with open_study(stage.url, plan) as study:
        trials = study.optuna_study().trials
    assert len(trials) == comparison.GP_STARTUP + 1  # the last one is the model's
    for trial in trials:
        method, rank = trial.params["method"], trial.params["length_rank"]
        own = lengths[method]
        expected = own[min(int(rank * len(own)), len(own) - 1)]
        assert trial.params[f"{method}.num_speculative_tokens"] == expected
