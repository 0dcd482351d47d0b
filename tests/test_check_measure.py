"""The measuring half of a check: alternating starts, looks, budgets, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
from check_samples import recommendation, write
from tuner_samples import PUBLISHED, Scripted, Watched, simulate

from autotune.check import Rules, judged
from autotune.check.bench import Configuration
from autotune.check.measure import Effort, check_engine, looks
from autotune.check.plan import CheckRequest, check_plan
from autotune.check.recommendation import recommended_side
from autotune.check.verdicts import parse_margins
from autotune.cli import invoke
from autotune.engines import EngineOptions, load_engine
from autotune.errors import ConfigurationError, EngineStartError
from autotune.plan import Request
from autotune.records import (
    BASELINE,
    Environment,
    MethodSpace,
    Plan,
    Recommendation,
    RequestResult,
    Settings,
    Target,
    Workload,
)

RECORDED = sorted(PUBLISHED.glob("*.json"))[0]
RULES = Rules(parse_margins([]))
SPACE = MethodSpace(method="dflash", lengths=(3,))


def plan(prompts=None, **settings):
    from tuner_samples import PROMPTS

    return Plan(
        engine="by hand",
        target=Target(model="acme/big"),
        workload=Workload(name="math", prompts=PROMPTS),
        spaces=(SPACE,),
        concurrencies=(8,),
        settings=Settings(**{"greedy_prompts": 0, **settings}),
        environment=Environment(gpu="AMD Instinct MI300X", runtime="ROCm 7.2.0", vllm="0.32.0"),
    )


def reference(speedup=2.0, half=0.01):
    document = recommendation(speedup, half)
    document["workload"] = {"name": "math"}  # no hash: the prompts are made up here
    document["candidates"][0].pop("acceptance_length_interval")
    document["candidates"][0]["acceptance_length"] = None
    document["candidates"][0]["per_position_acceptance_rates"] = None
    return recommended_side(document, "reference.json")


def measure(engine, effort, side=None, rules=RULES, **settings):
    said = []
    report = check_engine(
        side or reference(),
        plan(**settings),
        Configuration(SPACE, 3),
        engine,
        rules,
        effort,
        said.append,
    )
    return report, said


def rates(ours, base=1000.0):
    return {(BASELINE, 0): base, ("dflash", 3): ours}


def test_starts_alternate_and_each_goes_on_into_the_next_cycle():
    """ABBA ABBA are five starts; every block is measured on both sides, in mirrored order."""
    engine = Watched(Scripted(rates(2000.0)))
    measure(engine, Effort(blocks=2, cycles=2, all_cycles=True))
    assert [arm.method for arm in engine.starts] == [BASELINE, "dflash"] * 2 + [BASELINE]
    blocks = [block.split(":")[1] for _, n, block in engine.windows if n == 0]
    assert blocks == ["0", "1", "3", "2", "4", "5", "7", "6"]
    assert [block.split(":")[1] for _, n, block in engine.windows if n == 3] == [
        "0", "1", "3", "2", "4", "5", "7", "6",
    ]  # fmt: skip


def test_it_stops_at_the_first_look_that_is_sure():
    report, said = measure(Scripted(rates(2000.0)), Effort(blocks=8, cycles=8))
    assert (report.outcome, report.repeats) == ("no regression", 16)
    assert [line for line in said if "look" in line] == [
        "look after 1 cycle: speedup no difference"
    ]


def test_a_golden_value_is_looked_at_once_with_all_of_the_level(monkeypatch):
    """Looks that cannot end anything would only take their share of the errors."""
    levels = []
    monkeypatch.setattr(
        "autotune.check.measure.judged",
        lambda *args, alpha, beta: levels.append((alpha, beta)) or judged(*args, alpha, beta),
    )
    report, said = measure(Scripted(rates(2000.0)), Effort(blocks=2, cycles=4, all_cycles=True))
    assert (report.exit_code, report.repeats) == (0, 4 * 4)
    assert levels == [(0.01, 0.02)]
    assert [line for line in said if "look after" in line] == [
        "look after 4 cycles: speedup no difference"
    ]


def test_a_figure_that_is_never_counted_is_not_waited_for():
    """The reference knows an acceptance length, the engine tells of none, in any cycle."""
    document = recommendation()
    document["workload"] = {"name": "math"}
    side = recommended_side(document, "reference.json")

    def react(arm, n, block, window):
        return window.model_copy(update={"acceptance_length": None})

    report, _ = measure(Scripted(rates(2000.0), react), Effort(blocks=8, cycles=8), side)
    assert (report.outcome, report.repeats) == ("inconclusive", 16)
    assert "acceptance length at concurrency 8" in report.summary


def test_a_tenth_slower_is_found_at_once():
    report, _ = measure(Scripted(rates(1800.0)), Effort())
    assert (report.outcome, report.exit_code, report.repeats) == ("regression", 1, 16)
    assert report.verdicts[0].change == pytest.approx(-0.1)


def drifting(per_window):
    """A machine that becomes slower with every window, whatever runs on it."""
    seen = []

    def react(arm, n, block, window):
        seen.append(block)
        factor = math.exp(-per_window * len(seen))
        return window.model_copy(
            update={"output_tokens_per_second": window.output_tokens_per_second * factor}
        )

    return react


def test_a_linear_drift_cancels_exactly():
    """1 % slower with every window: 27 % within the 32 windows of a cycle."""
    engine = Scripted(rates(2000.0), drifting(0.01))
    report, _ = measure(engine, Effort(blocks=8, cycles=1))
    assert report.verdicts[0].measured == pytest.approx(2.0, rel=1e-9)


def test_too_wide_a_reference_is_said_to_be_the_reason():
    """Known to 20 %: nothing that is measured now can tell 5 %."""
    report, said = measure(Scripted(rates(2000.0)), Effort(), reference(half=0.2))
    assert (report.outcome, report.exit_code) == ("inconclusive", 4)
    assert report.repeats == 16  # measuring on would be in vain
    assert report.repeats_needed is None
    assert "the reference's own uncertainty is what is left" in said


def at_loads(halves):
    """The reference at several loads: {concurrency: half width}."""
    sides = {load: reference(half=half) for load, half in halves.items()}
    rows = [r.model_copy(update={"concurrency": load}) for load, s in sides.items() for r in s.rows]
    return sides[min(sides)].model_copy(update={"rows": tuple(rows)})


def test_repeats_are_asked_for_the_loads_that_are_open():
    """At 32 the reference is known to 20 %, and slower by so much that a loss is certain to be
    ruled out there: what is open is the noise at 8."""
    side = at_loads({8: 0.01, 32: 0.2})

    def react(arm, n, block, window):
        if block.concurrency == 8:
            return noisy(arm, n, block, window)
        faster = 2.0 if n else 1.0
        rate = window.output_tokens_per_second * faster
        return window.model_copy(update={"output_tokens_per_second": rate})

    asked = plan().model_copy(update={"concurrencies": (8, 32)})
    report = check_engine(
        side, asked, Configuration(SPACE, 3), Scripted(rates(2000.0), react), RULES,
        Effort(blocks=8, cycles=1), lambda text: None,
    )  # fmt: skip
    open_loads = [v.concurrency for v in report.verdicts if v.gates and not v.ruled_out]
    assert (report.outcome, open_loads) == ("inconclusive", [8])
    assert report.repeats_needed > 10 * report.repeats


def test_a_reference_that_was_a_regression_stays_one_when_it_is_measured_again():
    fault = "it is the measurement of a check that found a regression"
    side = reference().model_copy(update={"faults": (fault,)})
    report, _ = measure(Scripted(rates(2000.0)), Effort())
    assert report.exit_code == 0
    report, _ = measure(Scripted(rates(2000.0)), Effort(), side)
    assert (report.outcome, report.exit_code) == ("inconclusive", 4)
    assert fault in report.summary


def noisy(arm, n, block, window):
    """15 % up and down by block, the other way round for the two sides."""
    sign = (-1) ** (block.index // 2) * (1 if n else -1)
    rate = window.output_tokens_per_second * math.exp(0.15 * sign)
    return window.model_copy(update={"output_tokens_per_second": rate})


def test_a_noisy_machine_is_told_how_many_repeats_would_do():
    report, _ = measure(Scripted(rates(2000.0), noisy), Effort(blocks=8, cycles=1))
    assert report.outcome == "inconclusive"
    assert report.repeats_needed > 10 * report.repeats


def test_the_budget_ends_it(monkeypatch):
    """A minute passes whenever somebody looks at the clock: one cycle takes more than 5."""
    clock = iter(range(0, 10**6, 60))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    report, said = measure(
        Scripted(rates(2000.0), noisy), Effort(blocks=8, cycles=8, budget_seconds=600)
    )
    assert "the budget is spent" in said
    assert (report.outcome, report.repeats) == ("inconclusive", 16)


def test_rivals_are_not_taken_for_cycles_that_are_still_to_come(monkeypatch):
    """A second a block of each start: a cycle is 32 s, and with two rivals before it 4 fit into
    200 s (64 + 4 * 32 = 192). Taking 96 s for a cycle would end it after the first."""
    seconds = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: seconds[0])

    def react(arm, n, block, window):
        seconds[0] += 1.0
        return noisy(arm, n, block, window)

    side = reference()
    others = [
        side.rows[1].model_copy(update={"num_speculative_tokens": n, "chosen": False})
        for n in (5, 7)
    ]
    side = side.model_copy(update={"rows": (*side.rows, *others)})
    every = {**rates(2000.0), ("dflash", 5): 1900.0, ("dflash", 7): 1800.0}
    effort = Effort(blocks=8, cycles=8, budget_seconds=200, rivals=2)
    report, said = measure(Scripted(every, react), effort, side)
    assert "the budget is spent" in said
    assert report.repeats == 4 * 16


def test_an_engine_that_does_not_start_is_no_verdict():
    def start(arm):
        if arm.method != BASELINE:
            raise EngineStartError("no memory")

    with pytest.raises(EngineStartError):
        measure(Scripted(rates(2000.0), start=start), Effort())


def test_another_machine_is_refused_before_anything_starts():
    side = reference().model_copy(update={"environment": {"gpu": "AMD Instinct MI355X"}})
    engine = Watched(Scripted(rates(2000.0)))
    report, _ = measure(engine, Effort(), side)
    assert (report.outcome, report.exit_code, engine.starts) == ("not comparable", 4, [])


@pytest.mark.parametrize(
    ("changed", "word"), [(0, "no difference"), (1, "no difference"), (4, "regression")]
)
def test_greedy_answers_are_compared_at_batch_one(changed, word):
    """One of four may be two logits that were equal; four of four is not chance (.05^4)."""
    from tuner_samples import PROMPTS

    four = tuple(PROMPTS[0].model_copy(update={"id": f"p{i}"}) for i in range(8))

    def react(arm, n, block, window):
        texts = [
            RequestResult(prompt_id=p.id, text="other" if n and i < changed else "the same answer")
            for i, p in enumerate(block.prompts)
        ]
        return window.model_copy(update={"requests": tuple(texts)})

    asked = plan(greedy_prompts=4)
    asked = asked.model_copy(update={"workload": Workload(name="math", prompts=four)})
    report = check_engine(
        reference(),
        asked,
        Configuration(SPACE, 3),
        Scripted(rates(2000.0), react, outputs=True),
        RULES,
        Effort(),
        lambda text: None,
    )
    greedy = next(v for v in report.verdicts if v.metric == "greedy")
    assert (greedy.word, greedy.measured) == (word, 1 - changed / 4)


def test_another_n_that_now_wins_is_found_where_it_is_measured():
    """N=5 was behind (1.9x against 2.0x) and is now 2.4x: told from 2.0x by one cycle."""
    side = reference()
    known = side.rows[1]
    rival = known.model_copy(
        update={
            "num_speculative_tokens": 5,
            "chosen": False,
            "speedup": known.speedup.model_copy(update={"value": 1.9}),
        }
    )
    side = side.model_copy(update={"rows": (*side.rows, rival)})
    engine = Watched(Scripted({**rates(2000.0), ("dflash", 5): 2400.0}))
    report, _ = measure(engine, Effort(blocks=8, cycles=1, rivals=3), side)
    found = {v.metric: v for v in report.verdicts}
    assert (found["speedup"].word, found["recommendation"].word) == ("no difference", "regression")
    assert found["recommendation"].note == "dflash N=5 is 20.0% faster now"
    assert [arm.num_speculative_tokens for arm in engine.starts] == [0, 5, 0, 0, 3, 0]
    assert len({arm.key for arm in engine.starts}) == 6


@pytest.mark.parametrize(("cycles", "expected"), [(1, (1,)), (3, (1, 2, 3)), (8, (1, 2, 4, 8))])
def test_looks_double(cycles, expected):
    assert looks(cycles) == expected


# ----------------------------------------------------------------- through the command line


@pytest.fixture
def tuned(stage, tmp_path):
    """A recommendation of the simulator with little noise, as a file."""
    request = Request(methods="eagle3", num_speculative_tokens="3")
    found = stage.tune(simulate("dense-chat", noise=0.003), request)
    document = found.model_dump(mode="json", by_alias=True)
    assert Recommendation.model_fields.keys() <= {"schema_", *document}
    return write(tmp_path, "tuned", document)


def run(capsys, *arguments):
    code = invoke(["check", *arguments, "--engine", "simulate", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_measure_keep_and_check_again(tuned, tmp_path, capsys):
    """What a check measures is the next check's reference."""
    golden = str(tmp_path / "golden.json")
    code, document = run(
        capsys, tuned, "--seed", "1", "--replay-noise", "0.003", "--all-cycles",
        "--cycles", "2", "-o", golden, "--allow", "workload_sha256",
    )  # fmt: skip
    assert (code, document["repeats"]) == (0, 32)
    assert document == json.loads((tmp_path / "golden.json").read_text())
    code, document = run(capsys, golden, "--seed", "2", "--replay-noise", "0.003")
    assert (code, document["reference"]["kind"]) == (0, "check")
    assert document["cost"]["engine_starts"] == 3


