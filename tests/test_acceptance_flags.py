"""Flags and intervals of acceptance in whole studies; a scripted engine tells of its drafts."""

from __future__ import annotations

import json

import pytest
from test_drafts import counted, result
from tuner_samples import Scripted, plan_of, replay, simulate

from autotune.models.candidates import build_spaces
from autotune.models.catalog import resolve_model
from autotune.plan import Request, make_plan

RISING = {("none", 0): 100.0, **{("mtp", n): 100.0 + 20 * n for n in range(1, 5)}}
BRIEF = {"greedy_prompts": 0, "search_blocks": 1, "confirm_blocks": 2}
ACCEPTANCE = ("last position", "late positions", "max_tokens", "no closer", "short rather")


@pytest.fixture
def study(stage):
    return lambda engine, plan: stage.tune(engine, plan=plan, fresh=True)


def telling(steps, rates=RISING, **how):
    """An engine whose every answer has `steps(n)`: (accepted, drafted) of each of its drafts."""
    tells, more = how.pop("tells", True), how

    def react(arm, n, block, window):
        if not n:
            return None
        answers = [steps(n) for _ in block.prompts]
        requests = tuple(result(each, f"{block.key}/{i}", **more) for i, each in enumerate(answers))
        counters = counted(*answers, n=4)  # a live engine has the positions of its largest N
        return window.model_copy(
            update={
                "counters": counters,
                "acceptance_length": counters.acceptance_length,
                "requests": requests if tells else (),
            }
        )

    return Scripted(rates, react)


def all_or_nothing(right, wrong):
    """Drafts of full length, accepted whole or not at all: all positions have one rate."""
    return lambda n: [(n, n)] * right + [(0, n)] * wrong


def chosen(recommendation):
    """The rows of what is recommended; also its warnings about acceptance."""
    key = recommendation.method, recommendation.num_speculative_tokens
    (row,) = (c for c in recommendation.candidates if (c.method, c.num_speculative_tokens) == key)
    return row, about(recommendation)


def about(recommendation):
    return [w for w in recommendation.warnings if any(words in w for words in ACCEPTANCE)]


def plan(next_length=None, sends_prompts=True, lengths=(1, 2, 3, 4)):
    made = plan_of(settings=BRIEF, mtp=lengths)
    spaces = tuple(s.model_copy(update={"next_length": next_length}) for s in made.spaces)
    return made.model_copy(update={"spaces": spaces, "sends_prompts": sends_prompts})


# ----------------------------------------------------------------------------------- figures


def test_figures_come_with_intervals(study):
    """30 of 40 drafts whole in every answer: p = 3/4 everywhere; the answers are all alike."""
    row, said = chosen(study(telling(all_or_nothing(30, 10)), plan()))
    assert row.num_speculative_tokens == 4
    assert row.per_position_acceptance_rates == (0.75,) * 4
    assert row.conditional_acceptance_rates == (0.75,) * 4
    assert row.acceptance_length == row.acceptance_length_interval.value == 4.0
    for interval in row.per_position_acceptance_intervals:
        # 2 blocks of 16 answers with 40 drafts: about 0.75 +- 2.04 sqrt(0.1875 / 1280)
        assert interval.low == pytest.approx(0.75 - 0.0247, abs=0.001)
        assert interval.high == pytest.approx(0.75 + 0.0247, abs=0.001)
        assert interval.confidence == 0.95
    assert row.flags == () and said == []


def test_a_smaller_n_has_no_more_positions_than_it_drafts(study):
    recommendation = study(telling(all_or_nothing(30, 10)), plan())
    probed = [c for c in recommendation.candidates if c.status == "probed"]
    assert probed
    for each in probed:
        n = each.num_speculative_tokens
        assert len(each.per_position_acceptance_rates) == n
        assert len(each.per_position_acceptance_intervals) == n


def test_without_counters_nothing_is_said(study):
    row, said = chosen(study(Scripted(RISING), plan()))
    assert row.acceptance_length is not None
    assert row.acceptance_length_interval is None
    assert row.per_position_acceptance_intervals is None
    assert row.conditional_acceptance_rates is None
    assert row.flags == () and said == []


