"""`spectune check` without an engine, through the command line: words, exit codes, outputs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from check_samples import RATES, recommendation, recording, write
from hypothesis import assume, given
from hypothesis import strategies as st
from tuner_samples import PUBLISHED, simulate

from autotune.check import Rules, check_sides
from autotune.check.comparable import parse_allowed
from autotune.check.recommendation import recommended_side
from autotune.check.verdicts import parse_margins
from autotune.cli import VERBS, invoke
from autotune.plan import Request
from autotune.store import list_studies

PANELS = sorted(PUBLISHED.glob("*.json"))


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture
def check(tmp_path, capsys):
    """check(reference, against, *options) -> (exit code, document, stderr)."""

    def run(reference, against=None, *options):
        files = [
            each if isinstance(each, str | Path) else write(tmp_path, f"d{i}", each)
            for i, each in enumerate((reference, against))
            if each is not None
        ]
        more = ["--against", str(files[1])] if len(files) > 1 else []
        code = invoke(["check", str(files[0]), *more, *options, "--json"])
        out = capsys.readouterr()
        return code, json.loads(out.out) if out.out else None, out.err

    return run


def words(document):
    return {(v["metric"], v["concurrency"]): v["word"] for v in document["verdicts"]}


def test_a_study_in_place_of_the_file_is_told_how_to_become_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke(["check", "2ca8d99d96"]) == 2
    assert "spectune export 2ca8d99d96 -o recommended.json" in capsys.readouterr().err
    assert invoke(["check", "golden.json"]) == 2
    assert "export" not in capsys.readouterr().err


# ---------------------------------------------------------------------- recommendations


def test_a_document_against_itself_shows_no_difference(check):
    code, document, _ = check(recommendation(), recommendation())
    assert (code, document["outcome"]) == (0, "no regression")
    assert set(words(document).values()) == {"no difference"}
    assert document["schema"] == "spectune.check/1"


@pytest.mark.parametrize("path", PANELS, ids=lambda path: path.stem)
def test_no_published_recording_is_worse_or_better_than_itself(check, path):
    code, document, _ = check(path, path)
    assert code == 0
    assert not {"regression", "improvement"} & set(words(document).values())


def test_a_speed_up_that_fell_by_a_tenth_is_a_regression(check):
    code, document, _ = check(recommendation(2.0), recommendation(1.8))
    assert (code, document["exit_code"]) == (1, 1)
    assert words(document)["speedup", 8] == "regression"
    verdict = document["verdicts"][0]
    assert verdict["change"] == pytest.approx(-0.1)
    # half 1 % at 95 % on either side: sd .0051 each, .0072 of the difference, times 1.96
    assert verdict["high"] - verdict["low"] == pytest.approx(2 * 1.96 * 0.0072 * 0.9, rel=0.01)


def test_the_other_way_round_it_is_an_improvement_and_passes(check):
    code, document, _ = check(recommendation(1.8), recommendation(2.0))
    assert code == 0
    assert words(document)["speedup", 8] == "improvement"
    assert "improved: speedup" in document["summary"]


def test_a_significant_loss_within_the_margin_is_none(check):
    """2 % with sd .07 %: 28 standard errors from nothing, and 41 from the margin."""
    code, document, _ = check(recommendation(2.0, half=0.001), recommendation(1.96, half=0.001))
    assert (code, words(document)["speedup", 8]) == (0, "no difference")


def test_a_large_loss_without_a_test_is_inconclusive(check):
    """10 % less, known to 15 %: 1 standard error. It says so and how to settle it."""
    code, document, _ = check(recommendation(2.0, half=0.15), recommendation(1.8, half=0.15))
    assert (code, document["outcome"]) == (4, "inconclusive")
    assert words(document)["speedup", 8] == "inconclusive"
    assert check(recommendation(2.0, half=0.15), recommendation(1.8, half=0.15), "--strict")[0] == 1


def test_margins_can_be_set_for_each_metric(check):
    pair = recommendation(2.0), recommendation(1.8)
    assert check(*pair, "--margin", "speedup=20%")[0] == 0
    assert check(recommendation(2.0), recommendation(1.94), "--margin", "speedup=3%")[0] == 1


def test_acceptance_has_a_verdict_of_its_own(check):
    """3.25 -> 3.10 is 4.6 %, each known to .0016: the speed may not show it."""
    code, document, _ = check(recommendation(), recommendation(length=3.10))
    assert (code, words(document)["acceptance_length", 8]) == (1, "regression")
    assert words(document)["speedup", 8] == "no difference"


def test_each_position_has_one_too(check):
    """Position 2 at .5 for .77, each with the assumed 2 %: 14 standard errors."""
    code, document, _ = check(recommendation(), recommendation(rates=(0.88, 0.5, 0.45)))
    assert code == 1
    assert words(document)["position_p1", 8] == "no difference"
    assert words(document)["position_p2", 8] == "regression"


def test_every_load_is_judged_and_all_of_them_together(check):
    slower = recommendation(loads=(1, 8, 32))
    for rows in ("candidates", "per_concurrency"):
        slower[rows][1]["speedup"] = recommendation(1.7)["speedup"]
    code, document, _ = check(recommendation(loads=(1, 8, 32)), slower)
    found = words(document)
    assert code == 1
    assert [found["speedup", load] for load in (1, 8, 32)] == [
        "no difference",
        "regression",
        "no difference",
    ]
    everything = next(v for v in document["verdicts"] if v["all_loads"])
    assert everything["change"] == pytest.approx((1.7 / 2) ** (1 / 3) - 1)


def test_a_load_that_was_not_measured_again_is_inconclusive(check):
    code, document, _ = check(recommendation(loads=(1, 8)), recommendation(loads=(8,)))
    assert (code, words(document)["speedup", 1]) == (4, "inconclusive")
    missing = next(v for v in document["verdicts"] if v["change"] is None)
    assert "no measurement of dflash N=3" in missing["note"]


def without(*names, baseline=True):
    """A document that does not say these of its candidate."""
    document = recommendation()
    for name in names:
        document["candidates"][0].pop(name)
    return document if baseline else {**document, "baseline": []}


@pytest.mark.parametrize(
    ("reference", "measured", "metric", "who"),
    [
        (recommendation(), without("speedup", baseline=False), "speedup", "measurement"),
        (without("speedup", baseline=False), recommendation(), "speedup", "reference"),
        (recommendation(), without("acceptance_length", "acceptance_length_interval"),
         "acceptance_length", "measurement"),
    ],
)  # fmt: skip
def test_what_decides_and_is_not_known_does_not_pass(check, reference, measured, metric, who):
    """A result without a speed-up, whatever else it says, rules out no loss of it."""
    code, document, _ = check(reference, measured)
    assert (code, words(document)[metric, 8]) == (4, "inconclusive")
    assert f"not ruled out for {metric.replace('_', ' ')} at concurrency 8" in document["summary"]
    found = next(v for v in document["verdicts"] if v["metric"] == metric)
    assert found["note"] == f"the {who} holds no such figure"


def test_acceptance_that_the_reference_never_knew_is_not_asked_for(check):
    code, document, _ = check(without("acceptance_length", "acceptance_length_interval"),
                              recommendation())  # fmt: skip
    assert (code, ("acceptance_length", 8) in words(document)) == (0, False)


def test_the_recommendation_itself_when_another_n_now_wins(check):
    now = recommendation()
    rival = {**now["candidates"][0], "num_speculative_tokens": 5}
    rival["speedup"] = recommendation(2.3)["speedup"]
    now["candidates"].append(rival)
    code, document, _ = check(recommendation(), now)
    assert (code, words(document)["recommendation", 8]) == (1, "regression")
    assert "dflash N=5 is 15.0% faster now" in document["verdicts"][-1]["note"]


def test_absolute_throughput_has_a_wide_margin_and_ratios_are_tight(check):
    """A published false alarm: 409.6 -> 367.8 tok/s (-10.2 %), the ratio 1.30 -> 1.29."""
    was = recommendation(1.30, throughput=1.30 * 409.6)
    now = recommendation(1.29, throughput=1.29 * 367.8)
    code, document, _ = check(was, now)
    assert code == 0
    throughput = next(v for v in document["verdicts"] if v["metric"] == "throughput")
    assert throughput["word"] == "no difference"
    assert "worse by more than noise" in throughput["note"]
    assert check(was, now, "--margin", "throughput=5%")[0] == 1


def test_throughput_is_not_compared_where_the_machine_is_not_known(check):
    sides = [recommendation(throughput=rate, environment={}) for rate in (2000, 500)]
    code, document, _ = check(*sides)
    assert code == 0
    assert ("throughput", 8) not in words(document)


@pytest.mark.parametrize("silent", [0, 1])
def test_throughput_is_not_compared_where_one_side_does_not_name_the_machine(check, silent):
    """A quarter of the throughput, from who knows where."""
    sides = [recommendation(throughput=rate) for rate in (2000, 500)]
    sides[silent]["environment"] = {}
    code, document, _ = check(*sides)
    assert (code, ("throughput", 8) in words(document)) == (0, False)


def test_positions_have_the_freedom_of_their_prompts():
    """Student's t of 4 prompts is 3.182 standard errors to either side at 95 %."""
    document = recommendation(rates=(0.8,))
    candidate = document["candidates"][0]
    candidate["prompts"] = [
        {"prompt_id": f"p{i}", "num_drafts": 10, "accepted_per_pos": [8]} for i in range(4)
    ]
    candidate["per_position_acceptance_intervals"] = [
        {"value": 0.8, "low": 0.8 - 0.03182, "high": 0.8 + 0.03182, "confidence": 0.95}
    ]
    figure = recommended_side(document, "d").rows[1].position_rates[0]
    assert (figure.sd, figure.freedom) == (pytest.approx(0.01, rel=1e-3), 3)


