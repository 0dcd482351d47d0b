"""Words that a terminal, reports and exports share."""

from __future__ import annotations

import pytest
from store_samples import make_plan, make_recommendation

from autotune.cli.render import recommendation_parts
from autotune.cli.terminal import plain
from autotune.records import BASELINE, Cost, LoadChoice
from autotune.wording import candidate_text, choice_text, cost_text, lengths_text, load_text


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
