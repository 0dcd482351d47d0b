"""The benchmark of the search: what it leaves out, how it counts, what it writes."""

from __future__ import annotations

import json
import math

import calibration
import pytest
import rivals
import search
from evaluate import Outcome
from tuner_samples import PUBLISHED

PANEL = PUBLISHED / "s01-gemma-4-26b-a4b-it-math500.json"  # 5 + 5 + 4 points, one load


def test_every_point_is_left_out_once():
    found = [c for c in calibration.recorded_cases(PANEL) if c.kind.startswith("leave one N")]
    assert len(found) == len({(c.method, c.n) for c in found}) == 14
    document = json.loads(PANEL.read_text())
    base = document["baseline"][0]["output_tokens_per_second"]
    for point in document["points"]:
        (case,) = [
            c
            for c in found
            if (c.method, c.n) == (point["method"], point["num_speculative_tokens"])
        ]
        assert math.exp(case.measured) == pytest.approx(point["output_tokens_per_second"] / base)
        assert case.predicted != case.measured


def test_a_model_is_known_by_its_name_alone():
    assert calibration.same_model("google/gemma-4-31B-it", "gemma-4-31B")
    assert not calibration.same_model("google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it")


def test_priors_of_a_model_do_not_know_it():
    """Gemma 4 MTP was published for two models: without one of them the other is all there is."""
    without = {
        name: calibration.priors_without(f"google/gemma-4-{name}")["gemma4_mtp"]
        for name in ("26B-A4B-it", "31B-it")
    }
    assert without["26B-A4B-it"] != without["31B-it"]
    # the 31B model's steps grow faster with N: see the panels' lines in studies/published
    assert without["26B-A4B-it"].cost_slope > without["31B-it"].cost_slope


def outcome(error, sd=0.05):
    return Outcome("m", "mtp", 1, None, "made up", error, sd, 0.0, 0.0)


def test_coverage_is_counted():
    text = calibration.table([outcome(0.02), outcome(-0.09), outcome(0.2), outcome(0.01)])
    # 1.96 x 0.05 = 0.098: three of four are inside; the middle of 1.0, 2.0, 8.6, 22.1 % is 5.3 %
    assert text.splitlines()[-1] == "| made up | 4 | 5.3% | 9.8% | 75.0% |"


class Outcomes:
    def of(self, who, *regrets, condition="exact", starts=2):
        return [search.Outcome(who, condition, r, starts, 3, 7) for r in regrets]


def test_the_table_of_regrets():
    made = Outcomes()
    ours = made.of("spectune", 0.0, 0.01, 0.02) + made.of(
        "spectune", 0.03, condition="exact, no live N", starts=4
    )
    text = search.table(ours + made.of("full grid", 0.0, 0.05, starts=9))
    assert "| exact | spectune | 3 | 1.00% | 2.00% | 2.00% | 5.0 | 7.0 |" in text
    assert "| exact | full grid | 2 | 2.50% | 5.00% | 5.00% | 12.0 | 7.0 |" in text
    assert text.splitlines()[-1] == "engine starts: at most M + 2 with live N, 2 M + 1 without"


def test_the_document_keeps_everything_else(tmp_path):
    document = tmp_path / "benchmarks.md"
    document.write_text(f"before\n{search.BEGIN}\nold\n{search.END}\nafter\n")
    search.put(document, "new")
    assert document.read_text() == f"before\n{search.BEGIN}\nnew\n{search.END}\nafter\n"


def test_rivals_see_only_what_they_probe():
    rates = {("mtp", 1): 120.0, ("mtp", 4): 150.0, ("eagle3", 2): 90.0}
    asked = []

    def probe(method, n):
        asked.append((method, n))
        return rivals.Answer(rates[method, n], None, None)

    keys = sorted(rates)
    assert rivals.full_grid(keys, 100.0, probe, 1, 0) == (("mtp", 4), 4)
    assert sorted(asked) == keys
    asked.clear()
    best, starts = rivals.RIVALS["random"](keys, 200.0, probe, 2, 0)
    assert best == ("none", 0) and len(asked) == 2 and starts <= 3
    asked.clear()
    assert rivals.recipe_default(keys, 100.0, probe, 9, 0)[0] == ("mtp", 1) and not asked