def test_a_rival_that_is_hardly_ahead_has_a_finite_interval(check):
    """Two rivals of equal speed, one ahead by next to nothing: its p value is all but a half."""
    document = recommendation(half=0.1)
    for n, factor in ((4, 1.0 + 1e-9), (5, 0.9)):
        rival = {**document["candidates"][0], "num_speculative_tokens": n}
        rival["speedup"] = {k: v * factor for k, v in rival["speedup"].items()}
        rival["speedup"]["confidence"] = 0.95
        document["candidates"].append(rival)
    before = recommendation(half=0.1)
    document = check(before, document)[1]
    found = next(v for v in document["verdicts"] if v["metric"] == "recommendation")
    assert found["word"] == "no difference"
    # ln(1.1 / .9) / 2 to either side of each speed-up, so sqrt(2) of that of their ratio
    half = math.sqrt(2) * math.log(1.1 / 0.9) / 2
    assert (found["low"], found["high"]) == pytest.approx((math.expm1(-half), math.expm1(half)))


documents = st.builds(
    recommendation,
    speedup=st.floats(0.5, 5),
    half=st.floats(0.001, 0.3),
    length=st.floats(1.05, 3.9),
    rates=st.lists(st.floats(0, 1), min_size=3, max_size=3).map(tuple),
    throughput=st.floats(10, 1e5),
    loads=st.sampled_from([(8,), (1, 8), (1, 8, 32)]),
)


