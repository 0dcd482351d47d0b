"""The prediction benchmark: held-out evaluation on windows made by hand, files and figures."""

from __future__ import annotations

import math
import sys
from xml.etree import ElementTree

import pytest
from evaluate import Outcome, Split, acceptance_table, evaluate, summarize, table
from hypothesis import given
from hypothesis import strategies as st
from predict import main
from stepfit import draft_fit, step_table, timed_steps, verify_fit
from svg import Panel, Series, figure, ticks
from tuner_samples import plan_of, simulate, window
from windows import load_windows, measure, save_windows

from autotune.engines.steps import summarize_steps
from autotune.plan import with_priors
from autotune.records import SpecCounters
from autotune.vllm_plugin.worker import COLUMNS

RATE = 0.8  # of every position, given the one before
LENGTHS, LOADS = (1, 2, 3, 4, 5, 6), (1, 2, 4, 8)
SPLIT = Split(lengths=(1, 3, 6), loads=(1, 8))
DRAFT, VERIFY, TOKEN, BASE = 2.0, 10.0, 0.05, 10.0  # milliseconds


def tau(n: int) -> float:
    return sum(RATE**i for i in range(n + 1))


def speedup(n: int, load: int) -> float:
    """An affine machine: each drafted token costs DRAFT, each verified one TOKEN."""
    step = n * DRAFT + VERIFY + load * (n + 1) * TOKEN
    return tau(n) * (BASE + load * TOKEN) / step


def batch_steps(n: int, load: int, drafts: bool):
    """Timed steps: some with all requests, some of the tail with one less."""
    rows, start = [], 0.0
    for requests in [load] * 8 + [max(1, load - 1)] * 4:
        draft, verify = 1e-3 * n * DRAFT, 1e-3 * (VERIFY + requests * (n + 1) * TOKEN)
        values = {"start": start, "step": draft + verify, "draft": draft, "requests": requests}
        values |= {"tokens": requests * (n + 1), "drafted": requests * n, "decode": 1.0}
        rows.append([values.get(column, 100 * requests) for column in COLUMNS])
        start += draft + verify
    return summarize_steps(rows, drafter=drafts, tokens_per_request=1.0)


def measured_windows(factor=lambda n, load: 1.0):
    """Exact windows of mtp, two blocks each; `factor` falsifies some of them."""
    for load in LOADS:
        for block in ("search:0", "search:1"):
            base = 1000.0 * load
            timed = batch_steps(0, load, drafts=False)
            yield window("none", 0, base, load, block, steps=timed)
            for n in LENGTHS:
                drafts = 100_000
                accepted = tuple(round(drafts * RATE**i) for i in range(1, n + 1))
                yield window(
                    "mtp",
                    n,
                    base * speedup(n, load) * factor(n, load),
                    load,
                    block,
                    output_tokens=drafts + sum(accepted),
                    counters=SpecCounters(
                        num_drafts=drafts,
                        num_draft_tokens=n * drafts,
                        num_accepted_tokens=sum(accepted),
                        accepted_per_pos=accepted,
                    ),
                    steps=batch_steps(n, load, drafts=True),
                )


PLAN = plan_of(LOADS, mtp=LENGTHS)


def outcomes(*arguments) -> dict[tuple[int, int], Outcome]:
    found = evaluate("by hand", PLAN, list(measured_windows(*arguments)), SPLIT)
    return {(o.n, o.load): o for o in found}


def test_everything_that_the_fit_did_not_see_is_predicted():
    found = outcomes()
    seen = {(n, load) for n in SPLIT.lengths for load in SPLIT.loads}
    assert set(found) == {(n, load) for n in LENGTHS for load in LOADS} - seen
    assert {o.kind for o in found.values() if o.n == 3} == {"load"}
    assert {o.kind for o in found.values() if o.n == 2} == {"N", "N and load"}
    for (n, load), outcome in found.items():
        assert outcome.measured == pytest.approx(math.log(speedup(n, load)))


def test_an_affine_machine_is_predicted_well():
    assert summarize(list(outcomes().values())).median_error < 0.03


def test_predictions_do_not_see_what_was_held_out():
    def doubled(n: int, load: int) -> float:
        return 2.0 if SPLIT.kind(n, load) else 1.0

    honest, falsified = outcomes(), outcomes(doubled)
    for key, outcome in falsified.items():
        assert outcome.predicted == honest[key].predicted
        assert outcome.measured == pytest.approx(honest[key].measured + math.log(2))
        assert not outcome.covered or outcome.predicted_sd > 0.3


def test_the_baseline_is_held_out_with_its_load():
    base = {load: window("none", 0, 100.0, load) for load in LOADS}
    assert [load for load in LOADS if SPLIT.sees(base[load])] == [1, 8]
    everywhere = SPLIT._replace(baseline_everywhere=True)
    assert all(everywhere.sees(each) for each in base.values())
    assert not everywhere.sees(window("mtp", 3, 100.0, 4))


def outcome(predicted: float, measured: float, sd: float, noise: float) -> Outcome:
    return Outcome("t", "mtp", 2, 1, "N", predicted, sd, measured, noise)


def test_summary():
    """Errors 10 %, -10 % and 1 %; sds 3-4-5, so that 1.96 x 0.05 covers two of three."""
    errors = (math.log(1.1), math.log(0.9), math.log(1.01))
    found = summarize([outcome(error, 0.0, 0.03, 0.04) for error in errors])
    assert found.count == 3
    assert found.median_error == pytest.approx(0.1)
    assert found.worst_error == pytest.approx(0.1)
    assert found.bias == pytest.approx(0.01)
    assert found.coverage == pytest.approx(2 / 3)
    assert found.median_half_width == pytest.approx(0.098, abs=1e-4)