def test_a_worse_drafter_is_a_regression_in_speed_and_acceptance(tuned, tmp_path, capsys):
    from autotune.engines.scenario import load_scenario

    scenario = load_scenario("dense-chat").model_dump(mode="json", by_alias=True)
    for method in scenario["methods"]:
        if method["method"] == "eagle3":
            own = method["acceptance"]
            own["rates"] = [rate * 0.85 for rate in own["rates"]]
    file = write(tmp_path, "worse", scenario)
    code, document = run(capsys, tuned, "--simulation", file, "--replay-noise", "0.003")
    assert code == 1
    found = {v["metric"]: v["word"] for v in document["verdicts"]}
    assert found["acceptance_length"] == found["speedup"] == "regression"


def test_a_recommendation_not_to_speculate_cannot_be_measured(tmp_path, capsys):
    document = recommendation(
        decision="do_not_speculate",
        method="none",
        num_speculative_tokens=0,
        speculative_config=None,
    )
    file = write(tmp_path, "none", document)
    assert invoke(["check", file, "--engine", "simulate"]) == 2
    assert "recommends no speculation" in capsys.readouterr().err


def test_an_interrupted_check_says_that_nothing_is_kept(tuned, monkeypatch, capsys):
    def interrupted(*what):
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.engines.simulate.SimulatedSession.run", interrupted)
    assert invoke(["check", tuned, "--engine", "simulate"]) == 130
    assert "keeps nothing" in capsys.readouterr().err