def compared(one, other):
    sides = (recommended_side(each, name) for each, name in ((one, "one"), (other, "other")))
    return check_sides(*sides, Rules(parse_margins([]), parse_allowed("broken-reference")))


@given(documents)
def test_whatever_it_holds_a_document_is_never_worse_than_itself(document):
    report = compared(document, document)
    assert report.exit_code in (0, 4)
    assert {v.word for v in report.verdicts} <= {"no difference", "inconclusive"}


@given(documents, documents)
def test_swapping_two_documents_swaps_the_words(one, other):
    assume(one["speedup"]["value"] > 1 and other["speedup"]["value"] > 1)
    other = {**other, **{key: one[key] for key in ("model", "workload", "environment")}}
    there, back = compared(one, other), compared(other, one)
    swapped = {"regression": "improvement", "improvement": "regression"}
    words = [
        {
            (v.metric, v.concurrency): v.word
            for v in report.verdicts
            if v.change is not None and v.metric != "recommendation"  # only ever worse
        }
        for report in (there, back)
    ]
    for key in words[0].keys() & words[1].keys():
        assert words[1][key] == swapped.get(words[0][key], words[0][key])


# --------------------------------------------------- what is missing, contradictory or impossible


def without_speedup(document):
    """No word about the speed-up: neither it nor the rates that it could be computed from."""
    for row in document["candidates"]:
        row |= {"speedup": None, "output_tokens_per_second": None}
    for row in document["per_concurrency"]:
        row["speedup"] = None
    return document


