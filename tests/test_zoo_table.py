"""The table of methods on a real engine: what its cells say of given measurements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from families import Family
from methods_table import counts, decisions, equal, live, rates, speedups

from autotune.methods import all_methods, get_method


def answer(drafts=40, draft_tokens=80, accepted=(30, 10), texts=("a", "b")):
    return {
        "drafts": drafts,
        "draft_tokens": draft_tokens,
        "accepted": list(accepted),
        "texts": list(texts),
    }


def test_rates_are_accepted_over_drafts():
    assert rates(answer()) == ".75 .25"
    assert rates(answer(accepted=(40, 0))) == "1.00 .00"


def test_a_method_that_drafts_nothing_has_no_rates():
    assert rates(answer(drafts=0, draft_tokens=0, accepted=(0, 0))) == "nothing drafted"


@pytest.mark.parametrize(
    ("study", "cells"),
    [
        ({"decision": "inconclusive", "method": "none", "num_speculative_tokens": 0,
          "speedup": None}, "| zoo | inconclusive | - | 3 | 61 |"),
        ({"decision": "inconclusive", "method": "mtp", "num_speculative_tokens": 2,
          "speedup": {"value": 1.01, "low": 0.9, "high": 1.1}},
         "| zoo | inconclusive: mtp N=2 | 1.01 [0.90, 1.10] | 3 | 61 |"),
    ],
)  # fmt: skip
def test_a_study_without_an_answer_is_a_row_too(study, cells):
    cost = {"engine_starts": 3, "total_seconds": 61.2}
    *_, row = decisions([(Family("zoo", "target", {}), {**study, "cost": cost})])
    assert row == cells


@pytest.mark.parametrize(
    ("fresh", "says"),
    [
        (answer(), "yes, counts equal at 1 of 1 N"),
        (answer(drafts=41), "NO, counts equal at 0 of 1 N"),
        (answer(draft_tokens=79), "NO, counts equal at 0 of 1 N"),
        (answer(accepted=(30, 11)), "NO, counts equal at 0 of 1 N"),
    ],
)
def test_live_n_works_only_where_all_counts_are_identical(fresh, says):
    found = {"live": {"2": answer(accepted=(30, 10, 0, 0))}, "fresh": {"2": fresh}}
    assert live(get_method("eagle3"), found) == says


def test_a_method_with_one_start_per_n_says_so():
    assert live(get_method("pard"), {"fresh": {"2": answer()}}) == "no: one start per N"


def test_positions_beyond_n_are_the_live_engines_own():
    assert counts(answer(accepted=(30, 10, 0)), "2") == (40, 80, [30, 10])


def test_each_different_answer_counts():
    found = {"fresh": {"2": answer(), "6": answer(texts=("a", "x"))}, "live": {"2": answer()}}
    assert equal(["a", "b"], found) == "5 of 6"


@pytest.mark.parametrize(
    ("predicted", "says"),
    [
        (None, "N=6 0.90 [0.80, 1.05]"),
        ({"value": 2.034}, "N=6 2.03 → 0.90 [0.80, 1.05]"),
    ],
)
def test_a_prediction_that_was_not_made_is_not_shown(predicted, says):
    row = {
        "num_speculative_tokens": 6,
        "predicted_speedup": predicted,
        "speedup": {"value": 0.9, "low": 0.8, "high": 1.049},
    }
    assert speedups(row) == says


def test_every_method_is_in_the_document():
    text = (Path(__file__).parent.parent / "docs" / "methods-measured.md").read_text()
    rows = re.findall(r"^(?:\| |- `)([a-z0-9_]+)`?[: ]", text, re.MULTILINE)
    named = [name for name in rows if name in {method.name for method in all_methods()}]
    assert sorted(named) == sorted(method.name for method in all_methods())