def test_a_load_without_figures_cannot_be_checked(tuned, capsys):
    assert invoke(["check", tuned, "--engine", "simulate", "--max-concurrency", "64"]) == 2
    assert "there: 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "unread"),
    [
        (("--engine", "simulate", "--temperature", "0.5"), "--temperature"),
        (("--engine", "simulate", "--model", "other"), "--model"),
        (("--engine", "replay", "--recording", str(RECORDED), "--max-tokens", "9"), "--max-tokens"),
    ],
)
def test_what_an_engine_would_not_read_is_refused(tuned, capsys, options, unread):
    """Otherwise the user believes to have measured at another temperature."""
    assert invoke(["check", tuned, *options]) == 2
    assert f"does not read {unread}" in capsys.readouterr().err


def test_an_engine_that_fails_says_where_its_logs_are(tuned, tmp_path, monkeypatch, capsys):
    from autotune.engines.simulate import SimulateEngine

    def fail(*_):
        raise EngineStartError("no memory")

    monkeypatch.setattr(SimulateEngine, "open", fail)
    monkeypatch.setattr(SimulateEngine, "log_dir", tmp_path, raising=False)
    assert invoke(["check", tuned, "--engine", "simulate", "--allow", "all"]) == 3
    assert f"hint: engine logs are in {tmp_path}" in capsys.readouterr().err