@pytest.mark.parametrize("missing", ["reference", "measured", "both"])
def test_a_speed_up_that_a_side_does_not_state_is_open(check, missing):
    sides = [
        without_speedup(recommendation()) if missing in (side, "both") else recommendation()
        for side in ("reference", "measured")
    ]
    code, document, _ = check(*sides)
    assert (code, words(document)["speedup", 8]) == (4, "inconclusive")
    assert "holds no such figure" in document["verdicts"][0]["note"]


def test_however_uncertain_the_same_measurement_is_no_worse(check):
    code, document, _ = check(recommendation(half=0.5), recommendation(half=0.5))
    assert (code, set(words(document).values())) == (0, {"no difference"})
    assert any("one and the same measurement" in warning for warning in document["warnings"])
    assert check(recommendation(half=0.5), recommendation(half=0.49))[0] == 4


def changed(document, place, value):
    *steps, last = place
    row = document
    for step in steps:
        row = row[step]
    row[last] = value
    return document


INTERVAL = {"low": 0.7, "high": 0.9, "confidence": 0.95}


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("candidates", 0, "speedup", "value"), 1.6, "not within"),
        (("candidates", 0, "speedup", "low"), 2.1, "not within"),
        (("per_concurrency", 0, "speedup"), {**INTERVAL, "value": 0.8}, "but as a candidate 2.0x"),
        (("candidates", 0, "status"), "failed", "but as a candidate failed"),
        (("candidates", 0, "acceptance_length"), float("inf"), "finite"),
        (("workload", "temperature"), "nan", "finite"),
        (("environment", "driver"), float("nan"), "not a finite number"),
        (("candidates", 0, "per_position_acceptance_intervals"), [{"low": 0.7}] * 3, "required"),
        (("candidates", 0, "per_position_acceptance_intervals"),
         [{**INTERVAL, "confidence": 1}] * 3, "less than 1"),
        (("candidates", 0, "speedup", "confidence"), 1e-320, "greater than or equal to 0.5"),
        (("model",), "\ud800", "surrogates not allowed"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(check, place, value, said):
    document = changed(recommendation(), place, value)
    if "acceptance_length" in place:
        document["candidates"][0]["acceptance_length_interval"] = None
    for sides in ((document, recommendation()), (recommendation(), document)):
        code, _, err = check(*sides)
        assert (code, said in err) == (2, True), err


@pytest.mark.parametrize("rows", ["candidates", "per_concurrency", "baseline"])
def test_a_row_that_stands_there_twice_is_refused(check, rows):
    document = recommendation()
    document[rows].append(document[rows][0])
    for sides in ((document, recommendation()), (recommendation(), document)):
        code, _, err = check(*sides)
        assert (code, "stands there twice" in err) == (2, True), err


@pytest.mark.parametrize(
    ("part", "value"),
    [("value", value) for value in (float("nan"), float("-inf"), -1.0, 0.0, 1e308)]
    + [("sd", 1e308), ("sd", -1.0), ("freedom", 0.0)],
)
@pytest.mark.parametrize("figure", ["speedup", "throughput", "acceptance_length"])
def test_an_impossible_figure_in_a_check_is_refused(check, tmp_path, figure, part, value):
    """NaN compares as neither worse nor better: it must not pass as "no difference"."""
    golden = tmp_path / "golden.json"
    assert check(recommendation(), recommendation(), "-o", str(golden))[0] == 0
    document = json.loads(golden.read_text())
    row = next(row for row in document["measured"]["rows"] if row["chosen"])
    row[figure][part] = value
    for sides in ((document, recommendation()), (recommendation(), document)):
        code, _, err = check(*sides)
        assert code == 2, err


def test_a_check_without_a_choice_is_no_reference(check, tmp_path):
    golden = tmp_path / "golden.json"
    check(recommendation(), recommendation(), "-o", str(golden))
    document = json.loads(golden.read_text())
    document["measured"]["per_load"] = False
    for row in document["measured"]["rows"]:
        row["chosen"] = False
    code, _, err = check(document, recommendation())
    assert (code, "names no measured choice" in err) == (2, True)


def test_a_key_that_stands_twice_is_refused(tmp_path, capsys):
    """What a merge left behind; JSON readers differ in which of the two they take."""
    file = tmp_path / "merged.json"
    text = json.dumps(recommendation())
    file.write_text(text.replace('"model":', '"model": "acme/other", "model":', 1))
    assert invoke(["check", str(file), "--against", str(file)]) == 2
    assert "the key 'model' stands twice" in capsys.readouterr().err


def test_a_file_without_end_is_refused(capsys):
    assert invoke(["check", "/dev/zero"]) == 2
    assert "/dev/zero is larger than 256 MiB" in capsys.readouterr().err


def test_an_empty_value_does_not_turn_a_comparison_into_a_measurement(tmp_path, capsys):
    """--against "$NEW" of a variable that nobody set."""
    file = write(tmp_path, "golden", recommendation())
    for option in ("--against", "--study", "--junit", "--margin"):
        assert invoke(["check", file, option, ""]) == 2
        assert f"'{option}': an empty value" in capsys.readouterr().err


# ------------------------------------------------------------------- what carries no spread


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 0), (0.88, 1), (1.12, 0)])
def test_two_recordings(check, factor, expected):
    code, document, _ = check(recording(), recording(factor))
    assert code == expected
    assert any("noise is assumed" in warning for warning in document["warnings"])
    assert document["verdicts"][0]["assumed"]