def test_an_engine_without_requests_is_told_apart(study):
    row, said = chosen(study(telling(all_or_nothing(30, 10), tells=False), plan()))
    assert row.flags == ("unclustered",)
    assert row.acceptance_length_interval.value == 4.0
    assert said == []  # nothing follows from it


# -------------------------------------------------------------------------------------- edge


def test_the_largest_n_may_not_be_the_best(study):
    row, said = chosen(study(telling(all_or_nothing(30, 10)), plan(next_length=6)))
    assert row.flags == ("edge",)
    (warning,) = said
    assert "mtp N=4: the largest N that was offered" in warning
    assert "100% of the drafts" in warning  # never right up to position 3 and wrong there
    assert "mtp allows N=6 next" in warning


def test_a_recording_has_no_larger_n_to_try(study):
    row, said = chosen(study(telling(all_or_nothing(30, 10)), plan(sends_prompts=False)))
    assert row.flags == ("edge",)
    assert "no larger one can be tried here" in said[0]


@pytest.mark.parametrize(("late", "edge"), [(19, True), (17, False)])
def test_the_last_position_must_be_accepted_often(study, late, edge):
    """30 drafts right up to N - 1, of which 19 (0.63) or 17 (0.57) are right at N too."""

    def steps(n):
        return [(n, n)] * late + [(n - 1, n)] * (30 - late) + [(0, n)] * 10

    row, said = chosen(study(telling(steps), plan(next_length=5)))
    assert row.num_speculative_tokens == 4
    assert ("edge" in row.flags) == edge == bool(said)


def test_a_falling_trend_is_no_edge(study):
    rates = {("none", 0): 100.0, ("mtp", 1): 150.0, ("mtp", 2): 180.0, ("mtp", 3): 200.0,
             ("mtp", 4): 170.0}  # fmt: skip
    recommendation = study(telling(all_or_nothing(30, 10), rates), plan(next_length=5))
    assert recommendation.num_speculative_tokens == 3
    assert all("edge" not in c.flags for c in recommendation.candidates)
    assert about(recommendation) == []


def test_an_edge_matters_even_where_nothing_was_faster(study):
    """Slower than no speculation, and still rising at the largest N."""
    rates = {("none", 0): 100.0, **{("mtp", n): 50.0 + 11 * n for n in range(1, 5)}}
    recommendation = study(telling(all_or_nothing(30, 10), rates), plan(next_length=5))
    assert recommendation.decision == "do_not_speculate"
    (warning,) = about(recommendation)
    assert warning.startswith("mtp N=4") and "a larger N may be faster still" in warning


def test_the_simulators_edge(study):
    """Its best candidate is the largest N of dflash, by construction."""
    engine = simulate("edge")
    row, said = chosen(study(engine, make_plan(Request(), engine)))
    assert (row.method, row.num_speculative_tokens) == ("dflash", 15)
    assert "edge" in row.flags and len(said) == 1
    engine = simulate("dense-chat")  # an optimum at N=3 of 6
    row, said = chosen(study(engine, make_plan(Request(), engine)))
    assert row.flags == () and said == []


def test_recorded_rates_show_an_edge_too(study, tmp_path):
    points = [
        {
            "method": "mtp",
            "num_speculative_tokens": n,
            "concurrency": 1,
            "output_tokens_per_second": 100.0 + 30 * n,
            "per_position_acceptance": [0.9, 0.8, 0.68][:n],
        }
        for n in (1, 2, 3)
    ]
    recording = {
        "schema": "spectune.recording/1", "model": "acme/small", "workload": "by hand",
        "baseline": [{"concurrency": 1, "output_tokens_per_second": 100.0}], "points": points,
    }  # fmt: skip
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(recording))
    engine = replay(path)
    row, said = chosen(study(engine, make_plan(Request(), engine)))
    assert row.flags == ("edge",) and "85% of the drafts" in said[0]  # 0.68 / 0.8
    assert row.per_position_acceptance_intervals is None
    narrowed = make_plan(Request(num_speculative_tokens="1-2"), engine)
    row, said = chosen(study(engine, narrowed))
    assert row.flags == ("edge",) and "mtp allows N=3 next" in said[0]