def test_replay_measures_what_was_recorded(tmp_path, capsys):
    from check_samples import recording

    file = write(tmp_path, "recording", recording())
    slower = write(tmp_path, "slower", recording(0.85))
    for played, code in ((file, 0), (slower, 1)):
        arguments = ["check", file, "--engine", "replay", "--recording", played, "--json"]
        assert invoke(arguments) == code, played
        assert json.loads(capsys.readouterr().out)["exit_code"] == code


def test_a_real_engine_needs_a_load(tmp_path):
    """A document that does not say it must not be measured at 1, which it may never have seen."""
    side = recommended_side(recommendation(loads=(None,)), "reference.json")
    engine = load_engine("vllm", EngineOptions(log_dir=str(tmp_path)))
    with pytest.raises(ConfigurationError, match="does not say at which load"):
        check_plan(side, engine, CheckRequest())


def test_a_real_engine_is_given_what_the_document_says(tmp_path):
    """Nothing is started: the plan that a check of a real engine would follow."""
    document = recommendation(engine="vllm", engine_args=["--max-num-seqs", "8"])
    document["workload"] = {"name": "math", "num_prompts": 16, "temperature": 0.0, "max_tokens": 40}
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    document["model"] = str(model)
    side = recommended_side(document, "reference.json")
    engine = load_engine("vllm", EngineOptions(log_dir=str(tmp_path)))
    made, configuration = check_plan(side, engine, CheckRequest())
    assert made.target.engine_args == ("--max-num-seqs", "8")
    assert (len(made.workload.prompts), made.workload.sampling.max_tokens) == (16, 40)
    arm = configuration.arm(7)
    assert arm.speculative_config == document["speculative_config"]
    assert (arm.num_speculative_tokens, arm.live) == (3, False)
    tiers = [[1, 4, 3], [5, 64, 2]]
    config = {**document["speculative_config"], "num_speculative_tokens_per_batch_size": tiers}
    side = side.model_copy(update={"speculative_config": config})
    _, configuration = check_plan(side, engine, CheckRequest())
    assert configuration.arm(7).speculative_config == config