def test_the_assumed_noise_decides_where_it_is_all_there_is(check):
    assert check(recording(), recording(0.88), "--assumed-noise", "10%")[0] == 4
    assert check(recording(), recording(0.93), "--assumed-noise", "0.5%")[0] == 1


def test_recordings_are_checked_at_their_own_best(check):
    _, document, _ = check(recording(), recording())
    assert {v["subject"] for v in document["verdicts"]} == {"mtp N=3"}


# ----------------------------------------------------------------------- may not be compared


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("model", {"model": "acme/other"}),
        ("workload_sha256", {"workload": {"name": "math", "sha256": "cd" * 32}}),
        ("gpu", {"environment": {"gpu": "AMD Instinct MI355X", "vllm": "0.32.0"}}),
        ("vllm", {"environment": {"gpu": "AMD Instinct MI300X", "vllm": "1.0.0"}}),
        ("runtime", {"environment": {"gpu": "AMD Instinct MI300X", "runtime": "CUDA 13.0"}}),
        ("engine_args", {"engine_args": ["--max-num-seqs", "2"]}),
    ],
)
def test_other_environments_are_refused_unless_allowed(check, field, change):
    was = recommendation(engine_args=["--max-num-seqs", "8"])
    now = {**was, **change}
    code, document, _ = check(was, now)
    assert (code, document["outcome"]) == (4, "not comparable")
    assert [d["field"] for d in document["differences"] if d["refused"]] == [field]
    assert document["verdicts"] == []
    code, document, _ = check(was, now, "--allow", field)
    assert code == 0
    assert any(warning.startswith(f"{field} differs") for warning in document["warnings"])


def test_a_newer_minor_version_is_what_checks_are_for(check):
    newer = recommendation(environment={"gpu": "AMD Instinct MI300X", "vllm": "0.33.0"})
    code, document, _ = check(recommendation(), newer)
    assert code == 0
    assert "vllm differs: 0.32.0 before, 0.33.0 now" in document["warnings"]


def test_another_drafter_is_named(check):
    """The same method and N, and another model behind them: legitimate, but never silent."""
    config = {"method": "dflash", "model": "acme/draft-v2", "num_speculative_tokens": 3}
    code, document, _ = check(recommendation(), recommendation(speculative_config=config))
    said = [w for w in document["warnings"] if "differs" in w]
    assert (code, said) == (
        0, ["speculative_config.model differs: acme/draft before, acme/draft-v2 now"]
    )  # fmt: skip
    longer = {**config, "model": "acme/draft", "num_speculative_tokens": 5}
    document = check(recommendation(), recommendation(speculative_config=longer))[1]
    assert not any("differs" in warning for warning in document["warnings"])


def test_a_broken_drafter_must_not_become_the_golden_value(check):
    """Acceptance length 1.04, speed-up .71: later breakage could never fail it."""
    broken = recommendation(0.71, length=1.04, rates=(0.04, 0.0, 0.0))
    code, document, _ = check(broken, broken)
    assert (code, document["outcome"]) == (4, "inconclusive")
    assert "acceptance length 1.04" in document["summary"]
    assert check(broken, recommendation())[0] == 4
    assert check(broken, broken, "--allow", "broken_reference")[0] == 0