def test_the_next_length_is_the_methods(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "deepseek_v3", "num_nextn_predict_layers": 3})
    )
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text(json.dumps({"dflash_config": {"block_size": 8}}))

    def following(method, lengths, **more):
        model = resolve_model(str(folder))
        spaces, *_ = build_spaces(model, methods=[method], lengths=lengths, **more)
        return spaces[0].lengths[-1], spaces[0].next_length

    assert following("mtp", (1, 2)) == (2, 3)
    assert following("mtp", range(1, 9)) == (6, 9)  # multiples of 3
    assert following("ngram", range(1, 9)) == (8, 9)
    assert following("ngram", (64,)) == (64, None)  # more are never tried
    block = {"drafters": {"dflash": str(drafter)}}
    assert following("dflash", range(1, 6), **block) == (5, 6)
    assert following("dflash", range(1, 16), **block) == (7, None)  # the end of its block


def test_what_could_be_tried_beside_is_not_what_is_tried():
    assert plan(next_length=5).sha256 == plan().sha256
    assert plan(lengths=(1, 2)).sha256 != plan().sha256


# ------------------------------------------------------------------------- thin or cut evidence


def test_few_rounds(study):
    """Four drafts in each of 16 answers, two of them with nothing right.

    32 answers: a rate of 1/2 has a standard error of sqrt(1/4 / 31), times 2.04 is 0.18.
    """

    def react_steps():
        turn = [0]

        def steps(n):
            turn[0] += 1
            return [(n, n)] if turn[0] % 2 else [(0, n)]

        return steps

    row, said = chosen(study(telling(react_steps(), tokens=100), plan()))
    assert row.flags == ("few_rounds",)
    (warning,) = said
    assert "acceptance at position 1 lies between 0.3" in warning and "--rigorous" in warning


def test_short_drafts(study):
    """A lookup that finds one token mostly: position 4 was seen in 10 of 40 drafts."""

    def steps(n):
        return [(n, n)] * 10 + [(1, 1)] * 15 + [(0, 1)] * 15

    row, said = chosen(study(telling(steps), plan()))
    assert row.flags == ("censored", "varying_lengths")
    assert row.per_position_acceptance_rates == (0.625, 0.25, 0.25, 0.25)
    assert row.conditional_acceptance_rates == (0.625, 1.0, 1.0, 1.0)
    assert "most drafts were shorter than N" in said[0]
    assert "position 2 is accepted in 25% of all drafts, but in 100% of those" in said[1]


def test_short_drafts_show_in_the_counters_alone(study):
    def steps(n):
        return [(n, n)] * 10 + [(1, 1)] * 15 + [(0, 1)] * 15

    row, said = chosen(study(telling(steps, tells=False), plan()))
    assert row.flags == ("censored", "varying_lengths", "unclustered")
    assert row.conditional_acceptance_rates is None
    assert len(said) == 1 and "most drafts were shorter than N" in said[0]


def test_a_few_cut_drafts_are_nothing(study):
    """One draft in 300 a token short: 0.08 % of the tokens."""

    def steps(n):
        return [(n, n)] * 200 + [(0, n)] * 99 + [(0, max(1, n - 1))]

    row, said = chosen(study(telling(steps), plan()))
    assert row.flags == () and said == []


@pytest.mark.parametrize(("reason", "short"), [("length", True), ("stop", False)])
def test_answers_cut_after_a_few_steps(study, reason, short):
    """Three drafts, all right, and max_tokens is reached."""
    row, said = chosen(study(telling(lambda n: [(n, n)] * 3, reason=reason), plan()))
    assert row.flags == (("censored", "short_answers") if short else ())
    assert len(said) == short
    if short:
        assert "max_tokens within 5 steps" in said[0] and "--max-tokens" in said[0]


def test_steps_without_drafts_make_an_answer_long(study):
    """The same three drafts in an answer of 100 tokens."""
    row, said = chosen(study(telling(lambda n: [(n, n)] * 3, tokens=100), plan()))
    assert row.flags == () and said == []