def test_tables_say_what_was_asked():
    text = table([outcome(math.log(1.1), 0.0, 0.03, 0.04)])
    assert "| t | mtp | N | 1 | 10.0% | 10.0% | +10.0% | 9.8% | 100% |" in text
    assert "| all | all | any | 1 |" in text
    text = acceptance_table({"by hand": (PLAN, list(measured_windows()))})
    assert "| 0.80 0.64 0.51 0.41 0.33 0.26 |" in text  # .8 to the power of 1 .. 6
    assert "1: 1.80, 2: 2.44" in text


def test_step_times_are_pooled_by_requests():
    """Batch 3 is both the load-4 window's tail and nothing else; batch 8 has 8 steps a window."""
    found = {(t.n, t.requests): t for t in timed_steps(measured_windows(), "mtp")}
    assert set(found) == {(n, b) for n in LENGTHS for b in (1, 2, 3, 4, 7, 8)}
    eight = found[2, 8]
    assert (eight.steps, eight.tokens) == (2 * 8, 24)
    assert eight.draft == pytest.approx(2 * DRAFT / 1e3)
    assert eight.verify == pytest.approx((VERIFY + 24 * TOKEN) / 1e3)


def test_an_affine_machine_is_fitted_exactly():
    found = timed_steps(measured_windows(), "mtp")
    drafting, verifying = draft_fit(found), verify_fit(found)
    assert drafting.coefficients == pytest.approx((0, DRAFT / 1e3, 0, 0), abs=1e-9)
    assert verifying.coefficients == pytest.approx((VERIFY / 1e3, 0, TOKEN / 1e3), abs=1e-9)
    assert max(drafting.median_error, verifying.median_error) < 1e-9
    (line,) = step_table({"by hand": (PLAN, list(measured_windows()))}).splitlines()[2:]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:2] == ["by hand", "mtp"] and cells[3] == cells[5] == "0.0%"
    milliseconds = [float(value) for value in cells[4].split(",")]
    assert milliseconds == pytest.approx([VERIFY, 0, TOKEN], abs=1e-3)


def test_drafting_that_was_not_timed_is_not_fitted():
    found = timed_steps(measured_windows(), "none")
    assert {t.n for t in found} == {0}
    assert draft_fit(found) is None and verify_fit([]) is None


# ------------------------------------------------------------------------- files and figures


@pytest.fixture
def folder(tmp_path):
    save_windows(tmp_path / "by-hand.jsonl", PLAN, measured_windows())
    return tmp_path


def test_windows_are_kept(folder):
    plan, windows = load_windows(folder / "by-hand.jsonl")
    assert plan == with_priors(PLAN)  # what is assumed is today's, whatever was stored
    assert windows == list(measured_windows())


def test_stored_windows_are_evaluated_without_an_engine(folder, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["predict.py", "--windows", str(folder), "--plots", str(folder / "plots"),
                      "--markdown", str(folder / "found.md"), "--fit-lengths", "1,6", "--details"]
    )  # fmt: skip
    main()
    said = capsys.readouterr().out
    assert said.startswith((folder / "found.md").read_text())
    assert said.count("| by-hand | mtp | 2 | ") == 4  # each load, in the details
    assert "N = 1, 6 at loads 1, 8" in said
    assert "| by-hand | mtp | N and load | 8 |" in said  # N 2 to 5 at loads 2 and 4
    for name in ("predicted-measured.svg", "step-times.svg"):
        text = (folder / "plots" / name).read_text()
        assert len(text) < 150 * 1024
        assert ElementTree.fromstring(text).tag.endswith("svg")


def test_a_figure_shows_every_point_inside_its_panel():
    points = [(1.0, 2.0), (3.0, -1.0), (2.0, 0.5)]
    text = figure([Panel("a < b", "x", "y", [Series("one & only", points, bars=[0.1] * 3)])])
    root = ElementTree.fromstring(text)
    circles = [node for node in root.iter() if node.tag.endswith("circle")]
    assert len(circles) == 3 + 1  # one in the legend
    for node in circles[:3]:
        assert 46 <= float(node.get("cx")) <= 288 and 26 <= float(node.get("cy")) <= 194
    assert "a &lt; b" in text and "one &amp; only" in text


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside(low, width):
    found = ticks(low, low + width)
    assert 2 <= len(found) <= 6
    slack = 1e-9 * (abs(low) + width)
    assert all(low - slack <= tick <= low + width + slack for tick in found)


def test_every_length_is_measured_block_by_block():
    """On a simulated engine: forwards, then backwards, the in-engine N=0 among them."""
    engine = simulate("dense-chat")
    space = engine.offer().spaces[0].model_copy(update={"lengths": (1, 2)})
    plan = plan_of((1, 4), {"search_blocks": 2}).model_copy(update={"spaces": (space,)})
    found = [
        (w.method == "none", w.num_speculative_tokens, w.block)
        for w in measure(plan, engine, lambda line: None)
    ]
    baseline = [(True, 0, f"{block}:c{c}") for block in ("search:0", "search:1", "reference:0")
                for c in (1, 4)]  # fmt: skip
    turns = (("search:0", (0, 1, 2)), ("search:1", (2, 1, 0)), ("reference:0", (0, 1, 2)))
    assert found == baseline + [
        (False, n, f"{block}:c{c}") for block, lengths in turns for n in lengths for c in (1, 4)
    ]