def test_nor_must_that_of_a_recording(check):
    document = recording()
    document["points"][1]["per_position_acceptance"] = [0.04, 0.0, 0.0]  # the fastest
    code, report, _ = check(document, document)
    assert (code, report["outcome"]) == (4, "inconclusive")
    assert "mtp N=3: acceptance length 1.04, the drafter is broken" in report["summary"]


# ------------------------------------------------------------------------------ bad input

NAN = math.nan
SPAN = {"low": 0.8, "high": 0.9, "confidence": 0.95}


def candidate(**more):
    document = recommendation()
    document["candidates"][0] |= more
    return document


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"schema": "spectune.recommendation/2"}, "recommendation/2"),
        ({"schema": "other/1"}, "other/1"),
        ([], "None"),
        ({"schema": "spectune.recommendation/1"}, "model"),
        (recommendation(half=-2.0), "high"),
        ({**recommendation(), "per_concurrency": []}, "nothing to check"),
        (candidate(per_position_acceptance_intervals=[{"low": 0.8}] * 3), "high: Field required"),
        (candidate(per_position_acceptance_intervals=[{**SPAN, "confidence": 0}] * 3), "confiden"),
        (candidate(per_position_acceptance_intervals=[{**SPAN, "low": NAN}] * 3), "finite"),
        (candidate(acceptance_length=math.inf), "finite"),
        (candidate(acceptance_length=0.5), "acceptance_length"),
        (candidate(output_tokens_per_second=1e-300), "output_tokens_per_second"),
        (candidate(speedup={**SPAN, "value": 0.85, "confidence": 1e-300}), "confidence"),
        ({**recommendation(), "workload": {"name": "math", "temperature": -1}}, "temperature"),
    ],
)
def test_files_that_cannot_be_checked_are_a_usage_error(check, document, words):
    code, printed, error = check(document, recommendation())
    assert (code, printed) == (2, None)
    assert words in error


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("metric", ["speedup", "throughput", "acceptance_length"])
def test_a_figure_without_a_logarithm_is_a_bad_file(check, metric, value):
    """NaN is neither below nor above a margin: it must not read as "no regression"."""
    _, earlier, _ = check(recommendation(), recommendation())
    earlier["measured"]["rows"][1][metric]["value"] = value
    code, printed, error = check(recommendation(), earlier)
    assert (code, printed) == (2, None)
    where = f"measured.rows.1.{metric}"
    assert (where if math.isfinite(value) else "not a finite number") in error


@pytest.mark.parametrize(
    "options",
    [
        ("--margin", "speed=5%"),
        ("--allow", "colour"),
        ("--assumed-noise", "x"),
        ("--engine", "simulate"),
        ("--budget", "3m"),
        ("--study", "x"),
        ("--junit", "no/such/folder/j.xml"),
        ("--", "--max-num-seqs", "8"),
    ],
)
def test_bad_options_are_a_usage_error(check, options):
    code, printed, error = check(recommendation(), recommendation(), *reversed_json(options))
    assert (code, printed) == (2, None)
    assert error


def reversed_json(options):
    """`--json` is appended by the fixture: it must not end up behind `--`."""
    return options if options[0] != "--" else ("--json", *options)


def test_a_missing_file_is_a_usage_error(check, tmp_path):
    assert check(tmp_path / "none.json", recommendation())[0] == 2


# -------------------------------------------------------------------------------- outputs


