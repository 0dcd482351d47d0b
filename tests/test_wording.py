"""Words that a terminal, reports and exports share."""

from __future__ import annotations

import pytest
from store_samples import make_plan, make_recommendation

from autotune.cli.render import recommendation_parts
from autotune.cli.terminal import plain
from autotune.records import BASELINE, CandidateResult, Cost, Limits, LoadChoice
from autotune.wording import (
    candidate_text,
    choice_text,
    cost_text,
    keeps_limits,
    lengths_text,
    load_text,
    over_text,
)


def choice(decision, method, n, **more):
    return LoadChoice(concurrency=8, decision=decision, method=method, num_speculative_tokens=n,
                      speedup=None, status=None, **more)  # fmt: skip


CHOICES = [
    (choice("speculate", "dflash", 7), "dflash N=7"),
    (choice("inconclusive", "dflash", 7), "dflash N=7 leads (inconclusive)"),
    (choice("do_not_speculate", BASELINE, 0), "do not speculate"),
    (choice("inconclusive", BASELINE, 0), "inconclusive"),
]


@pytest.mark.parametrize(("made", "words"), CHOICES)
def test_a_choice_never_sounds_surer_than_it_is(made, words):
    assert choice_text(made) == words
    r = make_recommendation(make_plan(), "abc", per_concurrency=(made,))
    assert f"8            {words}  -" in plain(recommendation_parts(r))


def test_limits_that_nobody_judged_are_not_missed():
    r = make_recommendation(make_plan(), "abc", per_concurrency=(CHOICES[3][0],),
                            limits={"tpot_seconds": 0.03})  # fmt: skip
    lines = plain(recommendation_parts(r)).splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.endswith("LIMITS")]
    assert lines[at + 1].endswith(" -")


def test_lengths_text():
    assert lengths_text((1, 2, 3, 5, 7, 8)) == "1-3,5,7-8"
    assert lengths_text((1, 2, 3, 7), ", ") == "1-3, 7"
    assert lengths_text(()) == ""


def test_load_text():
    assert (load_text(8), load_text(None)) == ("8", "unstated")


def test_candidate_text():
    found = [candidate_text(*each) for each in (("dflash", 7), ("dflash", None), (BASELINE, 0))]
    assert found == ["dflash N=7", "dflash", "no speculation"]


def test_cost_text():
    cost = Cost(engine_starts=1, probes=3, probe_seconds=4.0, total_seconds=65.0)
    assert cost_text(cost) == "1 engine start, 3 measurements, 1 min 5 s"


def limited(shares):
    r = make_recommendation(make_plan(), "abc")
    row = CandidateResult(method=r.method, num_speculative_tokens=r.num_speculative_tokens,
                          concurrency=1, status="confirmed")  # fmt: skip
    return r.model_copy(update={
        "limits": Limits(tpot_seconds=0.008),
        "limits_share": 0.95,
        "per_concurrency": tuple(
            choice("speculate", "dflash", 7).model_copy(update={"concurrency": load})
            for load in shares
        ),
        "candidates": tuple(
            row.model_copy(update={"concurrency": load, "share_within_limits": share})
            for load, share in shares.items()
        ),
    })  # fmt: skip


def test_limits_are_kept_only_where_every_load_keeps_them():
    assert keeps_limits(limited({1: 1.0, 8: 0.95}))
    assert not keeps_limits(limited({1: 1.0, 8: 0.94}))
    assert not keeps_limits(limited({1: 1.0, 8: None}))
    assert not keeps_limits(limited({1: 1.0}).model_copy(update={"limits": None}))


def test_the_answer_says_that_it_is_for_all_loads():
    words = "one setting for all loads"
    assert over_text(limited({1: 1.0, 8: 1.0})) == f": {words}, geometric mean"
    assert over_text(limited({1: 1.0})) == ""
    assert words not in plain(recommendation_parts(make_recommendation(make_plan(), "abc")))