def test_one_screen_of_text_answer_first(tmp_path, capsys):
    files = [write(tmp_path, f"d{i}", recommendation(s)) for i, s in enumerate((2.0, 1.8))]
    assert invoke(["check", files[0], "--against", files[1]]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("regression: speedup at concurrency 8 -10.0%")
    assert len(lines) <= 24
    assert any(line.startswith("regression") and "2.00x" in line for line in lines[1:])


def test_junit_has_a_case_for_each_metric_and_load(check, tmp_path):
    file = tmp_path / "j.xml"
    _, document, _ = check(recommendation(), recommendation(1.8), "--junit", str(file))
    suite = ElementTree.parse(file).getroot().find("testsuite")
    cases = {case.get("name"): case for case in suite}
    assert len(cases) == len(document["verdicts"]) + 1
    assert cases["speedup at concurrency 8"].find("failure") is not None
    assert cases["acceptance length at concurrency 8"].find("failure") is None
    assert (suite.get("failures"), suite.get("errors")) == ("2", "0")


@pytest.mark.parametrize(
    ("speedup", "half", "code"), [(2.0, 0.01, 0), (1.8, 0.15, 4), (1.8, 0.01, 1)]
)
def test_junit_is_green_exactly_when_the_exit_code_is_zero(check, tmp_path, speedup, half, code):
    file = tmp_path / "j.xml"
    assert (
        check(recommendation(half=half), recommendation(speedup, half), "--junit", str(file))[0]
        == code
    )
    suite = ElementTree.parse(file).getroot().find("testsuite")
    assert (int(suite.get("failures")) + int(suite.get("errors")) > 0) == (code != 0)


def test_names_from_files_are_no_markup(check, tmp_path):
    evil = recommendation(model="a|b<script>\x00")
    files = [str(tmp_path / name) for name in ("j.xml", "m.md")]
    code, _, _ = check(evil, recommendation(), "--junit", files[0], "--markdown", files[1])
    assert code == 4
    assert ElementTree.parse(files[0]).getroot().find("testsuite").get("errors") == "1"
    assert "<script>" not in Path(files[1]).read_text()


def test_the_step_summary_is_appended_and_capped(check, tmp_path, monkeypatch):
    place = tmp_path / "summary.md"
    place.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place))
    check(recommendation(), recommendation())
    text = place.read_text()
    assert text.startswith("before\n### spectune check: no regression")
    assert "| ✅ no difference | speedup | 8 | dflash N=3 |" in text
    place.write_text("x" * (1024 * 1024 - 300))
    check(recommendation(), recommendation())
    assert 1024 * 1024 - 300 < place.stat().st_size <= 1024 * 1024


def test_a_step_summary_that_cannot_be_written_changes_no_verdict(check, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    code, _, error = check(recommendation(), recommendation(1.8))
    assert code == 1
    assert "GITHUB_STEP_SUMMARY" in error


def test_the_reference_is_never_overwritten(tmp_path, capsys):
    file = write(tmp_path, "d", recommendation())
    assert invoke(["check", file, "--against", file, "-o", file]) == 2
    assert json.loads(Path(file).read_text())["schema"] == "spectune.recommendation/1"


def test_the_shell_sees_the_regression(tmp_path):
    """Through a pipe with pipefail: the words and the code belong together."""
    files = [write(tmp_path, f"d{i}", recording(f)) for i, f in enumerate((1.0, 0.88))]
    command = f"{sys.executable} -m autotune check {files[0]} --against {files[1]}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | cat"], capture_output=True, text=True
    )
    assert "regression" in done.stdout.splitlines()[0]
    assert done.returncode == 1


def test_the_verb_is_listed():
    assert "check" in VERBS


# --------------------------------------------------------------------------- stored studies


def test_a_stored_study_is_the_new_measurement(stage, check, tmp_path):
    request = Request(methods="eagle3", num_speculative_tokens="3", effort="rigorous")
    engine = simulate("dense-chat", noise=0.005)
    was = stage.tune(engine, request)
    stage.tune(simulate("dense-chat", noise=0.005), request, fresh=True)
    newest = list_studies(stage.url)[-1].id
    file = write(tmp_path, "was", was.model_dump(mode="json", by_alias=True))
    code, document, _ = check(Path(file), None, "--study", newest, "--storage", stage.url)
    assert code == 0
    assert document["measured"]["kind"] == "study"
    length = next(v for v in document["verdicts"] if v["metric"] == "acceptance_length")
    assert length["change"] == 0  # same seed, same draws
    assert len(RATES) == len(document["measured"]["rows"][1]["prompts"][0]["accepted_per_pos"])


def test_a_study_checked_against_its_own_document_says_that_nothing_is_newer(
    stage, check, tmp_path
):
    was = stage.tune(simulate("dense-chat"), Request(methods="eagle3"))
    file = write(tmp_path, "was", was.model_dump(mode="json", by_alias=True))
    code, document, _ = check(Path(file), None, "--study", was.study, "--storage", stage.url)
    assert code == 0
    assert any("one and the same measurement" in warning for warning in document["warnings"])
